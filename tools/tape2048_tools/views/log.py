"""The log of a long job on standard error: lines as text, as JSON, or with priorities for the journal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from tape2048_tools.terminal.output import printable
from tape2048_tools.views.progress import Progress, View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape2048_recorder.status.report import Level

#: syslog's priorities, with which the journal expects lines to begin: sd-daemon(3).
_PRIORITIES: dict[Level, int] = {"error": 3, "warning": 4, "info": 6}


def stderr_is_journal(env: Mapping[str, str]) -> bool:
    """Return whether standard error is the stream that systemd opened to the journal (``JOURNAL_STREAM``)."""
    with contextlib.suppress(OSError, ValueError):
        stat = os.fstat(sys.stderr.fileno())
        return env.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
    return False


def is_logged(level: Level, least: str) -> bool:
    """Return whether a log with the least important level ``least`` has lines of this level."""
    return _PRIORITIES[level] <= _PRIORITIES[least]  # type: ignore[index]


def log_line(level: Level, message: str, *, form: str, journal: bool) -> str:
    """Return one line, without its end.

    Args:
        level: its importance.
        message: its text; control characters are escaped.
        form: ``text`` or ``json``.
        journal: whether the journal reads it, which adds the time and takes the level from the prefix.
    """
    now = datetime.now(UTC)
    text = printable(message)
    prefix = f"<{_PRIORITIES[level]}>" if journal else ""
    if form == "json":
        fields = {"time": now.isoformat(timespec="milliseconds"), "level": level, "message": text}
        return prefix + msgspec.json.encode(fields).decode()
    return prefix + text if journal else f"{now.strftime('%Y-%m-%dT%H:%M:%SZ')} {level} {text}"


class LogView(View):
    """A log with one line for each event, and one for the progress every ``interval_s``.

    Args:
        interval_s: seconds between two lines of progress.
        level: the least important level that is logged.
        form: ``text`` or ``json``.
    """

    def __init__(self, interval_s: float, *, level: str = "info", form: str = "text") -> None:
        super().__init__(interval_s, interval_s)
        self._level = level
        self._form = form
        self._journal = stderr_is_journal(os.environ)

    def change(self, interval_s: float, level: str) -> None:
        """Change the interval and the level."""
        self._interval_s, self._level = interval_s, level
        self._next = min(self._next, time.monotonic() + interval_s)

    def event(self, message: str, level: Level = "info") -> None:
        """Write one line; drop it if standard error does not take it."""
        if is_logged(level, self._level):
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{log_line(level, message, form=self._form, journal=self._journal)}\n")
                sys.stderr.flush()

    def _show(self, progress: Progress) -> None:
        facts = [f"{name} {', '.join(words)}".lstrip() for name, words in progress.facts.items()]
        done = progress.amount if not progress.state else f"{progress.what} {progress.amount}"
        words = [done, *progress.pace, *facts, *filter(None, [progress.warning])]
        self.event(f"{progress.state or progress.what}: {', '.join(words)}")
