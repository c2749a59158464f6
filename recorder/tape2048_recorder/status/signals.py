"""Signals as data: handlers note the signals, and the daemon's loop reads them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

#: Sent by ``tape2048 rotate`` and ``tape2048 stop --now``.
ROTATE = signal.SIGUSR1
STOP_NOW = signal.SIGUSR2

#: Two requests to end within this time count as one. timeout(1) signals its child and then the whole group,
#: and the end of a login session sends SIGTERM and then SIGHUP. A person's second request comes later.
SAME_S = 0.25

#: Bytes to read at once: the pipe's capacity, so that many signals of one kind do not hide another signal.
_PIPE_BYTES = 1 << 16

Handler = Callable[[int, FrameType | None], Any] | int | None


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has already written the signal's number to the wake-up descriptor."""


class Signals:
    """The handler of SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 while it is open. Main thread only."""

    def __init__(self, *, reloads: bool = False) -> None:
        self._ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        self._ended_at = float("-inf")
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else ()
        self._before: dict[int, Handler] = {
            number: signal.signal(number, _note) for number in _HANDLED if number not in ignored
        }
        if reloads:
            self.reload_on_hangup()

    def reload_on_hangup(self) -> None:
        """Treat SIGHUP as a request to reload, including signals that were already received."""
        self._ends.discard(signal.SIGHUP)
        if signal.SIGHUP not in self._before:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _note)

    def take(self) -> list[str]:
        """Return the names of the signals since the last call; requests to end within 0.25 s count once."""
        try:
            numbers = os.read(self.fd, _PIPE_BYTES)
        except BlockingIOError:
            return []
        names = []
        for number in filter(_HANDLED.__contains__, numbers):
            now = time.monotonic()
            if number in self._ends and now - self._ended_at < SAME_S:
                continue
            if number in self._ends:
                self._ended_at = now
            names.append(signal.Signals(number).name)
        return names

    def close(self) -> None:
        """Restore the handlers, but ignore late signals that would kill a process that ends normally."""
        for number, handler in self._before.items():
            is_request = number in {ROTATE, STOP_NOW} and handler == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if is_request else handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write_fd)
