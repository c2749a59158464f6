"""Signals as data: handlers note that one came, and the loop reads them when it gets to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Signals"]

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], Any] | int | None


def _note(_number: int, _frame: FrameType | None) -> None:
    """The interpreter has written the signal's number to the wake-up descriptor already."""


class Signals:
    """SIGTERM, SIGINT and SIGHUP, while this is open. Main thread only."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._before: dict[int, Handler] = {number: signal.signal(number, _note) for number in _STOPPING}

    def take(self) -> list[str]:
        """The names of the signals that came since the last call."""
        try:
            numbers = os.read(self.fd, 512)
        except BlockingIOError:
            return []
        return [signal.Signals(number).name for number in numbers if number in _STOPPING]

    def close(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write_fd)
