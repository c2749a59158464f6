"""Tables of lanes without a worker: games of a seed, in memory."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.lanes.lane_table import Finished, LaneTable
from tape2048_recorder.players.batch_player import Caller
from tape2048_recorder.players.sampling import Sampling

SEED = 7


class Kept(NamedTuple):
    """A finished game."""

    seed: int
    steps: int
    max_score: int
    highest_tile: int
    rows: bytes


class Games:
    """So many games, given as they are asked for; what is finished is kept by id, in order of finishing."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.given = 0
        self.kept: dict[int, Kept] = {}

    def more(self, want: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
        want = min(want, self.count - self.given)
        if want == 0:
            return None
        ids = np.arange(self.given, self.given + want, dtype=np.uint64)
        self.given += want
        return ids, game_seeds(SEED, ids)

    def flush(self, table: LaneTable) -> None:
        finished = table.finished
        for run in finished.runs:
            first, count = int(run["first_row"]), int(run["rows"])
            rows = finished.rows[first : first + count]
            assert int(run["run_id"]) not in self.kept
            self.kept[int(run["run_id"])] = Kept(
                *(int(run[name]) for name in ("seed", "steps", "score", "highest_tile")), rows.tobytes()
            )
        half = len(finished.runs) // 2  # a block can be written in two parts
        left, first = finished.runs[half:].copy(), int(finished.runs["rows"][:half].sum())
        data = b"".join(map(bytes, finished.pieces()))
        parts = list(map(bytes, finished.pieces(first)))
        finished.drop_block(half)
        left["first_row"] -= first
        assert finished.runs.tobytes() == left.tobytes()
        assert b"".join([*parts, *map(bytes, finished.pieces())]) == data
        finished.drop_block()


def make_table(player: Any, games: Games, *, lanes: int = 64, **options: Any) -> LaneTable:
    """A table of lanes; ``options`` of the buffer or the sampling."""
    block = {"rows_max": 4096, "runs_max": 64, "record_action": True, "sample_rate": 1, "storage": "rows"}
    finished = Finished(**{name: options.pop(name, value) for name, value in block.items()})
    caller = Caller(player, "python:here:player")
    return LaneTable(caller, lanes=lanes, sampling=Sampling(**options), finished=finished, feed=games)


def play_out(table: LaneTable) -> None:
    """Play until no game is left."""
    while table.tick():
        pass


def play(player: Any, count: int, **options: Any) -> dict[int, Kept]:
    """The games with numbers below ``count``, played to their ends."""
    games = Games(count)
    table = make_table(player, games, **options)
    play_out(table)
    games.flush(table)
    assert sorted(games.kept) == list(range(count))
    return games.kept
