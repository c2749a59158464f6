"""Speed of a batched player in lanes, and the shares of its time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.lanes.table import Finished, Table
from tape2048_recorder.players.batch import Caller, make_batch_player

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from tape2048_recorder.players.batch import ArgValue
    from tape2048_recorder.players.sampling import Sampling

#: The name of random moves: the cost of lanes without a model.
NULL = "null"

_BLOCK_ROWS = 262_144
_BLOCK_RUNS = 16_384


class Measurement(msgspec.Struct, frozen=True):
    """One player at one number of lanes, in one process; the last four are shares of the elapsed time."""

    lanes: int
    moves: int
    moves_per_s: float
    moves_per_cpu_s: float  # of this process
    calls_per_s: float  # answers of the player
    model: float  # in the player
    rules: float  # choosing from scores, moves and spawns
    record: float  # building the rows of finished games
    rest: float


class _Endless:
    """Games without end; the finished ones are dropped."""

    def __init__(self) -> None:
        self._next = 0

    def more(self, want: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        ids = np.arange(self._next, self._next + want, dtype=np.uint64)
        self._next += want
        return ids, game_seeds(0, ids)

    def flush(self, table: Table) -> None:
        table.finished.drop_block()


def measure(
    name: str,
    args: Mapping[str, ArgValue],
    *,
    lanes: int,
    sampling: Sampling,
    seconds: float,
) -> Measurement:
    """Play for a while, recording into memory, and measure.

    Plays for half of ``seconds`` before the clock starts, so that games of all ages are in progress.
    """
    if name == NULL:
        scores = np.zeros((lanes, 4), np.float32)
        player = Caller(lambda boards, *_: scores[: len(boards)], name)
        sampling = msgspec.structs.replace(sampling, method="argmax", epsilon=1.0)
    else:
        player = Caller(make_batch_player(name, args), name)
    finished = Finished(rows_max=_BLOCK_ROWS, runs_max=_BLOCK_RUNS, record_action=False, sample_rate=1)

    def new_table() -> Table:
        return Table(player, lanes=lanes, sampling=sampling, finished=finished, feed=_Endless())

    new_table().warm_up()
    finished.drop_block()
    table = new_table()

    def counters() -> npt.NDArray[np.float64]:
        played = [table.steps, player.calls, table.model_ns, table.rules_ns, table.record_ns]
        return np.array([*played, time.process_time() * 1e9, time.perf_counter() * 1e9])

    before = counters()
    for duration in (seconds / 2, seconds):
        before = counters()
        end = time.perf_counter() + duration
        while time.perf_counter() < end:
            table.tick()
    moves, calls, *times = (counters() - before).tolist()
    *parts_s, cpu_s, elapsed_s = (ns / 1e9 for ns in times)
    model, rules, record = (part / elapsed_s for part in parts_s)
    return Measurement(
        lanes=lanes,
        moves=int(moves),
        moves_per_s=moves / elapsed_s,
        moves_per_cpu_s=moves / max(cpu_s, 1e-9),
        calls_per_s=calls / elapsed_s,
        model=model,
        rules=rules - record,
        record=record,
        rest=max(0.0, 1 - model - rules),
    )
