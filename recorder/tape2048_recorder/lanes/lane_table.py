"""The lanes of one player: its calls, its games and their recording, and a measurement of its speed.

Two groups of lanes alternate: while an asynchronous player (see
:mod:`tape2048_recorder.players.batch_player`) computes moves for one group, the recorder applies the rules
to the other group.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tape2048.errors import BookkeepingError, PlayerError
from tape2048_recorder.game.game_loop import PIECE_BYTES, BlockBuffer
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.lanes import kernels
from tape2048_recorder.lanes.kernels import FinishedArrays, Waiting, new_lanes, new_log
from tape2048_recorder.players.batch_player import Caller, describe_path, make_batch_player, show_board

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from tape2048_recorder.players.batch_player import Views
    from tape2048_recorder.players.options import ArgValue
    from tape2048_recorder.players.sampling import Sampling

#: A request asks for this share (1/8) of the lanes as games, since a request costs a message and an answer.
_ASK_SHARE = 8

#: Forfeited games in a row, without a finished game between them, that end the recording.
FORFEITS_MAX = 10


class Finished(BlockBuffer):
    """The block buffer of lanes: finished games, in the order in which they ended."""

    def _allocate(self, rows_max: int) -> None:
        rows = np.empty(rows_max * self.dtype.itemsize, dtype=np.uint8)
        self.arrays = FinishedArrays(rows, self._runs, np.zeros(2, dtype=np.uint64))

    @property
    def rows_finished(self) -> int:
        return int(self.arrays.counts[0])

    @property
    def rows_max(self) -> int:
        return len(self.arrays.rows) // self.dtype.itemsize

    @property
    def runs(self) -> npt.NDArray[np.void]:
        """The games, ``RUN_DTYPE[n]``; ``first_row`` counts from the buffer's start (a view)."""
        return self.arrays.runs[: int(self.arrays.counts[1])]

    @property
    def rows(self) -> npt.NDArray[Any]:
        return self.arrays.rows[: self.rows_finished * self.dtype.itemsize].view(self.dtype)

    def pieces(self, rows: int | None = None) -> Iterator[memoryview]:
        size = (self.rows_finished if rows is None else rows) * self.dtype.itemsize
        for first in range(0, size, PIECE_BYTES):
            yield self.arrays.rows[first : min(first + PIECE_BYTES, size)].data

    def resize(self, rows_max: int) -> None:
        """Change the capacity to this many rows. The buffer must be empty."""
        self._allocate(rows_max)

    def grow(self) -> None:
        rows = self.arrays.rows
        self.arrays = self.arrays._replace(rows=np.concatenate([rows, np.empty_like(rows)]))

    def drop_block(self, games: int | None = None) -> None:
        """Drop the first games, by default all, and move the others to the buffer's start."""
        runs = len(self.runs)
        left = self.rows[self._drop_runs(games) :].copy()
        self.rows[: len(left)] = left
        self.arrays.counts[:] = len(left), 0 if games is None else runs - games


class GameFeed(Protocol):
    """The source of a table's games, and the receiver of its finished games."""

    def more(self, want: int) -> tuple[npt.NDArray[np.uint64], ...] | None:
        """Return about ``want`` games as arrays of ids and seeds, or None if no more are to start.

        A third array, if present, has the boards to start from (0: a new game).
        """

    def flush(self, table: LaneTable) -> None:
        """Remove the games from ``table.finished``, which is full."""

    def forfeit(self, game: int, why: str) -> None:
        """Note that a game will not be recorded because of a fault of its player."""


class _Group:
    def __init__(self, count: int) -> None:
        self.lanes = new_lanes(count)
        self.moves = np.zeros(count, dtype=np.uint8)
        boards, legal = self.lanes.boards.view(), self.lanes.legal.view()
        exps = self.lanes.exps.view(np.uint8)
        for array in (boards, legal, exps):
            array.flags.writeable = False  # the player must not change the games
        self._all = boards, legal, exps
        self._views = self._all

    @property
    def playing(self) -> int:
        return int(self.lanes.counts[0])

    @property
    def views(self) -> Views:
        n = self.playing
        if len(self._views[0]) != n:
            boards, legal, exps = self._all
            self._views = boards[:n], legal[:n], exps[:n]
        return self._views


class LaneTable:
    def __init__(
        self,
        player: Caller,
        *,
        lanes: int,
        sampling: Sampling,
        finished: Finished,
        feed: GameFeed,
        generation: int = 0,
    ) -> None:
        self.finished = finished
        self.generation = generation
        self.refill = True  # whether a lane gets another game when its game ends
        self.steps = 0  # moves made
        self.rules_ns = 0  # time from an answer to the next call: choosing, moving, recording
        self.record_ns = 0  # part of rules_ns: recording finished games
        self._caller = player
        self._sampling = sampling
        self._policy = kernels.policy_of(sampling)
        self._feed = feed
        sizes = [lanes - lanes // 2, lanes // 2] if lanes > 1 else [1]
        self._groups = [_Group(size) for size in sizes]
        self._asked: deque[_Group] = deque()  # in the order of the answers
        self._log = new_log(2 * lanes)
        self._waiting = _waiting(*np.empty((3, 0), dtype=np.uint64))
        self._ask_games = lanes // _ASK_SHARE + 1
        self._forfeits = 0  # in a row
        self._recording_as = np.uint64(finished.dtype.itemsize), np.uint64(finished.sample_rate)

    @property
    def playing(self) -> int:
        return sum(group.playing for group in self._groups)

    @property
    def model_ns(self) -> int:
        return self._caller.model_ns

    def warm_up(self) -> None:
        """Compile the kernels, and make first moves with the player. The table is unusable afterwards."""
        group = self._groups[0]
        self._caller.warm_up(len(group.moves))
        kernels.settle(group.lanes, self._log, self.finished.arrays, self._waiting, *self._recording_as)
        kernels.close_free(group.lanes)
        self.tick()
        self._caller.drain()

    def tick(self) -> int:
        """Make a move in every lane; return the number of moves, 0 if no game is left."""
        for group in self._groups:
            if group not in self._asked:
                while kernels.fill_free(group.lanes, self._waiting) < len(group.moves) and self._more():
                    pass
                self._ask(group)
        made = sum(self._round(self._asked.popleft()) for _ in range(len(self._asked)))
        self.steps += made
        return made

    def close(self) -> None:
        self._caller.close()

    def retire(self) -> tuple[npt.NDArray[np.uint64], ...]:
        """Start no more games; return the waiting games as arguments of :meth:`give`."""
        self.refill = False
        begun = int(self._waiting.counts[0])
        rest = tuple(games[begun:] for games in self._waiting[:-1])
        self._waiting = _waiting(*np.empty((3, 0), dtype=np.uint64))
        return rest

    def give(
        self,
        ids: npt.NDArray[np.uint64],
        seeds: npt.NDArray[np.uint64],
        boards: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        """Append games to the queue; ``boards`` are the boards to start from (0: a new game)."""
        begun = int(self._waiting.counts[0])
        games = ids, seeds, np.zeros_like(ids) if boards is None else boards
        waiting = zip(self._waiting[:-1], games, strict=True)
        self._waiting = _waiting(*(np.concatenate([old[begun:], new]) for old, new in waiting))

    def _more(self) -> bool:
        games = self._feed.more(self._ask_games) if self.refill else None
        if games is None or not len(games[0]):
            return False
        self.give(*games)
        return True

    def _ask(self, group: _Group) -> None:
        if group.playing:
            self._asked.append(group)
            self._caller.submit(group.views)

    def _round(self, group: _Group) -> int:
        n = group.playing
        views, moves = group.views, group.moves[:n]
        answer = self._caller.collect()
        begin = time.perf_counter_ns()
        if answer.dtype == np.uint8:
            self._take_moves(group, answer, views, moves)
        elif (bad := int(kernels.choose_moves(group.lanes, answer, self._policy, moves))) >= 0:
            place = describe_path(self._caller.name, bad, views)
            raise PlayerError(
                f"{place}: found scores {answer[bad].tolist()}; expected scores of legal moves without NaN "
                "and inf, at least one of them finite",
                hint="Return float32 scores of shape (boards, 4), finite for the legal moves.",
            )
        if int(self._log.counts[0]) < n:
            self._log = new_log(2 * len(self._log.links), self._log)
        if faults := self._caller.faults:
            self._forfeit(group, faults)
        ended = kernels.advance(group.lanes, moves, self._log)
        if ended > len(faults):
            self._forfeits = 0
        if ended:
            settling = time.perf_counter_ns()
            self._settle(group)
            self.record_ns += time.perf_counter_ns() - settling
        self.rules_ns += time.perf_counter_ns() - begin
        self._ask(group)
        return n

    def _take_moves(
        self, group: _Group, answer: npt.NDArray[Any], views: Views, moves: npt.NDArray[Any]
    ) -> None:
        bad = np.flatnonzero((answer > 3) | (views[1] >> np.minimum(answer, 3) & 1 == 0))
        if len(bad):
            place = describe_path(self._caller.name, int(bad[0]), views)
            raise PlayerError(
                f"{place}: found move {answer[bad[0]]}; expected a legal move",
                hint="Return scores, float32[n, 4]: the recorder ignores the scores of illegal moves.",
            )
        if self._sampling.needs_scores:
            place = describe_path(self._caller.name, 0, views)
            raise PlayerError(
                f"{place}: found moves, expected scores, from which [sampling] draws moves",
                hint='Return float32[n, 4], or set method = "argmax".',
            )
        moves[:] = answer
        if self._sampling.epsilon > 0:
            chosen = (answer[:, None] == np.arange(4)).astype(np.float32)
            kernels.choose_moves(group.lanes, chosen, self._policy, moves)

    def _forfeit(self, group: _Group, faults: Mapping[int, str]) -> None:
        lanes = group.lanes
        for at, fault in faults.items():
            game, where = int(lanes.ids[at]), f"at step {lanes.steps[at]}, {show_board(lanes.boards[at])}"
            why = f"{self._caller.name} forfeits game {game} {where}: {fault}"
            group.moves[at] = kernels.FORFEIT
            self._feed.forfeit(game, why)
            self._forfeits += 1
            if self._forfeits == FORFEITS_MAX:
                raise PlayerError(
                    f"{self._forfeits} games in a row were forfeited. The last one: {why}",
                    hint="Test the engine with `tape2048 player eval`. See docs/reference/engines.md.",
                )

    def _settle(self, group: _Group) -> None:
        while True:
            status = kernels.settle(
                group.lanes, self._log, self.finished.arrays, self._waiting, *self._recording_as
            )
            if status == kernels.SETTLED:
                return
            if status == kernels.BLOCK_FULL and not len(self.finished.runs):
                self.finished.grow()
            elif status == kernels.BLOCK_FULL:
                self._feed.flush(self)
            elif status == kernels.LOG_BROKEN:
                raise BookkeepingError("replaying a game's log did not end at the game's last board")
            elif not self._more():
                kernels.close_free(group.lanes)
                return


def _waiting(*games: npt.NDArray[np.uint64]) -> Waiting:
    return Waiting._make([*map(np.ascontiguousarray, games), np.zeros(1, dtype=np.uint64)])


#: The name for random moves without a model, to measure the cost of the lanes.
NULL = "null"


class Measurement(msgspec.Struct, frozen=True):
    """The speed of a player with a number of lanes. The last four fields are shares of the elapsed time."""

    lanes: int
    moves: int
    moves_per_s: float
    moves_per_cpu_s: float  # per second of this process's processor time
    calls_per_s: float  # answers of the player
    model: float  # in the player
    rules: float  # choosing from scores, moving and spawning
    record: float  # recording finished games
    rest: float


class _Endless:
    def __init__(self) -> None:
        self._next = 0

    def more(self, want: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        ids = np.arange(self._next, self._next + want, dtype=np.uint64)
        self._next += want
        return ids, game_seeds(0, ids)

    def flush(self, table: LaneTable) -> None:
        table.finished.drop_block()

    def forfeit(self, game: int, why: str) -> None:
        """Ignore it: other games are played instead."""


def measure(
    name: str, args: Mapping[str, ArgValue], *, lanes: int, sampling: Sampling, seconds: float
) -> Measurement:
    """Return the speed over ``seconds``, after half as long to get games of all ages in progress."""
    if name == NULL:
        scores = np.zeros((lanes, 4), np.float32)
        player = Caller(lambda boards, *_: scores[: len(boards)], name)
        sampling = msgspec.structs.replace(sampling, method="argmax", epsilon=1.0)
    else:
        player = Caller(make_batch_player(name, args), name)
    finished = Finished(rows_max=262_144, runs_max=16_384, record_action=False, sample_rate=1)

    def new_table() -> LaneTable:
        return LaneTable(player, lanes=lanes, sampling=sampling, finished=finished, feed=_Endless())

    new_table().warm_up()
    finished.drop_block()
    table = new_table()

    def counters() -> npt.NDArray[np.float64]:
        played = [table.steps, player.calls, table.model_ns, table.rules_ns, table.record_ns]
        return np.array([*played, time.process_time() * 1e9, time.perf_counter() * 1e9])

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
