"""The move between two boards of a run, found again from the boards alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048._bits import popcount
from tape2048._jit import kernel
from tape2048.rules import slide

__all__ = ["AMBIGUOUS", "UNKNOWN", "recover_move", "recover_moves"]

#: Two different moves lead from one board to the next, each with a spawn of its own.
AMBIGUOUS = 254
#: No move does: the boards do not follow one another, or the next one was not recorded.
UNKNOWN = 255

U64 = np.uint64


@register_jitable
def recover_move(board: Any, following: Any) -> Any:
    """The move (a ``u64``) that leads from a packed board to the next one, AMBIGUOUS, or UNKNOWN."""
    found = U64(UNKNOWN)
    for move in range(4):
        after = slide(board, U64(move))
        spawn = after ^ following
        if after == board or spawn == U64(0):
            continue
        # One nibble differs: its lowest set bit says which.
        cell = popcount((spawn & (~spawn + U64(1))) - U64(1)) & ~U64(3)
        tile = spawn >> cell
        if (tile == U64(1) or tile == U64(2)) and (after >> cell) & U64(15) == U64(0):
            found = U64(move) if found == U64(UNKNOWN) else U64(AMBIGUOUS)
    return found


@kernel
def _fill_moves(boards: Any, following: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[i] = recover_move(boards[i], following[i])


def recover_moves(boards: npt.ArrayLike, following: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """The move between each board and the next one of its run.

    A move is legal, and is followed by one spawn: an empty cell of the afterstate gets a 2 or a 4. Mostly
    exactly one move explains a pair of boards. On few tiles two can: a lone 2 slid to either end of
    its row, where the spawn took the other end.

    Args:
        boards: packed boards, ``u64[n]``.
        following: the board after each one's move and spawn, ``u64[n]``.

    Returns:
        ``u8[n]``: 0 up, 1 down, 2 left, 3 right; :data:`AMBIGUOUS` where two moves explain the pair;
        :data:`UNKNOWN` where none does.

    Raises:
        ValueError: the shapes differ, or these are not integers.
    """
    before, after = np.asarray(boards), np.asarray(following)
    if before.shape != after.shape:
        raise ValueError(f"boards of shape {before.shape} and {after.shape}; expected one shape")
    if before.size and (before.dtype.kind not in "iu" or after.dtype.kind not in "iu"):
        raise ValueError(f"boards have dtypes {before.dtype} and {after.dtype}; expected integers")
    out = np.empty(before.size, np.uint8)
    _fill_moves(before.reshape(-1).astype(np.uint64), after.reshape(-1).astype(np.uint64), out)
    return out.reshape(before.shape)
