"""Files in memory that forget what was not flushed, behind the functions of ``os`` that the recorder calls.

A file has what processes read and, apart from it, what the disk holds. After a power failure, each sector of
what was not flushed is as after any number of its writes; and of the changes of names (a rename is one), any
subset has happened, until one of their directories is flushed. A flush that fails drops what it should have
written, says so once to each descriptor, and the next one succeeds. Functions fail where the history says so.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

DEVICE = 42
OUT_DIR = "/out"
ROOMY = 1 << 40  # bytes of an empty disk
SECTOR_BYTES = 512


class Crash(BaseException):
    """The daemon is gone at this very operation."""


class File:
    """An inode."""

    __slots__ = ("base", "data", "entries", "errors", "ino", "mtime", "pending", "told")

    def __init__(self, ino: int, *, is_directory: bool) -> None:
        self.ino = ino
        self.entries: dict[str, File] | None = {} if is_directory else None
        self.data = bytearray()  # as processes read it
        self.base = bytearray()  # as the disk holds it
        self.pending: list[tuple[int, bytes | None]] = []  # writes since then; None: cut or extended to here
        self.mtime = 0.0
        self.errors = 0  # failed writes of the kernel so far
        self.told = True  # whether the last of them was reported to anyone


def applied(data: bytearray, at: int, written: bytes | None) -> None:
    """Write, or cut."""
    if written is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
        return
    data.extend(bytes(max(at - len(data), 0)))
    data[at : at + len(written)] = written


def survivor(file: File, random: Random, share: float) -> bytearray:
    """What a power failure leaves of a file: each sector, and its length, as after some of the writes."""
    states = [bytearray(file.base)]
    for at, written in file.pending:
        states.append(bytearray(states[-1]))
        applied(states[-1], at, written)
    last = len(states) - 1

    def some() -> int:
        return random.choice((0, last, random.randint(0, last))) if random.random() < share else 0

    found = bytearray(len(states[some()]))
    for at in range(0, len(found), SECTOR_BYTES):
        sector = states[some()][at : at + SECTOR_BYTES]
        end = min(at + len(sector), len(found))
        found[at:end] = sector[: end - at]
    return found


class Name:
    """One change of a directory, or of two: names that go, and names that come."""

    __slots__ = ("comes", "directories", "durable", "goes")

    def __init__(self, goes: list[tuple[File, str, File]], comes: list[tuple[File, str, File]]) -> None:
        self.goes = goes
        self.comes = comes
        self.directories = [each[0].ino for each in (*goes, *comes)]
        self.durable = False

    def apply(self, names: dict[int, dict[str, File]]) -> None:
        for directory, name, file in self.goes:
            entries = names.setdefault(directory.ino, {})
            if entries.get(name) is file:
                del entries[name]
        for directory, name, file in self.comes:
            names.setdefault(directory.ino, {})[name] = file


class Disk:
    """A file system of one directory, :data:`OUT_DIR`, across the lives of its recorders.

    Attributes:
        free: bytes that are left; writes beyond are errors.
        lost: called with a file and the range of a write that a failed flush has dropped.
    """

    def __init__(self) -> None:
        self._inodes = 1
        self.root = File(1, is_directory=True)
        self.free = ROOMY
        self.lost: Callable[[File, int, int], None] = lambda file, at, size: None
        self._log: list[Name] = []
        self._durable: dict[int, dict[str, File]] = {}  # names that the disk holds for sure, by directory
        self._now = 0.0
        out_dir = self.make(self.root, OUT_DIR[1:], is_directory=True)
        assert out_dir.entries is not None
        self.flush_names(self.root)

    # Names.

    def make(self, directory: File, name: str, *, is_directory: bool) -> File:
        self._inodes += 1
        file = File(self._inodes, is_directory=is_directory)
        self.change([], [(directory, name, file)])
        return file

    def change(self, goes: list[tuple[File, str, File]], comes: list[tuple[File, str, File]]) -> None:
        for directory, name, _ in goes:
            del directory.entries[name]
        for directory, name, file in comes:
            directory.entries[name] = file
        self._log.append(Name(goes, comes))

    def flush_names(self, directory: File) -> None:
        for change in self._log:
            if directory.ino in change.directories:
                change.durable = True
        count = 0
        for change in self._log:
            if not change.durable:
                break
            change.apply(self._durable)
            count += 1
        del self._log[:count]

    def flush_all(self) -> None:
        for change in self._log:
            change.apply(self._durable)
        self._log.clear()
        for file in self.files():
            self.flush(file)

    def files(self, directory: File | None = None) -> Iterator[File]:
        for each in ((directory or self.root).entries or {}).values():
            if each.entries is None:
                yield each
            else:
                yield from self.files(each)

    # Contents.

    def write(self, file: File, at: int, written: bytes | None) -> None:
        before = len(file.data)
        applied(file.data, at, written)
        self.free -= len(file.data) - before
        file.pending.append((at, written))

    def flush(self, file: File) -> None:
        for at, written in file.pending:
            applied(file.base, at, written)
        file.pending.clear()

    def fail_to_write(self, file: File, random: Random) -> None:
        """The kernel could not write some of what is pending, and forgets that it is."""
        file.errors += 1
        file.told = False
        for at, written in file.pending:
            if written is None or random.random() < 0.4:
                applied(file.base, at, written)
            else:
                self.lost(file, at, len(written))
        file.pending.clear()
        if random.random() < 0.5:  # it was dropped from memory, too
            size = len(file.data)
            file.data = bytearray(file.base)
            applied(file.data, size, None)

    # Crashes.

    def lose_power(self, random: Random) -> None:
        """Keep what was flushed, and of the rest what ``random`` decides."""
        share = random.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        names = self._durable
        for change in self._log:
            if change.durable or random.random() < share:
                change.apply(names)
        self._log = []
        self._durable = {}
        self.free = ROOMY
        self._settle(self.root, names, random, share, set())

    def _settle(
        self, file: File, names: dict[int, dict[str, File]], random: Random, share: float, seen: set[int]
    ) -> None:
        if file.ino in seen:
            return
        seen.add(file.ino)
        if file.entries is not None:
            file.entries = dict(sorted(names.get(file.ino, {}).items()))
            self._durable[file.ino] = dict(file.entries)
            for each in file.entries.values():
                self._settle(each, names, random, share, seen)
            return
        if file.pending:
            file.base = survivor(file, random, share)
        file.pending.clear()
        file.data = bytearray(file.base)
        file.errors, file.told = 0, True


class _Open:
    __slots__ = ("append_at", "file", "path", "seen")

    def __init__(self, file: File, path: str) -> None:
        self.file = file
        self.path = path
        self.append_at = 0
        self.seen = file.errors - (not file.told)


class System:
    """The functions of ``os`` for one process at a time: the daemon, or (``as_worker``) one of its workers.

    Attributes:
        calls: operations on files so far.
        crash_at: the operation at which the daemon dies; None: none.
        fails: called with the name and the path of an operation; returns an error's code, or None.
        dead: whether the daemon is gone; then each operation raises :class:`Crash`, but closing, which does
            nothing.
    """

    environ: ClassVar[dict[str, str]] = {}
    strerror = staticmethod(os.strerror)
    fspath = staticmethod(os.fspath)

    def __init__(self, disk: Disk, random: Random, clock: Callable[[], float], pid: int) -> None:
        self.disk = disk
        self._random = random
        self._clock = clock
        self._pid = pid
        self._open: dict[int, _Open] = {}
        self._fds = 100
        self.calls = 0
        self.crash_at: int | None = None
        self.fails: Callable[[str, str], int | None] = lambda name, path: None
        self.as_worker = False
        self.dead = False
        self.path = SimpleNamespace(exists=self._exists, lexists=self._exists)

    def die(self) -> None:
        self.dead = True
        raise Crash

    def _call(self, name: str, path: str) -> None:
        if self.dead:
            raise Crash
        if name not in {"read", "stat", "list"}:
            self.calls += 1
            if self.calls == self.crash_at:
                self.die()
        code = self.fails(name, path)
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def _find(self, path: str) -> File:
        file = self.disk.root
        for part in filter(None, path.split("/")):
            if file.entries is None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            found = file.entries.get(part)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = found
        return file

    def _parent(self, path: str) -> tuple[File, str]:
        above, name = posixpath.split(path)
        directory = self._find(above)
        if directory.entries is None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return directory, name

    def _exists(self, path: object) -> bool:
        try:
            self._find(str(path))
        except OSError:
            return False
        return True

    def new_fd(self) -> int:
        self._fds += 1
        return self._fds

    # Files.

    def open(self, path: object, flags: int, mode: int = 0o777) -> int:
        name = str(path)
        self._call("open", name)
        directory, last = self._parent(name)
        file = directory.entries.get(last)
        if file is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            if self.disk.free <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            file = self.disk.make(directory, last, is_directory=False)
            file.mtime = self._clock()
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if flags & os.O_TRUNC:
            self.disk.write(file, 0, None)
        fd = self.new_fd()
        self._open[fd] = _Open(file, name)
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def file_of(self, fd: int) -> File:
        return self._open[fd].file

    @property
    def opened(self) -> list[str]:
        return [each.path for each in self._open.values()]

    def write(self, fd: int, data: Any) -> int:
        opened = self._open[fd]
        count = self.pwrite(fd, data, opened.append_at)
        opened.append_at += count
        return count

    def pwrite(self, fd: int, data: Any, at: int) -> int:
        opened = self._open[fd]
        self._call("write", opened.path)
        written = bytes(data)
        more = max(at + len(written) - len(opened.file.data), 0)
        if more > self.disk.free:
            written = written[: max(len(written) - more, 0)]
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), opened.path)
        elif len(written) > 40 and self._random.random() < 0.02:  # a short one
            written = written[: self._random.randint(1, len(written))]
        self.disk.write(opened.file, at, written)
        opened.file.mtime = self._clock()
        return len(written)

    def pread(self, fd: int, size: int, at: int) -> bytes:
        opened = self._open[fd]
        self._call("read", opened.path)
        return bytes(opened.file.data[at : at + size])

    def preadv(self, fd: int, buffers: list[memoryview], at: int) -> int:
        data = self.pread(fd, len(buffers[0]), at)
        buffers[0][: len(data)] = data
        return len(data)

    def ftruncate(self, fd: int, size: int) -> None:
        opened = self._open[fd]
        self._call("truncate", opened.path)
        if size != len(opened.file.data):
            self.disk.write(opened.file, size, None)

    def fsync(self, fd: int) -> None:
        opened = self._open[fd]
        file = opened.file
        try:
            self._call("fsync", opened.path)
        except OSError:
            self.disk.fail_to_write(file, self._random)
            file.told, opened.seen = True, file.errors
            raise
        if opened.seen != file.errors:
            file.told, opened.seen = True, file.errors
            raise OSError(errno.EIO, os.strerror(errno.EIO), opened.path)
        if file.entries is None:
            self.disk.flush(file)
        else:
            self.disk.flush_names(file)

    # Names.

    def mkdir(self, path: object, mode: int = 0o777) -> None:
        name = str(path)
        self._call("mkdir", name)
        directory, last = self._parent(name)
        if last in directory.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if self.disk.free <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        self.disk.make(directory, last, is_directory=True)

    def unlink(self, path: object) -> None:
        name = str(path)
        self._call("unlink", name)
        directory, last = self._parent(name)
        file = self._find(name)
        if file.entries is not None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        self.disk.free += len(file.data)
        self.disk.change([(directory, last, file)], [])

    def rmdir(self, path: object) -> None:
        name = str(path)
        self._call("rmdir", name)
        directory, last = self._parent(name)
        file = self._find(name)
        if file.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        self.disk.change([(directory, last, file)], [])

    def rename(self, source: object, target: object) -> None:
        name = str(source)
        self._call("rename", name)
        directory, last = self._parent(name)
        file = self._find(name)
        to, new = self._parent(str(target))
        goes = [(directory, last, file)]
        replaced = to.entries.get(new)
        if replaced is not None:
            if replaced.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
            goes.append((to, new, replaced))
            self.disk.free += len(replaced.data)
        self.disk.change(goes, [(to, new, file)])

    replace = rename

    def renameat2(self, source: object, target: object, flags: int) -> int:
        """As ``durable._renameat2``, for a rename that does not replace."""
        assert flags == 1
        if self._exists(target):
            return errno.EEXIST
        self.rename(source, target)
        return 0

    def listdir(self, path: object) -> list[str]:
        self._call("list", str(path))
        entries = self._find(str(path)).entries
        if entries is None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        names = list(entries)
        self._random.shuffle(names)
        return names

    def stat(self, path: object) -> SimpleNamespace:
        self._call("stat", str(path))
        return self._status(self._find(str(path)))

    lstat = stat

    def fstat(self, fd: int) -> SimpleNamespace:
        self._call("stat", self._open[fd].path)
        return self._status(self._open[fd].file)

    @staticmethod
    def _status(file: File) -> SimpleNamespace:
        kind = stat.S_IFREG | 0o644 if file.entries is None else stat.S_IFDIR | 0o755
        return SimpleNamespace(
            st_mode=kind, st_size=len(file.data), st_mtime=file.mtime, st_ino=file.ino, st_dev=DEVICE,
            st_nlink=1 if file.entries is None else 2, st_uid=0,
        )  # fmt: skip

    def statvfs(self, path: object) -> SimpleNamespace:
        self._call("stat", str(path))
        return SimpleNamespace(f_bavail=max(self.disk.free, 0), f_frsize=1)

    # The rest.

    def sync(self) -> None:
        self._call("fsync", "")
        self.disk.flush_all()

    def getpid(self) -> int:
        return self._pid

    def geteuid(self) -> int:
        return 0

    def uname(self) -> SimpleNamespace:
        return SimpleNamespace(nodename="simulated")

    def urandom(self, count: int) -> bytes:
        return self._random.randbytes(count)


for _name in ("O_CLOEXEC", "O_CREAT", "O_EXCL", "O_RDONLY", "O_RDWR", "O_TRUNC", "O_WRONLY"):
    setattr(System, _name, getattr(os, _name))
for _name in ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "PathLike", "SEEK_SET"):
    setattr(System, _name, getattr(os, _name))


class SimulatedPath(PurePosixPath):
    """A path whose methods go to the :class:`System` in ``system``, which a subclass has."""

    system: System

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            self.system.mkdir(self)
        except FileNotFoundError:
            if not parents:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir()
        except FileExistsError:
            if not exist_ok:
                raise

    def iterdir(self) -> Iterator[SimulatedPath]:
        return iter([self / name for name in self.system.listdir(self)])

    def glob(self, pattern: str) -> Iterator[SimulatedPath]:
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def read_bytes(self) -> bytes:
        fd = self.system.open(self, os.O_RDONLY)
        try:
            return self.system.pread(fd, 1 << 40, 0)
        finally:
            self.system.close(fd)

    def stat(self) -> SimpleNamespace:
        return self.system.stat(self)

    lstat = stat

    def exists(self) -> bool:
        return self.system.path.exists(self)

    def touch(self) -> None:
        self.system.close(self.system.open(self, os.O_WRONLY | os.O_CREAT))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.system.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        self.system.rmdir(self)

    def rename(self, target: SimulatedPath) -> SimulatedPath:
        self.system.rename(self, target)
        return target

    replace = rename


def remove_tree(path: SimulatedPath, *, ignore_errors: bool = False) -> None:
    """As ``shutil.rmtree``."""
    try:
        for each in path.iterdir():
            if stat.S_ISDIR(each.lstat().st_mode):
                remove_tree(each, ignore_errors=ignore_errors)
            else:
                each.unlink()
        path.system.rmdir(path)
    except OSError:
        if not ignore_errors:
            raise
