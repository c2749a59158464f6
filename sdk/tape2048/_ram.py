"""Rows of many files as one array in memory: how much memory there is, and how they get there.

The array is anonymous memory on a boundary of 2 MiB with huge pages advised: random rows of a large array
miss the TLB nearly every time, and huge pages make the gather 1.2 to 1.6 times as fast. Files are read with
large ``pread`` calls straight into it, several at a time. Nothing is mapped: a file that is cut or removed
while it is read is an error here, where a mapping would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048._cgroups import own_groups
from tape2048._reading import open_regular, read_exactly, reading
from tape2048.errors import StorageError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Part", "allocate", "ram_available", "read_rows"]

#: Bytes of a huge page, on every processor that has transparent ones of this kind.
HUGE_PAGE_BYTES = 2 * 1024 * 1024

#: Bytes of one read: long enough that its overhead does not show, short enough that the pages of the cache
#: are still warm when they are copied, that a bar moves, and that an interrupt is seen soon.
CHUNK_BYTES = 4 * 1024 * 1024

#: Bytes behind a chunk that the system is asked for with it: its own read-ahead begins small with each chunk.
AHEAD_BYTES = 16 * 1024 * 1024

#: Reads at a time. One thread copies from the page cache at about the speed of the memory; what more of
#: them bring is that a disk always has a read waiting, which four do.
THREADS = 4


class Part(NamedTuple):
    """A stretch of one file."""

    path: str | os.PathLike[str]
    offset: int
    bytes: int


def read_rows(
    parts: Sequence[Part | tuple[str | os.PathLike[str], int, int]],
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.uint8]:
    """Read stretches of files into one new array, in the order given.

    All files are looked at before anything is allocated.

    Args:
        parts: path, first byte and number of bytes of each stretch.
        threads: reads at a time, >= 1; default :data:`THREADS`.
        progress: called with the number of bytes of each read that is done, by the calling thread.

    Returns:
        ``u8[sum of bytes]``, contiguous, read-only, from :func:`allocate`.

    Raises:
        TruncatedError: a file is shorter than its stretch, or became so while it was read.
        StorageError: a file is missing or cannot be read, or there is no memory for all of it.
        ValueError: ``threads`` below 1.
    """
    threads = THREADS if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads={threads}; expected at least 1")
    stretches = [Part(*part) for part in parts]
    for part in stretches:
        _check_length(part)
    rows = allocate(sum(part.bytes for part in stretches))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tape2048-read")
    try:
        for done in pool.map(_read_chunk, _chunks(stretches, rows)):
            if progress is not None:
                progress(done)
    finally:
        # After an error or an interrupt, only the reads that are under way are waited for.
        pool.shutdown(cancel_futures=True)
    rows.flags.writeable = False
    return rows


def allocate(count: int) -> NDArray[np.uint8]:
    """Zeroed memory that begins at a huge page, with huge pages advised where the system has them.

    Args:
        count: bytes, >= 0.

    Returns:
        ``u8[count]``, writable; pages are taken when they are first written.

    Raises:
        StorageError: the system will not promise so much memory.
    """
    if count == 0:
        return np.empty(0, np.uint8)
    try:
        memory = mmap.mmap(-1, count + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        hint = 'load="mmap" leaves the rows on the disk'
        raise StorageError(f"no memory for {count} bytes: {error}", hint=hint) from error
    with contextlib.suppress(OSError):  # a kernel without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    begin = -whole.ctypes.data % HUGE_PAGE_BYTES
    return whole[begin : begin + count]


def _check_length(part: Part) -> None:
    with reading(part.path):
        found = Path(part.path).stat().st_size
    if found < part.offset + part.bytes:
        raise TruncatedError(
            f"has {found} bytes; {part.offset + part.bytes} when it was opened",
            path=part.path,
            offset=found,
            hint="something wrote to it; restore the file from a copy, and open it again",
        )


class _Chunk(NamedTuple):
    path: str | os.PathLike[str]
    offset: int
    into: NDArray[np.uint8]


def _chunks(parts: Sequence[Part], rows: NDArray[np.uint8]) -> Iterator[_Chunk]:
    end = 0
    for part in parts:
        begin, end = end, end + part.bytes
        for first in range(begin, end, CHUNK_BYTES):
            into = rows[first : min(end, first + CHUNK_BYTES)]
            yield _Chunk(part.path, part.offset + first - begin, into)


def _read_chunk(chunk: _Chunk) -> int:
    with open_regular(chunk.path) as fd:
        with contextlib.suppress(OSError):  # a file system that takes no advice
            os.posix_fadvise(fd, chunk.offset, len(chunk.into) + AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        read_exactly(fd, chunk.into, chunk.offset, chunk.path)
    return len(chunk.into)


def ram_available(root: Path = Path("/")) -> int:
    """Bytes of memory that this process can fill before something has to give way.

    The machine's ``MemAvailable``, or less where a control group (version 1 or 2; this process's or one
    that it stands in) leaves less: its limit without what it uses, file cache that can be dropped aside.

    Args:
        root: where ``/proc`` and ``/sys`` are looked for.
    """
    found = [_meminfo(root / "proc/meminfo")]
    for group in own_groups("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup"):
        left = _left_in(group)
        if left is not None:
            found.append(left)
    return max(0, min(found))


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # a kernel before 3.14


def _left_in(group: Path) -> int | None:
    """Bytes that a group has left; None where it has no limit (or none that can be read)."""
    version_2 = (group / "memory.current").exists()
    limits, used, cache = (
        (("memory.max", "memory.high"), "memory.current", "inactive_file")
        if version_2
        else (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
    )
    left = None
    for name in limits:
        try:
            limit = int((group / name).read_text())  # "max": no limit
            now = int((group / used).read_text()) - _statistic(group / "memory.stat", cache)
        except (OSError, ValueError):
            continue
        left = limit - now if left is None else min(left, limit - now)
    return left


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
