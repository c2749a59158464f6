"""Compiled decoder of tapes: bytes to boards.

Each step depends on the previous step, so decoding one game after the other would leave most of the processor
idle. Therefore, :data:`LANES` games are decoded side by side. Their steps have no branches, and the tables
for both directions stay in the second-level cache.

The kernels do not check ranges: ``first`` and ``steps`` of every game must be within the arrays. They accept
any bytes: a byte never leads outside an array, and a wrong byte gives a wrong board. Decoding detects wrong
bytes, with a few instructions for each step.

In a step whose byte has no ``WIN_BIT``, two tiles of 32768 do not merge, as in games of rules 1. The last
step of a game that ends with their merge has this bit. Decoding reports this step as wrong, and :func:`judge`
then accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tape2048.game.rules import (
    SLIDE_APART,
    WON,
    board_score,
    final_exponent,
    has_pair,
    legal_mask,
    merge_score,
    wins,
)
from tape2048.game.spawning import start_fault
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import HAS_PDEP, pdep, pext
from tape2048.session.tape_layout import WIN_BIT

U8 = np.uint8
U64 = np.uint64

#: Number of games that are decoded side by side.
LANES = 4

#: Defects of a game, as :func:`judge` finds them.
SOUND, BAD_START, BIT_7, ILLEGAL_MOVE, FULL_CELL, AFTER_END, BEFORE_END = range(7)

_SWAP_NEAR = U64(0x0000F0F00000F0F0)
_SWAP_FAR = U64(0x00000000FF00FF00)
_ROW = U64(0xFFFF)
_FIRST_ROW = U64(0xFFFF000000000000)
_FIRST_COLUMN = U64(0xF000F000F000F000)


@helper
def _turn(board: Any, near: Any, far: Any) -> Any:
    """Transpose a board by the two masks of a transposition. With masks of 0, the board stays unchanged."""
    swap = (board ^ (board >> U64(12))) & near
    board = board ^ swap ^ (swap << U64(12))
    swap = (board ^ (board >> U64(24))) & far
    return board ^ swap ^ (swap << U64(24))


@helper
def slid_by_turning(board: Any, byte: Any) -> Any:
    """Return the afterstate of the byte's move; the portable implementation."""
    is_column = ((byte >> U64(1)) & U64(1)) - U64(1)
    near, far = is_column & _SWAP_NEAR, is_column & _SWAP_FAR
    board = _turn(board, near, far)
    table = (byte & U64(1)) << U64(16)
    board = (
        (U64(SLIDE_APART[table | board >> U64(48)]) << U64(48))
        | (U64(SLIDE_APART[table | ((board >> U64(32)) & _ROW)]) << U64(32))
        | (U64(SLIDE_APART[table | ((board >> U64(16)) & _ROW)]) << U64(16))
        | U64(SLIDE_APART[table | (board & _ROW)])
    )
    return _turn(board, near, far)


@helper
def _slid_by_masks(board: Any, byte: Any) -> Any:
    """Return the afterstate of the byte's move; gathers and scatters each row or column by its mask."""
    is_row = (byte >> U64(1)) & U64(1)
    shift = U64(4) + U64(12) * is_row
    first = _FIRST_ROW if is_row else _FIRST_COLUMN  # a select, not a branch
    second = first >> shift
    third = second >> shift
    fourth = third >> shift
    table = (byte & U64(1)) << U64(16)
    return (
        pdep(U64(SLIDE_APART[table | pext(board, first)]), first)
        | pdep(U64(SLIDE_APART[table | pext(board, second)]), second)
        | pdep(U64(SLIDE_APART[table | pext(board, third)]), third)
        | pdep(U64(SLIDE_APART[table | pext(board, fourth)]), fourth)
    )


# For games of `ntuple:look=0`, masks decode 241 million rows a second, and turning 166 million (one
# core, Rocket Lake).
_slid: Callable[[Any, Any], Any] = _slid_by_masks if HAS_PDEP else slid_by_turning


@helper
def step_forward(board: Any, byte: Any) -> Any:
    """Return the board after a step, in compiled code. Any byte is safe; a wrong byte gives a wrong board."""
    shift = U64(60) - (byte & U64(0x3C))
    return _slid(board, byte) | U64(1) << (shift + ((byte >> U64(6)) & U64(1)))


@helper
def step_checked(board: Any, byte: Any) -> tuple[Any, Any]:
    """Return the board after a step, and a ``u64`` that is 0 if it obeys the rules; in compiled code."""
    shift = U64(60) - (byte & U64(0x3C))
    after = _slid(board, byte)
    wrong = (byte & U64(0x80)) | ((after >> shift) & U64(15)) | U64(after == board)
    return after | U64(1) << (shift + ((byte >> U64(6)) & U64(1))), wrong


@kernel(allocates=True)
def decode(  # noqa: PLR0917 - a kernel takes arrays
    tape: Any, first: Any, steps: Any, starts: Any, boards: Any, finals: Any, wrong: Any
) -> None:
    """Decode games, or other ranges of consecutive steps (``first``, ``steps``: ``i64[G]``), from ``starts``.

    ``boards`` (``u64[n]``) gets the board before each step, and keeps its other entries. ``finals``
    (``u64[G]``) gets the board after each range, and ``wrong`` (``u8[G]``) 0 if all its steps obey the rules.
    """
    games = first.shape[0]
    # For each lane: its game, the number of remaining steps, the index of the next step, and the board.
    game, left, at = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    board, bad = np.zeros(LANES, np.uint64), np.zeros(LANES, np.uint64)
    following = 0
    while True:
        for lane in range(LANES):
            while left[lane] == 0 and following < games:
                game[lane], left[lane], at[lane] = following, steps[following], first[following]
                board[lane], bad[lane] = starts[following], U64(0)
                finals[following], wrong[following] = starts[following], U8(0)
                following += 1
        count = min(left[0], left[1], left[2], left[3])
        if count == 0:
            break
        _decode_four(tape, at, count, board, bad, boards)
        for lane in range(LANES):
            at[lane] += count
            left[lane] -= count
            if left[lane] == 0:
                finals[game[lane]], wrong[game[lane]] = board[lane], U8(bad[lane] != U64(0))
    for lane in range(LANES):  # a lane has no more games. The other lanes continue one by one
        if left[lane]:
            one, wrongs = board[lane], U64(0)
            for at_byte in range(U64(at[lane]), U64(at[lane] + left[lane])):
                boards[at_byte] = one
                one, is_wrong = step_checked(one, U64(tape[at_byte]))
                wrongs |= is_wrong
            finals[game[lane]], wrong[game[lane]] = one, U8(bad[lane] | wrongs != U64(0))


@helper
def _decode_four(tape: Any, at: Any, count: Any, board: Any, bad: Any, boards: Any) -> None:  # noqa: PLR0917
    at0, at1, at2, at3 = U64(at[0]), U64(at[1]), U64(at[2]), U64(at[3])
    board0, board1, board2, board3 = board[0], board[1], board[2], board[3]
    bad0, bad1, bad2, bad3 = bad[0], bad[1], bad[2], bad[3]
    for i in range(U64(count)):
        boards[at0 + i] = board0
        boards[at1 + i] = board1
        boards[at2 + i] = board2
        boards[at3 + i] = board3
        board0, wrong0 = step_checked(board0, U64(tape[at0 + i]))
        board1, wrong1 = step_checked(board1, U64(tape[at1 + i]))
        board2, wrong2 = step_checked(board2, U64(tape[at2 + i]))
        board3, wrong3 = step_checked(board3, U64(tape[at3 + i]))
        bad0 |= wrong0
        bad1 |= wrong1
        bad2 |= wrong2
        bad3 |= wrong3
    board[0], board[1], board[2], board[3] = board0, board1, board2, board3
    bad[0], bad[1], bad[2], bad[3] = bad0, bad1, bad2, bad3


@kernel
def seek(  # noqa: PLR0917
    tape: Any, first: Any, steps: Any, starts: Any, finals: Any, wrong: Any
) -> None:
    """Decode ranges of steps as :func:`decode` does, but only the board after each range."""
    for i in range(first.shape[0]):
        board, bad = starts[i], U64(0)
        for at_byte in range(U64(first[i]), U64(first[i] + steps[i])):
            board, is_wrong = step_checked(board, U64(tape[at_byte]))
            bad |= is_wrong
        finals[i], wrong[i] = board, U8(bad != U64(0))


@kernel
def find_defect(tape: Any, first: Any, steps: Any, start: Any) -> tuple[Any, Any, Any]:
    """Return the first defect of a whole game: its step, its kind, and the board before that step.

    For a sound game that ends with a 65536, the step is its last step; for other sound games, ``steps``.
    """
    if start_fault(start):
        return 0, BAD_START, start
    board = start
    for step in range(steps):
        byte = U64(tape[first + step])
        if byte & U64(WIN_BIT) or wins(board, byte & U64(3)):
            sound = wins(board, byte & U64(3)) and byte & U64(0xFC) == U64(WIN_BIT)
            kind = SOUND if step == steps - 1 else AFTER_END
            return step, kind if sound else BIT_7, board
        after = _slid(board, byte)
        if after == board:
            return step, AFTER_END if legal_mask(board) == U64(0) else ILLEGAL_MOVE, board
        if (after >> (U64(60) - (byte & U64(0x3C)))) & U64(15):
            return step, FULL_CELL, board
        board = step_forward(board, byte)
    return steps, SOUND if legal_mask(board) == U64(0) else BEFORE_END, board


@kernel
def judge(  # noqa: PLR0917 - a kernel takes arrays
    tape: Any,
    first: Any,
    steps: Any,
    starts: Any,
    finals: Any,
    wrong: Any,
    scores: Any,
    tiles: Any,
    kinds: Any,
    at: Any,
) -> Any:
    """Find the defect, the score and the highest tile of each decoded game; return the number of defects.

    The score is computed without the merges: it is the board score at the end minus the board score at the
    start, minus 4 for each spawned 4. The first arguments are as for :func:`decode`. ``kinds`` and ``at`` are
    of each game's first defect (see :func:`find_defect`).
    """
    bad = 0
    for game in range(first.shape[0]):
        begin, count = first[game], steps[game]
        fours = U64(0)
        for at_byte in range(begin, begin + count):
            fours += U64((tape[at_byte] >> U8(6)) & U8(1))
        final = finals[game]
        step, kind, merged = count, SOUND, U64(0)
        # After a merge of two 32768 tiles, the decoded final board still has both.
        if wrong[game] or legal_mask(final) != U64(0) or start_fault(starts[game]) or has_pair(final):
            step, kind, board = find_defect(tape, begin, count, starts[game])
            if kind == SOUND and step < count:
                final, finals[game] = board, WON
                merged = merge_score(board, U64(tape[begin + step]) & U64(3))
        scores[game] = board_score(final) - board_score(starts[game]) - U64(4) * fours + merged
        tiles[game] = U64(1) << final_exponent(finals[game])
        kinds[game], at[game] = kind, step
        bad += kind != SOUND
    return bad
