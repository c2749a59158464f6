"""Work on several threads, results in the order of the work, and never more than a few of them waiting."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tape2048.base.resources import available_cores
from tape2048.base.text import as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

__all__ = ["map_ordered", "worker_count"]

T = TypeVar("T")
R = TypeVar("R")

#: Results that may wait for the one before them, for each thread.
_WAITING_PER_WORKER = 2


def worker_count(workers: int | None) -> int:
    """The number of threads to use: as asked, or one for each core that this process may use.

    Raises:
        ValueError: less than one, or no whole number.
    """
    if workers is None:
        return available_cores()
    workers = as_int("workers", workers)
    if workers < 1:
        raise ValueError(f"workers={workers}; expected at least 1")
    return workers


def map_ordered(function: Callable[[T], R], items: Iterable[T], workers: int | None = None) -> Iterator[R]:
    """``function`` of each item, in order, on several threads; it should spend its time without the GIL.

    Args:
        function: its exceptions are raised here, in the place of the result.
        items: taken one at a time, as threads become free.
        workers: threads; None: one for each core; 1: none, the work is done here.

    Raises:
        ValueError: less than one worker.
    """
    count = worker_count(workers)
    if count == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="tape2048") as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _WAITING_PER_WORKER * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
