"""Locks that keep a session from being removed while a process reads it.

A :class:`~tape2048.session.session.Session` holds a shared lock as long as it lives. Removal takes an
exclusive lock, without waiting. Locks end with their process.

With a descriptor for each session, a corpus of a thousand sessions would reach the usual limit of 1,024 open
files. Therefore, the locks of all sessions of a directory are in one file, ``<root>/.recorder/readers.lock``,
which a process opens once. A session's lock is the byte at the inode number of its directory, and byte 0 is
the lock of removal. They are locks of the open file description (``F_OFD_SETLK``), since POSIX record locks
end when any descriptor of the file is closed.

Readers do not create the file. If it does not exist, because nothing was ever recorded or removed here, or if
the system has no such locks, readers lock the directory of the sessions itself (``flock``). Removal takes
that lock as well. If a reader holds it, nothing is removed, since the lock does not identify the session.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

from tape2048.errors import MissingPathError
from tape2048.files.opening import path_exists, try_lock

LOCKS_DIRECTORY = ".recorder"
READERS_LOCK = "readers.lock"

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for these locks).
_FLOCK = struct.Struct("hhqqi4x")
_HAS_BYTE_LOCKS = hasattr(fcntl, "F_OFD_SETLK") and sys.platform == "linux"
_REMOVER_BYTE = 0
_BYTES_MASK = (1 << 62) - 1


def _lock(fd: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _byte_of(status: os.stat_result) -> int:
    return max(1, status.st_ino & _BYTES_MASK)


class _LockFile:
    """An open lock file of this process, with the number of sessions that hold each of its bytes."""

    def __init__(self, fd: int, *, whole: bool) -> None:
        self.fd = fd
        self.whole = whole  # the directory itself: one lock for all its sessions
        self.pid = os.getpid()
        self.counts: dict[int, int] = {}
        # Bytes to unlock. The garbage collector may run while this thread holds the mutex, so it only queues
        # a session's byte here, and the next holder of the mutex unlocks it.
        self.released: deque[int] = deque()


_mutex = threading.Lock()
_files: dict[tuple[int, int], _LockFile] = {}


def _forget_files() -> None:
    """Start a forked child without lock files: it must not unlock the locks of its parent."""
    global _mutex, _files  # noqa: PLW0603 - another thread of the parent may hold the mutex
    _mutex = threading.Lock()
    _files = {}


os.register_at_fork(after_in_child=_forget_files)


class ReadLock:
    """A session's shared lock, held until this object is collected."""

    __slots__ = ("_byte", "_file")

    def __init__(self, file: _LockFile, byte: int) -> None:
        self._file = file
        self._byte = byte

    def __del__(self, suppress: Any = contextlib.suppress, getpid: Any = os.getpid) -> None:
        # When the interpreter exits, globals are missing, and the kernel unlocks.
        with suppress(Exception):
            if self._file.pid == getpid():
                self._file.released.append(self._byte)
                if _mutex.acquire(blocking=False):
                    try:
                        _unlock_released()
                    finally:
                        _mutex.release()


def lock_for_reading(directory: Path) -> ReadLock | None:
    """Keep a session from being removed; None if it cannot be locked, MissingPathError if it is gone."""
    # For a link to a session, the lock is beside its target. Links above it do not matter.
    root = (Path(os.path.realpath(directory)) if directory.is_symlink() else directory).parent
    lock, locked = None, 0
    with _mutex:
        _unlock_released()
        # No lock: the system has none, or another process (not a removal, which makes the lock file first)
        # has locked the whole directory.
        with contextlib.suppress(OSError):
            if (file := _open(root) or _open(root)) is not None:
                byte = 0 if file.whole else _byte_of(directory.stat())
                held = file.counts.get(byte, 0)
                if held == 0 and not file.whole and not _lock(file.fd, fcntl.F_RDLCK, byte):
                    raise MissingPathError("no such file or directory (it is being removed)", path=directory)
                file.counts[byte] = held + 1
                lock, locked = ReadLock(file, byte), byte
    # The session may have been removed before the lock was taken. From now on, it cannot be removed.
    try:
        is_it = locked in {0, _byte_of(directory.stat())}
    except (FileNotFoundError, NotADirectoryError):
        is_it = False
    except OSError:  # the caller cannot read it either
        is_it = locked == 0
    if not is_it:
        raise MissingPathError("no such file or directory (it was removed just now)", path=directory)
    return lock


def _open(root: Path) -> _LockFile | None:
    """Return the lock file of a directory of sessions; None if the caller must try again."""
    path = root / LOCKS_DIRECTORY / READERS_LOCK
    whole = not (_HAS_BYTE_LOCKS and path_exists(path))
    path = root if whole else path
    status = path.stat()
    key = (status.st_dev, status.st_ino)
    if key in _files:
        return _files[key]
    with contextlib.ExitStack() as stack:
        flags = os.O_DIRECTORY if whole else os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        stack.callback(os.close, fd)
        if whole and not try_lock(fd, shared=True):
            return None  # a removal holds the directory, and has made the lock file before
        status = os.fstat(fd)
        stack.pop_all()
    return _files.setdefault((status.st_dev, status.st_ino), _LockFile(fd, whole=whole))


def _unlock_released() -> None:
    for key, file in list(_files.items()):
        while file.released:
            byte = file.released.popleft()
            file.counts[byte] -= 1
            if file.counts[byte] == 0:
                del file.counts[byte]
                if not file.whole:
                    _lock(file.fd, fcntl.F_UNLCK, byte)
        if not file.counts:
            del _files[key]
            os.close(file.fd)


def _lock_directory(fd: int) -> bool:
    try:
        return try_lock(fd)
    except OSError as error:
        # NFS grants an exclusive lock only to a descriptor that is open for writing, and directories cannot
        # be opened for writing. There, sessions that were opened before the lock file existed are not seen.
        if error.errno != errno.EBADF:
            raise
        return True
