"""Staging directories, written under a draft name, and their locks.

A lock on a directory (``flock``) ends with its process, however that ends. A staging directory without a lock
was therefore left by a dead process, and can be removed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Self

from tape2048.errors import StorageError
from tape2048.io.durable import fsync_dir, rename_exchange, rename_noreplace, try_lock

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIX = ".partial"


def lock_directory(path: Path) -> int | None:
    """Open and lock a directory; return its descriptor, or None if another process holds the lock."""
    while True:
        with contextlib.ExitStack() as stack:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            if not try_lock(fd):
                return None
            # The holder of the lock may have exchanged the directory before its release.
            if os.path.samestat(os.fstat(fd), path.stat()):
                stack.pop_all()
                return fd


class Staging:
    """A new, locked directory beside a target; removed at the end of the block, unless published.

    Those that dead processes left for the same target are removed first. The name, of :attr:`path`, begins
    with a dot and ends in ``suffix``, by which :func:`sweep` finds it.
    """

    def __init__(self, target: Path, suffix: str = _SUFFIX) -> None:
        self.path = target.with_name(f".{target.name}.{secrets.token_hex(8)}{suffix}")
        self._target = target
        self._suffix = suffix
        self._fd: int | None = None
        self._published = False

    def __enter__(self) -> Self:
        sweep(self._target, self._suffix)
        while self._fd is None:
            self.path.mkdir()
            # Another process's sweep may remove it before it is locked.
            with contextlib.suppress(FileNotFoundError):
                self._fd = lock_directory(self.path)
        return self

    def publish(self, *, exchange: bool = False) -> None:
        """Flush the directory, rename it to the target, and flush the parent directory.

        With ``exchange``, it replaces a target, which is removed at the end of the block; without, an
        existing target is a NameTakenError.
        """
        fsync_dir(self.path)
        if exchange:
            rename_exchange(self.path, self._target)
        else:
            rename_noreplace(self.path, self._target)
            self._published = True
        fsync_dir(self._target.parent)

    def __exit__(self, *_: object) -> None:
        if not self._published:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._fd is not None:
            os.close(self._fd)


def hold_lock(path: Path, stack: contextlib.ExitStack) -> None:
    """Lock a directory until the stack is closed; StorageError if another process holds the lock."""
    fd = lock_directory(path)
    if fd is None:
        raise StorageError("another process is rewriting it", path=path, hint="wait for it, then try again")
    stack.callback(os.close, fd)


def sweep(target: Path, suffix: str = _SUFFIX) -> list[Path]:
    """Remove the staging directories that dead processes left for a target; return their paths."""
    removed = []
    for path in target.parent.glob(f".{glob.escape(target.name)}.*{suffix}"):
        try:
            fd = lock_directory(path)
        except OSError:
            continue  # gone meanwhile, or of another user
        if fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)
            removed.append(path)
    return removed
