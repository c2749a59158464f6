"""Ordered prefetch with threads."""

from __future__ import annotations

import atexit
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

S = TypeVar("S")

_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread in compiled code goes on without the interpreter, and would write into memory that is gone.
    for prefetcher in list(_running):
        prefetcher.close()


class Prefetcher(Generic[S]):
    """Make numbers ``first <= number < end`` ahead, each into one of some slots.

    The next number always has a slot before a later one gets one, so nothing waits for ever.

    Args:
        slots: what is made into; how many there are bounds how far ahead the threads are.
        make: does one number; in a thread, so that it must not mind others beside it.
        first: the first number.
        end: one past the last number.
        threads: how many; with 0, :meth:`take` makes what it hands out.
        group: slots that are freed together, >= 1: on busy cores, who wakes a thread can lose its core to
            it, and a fifth of a short step. They are freed sooner when :meth:`take` has to wait.
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
            threading.Thread(target=self._work, name=f"tape2048-ahead-{i}", daemon=True)
            for i in range(threads)
        ]
        _running.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads, or Ctrl-C: those that run would make into others' slots
            self.close()
            raise

    def take(self) -> S:
        """The slot with the next number, once it is made; or the error that making it raised."""
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
        """Let a slot be made into again."""
        self._kept.append(slot)
        if len(self._kept) >= self._group:
            self._free_kept()

    def _free_kept(self) -> None:
        for slot in self._kept:
            self._free.put(slot)
        self._kept.clear()

    def close(self) -> None:
        """End the threads, and wait for what they are making. Nothing can be taken afterwards."""
        self._closed = True
        for _ in self._threads:  # whoever waits for a slot sees it
            self._free.put(None)
        for thread in self._threads:
            if thread.is_alive():  # one that only begins finds that it is over
                thread.join()
        _running.discard(self)

    def _work(self) -> None:
        while True:
            # One at a time: who gets a slot gets the next number too.
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
            except BaseException as caught:  # noqa: BLE001 - raised where it is taken
                error = caught
            self._done.put((number, slot, error))
