"""The log of a long job on standard error: lines for people, for programs (JSON), or for the journal.

The journal wants their priorities.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import msgspec

from tape2048_tools.terminal.output import drop_unwritten, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tape2048_recorder.status.report import Level
    from tape2048_tools.views.progress import Progress

#: syslog's numbers, which the journal takes from the beginning of a line: sd-daemon(3).
_PRIORITIES: dict[Level, int] = {"error": 3, "warning": 4, "info": 6}


def stderr_is_journal(env: Mapping[str, str]) -> bool:
    """Whether standard error is the stream that systemd opened to the journal (``JOURNAL_STREAM``)."""
    with contextlib.suppress(OSError, ValueError):
        stat = os.fstat(sys.stderr.fileno())
        return env.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
    return False


def worth_saying(level: Level, least: str) -> bool:
    """Whether a line of this level is written where ``least`` is the least important one."""
    return _PRIORITIES[level] <= _PRIORITIES[least]  # type: ignore[index]


def log_line(level: Level, message: str, *, form: str, journal: bool) -> str:
    """One line, without its end.

    Args:
        level: how important it is.
        message: what happened; control characters are escaped.
        form: ``text`` or ``json``.
        journal: whether the journal reads it: it knows the time, and takes the level from the prefix.
    """
    now = datetime.now(UTC)
    text = printable(message)
    prefix = f"<{_PRIORITIES[level]}>" if journal else ""
    if form == "json":
        fields = {"time": now.isoformat(timespec="milliseconds"), "level": level, "message": text}
        return prefix + msgspec.json.encode(fields).decode()
    return prefix + text if journal else f"{now.strftime('%Y-%m-%dT%H:%M:%SZ')} {level} {text}"


class LogView:
    """One line an event, and one every ``interval_s`` on how the job stands.

    Args:
        interval_s: seconds from one line to the next.
        level: the least important level that is written.
        form: ``text`` or ``json``.
    """

    def __init__(self, interval_s: float, *, level: str = "info", form: str = "text") -> None:
        self._interval_s = interval_s
        self._level = level
        self._form = form
        self._journal = stderr_is_journal(os.environ)
        self._next = time.monotonic() + interval_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        drop_unwritten(sys.stderr)

    def change(self, interval_s: float, level: str) -> None:
        """Go on with another interval and level."""
        self._interval_s, self._level = interval_s, level
        self._next = min(self._next, time.monotonic() + interval_s)

    def event(self, message: str, level: Level = "info") -> None:
        """Write one line; work goes on where that cannot be written, and the next one is tried again."""
        if worth_saying(level, self._level):
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{log_line(level, message, form=self._form, journal=self._journal)}\n")
                sys.stderr.flush()

    def show(self, make: Callable[[], Progress]) -> None:
        """Write a line, if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval_s
        progress = make()
        facts = [f"{name} {', '.join(words)}".lstrip() for name, words in progress.facts.items()]
        done = progress.amount if not progress.state else f"{progress.what} {progress.amount}"
        words = [done, *progress.pace, *facts, *filter(None, [progress.warning])]
        self.event(f"{progress.state or progress.what}: {', '.join(words)}")
