"""Threads that work ahead and hand out results in order: a bounded map and a prefetcher over slots."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tape2048.base.resources import available_cores
from tape2048.base.text import as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

#: Results that may wait for their turn, for each thread.
_WAITING_PER_WORKER = 2

_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


def worker_count(workers: int | None) -> int:
    """Return the number of threads to use, None: one for each available core; ValueError below 1."""
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


class Prefetcher(Generic[S]):
    """Ordered prefetch: threads fill slots with numbered work, ``first <= number < end``.

    The next number always gets a slot before a later one does, so there is no deadlock.
    """

    def __init__(
        self,
        slots: Iterable[S],
        make: Callable[[S, int], object],
        first: int,
        end: int,
        threads: int,
        *,
        group: int = 1,
    ) -> None:
        self._make = make
        self._end = end
        self._closed = False
        self._next_made = first
        self._next_taken = first
        self._group = group if threads else 1
        self._kept: list[S] = []
        self._turn = threading.Lock()
        self._free: SimpleQueue[S | None] = SimpleQueue()
        for slot in slots:
            self._free.put(slot)
        self._done: SimpleQueue[tuple[int, S, BaseException | None]] = SimpleQueue()
        self._early: dict[int, tuple[S, BaseException | None]] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"tape2048-prefetch-{i}", daemon=True)
            for i in range(threads)
        ]
        _running.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads, or Ctrl-C: those that run would fill slots of other users
            self.close()
            raise

    def take(self) -> S:
        """Wait for the slot with the next number; raises the error of its ``make``."""
        number = self._next_taken
        self._next_taken += 1
        if not self._threads:
            slot = self._free.get()
            assert slot is not None
            self._make(slot, number)
            return slot
        while number not in self._early:
            if self._done.empty():
                self._free_kept()
            made, slot, error = self._done.get()
            self._early[made] = slot, error
        slot, error = self._early.pop(number)
        if error is not None:
            raise error
        return slot

    def give_back(self, slot: S) -> None:
        """Free a slot for another number."""
        self._kept.append(slot)
        if len(self._kept) >= self._group:
            self._free_kept()

    def _free_kept(self) -> None:
        for slot in self._kept:
            self._free.put(slot)
        self._kept.clear()

    def close(self) -> None:
        """End the threads, and wait for their current work. Nothing can be taken afterwards."""
        self._closed = True
        for _ in self._threads:  # wake those that wait for a slot
            self._free.put(None)
        for thread in self._threads:
            if thread.is_alive():  # one that starts later sees _closed
                thread.join()
        _running.discard(self)

    def _work(self) -> None:
        while True:
            # One thread at a time, so that numbers get slots in order.
            with self._turn:
                if self._next_made >= self._end:
                    return
                slot = self._free.get()
                if slot is None or self._closed:
                    return
                number = self._next_made
                self._next_made += 1
            error = None
            try:
                self._make(slot, number)
            except BaseException as caught:  # noqa: BLE001 - raised by take()
                error = caught
            self._done.put((number, slot, error))
