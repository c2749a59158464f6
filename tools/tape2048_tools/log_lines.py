"""Lines of a log: for people, for programs (JSON), or for the journal, which wants their priorities."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from tape2048_tools.output import complain, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape2048_recorder.report import Level

__all__ = ["log", "log_line", "stderr_is_journal", "worth_saying"]

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


def log(message: str) -> None:
    """Write a line for people to standard error, at once; work goes on where that cannot be written."""
    complain(log_line("info", message, form="text", journal=False))
