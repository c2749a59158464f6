"""The randomness of games: SplitMix64 generators, one per game, and spawns.

A generator is two ``u64``, ``state`` and ``gamma`` (the increment). Kernels take both and return the new
state. Both are derived from the game's 64-bit seed, so games use different sequences, not parts of one
sequence. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
(SplitMix64: fig. 15; gammas: fig. 16).

Bounded draws are unbiased: Lemire, "Fast random integer generation in an interval", ACM TOMACS 2019
(multiply, and reject the few products that would favour some results).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.game.rules import board_score, empty_mask
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import high64, mix, popcount, select_bit

U64 = np.uint64
GOLDEN_GAMMA = U64(0x9E3779B97F4A7C15)
_GAMMA_FLIPS_MIN = U64(24)


@helper
def start(seed: Any) -> Any:
    """Return ``(state, gamma)`` at the start of a seed's game."""
    seed = U64(seed)
    state = mix(seed + GOLDEN_GAMMA)
    gamma = mix(seed + GOLDEN_GAMMA + GOLDEN_GAMMA) | U64(1)
    # An increment with few bit changes mixes poorly at first (the paper's fig. 16).
    if popcount(gamma ^ (gamma >> U64(1))) < _GAMMA_FLIPS_MIN:
        gamma ^= U64(0xAAAAAAAAAAAAAAAA)
    return state, gamma


@helper
def next_u64(state: Any, gamma: Any) -> Any:
    """Draw 64 random bits; return ``(bits, state)``."""
    state += gamma
    return mix(state), state


@helper
def bounded(state: Any, gamma: Any, n: Any) -> Any:
    """Draw uniformly from ``[0, n)``, for ``0 < n < 2**32``; return ``(draw, state)``."""
    bits, state = next_u64(state, gamma)
    if bits * n < n:  # probability n / 2**64; only then can the product need a rejection
        threshold = (U64(0) - n) % n
        while bits * n < threshold:
            bits, state = next_u64(state, gamma)
    return high64(bits, n), state


@helper
def uniform(state: Any, gamma: Any) -> Any:
    """Draw a uniform ``f64`` from ``[0, 1)`` with 53 random bits; return ``(draw, state)``."""
    bits, state = next_u64(state, gamma)
    return np.float64(bits >> U64(11)) * 2.0**-53, state


def game_seeds(seed: int, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the seeds of a recorder's games: ``mix64(seed + (id + 1) * golden_gamma)``, all different."""
    with np.errstate(over="ignore"):
        mixed: npt.NDArray[np.uint64] = mix(U64(seed & 0xFFFFFFFFFFFFFFFF) + (ids + U64(1)) * GOLDEN_GAMMA)
    return mixed


@kernel
def spawn(board: Any, state: Any, gamma: Any) -> Any:
    """Put a 2 (p = 0.9) or a 4 (p = 0.1) into a uniformly random empty cell.

    One draw from ``[0, 10 * empties)`` decides both: the quotient by 10 is the cell (counted from the
    last one), the remainder the tile. Returns ``(board, is_four, state)``, all ``u64``.
    """
    mask = empty_mask(board)
    ten = U64(10)
    draw, state = bounded(state, gamma, popcount(mask) * ten)
    cell = draw // ten
    is_four = U64(draw == cell * ten)
    return board | select_bit(mask, cell) << is_four, is_four, state


@kernel
def new_game(seed: Any, given: Any) -> Any:
    """Return ``(board, fours, state, gamma)`` at the start of a seed's game.

    The game starts from the board ``given``, or with two spawned tiles if that is 0. ``fours`` is the number
    of spawned 4s. For a given board, it is the number that makes the board's score 0, because a game's score
    counts from its start.
    """
    state, gamma = start(seed)
    if given != U64(0):
        return given, board_score(given) >> U64(2), state, gamma
    board, first, state = spawn(U64(0), state, gamma)
    board, second, state = spawn(board, state, gamma)
    return board, first + second, state, gamma


@kernel
def _fill_starts(seeds: Any, out: Any) -> None:
    for i in range(seeds.shape[0]):
        out[i] = new_game(seeds[i], U64(0))[0]


def start_boards(
    seeds: npt.NDArray[np.uint64], given: npt.NDArray[np.uint64] | None = None
) -> npt.NDArray[np.uint64]:
    """Return the first board of each seed's game, ``u64[n]``, drawn from ``given`` if that is not None."""
    if given is not None:
        drawn: npt.NDArray[np.uint64] = given[mix(seeds) % U64(len(given))]
        return drawn
    boards = np.empty(len(seeds), np.uint64)
    _fill_starts(seeds, boards)
    return boards
