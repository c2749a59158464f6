"""What the daemon does with signals that ask for its end, or for its settings, when it is ending already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tape2048_recorder.config import RecorderConfig
from tape2048_recorder.daemon import Daemon
from tape2048_recorder.reload import Reload
from tape2048_recorder.shared import DRAIN

LIMIT = "max_steps = 5 was reached (6 rows)"


class World:
    """A daemon whose workers and publisher only note what becomes of them."""

    def __init__(self, *, reloads: bool = False) -> None:
        self.said: list[str] = []
        self.done: list[str] = []
        self.loads = 0
        self._signals: list[str] = []
        supervisor = SimpleNamespace(
            workers=[],
            command=lambda command: self.done.append("drain" if command == DRAIN else "hurry"),
            kill_all=lambda: self.done.append("kill"),
        )
        recording = SimpleNamespace(publisher=SimpleNamespace(give_up=lambda: None))
        reporter = SimpleNamespace(event=lambda level, message: self.said.append(f"{level}: {message}"))
        self.daemon = Daemon(
            config=RecorderConfig(),
            reporter=cast("Any", reporter),
            supervisor=cast("Any", supervisor),
            recording=cast("Any", recording),
            ledger=cast("Any", None),
            memory=cast("Any", None),
            playing=cast("Any", None),
            signals=cast("Any", SimpleNamespace(take=self._take)),
            begun=0.0,
            reload=Reload(self._load, cast("Any", reporter)) if reloads else None,
        )

    def _load(self) -> RecorderConfig:
        self.loads += 1
        return RecorderConfig()

    def _take(self) -> list[str]:
        names, self._signals = self._signals, []
        return names

    def receive(self, *names: str) -> None:
        self._signals = list(names)
        self.daemon._on_signal()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_the_first_signal_leaves_the_drain_of_a_limit_alone_and_the_second_ends_it(name: str) -> None:
    world = World()
    world.daemon.stop(LIMIT)
    world.receive(name)
    assert world.done == ["drain"]
    assert world.said[1:] == [f"info: {name} was received: it is ending already ({LIMIT})"]
    world.receive(name)
    assert world.done == ["drain", "kill"]
    assert world.said[2:] == [f"warning: {name} again: ending the workers, publishing what is confirmed"]
    assert world.daemon.reason == LIMIT


def test_a_second_signal_of_another_name_is_not_again() -> None:
    world = World()
    world.receive("SIGTERM", "SIGINT")
    assert world.done == ["drain", "kill"]
    assert world.said[1:] == ["warning: SIGINT: ending the workers, publishing what is confirmed"]


def test_stop_now_does_not_wait_for_a_first_one() -> None:
    world = World()
    world.daemon.stop(LIMIT)
    world.receive("SIGUSR2")
    assert world.done == ["drain", "kill"]


def test_settings_that_nobody_reads_any_more_are_said_to_be_so() -> None:
    world = World(reloads=True)
    world.receive("SIGTERM")
    world.receive("SIGHUP")
    assert world.said[1:] == ["warning: reload: nothing is changed: the recorder is ending"]
    assert world.done == ["drain"]
    assert world.loads == 0
