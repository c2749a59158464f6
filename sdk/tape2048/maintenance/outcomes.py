"""Outcomes of games, computed from the last recorded board of each.

A board and the number of moves before it give the score: each spawn adds a 2 or a 4 to the sum of the tiles,
so this sum tells how many 4s there were, and the score is the board score less 4 for each of them. Only the
last move can add to it. Lines merge alike towards both of their ends, so a board has at most two outcomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CEILING = 15


class Outcomes(NamedTuple):
    """Scores and highest tiles after a last move: up or down (column 0), left or right (column 1).

    Attributes:
        moves: ``i64[n]``, the number of moves before each board.
        before: ``i64[n]``, the score of each board.
        scores: ``i64[n, 2]``, the score after the move.
        tiles: ``i64[n, 2]``, the highest tile after it, without its spawn.
        legal: ``bool[n, 2]``, whether there is such a move.
    """

    moves: NDArray[np.int64]
    before: NDArray[np.int64]
    scores: NDArray[np.int64]
    tiles: NDArray[np.int64]
    legal: NDArray[np.bool_]

    def explain(self, runs: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which runs (``RUN_DTYPE[n]``) have a possible score and highest tile: ``bool[n]``.

        A run that went on after its board has at least the score of its board.
        """
        score, tile = runs["max_score"].astype(np.int64), runs["highest_tile"].astype(np.int64)
        fits = self.legal & (self.scores == score[:, None])
        # On a board of 2s, the spawn can be the highest tile.
        fits &= (self.tiles == tile[:, None]) | ((self.tiles == 2) & (tile[:, None] == 4))
        ended: NDArray[np.bool_] = self.moves == runs["steps"].astype(np.int64) - 1
        return np.where(ended, fits.any(axis=1), score >= self.before)

    def describe(self, run: np.void) -> str:
        """Return how the only run differs from its board."""
        found = f"has max_score {run['max_score']} and highest_tile {run['highest_tile']}"
        if self.moves[0] < int(run["steps"]) - 1:
            return f"{found}, but its last row shows a score of {self.before[0]}"
        ways = {f"{self.scores[0, way]} and {self.tiles[0, way]}" for way in range(2) if self.legal[0, way]}
        return f"{found}, but its last row leads to {' or '.join(sorted(ways)) or 'no legal move'}"


def outcomes(rows: NDArray[np.uint8], moves: NDArray[np.int64]) -> Outcomes:
    """Compute the outcomes of boards."""
    exps = rows[:, :16].astype(np.int64)
    tiles = np.where(exps > 0, np.int64(1) << exps, 0)
    fours = tiles.sum(axis=1) // 2 - (moves + 2)
    before = (tiles * (exps - 1)).sum(axis=1) - 4 * fours
    boards = exps.reshape(-1, 4, 4)
    lines = np.stack([boards.transpose(0, 2, 1), boards], axis=1)
    packed = np.take_along_axis(lines, np.argsort(lines == 0, axis=-1, kind="stable"), axis=-1)
    one, other = packed[..., :-1], packed[..., 1:]
    merges = (one == other) & (one > 0) & (one < _CEILING)
    merges[..., 1] &= ~merges[..., 0]
    merges[..., 2] &= ~merges[..., 1]
    merged = np.where(merges, np.int64(2) << one, 0)
    gains = merged.sum(axis=(2, 3))
    highest = np.maximum(merged.max(axis=(2, 3)), tiles.max(axis=1)[:, None])
    filled = (lines > 0).sum(axis=-1)
    legal = (gains > 0) | ((filled > 0) & (filled < 4)).any(axis=-1)
    legal &= (rows[:, 16:] > 3) | (rows[:, 16:] >> 1 == np.arange(2))
    return Outcomes(moves, before, before[:, None] + gains, highest, legal)
