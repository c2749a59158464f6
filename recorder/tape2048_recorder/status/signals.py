"""Signals as data: handlers note that one came, and the loop reads them when it gets to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["ROTATE", "STOP_NOW", "Signals"]

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

#: What ``tape2048 rotate`` and ``tape2048 stop --now`` send.
ROTATE = signal.SIGUSR1
STOP_NOW = signal.SIGUSR2

#: A request to end that follows another one within this many seconds is that one. timeout(1) signals its
#: child, then the whole group; a session's end is SIGTERM, then SIGHUP. Nobody is that quick who wants more.
SAME_S = 0.25

#: All that the pipe can hold: a storm of one signal must not keep another from being noted.
_PIPE_BYTES = 1 << 16

Handler = Callable[[int, FrameType | None], Any] | int | None


def _note(_number: int, _frame: FrameType | None) -> None:
    """The interpreter has written the signal's number to the wake-up descriptor already."""


class Signals:
    """SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, while this is open. Main thread only.

    Args:
        reloads: SIGHUP has the settings read again. Where it would be an end, whoever had it ignored when
            this process began (``nohup``) wanted none.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        self._ends = {signal.SIGTERM, signal.SIGINT} | ({signal.SIGHUP} if not reloads else set())
        self._ended_at = float("-inf")
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and not reloads else ()
        self._before: dict[int, Handler] = {
            number: signal.signal(number, _note) for number in _HEARD if number not in ignored
        }

    def take(self) -> list[str]:
        """The names of the signals that came since the last call; an end that is asked for twice is one."""
        try:
            numbers = os.read(self.fd, _PIPE_BYTES)
        except BlockingIOError:
            return []
        return [
            signal.Signals(number).name
            for number in numbers
            if number in _HEARD and not (number in self._ends and self._is_same(time.monotonic()))
        ]

    def _is_same(self, now: float) -> bool:
        """Whether a request to end is the last one, heard once more."""
        same = now - self._ended_at < SAME_S
        if not same:
            self._ended_at = now
        return same

    def close(self) -> None:
        """Put the handlers back that were there before.

        A request that comes after the end must not kill a process that ends well: where the default was to
        die, it is ignored from now on.
        """
        for number, handler in self._before.items():
            is_request = number in {ROTATE, STOP_NOW} and handler == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if is_request else handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write_fd)
