"""The daemon's access to the operating system: clock, files, processes, sockets, a thread.

The daemon, the recording and the instance use the operating system only through a :class:`World`.
``tests/recorder/simulation`` replaces it by a world with a virtual clock, files that lose unflushed data, and
seeded workers. Its output directory is a path of a special class, and a recorder derives all its other paths
from that path.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tape2048.files import durable
from tape2048.files.reading import load_path
from tape2048.files.removal_locks import make_readers_lock
from tape2048.maintenance.removal import quarantine
from tape2048.maintenance.validation import validate_session
from tape2048.session.metadata_writer import finish_session

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from _typeshed import ReadableBuffer

    AnyPath = str | os.PathLike[str]

T = TypeVar("T")


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def monotonic_ns(self) -> int: ...
    def time(self) -> float: ...


class System(Protocol):
    path: Any

    def close(self, fd: int, /) -> None: ...
    def fstat(self, fd: int, /) -> os.stat_result: ...
    def fsync(self, fd: int, /) -> None: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def open(self, path: AnyPath, flags: int, mode: int, /) -> int: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int: ...
    def statvfs(self, path: AnyPath, /) -> os.statvfs_result: ...
    def sync(self) -> None: ...
    def urandom(self, size: int, /) -> bytes: ...


class Files(Protocol):
    """The functions of :mod:`tape2048.files.durable` and ``opening`` that a recorder uses."""

    def fsync_dir(self, path: AnyPath, /) -> None: ...
    def fsync_path(self, path: AnyPath, /) -> None: ...
    def open_fd(self, path: AnyPath, flags: int, /) -> AbstractContextManager[int]: ...
    def open_owned(self, path: AnyPath, flags: int, /) -> int: ...
    def path_exists(self, path: AnyPath, /) -> bool: ...
    def rename_numbered(self, source: Path, target: Path, /) -> Path: ...
    def replace_file(self, path: AnyPath, data: ReadableBuffer, /) -> None: ...
    def try_lock(self, fd: int, /) -> bool: ...
    def write_all(self, fd: int, data: ReadableBuffer, offset: int | None = None, /) -> None: ...
    def write_file(self, path: AnyPath, data: ReadableBuffer, /) -> None: ...


def at_once(steps: Generator[float, None, T]) -> T:
    """Run all steps of a job without waiting; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Background:
    """A thread that runs steps.

    ``steps`` yields the seconds to wait before the next step: 0 for no wait, infinity to wait for ``wake``.
    ``wake`` ends the current wait, or the next one. ``join`` waits for the thread's end, and ``alive``
    returns whether it runs.
    """

    def __init__(self, name: str, steps: Iterator[float]) -> None:
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(steps,), name=name, daemon=True)
        self._thread.start()
        self.wake = self._woken.set
        self.join, self.alive = self._thread.join, self._thread.is_alive

    def _run(self, steps: Iterator[float]) -> None:
        for wait_s in steps:
            if wait_s:
                self._woken.wait(min(wait_s, threading.TIMEOUT_MAX))
                self._woken.clear()


@dataclass(frozen=True, kw_only=True)
class World:
    os: System = os
    time: Clock = time
    files: Files = durable  # type: ignore[assignment]  # some are imported there
    rmtree: Callable[..., None] = shutil.rmtree
    socketpair: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector
    load_path: Callable[[Path], Any] = load_path
    background: Callable[[str, Iterator[float]], Background] = Background
    finish_session: Callable[..., int] = finish_session
    validate: Callable[[Path], Any] = validate_session
    quarantine: Callable[..., Path] = quarantine
    make_readers_lock: Callable[[Path], object] = make_readers_lock

    @property
    def now(self) -> float:
        return self.time.monotonic()


REAL = World()
