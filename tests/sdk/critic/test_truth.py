"""Metrics against rollouts of a known truth: free of the rollouts' noise, and of the weights' bias."""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.critic import Oracle, RunBootstrap, evaluate, oracle_scores
from tape2048.critic.evaluation import ALL, CRITIC, PREVALENCE, TILE, UNDECIDED
from tape2048.game.rules import boards_to_exps, exps_to_boards

from ..critics import TILES, make_games
from .test_evaluation import tile_critic

RUNS, ROWS = 300, 3000


class World:
    """Positions of runs with weights, their true probabilities, and a predictor's."""

    def __init__(self, seed: int, *, rollouts: int, spread: float = 0.6) -> None:
        rng = np.random.default_rng(seed)
        self.runs = rng.integers(0, RUNS, ROWS)
        self.weights = rng.uniform(1, 8, (RUNS, 1)).astype(np.float32)
        self.q = rng.beta(spread, spread, ROWS)
        self.p = np.clip(0.1 + 0.8 * self.q + rng.normal(0, 0.12, ROWS), 0.01, 0.99)
        self.r = rng.binomial(rollouts, self.q) / rollouts
        self.rollouts = rollouts

    @property
    def own(self) -> NDArray[np.float64]:
        return self.weights[self.runs, 0].astype(np.float64)

    def mean(self, of: NDArray[np.float64]) -> float:
        return float(np.average(of, weights=self.own))

    def true_r2(self, p: NDArray[np.float64]) -> float:
        return 1 - self.mean((p - self.q) ** 2) / self.mean((self.q - self.mean(self.q)) ** 2)

    def scores(self, p: NDArray[np.float64], weights: NDArray[np.float32] | None = None) -> Any:
        return oracle_scores(
            p, self.r, self.rollouts, self.runs, self.weights if weights is None else weights
        )


@pytest.mark.parametrize("rollouts", [2, 8, 48])
def test_noise_is_taken_out_of_the_explained_variance(rollouts: int) -> None:
    worlds = [World(seed, rollouts=rollouts) for seed in range(60)]
    for predict in (lambda one: one.p, lambda one: np.full(ROWS, 0.5)):
        errors = [one.scores(predict(one)).r2.value - one.true_r2(predict(one)) for one in worlds]
        margin = 4 * np.std(errors) / np.sqrt(len(worlds)) + 1e-3
        assert abs(np.mean(errors)) < margin < 0.02
    # Without the correction a perfect predictor would seem far from perfect.
    naive = [1 - one.mean((one.q - one.r) ** 2) / np.var(one.r) for one in worlds]
    assert rollouts > 8 or np.mean(naive) < 0.93


def test_the_formula() -> None:
    one = World(3, rollouts=8)
    found = one.scores(one.p)
    noise = one.mean(one.r * (1 - one.r)) / 7
    variance = one.mean(one.r**2) - one.mean(one.r) ** 2
    expected = 1 - (one.mean((one.p - one.r) ** 2) - noise) / (variance - noise)
    assert found.r2.value == pytest.approx(expected, rel=1e-6)
    assert found.bias.value == pytest.approx(one.mean(one.p - one.r), rel=1e-6)
    assert (found.positions, found.note) == (ROWS, None)


def test_brier_and_log_loss_are_those_of_all_outcomes() -> None:
    one = World(4, rollouts=6)
    p, r = one.p[:50].copy(), one.r[:50]
    p[:2] = 0, 1
    r[:2] = 0.5
    outcomes = np.arange(6) < np.round(6 * r)[:, None]
    weight = np.repeat(one.own[:50], 6)
    found = oracle_scores(p, r, 6, one.runs[:50], one.weights)
    brier = np.average(((p[:, None] - outcomes) ** 2).ravel(), weights=weight)
    said = np.clip(np.where(outcomes, p[:, None], 1 - p[:, None]), 1e-6, None)
    assert found.brier.value == pytest.approx(brier, rel=1e-6)
    assert found.log_loss.value == pytest.approx(np.average(-np.log(said).ravel(), weights=weight), rel=1e-4)


def test_calibrated_predictions_have_the_noise_s_ece() -> None:
    """It knows a part of q alone: the rest, and the rollouts, are the noise of its bins."""
    errors, noises = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.2, 0.8, ROWS)
        q = np.clip(p + rng.choice([-0.15, 0.15], ROWS), 0, 1)
        r = rng.binomial(48, q) / 48
        found = oracle_scores(
            p, r, 48, rng.integers(0, RUNS, ROWS), rng.uniform(1, 8, (RUNS, 1)).astype(np.float32)
        )
        errors.append(found.ece.value)
        noises.append(found.ece_noise)
        shifted = oracle_scores(
            np.clip(p + 0.1, 0, 1), r, 48, np.arange(ROWS), np.ones((ROWS, 1), np.float32)
        )
        assert shifted.ece.value == pytest.approx(0.1, abs=0.02)
    assert 0.005 < np.mean(noises) < 0.02
    assert np.mean(errors) == pytest.approx(np.mean(noises), rel=0.1)


def test_intervals_hold_the_truth() -> None:
    """In 95 of 100, but for what a bootstrap of 300 games cannot do."""
    worlds = [World(seed, rollouts=16) for seed in range(60)]
    truth, held = np.mean([one.true_r2(one.p) for one in worlds]), 0
    for seed, one in enumerate(worlds):
        r2 = one.scores(one.p, one.weights * RunBootstrap(RUNS, 200, seed).weights).r2
        held += r2.low <= truth <= r2.high
    assert held >= 53


def test_no_prediction_explains_more_than_all() -> None:
    """Of a perfect one, the noise lifts every second ratio above 1."""
    for seed in range(20):
        one = World(seed, rollouts=2)
        r2 = one.scores(one.q, one.weights * RunBootstrap(RUNS, 200, seed).weights).r2
        assert r2.low < 1
        assert r2.value <= r2.high <= 1


def test_a_tile_that_is_always_reached_measures_nothing() -> None:
    """A thousandth of the positions is in doubt: any ratio is about a few of them."""
    for seed in range(20):
        one = World(seed, rollouts=48)
        rng = np.random.default_rng(seed)
        one.q = np.where(rng.random(ROWS) < 0.001, 0.5, 1.0)
        one.r = rng.binomial(48, one.q) / 48
        found = one.scores(np.full(ROWS, 0.999), one.weights * RunBootstrap(RUNS, 200, seed).weights)
        assert found.r2 is None
        assert re.search(r"varies too little: its variance is \S+ ± \S+$", found.note)


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_without_variance_there_is_no_explained_one(share: float) -> None:
    p = np.linspace(0.1, 0.9, 40)
    weights = RunBootstrap(40, 20).weights
    found = oracle_scores(p, np.full(40, share), 8, np.arange(40), weights)
    assert found.r2 is None
    assert "the true probability varies too little: its variance is -" in str(found.note) or share != 0.5
    for number in (found.bias, found.brier, found.log_loss, found.ece):
        assert np.isfinite([number.value, number.low, number.high]).all()
    assert np.isfinite(found.ece_noise)


def test_impossible_inputs_are_refused() -> None:
    once = np.ones((3, 1), np.float32)
    with pytest.raises(ValueError, match="1 rollouts of 3 positions"):
        oracle_scores(np.zeros(3), np.zeros(3), 1, np.arange(3), once)
    with pytest.raises(ValueError, match="0 positions"):
        oracle_scores(np.zeros(0), np.zeros(0), 8, np.arange(0), once)
    with pytest.raises(ValueError, match="is NaN"):
        oracle_scores(np.array([0, np.nan, 1]), np.zeros(3), 8, np.arange(3), once)


# ------------------------------------------------------------------------------- with an evaluation


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(make_games(tmp_path_factory.mktemp("games"), games=200))


def play(boards: NDArray[np.uint64], *, first: int, progress: Any) -> NDArray[np.uint16]:
    """A tile above the highest one is reached by the share of empty cells."""
    exps = boards_to_exps(boards)
    empty, highest = (exps == 0).sum(axis=1), exps.max(axis=1)
    counts = np.where(np.arange(16) <= highest[:, None], 16, np.minimum(2 * empty, 16)[:, None])
    return counts.astype(np.uint16)


def oracle(tmp_path: Path) -> Oracle:
    return Oracle(play, player_sha256="a" * 64, rollouts=16, directory=tmp_path)


def test_an_evaluation_has_rollouts_beside_outcomes(corpus: Corpus, tmp_path: Path) -> None:
    parts = corpus.split(train=0.5, val=0.5)
    told: list[tuple[str, int, int]] = []
    found = evaluate(
        tile_critic(), parts["val"], train=parts["train"], per_run=20, replicates=20, seed=1,
        oracle=oracle(tmp_path), positions=500, progress=lambda *now: told.append(now),
    )  # fmt: skip
    assert ("rollouts", 0, 8000) in told
    truth = found.truth
    assert (truth.positions, truth.rollouts, truth.known, truth.player_sha256) == (500, 16, 0, "a" * 64)
    for tile in TILES:
        whole, open_ = found.cell(ALL, tile), found.cell(UNDECIDED, tile)
        for name in (CRITIC, PREVALENCE, TILE):
            scores, undecided = whole.scores[name].oracle, open_.scores[name].oracle
            assert scores.positions == 500 > undecided.positions
        thirds = [found.cell(name, tile).scores[CRITIC].oracle for name in ("early", "middle", "late")]
        assert sum(one.positions for one in thirds if one is not None) == 500
        # A constant explains nothing.
        assert whole.scores[PREVALENCE].oracle.r2.value <= 0.02
    again = evaluate(
        tile_critic(), parts["val"], train=parts["train"], per_run=20, replicates=20, seed=1,
        oracle=oracle(tmp_path), positions=500,
    )  # fmt: skip
    assert again.truth.known == 500
    assert again.cells == found.cells
    without = evaluate(tile_critic(), parts["val"], train=parts["train"], per_run=20, replicates=20, seed=1)
    assert without.truth is None
    assert [cell.scores[CRITIC].auroc for cell in without.cells] == [
        cell.scores[CRITIC].auroc for cell in found.cells
    ]
    assert without.cells[0].scores[CRITIC].oracle is None


def test_means_tell_weighted_positions_from_equal_ones(corpus: Corpus, tmp_path: Path) -> None:
    """By definition, for all rows of a view whose runs differ in length."""
    view = corpus.phase(empties=(4, None))
    found = evaluate(tile_critic(), view, per_run=5, replicates=0, oracle=oracle(tmp_path), positions=10**6)
    capped = view.capped(5)
    assert found.truth.positions == len(capped) == found.rows
    (batch,) = capped.batches(
        10**6, shuffle=False, seed=0, rank=0, world_size=1, fields=("tokens", "run", "weight")
    )
    assert len(np.unique(batch["weight"])) > 1

    counts = play(exps_to_boards(batch["tokens"]), first=0, progress=None)
    for tile, curve in zip(TILES, found.truth.curves, strict=True):
        columns = {
            "labels": view.runs["highest_tile"][batch["run"]] >= tile,
            "rollouts": counts[:, tile.bit_length() - 1] / 16,
            "critic": batch["tokens"].max(axis=1) / 15,
        }
        for name, column in columns.items():
            equal, weighted = getattr(curve.equal, name), getattr(curve.weighted, name)
            assert equal.value == pytest.approx(column.mean(), rel=1e-5)
            assert weighted.value == pytest.approx(np.average(column, weights=batch["weight"]), rel=1e-5)
        assert sum(one.rows for one in curve.bins) == found.rows
        assert 0 < len(curve.points) <= 400


def test_positions_follow_from_the_precision(corpus: Corpus, tmp_path: Path) -> None:
    def truth(boards: NDArray[np.uint64]) -> NDArray[np.float64]:
        return play(boards, first=0, progress=None)[:, [tile.bit_length() - 1 for tile in TILES]] / 16

    def draw(boards: NDArray[np.uint64], *, first: int, progress: Any) -> NDArray[np.uint16]:
        shares = play(boards, first=first, progress=progress) / 16
        return np.random.default_rng(first).binomial(16, shares).astype(np.uint16)

    one = msgspec.structs.replace(oracle(tmp_path), play=draw)
    how: Any = {"thresholds": TILES, "per_run": None, "oracle": one}
    for precision, least, most in ((0.1, 256, 256), (0.004, 300, 7999)):
        found = evaluate(truth, corpus, replicates=100, precision=precision, positions=8000, **how)
        assert least <= found.truth.positions <= most
        for tile in TILES:
            assert found.cell(ALL, tile).scores[CRITIC].oracle.r2.half_width <= precision
    assert found.truth.known == 256
    few = evaluate(truth, corpus, replicates=100, precision=0.001, positions=300, **how)
    assert few.truth.positions == 300
    with pytest.raises(ValueError, match=r"precision=0\.1, replicates=0"):
        evaluate(truth, corpus, precision=0.1, replicates=0, **how)


def test_rollouts_tell_the_time_that_is_left(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def playing(boards: NDArray[np.uint64], *, first: int, progress: Any) -> NDArray[np.uint16]:
        progress(0, len(boards))
        return play(boards, first=first, progress=progress)

    monkeypatch.setattr("tape2048.critic.evaluation._Lines.FIRST_S", 0.0)
    how: Any = {"replicates": 0, "oracle": msgspec.structs.replace(oracle(tmp_path), play=playing)}
    evaluate(tile_critic(), corpus, positions=500, **how)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"rollouts: \d+ of 8,000 games, about 0\.\d minutes left", line)
    evaluate(tile_critic(), corpus, positions=600, progress=lambda *_: 0, **how)
    assert capsys.readouterr().err == ""


def test_positions_are_drawn_uniformly(corpus: Corpus, tmp_path: Path) -> None:
    seen = []

    def watch(boards: NDArray[np.uint64], *, first: int, progress: Any) -> NDArray[np.uint16]:
        seen.extend(boards.tolist())
        return play(boards, first=first, progress=progress)

    one = msgspec.structs.replace(oracle(tmp_path), play=watch)
    evaluate(tile_critic(), corpus, per_run=None, replicates=0, oracle=one, positions=1200)
    assert len(seen) == 1200
    rows = corpus.fetch(slice(None), ("tokens",))["tokens"]
    assert np.mean(boards_to_exps(np.array(seen, np.uint64)).max(axis=1)) == pytest.approx(
        rows.max(axis=1).mean(), abs=0.1
    )
    with pytest.raises(ValueError, match="positions=0; expected at least 1"):
        evaluate(tile_critic(), corpus, oracle=one, positions=0)
