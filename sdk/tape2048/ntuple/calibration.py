r"""Calibrations: what a network's values mean, as the score that comes and the probability of the next tile.

A network's value of a board has no fixed relation to the score that still comes. A calibration is fitted on
the recorded games of one player. For a board with the highest tile :math:`2^h` and the sum of tiles
:math:`S`, the **phase** is :math:`(h, u)` with :math:`u = (S - 2^h) / 2^h`, from 0 to 1. At each of 17 steps
of :math:`u`, the table has up to :data:`VALUES` values, and for each of them the mean score that came and the
share of games that reached the **next tile**, :math:`2^{h+1}`. Between phases and between values, they are
interpolated linearly. Both rise with the value, by isotonic regression: the fit with the least weighted
squares, computed by the min-max formula (Barlow et al., "Statistical Inference under Order Restrictions",
1972).

The difference of the network's values of two moves is chosen because it is large, and partly by chance.
:class:`Differences` has the part of it that is real, measured on positions from which both moves were played
on.

A network's file has its calibrations in the ``facts`` (:mod:`tape2048.ntuple.calibrated_network`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import json_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXPONENT_MAX = 15
#: Steps of the phase from a highest tile to the next one.
STEPS = 16
KNOTS = STEPS + 1
#: Exponent of the lowest highest tile with phases of its own: 32. Boards below belong to its first phase.
LOWEST = 5
PHASES = (EXPONENT_MAX - LOWEST + 1) * KNOTS
#: Quantiles that bound the classes of value of a phase: narrow classes for the low values, where games end.
QUANTILES = (0.003, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
#: Most values of a phase.
VALUES = len(QUANTILES) + 1
#: Fewest games of a phase that has a table.
GAMES_MIN = 100

#: The exponents of the highest tile that start the middle and the late part of a game: 8192 and 16384.
PARTS = (13, 14)
#: Sizes of differences, in points of a network, at which their real part is known. It is proportional above
#: the last one.
SIZES = (100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0)


class Differences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The real part of differences between moves.

    Args:
        real: mean difference of the outcomes, in points of score, by the part of the game (early, middle,
            late) and the size.
        errors: standard error of the means. The differences of single positions scatter more.
        positions: number of positions.
    """

    real: list[list[float]]
    errors: list[list[float]]
    positions: list[list[int]]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the values of boards mean in the games of a player.

    Args:
        values_of: SHA-256 of the player that values boards: by the value of its best move.
        player_sha256: SHA-256 of the player of the games.
        player: text of the player of the games.
        games: number of games.
        values: value of each class and phase, ascending. Phases without figures are missing at the end.
        scores: mean score that came.
        reach: share of games that reached the next tile.
        errors: standard error of each of the scores.
        phase_games: number of games of each phase.
        lost: mean sum of the losses of a game, in points, by the judge with these values.
        differences: the real part of differences between moves; None if no judge has these values.
    """

    values_of: str
    player_sha256: str
    player: str
    games: int
    values: list[list[float]]
    scores: list[list[float]]
    reach: list[list[float]]
    errors: list[list[float]]
    phase_games: list[int]
    lost: float = 0.0
    differences: Differences | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json_bytes(self)).hexdigest()

    @property
    def table(self) -> NDArray[np.float32]:
        """Values, scores and reach, for :mod:`tape2048.ntuple.outcomes`: ``f32[3, K, VALUES]``."""
        found = np.array([self.values, self.scores, self.reach], np.float32)
        return np.pad(found, ((0, 0), (0, PHASES - found.shape[1]), (0, 0)), mode="edge")

    def real_differences(
        self, highest: NDArray[np.uint8], differences: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the real part of differences, ``f32[n, 4]``, and its standard error.

        ``highest`` is the exponent of each board's highest tile, ``u8[n]``.
        """
        kept = differences.astype(np.float32)
        if self.differences is None:
            return kept, kept
        part = np.searchsorted(PARTS, highest, "right")
        errors, sizes = kept.copy(), np.append(0, SIZES)
        above = np.maximum(differences / SIZES[-1], 1)
        for number, (real, error) in enumerate(
            zip(self.differences.real, self.differences.errors, strict=True)
        ):
            some = part == number
            for out, known in ((kept, real), (errors, error)):
                out[some] = np.interp(differences[some], sizes, np.append(0, known)) * above[some]
        return kept, errors
