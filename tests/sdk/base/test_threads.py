"""Work that threads do ahead comes out in order, once each, and ends when it is told to."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, strategies as st

from tape2048.base.threads import Prefetcher


class Slot:
    """Remembers what was made into it."""

    def __init__(self) -> None:
        self.number = -1


def make(slot: Slot, number: int) -> None:
    slot.number = number


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tape2048-prefetch")]


@given(
    first=st.integers(0, 20),
    count=st.integers(0, 40),
    slots=st.integers(2, 6),
    threads=st.integers(0, 4),
    keep=st.integers(1, 2),
    group=st.integers(1, 8),  # of more slots than there are, too: nothing waits for ever
)
def test_all_numbers_in_order(
    *, first: int, count: int, slots: int, threads: int, keep: int, group: int
) -> None:
    ahead = Prefetcher([Slot() for _ in range(slots)], make, first, first + count, threads, group=group)
    held: list[Slot] = []
    for expected in range(first, first + count):
        if len(held) == min(keep, slots - 1):
            ahead.give_back(held.pop(0))
        held.append(ahead.take())
        assert [slot.number for slot in held] == list(range(expected - len(held) + 1, expected + 1))
    ahead.close()
    assert not ours()


@pytest.mark.parametrize("threads", [1, 3])
def test_no_further_ahead_than_there_are_slots(threads: int) -> None:
    made: list[int] = []
    full = threading.Semaphore(0)

    def count(_slot: Slot, number: int) -> None:
        made.append(number)
        full.release()

    ahead = Prefetcher([Slot() for _ in range(3)], count, 0, 100, threads)
    for _ in range(3):
        assert full.acquire(timeout=30)
    assert sorted(made) == [0, 1, 2]
    ahead.give_back(ahead.take())
    assert full.acquire(timeout=30)
    assert sorted(made) == [0, 1, 2, 3]
    ahead.close()
    assert not ours()


def test_slots_are_freed_in_groups() -> None:
    started: queue.SimpleQueue[int] = queue.SimpleQueue()
    ahead = Prefetcher([Slot() for _ in range(4)], lambda _, number: started.put(number), 0, 100, 1, group=2)
    slots = [ahead.take() for _ in range(4)]
    assert [started.get(timeout=60) for _ in range(4)] == [0, 1, 2, 3]
    ahead.give_back(slots[0])
    with pytest.raises(queue.Empty):
        started.get(timeout=0.05)
    ahead.give_back(slots[1])
    assert [started.get(timeout=60) for _ in range(2)] == [4, 5]
    ahead.close()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_comes_out_in_its_turn(threads: int) -> None:
    def fail_at_two(slot: Slot, number: int) -> None:
        if number == 2:
            raise ZeroDivisionError(f"number {number}")
        make(slot, number)

    ahead = Prefetcher([Slot() for _ in range(4)], fail_at_two, 0, 10, threads)
    assert ahead.take().number == 0
    assert ahead.take().number == 1
    with pytest.raises(ZeroDivisionError, match="number 2"):
        ahead.take()
    ahead.close()
    assert not ours()


def test_closing_waits_for_what_is_being_made() -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def slow(_slot: Slot, number: int) -> None:
        begun.set()
        assert go_on.wait(30)
        done.append(number)

    ahead = Prefetcher([Slot(), Slot()], slow, 0, 10, 1)
    assert begun.wait(30)
    closing = threading.Thread(target=ahead.close)
    closing.start()
    while not ahead._closed:
        time.sleep(0.001)
    assert closing.is_alive()
    assert done == []
    go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    assert done == [0], "the slot that is still free is not made into"
    assert not ours()


@pytest.mark.parametrize("slots", [0, 2])
def test_closing_ends_threads_that_wait(slots: int) -> None:
    ahead = Prefetcher([Slot() for _ in range(slots)], make, 0, 10, 3)
    ahead.close()
    ahead.close()
    assert not ours()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
def test_a_thread_that_cannot_begin_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    begin = threading.Thread.start

    def begin_all_but_one(thread: threading.Thread) -> None:
        if thread.name == "tape2048-prefetch-1":
            raise error
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", begin_all_but_one)
    slots = [Slot() for _ in range(4)]
    with pytest.raises(type(error)):
        Prefetcher(slots, make, 0, 10, 3)
    assert not ours(), "it would make into slots that another one has by now"
    for slot in slots:
        slot.number = -1
    ahead = Prefetcher(slots, make, 5, 10, 0)
    assert ahead.take().number == 5
    ahead.close()


def test_a_process_ends_with_threads_at_work() -> None:
    code = (
        "import time\n"
        "from tape2048.base.threads import Prefetcher\n"
        "ahead = Prefetcher([[] for _ in range(9)], lambda slot, number: time.sleep(0.01), 0, 10**9, 2)\n"
        "ahead.take()\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")
