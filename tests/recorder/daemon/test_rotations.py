"""Requests to rotate: for whom they wait, what they close, and when they are over."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tape2048.errors import TapeError
from tape2048_recorder.daemon.daemon import FLUSH_S, Rotations
from tape2048_recorder.ipc.protocol import Shared
from tape2048_recorder.recording.publish import Published, PublishOutcome
from tape2048_recorder.status.status_report import Rotation

WORKERS = 3


class World:
    """Three workers, of which the last is not ready, and the session that is open by its serial."""

    def __init__(self) -> None:
        self.shared = Shared.create(WORKERS)
        self.workers = [SimpleNamespace(index=index, ready=index < 2) for index in range(WORKERS)]
        self.open: int | None = 1
        self.unpublished: set[int] = set()
        self.closed: list[int] = []
        world: Any = self  # supervisor and recording in one
        self.rotations = Rotations(world, world)

    def rotate_if_due(self) -> None:
        """Nothing is due by its size or age."""

    def close_open(self) -> set[int]:
        serial, self.open = self.open, None
        self.closed += [] if serial is None else [serial]
        self.unpublished |= set() if serial is None else {serial}
        return self.unpublished

    def flush(self, *workers: int) -> None:
        slots = self.shared.slots
        slots["flushed"][list(workers)] = slots["flush"][list(workers)]

    def ask_and_flush(self, now: float) -> None:
        self.rotations.ask(now)
        self.flush(0, 1)
        self.rotations.tick(now)

    def published(self, serial: int, error: str | None = None, *, final: bool = True) -> None:
        made = Published(Path(f"s{serial}"), 1, 1, 1, recovered=False, rows_lost=0) if error is None else None
        session: Any = SimpleNamespace(serial=serial)
        self.unpublished -= {serial} if final else set()
        self.rotations.on_outcome(
            PublishOutcome(session, made, None if error is None else TapeError(error), final)
        )


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.shared.close()


def test_it_closes_once_each_ready_worker_has_written(world: World) -> None:
    world.rotations.ask(100.0)
    world.flush(1)
    world.rotations.tick(100.5)
    assert world.closed == []
    world.flush(0)
    world.rotations.tick(101.0)
    assert world.closed == [1]
    assert world.rotations.state == Rotation(asked=1)
    world.published(1)
    assert world.rotations.state == Rotation(1, 1, "s1")
    world.open = 2
    world.rotations.tick(1e9)
    assert world.closed == [1], "nobody has asked again"


def test_a_worker_that_does_not_write_delays_it(world: World) -> None:
    world.rotations.ask(100.0)
    world.rotations.ask(105.0)
    world.rotations.tick(100.0 + FLUSH_S - 0.1)
    assert world.closed == []
    world.rotations.tick(100.0 + FLUSH_S)
    assert world.closed == [1]
    world.published(1)
    assert world.rotations.state == Rotation(2, 2, "s1")


def test_a_request_ends_with_its_own_session(world: World) -> None:
    for serial in (1, 2):
        world.open = serial
        world.ask_and_flush(100.0)
    world.published(7)  # closed by its size before
    assert world.rotations.state == Rotation(2, 0)
    world.published(1, "the disk is full", final=False)
    assert world.rotations.state == Rotation(2, 0)
    world.published(1)
    assert world.rotations.state == Rotation(2, 1, "s1")
    world.published(2, "the device is broken")
    assert world.rotations.state == Rotation(2, 2, None, "the device is broken")


def test_a_request_waits_for_sessions_closed_before(world: World) -> None:
    world.open = None
    world.unpublished = {1, 2}
    world.ask_and_flush(100.0)
    world.published(2)
    assert world.rotations.state == Rotation(1, 0)
    world.published(1)
    assert world.rotations.state == Rotation(1, 1, "s1")
