"""Durable, atomic writes: a file appears complete, or not at all.

The order is always: write under a draft name, fsync the file, rename, fsync the directory. Renames do not
replace: a plain ``rename`` would silently replace an empty directory. A failed fsync is never retried on the
same file: the second fsync reports success for pages that the kernel has dropped. Functions raise the OSError
of the operating system unless their docstring names another class.

A draft is a hidden file or directory beside its target (:func:`new_file`, :class:`Draft`):

=========  ================================================================================================
name       ``.<16 hexadecimal digits>.tmp`` for a file, ``.<target>.<16 hexadecimal digits>.tmp`` for a
           directory. Readers skip hidden names.
lock       ``flock``. It ends with the draft's process, however that ends.
publish    fsync, rename, fsync of the parent directory.
sweep      :func:`sweep_drafts` removes drafts without a lock: their processes are dead.
=========  ================================================================================================

:func:`sweep_drafts` skips two other kinds of hidden names. ``.<name>.partial`` is work that the next process
continues (columns, recordings). ``.<name>.removed`` is a removed session, deleted once its new name is
flushed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from tape2048.errors import BusyError, NameTakenError, StorageError
from tape2048.files.opening import (
    open_fd,
    open_owned,
    path_exists,
    storage_error,
    storage_errors,
    try_lock,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer


_FORCE_HINT = "choose another name, or replace the file (--force)"
_DRAFT = re.compile(r"\.(.+\.)?[0-9a-f]{16}\.tmp")
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
#: Codes of a file system (some network ones) or a C library without renameat2's flags.
_NO_SUCH_RENAME = (errno.ENOSYS, errno.EINVAL)


def write_all(fd: int, data: ReadableBuffer, offset: int | None = None) -> None:
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        if offset is None:
            done += os.write(fd, view[done:])
        else:
            done += os.pwrite(fd, view[done:], offset + done)


def fsync_path(path: str | os.PathLike[str]) -> None:
    with open_fd(path, os.O_RDONLY) as fd:
        os.fsync(fd)


fsync_dir = fsync_path


def write_file(path: str | os.PathLike[str], data: ReadableBuffer) -> None:
    """Write and flush a new file, but not its directory; raise FileExistsError if the file exists."""
    with open_fd(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_all(fd, data)
        os.fsync(fd)


def replace_file(path: str | os.PathLike[str], data: ReadableBuffer) -> None:
    """Replace a small file atomically: readers see the old content or the new."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        write_file(draft, data)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    fsync_dir(target.parent)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], *, replace: bool = False, durable: bool = True) -> Iterator[int]:
    """Write a file that appears complete or not at all; unless ``durable``, nothing is flushed."""
    target = Path(path).absolute()
    check_name(Path(path), replace=replace)  # fail before gigabytes are written. The rename checks again
    draft = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open_fd(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            with contextlib.suppress(OSError):  # no locks on this file system. Only sweep_drafts() uses them
                try_lock(fd)
            yield fd
            if durable:
                os.fsync(fd)
            if replace:
                draft.replace(target)
            else:
                rename_noreplace(draft, target)
        if durable:
            fsync_dir(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise storage_error(error, path, "writing it") from error
        raise


def check_name(path: Path, *, replace: bool = False) -> None:
    """Raise NameTakenError if :func:`new_file` would not write to this path."""
    if replace:
        refuse_special(path)
    elif os.path.lexists(path):
        raise NameTakenError("exists already. Nothing was replaced", path=path, hint=_FORCE_HINT)


def check_new_file(path: Path, *, replace: bool = False) -> None:
    """Raise the errors of :func:`new_file` early, before its content is computed, which can take hours."""
    check_name(path, replace=replace)
    with storage_errors(path, "writing it"), tempfile.TemporaryFile(dir=path.absolute().parent):
        path_exists(path)  # an error if the name is too long


def refuse_special(path: Path) -> None:
    """Raise NameTakenError if the path exists and is not a regular file; a rename would replace /dev/null."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise storage_error(error, path, "looking at the file to replace") from error
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise NameTakenError(
            f"found {what}, expected a file. Nothing was replaced",
            path=path,
            hint="choose another name. Commands that can write to standard output take - for it",
        )


def sweep_drafts(directory: Path) -> list[Path]:
    """Remove the drafts that killed processes left in a directory; return the paths of the removed drafts."""
    with contextlib.suppress(OSError):
        return [path for path in directory.iterdir() if _DRAFT.fullmatch(path.name) and remove_draft(path)]
    return []


def remove_draft(path: Path) -> bool:
    """Remove a draft, unless a live process has locked it; return whether it was removed."""
    with (
        contextlib.suppress(OSError),
        open_fd(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as fd,
    ):
        mode = os.fstat(fd).st_mode
        if (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) and try_lock(fd):
            shutil.rmtree(path) if stat.S_ISDIR(mode) else path.unlink()
            return True
    return False


@contextlib.contextmanager
def publishing_file(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[BinaryIO]:
    with new_file(path, replace=replace) as fd, os.fdopen(fd, "wb", closefd=False) as file:
        yield file


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _renameat2(source: str | os.PathLike[str], target: str | os.PathLike[str], flags: int) -> int:
    """Rename. Return 0, EEXIST or an error of _NO_SUCH_RENAME, and raise other errors."""
    names = os.fsencode(source), os.fsencode(target)
    for name in names:
        if b"\0" in name:  # where C would end the name
            raise ValueError(f"embedded null byte in the name {os.fsdecode(name)!r}")
    renameat2 = getattr(_libc(), "renameat2", None)
    if renameat2 is None:
        return errno.ENOSYS
    while renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(flags)) != 0:
        if (code := ctypes.get_errno()) != errno.EINTR:
            break
    else:
        return 0
    if code not in (errno.EEXIST, *_NO_SUCH_RENAME):
        raise OSError(code, os.strerror(code), os.fspath(source), None, os.fspath(target))
    return code


def rename_noreplace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename without flushing the directory; raise NameTakenError if ``target`` exists."""
    code = _renameat2(source, target, _RENAME_NOREPLACE)
    if code in _NO_SUCH_RENAME:
        # Checking first is enough: sessions are published under a lock, and a rename does not replace a
        # directory with files, as a session is.
        if not os.path.lexists(target):
            Path(source).rename(target)
            return
        code = errno.EEXIST
    if code == errno.EEXIST:
        raise NameTakenError("exists already. Nothing was replaced", path=target)


def numbered(path: Path) -> Iterator[Path]:
    """Yield the path, and then the path with a counter, endlessly: ``name``, ``name-2``, ``name-3``."""
    yield path
    for count in itertools.count(2):
        yield path.with_name(f"{path.name}-{count}")


def rename_numbered(source: Path, target: Path) -> Path:
    """Rename to the first free name of :func:`numbered`, and return that name."""
    for path in numbered(target):
        with contextlib.suppress(NameTakenError):
            rename_noreplace(source, path)
            return path
    raise AssertionError  # pragma: no cover - numbered() has no end


def rename_exchange(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> None:
    """Exchange two names atomically. Nothing is flushed."""
    if _renameat2(one, other, _RENAME_EXCHANGE):
        raise StorageError(
            "cannot be replaced atomically: this file system cannot exchange two names",
            path=other,
            hint="move it to a local file system (ext4, xfs, btrfs, tmpfs), or write to a new name",
        )


def is_locked(path: Path) -> bool:
    """Check whether a process holds the lock of :func:`lock_directory`, by a short shared lock."""
    with open_fd(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        return not try_lock(fd, shared=True)


def lock_directory(path: Path) -> int | None:
    """Open and lock a directory; return its descriptor, or None if another process holds the lock."""
    while True:
        with contextlib.ExitStack() as stack:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            if not try_lock(fd):
                return None
            # The previous holder may have exchanged the directory while this process waited.
            if os.path.samestat(os.fstat(fd), path.stat()):
                stack.pop_all()
                return fd


class Draft:
    """A locked directory beside a target, removed unless published; dead drafts there are removed first."""

    def __init__(self, target: Path, *, alone: bool = False) -> None:
        """Name the draft. With ``alone``, a second draft of this target raises BusyError."""
        token = "0" * 16 if alone else secrets.token_hex(8)
        self._target, self._alone = target.absolute(), alone
        self.path = self._target.with_name(f".{target.name}.{token}.tmp")
        self._fd = -1
        self._published = False

    def __enter__(self) -> Self:
        if not self._alone:
            sweep_drafts(self._target.parent)
        while self._fd < 0:
            # Another process may make the directory first, and may remove or publish it before it is locked
            # here. (In that case, Path.mkdir fails in spite of ``exist_ok``.)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
            with contextlib.suppress(FileNotFoundError):
                self._fd = self._lock()
        if self._alone:  # a dead process may have left files
            for left in self.path.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        return self

    def _lock(self) -> int:
        """Open and lock the draft; return its descriptor, or -1 if another process holds its lock."""
        with contextlib.ExitStack() as stack:
            flags = os.O_RDONLY | os.O_DIRECTORY
            fd = open_owned(self.path, flags) if self._alone else os.open(self.path, flags | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            try:
                locked = try_lock(fd)
            except OSError:  # NFS cannot lock directories. There, remove_draft() does not remove drafts
                locked = not self._alone
            if not locked and self._alone:
                hint = "wait until that process has finished"
                raise BusyError("another process is writing it", path=self._target, hint=hint)
            if locked and os.path.samestat(os.fstat(fd), self.path.stat()):
                stack.pop_all()
                return fd
        return -1

    def publish(self, *, exchange: bool = False, durable: bool = True) -> None:
        """Flush the directory, rename it to the target, and flush the parent directory.

        With ``exchange``, the draft replaces an existing target, which is removed at the end of the block.
        Otherwise, an existing target raises NameTakenError. Without ``durable``, nothing is flushed.
        """
        if durable:
            fsync_dir(self.path)
        (rename_exchange if exchange else rename_noreplace)(self.path, self._target)
        self._published = not exchange
        if durable:
            fsync_dir(self._target.parent)

    def __exit__(self, *_: object) -> None:
        if not self._published:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def hold_lock(path: Path, stack: contextlib.ExitStack) -> None:
    """Lock a directory until the stack is closed; raise StorageError if another process holds the lock."""
    fd = lock_directory(path)
    if fd is None:
        raise StorageError(
            "another process is rewriting it", path=path, hint="wait until it has finished, and try again"
        )
    stack.callback(os.close, fd)
