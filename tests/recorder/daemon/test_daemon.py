"""What the daemon decides on its way to the end, without a process: signals, and the last blocks."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tape2048 import errors
from tape2048_recorder.daemon import daemon as module
from tape2048_recorder.daemon.daemon import (
    HURRY_GRACE_S,
    LIMITS_INTERVAL_S,
    RAM_ROTATES_S,
    ROOM_GRACE_S,
    Daemon,
    Reload,
    error_of,
)
from tape2048_recorder.daemon.weights import Playing
from tape2048_recorder.ipc.protocol import DRAIN, Crashed, NoRoom, Ready
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.status.status_report import Rotation

LIMIT = "max_steps = 5 was reached (6 rows)"


class World:
    """A daemon whose workers and publisher only note what becomes of them."""

    def __init__(self, *, reloads: bool = False, **settings: Any) -> None:
        self.said: list[str] = []
        self.done: list[str] = []
        self.loads = 0
        self.workers: list[SimpleNamespace] = []
        self._signals: list[str] = []
        self.supervisor = SimpleNamespace(
            workers=self.workers,
            command=lambda command: self.done.append("drain" if command == DRAIN else "hurry"),
            kill_all=lambda: self.done.append("kill"),
            pids=[7],
            rows_unconfirmed=0,
        )
        recording = SimpleNamespace(
            publisher=SimpleNamespace(give_up=lambda: None),
            begin=lambda generation: None,
            size_bytes=lambda now, rows: 0,
        )
        reporter = SimpleNamespace(event=lambda level, message: self.said.append(f"{level}: {message}"))
        self.daemon = Daemon(
            config=RecorderConfig(**settings),
            reporter=cast("Any", reporter),
            supervisor=cast("Any", self.supervisor),
            recording=cast("Any", recording),
            ledger=cast("Any", SimpleNamespace(exhausted=False)),
            progress=cast("Any", None),
            playing=cast("Any", SimpleNamespace(on_ready=lambda index, message: None)),
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
def test_the_first_signal_drains_and_the_second_ends(name: str) -> None:
    world = World()
    world.daemon.stop(LIMIT)
    world.receive(name)
    assert world.done == ["drain"]
    assert world.said[1:] == [f"info: {name} was received: the recorder is already ending ({LIMIT})"]
    world.receive(name)
    assert world.done == ["drain", "kill"]
    assert world.said[2:] == [f"warning: {name} again: killing the workers, publishing committed blocks"]
    assert world.daemon.reason == LIMIT


def test_a_reload_while_draining_is_refused() -> None:
    world = World(reloads=True)
    world.receive("SIGTERM")
    world.receive("SIGHUP")
    assert world.said[1:] == ["warning: reload: nothing is changed: the recorder is ending"]
    assert world.done == ["drain"]
    assert world.loads == 0


def waiting_worker() -> SimpleNamespace:
    worker = SimpleNamespace(index=0, alive=True, ready=True, waiting_rows=100, answers=[])
    worker.answer = worker.answers.append
    return worker


def test_a_block_without_room_gets_a_grace_period() -> None:
    """Room comes with each session that is published, and a drain may be over at once."""
    world = World()
    world.workers.append(worker := waiting_worker())
    world.daemon.stop(LIMIT)
    over = world.daemon._deadline
    world.daemon._check_drain(over)
    assert world.done == ["drain", "hurry"]
    assert not worker.answers
    world.daemon._check_drain(over + ROOM_GRACE_S)
    assert worker.answers == [NoRoom()]
    assert "kill" not in world.done
    world.daemon._check_drain(over + HURRY_GRACE_S)
    assert world.done[-1] == "kill"


def test_a_worker_ready_too_late_counts_as_not_ready() -> None:
    """It holds nothing; that it was ended is no news."""
    world = World()
    worker = SimpleNamespace(index=0, alive=True, ready=False)
    world.daemon._on_ready(cast("Any", worker), Ready("0" * 64))
    assert worker.ready
    world.daemon.stop(LIMIT)
    world.daemon._on_ready(cast("Any", worker), Ready("0" * 64))
    assert not worker.ready


def test_max_steps_counts_games_without_a_block() -> None:
    world = World(max_steps=5)
    world.daemon.tally.rows = 1
    world.supervisor.rows_unconfirmed = 3
    world.daemon._check_limits(0.0)
    assert not world.done
    world.supervisor.rows_unconfirmed = 5
    world.daemon._check_limits(LIMITS_INTERVAL_S)
    assert world.daemon.reason == LIMIT


def met(**given: Any) -> str | None:
    daemon = World(**{name: value for name, value in given.items() if name.startswith("max_")}).daemon
    return daemon.limit_met(
        **{name: given.get(name, 0) for name in ("rows", "elapsed_s", "disk_bytes", "ram_bytes")}
    )


@pytest.mark.parametrize(
    ("name", "limit", "measured", "at"),
    [
        ("max_steps", 1, "rows", 1),
        ("max_wall_s", 2.5, "elapsed_s", 2.5),
        ("max_disk_mb", 3, "disk_bytes", 3_000_000),
        ("max_ram_mb", 3, "ram_bytes", 3_000_000),
    ],
)
def test_a_limit_is_met_at_its_number(name: str, limit: float, measured: str, at: float) -> None:
    others = {"rows": 10**12, "elapsed_s": 1e12, "disk_bytes": 10**15, "ram_bytes": 10**15}
    assert met(**others) is None, "without a limit there is none"
    below = at - (0.1 if isinstance(at, float) else 1)
    assert met(**{**others, name: limit, measured: below}) is None
    assert f"{name} = {limit} was reached" in str(met(**{name: limit, measured: at}))


def test_near_its_memory_it_publishes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world, used, now = World(max_ram_mb=100), 0, 0.0
    rotations = SimpleNamespace(state=Rotation())
    asked: list[float] = []

    def ask(at: float) -> None:
        asked.append(at)
        rotations.state = Rotation(asked=len(asked), done=len(asked) - 1)

    rotations.ask = ask
    world.daemon._rotations = cast("Any", rotations)
    monkeypatch.setattr(module, "resident_bytes", lambda pids: used if pids == [os.getpid(), 7] else 0)

    def check(megabytes: int, after_s: float = 1.0, *, published: bool = True) -> list[float]:
        nonlocal used, now
        used, now = megabytes * 1_000_000, now + after_s
        world.daemon._check_limits(now)
        if published:
            rotations.state = Rotation(asked=len(asked), done=len(asked))
        return asked

    assert check(89) == []
    assert check(90) == check(95) == [2.0], "once"
    check(50)
    assert check(110, published=False) == [2.0, 5.0]
    assert not world.done, "the session is being published"
    check(110, 0.3, published=True)
    assert check(99) == [2.0, 5.0], "it has helped a little"
    assert check(101, RAM_ROTATES_S) == [2.0, 5.0, now], "and may help again"
    assert not world.done
    check(101)
    assert world.done == ["drain"]
    assert world.daemon.reason == "max_ram_mb = 100 was reached (101 MB resident)"


def test_a_changed_player_ends_it_for_a_restart() -> None:
    """Its file was replaced while the recorder ran, and then a worker was."""
    nobody: Any = None
    playing = Playing(RecorderConfig(), Path(), nobody, nobody)
    assert playing.on_ready(0, Ready("a" * 64)) is None
    assert playing.on_ready(1, Ready("a" * 64)) is None
    error = playing.on_ready(0, Ready("b" * 64))
    assert "worker 0 loaded a player with SHA-256 bbbbbbbbbbbb, expected aaaaaaaaaaaa" in str(error)
    assert type(error) is errors.RecorderError, "with StartError's exit code a service stays down"


@pytest.mark.parametrize("first", [True, False])
def test_any_error_of_the_first_worker_is_final(first: bool) -> None:
    error = error_of(Crashed("no room", starting=True), first=first)
    assert type(error) is (errors.StartError if first else type(None))
    player = error_of(Crashed("raised", True, "PlayerError", "look at it"), first=first)
    assert type(player) is errors.PlayerError
