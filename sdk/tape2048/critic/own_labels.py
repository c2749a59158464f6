"""Evaluation against labels of one's own: 0 and 1, or real numbers, by stage of the game.

==============  =====================================================================================
0/1 labels      AUROC, log loss, skill, Brier score, ECE: see :mod:`tape2048.critic.metrics`
real labels     R2 = 1 - sum of (y - prediction)^2 / sum of (y - mean of y)^2, RMSE, bias
==============  =====================================================================================

The mean of y is of the stage, so R2 is 0 for the best constant of each stage. All sums are weighted by the
rows that a row of the sample represents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import aligned, counted, html_table
from tape2048.critic.metrics import (
    Estimate,
    ReliabilityBin,
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
    from numpy.typing import NDArray


_SIGNED = {"skill", "r2", "bias"}
_HEADS = {"auroc": "AUROC", "log_loss": "log loss", "base_log_loss": "base rate's", "brier": "Brier"}
_HEADS |= {"ece": "ECE", "r2": "R2", "rmse": "RMSE", "deviation": "standard deviation"}


class LabelScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a stage. Scores that do not apply to the kind of label are None. Without rows, all are."""

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

    Example:
        >>> import numpy as np
        >>> from tape2048 import Corpus
        >>> from tape2048.critic import evaluate
        >>> corpus = Corpus("selfplay")
        >>> found = evaluate(
        ...     lambda boards: np.full(len(boards), 0.5), corpus, labels=corpus.runs["seed"] % 2, replicates=0
        ... )
        >>> found.is_binary, found.runs
        (True, 200)
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


class JudgedLabels(NamedTuple):
    predicted: NDArray[np.float64]  # of each row, `f64[N]`
    labels: NDArray[Any]  # `bool[N]` or `f64[N]`
    runs: NDArray[np.int32]  # of each row, `i32[N]`
    weights: NDArray[np.float32]  # of the runs, `f32[R, W]`
    is_binary: bool

    def of(self, rows: NDArray[np.int64]) -> tuple[Any, Any, Any, Any]:
        return self.predicted[rows], self.labels[rows], self.runs[rows], self.weights

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
