"""Compiled steps of many lanes: choosing moves from scores, moving, spawning, and recording finished games.

The kernels process the lanes in order, so that their arrays stream through the caches. They do not branch on
looked-up values: masks select the move, and a legal mask is eight look-ups of a byte.

During a game, a lane logs the bytes of a session on tape (bits 0-1: the move, bits 2-5: the cell of the new
tile, bit 6: whether it is a 4). Rows are built from the log when the game has ended. 4,096 games of 20,000
steps take 82 MB. All lanes share one log, divided into chunks. The chunks of a game form a linked list, and
are freed after the game.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.game.rules import (
    SLIDE,
    WON,
    board_score,
    merge_score,
    row,
    slide_rows,
    spread_exps,
    transpose,
    wins,
)
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048.jit.memory import store8
from tape2048.session.layout import ACTION_STEP_DTYPE
from tape2048.session.tape_layout import WIN_BIT
from tape2048_recorder.game import rng
from tape2048_recorder.game.game_loop import store_row, store_run, tape_byte
from tape2048_recorder.players.sampling import METHODS, Sampling

if TYPE_CHECKING:
    Words = npt.NDArray[np.uint64]

U64 = np.uint64

#: Steps in a chunk. A short game wastes less than a page, and a long one follows a link every 1024 steps.
CHUNK_STEPS = 1024

# Why ``settle`` returned.
SETTLED = 0  # every ended game is recorded, and its lane plays another game
BLOCK_FULL = 1  # the next game does not fit into the block
LANES_FREE = 2  # lanes are free, and no game is waiting
LOG_BROKEN = 3  # replaying a game's log does not end at its lane's board

_PLAYING, _OVER, _RECORDED, _REFILLED = range(4)  # indices of Lanes.counts

#: The move of a forfeited game, which is not recorded.
FORFEIT = 255

_FORFEITED = U64(255)  # the legal mask of a forfeited game

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


class Lanes(NamedTuple):
    """A group of ``L`` lanes. The first ``counts[0]`` are playing, and the rest of each array is unused."""

    boards: Words  # u64[L]
    legal: npt.NDArray[np.uint8]  # u8[L], legal masks of the boards
    exps: Words  # u64[L, 2]: the boards' exponents, u8[L, 16] in memory
    states: Words  # u64[L], states of the games' generators
    gammas: Words  # u64[L], their increments
    steps: Words  # u64[L], moves made
    ids: Words  # u64[L], ids of the games
    seeds: Words  # u64[L], seeds of the games
    starts: Words  # u64[L], first boards of the games
    heads: Words  # u64[L], the first chunk of each game's log
    tails: Words  # u64[L], the last chunk of each game's log
    over: Words  # u64[L]: the lanes whose games have just ended, ascending
    counts: Words  # u64[4]: playing lanes; entries of ``over``; entries recorded; entries with a new game


class Log(NamedTuple):
    steps: npt.NDArray[np.uint8]  # u8[chunks * CHUNK_STEPS]
    links: Words  # u64[chunks], the next chunk of the same game
    free: Words  # u64[chunks], a stack of unused chunks
    counts: Words  # u64[1]: the number of unused chunks


class Waiting(NamedTuple):
    ids: Words  # u64[n]
    seeds: Words  # u64[n]
    boards: Words  # u64[n], boards to start from, before a move; 0: a new game
    counts: Words  # u64[1]: how many of these games have started


class FinishedArrays(NamedTuple):
    rows: npt.NDArray[np.uint8]  # u8[rows_max * row_bytes]
    runs: npt.NDArray[np.void]  # RUN_DTYPE[runs_max]
    counts: Words  # u64[2]: rows, runs


def new_lanes(count: int) -> Lanes:
    arrays: dict[str, npt.NDArray[Any]] = {name: np.zeros(count, dtype=np.uint64) for name in Lanes._fields}
    shaped = {"exps": np.zeros((count, 2), dtype=np.uint64), "counts": np.zeros(4, dtype=np.uint64)}
    return Lanes(**arrays | shaped | {"legal": np.zeros(count, dtype=np.uint8)})


def new_log(chunks: int, old: Log | None = None) -> Log:
    """Return a log of ``chunks`` chunks, with the contents of a smaller log if given."""
    before, held = (0, 0) if old is None else (len(old.links), int(old.counts[0]))
    free, links = np.zeros((2, chunks), dtype=np.uint64)
    added = np.arange(before, chunks, dtype=np.uint64)[::-1]  # the lowest on top
    free[held : held + len(added)] = added
    # Not np.zeros, so that unused pages take no memory.
    steps = np.empty(chunks * CHUNK_STEPS, dtype=np.uint8)
    if old is not None:
        free[:held] = old.free[:held]
        steps[: len(old.steps)] = old.steps
        links[:before] = old.links
    return Log(steps, links, free, np.array([held + len(added)], dtype=np.uint64))


@helper
def _legal(board: Any, columns: Any) -> Any:
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


@helper
def _slide(board: Any, move: Any) -> Any:
    vertical = (move >> U64(1)) - U64(1)  # all ones if the move is up or down
    source = board ^ ((board ^ transpose(board)) & vertical)
    after = slide_rows(source, move & U64(1))
    return after ^ ((after ^ transpose(after)) & vertical)


@helper
def _show(lanes: Any, i: Any, board: Any) -> Any:
    legal = _legal(board, transpose(board))
    lanes.boards[i] = board
    lanes.legal[i] = np.uint8(legal)
    lanes.exps[i, 0] = spread_exps(board >> U64(32))
    lanes.exps[i, 1] = spread_exps(board & _LOW_HALF)
    return legal


#: :class:`~tape2048_recorder.players.sampling.Sampling` for kernels.
Policy: Any = namedtuple("Policy", Sampling.__struct_fields__)  # type: ignore[misc]  # noqa: PYI024
_NEVER = 2**64 - 1
_ARGMAX, _SOFTMAX, _TOP_K, _TOP_P = range(len(METHODS))


def policy_of(sampling: Sampling) -> Any:
    values = msgspec.structs.asdict(sampling) | {
        "method": METHODS.index(sampling.method),
        "stop_gate": sampling.stop_gate or _NEVER,
        "epsilon_stop_gate": sampling.epsilon_stop_gate or _NEVER,
    }
    return Policy(**{name: U64(each) if isinstance(each, int) else each for name, each in values.items()})


@helper
def _stir(policy: Any, move: Any, legal: Any, step: Any, state: Any, gamma: Any) -> Any:
    if policy.epsilon > 0.0 and policy.epsilon_start_gate <= step < policy.epsilon_stop_gate:
        draw, state = rng.uniform(state, gamma)
        if draw < policy.epsilon:
            pick, state = rng.bounded(state, gamma, popcount(legal))
            move = popcount(select_bit(legal, pick) - U64(1))
    return move, state


@helper
def _rank(scores: Any, i: Any, legal: Any, move: Any) -> int:
    """Return the rank of a move among the legal moves: higher scores first, then lower move numbers."""
    before, mine = 0, scores[i, move]
    for other in range(4):
        theirs = scores[i, other]
        if (legal >> U64(other)) & U64(1) and (theirs > mine or (theirs == mine and other < move)):
            before += 1
    return before


@helper
def _weight(policy: Any, score: Any, best: Any) -> Any:
    return math.exp((np.float64(score) - best) / policy.temperature)


@helper
def _draw(policy: Any, scores: Any, i: Any, legal: Any, best: Any, state: Any, gamma: Any) -> Any:
    """Draw a legal move by softmax, after ``top_k`` or ``top_p``; return ``(move, state)``."""
    total = 0.0
    for move in range(4):
        if (legal >> U64(move)) & U64(1):
            total += _weight(policy, scores[i, move], best)
    keep = 4
    if policy.method == U64(_TOP_K):
        keep = int(policy.top_k)
    elif policy.method == U64(_TOP_P):
        sum_so_far, keep = 0.0, 0
        for rank in range(4):
            for move in range(4):
                if (
                    (legal >> U64(move)) & U64(1)
                    and sum_so_far < policy.top_p * total
                    and _rank(scores, i, legal, move) == rank
                ):
                    sum_so_far += _weight(policy, scores[i, move], best)
                    keep += 1
    kept = 0.0
    for move in range(4):
        if (legal >> U64(move)) & U64(1) and _rank(scores, i, legal, move) < keep:
            kept += _weight(policy, scores[i, move], best)
    draw, state = rng.uniform(state, gamma)
    left = draw * kept
    chosen = U64(4)
    for move in range(4):
        if (legal >> U64(move)) & U64(1) and _rank(scores, i, legal, move) < keep:
            weight = _weight(policy, scores[i, move], best)
            # Rounding can leave a remainder, which counts for the last move with a weight.
            if weight > 0.0 and left >= 0.0:
                chosen = U64(move)
            left -= weight
    return chosen, state


@kernel
def choose_moves(lanes: Any, scores: Any, policy: Any, moves: Any) -> int:
    """Fill ``moves``, ``u8[n]``, from ``scores``, ``f32[n, 4]``; scores of illegal moves are ignored.

    Returns:
        -1 if all scores are valid. Otherwise the first lane where a legal move has the score NaN or +inf, or
        where no legal move has a finite score. Moves and generators are then invalid.
    """
    one = U64(1)
    for i in range(moves.shape[0]):
        legal = U64(lanes.legal[i])
        best, choice = -np.inf, U64(4)
        for move in range(4):
            score = np.float64(scores[i, move])
            if (legal >> U64(move)) & one:
                if not score < np.inf:
                    return i
                if score > best:
                    best, choice = score, U64(move)
        if choice == U64(4):
            return i
        step, state = lanes.steps[i], lanes.states[i]
        if policy.method != U64(_ARGMAX) and policy.start_gate <= step < policy.stop_gate:
            choice, state = _draw(policy, scores, i, legal, best, state, lanes.gammas[i])
        choice, state = _stir(policy, choice, legal, step, state, lanes.gammas[i])
        lanes.states[i] = state
        moves[i] = np.uint8(choice)
    return -1


@kernel
def advance(lanes: Any, moves: Any, log: Any) -> int:
    """Make a move and a spawn in every lane, list ended games in ``over``, and return their number.

    Every move must be legal or :data:`FORFEIT`, and the log must have a free chunk for each lane.
    """
    over = U64(0)
    for i in range(moves.shape[0]):
        move = U64(moves[i])
        if move == U64(FORFEIT):
            lanes.legal[i] = np.uint8(_FORFEITED)
            lanes.over[over] = U64(i)
            over += U64(1)
            continue
        after = _slide(lanes.boards[i], move)
        board, is_four, state = rng.spawn(after, lanes.states[i], lanes.gammas[i])
        lanes.states[i] = state
        made = tape_byte(move, board ^ after, is_four)
        step = lanes.steps[i]
        if wins(lanes.boards[i], move):
            board, made = WON, move | U64(WIN_BIT)
        at = step % _CHUNK
        if at == U64(0):
            log.counts[0] -= U64(1)
            chunk = log.free[log.counts[0]]
            if step == U64(0):
                lanes.heads[i] = chunk
            else:
                log.links[lanes.tails[i]] = chunk
            lanes.tails[i] = chunk
        log.steps[lanes.tails[i] * _CHUNK + at] = np.uint8(made)
        lanes.steps[i] = step + U64(1)
        legal = _show(lanes, i, board)
        lanes.over[over] = U64(i)
        over += U64(legal == U64(0))
    lanes.counts[_OVER] = over
    lanes.counts[_RECORDED] = lanes.counts[_REFILLED] = U64(0)
    return int(over)


@helper
def _record(lanes: Any, i: Any, log: Any, block: Any, row_bytes: Any, rate: Any) -> Any:
    """Replay a lane's game from its log into the block; return whether it ended at the lane's board."""
    run_id, steps, chunk = lanes.ids[i], lanes.steps[i], lanes.heads[i]
    at = block.counts[0] * row_bytes
    board = lanes.starts[i]
    fours = board_score(board) >> U64(2)  # so that the score counts from the start
    step = to_sample = won = U64(0)
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
                store_row(block.rows, at, run_id, step, board)
                if row_bytes == _LONG_ROW:
                    store8(block.rows, at + _ACTION_AT, move)
            at += row_bytes
            to_sample = rate
        to_sample -= U64(1)
        step += U64(1)
        if made & U64(WIN_BIT):
            won = merge_score(board, move)
            break
        after = _slide(board, move)
        is_four = made >> U64(6)
        board = after | U64(1) << (U64(60) - (made & U64(60))) + is_four
        fours += is_four
    rows = (steps + rate - U64(1)) // rate
    run = block.runs[block.counts[1]]
    board = store_run(run, run_id, lanes.seeds[i], block.counts[0], rows, steps, board, fours, won)
    block.counts[0] += rows
    block.counts[1] += U64(1)
    return board == lanes.boards[i]


@helper
def _free_chunks(lanes: Any, i: Any, log: Any) -> None:
    chunk = lanes.heads[i]
    for _ in range((lanes.steps[i] + _CHUNK - U64(1)) // _CHUNK):
        log.free[log.counts[0]] = chunk
        log.counts[0] += U64(1)
        chunk = log.links[chunk]


@helper
def _begin(lanes: Any, i: Any, waiting: Any) -> None:
    at = waiting.counts[0]
    waiting.counts[0] = at + U64(1)
    board, _, state, gamma = rng.new_game(waiting.seeds[at], waiting.boards[at])
    lanes.ids[i], lanes.seeds[i], lanes.starts[i] = waiting.ids[at], waiting.seeds[at], board
    lanes.states[i], lanes.gammas[i], lanes.steps[i] = state, gamma, U64(0)
    _show(lanes, i, board)


@kernel
def settle(lanes: Any, log: Any, block: Any, waiting: Any, row_bytes: Any, sample_rate: Any) -> int:
    """Record ended games, and start waiting games in their lanes; return why it returned.

    A further call resumes where the last call returned. ``row_bytes`` is 28, 29 with moves, or 1 on tape.
    """
    rate = U64(sample_rate)
    rows_max = U64(block.rows.shape[0]) // row_bytes
    one = U64(1)
    while lanes.counts[_RECORDED] < lanes.counts[_OVER]:
        i = lanes.over[lanes.counts[_RECORDED]]
        if U64(lanes.legal[i]) != _FORFEITED:
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
    """Start waiting games in idle lanes, and return the number of playing lanes."""
    while lanes.counts[_PLAYING] < U64(lanes.boards.shape[0]) and waiting.counts[0] < U64(
        waiting.ids.shape[0]
    ):
        _begin(lanes, lanes.counts[_PLAYING], waiting)
        lanes.counts[_PLAYING] += U64(1)
    return int(lanes.counts[_PLAYING])


@kernel
def close_free(lanes: Any) -> int:
    """Remove the lanes whose games have ended by moving the last lanes up; return the number left."""
    one = U64(1)
    playing, index = lanes.counts[_PLAYING], lanes.counts[_OVER]
    while index > lanes.counts[_REFILLED]:
        index -= one
        i = lanes.over[index]  # from the highest, so that no removed lane is moved up
        playing -= one
        for words in (
            lanes.boards,
            lanes.states,
            lanes.gammas,
            lanes.steps,
            lanes.ids,
            lanes.seeds,
            lanes.starts,
            lanes.heads,
            lanes.tails,
        ):
            words[i] = words[playing]
        lanes.legal[i] = lanes.legal[playing]
        for half in range(2):
            lanes.exps[i, half] = lanes.exps[playing, half]
    lanes.counts[_PLAYING] = playing
    lanes.counts[_OVER] = U64(0)
    return int(playing)
