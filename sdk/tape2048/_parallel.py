"""Work on several threads, results in the order of the work, and never more than a few of them waiting."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

__all__ = ["default_workers", "ordered_map"]

T = TypeVar("T")
R = TypeVar("R")

#: Results that may wait for the one before them, for each thread.
_WAITING_PER_WORKER = 2


def default_workers() -> int:
    """One thread for each core that this process may use."""
    return len(os.sched_getaffinity(0))


def ordered_map(function: Callable[[T], R], items: Iterable[T], workers: int | None) -> Iterator[R]:
    """``function`` of each item, in order, on several threads; it should spend its time without the GIL.

    Args:
        function: its exceptions are raised here, in the place of the result.
        items: taken one at a time, as threads become free.
        workers: threads; None: one for each core; 1 and less: none, the work is done here.
    """
    workers = default_workers() if workers is None else workers
    if workers <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _WAITING_PER_WORKER * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
