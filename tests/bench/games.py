"""Games to be played for their time: always new ones, recorded or not."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.game.moves import last_boards
from tape2048_recorder.game.game_loop import BUFFER_FULL, Buffer, play_into, play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player
from tape2048_recorder.record_options import split_player

#: The recorder's defaults.
BLOCK_ROWS = 262_144
RUNS_MAX = 16_384


def make_buffer() -> Buffer:
    return Buffer(rows_max=BLOCK_ROWS, runs_max=RUNS_MAX, record_action=False, sample_rate=1)


def play(player: str, count: int) -> tuple[Any, Any, Any, Any]:
    """Boards, moves and final boards of so many games, and their run table."""
    name, args = split_player(player)
    made = make_player(name, args or {})
    buffer = Buffer(rows_max=1 << 16, runs_max=count, record_action=True, sample_rate=1)
    ids = np.arange(count, dtype=np.uint64)
    buffer.give(ids, game_seeds(1, ids))
    while play_into(buffer, made, steps_max=1 << 40) == BUFFER_FULL:
        buffer.grow()
    runs = buffer.runs.copy()
    assert len(runs) == count
    boards, moves = buffer.boards.copy(), buffer.rows["action"].copy()
    last = (runs["first_row"] + runs["rows"]).astype(np.int64) - 1
    return boards, moves, last_boards(boards[last], moves[last])[0], runs


class Games:
    """Games that were not played before, so that no branch is remembered.

    Args:
        player: as in the setting, parameters included.
        count: games played at each call.
    """

    def __init__(self, player: str, count: int) -> None:
        name, args = split_player(player)
        self.player = make_player(name, args or {})
        self.count = count
        self._next = 0

    def next_ids(self, count: int) -> npt.NDArray[np.uint64]:
        """Numbers of games that were not played yet."""
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.uint64)

    def play_unrecorded(self) -> int:
        """Play and keep no rows; returns the steps."""
        seeds = game_seeds(1, self.next_ids(self.count))
        scores, highest = np.empty(self.count, np.uint64), np.empty(self.count, np.uint8)
        return int(play_unrecorded(self.player, np.empty(0, np.uint64), seeds, scores, highest))

    def play_recorded(self, buffer: Buffer) -> int:
        """Play through a worker's buffer, full blocks dropped; returns the steps."""
        before, left = buffer.steps_played, self.count
        while left or buffer.in_play or buffer.games_waiting:
            if not buffer.in_play and not buffer.games_waiting:
                ids = self.next_ids(min(left, buffer.runs_max - len(buffer.runs)))
                buffer.give(ids, game_seeds(1, ids))
                left -= len(ids)
            if play_into(buffer, self.player, steps_max=1 << 40) == BUFFER_FULL:
                buffer.drop_block()
        buffer.drop_block()
        return buffer.steps_played - before
