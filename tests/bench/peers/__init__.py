"""What a user would take in place of tape2048, measured beside it: ``make peers``.

Each peer runs in its own process, which is ready before the first round. In each round they work one after
the other, and all other processes are stopped. A turn first discards batches that were prefetched earlier.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

#: The environment that `make peers` makes, and what peers build.
CACHE = Path(__file__).resolve().parents[3] / ".peers"

#: Part of a turn's time that is spent before the measurement, to use up prefetched batches.
DISCARD_SHARE = 0.5


class Peer(NamedTuple):
    """One way to do the job.

    Attributes:
        name: what the table calls it.
        packages: distributions whose versions the table shows (or words that it shows as they are).
        prepare: given a directory with the data, returns ``measure(seconds)``, which returns a rate.
    """

    name: str
    packages: tuple[str, ...]
    prepare: Callable[[Path], Callable[[float], float]]


def per_second(work: Callable[[], int]) -> Callable[[float], float]:
    """Return a measure that calls ``work`` for so many seconds; it says how much it did each time.

    The first call, which compiles and warms up, is made here and not counted. Each turn starts with calls
    that are not counted: they use up what background threads have prefetched.
    """
    work()

    def measure(seconds: float) -> float:
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < DISCARD_SHARE * seconds:
            work()
        begin = time.perf_counter()
        while (passed := time.perf_counter() - begin) < seconds:
            done += work()
        return done / passed

    return measure
