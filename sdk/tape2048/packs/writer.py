"""Writer of packs: payloads into a draft one by one, then index and header in front of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
from crc32c import crc32c

from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.errors import FieldError, FormatError, NotASessionError, Skipped, StorageError
from tape2048.io.durable import new_file, write_all
from tape2048.io.reading import map_path, read_exactly
from tape2048.packs.compression import RAW_BYTES_MAX, Compression, codec, compress
from tape2048.packs.layout import (
    ALIGN_DEFAULT,
    ALIGN_MAX,
    COMPRESSIONS,
    HEADER_BYTES,
    INDEX_DTYPE,
    LENGTH_MAX,
    align_up,
    footer_bytes,
    header_bytes,
)
from tape2048.packs.stats import PackStats, count_stats, stats_bytes
from tape2048.runs.a2run import MAGIC as A2T1_MAGIC, parse_run, run_bytes
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.files import find_run_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tape2048.runs.run import Run, RunMeta

#: Bytes of a write, and of a move when the index outgrows its place.
_BUFFER_BYTES = 4 << 20


class Packed(NamedTuple):
    """Result of :func:`pack_directory`."""

    stats: PackStats
    bytes: int
    skipped: list[Skipped]


class _Entry(NamedTuple):
    """A payload as stored."""

    stored: bytes | memoryview
    kind: int
    raw_length: int
    crc: int
    meta: RunMeta


class PackWriter:
    """Writes a pack in one pass; a context manager.

    Payloads go to a draft beside the target. When the block ends without an error, the index is written in
    front of them and the pack appears. Memory: 32 bytes and a few numbers for each run.

    Args:
        path: the pack, which must not exist.
        align: alignment of payloads; a power of two, 1 to 1 MiB.
        compress: ``"none"``, ``"zstd"`` (extra ``zstd``) or ``"lz4"`` (extra ``lz4``). A payload longer than
            any game's is stored as it is.
        entry_crc: store a CRC-32C for each payload.
        count_hint: expected number of entries. An accurate one (within a page of index) saves moving the
            payloads at the end.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
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
        """Statistics of the runs so far."""
        return count_stats(self._metas)

    def add(self, payload: bytes | memoryview) -> None:
        """Append a run's file, byte for byte.

        Raises:
            FormatError: the bytes are not a run, or exceed an entry.
        """
        self.append_entry(self.prepare(payload))

    def add_run(self, run: Run) -> None:
        """Append a run: as a2run2 if it has the branch arrays, else as A2T1.

        Raises:
            FieldError: the run does not fit the format.
        """
        self.add(b"".join(run_bytes(run)) if run.has_branches is None else RunV2.from_run(run).to_bytes())

    def prepare(self, payload: bytes | memoryview, path: str | os.PathLike[str] | None = None) -> _Entry:
        """Check and compress a payload, on any thread; :meth:`append_entry` stores it in order."""
        run: Run
        if bytes(payload[:4]) == A2T1_MAGIC:
            kind, run = 1, parse_run(np.frombuffer(payload, np.uint8), path)
        else:
            kind, run = 2, RunV2.from_bytes(payload, path)
        if len(payload) > LENGTH_MAX:
            raise FieldError(
                f"the run is {len(payload)} bytes; an entry holds at most {LENGTH_MAX}", path=path
            )
        stored, raw_length = payload, 0
        if self.compress != "none" and len(payload) <= RAW_BYTES_MAX:
            stored, raw_length = compress(payload, self.compress), len(payload)
        return _Entry(stored, kind, raw_length, crc32c(stored) if self.entry_crc else 0, run.meta)

    def append_entry(self, entry: _Entry) -> None:
        """Store a result of :meth:`prepare`."""
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
        stats = stats_bytes(self.stats)
        # A checksum of the region of compressed entries would only repeat theirs.
        data_crc = self._data_crc if self.compress == "none" else 0
        footer = footer_bytes(data_end, crc32c(self._index), data_crc, data_end)
        tail = len(stats).to_bytes(4, "little") + stats + footer
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

    The same files give the same bytes, on any number of workers. Each file is decoded before it is stored;
    a damaged one is left out and named in the result.

    Args:
        source: the directory; see :func:`tape2048.runs.files.find_run_files`.
        target: the pack, which appears when it is whole.
        align: as :class:`PackWriter`.
        compress: as :class:`PackWriter`.
        entry_crc: as :class:`PackWriter`.
        workers: threads that read, check and compress; None: one for each core.
        progress: called with files done and files in all.

    Returns:
        The pack's statistics and size, and the files that were left out.

    Raises:
        NotASessionError: the directory has no undamaged run file.
        StorageError: the directory is missing or cannot be listed.
        NameTakenError: ``target`` exists.
        StorageError: the operating system could not write it.
        ValueError: an invalid ``align`` or ``compress``.

    Example:
        >>> from tape2048.packs import pack_directory
        >>> packed = pack_directory("runs", "all.a2pack", align=1)
        >>> packed.stats.count, packed.skipped
        (2, [])
    """
    paths = find_run_files(source)
    skipped: list[Skipped] = []
    writer = PackWriter(target, align=align, compress=compress, entry_crc=entry_crc, count_hint=len(paths))

    def load(path: Path) -> _Entry | Skipped:
        try:
            return writer.prepare(map_path(path).data, path)
        except (FormatError, StorageError) as error:
            return Skipped(path, error.detach())

    with writer:
        for done, result in enumerate(map_ordered(load, paths, workers), start=1):
            if isinstance(result, Skipped):
                skipped.append(result)
            else:
                writer.append_entry(result)
            if progress is not None:
                progress(done, len(paths))
        if not len(writer):
            raise NotASessionError(
                f"found {counted(len(paths), 'file')}, all damaged; the first: {skipped[0].error}",
                path=source,
            )
    return Packed(writer.stats, writer.bytes, skipped)


def _move(fd: int, source: int, target: int, length: int, path: str | os.PathLike[str]) -> None:
    """Move bytes within a file, in an order that overwrites none before it is read."""
    if source == target:
        return
    starts = range(0, length, _BUFFER_BYTES)
    for begin in starts if target < source else reversed(starts):
        part = np.empty(min(_BUFFER_BYTES, length - begin), np.uint8)
        read_exactly(fd, part, source + begin, path)
        write_all(fd, part.data, target + begin)
