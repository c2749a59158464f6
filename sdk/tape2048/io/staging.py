"""Directories that are written under a name of their own, and who works on them.

A lock on a directory (``flock``) belongs to a process and goes with it, however it ends. So a staging
directory whose lock is free was left by somebody who died, and can go.
"""

from __future__ import annotations

import contextlib
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
    """A descriptor of a directory with its lock, or None where somebody else has it.

    Raises:
        OSError: it cannot be opened.
    """
    while True:
        with contextlib.ExitStack() as stack:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            if not try_lock(fd):
                return None
            # Whoever had the lock may have exchanged the directory before it let go: the name counts.
            if os.path.samestat(os.fstat(fd), path.stat()):
                stack.pop_all()
                return fd


class Staging:
    """A fresh directory beside a target, locked; it is removed when the block is left, unless published.

    What processes that died left of the same target goes first.

    Args:
        target: the path that it will get.
        suffix: the end of its name, by which :func:`sweep` finds it.

    Attributes:
        path: where it stands; its name begins with a dot.
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
            # Between the two a sweep may have taken it for a dead one's.
            with contextlib.suppress(FileNotFoundError):
                self._fd = lock_directory(self.path)
        return self

    def publish(self, *, exchange: bool = False) -> None:
        """Flush the directory, give it the target's name, and flush the directory that has the name.

        Args:
            exchange: whether the target is there; it then goes in the place of this one.

        Raises:
            NameTakenError: the target is there; nothing was replaced.
            StorageError: the file system cannot exchange two names.
            OSError: as the operating system gave it.
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


def hold(path: Path, stack: contextlib.ExitStack) -> None:
    """Lock a directory until the stack is closed.

    Raises:
        StorageError: another process has it locked.
        OSError: it cannot be opened.
    """
    fd = lock_directory(path)
    if fd is None:
        raise StorageError(
            "another process writes it anew at this moment", path=path, hint="wait for it, then try again"
        )
    stack.callback(os.close, fd)


def sweep(target: Path, suffix: str = _SUFFIX) -> list[Path]:
    """Remove the staging directories for a target that dead processes left; returns their paths."""
    removed = []
    for path in target.parent.glob(f".{_escaped(target.name)}.*{suffix}"):
        try:
            fd = lock_directory(path)
        except OSError:
            continue  # gone meanwhile, or not ours
        if fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)
            removed.append(path)
    return removed


def _escaped(name: str) -> str:
    """A name as a pattern of ``glob`` that only it matches."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
