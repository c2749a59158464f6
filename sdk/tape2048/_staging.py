"""Directories that are written under a name of their own, and who works on them.

A lock on a directory (``flock``) belongs to a process and goes with it, however it ends. So a staging
directory whose lock is free was left by somebody who died, and can go.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Self

from tape2048.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["Staging", "hold", "lock_directory", "sweep"]

_SUFFIX = ".partial"


def lock_directory(path: Path) -> int | None:
    """A descriptor of a directory with its lock, or None where somebody else has it.

    Raises:
        OSError: it cannot be opened.
    """
    while True:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        # Whoever had the lock may have exchanged the directory before it let go: the name counts.
        mine, now = os.fstat(fd), path.stat()
        if (mine.st_dev, mine.st_ino) == (now.st_dev, now.st_ino):
            return fd
        os.close(fd)


class Staging:
    """A fresh directory beside a target, locked; it is removed when the block is left, unless kept.

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
        self._kept = False

    def __enter__(self) -> Self:
        sweep(self._target, self._suffix)
        while self._fd is None:
            self.path.mkdir()
            # Between the two a sweep may have taken it for a dead one's.
            with contextlib.suppress(FileNotFoundError):
                self._fd = lock_directory(self.path)
        return self

    def keep(self) -> None:
        """It has its name: nothing is to be removed."""
        self._kept = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._kept:
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
