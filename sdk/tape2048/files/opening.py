"""Files of other processes: opening and locking them safely, and the errors of the operating system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import DiskFullError, StorageError, TooManyFilesError

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Hint for errors of the operating system that neither space nor permissions explain.
DEVICE_HINT = "look at the kernel's log (dmesg) for the device"

#: Mode of a new file before the umask, as of `open`.
NEW_FILE_MODE = 0o666

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

NO_FILES = (errno.EMFILE, errno.ENFILE)

#: Codes of an open with O_NOFOLLOW and O_NONBLOCK for a link, a pipe or a socket, a directory.
_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)

_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)

_HINTS = {
    **dict.fromkeys(NO_FILES, "raise the limit on open files: ulimit -n, LimitNOFILE= or fs.file-max"),
    **dict.fromkeys(_NO_ACCESS, "check that the directory exists and may be written"),
    errno.EFBIG: "raise the limit on the size of files: ulimit -f, LimitFSIZE=",
    errno.ENAMETOOLONG: "choose a shorter name, or a directory with a shorter path",
    errno.ENOLCK: "mount this file system with locks (for NFS, start lockd), or choose another directory",
}


def storage_error(error: OSError, path: str | os.PathLike[str], doing: str) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return DiskFullError(f"no room: {doing} failed ({reason})", path=path, hint="free some space")
    kind = TooManyFilesError if error.errno in NO_FILES else StorageError
    return kind(f"{doing} failed ({reason})", path=path, hint=_HINTS.get(error.errno or 0, DEVICE_HINT))


@contextlib.contextmanager
def storage_errors(path: str | os.PathLike[str], doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, doing) from error


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Check whether a path exists; OSError if unknown: a wrong False would let callers delete data."""
    try:
        os.stat(path)  # noqa: PTH116 - a path of any kind
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextlib.contextmanager
def open_fd(path: str | os.PathLike[str], flags: int) -> Iterator[int]:
    """Open a file for the block. The umask determines the mode of a new file, as in all functions here."""
    fd = os.open(path, flags | os.O_CLOEXEC, NEW_FILE_MODE)
    try:
        yield fd
    finally:
        os.close(fd)


def open_owned(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file, or a directory with ``O_DIRECTORY``, and return its descriptor.

    Other users may have put something else at this path. The file must belong to this user, to root, or to
    the owner of its directory; in a directory that a group shares, to any user. Links are not followed, and
    opening a pipe does not block. Raises StorageError for anything else.
    """
    is_directory = bool(flags & os.O_DIRECTORY)
    found = "a link, a pipe or another kind of file"
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, NEW_FILE_MODE)
        except OSError as error:
            if error.errno not in _NOT_REGULAR or not os.path.lexists(path):
                raise
        else:
            stack.callback(os.close, fd)
            status = os.fstat(fd)
            parent = Path(path).parent.stat()
            owners = {os.geteuid(), 0, parent.st_uid}
            if stat.S_IFMT(status.st_mode) == (stat.S_IFDIR if is_directory else stat.S_IFREG):
                if status.st_uid in owners or is_shared(parent):
                    stack.pop_all()
                    return fd
                found = f"{'a directory' if is_directory else 'a file'} of user {status.st_uid}"
    raise StorageError(
        f"found {found}, expected {'a directory' if is_directory else 'a regular file'} of user "
        f"{os.geteuid()}. It was not changed",
        path=path,
        hint="find out which program put it there, and remove it",
    )


def is_shared(directory: os.stat_result) -> bool:
    """Check whether a directory is writable by its group, and not by all users."""
    return directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting, until its last descriptor is closed; return False if it is held."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
