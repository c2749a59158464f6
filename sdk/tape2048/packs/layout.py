r"""a2pack: the format of many runs in one read-only file; extension ``.a2pack``.

======== =========== ==================================================================================
part     bytes       layout
======== =========== ==================================================================================
header   28          magic ``A2PACK\0\0``, ``u32`` version = 1, ``u32`` flags = 0, ``u64`` count, ``u32``
                     CRC-32C of bytes 0 to 23
index    32 x count  ``u64`` absolute offset, ``u32`` length, ``u16`` kind (1 = A2T1, 2 = a2run2), ``u16``
                     flags (low byte: 0 stored, 1 zstd, 2 lz4), ``u32`` CRC-32C of the stored payload (0 =
                     left out), ``u32`` raw length (0 where not compressed), ``u64`` 0
padding              zeros up to the alignment (4096 by default)
data                 payloads in index order, each aligned, zeros between
stats    optional    ``u32`` length, then as much of :class:`~tape2048.packs.stats.PackStats`: see there
footer   32          ``u64`` end of the data, ``u32`` CRC-32C of the index, ``u32`` CRC-32C of the data or
                     0, ``u64`` offset of the stats or 0, ``u32`` CRC-32C of the footer's first 24 bytes,
                     ``u32`` 0
======== =========== ==================================================================================

Payloads are whole run files, byte for byte. Entries are in order of their offsets and do not overlap. A
compressed payload is one zstd frame or one LZ4 frame (the frame format, magic ``04 22 4d 18``; not a bare
block), with nothing after it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
from crc32c import crc32c

from tape2048.errors import FieldError, FormatError, MagicError, TruncatedError, VersionError
from tape2048.io.reading import check_crc

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

MAGIC: Final = b"A2PACK\0\0"
VERSION: Final = 1

_HEADER = struct.Struct("<8sIIQI")
_FOOTER = struct.Struct("<QIIQII")
HEADER_BYTES: Final = 28
FOOTER_BYTES: Final = 32
_HEADER_SUMMED = 24
_FOOTER_SUMMED = 24

INDEX_DTYPE = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("crc32c", "<u4"),
        ("raw_length", "<u4"),
        ("reserved", "<u8"),
    ]
)

#: Kinds of payload by their number in the index.
KINDS: Final[dict[int, Literal["v1", "v2"]]] = {1: "v1", 2: "v2"}
#: Compressions by their number in an entry's flags.
COMPRESSIONS: Final = {0: "none", 1: "zstd", 2: "lz4"}

ALIGN_DEFAULT: Final = 4096
ALIGN_MAX: Final = 1 << 20
LENGTH_MAX: Final = 2**32 - 1


class PackLayout(NamedTuple):
    """Positions of a pack's parts."""

    entries: NDArray[np.void]  # INDEX_DTYPE[count], a copy
    data_begin: int  # offset of the first entry; data_end without entries
    data_end: int
    data_crc: int  # CRC-32C of the data region; 0 where the writer left it out
    stats: bytes | None


def align_up(offset: int, align: int) -> int:
    """Return the first multiple of ``align`` that is not below ``offset``."""
    return -(-offset // align) * align


def header_bytes(count: int) -> bytes:
    """Encode the header of a pack of ``count`` entries."""
    head = _HEADER.pack(MAGIC, VERSION, 0, count, 0)[:_HEADER_SUMMED]
    return head + crc32c(head).to_bytes(4, "little")


def footer_bytes(data_end: int, index_crc: int, data_crc: int, stats_offset: int) -> bytes:
    """Encode the footer; see the module's table."""
    head = _FOOTER.pack(data_end, index_crc, data_crc, stats_offset, 0, 0)[:_FOOTER_SUMMED]
    return head + crc32c(head).to_bytes(4, "little") + bytes(4)


def read_layout(data: NDArray[np.uint8], path: str | os.PathLike[str]) -> PackLayout:
    """Read header, footer and index of a whole file; check them against its length, and read no payload."""
    count = _read_header(data, path)
    footer_at = len(data) - FOOTER_BYTES
    index_end = HEADER_BYTES + INDEX_DTYPE.itemsize * count
    if index_end > footer_at:
        raise TruncatedError(
            f"{count} entries need {index_end + FOOTER_BYTES} bytes; the file has {len(data)}",
            path=path,
            offset=len(data),
        )
    footer = data[footer_at:].tobytes()
    data_end, index_crc, data_crc, stats_offset, footer_crc, zero = _FOOTER.unpack(footer)
    _check_crc(footer[:_FOOTER_SUMMED], footer_crc, "the footer", path, footer_at)
    if zero:
        raise FieldError(f"the footer ends with {zero}; expected 0", path=path, offset=len(data) - 4)
    index_raw = data[HEADER_BYTES:index_end]
    _check_crc(index_raw.data, index_crc, "the index", path, HEADER_BYTES)
    index = index_raw.copy().view(INDEX_DTYPE)
    data_end, stats = _read_tail(data, index_end, data_end, stats_offset, path)
    _check_index(index, index_end, data_end, path)
    begin = int(index["offset"][0]) if count else data_end
    return PackLayout(index, begin, data_end, data_crc, stats)


def _read_header(data: NDArray[np.uint8], path: str | os.PathLike[str]) -> int:
    """Check the header; return the number of entries."""
    head = data[:HEADER_BYTES].tobytes()
    if head[:8] != MAGIC[: len(head)] or not head:
        raise MagicError(f"not an a2pack: the magic {MAGIC!r} is missing", path=path, offset=0)
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise TruncatedError(
            f"the file has {len(data)} bytes; header and footer alone need {HEADER_BYTES + FOOTER_BYTES}",
            path=path,
            offset=len(data),
        )
    _, version, flags, count, crc = _HEADER.unpack(head)
    _check_crc(head[:_HEADER_SUMMED], crc, "the header", path, 0)
    if version != VERSION:
        raise VersionError(f"pack version {version}; expected {VERSION}", path=path, offset=8)
    if flags:
        raise VersionError(f"header flags {flags:#x}; none are known", path=path, offset=12)
    return int(count)


def _read_tail(
    data: NDArray[np.uint8], index_end: int, data_end: int, stats_offset: int, path: str | os.PathLike[str]
) -> tuple[int, bytes | None]:
    """Check the end of the data and the bytes after it; return that end and the stats."""
    footer_at = len(data) - FOOTER_BYTES
    if not index_end <= data_end <= footer_at:
        raise FieldError(
            f"the data end at {data_end}; expected between the index's end at {index_end} "
            f"and the footer at {footer_at}",
            path=path,
            offset=footer_at,
        )
    if stats_offset == 0:
        if data_end != footer_at:
            raise FieldError(
                f"{footer_at - data_end} bytes lie between data and footer, and there are no stats",
                path=path,
                offset=data_end,
            )
        return data_end, None
    begin = stats_offset + 4
    if not (data_end <= stats_offset < data_end + ALIGN_MAX and begin <= footer_at):
        raise FieldError(
            f"the stats begin at {stats_offset}; expected after the data's end at {data_end}",
            path=path,
            offset=footer_at,
        )
    length = int.from_bytes(data[stats_offset:begin].tobytes(), "little")
    if begin + length != footer_at:
        raise FieldError(
            f"the stats claim {length} bytes; {footer_at - begin} lie before the footer",
            path=path,
            offset=stats_offset,
        )
    return data_end, data[begin:footer_at].tobytes()


def _check_index(
    index: NDArray[np.void], index_end: int, data_end: int, path: str | os.PathLike[str]
) -> None:
    offsets, lengths = index["offset"], index["length"].astype(np.uint64)
    kinds, flags, raw = index["kind"], index["flags"], index["raw_length"]
    # The first check refuses offsets past the end; offset plus length of the others fits 64 bits.
    ends = offsets + lengths
    overlaps = np.zeros(len(index), np.bool_)
    overlaps[1:] = offsets[1:] < ends[:-1]
    defects: list[tuple[NDArray[np.bool_], type[FormatError], str]] = [
        (offsets > data_end, FieldError, f"lies past the data's end at {data_end}"),
        (offsets < index_end, FieldError, f"lies before the index's end at {index_end}"),
        (ends > data_end, FieldError, f"ends past the data's end at {data_end}"),
        (overlaps, FieldError, "begins before the entry before it ends"),
        ((kinds == 0) | (kinds > len(KINDS)), FieldError, f"unknown kind; expected one of {list(KINDS)}"),
        (index["reserved"] != 0, FieldError, "the reserved field is not 0"),
        (flags >= len(COMPRESSIONS), VersionError, "unknown flags"),
        ((flags == 0) & (raw != 0), FieldError, "not compressed, but with a raw length"),
    ]
    for bad, kind, what in defects:
        if bad.any():
            i = int(bad.argmax())
            found = dict(zip(INDEX_DTYPE.names or (), index[i].item(), strict=True))
            raise kind(f"entry {i}: {what}; found {found}", path=path, offset=HEADER_BYTES + 32 * i)


def _check_crc(
    part: bytes | memoryview, stored: int, what: str, path: str | os.PathLike[str], offset: int
) -> None:
    hint = "the file was damaged or cut; make the pack again"
    check_crc(crc32c(part), stored, what, path=path, offset=offset, hint=hint)
