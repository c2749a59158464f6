"""How good probabilities are: AUROC, AUPRC, Brier score, calibration error, with intervals by game.

All rows of a game share its outcome, and neighbours are almost the same board. So a sample of a million rows
of two hundred games holds about as much as two hundred independent ones, and intervals that count rows are
several times too narrow. Here **games are resampled, not rows** (the cluster bootstrap: Davison and Hinkley,
"Bootstrap Methods and their Application", 1997, section 3.8): a replicate draws R of the R runs with
replacement, and each row counts as often as its run was drawn. The interval is that between the 2.5% and
97.5% quantiles of the replicates. The same draws serve every metric, stage and predictor, so a difference of
two predictors has a paired interval: take it replicate by replicate.

===========  ====================================================================================
AUROC        P(a true row scores higher than a false one), ties one half (Hanley and McNeil 1982)
AUPRC        average precision: precision at each distinct score, weighted by the recall it gains
Brier score  mean of (p - y)^2 (Brier 1950)
ECE          sum over bins of (share of rows) |mean p - share of true rows|
===========  ====================================================================================

The bins of the calibration error hold equally many rows each (15 of them; equal scores stay together). Bins
of equal width (Guo et al., "On Calibration of Modern Neural Networks", 2017) would put nearly every row of a
rare tile into the first one and hide what is wrong there; bins of equal mass are also the less biased
estimate (Nixon et al., "Measuring Calibration in Deep Learning", 2019; Roelofs et al., "Mitigating Bias in
Calibration Error Estimation", 2022). Like every such estimate it is above 0 for perfect probabilities, the
more so the fewer games there are; and its replicates are above it for the same reason, since drawing games
again adds as much chance again. So its interval leans upwards: of good probabilities, the sample's own value
stands near its lower end, or below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import as_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CALIBRATION_BINS",
    "Bins",
    "Estimate",
    "Ranking",
    "RunBootstrap",
    "brier_score",
    "calibration_error",
    "estimate",
    "ranking",
    "reliability",
]

#: Bins of the calibration error and of the reliability plot.
CALIBRATION_BINS = 15

#: Weightings that are converted for a product at a time: 256 MB for 500,000 runs.
_COLUMNS = 64

#: The interval holds this share of the replicates.
CONFIDENCE = 0.95


class Estimate(msgspec.Struct, frozen=True):
    """A number and its 95% interval by run.

    Attributes:
        value: of the sample itself.
        low: lower end; None where there are too few runs for an interval.
        high: upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


class RunBootstrap:
    """How often each run counts in each replicate.

    Args:
        runs: R, number of runs.
        replicates: B, how many times R runs are drawn.
        seed: the same seed gives the same draws.

    Attributes:
        weights: ``f32[R, 1 + B]``; the first column is the sample itself, 1 everywhere. It takes 4 KB a run
            with 1,000 replicates.

    Raises:
        ValueError: no runs, or a negative number of replicates.
    """

    def __init__(self, runs: int, replicates: int = 1000, seed: int = 0) -> None:
        if runs < 1 or replicates < 0:
            raise ValueError(f"runs={runs}, replicates={replicates}; expected at least 1 and 0")
        self.weights = np.ones((runs, 1 + replicates), np.float32)
        generator = np.random.default_rng(seed)
        for column in range(1, 1 + replicates):
            drawn = generator.integers(0, runs, runs)
            self.weights[:, column] = np.bincount(drawn, minlength=runs)

    @property
    def replicates(self) -> int:
        """B."""
        return self.weights.shape[1] - 1


class Ranking(NamedTuple):
    """AUROC and average precision of each weighting, ``f64[W]`` each; NaN where it has one class alone."""

    auroc: NDArray[np.float64]
    average_precision: NDArray[np.float64]


def ranking(
    scores: ArrayLike,
    labels: NDArray[np.bool_],
    runs: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    order: NDArray[np.int64] | None = None,
) -> Ranking:
    """How well scores rank rows, for each weighting of the runs. Sorts once; each weighting is one pass.

    Args:
        scores: ``[N]``, on any scale, the greater the likelier; no NaN.
        labels: ``bool[N]``.
        runs: run of each row, ``[N]``, below R.
        weights: ``[R, W]``, not negative; see :class:`RunBootstrap`.
        order: rows by descending score, where the caller has sorted some already: ``i64[M]``, and only
            these rows count.

    Raises:
        ValueError: shapes that do not fit, a run that has no weights, or a NaN.
    """
    from tape2048.critic.ranking import LANES, rank_weighted

    values, labels, owners = _checked(scores, labels, runs, weights)
    if order is None:
        order = descending(values)
    elif len(order) and not 0 <= order.min() <= order.max() < len(values):
        raise ValueError(f"an order with rows up to {order.max()}; there are {len(values)}")
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


def descending(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Rows by score, highest first: ``i64[N]``; equal ones in any order, which no metric here depends on."""
    return np.argsort(scores)[::-1]


def brier_score(
    probabilities: ArrayLike,
    labels: NDArray[np.bool_],
    runs: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
) -> NDArray[np.float64]:
    """The Brier score for each weighting: ``f64[W]``; arguments and errors as for :func:`ranking`."""
    p, labels, owners = _checked(probabilities, labels, runs, weights)
    squares = np.bincount(owners, (p - labels) ** 2, len(weights))
    return _ratio(*_weighted((squares, np.bincount(owners, minlength=len(weights))), weights))


class Bins(NamedTuple):
    """Rows in bins of probability, from the lowest.

    Attributes:
        rows: how many each has, ``i64[K]``; K is less than asked for where many probabilities are equal.
        predicted: mean probability for each weighting, ``f64[K, W]``.
        observed: share of true rows, ``f64[K, W]``.
        share: of all rows, ``f64[K, W]``.
    """

    rows: NDArray[np.int64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    share: NDArray[np.float64]


def reliability(
    probabilities: ArrayLike,
    labels: NDArray[np.bool_],
    runs: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    bins: int = CALIBRATION_BINS,
) -> Bins:
    """What was predicted and what came true, in bins of equally many rows.

    The bins' edges are those of the sample, for all weightings. ``bins`` is at least 1. Other arguments and
    errors are as for :func:`ranking`.
    """
    if as_int("bins", bins) < 1:
        raise ValueError(f"bins={bins}; expected at least 1")
    p, labels, owners = _checked(probabilities, labels, runs, weights)
    if len(p) == 0:
        nothing = np.empty((0, weights.shape[1]))
        return Bins(np.empty(0, np.int64), nothing, nothing, nothing)
    edges = np.unique(np.quantile(p, np.arange(1, bins) / bins, method="inverted_cdf"))
    bin_of = np.searchsorted(edges, p, "left")  # up to and with an edge: equal ones stay together
    _, bin_of = np.unique(bin_of, return_inverse=True)
    count = int(bin_of.max()) + 1
    cell = owners.astype(np.int64) * count + bin_of
    shape = len(weights), count
    cells = [np.bincount(cell, of, len(weights) * count).reshape(shape).T for of in (None, p, labels)]
    rows, predicted, true = _weighted(cells, weights)
    return Bins(
        np.bincount(bin_of, minlength=count),
        _ratio(predicted, rows),
        _ratio(true, rows),
        _ratio(rows, rows.sum(axis=0)),
    )


def calibration_error(bins: Bins) -> NDArray[np.float64]:
    """The expected calibration error for each weighting: ``f64[W]``."""
    gaps = np.abs(np.nan_to_num(bins.predicted) - np.nan_to_num(bins.observed))
    error: NDArray[np.float64] = (bins.share * gaps).sum(axis=0)
    return error


def estimate(values: NDArray[np.float64], *, interval: bool = True) -> Estimate | None:
    """The sample's value and the interval of its replicates.

    Args:
        values: ``f64[1 + B]``, the sample's first. Replicates that are NaN (one class alone was drawn) are
            left out.
        interval: whether to give one.

    Returns:
        None where the sample's own value is NaN.
    """
    if np.isnan(values[0]):
        return None
    drawn = values[1:][~np.isnan(values[1:])]
    if not interval or len(drawn) == 0:
        return Estimate(float(values[0]))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(float(values[0]), float(low), float(high))


def _checked(
    scores: ArrayLike, labels: NDArray[np.bool_], runs: NDArray[Any], weights: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int32]]:
    values = np.asarray(scores, np.float64)
    truths = np.asarray(labels)
    owners = np.asarray(runs)
    if values.ndim != 1 or truths.shape != values.shape or owners.shape != values.shape or weights.ndim != 2:
        raise ValueError(
            f"scores {values.shape}, labels {truths.shape}, runs {owners.shape}, weights {weights.shape}; "
            "expected [N], [N], [N] and [R, W]"
        )
    if truths.dtype != np.bool_:
        raise ValueError(f"labels of {truths.dtype}; expected bool")
    if len(owners) and not 0 <= owners.min() <= owners.max() < len(weights):
        raise ValueError(f"runs from {owners.min()} to {owners.max()}; there are weights of {len(weights)}")
    if np.isnan(values).any():
        raise ValueError(f"score {int(np.isnan(values).argmax())} is NaN")
    return values, truths, owners.astype(np.int32, copy=False)


def _weighted(sums: Sequence[NDArray[Any]], weights: NDArray[np.floating[Any]]) -> list[NDArray[np.float64]]:
    """Sums by run, ``[R]`` or ``[K, R]`` each, for each weighting: ``f64[W]`` or ``f64[K, W]``.

    A product converts the weights: all at once would take twice their memory, in each thread. No block is
    narrow, since BLAS adds up single columns in another order.
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


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[np.float64]:
    """Their quotient; NaN where there is nothing below."""
    quotient: NDArray[np.float64] = np.divide(
        above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below > 0
    )
    return quotient
