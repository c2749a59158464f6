"""Labels, weights and metrics beside the exact truth of 2 x 3 cells, where no noise can hide a fault."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.critic import Oracle, RunBootstrap, evaluate, oracle_scores
from tape2048.critic.evaluation import ALL, CRITIC, PREVALENCE

from ...exact import Solved, capped_positions, recorded, solve, true_metrics

#: Tiles that nearly every game reaches, that some do, and that few do.
TILES = (32, 64, 128)


@pytest.fixture(scope="module")
def solved() -> Solved:
    return solve(2, 3)


@pytest.fixture(scope="module")
def corpus(solved: Solved, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    # Of this seed, one game does not reach 32.
    return Corpus.open(recorded(tmp_path_factory.mktemp("exact"), solved, games=2000, seed=5))


def test_labels_of_weighted_rows_are_as_frequent_as_the_truth(solved: Solved, corpus: Corpus) -> None:
    rows = solved.rows
    truth = np.average(solved.reach[rows][:, [5, 6, 7]], weights=solved.visits[rows], axis=0)
    fields = ("labels", "run", "weight")
    (batch,) = corpus.capped(4).batches(
        10**6, shuffle=False, seed=0, rank=0, world_size=1, fields=fields, thresholds=TILES
    )
    labels, runs, weights = batch["labels"], batch["run"], batch["weight"].astype(np.float64)
    for column in range(len(TILES)):
        gaps = np.bincount(runs, weights * (labels[:, column] - truth[column]), len(corpus.runs))
        assert abs(gaps.sum()) < 4 * np.sqrt((gaps**2).sum())
    assert abs(labels.mean(axis=0) - truth).max() > 0.02  # what unweighted rows are off by


def play(solved: Solved, boards: NDArray[np.uint64], *, first: int, progress: Any) -> NDArray[np.uint16]:
    """Play 16 games on from each board."""
    begins = np.repeat(solved.places(boards), 16)
    ends = solved.play(begins, seed=first + 1).highest.reshape(len(boards), 16)
    return np.stack([(ends >= e).sum(axis=1) for e in range(16)], axis=1).astype(np.uint16)


def test_an_evaluation_finds_the_truth(solved: Solved, corpus: Corpus, tmp_path: Path) -> None:
    """Of an exact critic, of one that is too sure, and of the constant."""

    def exact(boards: NDArray[np.uint64]) -> NDArray[np.float64]:
        return solved.reach[solved.places(boards)][:, [5, 6, 7]]

    def too_sure(boards: NDArray[np.uint64]) -> NDArray[np.float64]:
        return np.clip(1.4 * exact(boards) - 0.2, 0, 1)

    oracle = Oracle(functools.partial(play, solved), player_sha256="e" * 64, rollouts=16, directory=tmp_path)
    for critic in (exact, too_sure):
        found = evaluate(
            critic, corpus, thresholds=TILES, train=corpus, per_run=4, oracle=oracle, positions=4000
        )
        predicted = critic(solved.boards[solved.rows])
        for column, tile in enumerate(TILES):
            truth = true_metrics(solved, predicted[:, column], 5 + column)
            scores = found.cell(ALL, tile).scores[CRITIC].oracle
            assert (scores.r2 is None) == (tile == 32), tile
            for name, expected in truth.items():
                if (one := getattr(scores, name)) is not None:
                    assert abs(one.value - expected) < 2 * max(one.half_width, 1e-9), (critic, tile, name)
        constant = found.cell(ALL, 64).scores[PREVALENCE].oracle
        assert constant.r2.low <= 0 <= constant.r2.high + 1e-3
        assert "games missed the tile; expected at least 30" in found.cell(ALL, 32).scores[CRITIC].oracle.note


@pytest.mark.parametrize("exponent", [6, 7])
def test_intervals_hold_the_truth_as_often_as_they_say(solved: Solved, exponent: int) -> None:
    """Of tiles that 94% and 5% of the games reach. A perfect prediction has intervals that say more."""
    rows, samples, games = solved.rows, 100, 1000
    q = solved.reach[:, exponent]
    off = np.clip(q + np.where(np.arange(len(q)) % 2, 0.2, -0.2) * np.sqrt(q * (1 - q)), 0, 1)
    found = {}
    for seed in range(samples):
        places, runs, weights, _ = capped_positions(solved, games=games, per_run=2, seed=seed)
        shares = np.random.default_rng(seed).binomial(16, q[places]) / 16
        replicates = (RunBootstrap(games, 250, seed).weights * weights[:, None]).astype(np.float32)
        for name, p in (("off", off), ("exact", q)):
            truth = true_metrics(solved, p[rows], exponent)
            scores = oracle_scores(p[places], shares, 16, runs, replicates)
            for metric, expected in truth.items():
                one = getattr(scores, metric)
                held = one is None or one.low - 1e-9 <= expected <= one.high + 1e-9  # None: the whole line
                found[name, metric] = found.get((name, metric), 0) + held
    for (name, metric), count in found.items():
        assert count / samples >= 0.88, (name, metric, count)
        assert count / samples <= 0.99 or (name, metric) == ("exact", "r2"), (name, metric, count)
