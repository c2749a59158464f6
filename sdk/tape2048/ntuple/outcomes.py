"""Outcomes by the table of a calibration (:mod:`tape2048.ntuple.calibration`), compiled, and its fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.game.rules import legal_mask, max_exponent
from tape2048.jit.compiler import helper, kernel
from tape2048.ntuple.calibration import GAMES_MIN, KNOTS, LOWEST, PHASES, QUANTILES, STEPS, VALUES

if TYPE_CHECKING:
    from numpy.typing import NDArray

U64 = np.uint64

#: The table of values that stay as they are.
UNCALIBRATED = np.empty((3, 0, 0), np.float32)


@kernel
def tile_sum(board: Any) -> Any:
    """Return the sum of a board's tiles."""
    total = U64(0)
    for cell in range(16):
        total += U64(1) << (board >> U64(4 * cell) & U64(15)) & ~U64(1)
    return total


@helper
def phase_at(highest: Any, total: Any) -> Any:
    """Return the phase of a board: the number of a step, plus the fraction of the way to the next one."""
    if highest < U64(LOWEST):
        return 0.0
    share = float(total) / float(U64(1) << highest) - 1.0
    return float((highest - U64(LOWEST)) * U64(KNOTS)) + min(share, 1.0) * STEPS


@helper
def _between(knots: Any, values: Any, at: Any) -> Any:
    """Return the value at a place between ascending knots."""
    above = 1
    while above < VALUES - 1 and knots[above] < at:
        above += 1
    low, high = knots[above - 1], knots[above]
    part = min(max((at - low) / max(high - low, 1e-6), 0.0), 1.0)
    return values[above - 1] + part * (values[above] - values[above - 1])


@helper
def look_up(table: Any, phase: Any, value: Any) -> Any:
    """Return the score that comes and the probability of the next tile, by a table ``f32[3, K, VALUES]``."""
    knot = int(phase)
    share = phase - knot
    score = reach = 0.0
    for side in range(2):
        weight = share if side else 1.0 - share
        if weight != 0:
            at = knot + side
            score += weight * _between(table[0, at], table[1, at], value)
            reach += weight * _between(table[0, at], table[2, at], value)
    return score, reach


@kernel
def _fill_phases(boards: Any, phases: Any) -> None:
    for i in range(boards.shape[0]):
        phases[i] = phase_at(max_exponent(boards[i]), tile_sum(boards[i]))


@kernel
def _fill_outcomes(table: Any, boards: Any, values: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[0, i] = out[1, i] = 0
        if values[i] != 0 or legal_mask(boards[i]) != 0:
            phase = phase_at(max_exponent(boards[i]), tile_sum(boards[i]))
            out[0, i], out[1, i] = look_up(table, phase, values[i])


def phases_of(boards: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the phase of each board, ``u64[n]`` to ``f64[n]``: steps, and fractions between them."""
    phases = np.empty(len(boards))
    _fill_phases(boards, phases)
    return phases


def outcomes(
    table: NDArray[np.float32], boards: NDArray[np.uint64], values: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    """Return scores that come and probabilities of the next tile, ``f32[2, n]``; 0 without legal moves."""
    out = np.empty((2, len(boards)), np.float32)
    _fill_outcomes(table, boards, values, out)
    return out


@kernel
def _fill_falls(table: Any, boards: Any, scores: Any, losses: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        knot = round(phase_at(max_exponent(boards[i]), tile_sum(boards[i])))
        here = _between(table[1, knot], table[2, knot], scores[i])
        for move in range(4):
            loss = losses[i, move]
            out[i, move] = here - _between(table[1, knot], table[2, knot], scores[i] - loss)
            if loss != loss:  # noqa: PLR0124 - NaN
                out[i, move] = np.nan


def reach_falls(
    table: NDArray[np.float32],
    boards: NDArray[np.uint64],
    scores: NDArray[np.floating[Any]],
    losses: NDArray[np.floating[Any]],
) -> NDArray[np.float32]:
    """Return by how much the probability of the next tile falls with a loss of score, ``f32[n, 4]``.

    In a phase, both rise with the value. ``scores`` are the scores that come after the best moves,
    ``f32[n]``.
    """
    out = np.empty(losses.shape, np.float32)
    _fill_falls(table, boards, scores, losses, out)
    return out


class BoardOutcomes(msgspec.Struct, frozen=True):
    """Boards of recorded games, with one board at most for each game and step of the phase.

    Args:
        phases: ``f64[n]``, from :func:`phases_of`.
        values: value of each board, ``f32[n]``.
        scores: score that came after each board, ``f64[n]``.
        reached: whether the game reached the next tile, ``bool[n]``.
        games: number of the game of each board, ``i64[n]``.
    """

    phases: Any
    values: Any
    scores: Any
    reached: Any
    games: Any


def fit(found: BoardOutcomes) -> dict[str, list[Any]]:
    """Fit the tables of a :class:`Calibration`: its fields from ``values`` to ``phase_games``."""
    order = np.argsort(found.phases, kind="stable")
    phases, values, scores, reached, games = (
        np.asarray(each)[order]
        for each in (found.phases, found.values, found.scores, found.reached, found.games)
    )
    first = np.searchsorted(phases, np.arange(PHASES + 1))
    tables: list[NDArray[np.float64]] = []
    counts: list[int] = []
    for knot in range(PHASES):
        low = max(knot - 1, knot // KNOTS * KNOTS)  # no weight of another highest tile
        some = np.arange(first[low], first[min(knot + 1, PHASES)])
        some = some[np.abs(phases[some] - knot) < 1]
        counts.append(len(np.unique(games[some])))
        if counts[-1] >= GAMES_MIN:
            parts = values[some], scores[some], reached[some], 1 - np.abs(phases[some] - knot)
            tables.append(_fit_phase(*parts))
        elif tables:
            tables.append(tables[-1])
    known = 1 + int(np.flatnonzero(np.array(counts) >= GAMES_MIN).max(initial=-1))
    kept = [count if count >= GAMES_MIN else 0 for count in counts[:known]]
    fitted = np.array(tables[:known]).swapaxes(0, 1) if known else np.empty((4, 0, VALUES))
    digits = {"values": 1, "scores": 0, "reach": 4, "errors": 0}
    return {
        **{name: part.round(n).tolist() for (name, n), part in zip(digits.items(), fitted, strict=True)},
        "phase_games": kept,
    }


def _fit_phase(values: Any, scores: Any, reached: Any, weights: Any) -> NDArray[np.float64]:
    """Return values, scores, reach and errors of a phase, ``f64[4, VALUES]``."""
    order = np.argsort(values, kind="stable")
    values, scores, reached, weights = (
        each[order].astype(np.float64) for each in (values, scores, reached, weights)
    )
    share = np.cumsum(weights) / weights.sum()
    _, part = np.unique(np.searchsorted(QUANTILES, share), return_inverse=True)  # no empty class
    mass = np.bincount(part, weights)

    def means(of: Any) -> Any:
        return np.bincount(part, weights * of) / mass

    mean = means(scores)
    errors = np.sqrt(np.bincount(part, weights**2 * (scores - mean[part]) ** 2)) / mass
    fitted = np.array([means(values), isotonic(mean, mass), isotonic(means(reached), mass), errors])
    return np.pad(fitted, ((0, 0), (0, VALUES - len(mass))), mode="edge")


def isotonic(means: NDArray[np.floating[Any]], weights: NDArray[np.number[Any]]) -> NDArray[np.float64]:
    """Return the ascending sequence with the least weighted squares of differences from ``means``."""
    sums, masses = np.append(0, np.cumsum(means * weights)), np.append(0, np.cumsum(weights))
    later = np.tri(len(means), dtype=bool).T  # [first, last]
    spans = np.where(later, masses[None, 1:] - masses[:-1, None], 1)
    between = np.where(later, (sums[None, 1:] - sums[:-1, None]) / spans, np.inf)
    least = np.minimum.accumulate(between[:, ::-1], axis=1)[:, ::-1]
    found: NDArray[np.float64] = np.maximum.accumulate(np.where(later, least, -np.inf), axis=0).diagonal()
    return found
