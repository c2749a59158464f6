"""Compiled steps of many lanes.

The kernels walk the lanes in order, so that their arrays stream through the caches, and do not branch on
looked-up values: masks select the move, and a legal mask is eight look-ups of a byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048.formats.session import ACTION_STEP_DTYPE
from tape2048.game.rules import (
    SLIDE,
    board_score,
    empty_mask,
    max_exponent,
    row,
    slide_rows,
    spread_exps,
    transpose,
)
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount, select_bit, store8, store32, store64
from tape2048_recorder.game import rng
from tape2048_recorder.game.engine import new_game
from tape2048_recorder.game.loop import tape_byte
from tape2048_recorder.lanes.arrays import CHUNK_STEPS

U64 = np.uint64

# Why ``settle`` returned.
SETTLED = 0  # every ended game is recorded, and its lane plays another one
BLOCK_FULL = 1  # no room for the next game in the block
LANES_FREE = 2  # lanes are free, and no game waits
LOG_BROKEN = 3  # a game's log does not lead to its lane's board

_PLAYING, _OVER, _RECORDED, _REFILLED = range(4)

_CHUNK = U64(CHUNK_STEPS)
_LOW_HALF = U64(0xFFFFFFFF)
_TAPE_ROW = U64(1)
_LONG_ROW = U64(ACTION_STEP_DTYPE.itemsize)
_ACTION_AT = U64(ACTION_STEP_DTYPE.fields["action"][1])  # type: ignore[index]

# Bit 0: sliding the row left changes it; bit 1: sliding it right does.
_ROW_LEGAL = ((SLIDE[: 1 << 16] != np.arange(1 << 16)) + 2 * (SLIDE[1 << 16 :] != np.arange(1 << 16))).astype(
    np.uint8
)
_ROW_LEGAL.flags.writeable = False


@register_jitable
def _legal(board: Any, columns: Any) -> Any:
    """Return the legal mask of a board and its transpose, as a ``u64``."""
    across = (
        _ROW_LEGAL[row(board, 0)]
        | _ROW_LEGAL[row(board, 1)]
        | _ROW_LEGAL[row(board, 2)]
        | _ROW_LEGAL[row(board, 3)]
    )
    along = (
        _ROW_LEGAL[row(columns, 0)]
        | _ROW_LEGAL[row(columns, 1)]
        | _ROW_LEGAL[row(columns, 2)]
        | _ROW_LEGAL[row(columns, 3)]
    )
    return U64(along) | U64(across) << U64(2)


@register_jitable
def _slide(board: Any, move: Any) -> Any:
    """Return the afterstate of a move, without a branch on the move."""
    vertical = (move >> U64(1)) - U64(1)  # all ones where the move is up or down
    source = board ^ ((board ^ transpose(board)) & vertical)
    after = slide_rows(source, move & U64(1))
    return after ^ ((after ^ transpose(after)) & vertical)


@register_jitable
def _show(lanes: Any, i: Any, board: Any) -> Any:
    """Store a board in the arrays of a lane, and return its legal mask."""
    legal = _legal(board, transpose(board))
    lanes.boards[i] = board
    lanes.legal[i] = np.uint8(legal)
    lanes.exps[i, 0] = spread_exps(board >> U64(32))
    lanes.exps[i, 1] = spread_exps(board & _LOW_HALF)
    return legal


@kernel
def first_illegal(lanes: Any, moves: Any) -> int:
    """Return the first lane with an illegal move, or -1.

    Args:
        lanes: a group.
        moves: ``u8[n]``, one for each lane that plays.
    """
    bad = U64(0)
    for i in range(moves.shape[0]):
        move = U64(moves[i])
        bad |= (move >> U64(2)) | (U64(lanes.legal[i]) >> (move & U64(3)) & U64(1) ^ U64(1))
    if bad == U64(0):
        return -1
    for i in range(moves.shape[0]):
        move = U64(moves[i])
        if move > U64(3) or not (U64(lanes.legal[i]) >> move) & U64(1):
            return i
    return -1


@kernel
def advance(lanes: Any, moves: Any, log: Any) -> int:
    """Make a move and a spawn in every lane, list ended games in ``over``, and return their number.

    Every move must be legal, and the log must have a free chunk for each lane.
    """
    over = U64(0)
    ten = U64(10)
    for i in range(moves.shape[0]):
        move = U64(moves[i])
        after = _slide(lanes.boards[i], move)
        mask = empty_mask(after)
        draw, state = rng.bounded(lanes.states[i], lanes.gammas[i], popcount(mask) * ten)
        lanes.states[i] = state
        cell = draw // ten
        is_four = U64(draw == cell * ten)
        spawned = select_bit(mask, cell) << is_four
        board = after | spawned
        step = lanes.steps[i]
        at = step % _CHUNK
        if at == U64(0):
            free = log.counts[0] - U64(1)
            log.counts[0] = free
            chunk = log.free[free]
            if step == U64(0):
                lanes.heads[i] = chunk
            else:
                log.links[lanes.tails[i]] = chunk
            lanes.tails[i] = chunk
        log.steps[lanes.tails[i] * _CHUNK + at] = np.uint8(tape_byte(move, spawned, is_four))
        lanes.steps[i] = step + U64(1)
        legal = _show(lanes, i, board)
        lanes.over[over] = U64(i)
        over += U64(legal == U64(0))
    lanes.counts[_OVER] = over
    lanes.counts[_RECORDED] = U64(0)
    lanes.counts[_REFILLED] = U64(0)
    return int(over)


@register_jitable
def _record(lanes: Any, i: Any, log: Any, block: Any, row_bytes: Any, rate: Any) -> Any:
    """Replay a lane's game from its log into the block; return whether it led to the lane's board."""
    run_id = lanes.ids[i]
    steps = lanes.steps[i]
    at = block.counts[0] * row_bytes
    board, fours, _, _ = new_game(lanes.seeds[i])
    chunk = lanes.heads[i]
    to_sample = U64(0)
    step = U64(0)
    while step < steps:
        in_chunk = step % _CHUNK
        if in_chunk == U64(0) and step != U64(0):
            chunk = log.links[chunk]
        made = U64(log.steps[chunk * _CHUNK + in_chunk])
        move = made & U64(3)
        if to_sample == U64(0):
            if row_bytes == _TAPE_ROW:
                store8(block.rows, at, made)
            else:
                store64(block.rows, at, run_id)
                store32(block.rows, at + U64(8), step)
                store64(block.rows, at + U64(12), spread_exps(board >> U64(32)))
                store64(block.rows, at + U64(20), spread_exps(board & _LOW_HALF))
                if row_bytes == _LONG_ROW:
                    store8(block.rows, at + _ACTION_AT, move)
            at += row_bytes
            to_sample = rate
        to_sample -= U64(1)
        after = _slide(board, move)
        is_four = made >> U64(6)
        board = after | U64(1) << (U64(60) - (made & U64(60))) + is_four
        fours += is_four
        step += U64(1)
    rows = (steps + rate - U64(1)) // rate
    run = block.runs[block.counts[1]]
    run.id = run_id
    run.seed = lanes.seeds[i]
    run.first_row = block.counts[0]
    run.rows = rows
    run.steps = steps
    run.max_score = board_score(board) - (fours << U64(2))
    run.highest_tile = U64(1) << max_exponent(board)
    block.counts[0] += rows
    block.counts[1] += U64(1)
    return board == lanes.boards[i]


@register_jitable
def _free_chunks(lanes: Any, i: Any, log: Any) -> None:
    """Free a lane's chunks."""
    chunk = lanes.heads[i]
    free = log.counts[0]
    for _ in range((lanes.steps[i] + _CHUNK - U64(1)) // _CHUNK):
        log.free[free] = chunk
        free += U64(1)
        chunk = log.links[chunk]
    log.counts[0] = free


@register_jitable
def _begin(lanes: Any, i: Any, waiting: Any) -> None:
    """Start the next waiting game in a lane."""
    at = waiting.counts[0]
    waiting.counts[0] = at + U64(1)
    board, _, state, gamma = new_game(waiting.seeds[at])
    lanes.ids[i] = waiting.ids[at]
    lanes.seeds[i] = waiting.seeds[at]
    lanes.states[i] = state
    lanes.gammas[i] = gamma
    lanes.steps[i] = U64(0)
    _show(lanes, i, board)


@kernel
def settle(lanes: Any, log: Any, block: Any, waiting: Any, row_bytes: Any, sample_rate: Any) -> int:
    """Record the ended games, and start others in their lanes; resume where the last call returned.

    Args:
        lanes: a group.
        log: of its games in play.
        block: receives the ended ones.
        waiting: games to start.
        row_bytes: 28, 29 with moves, or 1 on tape.
        sample_rate: keep each N-th step; 1 on tape.

    Returns:
        :data:`SETTLED`, :data:`BLOCK_FULL`, :data:`LANES_FREE` or :data:`LOG_BROKEN`.
    """
    rate = U64(sample_rate)
    rows_max = U64(block.rows.shape[0]) // row_bytes
    one = U64(1)
    while lanes.counts[_RECORDED] < lanes.counts[_OVER]:
        i = lanes.over[lanes.counts[_RECORDED]]
        rows = (lanes.steps[i] + rate - one) // rate
        if block.counts[0] + rows > rows_max or block.counts[1] == U64(block.runs.shape[0]):
            return BLOCK_FULL
        if not _record(lanes, i, log, block, row_bytes, rate):
            return LOG_BROKEN
        _free_chunks(lanes, i, log)
        lanes.counts[_RECORDED] += one
    while lanes.counts[_REFILLED] < lanes.counts[_OVER]:
        if waiting.counts[0] == U64(waiting.ids.shape[0]):
            return LANES_FREE
        _begin(lanes, lanes.over[lanes.counts[_REFILLED]], waiting)
        lanes.counts[_REFILLED] += one
    lanes.counts[_OVER] = U64(0)
    return SETTLED


@kernel
def fill_free(lanes: Any, waiting: Any) -> int:
    """Start waiting games in idle lanes, and return how many lanes play."""
    while lanes.counts[_PLAYING] < U64(lanes.boards.shape[0]) and waiting.counts[0] < U64(
        waiting.ids.shape[0]
    ):
        _begin(lanes, lanes.counts[_PLAYING], waiting)
        lanes.counts[_PLAYING] += U64(1)
    return int(lanes.counts[_PLAYING])


@kernel
def close_free(lanes: Any) -> int:
    """Close the ended lanes without another game by moving the last ones up; return how many play."""
    one = U64(1)
    playing = lanes.counts[_PLAYING]
    index = lanes.counts[_OVER]
    while index > lanes.counts[_REFILLED]:
        index -= one
        i = lanes.over[index]  # from the highest: what moves up is never one of the ended
        playing -= one
        lanes.boards[i] = lanes.boards[playing]
        lanes.legal[i] = lanes.legal[playing]
        lanes.exps[i, 0] = lanes.exps[playing, 0]
        lanes.exps[i, 1] = lanes.exps[playing, 1]
        lanes.states[i] = lanes.states[playing]
        lanes.gammas[i] = lanes.gammas[playing]
        lanes.steps[i] = lanes.steps[playing]
        lanes.ids[i] = lanes.ids[playing]
        lanes.seeds[i] = lanes.seeds[playing]
        lanes.heads[i] = lanes.heads[playing]
        lanes.tails[i] = lanes.tails[playing]
    lanes.counts[_PLAYING] = playing
    lanes.counts[_OVER] = U64(0)
    return int(playing)
