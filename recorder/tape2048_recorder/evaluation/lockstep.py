"""Unrecorded games of a batched player or an engine, played in lockstep."""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048_recorder.evaluation.game_threads import in_threads
from tape2048_recorder.lanes.lane_table import Finished, LaneTable
from tape2048_recorder.players.batch_player import Caller
from tape2048_recorder.players.engine import EnginePlayer, Usage
from tape2048_recorder.players.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Words = npt.NDArray[np.uint64]

#: Most games in progress at once, as in a recorder.
LANES_MAX = 4096

_RUNS_MAX = 4096  # most finished games in a report
_ROWS_MAX = 1 << 14
_REPORT_S = 1.0  # interval of reports of finished games


class Batched(NamedTuple):
    name: str
    player: Any


class TableReport(NamedTuple):
    """A table with finished games, which are dropped after the report, and counts since the last report."""

    table: LaneTable
    forfeits: dict[int, str]  # reasons, by game number
    moves: int
    usage: Usage


class _Games:
    """The games of a job, shared by the tables of all threads."""

    def __init__(self, *games: Words) -> None:
        self._games = games
        self._begun = 0
        self.lock = threading.Lock()
        self.ended = 0

    def more(self, want: int) -> tuple[Words, ...]:
        with self.lock:
            part = slice(self._begun, self._begun + want)
            self._begun += want
        return tuple(each[part] for each in self._games)


class _Feed:
    def __init__(self, player: Any, games: _Games, take: Callable[[TableReport], object]) -> None:
        self.more = games.more
        self._player = player
        self._games = games
        self._take = take
        self._forfeits: dict[int, str] = {}
        self._moves, self._used = 0, self._usage
        self._reported_at = time.monotonic()

    @property
    def _usage(self) -> Usage:
        if isinstance(self._player, EnginePlayer):
            return self._player.used
        return Usage(time.process_time())

    def flush(self, table: LaneTable) -> None:
        now = self._usage
        used = now._replace(cpu_s=now.cpu_s - self._used.cpu_s)
        with self._games.lock:
            self._games.ended += len(table.finished.runs) + len(self._forfeits)
            self._take(TableReport(table, self._forfeits, table.steps - self._moves, used))
        table.finished.drop_block()
        self._forfeits = {}
        self._moves, self._used, self._reported_at = table.steps, now, time.monotonic()

    def forfeit(self, game: int, why: str) -> None:
        self._forfeits[game] = why

    def play(self, table: LaneTable, stop: threading.Event) -> None:
        """Play until no game is left, with a report every second and at the end."""
        if isinstance(self._player, EnginePlayer):
            self._player.alive = functools.partial(_end_if, stop)
        try:
            while not stop.is_set() and table.tick():
                ended = len(table.finished.runs) or self._forfeits
                if ended and time.monotonic() - self._reported_at >= _REPORT_S:
                    self.flush(table)
        finally:
            self.flush(table)  # an invalid answer loses no finished game


def _end_if(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedError("stopped while an engine thinks")  # another thread raises the cause


def play_in_lanes(
    batched: Batched,
    numbers: Words,
    seeds: Words,
    boards: Words,
    *,
    threads: int,
    sample_rate: int,
    take: Callable[[TableReport], object],
    progress: Callable[[int, int], object] | None,
) -> float:
    """Play a game from each seed; return the elapsed time in seconds, without warming up.

    Boards are before a move; empty: new games. An engine gets a process per thread; other players always play
    on one thread. ``take`` is called by one thread at a time, and ``progress`` with ``(done, games)``.
    """
    count = len(numbers)
    players = [batched.player]
    try:
        if isinstance(batched.player, EnginePlayer):
            players += [batched.player.another() for _ in range(1, min(threads, count))]
        callers = [Caller(player, batched.name) for player in players]
        lanes = callers[0].lanes(min(-(-count // len(players)), LANES_MAX))

        def new_table(caller: Caller, feed: _Feed) -> LaneTable:
            block = Finished(
                rows_max=_ROWS_MAX, runs_max=_RUNS_MAX, record_action=False, sample_rate=sample_rate
            )
            return LaneTable(caller, lanes=lanes, sampling=Sampling(), finished=block, feed=feed)

        practice = np.arange(lanes, dtype=np.uint64)
        for caller, player in zip(callers, players, strict=True):
            new_table(caller, _Feed(player, _Games(practice, practice), take)).warm_up()
        games = _Games(numbers, seeds, boards if len(boards) else np.zeros_like(numbers))
        feeds = [_Feed(player, games, take) for player in players]
        begin = time.monotonic()
        tables = map(new_table, callers, feeds)
        works = [functools.partial(feed.play, table) for feed, table in zip(feeds, tables, strict=True)]
        in_threads(works, lambda: progress and progress(games.ended, count))
        return time.monotonic() - begin
    finally:
        for player in players:
            if isinstance(player, EnginePlayer):
                player.close()
