"""The loop of a worker: play games into a block buffer, and write full blocks to reserved ranges."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tape2048.base.lazy import load_named
from tape2048.files.durable import write_all
from tape2048.session.layout import RUN_DTYPE
from tape2048_recorder.game.kept_starts import load_starts, seeds_key
from tape2048_recorder.ipc.protocol import (
    DRAIN,
    HURRY,
    Ask,
    BlockWritten,
    Bye,
    Channel,
    Confirmed,
    FromDaemon,
    FromWorker,
    NoMoreGames,
    NoRoom,
    PlayGames,
    Range,
    Reserve,
    Shared,
    Starts,
    WorkerSpec,
    WriteFailed,
)
from tape2048_recorder.record_options import OWN_CALIBRATION, RecorderConfig

#: Target duration of a call of the compiled loop (a slice of play). The worker reads commands between slices.
SLICE_S = 0.05
_SLICE_STEPS_FIRST = 256
_SLICE_STEPS_MAX = 1 << 24

#: Most finished games in a block, 40 bytes each. A block of 262,144 rows holds about 2,200 random games.
RUNS_MAX = 16_384

_FIRST_GAMES = 8  # games to request before their length is known

#: Blocks that a request for games should fill, so that a worker seldom runs out of games before its next
#: block.
_BLOCKS_AHEAD = 1.25


class Worker:
    #: Generation of the weights that played the buffer's games. Only batched players change their weights.
    generation = 0

    def __init__(self, spec: WorkerSpec, channel: Channel, shared: Shared) -> None:
        # Imports of the compiler, here so that a failure is reported to the daemon.
        from tape2048.ntuple.mapped import check_tables
        from tape2048_recorder.game import game_loop as loop, rng

        self._check_tables = check_tables
        self._loop, self._rng = loop, rng
        self._config = RecorderConfig(**spec.settings)
        self._seed: int = spec.settings["seed"]
        self._starts: npt.NDArray[np.uint64] | None = None
        if spec.starts is not None:
            self._starts = load_starts(Path(spec.starts))
            self._seed ^= seeds_key(Path(spec.starts))
        self._first_weights = spec.weights
        self._channel = channel
        self._slot = shared.slots[spec.index : spec.index + 1]
        self.player_sha256 = ""
        self._block_rows = int(self._slot["block_rows"][0])
        channel.send(Starts(f"loading the player {self._config.player}"))
        self._prepare()
        self._slice_steps = _SLICE_STEPS_FIRST
        self._finished_since: float | None = None
        self._games, self._rows = int(self._slot["games"][0]), int(self._slot["rows"][0])
        self._finished_dropped = 0
        self._more_games = True
        self._written = False  # whether a written block awaits its confirmation
        self._asked = False  # whether a request for games awaits its answer
        self._files: tuple[int, list[int]] = 0, []  # session, descriptors

    def _prepare(self) -> None:
        from tape2048.jit.compiler import cache_dir
        from tape2048_recorder.players import options

        self._table: dict[str, Any] = {}
        self._ahead = threading.Thread(target=self._compile_ahead, daemon=True)
        if not self._config.columns and cache_dir() is not None:  # else a player has another type
            self._ahead.start()
        self._player: Any = options.make_player(self._config.player, self._config.player_args)
        self.player_sha256 = options.player_sha256(self._config.player, self._player)
        if self._config.columns:
            of = self._config.player, self._config.player_args, self.player_sha256
            found = load_named(OWN_CALIBRATION)(*of)
            self._table = {} if found is None else {"calibration": found.table}
        self._buffer = self._new_buffer(self._block_rows)

    def _new_buffer(self, rows_max: int) -> Any:
        config = self._config
        return self._loop.Buffer(
            rows_max=rows_max,
            runs_max=RUNS_MAX,
            record_action=config.record_action,
            sample_rate=config.sample_rate,
            storage=config.storage,
            columns=(config.columns or "").split(),
            **self._table,
        )

    def _compile_ahead(self) -> None:
        """Compile the game loop while another thread expands the network, which takes as long."""
        with contextlib.suppress(Exception):  # the other thread reports it
            from tape2048_recorder.players import options

            found = options.make_stand_in(self._config.player, self._config.player_args)
            if found is not None:
                self._warm_up(found)

    def warm_up(self) -> None:
        """Compile the game loop and the building of rows (or load them), and play four moves."""
        if self._ahead.ident is not None:
            self._ahead.join()
        self._warm_up(self._player)

    def _warm_up(self, player: Any) -> None:
        buffer = self._new_buffer(64)
        buffer.give(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64))
        self._loop.play_into(buffer, player, steps_max=4)
        _ = buffer.rows

    def run(self) -> None:
        buffer = self._buffer
        while (command := int(self._slot["command"][0])) != HURRY:
            if command == DRAIN:
                self._more_games = False
                self._settle()
                buffer.forget_waiting()
            self._flush_if_asked()
            self._resize_if_asked()
            if buffer.in_play or (buffer.games_waiting and self._rows_left):
                self._play_slice()
            elif self._asked:
                self._settle()
            elif self._more_games:
                self._flush()  # the daemon counts these rows before it grants more
                if not self._asked:
                    self._take(self._answer_to(Ask(self._games_wanted())))
            else:
                break
        self._flush_all()
        self._channel.send(Bye(int(buffer.in_play), self._finished_dropped))

    def _note_progress(self) -> None:
        self._slot["heartbeat_ns"] = time.monotonic_ns()

    def _take(self, answer: FromDaemon) -> None:
        if not isinstance(answer, PlayGames):
            self._more_games = False
            return
        self._buffer.give(*self._games_of(answer))

    def _games_of(self, given: PlayGames) -> tuple[npt.NDArray[np.uint64], ...]:
        ids = np.arange(given.first_id, given.first_id + given.count, dtype=np.uint64)
        seeds = self._rng.game_seeds(self._seed, ids)
        if self._starts is None:
            return ids, seeds
        return ids, seeds, self._rng.start_boards(seeds, self._starts)

    def _games_wanted(self) -> int:
        buffer = self._buffer
        block = buffer.rows_max * self._games / self._rows if self._games else _FIRST_GAMES
        wanted = int(block * _BLOCKS_AHEAD) + 1 - buffer.games_waiting
        free_runs = RUNS_MAX - len(buffer.runs) - buffer.games_waiting - buffer.in_play
        return int(max(min(wanted, free_runs), 0))

    @property
    def _rows_left(self) -> int:
        return max(int(self._slot["rows_max"][0]) - self._rows, 0)

    def _play_slice(self) -> None:
        buffer, slot = self._buffer, self._slot
        steps_before, runs_before, rows_before = buffer.steps_played, len(buffer.runs), buffer.rows_finished
        begin = time.monotonic()
        status = self._loop.play_into(
            buffer, self._player, steps_max=self._slice_steps, rows_enough=rows_before + self._rows_left
        )
        now = time.monotonic()
        steps = buffer.steps_played - steps_before
        self._games += len(buffer.runs) - runs_before
        self._rows += buffer.rows_finished - rows_before
        slot["steps"] += np.uint64(steps)
        slot["games"], slot["rows"] = self._games, self._rows
        slot["heartbeat_ns"] = time.monotonic_ns()
        if status == self._loop.STEPS_PLAYED:
            scale = min(max(SLICE_S / max(now - begin, 1e-6), 0.25), 4.0)
            self._slice_steps = min(max(int(steps * scale), 1), _SLICE_STEPS_MAX)
        if len(buffer.runs) and self._finished_since is None:
            self._finished_since = now
        if status == self._loop.BUFFER_FULL and not len(buffer.runs):
            buffer.grow()
        elif status == self._loop.BUFFER_FULL or (
            self._finished_since is not None and now - self._finished_since >= slot["flush_s"][0]
        ):
            self._flush()

    def _flush_if_asked(self) -> None:
        asked = self._slot["flush"][0]
        if asked != self._slot["flushed"][0]:
            self._flush_all()
            self._slot["flushed"] = asked

    def _flush_all(self) -> None:
        self._flush()
        self._settle()

    def _resize_if_asked(self) -> None:
        rows = int(self._slot["block_rows"][0])
        if rows != self._block_rows:
            self._flush_all()
            self._block_rows = rows
            self._resize(rows)

    def _resize(self, rows: int) -> None:
        self._buffer.resize(rows)

    def _flush(self) -> None:
        buffer = self._buffer
        if not buffer.rows_finished:
            return
        self._check_tables()  # never write games that a damaged table played
        while games := len(buffer.runs):  # in several blocks if there is no room for one
            written = self._write_block()
            if written is None:
                self._finished_dropped += games
                buffer.drop_block()
                break
            buffer.drop_block(len(written.runs) // RUN_DTYPE.itemsize)
            # One send for the report and the request for the next games.
            wanted = self._games_wanted() if self._more_games and not len(buffer.runs) else 0
            self._channel.send(written, *([Ask(wanted)] if wanted else []))
            self._written, self._asked = True, bool(wanted)
            self._note_progress()
        self._finished_since = None
        self._note_progress()

    def _write_block(self) -> BlockWritten | None:
        """Write the finished games, or as many as find room; return None if not even the first does."""
        buffer, games = self._buffer, len(self._buffer.runs)
        while True:
            runs = buffer.runs[:games]
            rows = int(runs["rows"].sum())
            place = self._answer_to(Reserve(rows, self.generation, divisible=games > 1))
            if isinstance(place, NoRoom):
                if games == 1:
                    return None
                games //= 2
                continue
            if not isinstance(place, Range):
                raise unexpected("a range to write to", place)
            at, checksum, columns = buffer.file.at(place.first_row), 0, None
            try:
                fd, *column_fds = self._open(place, [file.name for file, _ in buffer.columns])
                for piece in buffer.pieces(rows):
                    checksum = crc32c(piece, checksum)
                    write_all(fd, piece, at)
                    at += len(piece)
                for fd, (file, values) in zip(column_fds, buffer.columns, strict=True):
                    columns = crc32c(values[:rows], columns or 0)
                    write_all(fd, values[:rows], file.at(place.first_row))
            except OSError as error:
                self._channel.send(WriteFailed(place.session, place.first_row, error.errno or 0))
                games = max(games // 2, 1)  # fewer can fit into a quota, or below the largest size of a file
            else:
                return BlockWritten(place.session, place.first_row, rows, checksum, runs.tobytes(), columns)

    def _answer_to(self, message: FromWorker) -> FromDaemon:
        """Wait for outstanding answers, send a message, and return its answer."""
        self._settle()
        self._channel.send(message)
        return self._channel.receive()

    def _settle(self) -> None:
        """Wait for the answers to the messages of :meth:`_flush`, which arrive in either order."""
        while self._written or self._asked:
            answer = self._channel.receive()
            if self._asked and isinstance(answer, PlayGames | NoMoreGames):
                self._asked = False
                self._take(answer)
            elif self._written and isinstance(answer, Confirmed):
                self._written = False
            else:
                raise unexpected("a block to be confirmed, or games", answer)

    def _open(self, place: Range, columns: list[str]) -> list[int]:
        if self._files[0] != place.session or len(self._files[1]) <= len(columns):
            self._close_files()
            self._files = place.session, []
            path = Path(place.path)
            for each in (path, *map(path.with_name, columns)):
                self._files[1].append(os.open(each, os.O_WRONLY | os.O_CLOEXEC))
        return self._files[1]

    def _close_files(self) -> None:
        """Close the last session's files, if any.

        Some network file systems report a failed write only on close, after the block was committed. The
        daemon also gets that error, when it publishes the session, because its descriptors are older.
        """
        while self._files[1]:
            with contextlib.suppress(OSError):
                os.close(self._files[1].pop())  # the kernel closes it even if it reports an error


def unexpected(what: str, answer: FromDaemon) -> TypeError:
    return TypeError(f"found the answer {answer!r}, expected {what}")
