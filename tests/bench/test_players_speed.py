"""The n-tuple player and trainer beside a plain version, which has to give the same values."""

from typing import Any

import numpy as np
import pytest

from tape2048.ntuple.network import Network, NetworkLayout, load_network

from . import players, sketch


@pytest.mark.benchmark(group="players")
def test_ours_and_the_sketch(measure: Any, rounds: int, full: bool) -> None:
    found = measure(players.playing, rounds, games=None if full else 1)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="players")
def test_our_training_and_the_sketchs(measure: Any, rounds: int, full: bool) -> None:
    how = {"moves": 5_000_000} if full else {"moves": 10_000, "stages": "128"}
    found = measure(players.learning, rounds, **how)
    assert all(figure.value > 0 for figure in found)


def test_the_sketch_gives_the_same_values() -> None:
    default = load_network("default")
    table = sketch.table_of(default)
    network = Network(NetworkLayout.of(sketch.TUPLES), table, np.ones((1, 4), dtype=np.float32))
    boards = np.random.default_rng(1).integers(0, 1 << 64, 1000, dtype=np.uint64)
    found = np.empty(1000, dtype=np.float32)
    sketch.values(table, boards, found)
    assert default.layout.tuples == network.layout.tuples
    np.testing.assert_allclose(found, network.values(boards), rtol=1e-5, atol=0.5)


def test_the_sketch_learns() -> None:
    learner = sketch.Learner.empty(1)
    table = np.zeros_like(learner.table)

    def mean_length(table: Any) -> float:
        return int(sketch.play(table, np.arange(100, dtype=np.uint64), np.uint64(0))) / 100

    before = mean_length(table)
    sketch.learn(learner, 300_000)
    assert mean_length(learner.table) > 3 * before
