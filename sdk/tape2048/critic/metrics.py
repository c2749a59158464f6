"""Metrics of probabilities: AUROC, AUPRC, Brier score, log loss, calibration error, with intervals by game.

All rows of a game share its outcome, and neighbours are almost the same board. A million rows of two hundred
games hold about as much information as two hundred independent rows, and intervals that count rows are
several times too narrow. Therefore **games are resampled, not rows** (the cluster bootstrap: Davison and
Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8): a replicate draws R of the R runs with
replacement, and each row counts as often as its run was drawn. The interval ends at the 2.5% and 97.5%
quantiles of the replicates. All metrics, stages and predictors use the same draws, so the replicates'
differences between two predictors give a paired interval.

**Capped samples.** All rows drawn of a run have one weight (``Capped.weights``), so it is a factor of the
run's multiplicity: with ``RunBootstrap(...).weights * capped.weights[:, None]``, metrics are estimates over
all rows.

===========  ====================================================================================
AUROC        P(a true row scores higher than a false one), ties one half (Hanley and McNeil 1982)
AUPRC        average precision: precision at each distinct score, weighted by the recall it gains
Brier score  mean of (p - y)^2 (Brier 1950)
log loss     mean of -log(probability of y), with p kept 1e-6 away from 0 and 1, in nats
ECE          sum over bins of (share of rows) |mean p - share of true rows|
===========  ====================================================================================

The calibration error has 15 bins of equal weight; equal scores stay together. Bins of equal width (Guo
et al., "On Calibration of Modern Neural Networks", 2017) would put nearly every row of a rare tile into the
first one and hide errors there; bins of equal mass are also less biased (Nixon et al., "Measuring Calibration
in Deep Learning", 2019; Roelofs et al., "Mitigating Bias in Calibration Error Estimation", 2022). Like every
such estimate it is above 0 even for perfect probabilities, the more so the fewer games there are. A replicate
is a random sample of a random sample, so its error is higher still: for good probabilities, the sample's own
value is near or below the lower end of its interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from tape2048.base.text import as_int
from tape2048.jit.compiler import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Bools: TypeAlias = NDArray[np.bool_]
    Integers: TypeAlias = NDArray[np.integer[Any]]
    Floats: TypeAlias = NDArray[np.floating[Any]]


#: Bins of the calibration error and of the reliability plot.
CALIBRATION_BINS = 15

_LOG_MARGIN = 1e-6  # probabilities keep this distance from 0 and 1 in the log loss
_COLUMNS = 64  # weightings converted to float64 at a time: 256 MB for 500,000 runs


class Estimate(msgspec.Struct, frozen=True):
    """A number and its 95% interval by run.

    Attributes:
        value: value of the sample itself.
        low: lower end; None with too few runs for an interval.
        high: upper end.

    Example:
        >>> import numpy as np
        >>> from tape2048.critic.metrics import estimate
        >>> estimate(np.array([0.75, 0.5, 0.5]))
        Estimate(value=0.75, low=0.5, high=0.5)
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Distance from the value to the farther end; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.value - self.low, self.high - self.value)


class RunBootstrap:
    """Weights of runs in bootstrap replicates.

    Args:
        runs: R, number of runs.
        replicates: B, number of replicates. Each draws R runs.
        seed: seed of the draws.

    Attributes:
        replicates: B.
        weights: ``f32[R, 1 + B]``. The first column is the sample itself, 1 everywhere. It takes 4 KB a run
            with 1,000 replicates.

    Raises:
        ValueError: ``runs`` is below 1, or ``replicates`` below 0.

    Example:
        >>> from tape2048.critic import RunBootstrap
        >>> RunBootstrap(3, replicates=2).weights.sum(axis=0)
        array([3., 3., 3.], dtype=float32)
    """

    def __init__(self, runs: int, replicates: int = 1000, seed: int = 0) -> None:
        if runs < 1 or replicates < 0:
            raise ValueError(f"runs={runs}, replicates={replicates}; expected runs >= 1, replicates >= 0")
        self.replicates = replicates
        self.weights = np.ones((runs, 1 + replicates), np.float32)
        generator = np.random.default_rng(seed)
        for column in range(1, 1 + replicates):
            self.weights[:, column] = np.bincount(generator.integers(0, runs, runs), minlength=runs)


class Ranking(NamedTuple):
    """AUROC and average precision of each weighting, ``f64[W]`` each; NaN where only one class has weight."""

    auroc: NDArray[np.float64]
    average_precision: NDArray[np.float64]


def ranking(
    scores: ArrayLike, labels: Bools, runs: Integers, weights: Floats, order: NDArray[np.int64] | None = None
) -> Ranking:
    """Measure how well scores rank rows, for each weighting of the runs: one sort, one pass per weighting.

    Args:
        scores: ``[N]``, on any scale; rows with higher scores are likelier. No NaN.
        labels: ``bool[N]``.
        runs: run of each row, ``[N]``, below R.
        weights: ``[R, W]``, not negative; see :class:`RunBootstrap`.
        order: rows by descending score, if they are sorted already: ``i64[M]``; only these rows count.

    Raises:
        ValueError: shapes do not match, a run has no weights, or a score is NaN.

    Example:
        >>> from tape2048.critic import RunBootstrap, ranking
        >>> rows = [0.9, 0.6, 0.2], np.array([True, False, False]), np.array([0, 1, 2])
        >>> ranking(*rows, RunBootstrap(3, replicates=0).weights).auroc
        array([1.])
    """
    values, labels, owners = _checked(scores, labels, runs, weights)
    if order is None:
        order = np.argsort(values)[::-1]
    elif len(order) and not 0 <= order.min() <= order.max() < len(values):
        raise ValueError(f"an order of rows {order.min()} to {order.max()}; expected 0 to {len(values) - 1}")
    ordered = values[order]
    last_of_tie = np.ones(len(order), np.bool_)
    last_of_tie[:-1] = ordered[1:] != ordered[:-1]
    in_order, truths = owners[order], labels[order]
    count = weights.shape[1]
    found = np.empty((2, count))
    block, out = np.empty((weights.shape[0], LANES), np.float32), np.empty((2, LANES))
    for first in range(0, count, LANES):
        lanes = min(LANES, count - first)
        block[:, :lanes] = weights[:, first : first + lanes]
        block[:, lanes:] = 0
        rank_weighted(in_order, truths, last_of_tie, block, out)
        found[:, first : first + lanes] = out[:, :lanes]
    return Ranking(found[0], found[1])


def brier_score(
    probabilities: ArrayLike, labels: Bools, runs: Integers, weights: Floats
) -> NDArray[np.float64]:
    """Compute the Brier score for each weighting.

    Args:
        probabilities: ``[N]``. No NaN.
        labels: ``bool[N]``.
        runs: run of each row, ``[N]``, below R.
        weights: ``[R, W]``, not negative; see :class:`RunBootstrap`.

    Returns:
        ``f64[W]``; NaN where no row has weight.

    Raises:
        ValueError: as for :func:`ranking`.

    Example:
        >>> from tape2048.critic import RunBootstrap, brier_score
        >>> rows = [0.5, 0.5, 0.0], np.array([True, False, False]), np.array([0, 0, 1])
        >>> brier_score(*rows, RunBootstrap(2, replicates=0).weights).round(4)
        array([0.1667])
    """
    p, labels, owners = _checked(probabilities, labels, runs, weights)
    return _mean((p - labels) ** 2, owners, weights)


def log_loss(probabilities: ArrayLike, labels: Bools, runs: Integers, weights: Floats) -> NDArray[np.float64]:
    """Compute the log loss in nats for each weighting.

    Args:
        probabilities: ``[N]``. No NaN.
        labels: ``bool[N]``.
        runs: run of each row, ``[N]``, below R.
        weights: ``[R, W]``, not negative; see :class:`RunBootstrap`.

    Returns:
        ``f64[W]``; NaN where no row has weight.

    Raises:
        ValueError: as for :func:`ranking`.

    Example:
        >>> from tape2048.critic import RunBootstrap, log_loss
        >>> rows = [0.5, 0.5, 0.0], np.array([True, False, False]), np.array([0, 0, 1])
        >>> log_loss(*rows, RunBootstrap(2, replicates=0).weights).round(4)
        array([0.4621])
    """
    p, labels, owners = _checked(probabilities, labels, runs, weights)
    return _mean(cross_entropy(p, labels), owners, weights)


def base_log_loss(labels: Bools, runs: Integers, weights: Floats) -> NDArray[np.float64]:
    """Compute the log loss of each weighting's own share of true rows; NaN where there is one class."""
    base = _mean(labels, runs, weights)
    return np.where((base > 0) & (base < 1), cross_entropy(base, base), np.nan)


def cross_entropy(p: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the cross-entropy of probabilities and labels or shares, element by element."""
    p = np.clip(p, _LOG_MARGIN, 1 - _LOG_MARGIN)
    return np.asarray(-(y * np.log(p) + (1 - y) * np.log1p(-p)))


def _mean(values: NDArray[Any], runs: Integers, weights: Floats) -> NDArray[np.float64]:
    sums = np.bincount(runs, values, len(weights)), np.bincount(runs, minlength=len(weights))
    return ratio(*weighted(sums, weights))


class ReliabilityBin(msgspec.Struct, frozen=True):
    rows: int
    predicted: float  # their mean probability
    observed: Estimate  # the share of true rows


class Bins(NamedTuple):
    rows: NDArray[np.int64]  # rows in each bin, `i64[K]`; fewer bins where probabilities are equal
    predicted: NDArray[np.float64]  # mean probability for each weighting, `f64[K, W]`
    observed: NDArray[np.float64]  # share of true rows, `f64[K, W]`
    share: NDArray[np.float64]  # share of the bin's rows in all rows, `f64[K, W]`
    bin_of: NDArray[np.int64]  # the bin of each row, `i64[N]`

    def listed(self) -> list[ReliabilityBin]:
        return [
            ReliabilityBin(rows, float(predicted[0]), certain(observed))
            for rows, predicted, observed in zip(
                self.rows.tolist(), self.predicted, self.observed, strict=True
            )
        ]


def reliability(
    probabilities: ArrayLike,
    labels: Bools | Floats,
    runs: Integers,
    weights: Floats,
    bins: int = CALIBRATION_BINS,
) -> Bins:
    """Compare predicted with observed shares in bins of equal weight.

    All weightings use the bins of the sample, the first weighting.

    Args:
        probabilities: ``[N]``. No NaN.
        labels: ``bool[N]``, or the shares of each row's rollouts that are true, ``f64[N]``.
        runs: run of each row, ``[N]``, below R.
        weights: ``[R, W]``, not negative; see :class:`RunBootstrap`.
        bins: number of bins, >= 1.

    Raises:
        ValueError: as for :func:`ranking`, and ``bins`` below 1.

    Example:
        >>> from tape2048.critic import RunBootstrap, reliability
        >>> rows = [0.1, 0.2, 0.8, 0.9], np.array([False, False, True, True]), np.array([0, 0, 1, 1])
        >>> reliability(*rows, RunBootstrap(2, replicates=0).weights, bins=2).rows
        array([2, 2])
    """
    if as_int("bins", bins) < 1:
        raise ValueError(f"bins={bins}; expected at least 1")
    p, labels, owners = _checked(probabilities, labels, runs, weights, shares=True)
    if len(p) == 0:
        nothing, none = np.empty((0, weights.shape[1])), np.empty(0, np.int64)
        return Bins(none, nothing, nothing, nothing, none)
    own = weights[owners, 0].astype(np.float64)
    own = own if own.any() else np.ones(len(p))
    edges = np.unique(np.quantile(p, np.arange(1, bins) / bins, method="inverted_cdf", weights=own))
    bin_of = np.searchsorted(edges, p, "left")  # up to and including an edge: equal ones stay together
    _, bin_of = np.unique(bin_of, return_inverse=True)
    count = int(bin_of.max()) + 1
    cell = owners.astype(np.int64) * count + bin_of
    shape = len(weights), count
    cells = [np.bincount(cell, of, len(weights) * count).reshape(shape).T for of in (None, p, labels)]
    rows, predicted, true = weighted(cells, weights)
    return Bins(
        np.bincount(bin_of, minlength=count),
        ratio(predicted, rows),
        ratio(true, rows),
        ratio(rows, rows.sum(axis=0)),
        bin_of,
    )


def calibration_error(bins: Bins) -> NDArray[np.float64]:
    """Compute the expected calibration error for each weighting: ``f64[W]``.

    Example:
        >>> from tape2048.critic import RunBootstrap, calibration_error, reliability
        >>> rows = [0.25, 0.75], np.array([False, True]), np.array([0, 1])
        >>> calibration_error(reliability(*rows, RunBootstrap(2, replicates=0).weights))
        array([0.25])
    """
    gaps = np.abs(np.nan_to_num(bins.predicted) - np.nan_to_num(bins.observed))
    return np.asarray((bins.share * gaps).sum(axis=0))


def estimate(values: NDArray[np.float64], *, interval: bool = True) -> Estimate | None:
    """Return the sample's value with the interval of its replicates."""
    if np.isnan(values[0]):
        return None
    drawn = values[1:][~np.isnan(values[1:])]
    if not interval or len(drawn) == 0:
        return Estimate(float(values[0]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(float(values[0]), float(low), float(high))


def certain(values: NDArray[np.float64]) -> Estimate:
    """Return :func:`estimate`; ValueError if the sample's value is NaN."""
    found = estimate(values)
    if found is None:
        raise ValueError("the sample's value is NaN; expected a number")
    return found


def _checked(
    scores: ArrayLike, labels: NDArray[Any], runs: Integers, weights: Floats, *, shares: bool = False
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32]]:
    values, truths, owners = np.asarray(scores, np.float64), np.asarray(labels), np.asarray(runs)
    if values.ndim != 1 or truths.shape != values.shape or owners.shape != values.shape or weights.ndim != 2:
        raise ValueError(
            f"scores {values.shape}, labels {truths.shape}, runs {owners.shape}, weights {weights.shape}; "
            "expected [N], [N], [N] and [R, W]"
        )
    if truths.dtype != np.bool_ and not (shares and truths.dtype.kind == "f"):
        raise ValueError(f"labels of {truths.dtype}; expected bool")
    if len(owners) and not 0 <= owners.min() <= owners.max() < len(weights):
        raise ValueError(
            f"runs from {owners.min()} to {owners.max()}; expected 0 to {len(weights) - 1}, for which there "
            "are weights"
        )
    if np.isnan(values).any():
        raise ValueError(f"score {int(np.isnan(values).argmax())} is NaN; expected a number")
    return values, truths, owners.astype(np.int32, copy=False)


def weighted(sums: Sequence[NDArray[Any]], weights: Floats) -> list[NDArray[np.float64]]:
    """Weight sums by run, ``[R]`` or ``[K, R]`` each, by each weighting: ``f64[W]`` or ``f64[K, W]``.

    The product needs float64 weights. Converting all of them at once would take twice their memory in each
    thread. No block is narrow, since BLAS adds up single columns in another order.
    """
    exact = [each.astype(np.float64) for each in sums]
    found = [np.empty((*each.shape[:-1], weights.shape[1])) for each in exact]
    count = weights.shape[1]
    firsts = range(0, max(1, count - _COLUMNS + 1), _COLUMNS)
    for first, end in zip(firsts, [*firsts[1:], count], strict=True):
        block = weights[:, first:end].astype(np.float64)
        for each, out in zip(exact, found, strict=True):
            out[..., first:end] = each @ block
        del block  # before the next one is made
    return found


def ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[np.float64]:
    """Divide; NaN where ``below`` is 0."""
    nowhere = np.full(np.broadcast(above, below).shape, np.nan)
    return np.asarray(np.divide(above, below, out=nowhere, where=below > 0))


#: Weightings processed together. Measured for 1,000 of them over 1e6 rows of 200 runs, in seconds of CPU:
#: 8 at a time 1.7 (the branch on a row's label costs as much as its sums), 16 1.5, 32 0.64, 64 0.44.
LANES = 64

_TINY = 1e-300  # keeps 0 / 0 at 0 where all weights so far are 0


@kernel(allocates=True)
def rank_weighted(owners: Any, labels: Any, last_of_tie: Any, weights: Any, out: Any) -> None:
    """Rank rows for ``LANES`` weightings."""
    true = np.zeros(LANES)
    false = np.zeros(LANES)
    tied_true = np.zeros(LANES)
    tied_false = np.zeros(LANES)
    pairs = np.zeros(LANES)
    precision = np.zeros(LANES)
    alone = True
    for i in range(owners.shape[0]):
        weight = weights[owners[i]]
        if alone and last_of_tie[i]:
            if labels[i]:
                for k in range(LANES):
                    w = np.float64(weight[k])
                    true[k] += w
                    precision[k] += w * true[k] / (true[k] + false[k] + _TINY)
            else:
                for k in range(LANES):
                    w = np.float64(weight[k])
                    false[k] += w
                    pairs[k] += w * true[k]
            continue
        tied = tied_true if labels[i] else tied_false
        for k in range(LANES):
            tied[k] += np.float64(weight[k])
        alone = last_of_tie[i]
        if alone:
            for k in range(LANES):
                pairs[k] += tied_false[k] * (true[k] + 0.5 * tied_true[k])
                true[k] += tied_true[k]
                false[k] += tied_false[k]
                precision[k] += tied_true[k] * true[k] / (true[k] + false[k] + _TINY)
                tied_true[k] = 0.0
                tied_false[k] = 0.0
    for k in range(LANES):
        both = true[k] > 0.0 and false[k] > 0.0
        out[0, k] = pairs[k] / (true[k] * false[k]) if both else np.nan
        out[1, k] = precision[k] / true[k] if true[k] > 0.0 else np.nan
