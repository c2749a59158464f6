"""Examinations of critics whose probabilities are known, and the baselines beside them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.critic.evaluation import (
    ALL,
    CRITIC,
    INTERVAL_RUNS_MIN,
    PREVALENCE,
    TILE,
    UNDECIDED,
    Evaluation,
    calibrate,
    evaluate,
    highest_tile,
)
from tape2048.critic.metrics import calibration_error, reliability
from tape2048.errors import MissingPackageError
from tape2048.game.rules import boards_to_exps

from ..critics import TILES, make_games, make_uneven


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


def test_a_critic_like_the_highest_tile_ties_with_it(found: Evaluation) -> None:
    for cell in found.cells:
        if cell.scores[CRITIC].auroc is None:
            continue
        assert cell.scores[CRITIC].auroc == cell.scores[TILE].auroc
        gain = cell.scores[TILE].gain
        assert gain.value == 0
        assert gain.low in {0, None}
        assert cell.scores[PREVALENCE].auroc.value == 0.5


def test_thresholds_are_scored_separately(corpus: Corpus) -> None:
    """By definition, the values of baselines, and of a critic that says another thing for each one."""
    from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

    parts = corpus.split(train=0.5, val=0.5)

    def say(exps: NDArray[np.uint8]) -> NDArray[np.float64]:
        return (exps.max(axis=1)[:, None] + exps[:, :3] * np.array([0.0, 0.5, 2.0])) / 40

    def cells_filled(boards: NDArray[np.uint64], scores: NDArray[np.int64]) -> NDArray[np.int64]:
        assert len(boards) == len(scores)
        return (boards_to_exps(boards) > 8).sum(axis=1)

    critic: Any = Fake(say)
    critic.__class__ = type("Each", (Fake,), {"__call__": lambda self, b: self.say(boards_to_exps(b))})
    done: list[tuple[str, int, int]] = []
    found = evaluate(
        critic, parts["val"], train=parts["train"], baselines={"filled": cells_filled}, per_run=None,
        replicates=0, progress=lambda *what: done.append(what),
    )  # fmt: skip
    assert list(found.predictors) == [CRITIC, PREVALENCE, TILE, "filled"]
    read = {name: len(parts[part]) for name, part in (("rows", "val"), ("training rows", "train"))}
    assert {what: (last, total) for what, last, total in done} == {
        **{name: (rows, rows) for name, rows in read.items()}, "bootstrap": (len(found.cells),) * 2
    }  # fmt: skip
    fields = ("tokens", "labels", "run")
    train, val = (parts[part].fetch(slice(None), fields, thresholds=TILES) for part in ("train", "val"))
    once = np.ones((len(parts["val"].runs), 1), np.float32)
    said = say(val["tokens"]).astype(np.float32)
    for at, tile in enumerate(TILES):
        y = val["labels"][:, at]
        for stage in (ALL, UNDECIDED):
            part = (2 ** val["tokens"].max(axis=1).astype(int) < tile) | (stage == ALL)
            cell = found.cell(stage, tile)
            for name, scored in (
                (CRITIC, None),
                (TILE, lambda exps: exps.max(axis=1)),
                ("filled", lambda exps: (exps > 8).sum(axis=1)),
            ):
                if scored is None:
                    scores = p = said[:, at]
                else:
                    scores = scored(val["tokens"])
                    p = calibrate(scored(train["tokens"]), train["labels"][:, at], scores)
                of = cell.scores[name]
                assert of.auroc.value == pytest.approx(roc_auc_score(y[part], scores[part]))
                assert of.auprc.value == pytest.approx(average_precision_score(y[part], scores[part]))
                assert of.brier.value == pytest.approx(((p - y) ** 2)[part].mean())
                inner = np.clip(p[part].astype(np.float64), 1e-6, 1 - 1e-6)
                assert of.log_loss.value == pytest.approx(log_loss(y[part], inner))
                base = log_loss(y[part], np.full(part.sum(), y[part].mean()))
                assert cell.base_log_loss == pytest.approx(base)
                assert of.skill.value == pytest.approx(1 - of.log_loss.value / base)
                bins = reliability(p[part], y[part], val["run"][part].astype(int), once)
                assert of.ece.value == pytest.approx(calibration_error(bins)[0])
        curve = found.reliability[at].bins
        assert sum(one.rows * one.observed.value for one in curve) == pytest.approx(y.sum())
        assert sum(one.rows * one.predicted for one in curve) == pytest.approx(said[:, at].sum(), rel=1e-5)


def test_a_capped_sample_examines_as_all_rows_do(tmp_path: Path) -> None:
    """All rows of a game are alike here, so that twelve of each, of 2, 4 or 20 rows each, tell the same."""
    corpus = Corpus.open(make_uneven(tmp_path, games=200))
    parts = corpus.split(train=0.5, val=0.5)

    def examined(per_run: int | None) -> Evaluation:
        return evaluate(
            Fake(lambda exps: exps[:, :3].sum(axis=1) / 45), parts["val"], train=parts["train"],
            baselines={"sum": lambda boards, _: boards_to_exps(boards).sum(axis=1)}, per_run=per_run,
            replicates=100, seed=1,
        )  # fmt: skip

    capped, every = examined(12), examined(None)
    assert capped.rows == 12 * capped.runs < every.rows == every.rows_in_all == capped.rows_in_all
    for tile in TILES:
        for stage in (ALL, UNDECIDED):
            found, expected = capped.cell(stage, tile), every.cell(stage, tile)
            assert found.rows < expected.rows
            assert found.prevalence == pytest.approx(expected.rows_positive / expected.rows)
            assert found.prevalence == pytest.approx(expected.prevalence)
            for name, scores in expected.scores.items():
                mine = msgspec.structs.asdict(found.scores[name])
                for metric, value in msgspec.structs.asdict(scores).items():
                    if value is None:
                        assert mine[metric] is None
                        continue
                    both = msgspec.structs.astuple(mine[metric]), msgspec.structs.astuple(value)
                    assert both[0] == pytest.approx(both[1], abs=1e-6), (stage, tile, name, metric)
    whole = capped.cell(ALL, TILES[0])
    assert whole.prevalence - whole.rows_positive / whole.rows > 0.1, "the share among rows that count alike"
    for one, other in zip(capped.reliability, every.reliability, strict=True):
        assert [each.predicted for each in one.bins] == pytest.approx([each.predicted for each in other.bins])
        assert [each.observed.value for each in one.bins] == pytest.approx(
            [each.observed.value for each in other.bins]
        )
    bounds = [
        [int(stage.about.split()[3].replace(",", "")) for stage in evaluation.stages[1:3]]
        for evaluation in (capped, every)
    ]
    np.testing.assert_allclose(*bounds, rtol=0.1)


def test_runs_without_rows_in_the_view_are_not_counted(corpus: Corpus) -> None:
    view = corpus.phase(empties=(6, None))
    of_runs = np.unique(view.fetch(slice(None), ("run",))["run"])
    assert 0 < len(of_runs) < len(view.runs)
    assert evaluate(tile_critic(), view, replicates=0).runs == len(of_runs)


def test_perfect_and_guessing_critics(corpus: Corpus) -> None:
    highest = corpus.runs["highest_tile"]
    runs = iter(corpus.fetch(slice(None), ("run",))["run"])

    def know(exps: NDArray[np.uint8]) -> list[float]:
        return [float(highest[next(runs)] >= 8192) for _ in exps]

    cell = evaluate(Fake(know, [8192]), corpus, per_run=None, replicates=50).cell(ALL, 8192)
    scores = cell.scores[CRITIC]
    assert (scores.auroc.value, scores.auroc.low, scores.auroc.high) == (1, 1, 1)
    assert (scores.brier.value, scores.ece.value) == (0, 0)
    gain = cell.scores[TILE].gain
    assert gain.low > 0
    rng = np.random.default_rng(3)
    guess = evaluate(Fake(lambda exps: rng.random(len(exps)), [8192]), corpus, replicates=200).cell(ALL, 8192)
    auroc = guess.scores[CRITIC].auroc
    assert auroc.low - 0.01 < 0.5 < auroc.high + 0.01


def test_one_class_says_so(corpus: Corpus) -> None:
    few = corpus.where(max_highest_tile=8192)
    found = evaluate(Fake(lambda exps: exps.max(axis=1) / 15, [2048, 16384]), few, replicates=20)
    never = found.cell(ALL, 16384)
    assert never.note == f"0 positive runs of {len(few.runs)}"
    assert (never.scores[CRITIC].auroc, never.scores[CRITIC].auprc) == (None, None)
    assert never.scores[CRITIC].brier is not None
    assert (never.base_log_loss, never.scores[CRITIC].skill) == (None, None)
    assert never.scores[CRITIC].log_loss.value > 0
    assert f"16384: too few games: none of {len(few.runs)} games reached the tile." in str(found)
    always = found.cell(ALL, 2048)
    assert always.note == f"{len(few.runs)} positive runs of {len(few.runs)}"
    assert (always.scores[CRITIC].auroc, always.scores[CRITIC].auprc) == (None, None)
    # Each board shows 1024 at least: on none of them is 16384 decided, on all of them 1024 is.
    assert found.cell(UNDECIDED, 16384).rows > 0
    nowhere = evaluate(tile_critic(), few.where(min_highest_tile=2048), replicates=5, per_run=3)
    assert nowhere.cell(UNDECIDED, 16384).note is not None


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("few", [3, INTERVAL_RUNS_MIN - 1, INTERVAL_RUNS_MIN])
def test_few_runs_of_a_kind_have_no_interval(corpus: Corpus, few: int, positive: bool) -> None:
    rare = (corpus.runs["highest_tile"] >= 8192) == positive
    chosen = ~rare
    chosen[np.flatnonzero(rare)[:few]] = True
    cell = evaluate(tile_critic(), corpus.where(chosen), replicates=30).cell(ALL, 8192)
    assert cell.runs_positive == (few if positive else cell.runs - few)
    auroc = cell.scores[CRITIC].auroc
    if few < INTERVAL_RUNS_MIN:
        assert cell.note == (
            f"{cell.runs_positive} positive runs of {cell.runs}: too few of a class for an interval"
        )
        assert auroc.low is None
    else:
        assert cell.note is None
        assert auroc.low is not None
    assert cell.scores[CRITIC].brier.low is not None


def test_the_seed_decides_and_workers_do_not(corpus: Corpus) -> None:
    one = evaluate(tile_critic(), corpus, per_run=5, replicates=20, seed=4, workers=1)
    assert msgspec.json.encode(one) == msgspec.json.encode(
        evaluate(tile_critic(), corpus, per_run=5, replicates=20, seed=4, workers=3)
    )
    assert one.cells != evaluate(tile_critic(), corpus, per_run=5, replicates=20, seed=5).cells
    # Of all rows, the seed decides which runs are drawn anew.
    all_rows = [
        evaluate(tile_critic(), corpus, per_run=None, replicates=20, seed=seed).cell(ALL, 8192).scores[CRITIC]
        for seed in (4, 5)
    ]
    assert all_rows[0].auroc != all_rows[1].auroc


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
    scores = found.cell(ALL, 8192).scores
    assert scores[CRITIC].auroc.low is None  # no replicates
    assert scores[TILE].brier is None  # no training part to calibrate it on
    if by == "tile":
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
    with pytest.raises(ValueError, match=r"2\); expected .*, 1\), for .* boards and 1 threshold$"):
        evaluate(broken, corpus, replicates=0)


@pytest.mark.parametrize("takes", ["boards", "tokens"])
def test_any_function_is_evaluated(corpus: Corpus, found: Evaluation, takes: str) -> None:
    critic, given = tile_critic(), set()

    def of_tokens(tokens: NDArray[np.uint8]) -> NDArray[np.float32]:
        given.add(tokens.dtype)
        return np.repeat(tokens.max(axis=1, keepdims=True) / 15, len(TILES), axis=1)

    options: Any = {"per_run": 20, "replicates": 100, "seed": 1}
    parts = corpus.split(train=0.5, val=0.5)
    function = of_tokens if takes == "tokens" else critic.__call__
    again = evaluate(function, parts["val"], train=parts["train"], thresholds=TILES, **options)
    assert again == found
    assert np.dtype(np.uint8) in given or takes == "boards"
    assert evaluate(lambda boards: np.zeros((len(boards), 3)), corpus, replicates=0).thresholds == [
        8192, 16384, 32768,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda boards: np.full((len(boards), 3), 7.5),
            r"values from 7.5 to 7.5 of shape .*; expected probabilities",
        ),
        (lambda boards: np.full((len(boards), 3), np.nan), r"values from nan to nan"),
        (
            lambda boards: np.zeros((len(boards), 2)),
            r"shape \(\d+, 2\) for boards .* shape \(\d+, 2\) for tokens .*; expected",
        ),
        (
            lambda boards: boards.nonsense,
            r"found AttributeError: .*nonsense.* and AttributeError: .* for tokens",
        ),
    ],
)
def test_a_function_without_probabilities(corpus: Corpus, function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(function, corpus, replicates=0)


@pytest.mark.parametrize("training", [True, False])
def test_a_module_is_evaluated_by_its_logits(corpus: Corpus, training: bool) -> None:
    import torch

    class Tiles(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(1))
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, tokens: Any) -> Any:
            assert (tokens.dtype, tokens.shape[1]) == (torch.uint8, 16)
            assert torch.is_inference_mode_enabled()
            return self.drop(tokens.float().amax(dim=1, keepdim=True).expand(-1, 3) - 9 + self.shift)

    model, options = Tiles().train(training), {"per_run": 9, "replicates": 20, "thresholds": TILES}
    found = evaluate(model, corpus, **options)
    assert model.training is training
    by_hand = evaluate(
        lambda tokens: (
            np.repeat(1 / (1 + np.exp(9.0 - tokens.max(axis=1, keepdims=True))), 3, 1)
            if tokens.ndim == 2
            else None
        ),
        corpus,
        **options,
    )
    for one, other in zip(found.cells, by_hand.cells, strict=True):
        assert one.scores[CRITIC].auroc == other.scores[CRITIC].auroc
        assert one.scores[CRITIC].brier.value == pytest.approx(other.scores[CRITIC].brier.value)
    with pytest.raises(
        ValueError, match=r"Tiles: found values from .* \(\d+, 3\) for tokens .*; expected .*2\)"
    ):
        evaluate(model, corpus, thresholds=TILES[:2], per_run=1)


def test_printed_tables_have_every_stage_and_figure(found: Evaluation) -> None:
    text = str(found)
    assert text.startswith(f"{found.rows:,} rows of {found.runs} games; intervals: 95%, 100 bootstrap")
    for tile in TILES:
        ranks, critic = (
            text.split(f"{tile}: {title}\n")[1].split("\n\n", maxsplit=1)[0]
            for title in ("AUROC", "the critic")
        )
        for lines in (ranks, critic):
            names = [line.split()[0] for line in lines.splitlines()[1:]]
            assert names == [stage.name for stage in found.stages]
        cell = found.cell(ALL, tile)
        skill, loss = cell.scores[CRITIC].skill, cell.scores[CRITIC].log_loss
        assert f"{loss.value:.3f} ({loss.low:.3f}-{loss.high:.3f})" in critic
        values = f"{cell.base_log_loss:.3f} {skill.value:+.3f} ({skill.low:+.3f} to {skill.high:+.3f})"
        assert values in " ".join(critic.split())
    assert found.stages[1].about in text
    assert "R2" not in text


def test_a_notebook_shows_the_tables_and_a_figure(found: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    html = found._repr_html_()
    assert html.count("<table>") == 2 * len(TILES) + 1
    assert f"<caption>{TILES[0]}: AUROC</caption>" in html
    assert html.count('src="data:image/png;base64,iVBOR') == 1
    axes = found.figure().axes
    assert len(axes) == 2 * len(TILES)
    drawn = [float(y) for y in axes[0].containers[0].lines[0].get_ydata()]
    assert drawn == [found.cell(stage.name, TILES[0]).scores[CRITIC].auroc.value for stage in found.stages]
    predicted = axes[1].containers[0].lines[0].get_xdata().tolist()
    assert predicted == [one.predicted for one in found.reliability[0].bins]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert found._repr_html_() == html.partition("<img")[0]
    with pytest.raises(MissingPackageError, match="matplotlib") as caught:
        found.figure()
    assert "tape2048[plot]" in caught.value.advice


def test_a_figure_of_missing_metrics(corpus: Corpus) -> None:
    few = corpus.where(max_highest_tile=8192)
    found = evaluate(Fake(lambda exps: exps.max(axis=1) / 15, [2048, 16384]), few, replicates=0)
    assert len(found.figure().axes) == 4
    assert (
        "<script"
        not in msgspec.structs.replace(found, predictors=["<script>", *found.predictors[1:]])._repr_html_()
    )


def test_the_reliability_curve_has_all_rows(found: Evaluation) -> None:
    assert [curve.threshold for curve in found.reliability] == list(TILES)
    for curve in found.reliability:
        assert sum(one.rows for one in curve.bins) == found.rows
        assert [one.predicted for one in curve.bins] == sorted(one.predicted for one in curve.bins)


# ------------------------------------------------------------------------------------- baselines


def test_the_highest_tile() -> None:
    boards = np.array([0, 0x1, 0xF00000000000000A, 0x0123456789ABCDE0], np.uint64)
    assert highest_tile(boards, np.zeros(4, np.int64)).tolist() == [0, 1, 15, 14]


def test_calibration_is_monotone() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=4000)
    labels = rng.random(4000) < 1 / (1 + np.exp(-2 * scores))
    at = np.linspace(-1.5, 1.5, 7)
    p = calibrate(scores, labels, at)
    assert (np.diff(p) >= 0).all()
    np.testing.assert_allclose(p, 1 / (1 + np.exp(-2 * at)), atol=0.12)
    assert calibrate(np.zeros(10), np.arange(10) < 3, np.zeros(2)).tolist() == pytest.approx([0.3, 0.3])


def test_calibration_weights_rows() -> None:
    rng = np.random.default_rng(2)
    scores, weights, at = rng.integers(0, 9, 300), rng.integers(1, 6, 300), np.arange(9)
    labels = rng.random(300) < scores / 9
    repeated = calibrate(np.repeat(scores, weights), np.repeat(labels, weights), at)
    np.testing.assert_allclose(calibrate(scores, labels, at, weights), repeated, atol=1e-12)
    assert np.abs(calibrate(scores, labels, at) - repeated).max() > 1e-3
