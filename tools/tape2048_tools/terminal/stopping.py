"""Signals that ask a command to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

#: A signal this long after the first signal counts as a second signal: `timeout` sends two at once.
SECOND_SIGNAL_S = 0.25


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM, SIGINT and SIGHUP set. A second signal ends the process at once."""
    stop = threading.Event()
    ends_at = 0.0

    def ask(number: int, _: object) -> None:
        nonlocal ends_at
        if not stop.is_set():
            ends_at = time.monotonic() + SECOND_SIGNAL_S
            stop.set()
        elif time.monotonic() >= ends_at:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
