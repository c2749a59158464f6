"""Threads that work ahead and hand out results in order: a bounded map and a prefetcher."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from tape2048.base.resources import available_cores
from tape2048.base.text import as_int

T = TypeVar("T")
R = TypeVar("R")

_WAITING_PER_WORKER = 2  # results that may wait for their turn, for each thread

_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()

#: The message of the error for an iteration that another call has ended.
OVER = "this iteration is over: the loader was moved, or iterated over again"


def worker_count(workers: int | None) -> int:
    """Return the number of threads to use. None: the number of available cores. ValueError below 1."""
    if workers is None:
        return available_cores()
    workers = as_int("workers", workers)
    if workers < 1:
        raise ValueError(f"workers={workers}; expected at least 1")
    return workers


def map_ordered(function: Callable[[T], R], items: Iterable[T], workers: int | None = None) -> Iterator[R]:
    """Yield ``function`` of each item, in order, computed by several threads."""
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


@atexit.register
def _close_all() -> None:
    # Compiled code in a thread outlives the interpreter, and would write into freed memory.
    for prefetcher in list(_running):
        prefetcher.close()


class Prefetcher(Generic[R]):
    """Ordered prefetch: threads make the results of ``first <= number < end``, at most ``ahead`` early.

    Threads start on numbers in order, so there is no deadlock. When ``ahead`` results are ready, they wait
    until ``group`` of them were taken. Without threads, a result is made when it is taken.

    ``waits`` sums the seconds in which :meth:`take` waited for results, and in which threads waited for it.
    """

    def __init__(
        self, make: Callable[[int], R], first: int, end: int, threads: int,
        *, ahead: int, group: int = 1, waits: list[float] | None = None,
    ) -> None:  # fmt: skip
        self._make = make
        self._end = end
        self._closed = False
        self._waits = [0.0, 0.0] if waits is None else waits
        self._process = os.getpid()
        self._next_made = first
        self._next_taken = first
        self._group = group
        self._taken = ahead  # taken results for which no thread may make another one yet
        self._turn = threading.Lock()
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for each result that a thread may make
        self._make_room()
        self._done: SimpleQueue[tuple[int, tuple[Any, BaseException | None]]] = SimpleQueue()
        self._early: dict[int, tuple[Any, BaseException | None]] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"tape2048-prefetch-{i}", daemon=True)
            for i in range(threads)
        ]
        _running.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads, or Ctrl-C
            self.close()
            raise

    def take(self) -> R:
        """Wait for the next result; raises the error of its ``make``, or RuntimeError if it was closed."""
        begin = time.perf_counter()
        try:
            result = self._take()
        finally:
            self._waits[0] += time.perf_counter() - begin
        if self._closed:
            raise RuntimeError(OVER)
        return result

    def _take(self) -> R:
        number = self._next_taken
        self._next_taken += 1
        if not self._threads:
            return self._make(number)
        if self._process != os.getpid():
            raise RuntimeError(
                f"this iteration belongs to process {self._process}, whose threads did not survive the fork "
                f"to {os.getpid()}; start a new iteration in this process"
            )
        while number not in self._early:
            if self._closed:
                raise RuntimeError(OVER)
            if self._done.empty():
                self._make_room()
            made, outcome = self._done.get()
            self._early[made] = outcome
        result: R
        result, error = self._early.pop(number)
        if error is not None:
            raise error
        self._taken += 1
        if self._taken >= self._group:
            self._make_room()
        return result

    def _make_room(self) -> None:
        for _ in range(self._taken):
            self._room.put(None)
        self._taken = 0

    def close(self) -> None:
        """End the threads, and wait for their current work. A :meth:`take` that waits raises its error."""
        self._closed = True
        self._done.put((-1, (None, None)))  # wake the caller that waits for a result
        for _ in self._threads:  # wake the threads that wait for room
            self._room.put(None)
        for thread in self._threads:
            if thread.is_alive():  # a thread that starts later sees _closed
                thread.join()
        _running.discard(self)

    def _work(self) -> None:
        while True:
            # One thread at a time, so that numbers are started in order.
            with self._turn:
                if self._next_made >= self._end:
                    return
                begin = time.perf_counter()
                self._room.get()
                self._waits[1] += time.perf_counter() - begin
                if self._closed:
                    return
                number = self._next_made
                self._next_made += 1
            self._done.put((number, self._outcome(number)))

    def _outcome(self, number: int) -> tuple[Any, BaseException | None]:
        try:
            return self._make(number), None
        except BaseException as error:  # noqa: BLE001 - raised by take()
            return None, error
