"""Locks of processes that remove sessions, against the readers of ``tape2048.files.locks``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import Self

from tape2048.errors import BusyError, StorageError
from tape2048.files.locks import (
    _FLOCK,
    _HAS_BYTE_LOCKS,
    _REMOVER_BYTE,
    LOCKS_DIRECTORY,
    READERS_LOCK,
    _byte_of,
    _lock,
    _lock_directory,
)
from tape2048.files.opening import open_fd, open_owned, storage_errors


def make_readers_lock(root: Path) -> Path:
    path = root / LOCKS_DIRECTORY / READERS_LOCK
    path.parent.mkdir(exist_ok=True)
    os.close(open_owned(path.parent, os.O_RDONLY | os.O_DIRECTORY))
    os.close(open_owned(path, os.O_RDONLY | os.O_CREAT))
    return path


def _unknown_reader(root: Path, hint: str) -> BusyError:
    found = "a process reads sessions here, and opened them before readers.lock existed"
    return BusyError(found, path=root, hint=hint)


class RemovalLock:
    """A context manager that holds the exclusive right to remove sessions of the directory ``root``."""

    def __init__(self, root: Path) -> None:
        if not _HAS_BYTE_LOCKS:
            raise StorageError(f"sessions cannot be removed on {sys.platform}", path=root, hint="use Linux")
        with storage_errors(root, "locking it"), contextlib.ExitStack() as held:
            self._fd = open_owned(make_readers_lock(root), os.O_RDWR)
            held.callback(os.close, self._fd)
            directory = held.enter_context(open_fd(root, os.O_RDONLY | os.O_DIRECTORY))
            if not _lock(self._fd, fcntl.F_WRLCK, _REMOVER_BYTE):
                raise BusyError(
                    "another process is removing sessions here",
                    path=root,
                    hint="wait until it has finished",
                )
            if not _lock_directory(directory):
                hint = (
                    "try again when that process has ended: nothing was removed. From now on, readers lock "
                    "each session separately"
                )
                raise _unknown_reader(root, hint)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def try_lock(self, session: Path) -> int | None:
        """Lock a session against readers; return its byte for :meth:`unlock`, or None if it is being read."""
        byte = _byte_of(session.stat())
        return byte if _lock(self._fd, fcntl.F_WRLCK, byte) else None

    def unlock(self, byte: int) -> None:
        _lock(self._fd, fcntl.F_UNLCK, byte)

    def is_read(self, session: Path) -> bool:
        byte = self.try_lock(session)
        if byte is not None:
            self.unlock(byte)
        return byte is None


class LockProbe:
    """A context manager that shows which sessions of ``root`` are read, and creates and locks nothing."""

    def __init__(self, root: Path) -> None:
        self._fd: int | None = None
        if not _HAS_BYTE_LOCKS:
            return
        with storage_errors(root, "looking at its locks"):
            try:
                self._fd = open_owned(root / LOCKS_DIRECTORY / READERS_LOCK, os.O_RDONLY)
            except FileNotFoundError:
                with open_fd(root, os.O_RDONLY | os.O_DIRECTORY) as fd:
                    if not _lock_directory(fd):
                        raise _unknown_reader(root, "try again when that process has ended") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def is_read(self, session: Path) -> bool:
        if self._fd is None:
            return False
        # A query works with a descriptor that is open for reading only.
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _byte_of(session.stat()), 1, 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, query))
        return bool(kind == fcntl.F_RDLCK)
