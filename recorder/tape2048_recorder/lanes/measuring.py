"""How fast a batched player plays in lanes, and where the time goes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.lanes.arrays import Finished
from tape2048_recorder.lanes.table import NullPlayer, Table
from tape2048_recorder.players.batch import Caller, make_batch_player

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from tape2048_recorder.players.batch import ArgValue
    from tape2048_recorder.players.sampling import Sampling

__all__ = ["NULL", "Measurement", "measure"]

#: The name of random moves in compiled code: what lanes cost without a model.
NULL = "null"

_BLOCK_ROWS = 262_144
_BLOCK_RUNS = 16_384

#: How long is played between two words to whoever waits.
_SLICE_S = 0.2


class Measurement(msgspec.Struct, frozen=True):
    """One player at one number of lanes, in one process.

    Attributes:
        lanes: games in lockstep.
        moves: made while the clock ran.
        moves_per_s: of elapsed time.
        moves_per_cpu_s: of this process's CPU time.
        calls_per_s: answers of the player a second.
        model: share of the elapsed time in the player.
        rules: share in choosing among scores, moving and showing boards.
        record: share in turning finished games into rows.
        rest: share in everything else.
    """

    lanes: int
    moves: int
    moves_per_s: float
    moves_per_cpu_s: float
    calls_per_s: float
    model: float
    rules: float
    record: float
    rest: float


class _Endless:
    """Games without end; what is finished is counted and forgotten."""

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
    progress: Callable[[float], None] | None = None,
) -> Measurement:
    """Play for a while, recording into memory, and say where the time went.

    Half of ``seconds`` goes by before the clock starts, so that games of all ages are in play.

    Args:
        name: of a batched player, or :data:`NULL`.
        args: what its factory is called with.
        lanes: games in lockstep.
        sampling: how scores become moves.
        seconds: how long to measure.
        progress: called now and then with the share that is done; what it takes is not measured.

    Raises:
        PlayerError: the player cannot be used.
    """
    player = NullPlayer() if name == NULL else Caller(make_batch_player(name, args), name)
    finished = Finished(rows_max=_BLOCK_ROWS, runs_max=_BLOCK_RUNS, record_action=False, sample_rate=1)

    def new_table() -> Table:
        return Table(player, lanes=lanes, sampling=sampling, finished=finished, source=_Endless())

    new_table().warm_up()
    finished.drop_block()
    table = new_table()
    done = _Share(progress, 1.5 * seconds)
    _play(table, seconds / 2, done)
    steps, model_ns = table.steps, table.model_ns
    rules_ns, record_ns = table.rules_ns, table.record_ns
    calls = player.calls if isinstance(player, Caller) else 0
    elapsed, cpu = _play(table, seconds, done)
    model = (table.model_ns - model_ns) / elapsed / 1e9
    record = (table.record_ns - record_ns) / elapsed / 1e9
    rules = (table.rules_ns - rules_ns) / elapsed / 1e9 - record
    moves = table.steps - steps
    return Measurement(
        lanes=lanes,
        moves=moves,
        moves_per_s=moves / elapsed,
        moves_per_cpu_s=moves / max(cpu, 1e-9),
        calls_per_s=((player.calls if isinstance(player, Caller) else 0) - calls) / elapsed,
        model=model,
        rules=rules,
        record=record,
        rest=max(0.0, 1 - model - rules - record),
    )


class _Share:
    """Tells somebody, if there is anybody, the share of some seconds that has been played."""

    def __init__(self, tell: Callable[[float], None] | None, whole_s: float) -> None:
        self._tell = tell
        self._whole_s = whole_s
        self._done_s = 0.0

    def add(self, seconds: float) -> None:
        self._done_s += seconds
        if self._tell is not None:
            self._tell(min(1.0, self._done_s / self._whole_s))


def _play(table: Table, seconds: float, done: _Share) -> tuple[float, float]:
    """Play for so long; returns the seconds and the CPU seconds that it took."""
    elapsed = cpu = 0.0
    while elapsed < seconds:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        end = begin + min(_SLICE_S, seconds - elapsed)
        while time.perf_counter() < end:
            table.tick()
        taken = time.perf_counter() - begin
        elapsed += taken
        cpu += time.process_time() - cpu_begin
        done.add(taken)
    return elapsed, cpu
