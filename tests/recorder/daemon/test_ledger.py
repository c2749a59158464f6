"""Each game is recorded once, whoever dies, and a limit is met exactly."""

from random import Random

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from tape2048_recorder.daemon.instance import GameState, Ledger
from tape2048_recorder.record_options import LEASE_MAX

WORKERS = 3
worker_indexes = st.integers(0, WORKERS - 1)


def ids(*numbers: int) -> NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


class Life(RuleBasedStateMachine):
    """Workers that take games, record some, and die; limits that move; recorders that start again."""

    @initialize(
        games_max=st.none() | st.integers(1, 60),
        lease=st.integers(0, LEASE_MAX),
        left=st.integers(0, 100) | st.integers(2**30, 2**40),
    )
    def begin(self, games_max: int | None, lease: int, left: int) -> None:
        self.lease = lease
        self.end = (lease + 1) << 40
        self.first = first = self.end - left
        self.games_max = games_max
        state = GameState(1, first, lease=lease)
        self.ledger = Ledger(state, games_max=games_max, workers=WORKERS)
        self.held: dict[int, list[int]] = {worker: [] for worker in range(WORKERS)}
        self.recorded: list[int] = []
        self.recorded_before = 0

    @rule(worker=worker_indexes, want=st.integers(1, 30))
    def take(self, worker: int, want: int) -> None:
        games = self.ledger.take(worker, want)
        if games is None:
            assert self.ledger.exhausted
            return
        first, count = games
        assert 1 <= count <= want
        self.held[worker] += range(first, first + count)

    @rule(worker=worker_indexes, share=st.floats(0, 1), order=st.integers(0, 9))
    def record(self, worker: int, share: float, order: int) -> None:
        held = self.held[worker]
        count = round(share * len(held))
        done = Random(order).sample(held, count)
        self.held[worker] = [game for game in held if game not in done]
        assert self.ledger.confirm(worker, ids(*done))
        self.recorded += done

    @rule(worker=worker_indexes)
    def die(self, worker: int) -> None:
        assert self.ledger.release(worker) == len(self.held[worker])
        self.held[worker] = []

    @rule(games_max=st.none() | st.integers(0, 80))
    def limit(self, games_max: int | None) -> None:
        self.ledger.limit(games_max)
        out = self.ledger.confirmed + sum(map(len, self.held.values()))
        self.games_max = None if games_max is None else max(games_max, out)

    @rule()
    def start_again(self) -> None:
        for worker in range(WORKERS):
            self.die(worker)
        state = self.ledger.state()
        assert (state.seed, state.lease) == (1, self.lease)
        self.recorded_before = len(self.recorded)
        self.ledger = Ledger(state, games_max=self.games_max, workers=WORKERS)

    @invariant()
    def each_game_is_in_one_place(self) -> None:
        if not hasattr(self, "ledger"):
            return
        state = self.ledger.state()
        free = [game for first, end in state.free for game in range(first, end)]
        held = [game for games in self.held.values() for game in games]
        assert sorted(free + held + self.recorded) == list(range(self.first, state.next_id))
        assert self.ledger.next_id == state.next_id <= self.end
        assert self.ledger.used_up == (not free and state.next_id == self.end)
        assert self.ledger.confirmed == len(self.recorded) - self.recorded_before

    @invariant()
    def the_limit_holds(self) -> None:
        if hasattr(self, "ledger") and self.games_max is not None:
            out = self.ledger.confirmed + sum(map(len, self.held.values()))
            assert out <= self.games_max
            assert self.ledger.exhausted == (out == self.games_max or self.ledger.used_up)

    def teardown(self) -> None:
        """Whatever happened, those who live finish what is left, and no more."""
        if not hasattr(self, "ledger") or self.games_max is None:
            return
        for _ in range(200):
            if self.ledger.exhausted and not any(self.held.values()):
                break
            for worker in range(WORKERS):
                self.take(worker, 8)
                self.record(worker, 1.0, 0)
        assert self.ledger.used_up or self.ledger.confirmed == self.games_max
        assert len(set(self.recorded)) == len(self.recorded)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("wrong", [[5], [0, 1, 2, 3, 4], [0, 0], [2, 4]])
def test_games_may_be_confirmed_in_any_order(wrong: list[int]) -> None:
    ledger = Ledger(GameState(1), games_max=None, workers=2)
    assert ledger.take(0, 4) == (0, 4)
    assert ledger.take(1, 4) == (4, 4)
    assert not ledger.confirm(0, ids(*wrong))
    assert ledger.confirmed == 0
    assert ledger.confirm(0, ids(2))
    assert not ledger.confirm(0, ids(2))
    assert ledger.confirm(0, ids(3, 0))
    assert ledger.release(0) == 1
    assert ledger.take(1, 10) == (1, 1)


def test_near_the_limit_each_gets_a_fair_part() -> None:
    ledger = Ledger(GameState(1), games_max=100, workers=2)
    counts = []
    while (games := ledger.take(len(counts) % 2, 1000)) is not None:
        counts.append(games[1])
    assert sum(counts) == 100
    assert counts[0] == 25
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1
