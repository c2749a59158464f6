"""Spawned tiles: between two boards, and on the boards that a game can start from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.game.rules import (
    ONES,
    WON,
    empty_mask,
    legal_mask,
    slide,
    transpose,
    wins,
)
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import popcount

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Instead of a cell: the game ended with a merge of two 32768 tiles, and no tile was spawned.
NO_CELL = 32

U8 = np.uint8

U64 = np.uint64


@helper
def spawn_between(board: Any, move: Any, following: Any) -> Any:
    """Return ``cell << 4 | exponent`` of the spawn between two boards, or 0, for compiled code."""
    if wins(board, move):
        return U64(NO_CELL << 4 | 1) if following == WON else U64(0)
    after = slide(board, move)
    spawn = after ^ following
    if after == board or spawn == U64(0):
        return U64(0)
    # One nibble differs: its lowest set bit identifies it.
    shift = popcount((spawn & (~spawn + U64(1))) - U64(1)) & ~U64(3)
    exponent = spawn >> shift
    if exponent > U64(2) or (after >> shift) & U64(15) != U64(0):
        return U64(0)
    return (U64(15) - (shift >> U64(2))) << U64(4) | exponent


@helper
def is_start(board: Any) -> Any:
    """Tell whether a board holds exactly two tiles, each a 2 or a 4."""
    doubled = board & (board >> U64(1)) & ONES
    return board & U64(0xCCCCCCCCCCCCCCCC) == U64(0) and doubled == U64(0) and popcount(board) == U64(2)


#: Reasons why no game reaches a board with a move to make, by the number that :func:`start_fault` returns.
START_FAULTS = (
    "",
    "has fewer than two tiles",
    "has no 2 and no 4, although every move adds one",
    "has no legal move",
    "cannot result from a move and a new 2 or 4",
)


@kernel(allocates=True)
def start_fault(board: Any) -> Any:
    """Return why no game has a move to make on a board, as an index of :data:`START_FAULTS`; 0: none found.

    A move leaves all tiles against its side, and the spawn adds a 2 or a 4: without one of these tiles, a
    board must look like that. A tile above 4 results from two tiles of half its value. Going back merge by
    merge, n tiles of at least 2**e were n + e - 2 tiles of at least 4, in 16 cells: the n-th largest exponent
    is at most 18 - n.
    """
    if is_start(board):
        return 0
    new = packed = False
    large = np.zeros(16, np.int64)  # tiles by exponent
    for shift in range(0, 64, 4):
        exponent = (board >> U64(shift)) & U64(15)
        large[exponent] += 1
        if exponent == U64(1) or exponent == U64(2):
            before = board & ~(U64(15) << U64(shift))
            new, packed = True, packed or _is_packed(before) or _is_packed(transpose(before))
    if large[0] > 14:
        return 1
    if not new:
        return 2
    if legal_mask(board) == U64(0):
        return 3
    count = 0
    for exponent in range(15, 2, -1):
        count += large[exponent]
        packed = packed and count <= 18 - exponent
    return 0 if packed else 4


@kernel
def _fill_faults(boards: Any, faults: Any) -> None:
    for i in range(boards.shape[0]):
        faults[i] = start_fault(boards[i])


def start_faults(boards: NDArray[np.uint64]) -> NDArray[np.uint8]:
    faults = np.empty(len(boards), np.uint8)
    _fill_faults(np.ascontiguousarray(boards), faults)
    return faults


@helper
def _is_packed(board: Any) -> Any:
    """Tell whether the tiles of all rows lie at the left, or all at the right."""
    full = ~empty_mask(board) & ONES
    to_left, to_right = full << U64(4), full >> U64(4)  # of each cell, whether the next one is full
    holes_left = to_left & ~full & ~U64(0x0001000100010001)
    holes_right = to_right & ~full & ~U64(0x1000100010001000)
    return holes_left == U64(0) or holes_right == U64(0)
