"""Ages of sessions by their names, and the sessions to check today."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time
import zlib
from typing import TYPE_CHECKING

from tape2048.session.layout import SESSION_NAME

if TYPE_CHECKING:
    from pathlib import Path

_DAY_S = 86_400


def start_s(text: str) -> float:
    return dt.datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()


def is_due(path: Path, older: int | None, share: int) -> bool:
    """Return whether a session started over ``older`` days ago, and today is the day of its share."""
    now = time.time()
    if (zlib.crc32(os.fsencode(path.name)) + int(now // _DAY_S)) % share:
        return False
    return older is None or _began_s(path) < now - older * _DAY_S


def _began_s(path: Path) -> float:
    match = SESSION_NAME.fullmatch(path.name)
    with contextlib.suppress(ValueError):  # no time, such as a 13th month
        if match is not None:
            return start_s(match["ts"])
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0  # old: its check reports the error
