"""Moves, spawns and final boards, recovered from the boards of a run.

A board and the next one are explained by one legal move and one spawn: an empty cell of the afterstate that
gets a 2 or a 4. Mostly exactly one move explains a pair. On few tiles two can: a lone 2 slid to either end of
its row, where the spawn took the other end. If none does, the boards are not consecutive.

Some formats keep only the boards before each move. A game ends when no move is left, and an empty cell always
leaves one. So the afterstate of a finished game's last move has one empty cell, and only the last spawn, a 2
or a 4, is unknown. Often only one of them ends the game.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from tape2048.game.rules import as_packed, empty_mask, legal_mask, slide, slide_rows, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: Instead of a move: two moves explain the pair.
AMBIGUOUS = 254
#: Instead of a move, a cell or an exponent: nothing explains the pair.
UNKNOWN = 255

U8 = np.uint8
U64 = np.uint64

_LOWEST = U64(0x1111111111111111)
_SPAWNS = U64(0x3333333333333333)


class Recovered(NamedTuple):
    """Moves and spawns between consecutive boards, of :func:`recover`.

    Attributes:
        moves: ``u8[n]``, 0 to 3, AMBIGUOUS or UNKNOWN.
        cells: ``u8[n]``, cell of the spawn, 0 (top left) to 15; UNKNOWN without a single move.
        exponents: ``u8[n]``, the spawned tile, 1 (a 2) or 2 (a 4); UNKNOWN as above.
    """

    moves: NDArray[np.uint8]
    cells: NDArray[np.uint8]
    exponents: NDArray[np.uint8]


@register_jitable
def spawn_between(board: Any, move: Any, following: Any) -> Any:
    """Return the spawn after a move from a board to the next one, for compiled code."""
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
    """Return 1 if one spawn leads from an afterstate (not the board before) to the next board; else 0."""
    spawn = after ^ following
    # A 2 or a 4 in an empty cell is one bit, the lowest or the second of a nibble that was 0.
    cell = ((spawn | spawn >> U64(1)) & _LOWEST) * U64(15)
    is_one = (spawn != U64(0)) & (spawn & (spawn - U64(1)) == U64(0)) & (spawn & _SPAWNS == spawn)
    return U64(is_one & (after & cell == U64(0)) & (after != before))


@register_jitable
def recover_move(board: Any, following: Any) -> Any:
    """Recover the move from a packed board to the next one, for compiled code.

    Args:
        board: a packed board.
        following: the next one.

    Returns:
        ``u64``: 0 to 3, AMBIGUOUS or UNKNOWN.

    Example:
        >>> int(recover_move(np.uint64(0x1100000000000000), np.uint64(0x2010000000000000)))
        2
    """
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
            spawn = spawn_between(states[i], U64(candidate), states[i + 1])
            if spawn != U64(0):
                move = U64(candidate) if found == U64(0) else U64(AMBIGUOUS)
                found = spawn
        moves[i] = U8(move)
        one = move < U64(4)
        cells[i] = U8(found >> U64(4)) if one else U8(UNKNOWN)
        exponents[i] = U8(found & U64(15)) if one else U8(UNKNOWN)


def recover(states: NDArray[np.uint64], moves: NDArray[np.uint8] | None = None) -> Recovered:
    """Recover the moves and spawns between consecutive boards.

    Args:
        states: ``u64[n + 1]``, packed boards.
        moves: ``u8[n]``, known moves: only the spawns are recovered, and no pair is ambiguous. A move that
            does not explain its pair becomes UNKNOWN.

    Raises:
        ValueError: lengths that do not match, no board, or boards or moves that are not integers.

    Example:
        >>> found = recover(np.array([0x1100000000000000, 0x2010000000000000], np.uint64))
        >>> [column.item() for column in found]
        [2, 2, 1]
    """
    steps = len(states) - 1
    if steps < 0 or (moves is not None and len(moves) != steps):
        raise ValueError(f"{len(states)} boards and {None if moves is None else len(moves)} moves")
    known = np.empty(0, np.uint8) if moves is None else _as_moves(moves)
    found = Recovered(*(np.empty(steps, np.uint8) for _ in range(3)))
    _recover(as_packed(states).copy(), known, *found)
    return found


def _as_moves(moves: ArrayLike) -> NDArray[np.uint8]:
    """Convert moves to ``u8``; UNKNOWN for invalid ones (256 must not become 0)."""
    given = np.asarray(moves)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"moves have dtype {given.dtype}; expected integers")
    return np.where((given < 0) | (given > 3), UNKNOWN, given).astype(np.uint8)


@kernel
def _last_boards(boards: Any, moves: Any, finals: Any, certain: Any) -> None:
    for i in range(len(boards)):
        after = slide(boards[i], moves[i])
        empty = empty_mask(after)
        two = empty & (~empty + U64(1))  # the last empty cell
        ends_two = empty == two and empty != U64(0) and legal_mask(after | two) == U64(0)
        ends_four = empty == two and empty != U64(0) and legal_mask(after | two << U64(1)) == U64(0)
        finals[i] = after | (two << U64(1) if ends_four and not ends_two else two)
        certain[i] = ends_two != ends_four


def last_boards(
    boards: NDArray[np.uint64], moves: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Derive the final boards of runs from the last recorded boards and their moves.

    Args:
        boards: ``u64[n]``, the board before the last move of each run.
        moves: ``u8[n]``, that move.

    Returns:
        ``finals`` and ``certain``. ``finals`` is ``u64[n]``; of two candidates, the one with a 2 (nine times
        as likely). ``certain`` is ``bool[n]``: whether there is a single candidate. A truncated run (whose
        last board cannot end a game) is never certain; its final board is the afterstate with a 2 in its last
        empty cell.

    Example:
        >>> finals, certain = last_boards(np.array([0x2343343223433411], np.uint64), np.array([2], np.uint8))
        >>> hex(finals[0]), certain.tolist()
        ('0x2343343223433421', [True])
    """
    finals = np.empty(len(boards), np.uint64)
    certain = np.empty(len(boards), np.bool_)
    _last_boards(np.ascontiguousarray(boards), np.ascontiguousarray(moves), finals, certain)
    return finals, certain
