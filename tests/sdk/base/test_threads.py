"""Work that threads do ahead comes out in order, once each, and ends when it is told to."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, strategies as st

from tape2048.base.threads import Prefetcher


def make(number: int) -> int:
    return number


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tape2048-prefetch")]


@given(
    first=st.integers(0, 20),
    count=st.integers(0, 40),
    ahead=st.integers(1, 6),
    threads=st.integers(0, 4),
    group=st.integers(1, 8),  # larger than ahead, too: nothing waits for ever
)
def test_all_numbers_in_order(*, first: int, count: int, ahead: int, threads: int, group: int) -> None:
    prefetcher = Prefetcher(make, first, first + count, threads, ahead=ahead, group=group)
    assert [prefetcher.take() for _ in range(count)] == list(range(first, first + count))
    prefetcher.close()
    assert not ours()


@pytest.mark.parametrize("threads", [1, 3])
def test_no_further_ahead_than_asked(threads: int) -> None:
    made: list[int] = []
    full = threading.Semaphore(0)

    def count(number: int) -> None:
        made.append(number)
        full.release()

    ahead = Prefetcher(count, 0, 100, threads, ahead=3)
    for _ in range(3):
        assert full.acquire(timeout=30)
    assert sorted(made) == [0, 1, 2]
    ahead.take()
    assert full.acquire(timeout=30)
    assert sorted(made) == [0, 1, 2, 3]
    ahead.close()
    assert not ours()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_comes_out_in_its_turn(threads: int) -> None:
    def fail_at_two(number: int) -> int:
        if number == 2:
            raise ZeroDivisionError(f"number {number}")
        return number

    ahead = Prefetcher(fail_at_two, 0, 10, threads, ahead=4)
    assert ahead.take() == 0
    assert ahead.take() == 1
    with pytest.raises(ZeroDivisionError, match="number 2"):
        ahead.take()
    ahead.close()
    assert not ours()


def test_closing_waits_for_what_is_being_made() -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def slow(number: int) -> None:
        begun.set()
        assert go_on.wait(30)
        done.append(number)

    ahead = Prefetcher(slow, 0, 10, 1, ahead=2)
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
    assert done == [0], "no other result is started"
    assert not ours()


@pytest.mark.parametrize("ahead", [0, 2])
def test_closing_ends_threads_that_wait(ahead: int) -> None:
    prefetcher = Prefetcher(make, 0, 10, 3, ahead=ahead)
    prefetcher.close()
    prefetcher.close()
    assert not ours()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_closing_ends_a_caller_that_waits(threads: int) -> None:
    """As when a loader starts an iteration while another thread waits for a batch of the previous one."""
    begun, go_on = threading.Event(), threading.Event()
    said: list[str] = []

    def slow(number: int) -> int:
        if number == 2:
            begun.set()
            assert go_on.wait(30)
        return number

    def take_all() -> None:
        with pytest.raises(RuntimeError, match="this iteration is over") as found:
            list(iter(prefetcher.take, None))
        said.append(str(found.value))

    prefetcher = Prefetcher(slow, 0, 1000, threads, ahead=4)
    taking = threading.Thread(target=take_all, daemon=True)
    taking.start()
    assert begun.wait(30)
    closing = threading.Thread(target=prefetcher.close)
    closing.start()
    while not prefetcher._closed:
        time.sleep(0.001)
    go_on.set()
    taking.join(30)
    assert said
    closing.join(30)
    with pytest.raises(RuntimeError, match="this iteration is over"):
        prefetcher.take()


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
    with pytest.raises(type(error)):
        Prefetcher(make, 0, 10, 3, ahead=4)
    assert not ours()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_continue() -> None:
    """The threads are in the parent alone: the child gets an error instead of waiting for ever."""
    ahead = Prefetcher(make, 0, 10, 1, ahead=2)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            ahead.take()
        except RuntimeError as error:
            os._exit(0 if "start a new iteration in this process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [ahead.take() for _ in range(10)] == list(range(10))
    ahead.close()


def test_a_process_ends_with_threads_at_work() -> None:
    code = (
        "import time\n"
        "from tape2048.base.threads import Prefetcher\n"
        "ahead = Prefetcher(lambda number: time.sleep(0.01), 0, 10**9, 2, ahead=9)\n"
        "ahead.take()\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")
