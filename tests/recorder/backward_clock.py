"""A hook of ``recorder_process.py``: each second takes the wall clock an hour back."""

import time

HOURS_A_SECOND = 1

_real_time = time.time
_began = time.monotonic()


def backward_time() -> float:
    return _real_time() - HOURS_A_SECOND * 3600 * (time.monotonic() - _began)


time.time = backward_time
time.time_ns = lambda: int(backward_time() * 1e9)
