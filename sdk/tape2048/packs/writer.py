"""Writing packs: one payload after the other into a draft, then index and header in front of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
from crc32c import crc32c

from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.errors import FieldError, FormatError, MissingPackageError, NoRunsError, Skipped, StorageError
from tape2048.io.durable import new_file, write_all
from tape2048.io.reading import map_path, read_exactly
from tape2048.packs.layout import (
    ALIGN_DEFAULT,
    ALIGN_MAX,
    HEADER_BYTES,
    INDEX_DTYPE,
    LENGTH_MAX,
    align_up,
    footer_bytes,
    header_bytes,
)
from tape2048.packs.stats import PackStats, StatsCounter, stats_bytes
from tape2048.runs.a2run import MAGIC as A2T1_MAGIC
from tape2048.runs.a2run import parse_run, run_bytes
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.files import find_run_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

    from tape2048.runs.run import Run, RunMeta

__all__ = [
    "Compression",
    "PackWriter",
    "Packed",
    "check_compression",
    "pack_directory",
    "parse_payload",
]

Compression = Literal["none", "zstd"]

#: Bytes collected before they are written, and moved at once when the index outgrows its place.
_BUFFER_BYTES = 4 << 20

#: zstd's own default.
_ZSTD_LEVEL = 3


class Packed(NamedTuple):
    """What :func:`pack_directory` did."""

    stats: PackStats
    bytes: int
    skipped: list[Skipped]


class _Entry(NamedTuple):
    """A payload as it is stored."""

    stored: bytes | memoryview
    kind: int
    raw_length: int
    crc: int
    meta: RunMeta


def parse_payload(data: bytes | memoryview, path: str | os.PathLike[str] | None = None) -> tuple[int, Run]:
    """The kind (1 = A2T1, 2 = a2run2) of a run's bytes, by their first ones, and the run.

    Raises:
        FormatError: as :func:`tape2048.runs.a2run.parse_run` and :meth:`RunV2.from_bytes`.
    """
    if bytes(data[:4]) == A2T1_MAGIC:
        return 1, parse_run(np.frombuffer(data, np.uint8), path)
    return 2, RunV2.from_bytes(data, path)


def check_compression(compress: str) -> None:
    """Raise unless entries can be compressed this way here.

    Raises:
        ValueError: no such compression.
        MissingPackageError: its package is not installed.
    """
    if compress not in get_args(Compression):
        raise ValueError(f"compress={compress!r}; expected one of {get_args(Compression)}")
    if compress == "zstd":
        zstandard()


def zstandard() -> Any:
    """The zstandard package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import zstandard as package
    except ImportError as error:
        raise MissingPackageError(
            "zstd-compressed entries need the package zstandard", hint="pip install 'tape2048[zstd]'"
        ) from error
    return package


class PackWriter:
    """Writes a pack in one pass; a context manager.

    Payloads go to a draft beside the target as they come; when the block is left without an error, the
    index is put in front of them and the pack appears. Memory: 32 bytes and a few numbers for each run.

    Args:
        path: the pack; nothing may stand there.
        align: each payload starts at a multiple of this; a power of two, 1 to 1 MiB.
        compress: ``"none"`` or ``"zstd"`` (extra ``zstd``).
        entry_crc: store a CRC-32C for each payload.
        count_hint: how many entries will come. Where this is right (within a page of index), nothing
            that was written is moved at the end.

    Raises:
        ValueError: ``align`` or ``compress`` is something else.
        NameTakenError, StorageError: when the block is entered or left.
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
        check_compression(compress)
        self.path = path
        self.align = align
        self.compress: Compression = compress
        self.entry_crc = entry_crc
        self._data_at = align_up(HEADER_BYTES + INDEX_DTYPE.itemsize * count_hint, align)
        self._length = 0  # of the data region
        self._data_crc = 0
        self._buffer = bytearray()
        self._index = bytearray()
        self._stats = StatsCounter()
        self._fd = -1
        self._file = new_file(path)
        self.bytes = 0

    def __enter__(self) -> Self:
        self._fd = self._file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self._finish()
            except BaseException:
                self._file.__exit__(*sys.exc_info())
                raise
        self._file.__exit__(kind, error, traceback)

    def __len__(self) -> int:
        """Entries so far."""
        return len(self._index) // INDEX_DTYPE.itemsize

    @property
    def stats(self) -> PackStats:
        """The numbers of the runs so far."""
        return self._stats.result()

    def add(self, payload: bytes | memoryview) -> None:
        """Append a run's file, byte for byte as it is.

        Raises:
            FormatError: the bytes are not a run, or too many for an entry.
        """
        self.append_entry(self.prepare(payload))

    def add_run(self, run: Run) -> None:
        """Append a run: as a2run2 where its arrays for branch values are there, else as A2T1.

        Raises:
            FieldError: the run does not fit the format.
        """
        self.add(b"".join(run_bytes(run)) if run.has_branches is None else RunV2.from_run(run).to_bytes())

    def prepare(self, payload: bytes | memoryview, path: str | os.PathLike[str] | None = None) -> _Entry:
        """Check and compress a payload; any thread may, for :meth:`append_entry` to store it in order."""
        kind, run = parse_payload(payload, path)
        if len(payload) > LENGTH_MAX:
            raise FieldError(
                f"the run is {len(payload)} bytes; an entry holds at most {LENGTH_MAX}", path=path
            )
        stored, raw_length = payload, 0
        if self.compress == "zstd":
            stored = zstandard().ZstdCompressor(level=_ZSTD_LEVEL).compress(payload)
            raw_length = len(payload)
        return _Entry(stored, kind, raw_length, crc32c(stored) if self.entry_crc else 0, run.meta)

    def append_entry(self, entry: _Entry) -> None:
        """Store what :meth:`prepare` made."""
        self._put(bytes(align_up(self._length, self.align) - self._length))
        record = np.zeros((), INDEX_DTYPE)
        record["offset"] = self._length  # relative until the index's length is known
        record["length"] = len(entry.stored)
        record["kind"] = entry.kind
        record["flags"] = int(entry.raw_length > 0)
        record["crc32c"] = entry.crc
        record["raw_length"] = entry.raw_length
        self._index += record.tobytes()
        self._put(entry.stored)
        self._stats.add(entry.meta)

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
        stats = stats_bytes(self.stats)
        # A whole-region checksum of compressed entries would only repeat theirs.
        data_crc = self._data_crc if self.compress == "none" else 0
        tail = b"".join(
            [
                len(stats).to_bytes(4, "little"),
                stats,
                footer_bytes(data_end, crc32c(self._index), data_crc, data_end),
            ]
        )
        head = header_bytes(len(self)) + self._index
        write_all(self._fd, head.ljust(data_at, b"\0"), 0)
        write_all(self._fd, tail, data_end)
        self.bytes = data_end + len(tail)
        os.ftruncate(self._fd, self.bytes)


def pack_directory(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    align: int = ALIGN_DEFAULT,
    compress: Compression = "none",
    entry_crc: bool = True,
    workers: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Packed:
    """Pack every run file below a directory, in ascending path order.

    The same files give the same bytes, on any number of workers. Each file is decoded before it is
    stored; one that is not a run, whole, is left out and named in the result.

    Args:
        source: the directory; see :func:`tape2048.runs.files.find_run_files`.
        target: the pack, which appears when it is whole.
        align: as :class:`PackWriter`.
        compress: as :class:`PackWriter`.
        entry_crc: as :class:`PackWriter`.
        workers: threads that read, check and compress; None: one for each core.
        progress: called with files done and files in all.

    Raises:
        NoRunsError: no run file stands there, or none that is whole.
        OutDirError: the directory is missing or cannot be listed.
        NameTakenError: something stands at ``target``.
        StorageError: the operating system refused.
        ValueError: ``align`` or ``compress`` is something else.
    """
    paths = find_run_files(source)
    skipped: list[Skipped] = []
    writer = PackWriter(target, align=align, compress=compress, entry_crc=entry_crc, count_hint=len(paths))

    def load(path: Path) -> _Entry | Skipped:
        try:
            return writer.prepare(map_path(path).data, path)
        except (FormatError, StorageError) as error:
            return Skipped(path, error)

    with writer:
        for done, result in enumerate(map_ordered(load, paths, workers), start=1):
            if isinstance(result, Skipped):
                skipped.append(result)
            else:
                writer.append_entry(result)
            if progress is not None:
                progress(done, len(paths))
        if not len(writer):
            raise NoRunsError(
                f"none of {counted(len(paths), 'file')} is a whole run; the first: {skipped[0].error}",
                path=source,
            )
    return Packed(writer.stats, writer.bytes, skipped)


def _move(fd: int, source: int, target: int, length: int, path: str | os.PathLike[str]) -> None:
    """Move bytes within a file, in the order in which none is overwritten before it is read."""
    if source == target:
        return
    starts = range(0, length, _BUFFER_BYTES)
    for begin in starts if target < source else reversed(starts):
        part = np.empty(min(_BUFFER_BYTES, length - begin), np.uint8)
        read_exactly(fd, part, source + begin, path)
        write_all(fd, part.data, target + begin)
