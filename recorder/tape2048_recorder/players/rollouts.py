"""Rollouts: games that a built-in player plays on from given boards, to estimate probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048_recorder.game.loop import play_on
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.evaluation import play_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

#: Columns of the counts: the exponents of tiles, 0 to 15.
EXPONENTS = 16

#: Most rollouts of a position: counts are ``u16``.
ROLLOUTS_MAX = 65_535

_ROLLOUT_BITS = 16

#: Set in the ids of rollouts and never in those of a recorder's games: under one seed, no game is among them.
_ROLLOUT_ID = 1 << 63


def play_rollouts(
    player: Any,
    boards: npt.NDArray[np.uint64],
    *,
    rollouts: int,
    seed: int,
    threads: int,
    first: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> npt.NDArray[np.uint16]:
    """Play from each board on to the end, several times, and count how far the games come.

    A rollout follows from ``seed``, the position's number and its own, on any number of threads. A player
    that draws its manner for each game (``mix`` of ``ntuple``) draws it anew.

    Args:
        player: a built-in one, from :func:`~tape2048_recorder.players.registry.make_player`.
        boards: positions before a move, ``u64[n]``; numbered from ``first`` on.
        rollouts: games from each, 1 to 65,535.
        seed: 64 bits.
        threads: at least 1.
        first: number of the first position.
        progress: called with the number of games done and of all, every 0.2 s and at the end. What it raises
            ends the rollouts.

    Returns:
        ``u16[n, 16]``: the number of rollouts whose highest tile at the end had at least the exponent ``e``.

    Raises:
        ValueError: a number out of its range.
    """
    if not 1 <= rollouts <= ROLLOUTS_MAX or threads < 1 or first < 0:
        raise ValueError(
            f"rollouts={rollouts}, threads={threads}, first={first}; expected 1 to {ROLLOUTS_MAX}, "
            "at least 1 and at least 0"
        )
    seeds = rollout_seeds(seed, len(boards), rollouts, first).reshape(-1)
    begins = np.repeat(np.asarray(boards, np.uint64), rollouts)
    highest, scores = np.zeros(len(seeds), np.uint8), np.zeros(len(seeds), np.uint64)

    def play(player: Any, part: slice) -> int:
        return play_on(player, begins[part], seeds[part], highest[part], scores[part])

    play_in_threads(player, len(seeds), threads, play, progress)
    ends = highest.reshape(len(boards), rollouts)
    counts = np.empty((len(boards), EXPONENTS), np.uint16)
    for exponent in range(EXPONENTS):
        counts[:, exponent] = (ends >= exponent).sum(axis=1)
    return counts


def rollout_seeds(seed: int, positions: int, rollouts: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """Return the seeds of rollouts, ``u64[positions, rollouts]``: all different, whatever ``first`` is."""
    numbers = np.arange(first, first + positions, dtype=np.uint64) << np.uint64(_ROLLOUT_BITS)
    ids = numbers[:, None] | np.arange(rollouts, dtype=np.uint64) | np.uint64(_ROLLOUT_ID)
    return game_seeds(seed, ids)
