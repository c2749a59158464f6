"""Who reads a session, so that nobody removes it meanwhile.

A :class:`~tape2048.session.session.Session` holds a shared lock for as long as it lives; what removes
sessions
takes the exclusive one, without waiting. Locks go with their process, however it ends.

A descriptor for each session would use up the usual limit of 1,024 with a corpus of a thousand. So
the locks of all sessions of a directory stand in one file, ``<root>/.recorder/readers.lock``, which a
process opens once: a session is the byte at the number of its directory's inode, and byte 0 is whoever
removes. They are locks of the open file description (``F_OFD_SETLK``), since the older kind goes when
any descriptor of the file is closed.

Readers make no file. Where that one is missing (nothing ever recorded here, nothing was removed), they hold
the directory of the sessions itself (``flock``), and whoever removes takes that one as well: it then
cannot tell which session is read, and leaves all of them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from collections import deque
from pathlib import Path
from typing import Self

from tape2048.errors import HeldError, NotASessionError
from tape2048.io.durable import open_fd, storage_errors, try_lock

LOCKS_DIRECTORY = ".recorder"
READERS_LOCK = "readers.lock"

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for these locks).
_FLOCK = struct.Struct("hhqqi4x")
_BYTE_OF_UPKEEP = 0
_BYTES_MASK = (1 << 62) - 1
_REFUSED = (errno.EAGAIN, errno.EACCES)


def _lock(fd: int, kind: int, byte: int) -> bool:
    """Lock or unlock one byte without waiting; False where somebody else has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        raise
    return True


def _byte_of(status: os.stat_result) -> int:
    return max(1, status.st_ino & _BYTES_MASK)


class _LockFile:
    """One file of locks, open in this process, and how many sessions hold each byte of it."""

    def __init__(self, fd: int, *, whole: bool) -> None:
        self.fd = fd
        self.whole = whole  # the directory itself: one lock for all that stands in it
        self.pid = os.getpid()
        self.counts: dict[int, int] = {}
        # Sessions that are gone. The collector may find them at any moment, also while this very thread
        # has the mutex, so that they are only noted there, and let go by whoever has it next.
        self.released: deque[int] = deque()


_mutex = threading.Lock()
_files: dict[tuple[int, int], _LockFile] = {}


def _forget_files() -> None:
    """In a forked child: its parent's locks are not its own to let go; its sessions share them."""
    global _mutex, _files  # noqa: PLW0603 - the parent's may be in mid-change
    _mutex = threading.Lock()
    _files = {}


os.register_at_fork(after_in_child=_forget_files)


class Hold:
    """A session's shared lock; it goes with this object."""

    __slots__ = ("_byte", "_file")

    def __init__(self, file: _LockFile, byte: int) -> None:
        self._file = file
        self._byte = byte

    def __del__(self) -> None:
        # At the interpreter's end names are gone, and the kernel lets go by itself.
        with contextlib.suppress(Exception):
            if self._file.pid == os.getpid():
                self._file.released.append(self._byte)
                if _mutex.acquire(blocking=False):
                    try:
                        _settle()
                    finally:
                        _mutex.release()


def hold_to_read(directory: Path) -> Hold | None:
    """Keep a session from being removed.

    Args:
        directory: the session's.

    Returns:
        What holds it, or None where the file system knows no locks, or they may not be used.

    Raises:
        NotASessionError: it is being removed at this moment, or has been.
    """
    # Of links, only one in the directory's own place matters: it stands among other sessions than its target.
    root = (Path(os.path.realpath(directory)) if directory.is_symlink() else directory).parent
    with _mutex:
        _settle()
        try:
            while (file := _open(root)) is None:
                pass
            byte = 0 if file.whole else _byte_of(directory.stat())
            if file.counts.get(byte, 0) == 0 and not file.whole and not _lock(file.fd, fcntl.F_RDLCK, byte):
                raise NotASessionError("this session is being removed", path=directory)
            file.counts[byte] = file.counts.get(byte, 0) + 1
            hold = Hold(file, byte)
        except OSError:
            return None
    # Between looking and locking it may have gone; now it cannot any more.
    try:
        found = byte if file.whole else _byte_of(directory.stat())
    except OSError:
        found = -1
    if found != byte:
        raise NotASessionError("nothing stands at this path (it was removed just now)", path=directory)
    return hold


def _open(root: Path) -> _LockFile | None:
    """The locks of a directory of sessions; None where another try will find them."""
    path = root / LOCKS_DIRECTORY / READERS_LOCK
    whole = False
    try:
        status = path.stat()
    except FileNotFoundError:
        path, whole = root, True
        status = path.stat()
    key = (status.st_dev, status.st_ino)
    if key in _files:
        return _files[key]
    with contextlib.ExitStack() as stack:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECTORY if whole else 0))
        stack.callback(os.close, fd)
        if whole and not try_lock(fd, shared=True):
            return None  # whoever removes has the directory, and made the file before it took it
        status = os.fstat(fd)
        stack.pop_all()
    return _files.setdefault((status.st_dev, status.st_ino), _LockFile(fd, whole=whole))


def _settle() -> None:
    """Let go of what sessions that are gone have held; files that nobody needs are closed."""
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


def make_readers_lock(root: Path) -> Path:
    """Make the file that readers lock, unless it is there.

    Raises:
        OSError: as the operating system gave it.
    """
    path = root / LOCKS_DIRECTORY / READERS_LOCK
    path.parent.mkdir(exist_ok=True)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    return path


def _lock_directory(fd: int) -> bool:
    """Take the lock that readers hold where there was no file of locks; False where one of them does.

    Raises:
        OSError: as the operating system gave it.
    """
    try:
        return try_lock(fd)
    except OSError as error:
        # NFS makes an exclusive lock of a descriptor that is open for writing only, which a directory's
        # cannot be. There, who opened a session before the file was made is not seen.
        if error.errno != errno.EBADF:
            raise
        return True


class Upkeep:
    """The right to remove sessions of a directory: one process has it at a time, while the block lasts.

    Args:
        root: the directory of the sessions.

    Raises:
        HeldError: another process is removing, or one reads that cannot say which session it is.
        StorageError: the operating system refused.
    """

    def __init__(self, root: Path) -> None:
        with storage_errors(root, "locking it"), contextlib.ExitStack() as held:
            self._fd = held.enter_context(open_fd(make_readers_lock(root), os.O_RDWR))
            directory = held.enter_context(open_fd(root, os.O_RDONLY | os.O_DIRECTORY))
            if not _lock(self._fd, fcntl.F_WRLCK, _BYTE_OF_UPKEEP):
                raise HeldError(
                    "another process removes sessions here at this moment",
                    path=root,
                    hint="wait until it has ended",
                )
            if not _lock_directory(directory):
                hint = (
                    "nothing was removed; from now on readers lock each session by itself: "
                    "try again when that process has ended"
                )
                raise _held(root, hint)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def take(self, session: Path) -> int | None:
        """Keep readers from a session; what :meth:`give_back` takes, or None where one reads it.

        Raises:
            OSError: as the operating system gave it.
        """
        byte = _byte_of(session.stat())
        return byte if _lock(self._fd, fcntl.F_WRLCK, byte) else None

    def give_back(self, taken: int) -> None:
        """Let readers at it again."""
        _lock(self._fd, fcntl.F_UNLCK, taken)

    def is_read(self, session: Path) -> bool:
        """Whether somebody reads a session now.

        Raises:
            OSError: as the operating system gave it.
        """
        taken = self.take(session)
        if taken is not None:
            self.give_back(taken)
        return taken is None


class LockProbe:
    """What :class:`Upkeep` tells of readers, without the right to remove; nothing is written or kept locked.

    Args:
        root: the directory of the sessions.

    Raises:
        HeldError: one reads that cannot say which session it is.
        StorageError: the operating system refused.
    """

    def __init__(self, root: Path) -> None:
        self._fd: int | None = None
        with storage_errors(root, "looking at its locks"):
            try:
                self._fd = os.open(root / LOCKS_DIRECTORY / READERS_LOCK, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                _refuse_held(root)  # there is no session by session then

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def is_read(self, session: Path) -> bool:
        """Whether somebody reads a session now.

        Raises:
            OSError: as the operating system gave it.
        """
        if self._fd is None:
            return False
        # Asking is not locking: a descriptor for reading is enough.
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _byte_of(session.stat()), 1, 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
        return bool(kind == fcntl.F_RDLCK)


def _refuse_held(root: Path) -> None:
    """Raise HeldError where readers hold the directory itself."""
    with storage_errors(root, "looking at its locks"), open_fd(root, os.O_RDONLY | os.O_DIRECTORY) as fd:
        if not _lock_directory(fd):
            raise _held(root, "it cannot be told what it reads: try again when it has ended")


def _held(root: Path, hint: str) -> HeldError:
    found = "a process reads here that opened its sessions before their locks had a file"
    return HeldError(found, path=root, hint=hint)
