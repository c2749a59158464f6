"""Moves and spawns, found again from the boards of a run.

A board and the next one are explained by one legal move and one spawn: an empty cell of the afterstate that
gets a 2 or a 4. Mostly exactly one move explains a pair. On few tiles two can: a lone 2 slid to either end of
its row, where the spawn took the other end. Where none does, the boards are not consecutive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from tape2048.game.rules import as_packed, slide, slide_rows, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["AMBIGUOUS", "UNKNOWN", "Recovered", "recover", "recover_move"]

#: In the place of a move: two moves explain the pair.
AMBIGUOUS = 254
#: In the place of a move, a cell or an exponent: nothing explains the pair.
UNKNOWN = 255

U8 = np.uint8
U64 = np.uint64

_LOWEST = U64(0x1111111111111111)
_SPAWNS = U64(0x3333333333333333)


class Recovered(NamedTuple):
    """What happened between consecutive boards.

    Attributes:
        moves: ``u8[n]``: 0 to 3, AMBIGUOUS or UNKNOWN.
        cells: ``u8[n]``: the cell of the spawn, 0 (top left) to 15; UNKNOWN where the move is not one move.
        exponents: ``u8[n]``: the spawned tile: 1 (a 2) or 2 (a 4); UNKNOWN as above.
    """

    moves: NDArray[np.uint8]
    cells: NDArray[np.uint8]
    exponents: NDArray[np.uint8]


@register_jitable
def _spawn_between(board: Any, move: Any, following: Any) -> Any:
    """The spawn after a move, as ``cell * 16 + exponent``; 0 where nothing explains the pair."""
    after = slide(board, move)
    spawn = after ^ following
    if after == board or spawn == U64(0):
        return U64(0)
    # One nibble differs: its lowest set bit says which.
    shift = popcount((spawn & (~spawn + U64(1))) - U64(1)) & ~U64(3)
    exponent = spawn >> shift
    if exponent > U64(2) or (after >> shift) & U64(15) != U64(0):
        return U64(0)
    return (U64(15) - (shift >> U64(2))) << U64(4) | exponent


@register_jitable(forceinline=True)
def _explains(after: Any, before: Any, following: Any) -> Any:
    """1 where one spawn leads from an afterstate, other than the board before, to the next board; else 0."""
    spawn = after ^ following
    # A 2 or a 4 in an empty cell is one bit, the lowest or the second of a nibble that was 0.
    cell = ((spawn | spawn >> U64(1)) & _LOWEST) * U64(15)
    is_one = (spawn != U64(0)) & (spawn & (spawn - U64(1)) == U64(0)) & (spawn & _SPAWNS == spawn)
    return U64(is_one & (after & cell == U64(0)) & (after != before))


@register_jitable
def recover_move(board: Any, following: Any) -> Any:
    """The move (a ``u64``) that leads from a packed board to the next one, AMBIGUOUS, or UNKNOWN."""
    columns, next_columns = transpose(board), transpose(following)
    up = _explains(slide_rows(columns, U64(0)), columns, next_columns)
    down = _explains(slide_rows(columns, U64(1)), columns, next_columns)
    left = _explains(slide_rows(board, U64(0)), board, following)
    right = _explains(slide_rows(board, U64(1)), board, following)
    count = up + down + left + right
    if count == U64(1):
        return down + U64(2) * left + U64(3) * right
    return U64(UNKNOWN) if count == U64(0) else U64(AMBIGUOUS)


@kernel
def _recover(states: Any, known: Any, moves: Any, cells: Any, exponents: Any) -> None:
    for i in range(moves.shape[0]):
        move, found = U64(UNKNOWN), U64(0)
        first, last = (0, 4) if known.shape[0] == 0 else (np.int64(known[i]), np.int64(known[i]) + 1)
        for candidate in range(first, min(last, 4)):
            spawn = _spawn_between(states[i], U64(candidate), states[i + 1])
            if spawn != U64(0):
                move = U64(candidate) if found == U64(0) else U64(AMBIGUOUS)
                found = spawn
        moves[i] = U8(move)
        one = move < U64(4)
        cells[i] = U8(found >> U64(4)) if one else U8(UNKNOWN)
        exponents[i] = U8(found & U64(15)) if one else U8(UNKNOWN)


def recover(states: NDArray[np.uint64], moves: NDArray[np.uint8] | None = None) -> Recovered:
    """Moves and spawns between consecutive boards.

    Args:
        states: ``u64[n + 1]``, packed boards.
        moves: ``u8[n]``, the moves where they are known: then only the spawns are looked for, and no pair is
            ambiguous. A move that does not explain its pair comes back as UNKNOWN.

    Raises:
        ValueError: lengths that do not fit each other, no board at all, or what is no integer.
    """
    steps = len(states) - 1
    if steps < 0 or (moves is not None and len(moves) != steps):
        raise ValueError(f"{len(states)} boards and {None if moves is None else len(moves)} moves")
    known = np.empty(0, np.uint8) if moves is None else _as_moves(moves)
    found = Recovered(*(np.empty(steps, np.uint8) for _ in range(3)))
    _recover(as_packed(states).copy(), known, *found)
    return found


def _as_moves(moves: ArrayLike) -> NDArray[np.uint8]:
    """Moves as ``u8``, UNKNOWN for what is none: 256 is not to become 0."""
    given = np.asarray(moves)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"moves have dtype {given.dtype}; expected integers")
    return np.where((given < 0) | (given > 3), UNKNOWN, given).astype(np.uint8)
