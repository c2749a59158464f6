"""Watches that what gets a name has been flushed before, and the name after, before the next one is given."""

import os
from pathlib import Path
from typing import Any

import pytest

from tape2048.files import durable


class Naming:
    """Each rename below a directory from now on; paths with a name that starts with a dot are nobody's.

    A power failure may take whatever was not flushed: a name without its content, or the name.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._flushed: dict[tuple[int, int], object] = {}
        self._names: list[str] = []
        self._unflushed: set[Path] = set()
        self._libc = durable._libc()
        monkeypatch.setattr(durable, "_libc", lambda: self)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))
        monkeypatch.setattr(os, "unlink", self._watched_unlink(os.unlink))
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note_flush)

    def assert_flushed(self, *names: str) -> None:
        """These names were given, in this order, and stand on the disk."""
        assert self._names == list(names)
        assert not self._unflushed

    def renameat2(self, at: int, source: bytes, at_target: int, target: bytes, flags: Any) -> int:
        self._check(os.fsdecode(source), os.fsdecode(target))
        result: int = self._libc.renameat2(at, source, at_target, target, flags)
        if result == 0:
            self._note_name(os.fsdecode(target))
        return result

    def _watched(self, rename: Any) -> Any:
        def watched(source: Any, target: Any) -> None:
            self._check(source, target)
            rename(source, target)
            self._note_name(target)

        return watched

    def _watched_unlink(self, unlink: Any) -> Any:
        def watched(path: Any, **where: Any) -> None:
            unlink(path, **where)
            if not where and self._is_name(path):
                self._unflushed.add(Path(path).parent)

        return watched

    def _check(self, source: Any, target: Any) -> None:
        if not self._is_name(target):
            return
        assert Path(target).parent not in self._unflushed, f"{target} before a change beside it was flushed"
        for path in (Path(source), *Path(source).rglob("*")):
            found = self._flushed.get(_inode(path.stat()))
            assert found == _state(path), f"{path} gets a name, and {found} of it was flushed"

    def _note_name(self, target: Any) -> None:
        if self._is_name(target):
            self._names.append(Path(target).name)
            self._unflushed.add(Path(target).parent)

    def _is_name(self, target: Any) -> bool:
        path = Path(target)
        return path.is_relative_to(self._root) and not any(
            part.startswith(".") for part in path.relative_to(self._root).parts
        )

    def _note_flush(self, fd: int) -> None:
        self._fsync(fd)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self._flushed[_inode(os.fstat(fd))] = _state(path)
        self._unflushed.discard(path)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _state(path: Path) -> object:
    """What a flush makes last: a file's size, or a directory's names."""
    return sorted(os.listdir(path)) if path.is_dir() else path.stat().st_size  # noqa: PTH208
