"""Signals as data: handlers note a signal, and the daemon's loop reads it later."""

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

#: A request to end within this many seconds after another one counts as the same. timeout(1) signals its
#: child, then the whole group. A session's end is SIGTERM, then SIGHUP. A person's second request is slower.
SAME_S = 0.25

#: The whole capacity of the pipe: a storm of one signal must not hide another one.
_PIPE_BYTES = 1 << 16

Handler = Callable[[int, FrameType | None], Any] | int | None


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the signal's number to the wake-up descriptor already."""


class Signals:
    """SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, while this is open. Main thread only."""

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
        """Take SIGHUP as a request to reload from now on, including signals that came already."""
        self._ends.discard(signal.SIGHUP)
        if signal.SIGHUP not in self._before:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _note)

    def take(self) -> list[str]:
        """Return the names of the signals since the last call. A repeated request to end counts once."""
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
        """Restore the previous handlers.

        A request after the end must not kill a process that ends well: a signal whose default action kills is
        ignored from now on.
        """
        for number, handler in self._before.items():
            is_request = number in {ROTATE, STOP_NOW} and handler == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if is_request else handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write_fd)
