"""Predictions measured against rollouts.

A game's outcome is one draw from its position's true probability q, and luck dominates every metric of
outcomes. The share r of N rollouts (:mod:`tape2048.critic.oracle`) that reach a tile is q with binomial noise
of known size, which can be taken out:

===========  =====================================================================================
R2           explained variance of q: 1 - (mean (p - r)^2 - v) / (var r - v), where the noise is
             v = mean r (1 - r) / (N - 1). 1 for p = q, 0 for p = mean q; None where var r <= v
bias         mean p - mean r
Brier score  mean of (p - y)^2 over the outcomes y of all rollouts
log loss     mean of -log(probability of y) over them, with p kept 1e-6 away from 0 and 1
ECE          sum over bins of p of (share of the weight) |mean p - mean r|
===========  =====================================================================================

Means and variances are weighted, and intervals are by game, as for all metrics
(:mod:`tape2048.critic.metrics`). The calibration error is above 0 for calibrated predictions, too: positions
of one p differ in q, and a bin has finitely many of them. ``ece_noise`` is what it would be on average for
such predictions, of which p - r varies as much within the bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.critic.metrics import (
    Estimate,
    ReliabilityBin,
    calibration_error,
    certain,
    estimate,
    ratio,
    reliability,
    weighted,
)
from tape2048.critic.oracle import ROLLOUTS_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tape2048.critic.metrics import Bins, Floats, Integers
    from tape2048.critic.oracle import Oracle, Rollouts
    from tape2048.critic.sample import Sample

#: Most points of a :class:`TruthCurve`, a uniform part of the positions.
POINTS_MAX = 400

#: Probabilities keep this distance from 0 and 1 in the log loss.
_LOG_MARGIN = 1e-6

#: A variance of q below this is rounding.
_VARIANCE_MIN = 1e-12


class OracleScores(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one predictor against rollouts; see the module.

    Attributes:
        positions: number of positions.
        r2: explained variance of the true probability; None where rollouts differ no more than by chance.
        note: why there is no R2; None where there is one.
        bias: mean prediction minus mean of the rollouts.
        brier: Brier score.
        log_loss: in nats.
        ece: calibration error.
        ece_noise: mean calibration error of calibrated predictions on as many positions.
    """

    positions: int
    r2: Estimate | None
    note: str | None
    bias: Estimate
    brier: Estimate
    log_loss: Estimate
    ece: Estimate
    ece_noise: float


def oracle_scores(
    probabilities: NDArray[Any], shares: NDArray[Any], rollouts: int, runs: Integers, weights: Floats
) -> OracleScores:
    """Measure predictions against rollouts.

    Args:
        probabilities: predictions ``[n]``; no NaN, n >= 1.
        shares: of the rollouts that reached the tile, ``[n]``.
        rollouts: N, at least 2.
        runs: run of each position, ``[n]``, below R.
        weights: ``[R, W]``, not negative; the first weighting is the sample itself. See
            :class:`~tape2048.critic.metrics.RunBootstrap`.

    Raises:
        ValueError: shapes that do not match, no positions, too few rollouts, or a NaN.

    Example:
        >>> import numpy as np
        >>> from tape2048.critic import RunBootstrap, oracle_scores
        >>> rows = np.array([0.2, 0.5, 0.9]), np.array([0.25, 0.5, 1.0]), 48, np.arange(3)
        >>> found = oracle_scores(*rows, RunBootstrap(3, replicates=0).weights)
        >>> round(found.r2.value, 2), round(found.bias.value, 2)
        (0.99, -0.05)
    """
    if rollouts < ROLLOUTS_MIN or len(probabilities) == 0:
        raise ValueError(
            f"{rollouts} rollouts of {len(probabilities)} positions; expected at least {ROLLOUTS_MIN} and 1"
        )
    p, r = np.asarray(probabilities, np.float64), np.asarray(shares, np.float64)
    bins = reliability(p, r, runs, weights)  # checks all of them
    margin = np.clip(p, _LOG_MARGIN, 1 - _LOG_MARGIN)
    surprise = -(r * np.log(margin) + (1 - r) * np.log1p(-margin))
    rows = np.ones_like(p), p, r, r * r, (p - r) ** 2, r * (1 - r), surprise
    total, *sums = weighted([np.bincount(runs, each, len(weights)) for each in rows], weights)
    mean_p, mean_r, mean_rr, error, spread, loss = (ratio(each, total) for each in sums)
    noise = spread / (rollouts - 1)
    variance = mean_rr - mean_r**2 - noise
    variance[~(variance > _VARIANCE_MIN)] = np.nan
    r2 = estimate(1 - (error - noise) / variance)
    return OracleScores(
        positions=len(p),
        r2=r2,
        note=None if r2 else f"rollouts of {counted(len(p), 'position')} differ no more than by chance",
        bias=certain(mean_p - mean_r),
        brier=certain(error + spread),
        log_loss=certain(loss),
        ece=certain(calibration_error(bins)),
        ece_noise=_ece_noise(p - r, bins, runs, weights[:, 0]),
    )


def _ece_noise(gaps: NDArray[np.float64], bins: Bins, runs: Integers, weights: Floats) -> float:
    """Return the mean calibration error if each bin's mean gap were normal around 0.

    Its standard error takes the positions of a run as one, as the bootstrap does.
    """
    bin_of, own = bins.bin_of, weights[runs].astype(np.float64)
    total = np.bincount(bin_of, own)
    means = ratio(np.bincount(bin_of, own * gaps), total)
    cells = np.bincount(
        np.asarray(runs, np.int64) * len(total) + bin_of,
        own * (gaps - means[bin_of]),
        len(weights) * len(total),
    )
    errors = np.sqrt((cells.reshape(len(weights), -1) ** 2).sum(axis=0))
    return float(np.sqrt(2 / np.pi) * errors.sum() / total.sum())


class Means(msgspec.Struct, frozen=True):
    """What the labels, the rollouts and the critic say of the same positions on average.

    The labels of a capped sample say too little unless they are weighted: see the module.
    """

    labels: Estimate  # share of positions whose own game reached the tile
    rollouts: Estimate  # mean share of the rollouts that reached it
    critic: Estimate  # mean probability


class TruthCurve(msgspec.Struct, frozen=True):
    """The critic's probabilities beside rollouts, on all positions, for one threshold."""

    threshold: int
    equal: Means  # each position counts once
    weighted: Means  # each counts for the rows that it stands for
    bins: list[ReliabilityBin]
    points: list[tuple[float, float]]  # probability and share of rollouts of some positions


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts that an evaluation used; see :mod:`tape2048.critic.oracle`."""

    player_sha256: str
    positions: int  # a uniform part of the sample
    rollouts: int  # from each
    known: int  # positions whose rollouts were on disk
    seed: int  # of the rollouts
    curves: list[TruthCurve]  # by threshold


class Answer(NamedTuple):
    """Positions of a sample and their rollouts; from :func:`ask`."""

    oracle: Oracle
    sample: Sample
    rows: NDArray[np.int64]  # the P rows of the sample, ascending
    runs: NDArray[np.int64]  # the run of each, `i64[P]`, an index into `weights`
    weights: NDArray[np.float32]  # of the runs that have positions, `f32[runs, W]`
    rollouts: Rollouts

    def scores(self, probabilities: NDArray[Any], tile: int, stage: NDArray[np.bool_]) -> OracleScores | None:
        """Measure a predictor in a stage of the sample.

        Args:
            probabilities: of all rows, ``[N]``.
            tile: the threshold.
            stage: its rows, ``bool[N]``.

        Returns:
            None where the stage has no positions.
        """
        inside = stage[self.rows]
        if not inside.any():
            return None
        return oracle_scores(
            probabilities[self.rows[inside]],
            self.rollouts.shares(tile)[inside],
            self.oracle.rollouts,
            self.runs[inside],
            self.weights,
        )

    def truth(self, tiles: Sequence[int]) -> Truth:
        """Compare the critic with the rollouts for each of its thresholds."""
        return Truth(
            player_sha256=self.oracle.player_sha256,
            positions=len(self.rows),
            rollouts=self.oracle.rollouts,
            known=self.rollouts.known,
            seed=self.oracle.seed,
            curves=[self._curve(at, tile) for at, tile in enumerate(tiles)],
        )

    def _curve(self, at: int, tile: int) -> TruthCurve:
        sample, rows = self.sample, self.rows
        predicted, shares = sample.probabilities[rows, at].astype(np.float64), self.rollouts.shares(tile)
        columns = np.ones(len(rows)), (sample.highest >= tile)[sample.runs[rows]], shares, predicted
        sums = [np.bincount(self.runs, column, len(self.weights)) for column in columns]

        def means(weights: NDArray[np.float32]) -> Means:
            total, *of_columns = weighted(sums, weights)
            return Means(*(certain(ratio(each, total)) for each in of_columns))

        points = np.random.default_rng(0).permutation(len(rows))[:POINTS_MAX]
        return TruthCurve(
            tile,
            means(self.weights / self.weights[:, :1]),
            means(self.weights),
            reliability(predicted, shares, self.runs, self.weights).listed(),
            list(zip(predicted[points].tolist(), shares[points].tolist(), strict=True)),
        )


def ask(
    oracle: Oracle,
    sample: Sample,
    weights: NDArray[np.float32],
    *,
    positions: int,
    seed: int,
    progress: Callable[[int, int], object],
) -> Answer:
    """Ask an oracle for a uniform part of a sample.

    Args:
        oracle: plays the rollouts.
        sample: rows of games.
        weights: of its runs, ``f32[R, W]``, the first of the sample itself.
        positions: most rows to ask for, at least 1.
        seed: decides which.
        progress: called with the number of games done and of all.

    Raises:
        TapeError: as :meth:`tape2048.critic.Oracle.ask`.
    """
    count = len(sample.runs)
    drawn = np.random.default_rng(seed).choice(count, min(positions, count), replace=False, shuffle=False)
    rows = np.sort(drawn)
    runs, of_runs = np.unique(sample.runs[rows], return_inverse=True)
    rollouts = oracle.ask(sample.boards[rows], progress=progress)
    return Answer(oracle, sample, rows, of_runs, weights[runs], rollouts)
