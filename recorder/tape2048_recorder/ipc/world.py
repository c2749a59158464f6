"""The system as the daemon uses it: clock, files, processes, sockets, a thread.

Everything that the daemon, the recording and the instance take from the operating system is an attribute of
one :class:`World`. Most of its attributes are modules. ``tests/recorder/simulation`` has another world,
with a virtual clock, files that lose power, and workers that a seed decides. Paths take part in it by their
class: those of a recorder all come from its output directory.
"""

from __future__ import annotations

import functools
import os
import selectors
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tape2048.formats.manifest import finish_session
from tape2048.io import durable
from tape2048.io.reading import load_path
from tape2048.maintenance.quarantine import quarantine
from tape2048.maintenance.validation import validate_session
from tape2048.session.locks import make_readers_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import ModuleType

P = ParamSpec("P")
T = TypeVar("T")


def at_once(job: Callable[P, Generator[float, None, T]]) -> Callable[P, T]:
    """Return the function that takes all steps of a job without a wait."""

    @functools.wraps(job)
    def take_all(*args: P.args, **options: P.kwargs) -> T:
        steps = job(*args, **options)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result

    return take_all


class Background:
    """Takes steps in a thread of its own.

    Args:
        name: the thread's.
        steps: yields the seconds to wait before its next step, unless it is woken: 0 for none, infinity for
            none without being woken.
    """

    def __init__(self, name: str, steps: Iterator[float]) -> None:
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(steps,), name=name, daemon=True)
        self._thread.start()

    def _run(self, steps: Iterator[float]) -> None:
        for wait_s in steps:
            if wait_s:
                self._woken.wait(min(wait_s, threading.TIMEOUT_MAX))
                self._woken.clear()

    def wake(self) -> None:
        """End a wait, the present one or the next."""
        self._woken.set()

    def join(self) -> None:
        """Wait for the last step."""
        self._thread.join()


@dataclass(frozen=True, kw_only=True)
class World:
    """What a recorder takes from the system.

    Attributes:
        os: the module, as the next five, or an object with those of its functions that are used.
        files: :mod:`tape2048.io.durable`.
        load_path: reads or maps a file.
        background: takes steps beside the loop.
        finish_session: writes the metadata and the manifest of a session.
        validate: checks a session.
        quarantine: puts a directory away.
        make_readers_lock: makes the file of the readers' locks.
    """

    os: ModuleType = os
    time: ModuleType = time
    shutil: ModuleType = shutil
    socket: ModuleType = socket
    subprocess: ModuleType = subprocess
    selectors: ModuleType = selectors
    files: ModuleType = durable
    load_path: Callable[..., Any] = load_path
    background: Callable[[str, Iterator[float]], Any] = Background
    finish_session: Callable[..., int] = finish_session
    validate: Callable[..., Any] = validate_session
    quarantine: Callable[..., Any] = quarantine
    make_readers_lock: Callable[..., Any] = make_readers_lock

    @property
    def now(self) -> float:
        """The monotonic time, in seconds."""
        return float(self.time.monotonic())


REAL = World()
