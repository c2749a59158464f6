"""Evaluation against labels of one's own: 0 and 1, or real numbers, by stage of the game.

==============  =====================================================================================
0/1 labels      AUROC, log loss, skill, Brier score, ECE: see :mod:`tape2048.critic.metrics`
real labels     R2 = 1 - sum of (y - prediction)^2 / sum of (y - mean of y)^2, RMSE, bias
==============  =====================================================================================

The mean of y is of the stage, so R2 is 0 for the best constant of each stage. All sums are weighted by the
rows that a row of the sample represents.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import aligned, counted, html_table
from tape2048.base.threads import map_ordered
from tape2048.critic.evaluation import BATCH_ROWS, Sample, predictions_of, stages_of, take_sample
from tape2048.critic.metrics import (
    Estimate,
    ReliabilityBin,
    RunBootstrap,
    base_log_loss,
    brier_score,
    calibration_error,
    estimate,
    log_loss,
    ranking,
    ratio,
    reliability,
    weighted,
)
from tape2048.critic.results import INTERVAL_RUNS_MIN, ResultTable, Stage, estimate_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.evaluation import StagesBy

_SIGNED = {"skill", "r2", "bias"}
_HEADS = {"auroc": "AUROC", "log_loss": "log loss", "base_log_loss": "base rate's", "brier": "Brier"}
_HEADS |= {"ece": "ECE", "r2": "R2", "rmse": "RMSE", "deviation": "standard deviation"}


class LabelScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a stage. Those of the other kind of label are None, and so are those of no rows."""

    stage: str
    rows: int
    runs: int  # games with rows in the stage
    mean: Estimate | None  # weighted mean of the labels: for 0/1, the share of 1
    auroc: Estimate | None = None  # None if all labels are equal
    log_loss: Estimate | None = None  # in nats
    base_log_loss: Estimate | None = None  # of the mean as the prediction; None if all labels are equal
    skill: Estimate | None = None  # 1 - log loss / base_log_loss
    brier: Estimate | None = None
    ece: Estimate | None = None
    r2: Estimate | None = None  # None if all labels are equal
    rmse: Estimate | None = None
    deviation: Estimate | None = None  # standard deviation of the labels: the RMSE of their mean
    bias: Estimate | None = None  # mean prediction minus mean label


class LabelEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of :func:`tape2048.critic.evaluate` with ``labels``.

    Attributes:
        is_binary: whether all labels are 0 or 1.
        rows: number of rows in the sample.
        rows_left_out: number of rows whose label is NaN. They count nowhere.
        runs: number of games in the sample.
        per_run: maximum number of rows of a game; None: all.
        replicates: number of bootstrap replicates over games.
        seed: seed of the rows and the bootstrap.
        stages: stages in order.
        scores: scores by stage.
        reliability: for 0/1 labels, predicted and observed shares of all rows.
    """

    is_binary: bool
    rows: int
    rows_left_out: int
    runs: int
    per_run: int | None
    replicates: int
    seed: int
    stages: list[Stage]
    scores: list[LabelScores]
    reliability: list[ReliabilityBin] = []

    def stage(self, name: str) -> LabelScores:
        """Return the scores of a stage, such as ``"all"``. KeyError if it does not exist."""
        return {each.stage: each for each in self.scores}[name]

    def tables(self) -> list[ResultTable]:
        """Return the table of scores, and the table that describes the stages."""
        names = ["r2", "rmse", "deviation", "bias"]
        if self.is_binary:
            names = ["auroc", "log_loss", "base_log_loss", "skill", "brier", "ece"]
        mean = ">share of 1" if self.is_binary else ">mean"
        headings = ("stage", ">rows", ">games", mean, *(f">{_HEADS.get(name, name)}" for name in names))
        rows = [
            (
                one.stage,
                f"{one.rows:,}",
                f"{one.runs:,}",
                *(_text(getattr(one, name), name) for name in ("mean", *names)),
            )
            for one in self.scores
        ]
        about = [(one.name, one.about) for one in self.stages]
        return [ResultTable("", headings, rows), ResultTable("", ("stage", "rows of the stage"), about)]

    def _facts(self) -> str:
        kind = f"95%, {self.replicates:,} bootstrap replicates over games" if self.replicates else "none"
        left_out = f"; {counted(self.rows_left_out, 'row')} without a label" if self.rows_left_out else ""
        return f"{counted(self.rows, 'row')} of {counted(self.runs, 'game')}; intervals: {kind}{left_out}"

    def __str__(self) -> str:
        return "\n".join([f"{self._facts()}\n", *(aligned(*one[1:]) for one in self.tables())]).rstrip()

    def _repr_html_(self) -> str:
        return f"<p>{self._facts()}</p>" + "".join(html_table(*one) for one in self.tables())


def _text(found: Estimate | None, name: str) -> str:
    if found is not None and abs(found.value) >= 1000:  # points
        half = found.half_width
        return f"{found.value:,.0f}" + ("" if half is None else f" ({found.low:,.0f} to {found.high:,.0f})")
    return estimate_text(found, signed=name in _SIGNED)


def evaluate_labels(
    critic: Callable[[NDArray[Any]], Any],
    corpus: Corpus,
    labels: str | ArrayLike,
    *,
    by: StagesBy,
    per_run: int | None,
    replicates: int,
    seed: int,
    workers: int | None,
    progress: Callable[[str, int, int], object],
) -> LabelEvaluation:
    field = labels if isinstance(labels, str) else None
    values = None if isinstance(labels, str) else _check(np.asarray(labels), corpus)
    sample = take_sample(
        corpus, None, {}, per_run=per_run, seed=seed, progress=partial(progress, "rows"),
        extra=(field or "row",),
    )  # fmt: skip
    (truths,) = sample.baselines.values()
    if values is not None:
        truths = values[sample.runs if len(values) == len(corpus.runs) else truths]
    if truths.ndim != 1 or truths.dtype.kind not in "biuf":
        found = f"{truths.dtype} of shape {truths.shape}"
        raise ValueError(f"labels: found {found} in {field or 'the array'}, expected one number for each row")
    known = ~np.isnan(truths) if truths.dtype.kind == "f" else np.ones(len(truths), np.bool_)
    if not known.any():
        raise ValueError("labels: every label is NaN")
    is_binary = bool(np.isin(truths[known], (0, 1)).all())
    ask = predictions_of(critic, None, probabilities=is_binary)
    boards = (sample.boards[first : first + BATCH_ROWS] for first in range(0, len(sample.boards), BATCH_ROWS))
    predicted = np.concatenate([ask(piece) for piece in boards]).astype(np.float64)
    weights = RunBootstrap(len(sample.highest), replicates, seed).weights * sample.weights[:, None]
    truths = truths.astype(np.bool_ if is_binary else np.float64)
    judged = _Judged(sample, predicted, truths, weights, is_binary)
    stages = [(stage, chosen & known) for stage, chosen in stages_of(sample, by) if chosen is not None]
    jobs = [(stage.name, np.flatnonzero(chosen)) for stage, chosen in stages]
    scores = list(map_ordered(lambda job: judged.scores(*job), jobs, workers))
    everywhere = np.flatnonzero(known)
    curve = reliability(*judged.of(everywhere)).listed() if is_binary else []
    return LabelEvaluation(
        is_binary=is_binary,
        rows=len(everywhere),
        rows_left_out=len(known) - len(everywhere),
        runs=len(np.unique(sample.runs[everywhere])),
        per_run=per_run,
        replicates=replicates,
        seed=seed,
        stages=[stage for stage, _ in stages],
        scores=scores,
        reliability=curve,
    )


def _check(values: NDArray[Any], corpus: Corpus) -> NDArray[Any]:
    games, rows = len(corpus.runs), len(corpus)
    if values.shape in {(games,), (rows,)}:
        return values
    raise ValueError(
        f"labels: found an array of shape {values.shape}, expected {(games,)}, a value for each game, or "
        f"{(rows,)}, a value for each row"
    )


class _Judged(NamedTuple):
    sample: Sample
    predicted: NDArray[np.float64]  # of each row, `f64[N]`
    labels: NDArray[Any]  # `bool[N]` or `f64[N]`
    weights: NDArray[np.float32]  # of the runs, `f32[R, W]`
    is_binary: bool

    def of(self, rows: NDArray[np.int64]) -> tuple[Any, Any, Any, Any]:
        return self.predicted[rows], self.labels[rows], self.sample.runs[rows], self.weights

    def scores(self, stage: str, rows: NDArray[np.int64]) -> LabelScores:
        p, y, runs, weights = self.of(rows)
        count = len(np.unique(runs))
        if not count:
            return LabelScores(stage=stage, rows=0, runs=0, mean=None)
        sums = [np.bincount(runs, each, len(weights)) for each in (np.ones(len(y)), y)]
        total, labels = weighted(sums, weights)
        mean = ratio(labels, total)
        found = self._binary(p, y, runs) if self.is_binary else self._real(p, y, runs)
        return LabelScores(stage=stage, rows=len(rows), runs=count, mean=estimate(mean), **found)

    def _binary(self, p: Any, y: Any, runs: Any) -> dict[str, Estimate | None]:
        rows = p, y, runs, self.weights
        # With few games of a class, the bootstrap is unreliable.
        enough = min(len(np.unique(runs[y == each])) for each in (False, True)) >= INTERVAL_RUNS_MIN
        losses, base = log_loss(*rows), base_log_loss(*rows[1:])
        return {
            "auroc": estimate(ranking(*rows).auroc, interval=enough),
            "log_loss": estimate(losses),
            "base_log_loss": estimate(base, interval=enough),
            "skill": estimate(1 - losses / base, interval=enough),
            "brier": estimate(brier_score(*rows)),
            "ece": estimate(calibration_error(reliability(*rows))),
        }

    def _real(self, p: Any, y: Any, runs: Any) -> dict[str, Estimate | None]:
        centred, error = y - y.mean(), p - y  # large numbers would lose digits
        columns = np.ones(len(y)), centred, centred**2, error, error**2
        sums = [np.bincount(runs, each, len(self.weights)) for each in columns]
        total, first, second, errors, squares = weighted(sums, self.weights)
        variance = np.maximum(ratio(second, total) - ratio(first, total) ** 2, 0)
        mean_square = ratio(squares, total)
        return {
            "r2": estimate(1 - ratio(mean_square, variance)),
            "rmse": estimate(np.sqrt(mean_square)),
            "deviation": estimate(np.sqrt(variance)),
            "bias": estimate(ratio(errors, total)),
        }
