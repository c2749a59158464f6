"""Random spawns: after a move, and at the start of a game."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.game.rules import empty_mask
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048_recorder.game import rng

U64 = np.uint64


@kernel
def spawn(board: Any, state: Any, gamma: Any) -> Any:
    """Put a 2 (p = 0.9) or a 4 (p = 0.1) into a uniformly random empty cell.

    One draw from ``[0, 10 * empties)`` decides both: the quotient by 10 is the cell (counted from the
    last one), the remainder the tile. Returns ``(board, is_four, state)``, all ``u64``.
    """
    mask = empty_mask(board)
    ten = U64(10)
    draw, state = rng.bounded(state, gamma, popcount(mask) * ten)
    cell = draw // ten
    is_four = U64(draw == cell * ten)
    return board | select_bit(mask, cell) << is_four, is_four, state


@kernel
def new_game(seed: Any) -> Any:
    """Return ``(board, fours, state, gamma)`` of a seed's game after two spawns, ``fours`` of them 4s."""
    state, gamma = rng.start(seed)
    board, first, state = spawn(U64(0), state, gamma)
    board, second, state = spawn(board, state, gamma)
    return board, first + second, state, gamma


@kernel
def _fill_starts(seeds: Any, out: Any) -> None:
    for i in range(seeds.shape[0]):
        out[i] = new_game(seeds[i])[0]


def start_boards(seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the boards that the games of these seeds begin with; both ``u64[n]``."""
    boards = np.empty(len(seeds), np.uint64)
    _fill_starts(seeds, boards)
    return boards
