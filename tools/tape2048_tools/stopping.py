"""Signals that ask a long command to end well."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["stopped_by_signals"]


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM, SIGINT and SIGHUP set; a second one of them ends the process at once."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(*_: object) -> None:
        stop.set()
        for number, handler in before.items():
            # A handler in Python waits for the compiled call that runs; the default of Ctrl-C is one, too.
            at_once = signal.SIG_DFL if callable(handler) and number != signal.SIGINT else handler
            signal.signal(number, at_once)

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
