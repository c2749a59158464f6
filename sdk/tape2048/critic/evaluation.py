"""The examination of a critic: by stage of the game and threshold, beside baselines, with intervals by game.

**Stages.** A critic is asked about boards of games that are still being played, so a stage has to be
something that is known there and then. Move number is the plainest such thing: ``early``, ``middle`` and
``late`` are the thirds of the examined rows by move number. (A share of the game's length,
``by="progress"``, looks into the future: the last tenth of a game is where it is about to be lost. Within
one highest tile, ``by="tile"``, the baseline of that name knows nothing at all.) Two more stages are always
there: ``all`` rows, and ``undecided``, the rows on which the tile does not stand yet; the others are easy,
since their label is known.

**Rows.** A critic is trained on at most so many rows of each game, and its probabilities are meant for such
rows: where all rows count, long games count more, and more of them reach the tile. So the rows examined are
drawn in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np

from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered, worker_count
from tape2048.critic.baselines import calibrate, highest_tile, nothing
from tape2048.critic.metrics import (
    RunBootstrap,
    brier_score,
    calibration_error,
    descending,
    estimate,
    ranking,
    reliability,
)
from tape2048.critic.results import Cell, Evaluation, ReliabilityBin, ReliabilityCurve, Scores, Stage
from tape2048.critic.sample import CriticLike, Sample, take_sample
from tape2048.store.view import check_corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.baselines import Baseline
    from tape2048.critic.metrics import Estimate

__all__ = [
    "ALL",
    "CRITIC",
    "PREVALENCE",
    "TILE",
    "UNDECIDED",
    "Cell",
    "CriticLike",
    "Evaluation",
    "ReliabilityBin",
    "ReliabilityCurve",
    "Scores",
    "Stage",
    "StagesBy",
    "evaluate",
]

#: How rows are divided into stages.
StagesBy: TypeAlias = Literal["moves", "tile", "progress"]

ALL, UNDECIDED = "all", "undecided"

#: Names of predictors.
CRITIC, PREVALENCE, TILE = "critic", "prevalence", "highest tile"

#: With fewer runs of either class than this, the draws of the bootstrap say little, and AUROC and AUPRC
#: come without an interval.
INTERVAL_RUNS_MIN = 5

#: Draws of rows and of replicates are told apart by this.
_TRAIN_SEED = 1


def evaluate(
    critic: CriticLike,
    corpus: Corpus,
    *,
    train: Corpus | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    by: StagesBy = "moves",
    per_run: int | None = 512,
    replicates: int = 1000,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> Evaluation:
    """Examine a critic.

    Args:
        critic: a :class:`tape2048.torch.critic.Critic`, or anything that can be asked like one.
        corpus: games that it did not learn from.
        train: games that it did, on which baselines are calibrated; None: these have no Brier score and ECE.
        baselines: by name, beside the prevalence and the highest tile.
        by: what makes stages; see the module.
        per_run: rows of each game at most, >= 1, drawn as in training; None: all.
        replicates: of the bootstrap by run; 0: no intervals.
        seed: decides rows and replicates, >= 0.
        workers: threads; None: one for each core.
        progress: called with what is done (``"rows"``, ``"training rows"``, ``"bootstrap"``), how much of it,
            and the whole.

    Raises:
        TypeError: what is no corpus.
        ValueError: a wrong argument.
        MissingPackageError: ``train`` is given, and scikit-learn is not installed.
        TapeError: what reading rows and asking the critic raise.
    """
    # Before the critic is asked about all rows, which may take hours.
    if by not in get_args(StagesBy):
        raise ValueError(f"by={by!r}; expected 'moves', 'tile' or 'progress'")
    worker_count(workers)
    for name, value in (("seed", seed), ("replicates", replicates)):
        if as_int(name, value) < 0:
            raise ValueError(f"{name}={value}; expected at least 0")
    for each in (corpus, train):
        if each is not None:
            check_corpus(each)
    tiles = tuple(critic.thresholds)
    asked: dict[str, Baseline] = {PREVALENCE: nothing, TILE: highest_tile, **(baselines or {})}
    report = progress or (lambda *_: None)
    sample = take_sample(
        corpus, critic, asked, per_run=per_run, seed=seed,
        progress=lambda done, total: report("rows", done, total),
    )  # fmt: skip
    calibrated = None
    if train is not None:
        learned = take_sample(
            train, None, asked, per_run=per_run, seed=seed + _TRAIN_SEED,
            progress=lambda done, total: report("training rows", done, total),
        )  # fmt: skip
        calibrated = _calibrated(sample, learned, tiles)
    drawn = RunBootstrap(len(sample.highest), replicates, seed)
    stages = list(_stages(sample, by))
    examiner = _Examiner(sample, tiles, _predictors(sample, tiles, calibrated), drawn)
    jobs = [(stage, at) for stage in stages for at in range(len(tiles))]
    cells: list[Cell] = []
    for cell in map_ordered(lambda job: examiner.cell(*job), jobs, workers):
        cells.append(cell)
        report("bootstrap", len(cells), len(jobs))
    return Evaluation(
        thresholds=list(tiles),
        stages=[stage.stage for stage in stages],
        predictors=list(examiner.predictors),
        rows=len(sample.runs),
        runs=len(np.unique(sample.runs)),
        per_run=per_run,
        replicates=replicates,
        seed=seed,
        cells=cells,
        reliability=[examiner.curve(at) for at in range(len(tiles))],
    )


# ---------------------------------------------------------------------------------------- stages


class _StageRows(NamedTuple):
    """A stage, and which rows it has.

    Attributes:
        stage: its name.
        rows: ``bool[N]``; None: those on which the tile in question does not stand yet.
    """

    stage: Stage
    rows: NDArray[np.bool_] | None


def _stages(sample: Sample, by: StagesBy) -> Iterator[_StageRows]:
    """The stages, in order."""
    yield _StageRows(Stage(ALL, "all rows"), np.ones(len(sample.runs), np.bool_))
    if by == "moves":
        yield from _thirds(sample.steps)
    elif by == "progress":
        ends = np.array([1 / 3, 2 / 3])
        third = np.searchsorted(ends, sample.steps / sample.lengths[sample.runs], "right")
        for number, name in enumerate(("first third", "second third", "last third")):
            about = "of each game's moves; known only when it has ended"
            yield _StageRows(Stage(name, about), third == number)
    else:
        for exponent in np.unique(sample.tiles).tolist():
            about = "highest tile on the board"
            yield _StageRows(Stage(str(1 << exponent), about), sample.tiles == exponent)
    yield _StageRows(Stage(UNDECIDED, "rows on which the tile does not stand yet"), None)


def _thirds(steps: NDArray[np.uint32]) -> Iterator[_StageRows]:
    first, second = np.quantile(steps, [1 / 3, 2 / 3], method="inverted_cdf").astype(np.int64).tolist()
    last = int(steps.max())
    bounds = {"early": (0, first), "middle": (first + 1, second), "late": (second + 1, last)}
    for name, (low, high) in bounds.items():
        about = f"moves {low:,} to {high:,}" if low <= high else "no moves"
        yield _StageRows(Stage(name, about), (steps >= low) & (steps <= high))


# ------------------------------------------------------------------------------------ predictors


class _Predictor(NamedTuple):
    #: ``[N, T]``, or ``[N, 1]`` where one score serves all thresholds.
    scores: NDArray[Any]
    #: Rows by descending score, for each column of the scores.
    orders: list[NDArray[np.int64]]
    #: ``[N, T]``, or None.
    probabilities: NDArray[Any] | None

    def score(self, at: int) -> NDArray[Any]:
        """Scores for the threshold with this number."""
        return self.scores[:, at if self.scores.shape[1] > 1 else 0]

    def order(self, at: int) -> NDArray[np.int64]:
        """Rows by these, highest first."""
        return self.orders[at if len(self.orders) > 1 else 0]


def _predictors(
    sample: Sample, tiles: Sequence[int], calibrated: dict[str, NDArray[np.float64]] | None
) -> dict[str, _Predictor]:
    found = {CRITIC: _sorted(sample.probabilities, sample.probabilities)}
    if sample.probabilities.shape != (len(sample.runs), len(tiles)):
        raise ValueError(
            f"the critic gave {sample.probabilities.shape} for {counted(len(sample.runs), 'board')} and "
            f"{counted(len(tiles), 'threshold')}"
        )
    for name, scores in sample.baselines.items():
        found[name] = _sorted(scores[:, None], None if calibrated is None else calibrated[name])
    return found


def _sorted(scores: NDArray[Any], probabilities: NDArray[Any] | None) -> _Predictor:
    return _Predictor(scores, [descending(column) for column in scores.T], probabilities)


def _calibrated(sample: Sample, learned: Sample, tiles: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    labels = learned.labels(tiles)[learned.runs]
    return {
        name: np.stack(
            [calibrate(learned.baselines[name], labels[:, at], scores) for at in range(len(tiles))], axis=1
        )
        for name, scores in sample.baselines.items()
    }


# ----------------------------------------------------------------------------------------- cells


class _Examiner(NamedTuple):
    sample: Sample
    tiles: tuple[int, ...]
    predictors: dict[str, _Predictor]
    drawn: RunBootstrap

    def cell(self, stage: _StageRows, at: int) -> Cell:
        """All predictors in one stage, for the threshold with this number."""
        sample, tile = self.sample, self.tiles[at]
        chosen = stage.rows
        if chosen is None:
            chosen = (np.int64(1) << sample.tiles.astype(np.int64)) < tile
        run_labels = sample.highest >= tile
        runs = np.unique(sample.runs[chosen])
        labels = run_labels[sample.runs]
        positive = int(run_labels[runs].sum())
        cell = Cell(
            stage=stage.stage.name,
            threshold=tile,
            rows=int(chosen.sum()),
            rows_positive=int(labels[chosen].sum()),
            runs=len(runs),
            runs_positive=positive,
            note=_note(len(runs), positive),
        )
        enough = min(positive, len(runs) - positive) >= INTERVAL_RUNS_MIN
        scores: dict[str, Scores] = {}
        first = None
        for name, predictor in self.predictors.items() if len(runs) else ():
            order = predictor.order(at)
            ranked = ranking(
                predictor.score(at), labels, sample.runs, self.drawn.weights, order=order[chosen[order]]
            )
            brier, ece = self._calibration(predictor, at, chosen, labels)
            scores[name] = Scores(
                auroc=estimate(ranked.auroc, interval=enough),
                # With no false row it is 1 whatever the scores are.
                auprc=None
                if np.isnan(ranked.auroc[0])
                else estimate(ranked.average_precision, interval=enough),
                brier=brier,
                ece=ece,
                gain=None if first is None else estimate(first - ranked.auroc, interval=enough),
            )
            first = ranked.auroc if first is None else first
        return msgspec.structs.replace(cell, scores=scores)

    def _calibration(
        self, predictor: _Predictor, at: int, chosen: NDArray[np.bool_], labels: NDArray[np.bool_]
    ) -> tuple[Estimate | None, Estimate | None]:
        if predictor.probabilities is None:
            return None, None
        what = predictor.probabilities[chosen, at], labels[chosen], self.sample.runs[chosen]
        weights = self.drawn.weights
        return estimate(brier_score(*what, weights)), estimate(calibration_error(reliability(*what, weights)))

    def curve(self, at: int) -> ReliabilityCurve:
        """What the critic said and what came true."""
        labels = (self.sample.highest >= self.tiles[at])[self.sample.runs]
        bins = reliability(self.sample.probabilities[:, at], labels, self.sample.runs, self.drawn.weights)
        made = []
        for rows, predicted, observed in zip(bins.rows.tolist(), bins.predicted, bins.observed, strict=True):
            known = estimate(observed)
            assert known is not None  # a bin has rows
            made.append(ReliabilityBin(rows, float(predicted[0]), known))
        return ReliabilityCurve(self.tiles[at], made)


def _note(runs: int, positive: int) -> str | None:
    if runs == 0:
        return "no rows"
    if positive in {0, runs}:
        return f"{positive:,} positive runs of {runs:,}"
    if min(positive, runs - positive) < INTERVAL_RUNS_MIN:
        return f"{positive:,} positive runs of {runs:,}: too few of a kind for an interval"
    return None
