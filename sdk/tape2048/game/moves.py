"""Moves, spawns and final boards, recovered from the boards of a run.

A board and the next one are explained by one legal move and one spawn: an empty cell of the afterstate that
gets a 2 or a 4. Mostly exactly one move explains a pair. On few tiles two can: a lone 2 slid to either end of
its row, where the spawn took the other end. If none does, the boards are not consecutive.

A move that merges two tiles of 32768 ends the game, and no tile is spawned. :data:`WON` follows it.

Some formats keep only the boards before each move. A game ends when no move is left, and an empty cell always
leaves one. The afterstate of a finished game's last move therefore has one empty cell, and only the last
spawn, a 2 or a 4, is unknown. Often only one spawn ends the game.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.game.rules import (
    ONES,
    WON,
    as_packed,
    board_score,
    empty_mask,
    final_exponent,
    legal_mask,
    merge_score,
    slide,
    slide_rows,
    transpose,
    wins,
)
from tape2048.game.spawning import is_start, spawn_between
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import popcount

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Instead of a move: two moves explain the pair.
AMBIGUOUS = 254
#: Instead of a move, a cell or an exponent: nothing explains the pair.
UNKNOWN = 255


U8 = np.uint8
U64 = np.uint64

_SPAWNS = U64(0x3333333333333333)


class Recovered(NamedTuple):
    """Moves and spawns between consecutive boards, of :func:`recover`.

    Attributes:
        moves: ``u8[n]``, 0 to 3, AMBIGUOUS or UNKNOWN.
        cells: ``u8[n]``, cell of the spawn, 0 (top left) to 15; UNKNOWN without a single move, NO_CELL (and
            exponent 1) where the game ended with a 65536.
        exponents: ``u8[n]``, the spawned tile, 1 (a 2) or 2 (a 4); UNKNOWN as above.
    """

    moves: NDArray[np.uint8]
    cells: NDArray[np.uint8]
    exponents: NDArray[np.uint8]


@kernel
def find_fault(states: Any, moves: Any, score: Any, tile: Any) -> Any:
    """Return the first step against the rules (n: a wrong score or tile; -1: none) and the moves' score."""
    fours = U64(0)
    for step in range(len(moves)):
        move = U64(moves[step])
        spawn = spawn_between(states[step], move, states[step + 1]) if move < U64(4) else U64(0)
        if spawn == U64(0):
            return step, U64(0)
        fours += (spawn >> U64(1)) & U64(1)
    last = states[-1]
    merged = U64(0)
    if last == WON:
        last = states[-2]
        merged = merge_score(last, U64(moves[-1]))
    merged += board_score(last) - board_score(states[0]) - U64(4) * fours
    board, least, more = states[-1], merged, U64(0)
    for cut in range(5):  # from the second turn on, the last move is missing, and perhaps a 4 that followed
        most = board_score(board)
        fits = score in (least, most, most + more)
        fits |= not is_start(states[0]) and least <= score <= most + more
        if fits and tile == U64(1) << final_exponent(board):
            return -1, merged
        if cut < 4 and legal_mask(states[-1]) >> U64(cut) & U64(1):
            board = WON if wins(last, U64(cut)) else slide(last, U64(cut))
            least, more = merged + merge_score(last, U64(cut)), U64(4)
    return len(moves), merged


@helper(forceinline=True)
def _explains(after: Any, before: Any, following: Any) -> Any:
    """Return 1 if one spawn leads from an afterstate (not the board before) to the next board, or else 0."""
    spawn = after ^ following
    # A 2 or a 4 in an empty cell is one bit, the lowest or the second of a nibble that was 0.
    cell = ((spawn | spawn >> U64(1)) & ONES) * U64(15)
    is_one = (spawn != U64(0)) & (spawn & (spawn - U64(1)) == U64(0)) & (spawn & _SPAWNS == spawn)
    return U64(is_one & (after & cell == U64(0)) & (after != before))


@helper
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
    up = U64(not wins(board, 0)) & _explains(slide_rows(columns, U64(0)), columns, next_columns)
    down = U64(not wins(board, 1)) & _explains(slide_rows(columns, U64(1)), columns, next_columns)
    left = U64(not wins(board, 2)) & _explains(slide_rows(board, U64(0)), board, following)
    right = U64(not wins(board, 3)) & _explains(slide_rows(board, U64(1)), board, following)
    count = up + down + left + right
    if count == U64(1):
        return down + U64(2) * left + U64(3) * right
    return U64(UNKNOWN) if count == U64(0) else U64(AMBIGUOUS)


@kernel
def _recover(states: Any, known: Any, moves: Any, cells: Any, exponents: Any) -> None:
    for i in range(moves.shape[0]):
        move = U64(known[i]) if known.shape[0] else recover_move(states[i], states[i + 1])
        found = spawn_between(states[i], move, states[i + 1]) if move < U64(4) else U64(0)
        one = found != U64(0)
        moves[i] = U8(move) if one or not known.shape[0] else U8(UNKNOWN)
        cells[i] = U8(found >> U64(4)) if one else U8(UNKNOWN)
        exponents[i] = U8(found & U64(15)) if one else U8(UNKNOWN)


def recover(states: NDArray[np.uint64], moves: NDArray[np.uint8] | None = None) -> Recovered:
    """Recover the moves and spawns between consecutive boards.

    Args:
        states: ``u64[n + 1]``, packed boards.
        moves: ``u8[n]``, known moves: only the spawns are recovered, and no pair is ambiguous. A move that
            does not explain its pair becomes UNKNOWN.

    Raises:
        ValueError: the lengths do not match, there is no board, or boards or moves are not integers.

    Example:
        >>> found = recover(np.array([0x1100000000000000, 0x2010000000000000], np.uint64))
        >>> [column.item() for column in found]
        [2, 2, 1]
    """
    steps = len(states) - 1
    if steps < 0 or (moves is not None and len(moves) != steps):
        lengths = f"{len(states)} boards" + ("" if moves is None else f" and {len(moves)} moves")
        raise ValueError(f"found {lengths}; expected at least 1 board, and one board more than moves")
    given = np.asarray(() if moves is None else moves)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"moves have dtype {given.dtype}; expected integers")
    # Before the cast, in which 256 would become 0.
    known = np.where((given < 0) | (given > 3), UNKNOWN, given).astype(np.uint8)
    found = Recovered(*(np.empty(steps, np.uint8) for _ in range(3)))
    _recover(as_packed(states).copy(), known, *found)
    return found


@helper
def _may_be_ambiguous(board: Any) -> Any:
    """Tell whether there is a spawn after which two moves explain the next board."""
    for one in range(1, 4):
        for other in range(one):
            first, second = slide(board, one), slide(board, other)
            if board not in (first, second) and popcount(first ^ second) <= U64(2):
                return True
    return False


@kernel
def count_spawns(states: Any, moves: Any, given: Any, counts: Any) -> None:
    """Add the spawns of a game that keeps the rules to ``counts``, ``i64[17, 18]``.

    Row k has spawns in the first, second, ... of k empty cells, all spawns (column 16) and the 4s (17). Row
    16 is of start boards. Unless the moves are ``given``, no cells are counted on boards that may be
    ambiguous: the cell decides whether the move is known.
    """
    if is_start(states[0]):
        counts[16, 16] += 1
        for cell in range(16):
            exponent = (states[0] >> U64(60 - 4 * cell)) & U64(15)
            counts[16, cell] += exponent != U64(0)
            counts[16, 17] += exponent == U64(2)
    for step in range(len(moves)):
        if states[step + 1] == WON:
            break
        spawn = spawn_between(states[step], U64(moves[step]), states[step + 1])
        empty = empty_mask(slide(states[step], U64(moves[step])))
        before = empty >> (U64(60) - (spawn >> U64(4) << U64(2))) >> U64(4)
        row = popcount(empty)
        counts[row, 16] += 1
        counts[row, 17] += spawn & U64(15) == U64(2)
        counts[row, popcount(before)] += given or not _may_be_ambiguous(states[step])


@kernel
def find_win(boards: Any, moves: Any) -> int:
    """Return the first step that merges two tiles of 32768, or the number of steps."""
    for step in range(len(moves)):
        if moves[step] < 4 and wins(boards[step], U64(moves[step])):
            return step
    return len(moves)


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
        if wins(boards[i], moves[i]):
            finals[i], certain[i] = WON, True


def last_boards(
    boards: NDArray[np.uint64], moves: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Derive the final boards of runs from the last recorded boards and their moves.

    Args:
        boards: ``u64[n]``, the board before the last move of each run.
        moves: ``u8[n]``, that move.

    Returns:
        ``finals`` and ``certain``. ``finals`` is ``u64[n]``; of two candidates, the board with a 2 (nine
        times as likely). ``certain`` is ``bool[n]``: whether there is a single candidate. A truncated run
        (whose last board cannot end a game) is never certain; its final board is the afterstate with a 2 in
        its last empty cell.

    Example:
        >>> finals, certain = last_boards(np.array([0x2343343223433411], np.uint64), np.array([2], np.uint8))
        >>> hex(finals[0]), certain.tolist()
        ('0x2343343223433421', [True])
    """
    finals = np.empty(len(boards), np.uint64)
    certain = np.empty(len(boards), np.bool_)
    _last_boards(np.ascontiguousarray(boards), np.ascontiguousarray(moves), finals, certain)
    return finals, certain
