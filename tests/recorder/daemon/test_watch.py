"""Silent workers: by their heartbeats, with a clock that the test turns; and one that is really stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tape2048_recorder.daemon import supervisor as module
from tape2048_recorder.daemon.supervisor import ABORT_S, START_S, WRITING_FACTOR, Watch, whereabouts
from tape2048_recorder.ipc.protocol import LOADS, Range

from ..checks import assert_sessions_valid
from ..processes import Recorders, kill, wait_until

SILENCE_S = 10.0


class Process:
    """A process that only counts the signals that it gets."""

    pid = 2**22 + 1  # past the largest pid that there is

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)


class Place:
    """One worker, as the supervisor shows it."""

    def __init__(self) -> None:
        self.index = 0
        self.process: Process | None = Process()
        self.ready = True
        self.said_bye = False
        self.range: Range | None = None
        self.waiting_rows: int | None = None
        self.unconfirmed = None


class World:
    """A supervisor with one worker, and a clock."""

    def __init__(self) -> None:
        self.place = Place()
        self.workers = [self.place]
        self.slots = np.zeros(1, dtype=[("heartbeat_ns", "u8"), ("steps", "u8"), ("busy", "u8")])
        self.warnings: list[str] = []
        self.now = 1000.0
        self.watch = Watch(self, self.warnings.append)  # type: ignore[arg-type]

    @property
    def shared(self) -> World:
        return self

    def beat(self) -> None:
        self.slots["heartbeat_ns"] += 1
        self.slots["steps"] += 1

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.watch.look(self.now, SILENCE_S)

    def aborts(self, seconds: float) -> bool:
        """Whether the worker is aborted in this time, and continued: a stopped process then hears of it."""
        self.pass_time(seconds)
        return self.signals == [signal.SIGABRT, signal.SIGCONT]

    def stays_quiet(self, seconds: float) -> bool:
        """Whether nothing is sent to the worker in this time."""
        self.pass_time(seconds)
        return not self.signals

    @property
    def signals(self) -> list[int]:
        return self.place.process.signals


@pytest.fixture
def world() -> World:
    """A worker that has played its first slice."""
    world = World()
    world.watch.look(world.now, SILENCE_S)
    world.beat()
    world.pass_time(0.25)
    return world


def test_a_worker_that_makes_progress_is_left_alone(world: World) -> None:
    for _ in range(20):
        world.pass_time(SILENCE_S - 1)
        world.beat()
    assert world.signals == []
    assert world.watch.overdue == 0


def test_a_silent_worker_is_aborted_then_killed(world: World) -> None:
    assert world.stays_quiet(SILENCE_S - 0.5)
    assert world.aborts(1)
    assert (world.watch.overdue, world.watch.ended) == (1, 1)
    assert "worker 0" in world.warnings[0]
    assert "no progress for 10 s" in world.warnings[0]
    world.pass_time(ABORT_S - 1)
    assert signal.SIGKILL not in world.signals
    world.pass_time(1.5)
    assert signal.SIGKILL in world.signals
    world.place.process = None
    world.pass_time(0.25)
    assert (world.watch.overdue, world.watch.ended) == (0, 1)
    assert len(world.warnings) == 1


@pytest.mark.parametrize("how", ["compiles", "has not finished its first slice"])
def test_a_start_takes_longer_and_not_for_ever(how: str) -> None:
    world = World()
    world.watch.look(world.now, SILENCE_S)
    world.slots["heartbeat_ns"] += 1  # its program runs
    world.place.ready = how != "compiles"
    assert world.stays_quiet(START_S - 5)
    assert world.aborts(10)


def test_a_worker_that_never_ran_is_silent() -> None:
    world = World()
    world.place.ready = False
    assert world.stays_quiet(SILENCE_S - 1)
    assert world.aborts(2)


def test_a_program_that_starts_slowly_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.place.ready = False
    ticks = iter(range(10**6))
    monkeypatch.setattr(module, "_cpu_ticks", lambda pid: next(ticks))
    assert world.stays_quiet(SILENCE_S * 5)


@pytest.mark.parametrize("doing", ["writes a block", "loads a model", "compiles"])
def test_a_stopped_worker_gets_no_extra_time(
    world: World, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    world.place.ready = doing != "compiles"
    world.place.range = Range(1, "x", 0) if doing == "writes a block" else None
    world.slots["busy"] = LOADS if doing == "loads a model" else 0
    world.pass_time(SILENCE_S)
    assert world.stays_quiet(SILENCE_S - 1), "it is slow"
    monkeypatch.setattr(module, "whereabouts", lambda pid: "state T, stopped")
    assert world.aborts(1)
    assert "(state T, stopped): ending it" in world.warnings[0]


def test_each_part_of_a_start_and_a_block_has_a_limit() -> None:
    world = World()
    world.place.ready = False
    world.watch.look(world.now, SILENCE_S)
    world.slots["heartbeat_ns"] += 1
    world.pass_time(START_S - 5)  # it compiles
    world.place.ready = True
    assert world.stays_quiet(START_S - 5)  # its first slice
    world.beat()
    world.place.range = Range(1, "x", 0)
    world.pass_time(SILENCE_S * WRITING_FACTOR - 1)
    world.place.range = None  # the block is confirmed, and the end of the next slice is not noted yet
    assert world.stays_quiet(SILENCE_S - 1)
    assert world.aborts(2)


def test_loading_a_model_has_a_longer_limit(world: World) -> None:
    world.slots["busy"] = LOADS
    assert world.stays_quiet(START_S - 5)
    assert world.aborts(10)


@pytest.mark.parametrize("what", ["waiting_rows", "unconfirmed"])
def test_one_that_waits_for_the_daemon_is_not_silent(world: World, what: str) -> None:
    setattr(world.place, what, True)
    assert world.stays_quiet(SILENCE_S * 20)
    setattr(world.place, what, None)
    assert world.stays_quiet(SILENCE_S - 1)  # counted from now


def test_a_daemon_that_was_stopped_blames_nobody(world: World) -> None:
    for _ in range(5):
        world.now += 3600  # the daemon did not look: suspended, or stopped itself
        world.watch.look(world.now, SILENCE_S)
    assert world.signals == []


def test_what_the_kernel_knows_of_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: "state S, sleeping" in whereabouts(child.pid))
        kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: "state T, stopped" in whereabouts(child.pid))
    finally:
        child.kill()
        child.communicate()
    assert whereabouts(child.pid) == "it has ended"


@pytest.mark.slow
def test_a_stopped_worker_is_replaced(recorders: Recorders, root: Path) -> None:
    # Also in the middle of a write.
    recorder = recorders.start(player="expectimax", sample_rate=20, workers=2, seed=99, worker_silence_s=5.0)
    recorder.wait_for_status(lambda status: status["workers_ready"] == 2 and status["recorded_rows"] > 0)
    stopped = recorder.workers[0]
    kill(stopped, signal.SIGSTOP)
    said = recorder.wait_for_event("has made no progress")
    assert f"(pid {stopped})" in said
    assert "stopped" in said
    event = recorder.wait_for_event(f"(pid {stopped}) ended: killed by SIGABRT")
    assert "unrecorded game" in event
    assert "will be played again" in event
    recorder.wait_for_status(
        lambda status: status["counts"]["worker_restarts"] >= 1 and status["workers_ready"] == 2
    )
    assert "Fatal Python error: Aborted" in recorder.stderr
    assert "workers/worker_loop.py" in recorder.stderr
    assert not Path(f"/proc/{stopped}").exists()
    recorder.stop()
    assert_sessions_valid(root)
