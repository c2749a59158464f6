"""Compiled rules of 2048 on packed boards.

A **board** is a ``u64`` of 16 nibbles, cell 0 (top left) in the most significant one, row-major. A nibble is
a tile's exponent (0 empty, 1 = 2, ..., 15 = 32768). Moves are 0 up, 1 down, 2 left, 3 right. Rows are looked
up in tables; columns are rows of the transposed board (bit tricks after nneonneo's and Szubert and
Jaskowski's engines). The table of left moves is generated from the rule at import, and the other tables from
it.

Two tiles of 32768 merge, and the game ends with that move (:func:`wins`). No nibble holds the 65536, so the
final board of the game is :data:`WON`. In rules 1 they do not merge.

The kernels take ``np.uint64`` boards. They can be called from other kernels, which inline them, and slowly
from Python. There, a returned board is an ``int``: pass it on as ``np.uint64(board)``. Functions with plural
names take arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import bswap64, popcount

U64 = np.uint64

UP, DOWN, LEFT, RIGHT = range(4)
EXPONENT_MAX = 15

#: The board after a move that merges two tiles of 32768: an empty board, which no other game has.
WON = U64(0)
#: A game has at least this many moves before its tiles add up to 65536: a move adds at most a 4.
MOVES_BEFORE_WIN = (65536 - 2 * 4) // 4

#: ``SYMMETRY_MOVES[k, move]`` is the move on ``symmetry(board, k)`` that mirrors ``move`` on ``board``.
SYMMETRY_MOVES = np.array(
    [
        [UP, DOWN, LEFT, RIGHT],
        [UP, DOWN, RIGHT, LEFT],
        [DOWN, UP, LEFT, RIGHT],
        [DOWN, UP, RIGHT, LEFT],
        [LEFT, RIGHT, UP, DOWN],
        [LEFT, RIGHT, DOWN, UP],
        [RIGHT, LEFT, UP, DOWN],
        [RIGHT, LEFT, DOWN, UP],
    ],
    dtype=np.uint8,
)


def _slide_lines(lines: npt.NDArray[Any], top: int = EXPONENT_MAX + 1) -> npt.NDArray[np.uint32]:
    """Slide lines of exponents, ``[n, 4]``, to the first cell, in place, and merge those below ``top``.

    Returns:
        The scores, ``u32[n]``.
    """
    score = np.zeros(len(lines), np.uint32)
    _close_gaps(lines)
    for cell in range(3):
        merges = (lines[:, cell] == lines[:, cell + 1]) & (lines[:, cell] != 0) & (lines[:, cell] < top)
        lines[merges, cell] += 1
        lines[merges, cell + 1] = 0
        score[merges] += np.uint32(1) << lines[merges, cell]
    _close_gaps(lines)
    return score


def _close_gaps(lines: npt.NDArray[Any]) -> None:
    for last in (3, 2, 1):
        for cell in range(last):
            gap = lines[:, cell] == 0
            lines[gap, cell], lines[gap, cell + 1] = lines[gap, cell + 1], 0


def _make_tables() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
    """Make ``SLIDE`` and ``SLIDE_APART`` (left moves, then right moves, 65,536 each) and ``MERGE_SCORE``.

    Both directions score the same: of a run of equal tiles, two merge once, three once, four twice.
    """
    rows, shifts = np.arange(1 << 16, dtype=np.uint32), np.array([12, 8, 4, 0], np.uint32)
    whole = rows[:, None] >> shifts & 15
    apart = whole.copy()
    score = _slide_lines(whole)
    _slide_lines(apart, EXPONENT_MAX)
    reverse = rows >> 12 | (rows >> 4 & 0x00F0) | (rows << 4 & 0x0F00) | (rows << 12 & 0xF000)
    slid = [(np.minimum(each, EXPONENT_MAX) << shifts).sum(axis=1) for each in (whole, apart)]
    slide, slide_apart = (
        np.concatenate([table, reverse[table[reverse]]]).astype(np.uint16) for table in slid
    )
    return slide, slide_apart, score


#: ``SLIDE`` leaves a single 32768 of two merged tiles: a search values the move by that board.
#: ``SLIDE_APART`` leaves both, as in every move after which a game of any rules continues.
SLIDE, SLIDE_APART, MERGE_SCORE = _make_tables()
SLIDE.flags.writeable = MERGE_SCORE.flags.writeable = SLIDE_APART.flags.writeable = False

_ROW = U64(0xFFFF)
ONES = U64(0x1111111111111111)


@helper
def row(board: Any, i: int) -> Any:
    """Return row ``i`` of the board, as an index of the row tables."""
    return (board >> U64(48 - 16 * i)) & _ROW


@kernel
def transpose(board: Any) -> Any:
    """Exchange rows and columns.

    Example:
        >>> hex(transpose(np.uint64(0x1234000000000000)))
        '0x1000200030004000'
    """
    swap = (board ^ (board >> U64(12))) & U64(0x0000F0F00000F0F0)
    board = board ^ swap ^ (swap << U64(12))
    swap = (board ^ (board >> U64(24))) & U64(0x00000000FF00FF00)
    return board ^ swap ^ (swap << U64(24))


@helper
def slide_rows(board: Any, right: Any) -> Any:
    """Move all four rows left (``right`` = 0) or right (1)."""
    table = right << U64(16)
    return (
        (U64(SLIDE[table + row(board, 0)]) << U64(48))
        | (U64(SLIDE[table + row(board, 1)]) << U64(32))
        | (U64(SLIDE[table + row(board, 2)]) << U64(16))
        | U64(SLIDE[table + row(board, 3)])
    )


@kernel
def slide(board: Any, move: Any) -> Any:
    """Return the afterstate of ``move``: tiles slid and merged, no spawn. An illegal move changes nothing.

    Args:
        board: a packed board.
        move: 0 up, 1 down, 2 left, 3 right.

    Example:
        >>> hex(slide(np.uint64(0x1120000000000000), LEFT))
        '0x2200000000000000'
    """
    move = U64(move)
    if move >= U64(LEFT):
        return slide_rows(board, move & U64(1))
    return transpose(slide_rows(transpose(board), move & U64(1)))


@helper
def rows_merge_score(board: Any) -> Any:
    """Return the score of a move along the rows, in either direction."""
    return (
        U64(MERGE_SCORE[row(board, 0)])
        + U64(MERGE_SCORE[row(board, 1)])
        + U64(MERGE_SCORE[row(board, 2)])
        + U64(MERGE_SCORE[row(board, 3)])
    )


@kernel
def merge_score(board: Any, move: Any) -> Any:
    """Return the score of ``move``: the sum of the merged tiles.

    Args:
        board: a packed board.
        move: 0 up, 1 down, 2 left, 3 right.

    Example:
        >>> merge_score(np.uint64(0x1122000000000000), LEFT)
        12
    """
    if U64(move) >= U64(LEFT):
        return rows_merge_score(board)
    return rows_merge_score(transpose(board))


@kernel
def has_pair(board: Any) -> Any:
    """Return whether a board has two tiles of 32768."""
    tops = board & (board >> U64(1))
    tops &= (tops >> U64(2)) & ONES
    return tops & (tops - U64(1)) != U64(0)


@kernel
def wins(board: Any, move: Any) -> Any:
    """Return whether a move merges two tiles of 32768, which ends the game.

    Args:
        board: a packed board.
        move: 0 up, 1 down, 2 left, 3 right.

    Example:
        >>> wins(np.uint64(0xF0F1000000000000), LEFT), wins(np.uint64(0xF1F0000000000000), LEFT)
        (True, False)
    """
    if not has_pair(board):
        return False
    lines = board if U64(move) >= U64(LEFT) else transpose(board)
    for i in range(4):
        line = row(lines, i)
        if SLIDE[line] != SLIDE_APART[line]:
            return True
    return False


@kernel
def legal_mask(board: Any) -> Any:
    """Return the legal moves, bit ``m`` set where move ``m`` changes the board.

    Example:
        >>> bin(legal_mask(np.uint64(0x1000000000000000)))  # down and right
        '0b1010'
    """
    columns = transpose(board)
    one = U64(1)
    return (
        U64(slide_rows(columns, U64(0)) != columns)
        | U64(slide_rows(columns, one) != columns) << one
        | U64(slide_rows(board, U64(0)) != board) << U64(2)
        | U64(slide_rows(board, one) != board) << U64(3)
    )


@kernel
def empty_mask(board: Any) -> Any:
    """Set the lowest bit of each empty cell's nibble."""
    board |= board >> U64(1)
    board |= board >> U64(2)
    return ~board & ONES


@kernel
def count_empty(board: Any) -> Any:
    """Count the empty cells.

    Example:
        >>> count_empty(np.uint64(0x1200000000000000))
        14
    """
    return popcount(empty_mask(board))


@kernel
def max_exponent(board: Any) -> Any:
    """Return the exponent of the highest tile.

    Example:
        >>> max_exponent(np.uint64(0x1B00000000000000))  # 2048
        11
    """
    highest = U64(0)
    for i in range(16):
        highest = max(highest, (board >> U64(4 * i)) & U64(15))
    return highest


@kernel
def final_exponent(board: Any) -> Any:
    """Return the exponent of the highest tile of a game's final board; 16 for :data:`WON`."""
    return U64(EXPONENT_MAX + 1) if board == WON else max_exponent(board)


@kernel
def board_score(board: Any) -> Any:
    """Return the sum over tiles of ``(e - 1) * 2**e``.

    It is the score of the merges if every spawn had been a 2. Each spawned 4 makes it 4 more than the score.

    Example:
        >>> board_score(np.uint64(0x3100000000000000))
        16
    """
    total = U64(0)
    for i in range(16):
        exponent = (board >> U64(4 * i)) & U64(15)
        if exponent > U64(1):
            total += (exponent - U64(1)) << exponent
    return total


@helper
def mirror(board: Any) -> Any:
    board = (board & U64(0xF0F0F0F0F0F0F0F0)) >> U64(4) | (board & U64(0x0F0F0F0F0F0F0F0F)) << U64(4)
    return (board & U64(0xFF00FF00FF00FF00)) >> U64(8) | (board & U64(0x00FF00FF00FF00FF)) << U64(8)


@helper
def flip(board: Any) -> Any:
    board = (board >> U64(32)) | (board << U64(32))
    return (board & U64(0xFFFF0000FFFF0000)) >> U64(16) | (board & U64(0x0000FFFF0000FFFF)) << U64(16)


@kernel
def symmetry(board: Any, k: Any) -> Any:
    """Apply a symmetry of the square.

    Args:
        board: a packed board.
        k: 0 to 7: bit 0 exchanges left and right, bit 1 top and bottom, bit 2 then transposes.

    Example:
        >>> hex(symmetry(np.uint64(0x1200000000000000), 1))
        '0x21000000000000'
    """
    k = U64(k)
    if k & U64(1):
        board = mirror(board)
    if k & U64(2):
        board = flip(board)
    if k & U64(4):
        board = transpose(board)
    return board


@helper
def spread_exps(half: Any) -> Any:
    """Spread eight nibbles (the low 32 bits) to eight bytes in memory order, the highest nibble first."""
    half = (half | half << U64(16)) & U64(0x0000FFFF0000FFFF)
    half = (half | half << U64(8)) & U64(0x00FF00FF00FF00FF)
    half = (half | half << U64(4)) & U64(0x0F0F0F0F0F0F0F0F)
    return bswap64(half)


@kernel
def _fill_exps(boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        board = boards[i]
        for cell in range(16):
            out[i, cell] = (board >> U64(60 - 4 * cell)) & U64(15)


@kernel
def _fill_boards(exps: Any, out: Any) -> None:
    for i in range(exps.shape[0]):
        board = U64(0)
        for cell in range(16):
            board = board << U64(4) | U64(exps[i, cell] & 15)
        out[i] = board


@kernel
def _fill_legal(boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[i] = legal_mask(boards[i])


def as_packed(boards: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Convert to ``u64``. Signed integers keep their bits; ValueError for floats, which hold 53 bits."""
    if isinstance(boards, int | list | tuple):
        # NumPy would convert a list with boards on both sides of 2**63 to floats.
        each = np.asarray(boards, dtype=object)
        for board in each.flat:
            if not isinstance(board, int | np.integer) or not -(2**63) <= board < 2**64:
                raise ValueError(f"found the board {board!r}; expected integers of 64 bits")
        return np.array([int(board) % 2**64 for board in each.flat], np.uint64).reshape(each.shape)
    packed = np.asarray(boards)
    if packed.dtype.kind not in "iu":
        raise ValueError(f"boards have dtype {packed.dtype}; expected integers")
    return packed.astype(np.uint64, copy=False)


def boards_to_exps(boards: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Unpack boards: ``u64[n]`` (or one board) to exponents ``u8[n, 16]`` (or ``u8[16]``), cell 0 first.

    Raises:
        ValueError: the boards are not integers of 64 bits.

    Example:
        >>> boards_to_exps(0x1B00000000000000)[:4]
        array([ 1, 11,  0,  0], dtype=uint8)
    """
    packed = as_packed(boards)
    out = np.empty((packed.size, 16), dtype=np.uint8)
    _fill_exps(np.ascontiguousarray(packed.reshape(-1)), out)
    return out.reshape(*packed.shape, 16)


def exps_after(board: int, move: int) -> npt.NDArray[np.uint8]:
    """Return the exponents after a move and before the spawn, ``u8[16]``: 16 for a 65536.

    Args:
        board: a packed board.
        move: 0 up, 1 down, 2 left, 3 right.

    Example:
        >>> exps_after(0xFF00000000000000, LEFT)[:4]
        array([16,  0,  0,  0], dtype=uint8)
    """
    exps = boards_to_exps(board).reshape(4, 4)
    lines = (exps if move >= LEFT else exps.T)[:, :: -1 if move & 1 else 1]  # a view
    _slide_lines(lines)
    return exps.reshape(16)


def exps_to_boards(exps: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Pack exponents: ``u8[n, 16]`` (or ``u8[16]``), each at most 15, to ``u64[n]`` (or 0-dimensional).

    Raises:
        ValueError: the last axis is not 16 long, or an exponent is not an integer or above 15.

    Example:
        >>> hex(exps_to_boards([1, 11] + [0] * 14))
        '0x1b00000000000000'
    """
    cells = np.asarray(exps)
    if cells.ndim < 1 or cells.shape[-1] != 16:
        raise ValueError(f"exponents have shape {cells.shape}; expected (..., 16)")
    if cells.dtype.kind not in "iub":
        raise ValueError(f"exponents have dtype {cells.dtype}; expected integers")
    if cells.size and (cells.min() < 0 or cells.max() > EXPONENT_MAX):
        raise ValueError(f"exponents range from {cells.min()} to {cells.max()}; expected 0..{EXPONENT_MAX}")
    out = np.empty(cells.size // 16, dtype=np.uint64)
    _fill_boards(np.ascontiguousarray(cells, dtype=np.uint8).reshape(-1, 16), out)
    return out.reshape(cells.shape[:-1])


def legal_masks(boards: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Compute :func:`legal_mask` of packed boards: ``u64[n]`` to ``u8[n]``.

    Raises:
        ValueError: the boards are not integers of 64 bits.

    Example:
        >>> legal_masks([0x1000000000000000, 0x1200000000000000])
        array([10, 10], dtype=uint8)
    """
    packed = as_packed(boards)
    out = np.empty(packed.size, dtype=np.uint8)
    _fill_legal(np.ascontiguousarray(packed.reshape(-1)), out)
    return out.reshape(packed.shape)
