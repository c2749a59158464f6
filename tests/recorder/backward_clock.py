"""A hook of ``recorder_process.py``: each second takes the wall clock an hour back."""

from __future__ import annotations

import datetime as dt
import time

from tape2048_recorder import recorder
from tape2048_recorder.recording import partial

HOURS_A_SECOND = 1

_real_time = time.time
_began = time.monotonic()


def backward_time() -> float:
    return _real_time() - HOURS_A_SECOND * 3600 * (time.monotonic() - _began)


class BackwardDatetime(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
        return dt.datetime.fromtimestamp(backward_time(), tz)


time.time = backward_time
time.time_ns = lambda: int(backward_time() * 1e9)
partial.datetime = BackwardDatetime  # type: ignore[misc]
recorder.datetime = BackwardDatetime  # type: ignore[misc]
