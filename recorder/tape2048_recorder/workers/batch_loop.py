"""The worker of a batched player, which plays many games in lockstep, in lanes.

Each generation of weights has its own table of lanes. When the daemon offers new weights, a second table
starts with the next games, and the current table only finishes its games. So the same weights play a game
from its first move to its last. The games of different weights go into different sessions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.text import valid_text
from tape2048.errors import PlayerError
from tape2048_recorder.ipc.protocol import (
    DRAIN,
    HURRY,
    LOADS,
    Ask,
    Bye,
    Forfeited,
    PlayGames,
    WantWeights,
    Weights,
    WeightsRefused,
    WeightsTaken,
)
from tape2048_recorder.lanes.lane_table import Finished, LaneTable
from tape2048_recorder.players.batch_player import Caller, batch_sha256, make_batch_player
from tape2048_recorder.players.sampling import read_sampling
from tape2048_recorder.workers.worker_loop import RUNS_MAX, SLICE_S, Worker, unexpected

if TYPE_CHECKING:
    import numpy.typing as npt


class BatchWorker(Worker):
    def _prepare(self) -> None:
        self._sampling = read_sampling(self._config.sampling)
        self._model_ns = 0  # of closed tables
        self._tables: list[LaneTable] = []
        self._requested = 0 if self._first_weights is None else self._first_weights.generation
        self.generation = self._requested
        self._finished_at: dict[int, float] = {}  # time of a table's first unwritten game, by generation

    def warm_up(self) -> None:
        table, self.player_sha256 = self._make_table(self._first_weights)
        self._tables = [table]
        self._slot["oldest"] = self.generation

    def _make_table(self, weights: Weights | None) -> tuple[LaneTable, str]:
        name, args = self._config.player, self._config.player_args
        player = make_batch_player(name, args if weights is None else {**args, "model": weights.path})
        caller = Caller(player, name, answered=self._note_progress)
        generation = 0 if weights is None else weights.generation
        self._new_table(caller, generation, _Practice()).warm_up()
        checkpoint = None if weights is None else weights.sha256
        sha256 = batch_sha256(name, args, self._sampling, player, checkpoint_sha256=checkpoint)
        caller.model_ns = caller.calls = 0
        return self._new_table(caller, generation, self), sha256

    def _new_table(self, caller: Caller, generation: int, feed: Any) -> LaneTable:
        config, practice = self._config, isinstance(feed, _Practice)
        return LaneTable(
            caller,
            lanes=caller.lanes(config.lanes),
            sampling=self._sampling,
            finished=Finished(
                rows_max=64 if practice else self._block_rows,
                runs_max=1 if practice else RUNS_MAX,
                record_action=config.record_action,
                sample_rate=config.sample_rate,
                storage=config.storage,
            ),
            feed=feed,
            generation=generation,
        )

    # The feed of the tables.

    def more(self, want: int) -> tuple[npt.NDArray[np.uint64], ...] | None:
        """Request games, and return them as arguments of ``LaneTable.give``; None if no more are to start."""
        if not self._more_games:
            return None
        self._note_finished()
        answer = self._answer_to(Ask(want))
        if not isinstance(answer, PlayGames):
            self._more_games = False
            return None
        return self._games_of(answer)

    def flush(self, table: LaneTable) -> None:
        self._note_finished()
        self._slot["games"] += np.uint64(len(table.finished.runs))
        self._rows += table.finished.rows_finished
        self._buffer, self.generation = table.finished, table.generation
        self._flush()
        self._finished_at.pop(table.generation, None)

    def forfeit(self, game: int, why: str) -> None:
        self._channel.send(Forfeited(game, valid_text(why)))

    def _note_finished(self) -> None:
        self._slot["rows"] = self._rows + sum(table.finished.rows_finished for table in self._tables)

    def _games_wanted(self) -> int:
        return 0  # tables request games when a lane is free

    def run(self) -> None:
        try:
            while (command := int(self._slot["command"][0])) != HURRY:
                if command == DRAIN:
                    self._more_games = False
                    for table in self._tables:
                        table.retire()
                elif int(self._slot["weights"][0]) > self._requested:
                    self._change_weights()
                self._flush_if_asked()
                self._resize_if_asked()
                if not self._play_ticks():
                    break
        except PlayerError:
            self._flush_all()  # an invalid answer loses the games in progress, but no finished game
            raise
        self._flush_all()
        for table in self._tables:
            table.close()
        self._channel.send(Bye(sum(table.playing for table in self._tables), self._finished_dropped))

    def _play_ticks(self) -> bool:
        begin = now = time.monotonic()
        more = True
        while more and now - begin < SLICE_S:
            made = 0
            for table in self._tables:
                made += table.tick()
                if len(table.finished.runs):
                    self._finished_at.setdefault(table.generation, now)
            self._slot["steps"] += np.uint64(made)
            more = made > 0
            now = time.monotonic()
        self._note_progress()
        self._slot["model_ns"] = self._model_ns + sum(table.model_ns for table in self._tables)
        for table in self._tables:
            if now - self._finished_at.get(table.generation, now) >= self._slot["flush_s"][0]:
                self.flush(table)
        for table in [table for table in self._tables[:-1] if not table.playing]:  # the last game has ended
            self.flush(table)
            self._model_ns += table.model_ns
            self._tables.remove(table)
            self._slot["oldest"] = self._tables[0].generation
        self._slot["played_ns"] += np.uint64((time.monotonic() - begin) * 1e9)
        return more

    def _flush_all(self) -> None:
        for table in self._tables:
            self.flush(table)
        self._settle()

    def _resize(self, rows: int) -> None:
        for table in self._tables:
            table.finished.resize(rows)

    def _change_weights(self) -> None:
        """Start a table with the offered weights; keep the current weights if the new ones cannot be used."""
        if len(self._tables) > 1:
            return  # at most two models at once: try again when the games of the older model have ended
        self._requested = int(self._slot["weights"][0])
        while True:
            answer = self._answer_to(WantWeights())
            if not isinstance(answer, Weights):
                raise unexpected("weights", answer)
            if answer.generation <= self._tables[-1].generation:
                return  # the workers have rejected all newer weights
            self._slot["busy"] = LOADS
            try:
                table, sha256 = self._make_table(answer)
            except PlayerError as error:
                self._channel.send(WeightsRefused(answer.generation, valid_text(str(error))))
                continue  # the generation before it can be newer than the current one
            finally:
                self._note_progress()
                self._slot["busy"] = 0
            self._channel.send(WeightsTaken(answer.generation, sha256))
            table.give(*self._tables[-1].retire())
            self._tables.append(table)
            return


class _Practice:
    """The games of a warm-up: any number, with their ids as seeds, not recorded."""

    def more(self, want: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        ids = np.arange(want, dtype=np.uint64)
        return ids, ids

    def flush(self, table: LaneTable) -> None:
        table.finished.drop_block()

    def forfeit(self, game: int, why: str) -> None:
        """Ignore the fault: recorded games will show it."""
