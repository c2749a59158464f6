"""What is not payload in a pack: header, index, footer; see :mod:`tape2048.packs.reader`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from tape2048.errors import (
    ChecksumError,
    FieldError,
    FormatError,
    LayoutError,
    MagicError,
    TruncatedError,
    VersionError,
)

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = [
    "ALIGN_DEFAULT",
    "ALIGN_MAX",
    "COMPRESSIONS",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "INDEX_DTYPE",
    "KINDS",
    "LENGTH_MAX",
    "MAGIC",
    "Layout",
    "align_up",
    "footer_bytes",
    "header_bytes",
    "read_layout",
]

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
assert _HEADER.size == HEADER_BYTES
assert _FOOTER.size == FOOTER_BYTES
assert INDEX_DTYPE.itemsize == 32

#: Kinds of payload by their number in the index.
KINDS: Final = {1: "v1", 2: "v2"}
#: Compressions by their number in an entry's flags.
COMPRESSIONS: Final = {0: "none", 1: "zstd", 2: "lz4"}

ALIGN_DEFAULT: Final = 4096
ALIGN_MAX: Final = 1 << 20
LENGTH_MAX: Final = 2**32 - 1

# The most that zstd can make of a few bytes: each block costs four and holds at most 128 KiB.
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_BLOCK_BYTES_MIN = 4


class Layout(NamedTuple):
    """Where the parts of a pack lie.

    Attributes:
        entries: ``INDEX_DTYPE[count]``, a copy.
        data_begin: the first byte of the data region: the first entry's, or ``data_end`` without entries.
        data_end: the byte after the data region.
        data_crc: CRC-32C of the data region; 0 where the writer left it out.
        stats: the stats block's bytes (JSON), or None.
    """

    entries: NDArray[np.void]
    data_begin: int
    data_end: int
    data_crc: int
    stats: bytes | None


def align_up(offset: int, align: int) -> int:
    """The first multiple of ``align`` that is not below ``offset``."""
    return -(-offset // align) * align


def header_bytes(count: int) -> bytes:
    """The header of a pack of ``count`` entries."""
    head = _HEADER.pack(MAGIC, VERSION, 0, count, 0)[:_HEADER_SUMMED]
    return head + crc32c(head).to_bytes(4, "little")


def footer_bytes(data_end: int, index_crc: int, data_crc: int, stats_offset: int) -> bytes:
    """The footer."""
    head = _FOOTER.pack(data_end, index_crc, data_crc, stats_offset, 0, 0)[:_FOOTER_SUMMED]
    return head + crc32c(head).to_bytes(4, "little") + bytes(4)


def read_layout(data: NDArray[np.uint8], path: str | os.PathLike[str]) -> Layout:
    """Read header, footer and index, and check all that they claim against the file's length.

    The payloads are not touched.

    Args:
        data: ``u8[bytes]``, the whole file.
        path: named in errors.

    Raises:
        MagicError: not a pack.
        VersionError: another version, or flags or a compression that nothing here knows.
        TruncatedError: the file is too short for its own header, index or stats.
        ChecksumError: header, index or footer were changed.
        LayoutError: entries overlap, are out of order, or lie outside the data region.
        FieldError: an unknown kind of payload, or a field that has to be 0 and is not.
    """
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
    _check_crc(footer[:_FOOTER_SUMMED], footer_crc, "the footer", footer_at, path)
    if zero:
        raise FieldError(f"the footer ends with {zero}; expected 0", path=path, offset=len(data) - 4)
    index_raw = data[HEADER_BYTES:index_end]
    _check_crc(index_raw.data, index_crc, "the index", HEADER_BYTES, path)
    index = index_raw.copy().view(INDEX_DTYPE)
    data_end, stats = _read_tail(data, index_end, data_end, stats_offset, path)
    _check_index(index, index_end, data_end, path)
    begin = int(index["offset"][0]) if count else data_end
    return Layout(index, begin, data_end, data_crc, stats)


def _read_header(data: NDArray[np.uint8], path: str | os.PathLike[str]) -> int:
    """Check the header; returns the number of entries."""
    head = data[:HEADER_BYTES].tobytes()
    if head[:8] != MAGIC[: len(head)] or not head:
        raise MagicError(f"begins with {head[:8]!r}; expected {MAGIC!r}", path=path, offset=0)
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise TruncatedError(
            f"the file has {len(data)} bytes; header and footer alone need {HEADER_BYTES + FOOTER_BYTES}",
            path=path,
            offset=len(data),
        )
    _, version, flags, count, crc = _HEADER.unpack(head)
    _check_crc(head[:_HEADER_SUMMED], crc, "the header", 0, path)
    if version != VERSION:
        raise VersionError(f"pack version {version}; expected {VERSION}", path=path, offset=8)
    if flags:
        raise VersionError(f"header flags {flags:#x}; none are known", path=path, offset=12)
    return int(count)


def _read_tail(
    data: NDArray[np.uint8], index_end: int, data_end: int, stats_offset: int, path: str | os.PathLike[str]
) -> tuple[int, bytes | None]:
    """Check where the data end and what follows them; returns the end and the stats."""
    footer_at = len(data) - FOOTER_BYTES
    if not index_end <= data_end <= footer_at:
        raise LayoutError(
            f"the data end at {data_end}; expected between the index's end at {index_end} "
            f"and the footer at {footer_at}",
            path=path,
            offset=footer_at,
        )
    if stats_offset == 0:
        if data_end != footer_at:
            raise LayoutError(
                f"{footer_at - data_end} bytes lie between data and footer, and there are no stats",
                path=path,
                offset=data_end,
            )
        return data_end, None
    begin = stats_offset + 4
    if not (data_end <= stats_offset < data_end + ALIGN_MAX and begin <= footer_at):
        raise LayoutError(
            f"the stats begin at {stats_offset}; expected after the data's end at {data_end}",
            path=path,
            offset=footer_at,
        )
    length = int.from_bytes(data[stats_offset:begin].tobytes(), "little")
    if begin + length != footer_at:
        raise LayoutError(
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
    # An offset past the end fails by itself; of the others, adding a length stays within 64 bits.
    ends = offsets + lengths
    overlaps = np.zeros(len(index), np.bool_)
    overlaps[1:] = offsets[1:] < ends[:-1]
    most = (lengths // _ZSTD_BLOCK_BYTES_MIN + 1) * _ZSTD_BLOCK_BYTES_MAX
    defects: list[tuple[NDArray[np.bool_], type[FormatError], str]] = [
        (offsets > data_end, LayoutError, f"lies past the data's end at {data_end}"),
        (offsets < index_end, LayoutError, f"lies before the index's end at {index_end}"),
        (ends > data_end, LayoutError, f"ends past the data's end at {data_end}"),
        (overlaps, LayoutError, "begins before the entry before it ends"),
        ((kinds == 0) | (kinds > len(KINDS)), FieldError, f"its kind is none of {list(KINDS)}"),
        (index["reserved"] != 0, FieldError, "its reserved field is not 0"),
        (flags >= len(COMPRESSIONS), VersionError, "its flags are not known"),
        ((flags == 0) & (raw != 0), FieldError, "it is not compressed and has a raw length"),
        ((flags != 0) & (raw > most), FieldError, "its raw length is more than its bytes can hold"),
    ]
    for bad, kind, what in defects:
        if bad.any():
            i = int(bad.argmax())
            found = dict(zip(INDEX_DTYPE.names or (), index[i].item(), strict=True))
            raise kind(f"entry {i}: {what}; found {found}", path=path, offset=HEADER_BYTES + 32 * i)


def _check_crc(
    data: bytes | memoryview, stored: int, what: str, offset: int, path: str | os.PathLike[str]
) -> None:
    computed = crc32c(data)
    if computed != stored:
        raise ChecksumError(
            f"CRC-32C of {what} is {computed:#010x}; the file says {stored:#010x}",
            path=path,
            offset=offset,
            hint="the file was cut or damaged; make the pack again",
        )
