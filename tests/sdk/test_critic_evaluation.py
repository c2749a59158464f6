"""Examinations of critics whose probabilities are known, and the baselines beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from tests import reference

from tape2048 import Corpus
from tape2048.critic_baselines import calibrate, highest_tile, nothing, score_so_far
from tape2048.critic_evaluation import ALL, CRITIC, PREVALENCE, TILE, UNDECIDED, Evaluation, evaluate
from tape2048.rules import boards_to_exps

from .critics import TILES, make_games

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class Fake:
    """A critic that says what a function of the boards' exponents says."""

    def __init__(self, say: Callable[[NDArray[np.uint8]], Any], thresholds: Sequence[int] = TILES) -> None:
        self.say = say
        self.thresholds = tuple(thresholds)
        self.needs_embeddings = False

    def __call__(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        said = np.asarray(self.say(boards_to_exps(boards)), np.float32)
        return np.broadcast_to(said.reshape(-1, 1), (len(boards), len(self.thresholds)))

    def from_embeddings(self, x: NDArray[np.uint16]) -> NDArray[np.float32]:
        raise AssertionError(x)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_games(tmp_path_factory.mktemp("games"))


@pytest.fixture(scope="module")
def corpus(games: Path) -> Corpus:
    return Corpus.open(games)


def tile_critic() -> Fake:
    return Fake(lambda exps: exps.max(axis=1) / 15)


@pytest.fixture(scope="module")
def found(corpus: Corpus) -> Evaluation:
    parts = corpus.split(train=0.5, val=0.5)
    return evaluate(tile_critic(), parts["val"], train=parts["train"], per_run=20, replicates=100, seed=1)


def test_each_stage_and_threshold_has_a_cell(found: Evaluation) -> None:
    names = [stage.name for stage in found.stages]
    assert names == ["all", "early", "middle", "late", "undecided"]
    assert [(cell.stage, cell.threshold) for cell in found.cells] == [(s, t) for s in names for t in TILES]
    for tile in TILES:
        thirds = [found.cell(name, tile) for name in ("early", "middle", "late")]
        whole = found.cell(ALL, tile)
        assert sum(cell.rows for cell in thirds) == whole.rows == found.rows == 20 * found.runs
        assert sum(cell.rows_positive for cell in thirds) == whole.rows_positive
        assert max(cell.rows for cell in thirds) < 0.45 * whole.rows
        assert whole.runs == found.runs
        assert whole.rows_positive == 20 * whole.runs_positive


def test_a_critic_that_says_the_highest_tile_ties_with_it(found: Evaluation) -> None:
    for cell in found.cells:
        if cell.scores[CRITIC].auroc is None:
            continue
        assert cell.scores[CRITIC].auroc == cell.scores[TILE].auroc
        gain = cell.scores[TILE].gain
        assert gain is not None
        assert gain.value == 0
        assert gain.low in {0, None}
        assert cell.scores[PREVALENCE].auroc is not None
        assert cell.scores[PREVALENCE].auroc.value == 0.5


def test_values_are_those_of_scikit_learn(corpus: Corpus) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    found = evaluate(tile_critic(), corpus, per_run=None, replicates=0)
    rows = corpus.fetch(slice(None), ("tokens", "labels", "step"), thresholds=TILES)
    highest = rows["tokens"].max(axis=1)
    step = rows["step"]
    late = found.cell("late", 8192)
    chosen = step > np.sort(step)[-(-2 * len(step) // 3) - 1]
    for cell, part in (
        (found.cell(ALL, 8192), step >= 0),
        (late, chosen),
        (found.cell(UNDECIDED, 8192), highest < 13),
    ):
        y, s = rows["labels"][part, 1], highest[part]
        scores = cell.scores[CRITIC]
        assert scores.auroc is not None
        assert scores.auprc is not None
        assert cell.rows == part.sum()
        assert scores.auroc.value == pytest.approx(roc_auc_score(y, s))
        assert scores.auprc.value == pytest.approx(average_precision_score(y, s))
        assert scores.auroc.low is None  # no replicates
        assert cell.scores[TILE].brier is None  # no training part to calibrate it on


def test_a_critic_that_knows_is_perfect_and_one_that_guesses_is_not(corpus: Corpus) -> None:
    highest = corpus.runs["highest_tile"]
    runs = iter(corpus.fetch(slice(None), ("run",))["run"])

    def know(exps: NDArray[np.uint8]) -> list[float]:
        return [float(highest[next(runs)] >= 8192) for _ in exps]

    cell = evaluate(Fake(know, [8192]), corpus, per_run=None, replicates=50).cell(ALL, 8192)
    scores = cell.scores[CRITIC]
    assert scores.auroc is not None
    assert (scores.auroc.value, scores.auroc.low, scores.auroc.high) == (1, 1, 1)
    assert scores.brier is not None
    assert scores.ece is not None
    assert (scores.brier.value, scores.ece.value) == (0, 0)
    gain = cell.scores[TILE].gain
    assert gain is not None
    assert gain.low is not None
    assert gain.low > 0
    rng = np.random.default_rng(3)
    guess = evaluate(Fake(lambda exps: rng.random(len(exps)), [8192]), corpus, replicates=200).cell(ALL, 8192)
    auroc = guess.scores[CRITIC].auroc
    assert auroc is not None
    assert auroc.low is not None
    assert auroc.high is not None
    assert auroc.low - 0.01 < 0.5 < auroc.high + 0.01


def test_one_class_says_so(corpus: Corpus) -> None:
    few = corpus.where(max_tile=8192)
    found = evaluate(Fake(lambda exps: exps.max(axis=1) / 15, [2048, 16384]), few, replicates=20)
    never = found.cell(ALL, 16384)
    assert never.note == f"0 positive runs of {len(few.runs)}"
    assert (never.scores[CRITIC].auroc, never.scores[CRITIC].auprc) == (None, None)
    assert never.scores[CRITIC].brier is not None
    always = found.cell(ALL, 2048)
    assert always.note == f"{len(few.runs)} positive runs of {len(few.runs)}"
    assert (always.scores[CRITIC].auroc, always.scores[CRITIC].auprc) == (None, None)
    # Each board shows 1024 at least: on none of them is 16384 decided, on all of them 1024 is.
    assert found.cell(UNDECIDED, 16384).rows > 0
    nowhere = evaluate(tile_critic(), few.where(min_tile=2048), replicates=5, per_run=3)
    assert nowhere.cell(UNDECIDED, 16384).note is not None


def test_few_runs_of_a_kind_have_no_interval(corpus: Corpus) -> None:
    reached = corpus.runs["highest_tile"] >= 8192
    chosen = ~reached
    chosen[np.flatnonzero(reached)[:3]] = True
    cell = evaluate(tile_critic(), corpus.where(chosen), replicates=30).cell(ALL, 8192)
    assert cell.note is not None
    assert cell.note.startswith("3 positive runs of ")
    auroc = cell.scores[CRITIC].auroc
    assert auroc is not None
    assert auroc.low is None
    assert cell.scores[CRITIC].brier is not None
    assert cell.scores[CRITIC].brier.low is not None


def test_the_same_seed_gives_the_same_and_workers_do_not_matter(corpus: Corpus) -> None:
    one = evaluate(tile_critic(), corpus, per_run=5, replicates=20, seed=4, workers=1)
    assert msgspec.json.encode(one) == msgspec.json.encode(
        evaluate(tile_critic(), corpus, per_run=5, replicates=20, seed=4, workers=3)
    )
    assert one.cells != evaluate(tile_critic(), corpus, per_run=5, replicates=20, seed=5).cells


@pytest.mark.parametrize(
    ("by", "names"),
    [("progress", ["first third", "second third", "last third"]), ("tile", ["1024", "2048", "4096"])],
)
def test_other_stages_part_the_rows_too(corpus: Corpus, by: Any, names: list[str]) -> None:
    found = evaluate(tile_critic(), corpus, by=by, per_run=None, replicates=0)
    stages = [stage.name for stage in found.stages]
    assert stages[1 : 1 + len(names)] == names
    inner = stages[1:-1]
    assert sum(found.cell(name, 8192).rows for name in inner) == found.rows
    if by == "tile":
        assert found.cell("4096", 8192).scores[TILE].auroc is not None
        assert found.cell("4096", 8192).scores[TILE].auroc.value == 0.5  # type: ignore[union-attr]


def test_wrong_arguments_and_critics_are_refused(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="by='year'"):
        evaluate(tile_critic(), corpus, by="year", replicates=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed=-1"):
        evaluate(tile_critic(), corpus, seed=-1)
    # Before the critic is asked about a single row.
    silent = Fake(pytest.fail, [8192])
    options: dict[str, Any]
    for options in ({"by": "year"}, {"replicates": -1}, {"replicates": 1.5}, {"workers": 0}, {"per_run": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}=.*; expected"):
            evaluate(silent, corpus, **options)
    session: Any = corpus.sessions[0]
    with pytest.raises(TypeError, match="expected a Corpus"):
        evaluate(silent, corpus, train=session)
    wrong = tile_critic()
    wrong.thresholds = (8192,)
    wrong.say = lambda exps: exps.max(axis=1) / 15
    broken: Any = wrong
    broken.__class__ = type("Broken", (Fake,), {"__call__": lambda _, boards: np.zeros((len(boards), 2))})
    with pytest.raises(ValueError, match=r"2\) for .* boards and 1 threshold$"):
        evaluate(broken, corpus, replicates=0)


def test_the_reliability_curve_has_all_rows(found: Evaluation) -> None:
    assert [curve.threshold for curve in found.reliability] == list(TILES)
    for curve in found.reliability:
        assert sum(one.rows for one in curve.bins) == found.rows
        assert [one.predicted for one in curve.bins] == sorted(one.predicted for one in curve.bins)


# ------------------------------------------------------------------------------------- baselines


@pytest.mark.parametrize("seed", range(6))
def test_the_score_so_far_is_the_games(seed: int) -> None:
    cells, _, generator = reference.new_game(seed)
    score, boards, scores = 0, [], []
    while True:
        boards.append(reference.pack(cells))
        scores.append(score)
        move = reference.random_move(cells, generator)
        if move is None:
            break
        cells, gained = reference.slide(cells, move)
        cells, _ = reference.spawn(cells, generator)
        score += gained
    found = score_so_far(np.array(boards, np.uint64), np.arange(len(boards), dtype=np.uint32))
    assert found.tolist() == scores


def test_the_highest_tile_and_nothing() -> None:
    boards = np.array([0, 0x1, 0xF00000000000000A, 0x0123456789ABCDE0], np.uint64)
    steps = np.zeros(4, np.uint32)
    assert highest_tile(boards, steps).tolist() == [0, 1, 15, 14]
    assert nothing(boards, steps).tolist() == [0, 0, 0, 0]


def test_calibration_is_monotone_and_of_a_constant_the_share() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=4000)
    labels = rng.random(4000) < 1 / (1 + np.exp(-2 * scores))
    at = np.linspace(-1.5, 1.5, 7)
    p = calibrate(scores, labels, at)
    assert (np.diff(p) >= 0).all()
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-2 * at)), atol=0.12)
    assert calibrate(np.zeros(10), np.arange(10) < 3, np.zeros(2)).tolist() == pytest.approx([0.3, 0.3])
