r"""a2pack: many runs in one read-only file; extension ``.a2pack``.

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
compressed payload is one zstd frame or one LZ4 frame (not a bare block), with nothing after it.

The stats have two parts. The first has the fields below, in the ``postcard`` encoding (see
:mod:`tape2048.runs.a2run2`). The second fills the rest of the block: a JSON object with the other fields. A
reader of the first part can ignore the second::

    Stats = count: u64, total_steps: u64, min_len: u32, max_len: u32, mean_len: f64,
            p50_len: u32, p90_len: u32, p99_len: u32

Other programs write no JSON object. In older files, the block is a JSON object with all fields.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import operator
import os
import secrets
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, SupportsIndex, TypeAlias, get_args

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered
from tape2048.errors import (
    BookkeepingError,
    FieldError,
    FormatError,
    MagicError,
    MissingPackageError,
    NameTakenError,
    ReplayError,
    TruncatedError,
    VersionError,
    reader_hint,
)
from tape2048.files.durable import new_file, write_all
from tape2048.files.opening import storage_errors
from tape2048.files.reading import check_crc, map_path, read_exactly
from tape2048.jit.mix import shuffled
from tape2048.runs import a2run, a2run2
from tape2048.runs.a2run2 import Cursor, RunV2, varint
from tape2048.runs.run import ENGINE_BYTES_MAX, Run, RunMeta, check_rules, numbered
from tape2048.session.tape_layout import GAME_STEPS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import U64, RunSource

    PathLike: TypeAlias = str | os.PathLike[str]

MAGIC = b"A2PACK\0\0"
RunKind = Literal["v1", "v2"]
Compression = Literal["none", "zstd", "lz4"]

_HEADER, _FOOTER, _SUMMED = struct.Struct("<8sIIQI"), struct.Struct("<QIIQII"), 24
INDEX_DTYPE = np.dtype("<u8, <u4, <u2, <u2, <u4, <u4, <u8")
INDEX_DTYPE.names = ("offset", "length", "kind", "flags", "crc32c", "raw_length", "reserved")
_KINDS: dict[int, RunKind] = {1: "v1", 2: "v2"}
_SUFFIXES = {"v1": a2run.SUFFIX, "v2": a2run2.SUFFIX}
_COMPRESSIONS = get_args(Compression)  # by their numbers in the flags of an entry
_PACKAGES = {"zstd": "zstandard", "lz4": "lz4.frame"}
_ALIGN_MAX = 1 << 20

#: Most bytes to decompress, since a frame of a few bytes can claim gigabytes of zeros: the longest file of a
#: game, of a2run2 steps (at most 32 bytes; A2T1 steps have 9), the engine and other metadata.
RAW_BYTES_MAX = 32 * GAME_STEPS_MAX + ENGINE_BYTES_MAX + 128

#: Bytes of a write, and of a move when the index needs more space than expected.
_BUFFER_BYTES = 4 << 20


def read(path: Path, kind: str, **_: object) -> RunSource:
    """Open a pack for a conversion."""
    pack = PackReader.open(path)
    return numbered(path, kind, len(pack), lambda i: f"{path}: entry {i}", lambda i: (pack[i],))


def write(flow: Conversion) -> None:
    """Write the runs of a conversion."""
    with PackWriter(flow.target, count_hint=flow.source.count, **flow.packing) as writer:
        for _, _, entry in flow.each(lambda found: writer.prepare(found.checked())):
            writer.append(entry)


class _Layout(NamedTuple):
    entries: NDArray[np.void]  # INDEX_DTYPE[count], a copy
    data_end: int
    data_crc: int  # CRC-32C of the data region; 0: none
    stats: bytes | None


def _read_layout(data: NDArray[np.uint8], path: PathLike) -> _Layout:
    """Read and check the header, footer and index of a file. Payloads are not read."""

    def summed(begin: int, end: int, stored: int, what: str) -> None:
        hint = "make the pack again: the file was damaged or cut"
        check_crc(crc32c(data[begin:end].data), stored, what, path=path, offset=begin, hint=hint)

    if bytes(data[:8]) != MAGIC[: len(data)] or not len(data):
        raise MagicError(f"not an a2pack: the magic {MAGIC!r} is missing", path=path, offset=0)
    count, footer_at = 0, len(data) - _FOOTER.size
    if footer_at >= _HEADER.size:
        _, version, flags, count, crc = _HEADER.unpack(data[: _HEADER.size].tobytes())
        if version != 1:  # before the checksum, which a newer header may have elsewhere
            message = f"pack version {version}; expected 1"
            raise VersionError(message, path=path, offset=8, hint=reader_hint())
        summed(0, _SUMMED, crc, "the header")
        if flags:
            message = f"header flags {flags}; expected 0"
            raise VersionError(message, path=path, offset=12, hint=reader_hint())
    index_end = _HEADER.size + INDEX_DTYPE.itemsize * count
    if index_end > footer_at:
        needed = f"expected at least {index_end + _FOOTER.size} for {count} entries"
        raise TruncatedError(f"found {len(data)} bytes, {needed}", path=path, offset=len(data))
    data_end, index_crc, data_crc, stats_at, crc, zero = _FOOTER.unpack(data[footer_at:].tobytes())
    summed(footer_at, footer_at + _SUMMED, crc, "the footer")
    summed(_HEADER.size, index_end, index_crc, "the index")
    # The stats may start at an alignment, and their length comes first.
    begin, length, fits = footer_at, 0, data_end == footer_at
    if stats_at:
        begin, fits = stats_at + 4, data_end <= stats_at <= min(data_end + _ALIGN_MAX - 1, footer_at - 4)
        length = int.from_bytes(data[stats_at:begin].tobytes(), "little") if fits else 0
    if not (index_end <= data_end and fits and begin + length == footer_at) or zero:
        found = f"data end {data_end}, stats offset {stats_at} with {length} bytes, and {zero}"
        wanted = f"expected the data from {index_end}, the stats up to {footer_at}, and 0"
        raise FieldError(f"the footer has {found}; {wanted}", path=path, offset=footer_at)
    index = np.frombuffer(data[_HEADER.size : index_end].tobytes(), INDEX_DTYPE)
    _check_index(index, index_end, data_end, path)
    return _Layout(index, data_end, data_crc, data[begin:footer_at].tobytes() if stats_at else None)


def _check_index(index: NDArray[np.void], index_end: int, data_end: int, path: PathLike) -> None:
    offsets, flags = index["offset"], index["flags"]
    ends = offsets + index["length"]  # can overflow only for offsets that the first check rejects
    overlaps = np.zeros(len(index), np.bool_)
    overlaps[1:] = offsets[1:] < ends[:-1]
    inside = f"it is not between the index's end at {index_end} and the data's end at {data_end}"
    defects: list[tuple[NDArray[np.bool_], type[FormatError], str]] = [
        ((offsets > data_end) | (offsets < index_end) | (ends > data_end), FieldError, inside),
        (overlaps, FieldError, "it overlaps the entry before it"),
        (~np.isin(index["kind"], list(_KINDS)), FieldError, f"unknown kind; expected one of {list(_KINDS)}"),
        (index["reserved"] != 0, FieldError, "the reserved field is not 0"),
        (flags >= len(_COMPRESSIONS), VersionError, "unknown flags"),
        (
            (flags == 0) & (index["raw_length"] != 0),
            FieldError,
            "it is not compressed; expected raw_length 0",
        ),
    ]
    for bad, kind, what in defects:
        if bad.any():
            i = int(bad.argmax())
            found = dict(zip(INDEX_DTYPE.names or (), index[i].item(), strict=True))
            raise kind(f"entry {i}: {what}; found {found}", path=path, offset=_HEADER.size + 32 * i)


def _package(compression: str) -> Any:
    name = _PACKAGES[compression]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f"{compression}-compressed entries need the package {name.partition('.')[0]}"
        raise MissingPackageError(message, hint=f"pip install 'tape2048[{compression}]'") from error


def _decompress(stored: memoryview, compression: str, raw_length: int) -> bytes:
    """Decompress one frame, into at most ``raw_length`` bytes."""
    if raw_length > RAW_BYTES_MAX:
        found = f"the index claims {raw_length:,} decompressed bytes"
        raise FieldError(f"{found}, expected at most {RAW_BYTES_MAX:,}")
    package = _package(compression)
    raw, damaged = b"", RuntimeError if compression == "lz4" else package.ZstdError
    try:
        if compression == "lz4":
            frame = package.LZ4FrameDecompressor()
            raw = frame.decompress(stored, max_length=raw_length + 1)
            whole = frame.eof and not frame.unused_data
        # zstandard allocates the size that the frame claims (-1: none) before it reads any content.
        elif whole := package.frame_content_size(stored) in {-1, raw_length}:
            unpack = package.ZstdDecompressor().decompress
            raw = unpack(stored, max_output_size=raw_length, allow_extra_data=False)
    except damaged as error:
        raise FieldError(f"cannot be decompressed: {error}") from error
    if not whole or len(raw) != raw_length:
        raise FieldError(f"expected one frame of {raw_length:,} decompressed bytes, as the index claims")
    return raw


class _More(msgspec.Struct, frozen=True, kw_only=True):
    highest_tile_hist: dict[int, int] | None = None
    engine_counts: dict[str, int] | None = None


class PackStats(_More, frozen=True):
    """Statistics of the runs of a pack: their number, their steps, and their number by tile and engine.

    The percentiles are the steps of a run, by the nearest rank; other programs may use another rule. The
    engine ``""`` is none. ``highest_tile_hist`` and ``engine_counts`` are None if the file lacks them.

    Example:
        >>> from tape2048.runs import PackReader, convert
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


_POSTCARD = ("count", "total_steps", "min_len", "max_len", "mean_len", "p50_len", "p90_len", "p99_len")


def _count_stats(metas: list[RunMeta]) -> PackStats:
    steps, count = sorted(meta.steps for meta in metas) or [0], len(metas)
    return PackStats(
        count, sum(steps), steps[0], steps[-1], sum(steps) / max(1, count),
        *(steps[-(-len(steps) * percent // 100) - 1] for percent in (50, 90, 99)),
        highest_tile_hist=dict(sorted(Counter(meta.highest_tile for meta in metas).items())),
        engine_counts=dict(sorted(Counter(meta.engine or "" for meta in metas).items())),
    )  # fmt: skip


def _agrees(found: PackStats, metas: list[RunMeta]) -> bool:
    """Check whether the statistics of a file match its runs, by any rule of percentiles."""
    steps = sorted(meta.steps for meta in metas) or [0]
    free: dict[str, Any] = {name: None for name in _More.__struct_fields__ if getattr(found, name) is None}
    for name in _POSTCARD[5:]:
        at, free[name] = (len(steps) - 1) * int(name[1:3]), getattr(found, name)
        # Between the lengths on both sides of the exact place.
        if not steps[at // 100] <= free[name] <= steps[-(-at // 100)]:
            return False
    return found == msgspec.structs.replace(_count_stats(metas), **free)


def _parse_stats(block: bytes) -> PackStats | None:
    """Parse a stats block; return None for a JSON object with other fields, FieldError for other bytes."""
    # JSON first: a brace is also the count of a postcard block of 123 runs, but the rest is then not JSON.
    if _is_object(block):
        known: PackStats | None = _decode(block, PackStats)
        return known
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
    return PackStats(*facts, **msgspec.structs.asdict(_decode(rest, _More) or _More()))


def _is_object(block: bytes) -> bool:
    return _decode(block, dict[str, msgspec.Raw]) is not None


def _decode(block: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(block, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class RunSlice(NamedTuple):
    """The bytes of a run's file and its kind. The bytes are a view of the pack unless they are compressed."""

    bytes: memoryview
    kind: RunKind


class EntryInfo(NamedTuple):
    """An entry of the index of a pack: where the stored bytes are, and what they are.

    ``raw_length`` is their length before compression, 0 if they are not compressed.
    """

    kind: RunKind
    offset: int
    length: int
    compression: str
    crc32c: int
    raw_length: int


class PackReader:
    """A sequence of the runs of a pack with random access; see :meth:`open`.

    ``pack[i]`` and iteration give :class:`RunV2`; A2T1 runs are upgraded. Threads may share a reader. A
    pickled reader holds the path, not the runs. :class:`tape2048.runs.RunRows` makes one source of rows of
    the runs.

    Example:
        >>> from tape2048.runs import PackReader, RunRows, convert
        >>> _ = convert("runs", "runs.a2pack")
        >>> pack = PackReader.open("runs.a2pack")
        >>> pack, pack.kind(1), len(RunRows(pack)) == pack.stats.total_steps
        (<PackReader runs.a2pack: 2 runs>, 'v2', True)
    """

    def __init__(self, path: PathLike, data: NDArray[np.uint8], *, verify: bool = True) -> None:
        """Open a pack in memory, as :meth:`open` does; errors name ``path``."""
        self.path = Path(os.path.abspath(path))
        self._data, self._verify, self._layout = data, verify, _read_layout(data, path)
        self._stats: PackStats | None = None
        entries = self._layout.entries
        # 1 for a payload that needs no check: verify is false, it has no checksum, or it was checked before.
        self._trusted = bytearray(((entries["crc32c"] == 0) | (not verify)).tobytes())

    @classmethod
    def open(cls, path: PathLike, *, verify: bool = True) -> PackReader:
        """Map a pack and check its header, index and footer; with ``verify``, each payload at its first use.

        Raises:
            FormatError: the header, the index or the footer is damaged.
            StorageError: the operating system could not open or map it.
        """
        return cls(path, map_path(path), verify=verify)

    def __len__(self) -> int:
        return len(self._layout.entries)

    def __repr__(self) -> str:
        return f"<PackReader {self.path.name}: {counted(len(self), 'run')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), {"verify": self._verify})

    def info(self, i: SupportsIndex) -> EntryInfo:
        """Return the index entry of a run; IndexError unless ``0 <= i < len(pack)``."""
        number = operator.index(i)
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: run {number}; expected 0 <= run < {len(self)}")
        offset, length, kind, flags, crc, raw_length, _ = self._layout.entries.item(number)
        return EntryInfo(_KINDS[kind], offset, length, _COMPRESSIONS[flags], crc, raw_length)

    def kind(self, i: SupportsIndex) -> RunKind:
        """Return the kind of a run's file: ``"v1"`` (A2T1) or ``"v2"`` (a2run2)."""
        return self.info(i).kind

    def get_slice(self, i: SupportsIndex) -> RunSlice:
        """Return a run's file, byte for byte as it was packed. The first use compares its checksum, if any.

        Raises:
            IndexError: ``i`` is negative, or not below ``len(pack)``.
            ChecksumError: the file was damaged.
            FieldError: it cannot be decompressed, or is longer than any game.
            MissingPackageError: the package for the compression is not installed.
        """
        kind, at, length, compression, crc, raw_length = self.info(i)
        stored = self._data.data[at : at + length]
        hint = "make the pack again, or leave this run out: the other entries are not affected"
        if not self._trusted[i]:
            check_crc(crc32c(stored), crc, f"entry {i}", path=self.path, offset=at, hint=hint)
            self._trusted[i] = 1
        if compression != "none":
            try:
                stored = memoryview(_decompress(stored, compression, raw_length))
            except FieldError as error:
                raise FieldError(
                    f"entry {i}: {error.message}", path=self.path, offset=at, hint=hint
                ) from error
        return RunSlice(stored, kind)

    def decode(self, i: SupportsIndex) -> RunV2:
        """Decode a run. An A2T1 run is upgraded; its arrays are views of the pack.

        Raises:
            FormatError: as :meth:`get_slice`, or a damaged run. The message names the entry. The offset is in
                the pack or, for a compressed entry, in the decompressed bytes.
        """
        payload, kind = self.get_slice(i)
        try:
            if kind == "v1":
                return RunV2.from_v1(a2run.parse_run(np.frombuffer(payload, np.uint8)))
            return RunV2.from_bytes(payload)
        except FormatError as error:
            info = self.info(i)
            base = info.offset if info.compression == "none" else 0
            at = None if error.offset is None else base + error.offset
            message = f"entry {i}: {error.message}"
            raise type(error)(message, path=self.path, offset=at, hint=error.hint) from error

    __getitem__ = decode

    def __iter__(self) -> Iterator[RunV2]:
        """Iterate over all runs in order. One thread for each core decodes ahead."""
        return map_ordered(self.decode, range(len(self)))

    def decode_batch(self, indices: Iterable[int], workers: int | None = 1) -> list[RunV2]:
        """Decode several runs, in any order; they may repeat. With ``workers=None``, on all cores."""
        return list(map_ordered(self.decode, indices, workers))

    def iter_indices(self, indices: Iterable[int]) -> Iterator[RunV2]:
        """Iterate over the runs with these numbers, in this order. Each run is decoded when it is reached."""
        return map(self.decode, indices)

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the original design's signature
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[list[RunV2]]:
        """Iterate over all runs once, in batches. The last batch may be smaller.

        With ``shuffle``, the order is random: by the seed, on every machine and for any number of workers, or
        a new order at every call if it is None. ``workers`` threads decode; None: one for each core.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is not an integer of at least 1.
            FormatError: as :meth:`decode`, when the run is reached.
        """
        size, key = as_int("batch_size", batch_size), secrets.randbits(64) if seed is None else seed
        if size < 1:
            raise ValueError(f"batch_size={size}; expected at least 1")
        order = shuffled(len(self), key).tolist() if shuffle else range(len(self))
        runs = map_ordered(self.decode, order, workers)
        return iter(lambda: list(itertools.islice(runs, size)), [])

    @property
    def stats(self) -> PackStats:
        """Statistics of the runs, from the file if it has them; otherwise, all runs are decoded once."""
        if self._stats is None and self._layout.stats is not None:
            with contextlib.suppress(FormatError):
                self._stats = _parse_stats(self._layout.stats)
        if self._stats is None:
            self._stats = _count_stats([run.meta for run in self])
        return self._stats

    def to_jsonl(
        self,
        path: PathLike,
        parallel: bool = True,  # noqa: FBT001, FBT002 - the original design's signature
        workers: int | None = None,
        *,
        by_step: bool = False,
        u64: U64 = "number",
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Write a line of JSON for each run, or each step, to a new file; return its size in bytes.

        The file appears when it is complete. It is the same for any number of threads: ``workers`` if
        ``parallel``, where None means all cores. In lines of runs, packed boards are numbers, or ``"text"``;
        see :mod:`tape2048.runs.jsonl`. ``progress`` is called with the runs done and all runs.

        Raises:
            NameTakenError: ``path`` exists.
            FormatError: as :meth:`decode`. No file is left at ``path``.
            StorageError: the operating system could not write the file.
        """
        from tape2048.runs.jsonl import run_line, step_lines

        def lines(i: int) -> bytes:
            return step_lines(self[i], i) if by_step else run_line(self[i], i, u64)

        written = 0
        with new_file(path) as fd:
            for done, part in enumerate(map_ordered(lines, range(len(self)), workers if parallel else 1), 1):
                write_all(fd, part)
                written += len(part)
                if progress is not None:
                    progress(done, len(self))
        return written

    def extract(self, indices: Iterable[int], directory: PathLike) -> list[Path]:
        """Write runs to separate files ``run_<number>`` in a directory, byte for byte as packed.

        Raises:
            NameTakenError: a file exists already. No file was written.
            IndexError, FormatError: as :meth:`get_slice`. No file was written.
            StorageError: the operating system could not write a file.
        """
        slices = [(i, self.get_slice(i)) for i in indices]
        paths = [Path(directory, f"run_{i:06d}{_SUFFIXES[payload.kind]}") for i, payload in slices]
        for path in paths:
            if os.path.lexists(path) or paths.count(path) > 1:
                raise NameTakenError("exists already. Nothing was written", path=path)
        with storage_errors(directory, "making the directory"):
            Path(directory).mkdir(exist_ok=True)
        for path, (_, payload) in zip(paths, slices, strict=True):
            with new_file(path) as fd:
                write_all(fd, payload.bytes)
        return paths

    def validate(self, progress: Callable[[int, int], object] | None = None) -> None:
        """Check the whole file: every checksum, every run, the padding, and the stats against the runs.

        The first defect is raised as a FormatError.
        """
        entries, data_end, data_crc, block = self._layout
        first = int(entries["offset"][0]) if len(self) else data_end
        parts = [(first, data_end, data_crc, "the data")] if data_crc else []
        metas, end = [], _HEADER.size + INDEX_DTYPE.itemsize * len(self)
        for i in range(len(self)):
            info = self.info(i)
            self._check_zeros(end, info.offset)
            end = info.offset + info.length
            parts += [(info.offset, end, info.crc32c, f"entry {i}")] if info.crc32c else []
            try:
                metas.append(check_rules(self[i]).meta)
            except (BookkeepingError, ReplayError) as error:  # from check_rules, which knows no file
                message = f"entry {i}: {error.message}"
                raise type(error)(message, path=self.path, offset=info.offset, hint=error.hint) from error
            if progress is not None:
                progress(i + 1, len(self))
        self._check_zeros(end, data_end)
        for begin, end, stored, what in parts:
            check_crc(crc32c(self._data[begin:end].data), stored, what, path=self.path, offset=begin)
        try:
            stats = None if block is None else _parse_stats(block)
        except FieldError as error:
            raise FieldError(error.message, path=self.path, offset=data_end) from error
        if stats is not None and not _agrees(stats, metas):
            message = f"found the stats {stats}, expected {_count_stats(metas)} by the runs"
            raise BookkeepingError(message, path=self.path, offset=data_end)

    def _check_zeros(self, begin: int, end: int) -> None:
        padding = self._data[begin:end]
        if padding.any():
            at = begin + int(padding.argmax())
            message = f"found byte {self._data[at]:#04x} in the padding, expected 0"
            raise FieldError(message, path=self.path, offset=at)


def _reopen(path: str, how: dict[str, Any]) -> PackReader:
    return PackReader.open(path, **how)


class PackedRun(NamedTuple):
    stored: bytes | memoryview
    kind: int
    raw_length: int
    crc: int
    meta: RunMeta


class PackWriter:
    """A context manager that writes a new pack in one pass.

    Payloads go to a draft beside the target. When the block ends without an error, the index is written in
    front of them and the pack appears. Memory: 32 bytes and a few numbers for each run.

    Args:
        path: the pack, which must not exist.
        align: alignment of payloads in bytes: a power of two, from 1 to 1 MiB.
        compress: ``"none"``, ``"zstd"`` (extra ``zstd``) or ``"lz4"`` (extra ``lz4``).
        entry_crc: whether to store a CRC-32C for each payload.
        count_hint: expected number of entries, for which the index gets its space.

    Example:
        >>> from tape2048.runs import PackWriter, read_run
        >>> with PackWriter("one.a2pack") as writer:
        ...     writer.add_run(read_run("runs/golden.a2run"))
        >>> len(writer)
        1
    """

    def __init__(
        self,
        path: PathLike,
        *,
        align: int = 4096,
        compress: Compression = "none",
        entry_crc: bool = True,
        count_hint: int = 0,
    ) -> None:
        if not (1 <= align <= _ALIGN_MAX and align & (align - 1) == 0):
            raise ValueError(f"align={align}; expected a power of two from 1 to {_ALIGN_MAX}")
        if compress not in _COMPRESSIONS:
            raise ValueError(f"compress={compress!r}; expected one of {_COMPRESSIONS}")
        if compress != "none":
            _package(compress)
        self._path, self._align, self._compress, self._entry_crc = path, align, compress, entry_crc
        self._data_at = _aligned(_HEADER.size + INDEX_DTYPE.itemsize * count_hint, align)
        self._length = self._data_crc = 0  # of the data region
        self._buffer, self._index = bytearray(), bytearray()
        self._metas: list[RunMeta] = []
        self._file, self._fd = new_file(path), -1

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
        return len(self._metas)

    def add(self, payload: bytes | memoryview) -> None:
        """Append a run's file, byte for byte; FormatError if it is damaged or breaks the game's rules."""
        is_v1 = bytes(payload[:4]) == a2run.MAGIC
        run = a2run.parse_run(np.frombuffer(payload, np.uint8)) if is_v1 else RunV2.from_bytes(payload)
        self.append(self._packed(run, payload, kind=1 if is_v1 else 2))

    def add_run(self, run: Run) -> None:
        """Append a run: as a2run2 if it has the branch arrays, else as A2T1; errors as :meth:`add`."""
        self.append(self.prepare(run))

    def prepare(self, run: Run) -> PackedRun:
        """Check, encode and compress a run, in any thread. Pass the result to :meth:`append`."""
        if run.has_branches is None:
            return self._packed(run, b"".join(a2run.run_bytes(run)), kind=1)
        return self._packed(run, RunV2.from_run(run).to_bytes(), kind=2)

    def _packed(self, run: Run, payload: bytes | memoryview, kind: int) -> PackedRun:
        if len(payload) >= 2**32:
            raise FieldError(f"the run has {len(payload)} bytes; expected fewer than 2**32")
        stored, raw_length = payload, 0
        if self._compress != "none" and len(payload) <= RAW_BYTES_MAX:
            package, raw_length = _package(self._compress), len(payload)
            stored = (package.ZstdCompressor() if self._compress == "zstd" else package).compress(payload)
        return PackedRun(
            stored, kind, raw_length, crc32c(stored) if self._entry_crc else 0, check_rules(run).meta
        )

    def append(self, entry: PackedRun) -> None:
        """Append a result of :meth:`prepare`."""
        self._put(bytes(_aligned(self._length, self._align) - self._length))
        flags = _COMPRESSIONS.index(self._compress) if entry.raw_length else 0
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
        data_at = _aligned(_HEADER.size + len(self._index), self._align)
        self._move(data_at)
        np.frombuffer(self._index, INDEX_DTYPE)["offset"] += np.uint64(data_at)
        data_end, stats = data_at + self._length, _count_stats(self._metas)
        values = (getattr(stats, name) for name in _POSTCARD)
        block = b"".join(struct.pack("<d", x) if isinstance(x, float) else varint(x) for x in values)
        block += msgspec.json.encode({name: getattr(stats, name) for name in _More.__struct_fields__})
        # Compressed entries have checksums, which a checksum of the data would only repeat.
        data_crc = self._data_crc if self._compress == "none" else 0
        footer = _FOOTER.pack(data_end, crc32c(self._index), data_crc, data_end, 0, 0)
        header = _HEADER.pack(MAGIC, 1, 0, len(self), 0)
        tail = len(block).to_bytes(4, "little") + block + _sealed(footer) + bytes(4)
        write_all(self._fd, (_sealed(header) + self._index).ljust(data_at, b"\0"), 0)
        write_all(self._fd, tail, data_end)
        os.ftruncate(self._fd, data_end + len(tail))

    def _move(self, target: int) -> None:
        source, starts = self._data_at, range(0, self._length, _BUFFER_BYTES)
        for begin in starts if target < source else reversed(starts):  # the two ranges may overlap
            part = np.empty(min(_BUFFER_BYTES, self._length - begin), np.uint8)
            if source != target:
                read_exactly(self._fd, part, source + begin, self._path)
                write_all(self._fd, part.data, target + begin)


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _sealed(record: bytes) -> bytes:
    return record[:_SUMMED] + crc32c(record[:_SUMMED]).to_bytes(4, "little")
