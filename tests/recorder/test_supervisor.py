"""The places of workers: what their slots say when one starts, how often they write, when it is hopeless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tape2048_recorder.config import RecorderConfig
from tape2048_recorder.recorder import _worker_spec
from tape2048_recorder.shared import LOADS
from tape2048_recorder.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def supervise() -> Iterator[Callable[[RecorderConfig], Supervisor]]:
    made: list[Supervisor] = []

    def make(config: RecorderConfig) -> Supervisor:
        made.append(Supervisor(_worker_spec(config, 1, {}), config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(("workers", "deaths"), [(1, 8), (2, 8), (64, 192)])
def test_one_cause_may_take_every_worker_once(
    supervise: Callable[[RecorderConfig], Supervisor], workers: int, deaths: int
) -> None:
    supervisor = supervise(RecorderConfig(workers=workers))
    for death in range(deaths):
        assert not supervisor.is_hopeless
        supervisor.schedule_restart(supervisor.workers[death % workers], now=0.0)
    assert supervisor.is_hopeless
    supervisor.note_progress(supervisor.workers[0])
    assert not supervisor.is_hopeless


def test_blocks_are_no_larger_than_sessions_and_no_later(
    supervise: Callable[[RecorderConfig], Supervisor],
) -> None:
    config = RecorderConfig(workers=2, block_rows=5_000, rotate_steps=10_000, flush_s=9.0)
    supervisor = supervise(config)
    slots = supervisor.shared.slots
    assert (slots["block_rows"].tolist(), slots["flush_s"].tolist()) == ([5_000] * 2, [9.0] * 2)
    supervisor.pace(msgspec.structs.replace(config, rotate_steps=2_000, rotate_s=0.5))
    assert (slots["block_rows"].tolist(), slots["flush_s"].tolist()) == ([2_000] * 2, [0.5] * 2)
    supervisor.pace(msgspec.structs.replace(config, rotate_s=60.0))
    assert (slots["block_rows"].tolist(), slots["flush_s"].tolist()) == ([5_000] * 2, [9.0] * 2)


def test_a_worker_does_not_begin_with_what_the_one_before_it_was_busy_with(
    supervise: Callable[[RecorderConfig], Supervisor],
) -> None:
    """It would have its patience."""
    supervisor = supervise(RecorderConfig(workers=1, player="greedy"))
    supervisor.shared.slots["busy"] = LOADS
    supervisor.start(supervisor.workers[0])
    assert supervisor.shared.slots["busy"].tolist() == [0]
