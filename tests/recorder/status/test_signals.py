"""Which signals are heard, and how often."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tape2048_recorder.status import signals
from tape2048_recorder.status.signals import ROTATE, SAME_S, STOP_NOW, Signals


@pytest.fixture(params=[False, True], ids=["ends", "reloads"])
def heard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    monkeypatch.setattr(signals, "SAME_S", 3600.0)
    with closing(Signals(reloads=request.param)) as signals_heard:
        yield signals_heard


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Another handler of a signal until the block ends."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture
def reloads(request: pytest.FixtureRequest) -> bool:
    """What ``heard`` was told."""
    return bool(request.node.callspec.params["heard"])


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_a_request_to_end_that_is_sent_twice_is_one(heard: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """As timeout(1) does: to its child, and to the group that the child is in."""
    send(signal.SIGTERM, signal.SIGTERM)
    assert heard.take() == ["SIGTERM"]
    send(signal.SIGINT)
    assert heard.take() == []
    monkeypatch.setattr(signals, "SAME_S", 0.0)
    send(signal.SIGTERM)
    assert heard.take() == ["SIGTERM"]


def test_requests_are_compared_with_the_last_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who repeats it five times a second would never be heard again."""
    now = 1000.0
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now))
    found = []
    with closing(Signals()) as heard:
        for _ in range(8):
            send(signal.SIGTERM)
            found.append(len(heard.take()))
            now += SAME_S / 2
    assert found == [1, 0] * 4


def test_signals_of_others_are_none_of_its_requests() -> None:
    """Python writes to the descriptor whatever it has a handler for."""
    with handled(signal.SIGWINCH, lambda *_: None), closing(Signals()) as heard:
        send(signal.SIGWINCH, ROTATE)
        assert heard.take() == ["SIGUSR1"]


def test_a_hangup_counts_as_an_end_unless_it_reloads(heard: Signals, reloads: bool) -> None:
    send(signal.SIGTERM, signal.SIGHUP, signal.SIGHUP)
    assert heard.take() == (["SIGTERM", "SIGHUP", "SIGHUP"] if reloads else ["SIGTERM"])


def test_close_restores_the_handlers() -> None:
    def mine(*_: object) -> None:
        raise AssertionError

    numbers = (ROTATE, STOP_NOW, signal.SIGTERM, signal.SIGHUP)
    handlers = (signal.SIG_DFL, mine, signal.SIG_DFL, signal.SIG_DFL)
    before = [signal.signal(*one) for one in zip(numbers, handlers, strict=True)]
    reading, writing = os.pipe2(os.O_NONBLOCK)
    wakeup = signal.set_wakeup_fd(writing)
    try:
        heard = Signals()
        fds = heard.fd, heard._write_fd
        heard.close()
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN, *handlers[1:]]
        assert signal.set_wakeup_fd(-1) == writing
        for fd in fds:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_before_it_is_known_what_it_asks_for(ignored: bool) -> None:
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    with handled(signal.SIGHUP, handler):
        with closing(Signals()) as heard:
            send(signal.SIGHUP)
            heard.reload_on_hangup()
            send(signal.SIGTERM, signal.SIGHUP)
            assert heard.take() == ["SIGHUP"] * (not ignored) + ["SIGTERM", "SIGHUP"]
        assert signal.getsignal(signal.SIGHUP) == handler
