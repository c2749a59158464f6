r"""a2pack: the format of a pack, one read-only file of many runs; extension ``.a2pack``.

======== =========== ==================================================================================
part     bytes       layout
======== =========== ==================================================================================
header   28          magic ``A2PACK\0\0``, ``u32`` version = 1, ``u32`` flags = 0, ``u64`` count, ``u32``
                     CRC-32C of bytes 0 to 23
index    32 x count  ``u64`` absolute offset, ``u32`` length, ``u16`` kind (1 = A2T1, 2 = a2run2), ``u16``
                     flags (low byte: 0 stored, 1 zstd, 2 lz4), ``u32`` CRC-32C of the stored payload (0 =
                     none), ``u32`` length before compression (0 = not compressed), ``u64`` 0
padding              zeros up to the alignment (4096 by default)
data                 payloads in index order, each aligned, zeros between
stats    optional    ``u32`` length, then :class:`PackStats` in that many bytes: see below
footer   32          ``u64`` end of the data, ``u32`` CRC-32C of the index, ``u32`` CRC-32C of the data or
                     0, ``u64`` offset of the stats or 0, ``u32`` CRC-32C of the footer's first 24 bytes,
                     ``u32`` 0
======== =========== ==================================================================================

Payloads are whole run files, byte for byte. Entries are in order of their offsets and do not overlap. A
compressed payload is one zstd frame or one LZ4 frame (the frame format, magic ``04 22 4d 18``; not a bare
block), with nothing after it.

The stats have two parts. The first has the fields below, in the ``postcard`` encoding (see
:mod:`tape2048.runs.a2run2`). The second fills the rest of the block: a JSON object with the other fields. A
reader of the first part can ignore the second::

    Stats = count: u64, total_steps: u64, min_len: u32, max_len: u32, mean_len: f64,
            p50_len: u32, p90_len: u32, p99_len: u32

Other programs write no JSON object. In older packs, the block is a JSON object with all fields.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar, get_args

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.errors import (
    FieldError,
    FormatError,
    MagicError,
    MissingPackageError,
    TruncatedError,
    VersionError,
)
from tape2048.files.durable import new_file, write_all
from tape2048.files.reading import check_crc, read_exactly
from tape2048.runs.a2run import MAGIC as A2T1_MAGIC, parse_run, run_bytes
from tape2048.runs.a2run2 import Cursor, RunV2, varint
from tape2048.runs.run import Run, RunMeta, check_rules
from tape2048.session.tape_layout import GAME_STEPS_MAX

if TYPE_CHECKING:
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
    entries: NDArray[np.void]  # INDEX_DTYPE[count], a copy
    data_begin: int  # offset of the first entry; data_end without entries
    data_end: int
    data_crc: int  # CRC-32C of the data region; 0: none
    stats: bytes | None


def align_up(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _sealed(head: bytes) -> bytes:
    return head + crc32c(head).to_bytes(4, "little")


def read_layout(data: NDArray[np.uint8], path: str | os.PathLike[str]) -> PackLayout:
    """Read and check the header, footer and index of a file. Payloads are not read."""
    count = _read_header(data, path)
    footer_at = len(data) - FOOTER_BYTES
    index_end = HEADER_BYTES + INDEX_DTYPE.itemsize * count
    if index_end > footer_at:
        raise TruncatedError(
            f"found {len(data)} bytes, expected at least {index_end + FOOTER_BYTES} for {count} entries",
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
    return PackLayout(index, int(index["offset"][0]) if count else data_end, data_end, data_crc, stats)


def _read_header(data: NDArray[np.uint8], path: str | os.PathLike[str]) -> int:
    head = data[:HEADER_BYTES].tobytes()
    if head[:8] != MAGIC[: len(head)] or not head:
        raise MagicError(f"not an a2pack: the magic {MAGIC!r} is missing", path=path, offset=0)
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise TruncatedError(
            f"found {len(data)} bytes, expected at least {HEADER_BYTES + FOOTER_BYTES}: header and footer",
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
                f"found {footer_at - data_end} bytes between data and footer, expected none without stats",
                path=path,
                offset=data_end,
            )
        return data_end, None
    begin = stats_offset + 4
    if not (data_end <= stats_offset < data_end + ALIGN_MAX and begin <= footer_at):
        raise FieldError(
            f"the stats start at {stats_offset}; expected after the data's end at {data_end}",
            path=path,
            offset=footer_at,
        )
    length = int.from_bytes(data[stats_offset:begin].tobytes(), "little")
    if begin + length != footer_at:
        raise FieldError(
            f"the stats claim {length} bytes; expected {footer_at - begin}, up to the footer",
            path=path,
            offset=stats_offset,
        )
    return data_end, data[begin:footer_at].tobytes()


def _check_index(
    index: NDArray[np.void], index_end: int, data_end: int, path: str | os.PathLike[str]
) -> None:
    offsets, lengths = index["offset"], index["length"].astype(np.uint64)
    kinds, flags, raw = index["kind"], index["flags"], index["raw_length"]
    # `ends` can overflow only for offsets that the first check rejects.
    ends = offsets + lengths
    overlaps = np.zeros(len(index), np.bool_)
    overlaps[1:] = offsets[1:] < ends[:-1]
    defects: list[tuple[NDArray[np.bool_], type[FormatError], str]] = [
        (offsets > data_end, FieldError, f"it starts behind the data's end at {data_end}"),
        (offsets < index_end, FieldError, f"it starts before the index's end at {index_end}"),
        (ends > data_end, FieldError, f"it ends behind the data's end at {data_end}"),
        (overlaps, FieldError, "it overlaps the entry before it"),
        ((kinds == 0) | (kinds > len(KINDS)), FieldError, f"unknown kind; expected one of {list(KINDS)}"),
        (index["reserved"] != 0, FieldError, "the reserved field is not 0"),
        (flags >= len(COMPRESSIONS), VersionError, "unknown flags"),
        ((flags == 0) & (raw != 0), FieldError, "it is not compressed; expected raw_length 0"),
    ]
    for bad, kind, what in defects:
        if bad.any():
            i = int(bad.argmax())
            found = dict(zip(INDEX_DTYPE.names or (), index[i].item(), strict=True))
            raise kind(f"entry {i}: {what}; found {found}", path=path, offset=HEADER_BYTES + 32 * i)


def _check_crc(
    part: bytes | memoryview, stored: int, what: str, path: str | os.PathLike[str], offset: int
) -> None:
    hint = "make the pack again: the file was damaged or cut"
    check_crc(crc32c(part), stored, what, path=path, offset=offset, hint=hint)


Compression = Literal["none", "zstd", "lz4"]

#: Most bytes to decompress, since a frame of a few bytes can claim gigabytes of zeros: the longest file of a
#: game, of a2run2 steps (at most 32 bytes; A2T1 steps have 9), the engine and other metadata.
RAW_BYTES_MAX: Final = 32 * GAME_STEPS_MAX + 2**16 + 128

_PACKAGES = {"zstd": "zstandard", "lz4": "lz4.frame"}


def codec(compression: str) -> Any:
    name = _PACKAGES[compression]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{compression}-compressed entries need the package {name.partition('.')[0]}",
            hint=f"pip install 'tape2048[{compression}]'",
        ) from error


def compress(payload: bytes | memoryview, compression: str) -> bytes:
    package = codec(compression)
    compressor = package.ZstdCompressor() if compression == "zstd" else package
    frame: bytes = compressor.compress(payload)
    return frame


def decompress(stored: memoryview, compression: str, raw_length: int) -> bytes:
    """Decompress one frame, into at most ``raw_length`` bytes."""
    if raw_length > RAW_BYTES_MAX:
        raise FieldError(
            f"the index claims {raw_length:,} decompressed bytes, expected at most {RAW_BYTES_MAX:,}"
        )
    package = codec(compression)
    damaged = RuntimeError if compression == "lz4" else package.ZstdError
    try:
        if compression == "lz4":
            frame = package.LZ4FrameDecompressor()
            raw = frame.decompress(stored, max_length=raw_length + 1)
            whole = frame.eof and not frame.unused_data
        else:
            # zstandard allocates the size that the frame claims (-1: none) before it reads any content.
            whole = package.frame_content_size(stored) in {-1, raw_length}
            zstd = package.ZstdDecompressor()
            raw = (
                zstd.decompress(stored, max_output_size=raw_length, allow_extra_data=False) if whole else b""
            )
    except damaged as error:
        raise FieldError(f"cannot be decompressed: {error}") from error
    if not whole or len(raw) != raw_length:
        raise FieldError(f"expected one frame of {raw_length:,} decompressed bytes, as the index claims")
    return bytes(raw)


T = TypeVar("T")


class PackStats(msgspec.Struct, frozen=True):
    """Statistics of a pack's runs.

    Attributes:
        count: runs.
        total_steps: steps of all runs.
        min_len: steps of the shortest run, 0 without runs.
        max_len: steps of the longest run.
        mean_len: mean steps of a run.
        p50_len: median steps of a run, by the nearest rank, so that a run has this length. Other programs may
            use another rule.
        p90_len: 90th percentile of the steps of a run.
        p99_len: 99th percentile of the steps of a run.
        highest_tile_hist: number of runs by the value of their highest tile; None if the file lacks it.
        engine_counts: number of runs by engine, ``""`` for runs without an engine; None if the file lacks it.

    Example:
        >>> from tape2048.conversion import convert
        >>> from tape2048.packs import PackReader
        >>> done = convert("runs", "stats.a2pack")
        >>> PackReader.open("stats.a2pack").stats.count
        2
    """

    count: int
    total_steps: int
    min_len: int
    max_len: int
    mean_len: float
    p50_len: int
    p90_len: int
    p99_len: int
    highest_tile_hist: dict[int, int] | None = None
    engine_counts: dict[str, int] | None = None


class _More(msgspec.Struct):
    highest_tile_hist: dict[int, int] | None = None
    engine_counts: dict[str, int] | None = None


#: The fields of the postcard part, in order.
_POSTCARD = PackStats.__struct_fields__[:-2]
_PERCENTILES = {"p50_len": 50, "p90_len": 90, "p99_len": 99}


def count_stats(metas: list[RunMeta]) -> PackStats:
    lengths = sorted(meta.steps for meta in metas)
    count, total = len(lengths), sum(lengths)
    ranks = {
        name: lengths[-(-count * percent // 100) - 1] if lengths else 0
        for name, percent in _PERCENTILES.items()
    }
    return PackStats(
        count=count,
        total_steps=total,
        min_len=lengths[0] if lengths else 0,
        max_len=lengths[-1] if lengths else 0,
        mean_len=total / count if count else 0.0,
        highest_tile_hist=dict(sorted(Counter(meta.highest_tile for meta in metas).items())),
        engine_counts=dict(sorted(Counter(meta.engine or "" for meta in metas).items())),
        **ranks,
    )


def agrees(found: PackStats, metas: list[RunMeta]) -> bool:
    """Check whether a file's statistics match its runs, by any rule of percentiles."""
    lengths = sorted(meta.steps for meta in metas)
    free: dict[str, Any] = {name: None for name in _More.__struct_fields__ if getattr(found, name) is None}
    for name, percent in _PERCENTILES.items() if lengths else ():
        place, value = (len(lengths) - 1) * percent, getattr(found, name)
        # Between the lengths on both sides of the exact place.
        if not lengths[place // 100] <= value <= lengths[-(-place // 100)]:
            return False
        free[name] = value
    return found == msgspec.structs.replace(count_stats(metas), **free)


def parse_stats(block: bytes) -> PackStats | None:
    """Parse a stats block; None for a JSON object with other fields, FieldError for other bytes."""
    # JSON first: a brace is also the count of a postcard block of 123 runs, but the rest is then not JSON.
    if _is_object(block):
        return _decode(block, PackStats)
    cursor = Cursor(block, None)
    try:
        facts: list[Any] = [cursor.varint(bits) for bits in (64, 64, 32, 32)]
        facts += struct.unpack("<d", cursor.take(8, "mean_len"))
        facts += [cursor.varint(32) for _ in range(3)]
    except FormatError as error:
        raise FieldError(f"the stats are neither postcard nor a JSON object: {error.message}") from error
    rest = block[cursor.at :]
    if rest and not _is_object(rest):
        raise FieldError(f"the stats end with {len(rest)} bytes that are not a JSON object")
    more = _decode(rest, _More) or _More()
    facts += [more.highest_tile_hist, more.engine_counts]
    return PackStats(*facts)


def _is_object(block: bytes) -> bool:
    return _decode(block, dict[str, msgspec.Raw]) is not None


def _decode(block: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(block, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


#: Bytes of a write, and of a move when the index needs more space than expected.
_BUFFER_BYTES = 4 << 20


class PackedRun(NamedTuple):
    stored: bytes | memoryview
    kind: int
    raw_length: int
    crc: int
    meta: RunMeta


class PackWriter:
    """A context manager that writes a pack in one pass.

    Payloads go to a draft beside the target. When the block ends without an error, the index is written in
    front of them and the pack appears. Memory: 32 bytes and a few numbers for each run.

    Args:
        path: the pack, which must not exist.
        align: alignment of payloads in bytes: a power of two, from 1 to 1 MiB.
        compress: ``"none"``, ``"zstd"`` (extra ``zstd``) or ``"lz4"`` (extra ``lz4``). Payloads that are
            longer than any game's file are stored uncompressed.
        entry_crc: whether to store a CRC-32C for each payload.
        count_hint: expected number of entries. If the index needs as much space as expected, the payloads are
            not moved at the end.

    Raises:
        ValueError: an invalid ``align`` or ``compress``.
        MissingPackageError: the package for the compression is not installed.
        NameTakenError, StorageError: when the block is entered or left.

    Example:
        >>> from tape2048.packs import PackWriter
        >>> from tape2048.runs import read_run
        >>> with PackWriter("one.a2pack") as writer:
        ...     writer.add_run(read_run("runs/golden.a2run"))
        >>> len(writer)
        1
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        align: int = ALIGN_DEFAULT,
        compress: Compression = "none",
        entry_crc: bool = True,
        count_hint: int = 0,
    ) -> None:
        if not (1 <= align <= ALIGN_MAX and align & (align - 1) == 0):
            raise ValueError(f"align={align}; expected a power of two from 1 to {ALIGN_MAX}")
        if compress not in get_args(Compression):
            raise ValueError(f"compress={compress!r}; expected one of {get_args(Compression)}")
        if compress != "none":
            codec(compress)
        self.path = path
        self.align = align
        self.compress: Compression = compress
        self.entry_crc = entry_crc
        self._data_at = align_up(HEADER_BYTES + INDEX_DTYPE.itemsize * count_hint, align)
        self._length = 0  # of the data region
        self._data_crc = 0
        self._buffer = bytearray()
        self._index = bytearray()
        self._metas: list[RunMeta] = []
        self._fd = -1
        self._file = new_file(path)
        self.bytes = 0

    def __enter__(self) -> Self:
        self._fd = self._file.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._file)
            if error is not None:
                raise error
            self._finish()

    def __len__(self) -> int:
        return len(self._index) // INDEX_DTYPE.itemsize

    @property
    def stats(self) -> PackStats:
        """Statistics of the runs so far."""
        return count_stats(self._metas)

    def add(self, payload: bytes | memoryview) -> None:
        """Append a run's file, byte for byte.

        Raises:
            FormatError: the bytes are not a run, break the rules of the game, or are too long for an entry.
        """
        is_v1 = bytes(payload[:4]) == A2T1_MAGIC
        run = parse_run(np.frombuffer(payload, np.uint8)) if is_v1 else RunV2.from_bytes(payload)
        self.append(self._packed(run, payload, kind=1 if is_v1 else 2))

    def add_run(self, run: Run) -> None:
        """Append a run: as a2run2 if it has the branch arrays, else as A2T1.

        Raises:
            FormatError: the run does not fit the format, or breaks the rules of the game.
        """
        self.append(self.prepare(run))

    def prepare(self, run: Run) -> PackedRun:
        """Check, encode and compress a run, in any thread. Pass the result to :meth:`append`."""
        if run.has_branches is None:
            return self._packed(run, b"".join(run_bytes(run)), kind=1)
        return self._packed(run, RunV2.from_run(run).to_bytes(), kind=2)

    def _packed(self, run: Run, payload: bytes | memoryview, kind: int) -> PackedRun:
        if len(payload) > LENGTH_MAX:
            raise FieldError(f"the run has {len(payload)} bytes; expected at most {LENGTH_MAX}")
        stored, raw_length = payload, 0
        if self.compress != "none" and len(payload) <= RAW_BYTES_MAX:
            stored, raw_length = compress(payload, self.compress), len(payload)
        crc = crc32c(stored) if self.entry_crc else 0
        return PackedRun(stored, kind, raw_length, crc, check_rules(run).meta)

    def append(self, entry: PackedRun) -> None:
        """Append a result of :meth:`prepare`."""
        self._put(bytes(align_up(self._length, self.align) - self._length))
        flags = list(COMPRESSIONS.values()).index(self.compress) if entry.raw_length else 0
        # The offset is relative until _finish.
        record = (self._length, len(entry.stored), entry.kind, flags, entry.crc, entry.raw_length, 0)
        self._index += np.array(record, INDEX_DTYPE).tobytes()
        self._put(entry.stored)
        self._metas.append(entry.meta)

    def _put(self, data: bytes | memoryview) -> None:
        self._buffer += data
        self._data_crc = crc32c(data, self._data_crc)
        self._length += len(data)
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        write_all(self._fd, self._buffer, self._data_at + self._length - len(self._buffer))
        self._buffer.clear()

    def _finish(self) -> None:
        self._flush()
        index = np.frombuffer(self._index, INDEX_DTYPE)
        data_at = align_up(HEADER_BYTES + len(self._index), self.align)
        _move(self._fd, self._data_at, data_at, self._length, self.path)
        index["offset"] += np.uint64(data_at)
        data_end = data_at + self._length
        values = (getattr(self.stats, name) for name in _POSTCARD)
        head = b"".join(struct.pack("<d", x) if isinstance(x, float) else varint(x) for x in values)
        stats = head + msgspec.json.encode(_More(self.stats.highest_tile_hist, self.stats.engine_counts))
        # Compressed entries have checksums, which a checksum of the data would only repeat.
        data_crc = self._data_crc if self.compress == "none" else 0
        footer = _FOOTER.pack(data_end, crc32c(self._index), data_crc, data_end, 0, 0)[:_FOOTER_SUMMED]
        tail = len(stats).to_bytes(4, "little") + stats + _sealed(footer) + bytes(4)
        header = _sealed(_HEADER.pack(MAGIC, VERSION, 0, len(self), 0)[:_HEADER_SUMMED])
        write_all(self._fd, (header + self._index).ljust(data_at, b"\0"), 0)
        write_all(self._fd, tail, data_end)
        self.bytes = data_end + len(tail)
        os.ftruncate(self._fd, self.bytes)


def _move(fd: int, source: int, target: int, length: int, path: str | os.PathLike[str]) -> None:
    """Move bytes within a file; the ranges may overlap."""
    if source == target:
        return
    starts = range(0, length, _BUFFER_BYTES)
    for begin in starts if target < source else reversed(starts):
        part = np.empty(min(_BUFFER_BYTES, length - begin), np.uint8)
        read_exactly(fd, part, source + begin, path)
        write_all(fd, part.data, target + begin)
