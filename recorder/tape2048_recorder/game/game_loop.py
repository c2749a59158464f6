"""The compiled loop that plays whole games into a block buffer.

One loop serves every player: numba compiles it once for each player type, with the player's choice inlined
(see :mod:`tape2048_recorder.game.player_api`). The loop returns to Python when the buffer is full, when all
games are played, or after a number of steps. The next call continues from the same position.

The buffer holds packed boards, and moves if they are recorded. Whole rows are built from these when a block
is written. Eight bytes per row instead of 28 leave more of the processor's caches to the player. On tape, a
row is the byte of one step. The player's values of the moves can be kept beside the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.game.rules import (
    MOVES_BEFORE_WIN,
    WON,
    board_score,
    final_exponent,
    max_exponent,
    merge_score,
    spread_exps,
    wins,
)
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import leading_zeros
from tape2048.jit.memory import claim_in, store8, store32, store64
from tape2048.ntuple.outcomes import UNCALIBRATED, look_up, phase_at, tile_sum
from tape2048.session.layout import ACTION_STEP_DTYPE, RUN_DTYPE, STEP_DTYPE
from tape2048.session.tape_layout import WIN_BIT
from tape2048_recorder.game.player_api import NO_MOVE, choose, choose_valued
from tape2048_recorder.game.rng import new_game, spawn
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile

U64 = np.uint64

# Why the loop returned: no game is left to start, the buffer has no room for a row, or the steps are made.
GAMES_PLAYED, BUFFER_FULL, STEPS_PLAYED = range(3)

# The words of ``game``: 1 while a game is in progress; the game's board, generator (two words), number of
# moves, number of spawned 4s, and first row in the buffer, which follows the rows of finished games; rows in
# the buffer; the index in the waiting games of the game in progress or else of the next one; finished runs;
# and steps since the state was created.
_IN_PLAY, _BOARD, _STATE, _GAMMA, _STEP, _FOURS, _FIRST_ROW, _ROWS, _NEXT, _RUNS, _PLAYED = range(11)
_GAME_WORDS = 11

#: Rows that are built, checksummed and written at once: they fit into the second-level cache.
_PIECE_ROWS = 8192

#: Bytes that are checksummed and written at once if rows need not be built: less than the second-level cache.
PIECE_BYTES = 1 << 18

_LOW_HALF = U64(0xFFFFFFFF)
_SHORT_ROW = STEP_DTYPE.itemsize
_LONG_ROW = ACTION_STEP_DTYPE.itemsize
_ACTION_AT = U64(ACTION_STEP_DTYPE.fields["action"][1])  # type: ignore[index]

_AHEAD = U64(32)  # boards by which cache lines are claimed ahead of the next write


@helper
def tape_byte(move: Any, spawned: Any, is_four: Any) -> Any:
    """Return a step's byte on tape; ``spawned`` is a board with only the new tile."""
    # The tile in cell c is bit 60 - 4c or 61 - 4c.
    return move | leading_zeros(spawned) & U64(60) | is_four << U64(6)


@helper
def store_row(rows: Any, at: Any, run_id: Any, step: Any, board: Any) -> None:
    """Store a row of ``steps.npy`` without its action."""
    store64(rows, at, run_id)
    store32(rows, at + U64(8), step)
    store64(rows, at + U64(12), spread_exps(board >> U64(32)))
    store64(rows, at + U64(20), spread_exps(board & _LOW_HALF))


@helper
def store_run(
    run: Any, run_id: Any, seed: Any, first_row: Any, rows: Any, steps: Any, board: Any, fours: Any, won: Any
) -> Any:
    """Fill the record of a game, and return its final board.

    ``board`` is the final board, or the board before the merge of two 32768 tiles, which scored ``won``.
    """
    run.run_id, run.seed, run.first_row, run.rows, run.steps = run_id, seed, first_row, rows, steps
    run.score = board_score(board) - (fours << U64(2)) + won
    final = WON if won else board
    run.highest_tile = U64(1) << final_exponent(final)
    return final


# A call would copy the whole player to the stack at each move: a quarter of the time of a 1-ply move.
@helper(forceinline=True)
def _chosen(player: Any, board: Any, state: Any, gamma: Any, columns: Any, row: Any) -> Any:
    """Choose a move; write its loss and all moves' values to a row of ``columns``, unless that is None.

    A calibration, if there is one, turns the values into the score that comes.
    """
    if columns is None:
        return choose(player, board, state, gamma)
    values = columns[0][row]
    move, after, state = choose_valued(player, board, state, gamma, values)
    if move != NO_MOVE:
        calibration = columns[2]
        if calibration.shape[1] != 0:
            phase = phase_at(max_exponent(board), tile_sum(board))
            for i in range(4):
                if values[i] == values[i]:
                    values[i] = look_up(calibration, phase, values[i])[0]
        best = values[move]
        for value in values:
            if value > best:  # noqa: PLR1730 - max() would return NaN
                best = value
        columns[1][row] = best - values[move]
    return move, after, state


@kernel
def _play(
    player: Any,
    ids: Any,
    seeds: Any,
    starts: Any,
    game: Any,
    kept: Any,
    actions: Any,
    runs: Any,
    sample_rate: Any,
    steps_max: Any,
    rows_enough: Any,
    tape: Any,
    columns: Any,
) -> int:
    # ``tape`` is None or True, ``columns`` is None or arrays for values and loss, and a calibration's table.
    # numba knows their types at compile time, so branches on them cost nothing.
    rows_max = U64(kept.shape[0])
    record_action = actions.shape[0] != 0
    one = U64(1)
    in_play = game[_IN_PLAY] != U64(0)
    board, state, gamma = game[_BOARD], game[_STATE], game[_GAMMA]
    step, fours = game[_STEP], game[_FOURS]
    first_row, rows, index, run_count = game[_FIRST_ROW], game[_ROWS], game[_NEXT], game[_RUNS]
    steps_left = U64(steps_max)
    rate = U64(sample_rate)
    to_sample = (rate - step % rate) % rate  # steps until the next kept step
    status = GAMES_PLAYED
    watched = won = U64(0)  # the first step at which a move can win; the score of the winning move
    while True:
        if not in_play:
            if index == U64(ids.shape[0]) or rows >= U64(rows_enough):
                break
            board, fours, state, gamma = new_game(seeds[index], starts[index])
            step = to_sample = won = U64(0)
            first_row, in_play = rows, True
            watched = U64(MOVES_BEFORE_WIN) if starts[index] == U64(0) else U64(0)
        while won == U64(0):
            if rows == rows_max or steps_left == U64(0):
                status = BUFFER_FULL if rows == rows_max else STEPS_PLAYED
                break
            move, after, state = _chosen(player, board, state, gamma, columns, rows)
            if move == NO_MOVE:
                in_play = False
                break
            if tape is None:
                if to_sample == U64(0):
                    kept[rows] = board
                    claim_in(kept, rows + _AHEAD)
                    if record_action:
                        actions[rows] = move
                    rows += one
                    to_sample = rate
                to_sample -= one
            following, is_four, state = spawn(after, state, gamma)
            made = tape_byte(move, following ^ after, is_four)
            if step >= watched and wins(board, move):
                won, in_play = merge_score(board, move), False
                following, is_four, made = board, U64(0), move | U64(WIN_BIT)
            if tape is not None:
                kept[rows] = made
                rows += one
            board = following
            fours += is_four
            step += one
            steps_left -= one
        if in_play:
            break
        run, run_rows = runs[run_count], rows - first_row
        board = store_run(run, ids[index], seeds[index], first_row, run_rows, step, board, fours, won)
        run_count += one
        index += one
        first_row = rows
    game[_PLAYED] += U64(steps_max) - steps_left
    game[_IN_PLAY] = U64(in_play)
    game[_BOARD], game[_STATE], game[_GAMMA] = board, state, gamma
    game[_STEP], game[_FOURS] = step, fours
    game[_FIRST_ROW], game[_ROWS], game[_NEXT], game[_RUNS] = first_row, rows, index, run_count
    return status


@kernel
def _make_rows(boards: Any, actions: Any, runs: Any, first_row: Any, sample_rate: Any, out: Any) -> None:
    record_action = actions.shape[0] != 0
    row_bytes = U64(_LONG_ROW if record_action else _SHORT_ROW)
    row, at = U64(first_row), U64(0)
    end = row + U64(out.shape[0]) // row_bytes
    for i in range(runs.shape[0]):
        run = runs[i]
        run_end = min(run.first_row + run.rows, end)
        step = (row - run.first_row) * U64(sample_rate)  # unused if the run has no row left
        while row < run_end:
            store_row(out, at, run.run_id, step, boards[row])
            if record_action:
                store8(out, at + _ACTION_AT, U64(actions[row]))
            row += U64(1)
            at += row_bytes
            step += U64(sample_rate)


@kernel
def play_unrecorded(player: Any, boards: Any, seeds: Any, scores: Any, highest: Any) -> int:
    """Play from ``boards`` (0 or empty: new games) into ``scores`` and ``highest``; return the moves made."""
    steps = 0
    for i in range(seeds.shape[0]):
        board, fours, state, gamma = new_game(seeds[i], boards[i] if boards.shape[0] else U64(0))
        won = U64(0)
        while True:
            move, after, state = choose(player, board, state, gamma)
            if move == NO_MOVE:
                break
            steps += 1
            if wins(board, move):
                won = merge_score(board, move)
                break
            board, is_four, state = spawn(after, state, gamma)
            fours += is_four
        scores[i] = board_score(board) - (fours << U64(2)) + won
        highest[i] = final_exponent(board if won == U64(0) else WON)
    return steps


class BlockBuffer:
    """Rows and runs of finished games that a worker writes as one block."""

    def __init__(
        self,
        *,
        rows_max: int,
        runs_max: int,
        record_action: bool,
        sample_rate: int,
        storage: str = "rows",
        columns: Iterable[str] = (),
        calibration: npt.NDArray[np.float32] = UNCALIBRATED,
    ) -> None:
        self.calibration = calibration
        self.file = RowsFile.of(storage, record_action=record_action)
        self.dtype = self.file.dtype
        self.record_action = "action" in (self.dtype.names or ())
        self.sample_rate = sample_rate
        self.runs_max = runs_max
        self._columns = tuple(columns)
        self._runs = np.zeros(runs_max, dtype=RUN_DTYPE)
        self._allocate(rows_max)

    @property
    def columns(self) -> list[tuple[RowsFile, npt.NDArray[np.float32]]]:
        return []

    @property
    def rows_finished(self) -> int:
        raise NotImplementedError

    @property
    def runs(self) -> npt.NDArray[np.void]:
        raise NotImplementedError

    def _allocate(self, rows_max: int) -> None:
        raise NotImplementedError

    def _drop_runs(self, games: int | None) -> int:
        """Move the runs behind the first ``games`` to the start; return the number of dropped rows."""
        left = self.runs[len(self.runs) if games is None else games :].copy()
        dropped = int(left["first_row"][0]) if len(left) else self.rows_finished
        left["first_row"] -= U64(dropped)
        self._runs[: len(left)] = left
        return dropped


class Buffer(BlockBuffer):
    """The buffer of a worker with one game at a time, whose rows follow the rows of finished games."""

    def _allocate(self, rows_max: int) -> None:
        # Boards, or bytes on tape.
        self._kept: npt.NDArray[Any] = np.empty(rows_max, dtype=np.uint8 if self.file.is_tape else np.uint64)
        self._actions = np.empty(rows_max if self.record_action else 0, dtype=np.uint8)
        valued = rows_max if self._columns else 0
        self._values = np.empty((valued, 4), dtype=np.float32), np.empty(valued, dtype=np.float32)
        self._piece = np.empty(PIECE_BYTES if self.file.is_tape else _PIECE_ROWS, dtype=self.dtype)
        self._game = np.zeros(_GAME_WORDS, dtype=np.uint64)
        self._waiting = np.empty((3, 0), dtype=np.uint64)  # ids, seeds, and boards to start from, or 0

    @property
    def rows_finished(self) -> int:
        return int(self._game[_FIRST_ROW] if self._game[_IN_PLAY] else self._game[_ROWS])

    @property
    def rows_max(self) -> int:
        return len(self._kept)

    @property
    def in_play(self) -> bool:
        return bool(self._game[_IN_PLAY])

    @property
    def steps_played(self) -> int:
        return int(self._game[_PLAYED])

    @property
    def games_waiting(self) -> int:
        return int(self._waiting.shape[1] - self._game[_NEXT]) - self.in_play

    @property
    def runs(self) -> npt.NDArray[np.void]:
        """The finished games, ``RUN_DTYPE[n]``; ``first_row`` counts from the buffer's start (a view)."""
        return self._runs[: int(self._game[_RUNS])]

    @property
    def boards(self) -> npt.NDArray[np.uint64]:
        """The boards of the finished games' rows, ``u64[rows]`` (a view); not on tape."""
        return self._kept[: self.rows_finished]

    @property
    def rows(self) -> npt.NDArray[Any]:
        """Rows of the finished games (a new array at each access)."""
        return self._make_rows(0, np.empty(self.rows_finished, dtype=self.dtype))

    @property
    def columns(self) -> list[tuple[RowsFile, npt.NDArray[np.float32]]]:
        """The files of the recorded columns, and their values in the finished games' rows (views)."""
        made = zip(COLUMNS.items(), self._values, strict=True)
        return [
            (RowsFile.of_column(column), values[: self.rows_finished])
            for (name, column), values in made
            if name in self._columns
        ]

    def pieces(self, rows: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes of the finished games' first rows. Each piece is valid until the next one."""
        rows = self.rows_finished if rows is None else rows
        for first in range(0, rows, len(self._piece)):
            yield self._make_rows(first, self._piece[: rows - first]).view(np.uint8).data

    def _make_rows(self, first: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.file.is_tape:
            out[:] = self._kept[first : first + len(out)]
            return out
        _make_rows(
            self._kept, self._actions, self.runs, U64(first), U64(self.sample_rate), out.view(np.uint8)
        )
        return out

    def give(
        self,
        ids: npt.NDArray[np.uint64],
        seeds: npt.NDArray[np.uint64],
        boards: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        """Append games to play; ``boards`` are the boards to start from (0: a new game)."""
        if len(ids) != len(seeds):
            raise ValueError(f"found {len(ids)} ids and {len(seeds)} seeds, expected as many seeds as ids")
        games = np.stack([ids, seeds, np.zeros_like(ids) if boards is None else boards])
        self._waiting = np.concatenate([self._waiting[:, int(self._game[_NEXT]) :], games], axis=1)
        self._game[_NEXT] = 0

    def begin_at(self, board: int, seed: int) -> None:
        """Drop all games, and append one that starts from a packed board (0: a new game)."""
        self._game[:] = 0
        self._waiting = np.array([[0], [seed], [board]], dtype=np.uint64)

    def boards_and_moves(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """Return the boards of the only game so far, ``u64[n + 1]``, and its recorded moves, ``u8[n]``."""
        rows = int(self._game[_ROWS])
        return np.append(self._kept[:rows], self._game[_BOARD]), self._actions[:rows].copy()

    def forget_waiting(self) -> None:
        end = int(self._game[_NEXT]) + self.in_play
        self._waiting = np.ascontiguousarray(self._waiting[:, :end])

    def resize(self, rows_max: int) -> None:
        """Change the capacity to ``rows_max`` rows, or to the number of buffered rows if that is larger."""
        rows = int(self._game[_ROWS])

        def resized(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            out = np.empty((max(rows, rows_max) if len(array) else 0, *array.shape[1:]), dtype=array.dtype)
            out[:rows] = array[:rows]
            return out

        self._kept, self._actions = resized(self._kept), resized(self._actions)
        self._values = resized(self._values[0]), resized(self._values[1])

    def grow(self) -> None:
        self.resize(2 * self.rows_max)

    def drop_block(self, games: int | None = None) -> None:
        """Drop the first finished games, by default all, and move the other rows to the buffer's start."""
        runs = len(self.runs)
        first, end = self._drop_runs(games), int(self._game[_ROWS])
        for array in (self._kept, self._actions, *self._values):
            array[: end - first] = array[first:end].copy()
        self._game[_FIRST_ROW] = self.rows_finished - first
        self._game[_ROWS] -= U64(first)
        self._game[_RUNS] = 0 if games is None else runs - games


def play_into(buffer: Buffer, player: Any, *, steps_max: int, rows_enough: int = 1 << 62) -> int:
    """Play for at most ``steps_max`` steps; no game starts once ``rows_enough`` rows are finished."""
    if len(buffer.runs) + buffer.games_waiting + buffer.in_play > buffer.runs_max:
        room = buffer.runs_max - len(buffer.runs)
        raise ValueError(f"found {buffer.games_waiting} waiting games, expected at most {room} (the buffer)")
    ids, seeds, starts = buffer._waiting
    state = ids, seeds, starts, buffer._game, buffer._kept, buffer._actions, buffer._runs
    tape, columns = (
        True if buffer.file.is_tape else None,
        (*buffer._values, buffer.calibration) if buffer._columns else None,
    )
    limits = U64(buffer.sample_rate), U64(steps_max), U64(rows_enough)
    return int(_play(player, *state, *limits, tape, columns))


def play_all(buffer: Buffer, player: Any) -> None:
    while play_into(buffer, player, steps_max=1 << 30) != GAMES_PLAYED:
        buffer.grow()
