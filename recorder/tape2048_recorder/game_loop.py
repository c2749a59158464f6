"""The compiled loop that plays whole games straight into a block buffer.

One loop for every player: numba compiles it once for each player type, with the player's choice
inlined (see :mod:`tape2048_recorder.players`). It returns to Python when the buffer is full, when the
games it was given are played, or after a number of steps, and goes on from the same position when
called again: all that a game in play needs is in ``game``, and its rows so far are in the buffer,
behind those of the finished games.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048._bits import store8, store32, store64
from tape2048._jit import kernel
from tape2048.formats.session import ACTION_STEP_DTYPE, RUN_DTYPE, STEP_DTYPE, step_dtype
from tape2048.rules import board_score, max_exponent, spread_exps
from tape2048_recorder.engine import new_game, spawn
from tape2048_recorder.players._api import NO_MOVE, choose

__all__ = ["BUFFER_FULL", "GAMES_PLAYED", "STEPS_PLAYED", "Buffer", "play_into", "play_unrecorded"]

U64 = np.uint64

# Why the loop came back.
GAMES_PLAYED = 0  # every game it was given has ended
BUFFER_FULL = 1  # the next row has no place
STEPS_PLAYED = 2  # the step budget is used up

# The words of ``game``: the game in play, and how far the buffer is filled.
_IN_PLAY = 0  # 1 while a game is in play
_BOARD = 1
_STATE = 2
_GAMMA = 3
_STEP = 4  # moves made in it
_FOURS = 5  # 4s spawned in it
_FIRST_ROW = 6  # its first row in the buffer; the rows before it are of finished games
_ROWS = 7  # rows in the buffer
_NEXT = 8  # index of the game in play (or the next one) in ids and seeds
_RUNS = 9  # runs in ``runs``
_PLAYED = 10  # steps made since the state was made
_GAME_WORDS = 11

_LOW_HALF = U64(0xFFFFFFFF)
_SHORT_ROW = STEP_DTYPE.itemsize
_LONG_ROW = ACTION_STEP_DTYPE.itemsize
_ACTION_AT = U64(ACTION_STEP_DTYPE.fields["action"][1])  # type: ignore[index]


@kernel
def _play(
    player: Any,
    ids: Any,
    seeds: Any,
    game: Any,
    buffer: Any,
    runs: Any,
    record_action: bool,
    sample_rate: Any,
    steps_max: Any,
) -> int:
    row_bytes = U64(_LONG_ROW if record_action else _SHORT_ROW)
    rows_max = U64(buffer.shape[0]) // row_bytes
    one = U64(1)
    in_play = game[_IN_PLAY] != U64(0)
    board = game[_BOARD]
    state = game[_STATE]
    gamma = game[_GAMMA]
    step = game[_STEP]
    fours = game[_FOURS]
    first_row = game[_FIRST_ROW]
    rows = game[_ROWS]
    index = game[_NEXT]
    run_count = game[_RUNS]
    steps_left = U64(steps_max)
    rate = U64(sample_rate)
    to_sample = (rate - step % rate) % rate  # steps until the next one that is kept
    status = GAMES_PLAYED
    while True:
        if not in_play:
            if index == U64(ids.shape[0]):
                break
            board, fours, state, gamma = new_game(seeds[index])
            step = U64(0)
            to_sample = U64(0)
            first_row = rows
            in_play = True
        run_id = ids[index]
        while True:
            if rows == rows_max:
                status = BUFFER_FULL
                break
            if steps_left == U64(0):
                status = STEPS_PLAYED
                break
            move, after, state = choose(player, board, state, gamma)
            if move == NO_MOVE:
                in_play = False
                break
            if to_sample == U64(0):
                at = rows * row_bytes
                store64(buffer, at, run_id)
                store32(buffer, at + U64(8), step)
                store64(buffer, at + U64(12), spread_exps(board >> U64(32)))
                store64(buffer, at + U64(20), spread_exps(board & _LOW_HALF))
                if record_action:
                    store8(buffer, at + _ACTION_AT, move)
                rows += one
                to_sample = rate
            to_sample -= one
            board, is_four, state = spawn(after, state, gamma)
            fours += is_four
            step += one
            steps_left -= one
        if in_play:
            break
        run = runs[run_count]
        run.id = run_id
        run.seed = seeds[index]
        run.first_row = first_row
        run.rows = rows - first_row
        run.steps = step
        run.max_score = board_score(board) - (fours << U64(2))
        run.highest_tile = one << max_exponent(board)
        run_count += one
        index += one
        first_row = rows
    game[_PLAYED] += U64(steps_max) - steps_left
    game[_IN_PLAY] = U64(in_play)
    game[_BOARD] = board
    game[_STATE] = state
    game[_GAMMA] = gamma
    game[_STEP] = step
    game[_FOURS] = fours
    game[_FIRST_ROW] = first_row
    game[_ROWS] = rows
    game[_NEXT] = index
    game[_RUNS] = run_count
    return status


@kernel
def play_unrecorded(player: Any, seeds: Any, scores: Any, highest: Any) -> int:
    """Play the games of these seeds and keep no rows: the loop's speed, and a player's strength.

    Args:
        player: a player's ``NamedTuple``.
        seeds: ``u64[n]``.
        scores: ``u64[n]``, filled with each game's score.
        highest: ``u64[n]``, filled with each game's highest tile.

    Returns:
        The number of steps.
    """
    steps = 0
    for i in range(seeds.shape[0]):
        board, fours, state, gamma = new_game(seeds[i])
        while True:
            move, after, state = choose(player, board, state, gamma)
            if move == NO_MOVE:
                break
            board, is_four, state = spawn(after, state, gamma)
            fours += is_four
            steps += 1
        scores[i] = board_score(board) - (fours << U64(2))
        highest[i] = U64(1) << max_exponent(board)
    return steps


class Buffer:
    """A worker's block buffer: rows of finished games, then those of the game in play.

    Args:
        rows_max: rows it holds at first; it grows when a single game needs more.
        runs_max: finished games it holds.
        record_action: whether rows carry the move.
        sample_rate: keep each N-th step of a game.
    """

    def __init__(self, *, rows_max: int, runs_max: int, record_action: bool, sample_rate: int) -> None:
        self.dtype = step_dtype(record_action=record_action)
        self.record_action = record_action
        self.sample_rate = sample_rate
        self.runs_max = runs_max
        self._bytes = np.empty(rows_max * self.dtype.itemsize, dtype=np.uint8)
        self._runs = np.zeros(runs_max, dtype=RUN_DTYPE)
        self._game = np.zeros(_GAME_WORDS, dtype=np.uint64)
        self._ids = np.empty(0, dtype=np.uint64)
        self._seeds = np.empty(0, dtype=np.uint64)

    @property
    def rows_finished(self) -> int:
        """Rows of finished games."""
        return int(self._game[_FIRST_ROW] if self._game[_IN_PLAY] else self._game[_ROWS])

    @property
    def rows_max(self) -> int:
        """Rows the buffer holds."""
        return self._bytes.size // self.dtype.itemsize

    @property
    def in_play(self) -> bool:
        """Whether a game has begun and not ended."""
        return bool(self._game[_IN_PLAY])

    @property
    def steps_played(self) -> int:
        """Steps made since the buffer was made, in finished games and others."""
        return int(self._game[_PLAYED])

    @property
    def games_waiting(self) -> int:
        """Games given and not begun."""
        return int(self._ids.size - self._game[_NEXT]) - self.in_play

    @property
    def runs(self) -> npt.NDArray[np.void]:
        """``RUN_DTYPE[n]``: the finished games, ``first_row`` counted from the buffer's start (a view)."""
        return self._runs[: int(self._game[_RUNS])]

    @property
    def block(self) -> memoryview:
        """The bytes of the finished games' rows (a view)."""
        return self._bytes[: self.rows_finished * self.dtype.itemsize].data

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """The finished games' rows (a view)."""
        return self._bytes[: self.rows_finished * self.dtype.itemsize].view(self.dtype)

    def give(self, ids: npt.NDArray[np.uint64], seeds: npt.NDArray[np.uint64]) -> None:
        """Give more games to play; those given before have all been played, or the last is in play."""
        if len(ids) != len(seeds):
            message = f"{len(ids)} ids, {len(seeds)} seeds; expected one seed for each"
            raise ValueError(message)
        if self.games_waiting:
            message = f"{self.games_waiting} games still wait to be played"
            raise ValueError(message)
        begun = slice(int(self._game[_NEXT]), None)
        self._ids = np.concatenate([self._ids[begun], ids])
        self._seeds = np.concatenate([self._seeds[begun], seeds])
        self._game[_NEXT] = 0

    def forget_waiting(self) -> None:
        """Take back the games that have not begun."""
        end = int(self._game[_NEXT]) + self.in_play
        self._ids = self._ids[:end]
        self._seeds = self._seeds[:end]

    def resize(self, rows_max: int) -> None:
        """Hold this many rows from now on, or those of the game in play; no finished games are in it."""
        used = int(self._game[_ROWS])
        data = np.empty(max(rows_max, used) * self.dtype.itemsize, dtype=np.uint8)
        data[: used * self.dtype.itemsize] = self._bytes[: used * self.dtype.itemsize]
        self._bytes = data

    def grow(self) -> None:
        """Double the buffer; the rows stay."""
        self._bytes = np.concatenate([self._bytes, np.empty_like(self._bytes)])

    def drop_block(self) -> None:
        """Forget the finished games, and move the rows of the game in play to the buffer's start."""
        first, end = self.rows_finished, int(self._game[_ROWS])
        size = self.dtype.itemsize
        self._bytes[: (end - first) * size] = self._bytes[first * size : end * size].copy()
        self._game[_ROWS] = end - first
        self._game[_FIRST_ROW] = 0
        self._game[_RUNS] = 0


def play_into(buffer: Buffer, player: Any, *, steps_max: int) -> int:
    """Play the games that were given to ``buffer``, for at most ``steps_max`` steps.

    Returns:
        :data:`GAMES_PLAYED`, :data:`BUFFER_FULL` or :data:`STEPS_PLAYED`.

    Raises:
        ValueError: more games were given than ``runs_max`` leaves room for.
    """
    if len(buffer.runs) + buffer.games_waiting + buffer.in_play > buffer.runs_max:
        message = (
            f"{buffer.games_waiting} games wait, and {buffer.runs_max - len(buffer.runs)} more fit the buffer"
        )
        raise ValueError(message)
    return int(
        _play(
            player,
            buffer._ids,
            buffer._seeds,
            buffer._game,
            buffer._bytes,
            buffer._runs,
            buffer.record_action,
            U64(buffer.sample_rate),
            U64(steps_max),
        )
    )
