"""Disks that are small, full, or that refuse to be written."""

import errno
import fcntl
import functools
import itertools
import os
import resource
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tape2048.files.opening import open_fd

# FS_IOC_SHUTDOWN, which ext4, xfs and f2fs know.
_GOING_DOWN = 0x8004587D
_WITHOUT_FLUSHING_THE_LOG = struct.pack("I", 2)


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file can grow past this size: what lies beyond is not written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def unsaid(path: Path, *functions: str, code: int = errno.ELOOP, from_call: int = 1) -> Iterator[None]:
    """Functions of ``os`` fail for one path, as where a device would not say.

    ``Path.exists`` has always taken this code for a no, and since Python 3.14 every one.
    """
    calls = itertools.count(1)

    def refusing(real: Callable[..., object], where: object, *args: object, **kwargs: object) -> object:
        if str(where) == str(path) and next(calls) >= from_call:
            raise OSError(code, os.strerror(code), str(path))
        return real(where, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name in functions or ("stat",):
            patch.setattr(os, name, functools.partial(refusing, getattr(os, name)))
        yield


def sync(path: str | Path) -> None:
    """Flush a whole file system: what was written until now is no part of what a power failure takes."""
    subprocess.run(["sync", "--file-system", str(path)], check=True)


def shut_down(mount_point: str | Path) -> None:
    """Shut a file system down as a power failure does: its log is not flushed."""
    with open_fd(mount_point, os.O_RDONLY | os.O_DIRECTORY) as fd:
        fcntl.ioctl(fd, _GOING_DOWN, _WITHOUT_FLUSHING_THE_LOG)


#: How each kind of file system is made in a file, how large it has to be, and how it is mounted.
LOOPED = {
    "ext4": (["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0"], 32, "loop,errors=remount-ro"),
    "xfs": (["mkfs.xfs", "-q", "-f"], 320, "loop,nouuid"),  # it makes none below 300 MB
}


class Looped:
    """A small file system in a file, that can lose its power.

    Args:
        kind: a key of :data:`LOOPED`.
        directory: an empty one, for the file and the mount.
    """

    def __init__(self, kind: str, directory: Path) -> None:
        make, megabytes, self._options = LOOPED[kind]
        self._kind = kind
        self._image = directory / f"{kind}.img"
        self.mount_point = directory / kind
        if os.geteuid() != 0:
            pytest.skip("only root can mount a file system")
        if shutil.which(make[0]) is None:
            pytest.skip(f"{make[0]} is not installed")
        self.mount_point.mkdir()
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run([*make, str(self._image)], check=True, capture_output=True)
        made = self._mount()
        if made.returncode:
            pytest.skip(f"no file can be mounted here: {made.stderr.strip()}")

    def _mount(self) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-t", self._kind, "-o", self._options, str(self._image), str(self.mount_point)]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def power_up(self) -> None:
        """Mount it again after it was shut down: what was not flushed is gone, and its log is replayed.

        A copy of the file is mounted: whoever copied our mounts into a namespace of his own (a container that
        somebody starts meanwhile) keeps the old one alive, and shut down.
        """
        copy = self._image.with_suffix(".copy")
        subprocess.run(["cp", "--sparse=always", str(self._image), str(copy)], check=True)
        self.unmount()
        copy.replace(self._image)
        done = self._mount()
        assert done.returncode == 0, done.stderr

    def unmount(self) -> None:
        """Take it away."""
        subprocess.run(["umount", "--lazy", str(self.mount_point)], check=True)


@contextmanager
def tmpfs(path: Path, megabytes: int) -> Iterator[None]:
    """A small file system of its own at ``path``."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tape2048-test", str(path)]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def overlay(lower: Path, directory: Path) -> Iterator[Path]:
    """A directory with the content of ``lower`` as a layer that cannot be changed, as of an image."""
    with tmpfs(directory, 64):
        merged, upper, work = (directory / name for name in ("merged", "upper", "work"))
        for path in (merged, upper, work):
            path.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        command = ["mount", "-t", "overlay", "-o", options, "tape2048-test", str(merged)]
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no overlay can be mounted here: {made.stderr.strip()}")
        try:
            yield merged
        finally:
            subprocess.run(["umount", "--lazy", str(merged)], check=True)
