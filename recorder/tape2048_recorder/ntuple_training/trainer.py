"""Training with threads that play and learn into one set of tables, and its checkpoints.

Threads, not processes: the kernels run without the GIL, so threads share the tables as plain arrays, in
huge pages where the system has them (shared memory between processes has none on most systems), and
nothing outlives the trainer. They write without locks (Hogwild; Recht et al., NIPS 2011), and choose
their moves from a copy, which one of them renews: the cache lines of common patterns are written all the
time, and each read of such a line would wait for another core. Two learn 1.7 to 1.9 times as fast as one.
After as many moves, mean scores were 0.87 to 1.25 of those of one thread (median 1.0, 22 trainings), and
seeds differ by as much (``python -m tests.bench.training``). The default is one, whose games are
reproducible.

Training pauses at a game's end to split the stages and to write a checkpoint: tables, coherence, and the
state of each lane. With one thread, resuming from a checkpoint gives the same network as no interruption, to
the bit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base import resources
from tape2048.base.text import counted
from tape2048.errors import ConfigError, NetworkError
from tape2048.io.durable import publishing_file, storage_error
from tape2048.io.safetensors import decode, encode, map_file
from tape2048.io.training_directory import check_same
from tape2048.ntuple.network import Network
from tape2048.ntuple.placing import places_of, stage_reaches
from tape2048.session.labels import REACH_TILES
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.learning import LANE_WORDS, LENGTH_MAX, Lane, Tables, new_lane, train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048_recorder.ntuple_training.config import TrainingConfig

U64 = np.uint64

CHECKPOINT_FORMAT = "tape2048 n-tuple checkpoint 1"

#: Moves of one call of the compiled loop: a third of a second between looks at ``stop``.
_SLICE_MOVES = 500_000
_SLICE_GAMES = 4096

#: Threads renew their copy after as many moves as the lesser of these shares, of the tables' entries and of
#: all moves so far, but at least this many. Copying takes a hundredth or two of one thread's time.
_COPY_ENTRIES = 1 / 4
_COPY_MOVES = 1 / 16
_COPY_MOVES_MIN = 20_000

_TICK_S = 0.5

#: The share of E and A that a new stage starts with: it keeps the rates |E| / A, with a short memory.
_COHERENCE_KEPT = 0.1

#: Games of the means in :class:`Progress`.
WINDOW_GAMES = 1000


class Progress(NamedTuple):
    """State of a training; means are over the last :data:`WINDOW_GAMES` new games."""

    moves: int
    games: int
    elapsed_s: float
    moves_per_s: float
    mean_score: float
    reach: dict[int, float]
    mean_error: float


class _Slice(NamedTuple):
    """One call of the compiled loop."""

    begin: float
    end: float
    moves: int
    errors: float


class _Copy:
    """A recent copy of the learning tables, from which several threads choose their moves.

    They share it: the first thread that finds it old renews it, and the others go on meanwhile.

    Args:
        tables: the learning tables.
        entries: number of entries in use, from the first.
        moves: of all threads so far.
    """

    def __init__(self, tables: Tables, entries: int, moves: int) -> None:
        self._source = tables.table[:entries]
        self.tables = tables._replace(table=self._source.copy())
        self._renewing = threading.Lock()
        self._good_until = self._end_at(moves)

    def _end_at(self, moves: int) -> int:
        lasts = min(self._source.size * _COPY_ENTRIES, moves * _COPY_MOVES)
        return moves + max(int(lasts), _COPY_MOVES_MIN)

    def renew(self, moves: int) -> int:
        """Renew the copy if it is old after ``moves`` of all threads; return how many moves it then lasts."""
        if moves >= self._good_until and self._renewing.acquire(blocking=False):
            try:
                if moves >= self._good_until:  # else another thread has just renewed it
                    self.tables.table[:] = self._source
                    self._good_until = self._end_at(moves)
            finally:
                self._renewing.release()
        left = self._good_until - moves
        return left if left > 0 else _COPY_MOVES_MIN


class _Counts(msgspec.Struct):
    """Counters in a checkpoint."""

    moves: int = 0
    games: int = 0
    elapsed_s: float = 0.0
    parted: bool = False  # whether the stages have split


def memory_needed(config: TrainingConfig) -> int:
    """Return the bytes of tables, coherence and a copy (for threads, or for int16 at the end)."""
    copy = 4 if config.thread_count > 1 else 2 if config.quantise_step else 0
    return config.layout.entries * (12 + copy)


class Trainer:
    """Trains a network.

    Raises:
        ConfigError: too little memory.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.layout = config.layout
        needed, free = memory_needed(config), resources.ram_available()
        if needed > free:
            raise ConfigError(
                f"found tuples and stages that need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
                hint="fewer stages, or tuples of fewer cells (a cell less is a sixteenth)",
            )
        self._counts = _Counts()
        self._lanes = [
            new_lane(seed, len(self.layout.tuples))
            for seed in game_seeds(config.seed, np.arange(config.thread_count, dtype=U64))
        ]
        self._network = Network.empty(self.layout, initial_value=config.initial_value)
        self._coherence = np.zeros((self.layout.entries, 2), dtype=np.float32)
        self._begun = time.monotonic()
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW_GAMES)
        self._recent: deque[_Slice] = deque(maxlen=200)
        self._lock = threading.Lock()

    @property
    def moves(self) -> int:
        """Moves learned from."""
        return self._counts.moves

    @property
    def done(self) -> bool:
        """Whether the configured number of moves is reached."""
        return self._counts.moves >= self.config.moves

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, including those before a resumption."""
        return self._counts.elapsed_s + time.monotonic() - self._begun

    def network(self) -> Network:
        """Return the network (a view of the tables, which go on learning), with the facts of its training.

        Before the stages split, each has the values of the first.
        """
        if not self._counts.parted:
            stages = self._network.table.reshape(self.layout.stage_count, -1)
            stages[1:] = stages[0]
        facts = {
            "training": msgspec.to_builtins(self.config),
            "moves": self._counts.moves,
            "games": self._counts.games,
            "elapsed_s": round(self.elapsed_s, 1),
        }
        return Network(self.layout, self._network.table, self._network.scales, facts)

    def progress(self) -> Progress:
        """Return the state of the training."""
        with self._lock:
            scores, highest = np.array(self._window or [(np.nan, 0)]).T
            recent = list(self._recent)
        moves_per_s = error = 0.0
        if recent:
            moves = sum(part.moves for part in recent)
            begin, end = min(part.begin for part in recent), recent[-1].end
            moves_per_s = moves / max(end - begin, 1e-9)
            error = sum(part.errors for part in recent) / max(moves, 1)
        reach = {tile: float((highest >= tile.bit_length() - 1).mean()) for tile in REACH_TILES}
        counts = self._counts
        return Progress(
            counts.moves, counts.games, self.elapsed_s, moves_per_s, float(scores.mean()), reach, error
        )

    def learn(
        self, moves: int, *, stop: threading.Event | None = None, tick: Callable[[], None] | None = None
    ) -> None:
        """Learn from about ``moves`` more moves of whole games, up to the configured number.

        Args:
            moves: number of moves.
            stop: ends it earlier, within a second or two, when it is set.
            tick: called about twice a second while the threads learn.
        """
        stop = stop or threading.Event()
        target = min(self._counts.moves + moves, self.config.moves)
        while self._counts.moves < target and not stop.is_set():
            if not self._counts.parted and self._counts.moves >= self.config.split_moves:
                self._split_stages()
            limit = target if self._counts.parted else min(target, self.config.split_moves)
            self._run_threads(limit, stop, tick)

    def _run_threads(self, limit: int, stop: threading.Event, tick: Callable[[], None] | None) -> None:
        tables, copy = self._tables(), None
        if len(self._lanes) > 1:
            entries = self.layout.entries if self._counts.parted else self.layout.stage_size
            copy = _Copy(tables, entries, self._counts.moves)
        with ThreadPoolExecutor(len(self._lanes), "lane") as pool:
            try:
                running = {
                    pool.submit(self._run_lane, lane, tables, copy, limit, stop) for lane in self._lanes
                }
                while running:
                    ended, running = wait(running, _TICK_S, FIRST_EXCEPTION)
                    for lane in ended:
                        lane.result()
                    if tick is not None:
                        tick()
            except BaseException:
                stop.set()
                raise

    def _run_lane(
        self, lane: Lane, tables: Tables, copy: _Copy | None, limit: int, stop: threading.Event
    ) -> None:
        plays = tables if copy is None else copy.tables
        scores = np.empty(_SLICE_GAMES)
        highest = np.empty(_SLICE_GAMES, dtype=np.uint8)
        config = self.config
        # No game is longer, and a larger number may exceed i64.
        settings = (config.decay, min(config.restart_moves_min, LENGTH_MAX + 1))
        # Compile before the clock starts.
        train(tables, plays, lane, config.beta, *settings, 0, scores, highest)
        while not stop.is_set() and (left := limit - (moved := self._counts.moves)) > 0:
            begin = time.monotonic()
            slice_moves = min(_SLICE_MOVES, left)
            if copy is not None:
                slice_moves = min(copy.renew(moved), slice_moves)
            games, moves, errors = train(
                tables, plays, lane, self._beta(moved), *settings, slice_moves, scores, highest
            )
            self._note(scores[:games], highest[:games], begin, moves, errors)

    def _beta(self, moves: int) -> float:
        """Return the learning rate after ``moves`` moves: it falls to 0 over the last ``anneal_moves``.

        The caller reads ``moves`` once per slice, since other threads go on counting.
        """
        left = self.config.moves - moves
        return self.config.beta * min(left / max(self.config.anneal_moves, 1), 1.0)

    def _note(
        self,
        scores: npt.NDArray[np.float64],
        highest: npt.NDArray[np.uint8],
        begin: float,
        moves: int,
        errors: float,
    ) -> None:
        if not math.isfinite(errors):
            raise ConfigError(
                "the values have left the range of float32",
                hint="a smaller initial_value or beta; an earlier checkpoint is intact",
            )
        with self._lock:
            self._counts.moves += moves
            self._counts.games += len(scores)
            self._window.extend(zip(scores.tolist(), highest.tolist(), strict=True))
            self._recent.append(_Slice(begin, time.monotonic(), moves, errors))

    def _tables(self) -> Tables:
        layout = self.layout
        return Tables(
            cast("npt.NDArray[np.float32]", self._network.table),
            self._coherence,
            self._network.scales,
            layout.masks,
            layout.offsets,
            U64(layout.stage_size),
            places_of(layout, 4)._replace(stage_reaches=stage_reaches(layout, parted=self._counts.parted)),
        )

    def _split_stages(self) -> None:
        """Start each stage with the values and rates of the first, with a short memory."""
        stages = self._network.table.reshape(self.layout.stage_count, -1)
        stages[1:] = stages[0]
        coherence = self._coherence.reshape(self.layout.stage_count, -1)
        coherence[1:] = coherence[0] * np.float32(_COHERENCE_KEPT)
        self._counts.parted = True

    def save_checkpoint(self, path: Path) -> None:
        """Write a checkpoint, in place of an earlier one.

        Raises:
            StorageError: the write failed; the earlier checkpoint is intact.
        """
        counts = msgspec.structs.replace(self._counts, elapsed_s=self.elapsed_s)
        texts = {
            "format": CHECKPOINT_FORMAT,
            "config": msgspec.json.encode(self.config).decode(),
            "counts": msgspec.json.encode(counts).decode(),
        }
        arrays = {
            "table": self._network.table,
            "coherence": self._coherence,
            "lanes": np.stack([lane.state for lane in self._lanes]),
        }
        with publishing_file(path, replace=True) as file:
            file.writelines(encode(arrays, texts))

    @classmethod
    def resume(cls, path: Path, config: TrainingConfig) -> Trainer:
        """Return a trainer that resumes from a checkpoint.

        Args:
            path: the checkpoint.
            config: may differ from the checkpoint's, except in tuples, stages, initial value and seed.

        Raises:
            FormatError: not a complete checkpoint, or one of another number of threads.
            ConfigError: a checkpoint of another network, initial value or seed, or too little memory.
            StorageError: a read failed.
        """
        try:
            data = map_file(path, "a checkpoint")
        except OSError as error:
            raise storage_error(error, path, "reading a checkpoint") from error
        arrays, texts = decode(data, str(path))
        if texts.get("format") != CHECKPOINT_FORMAT:
            raise NetworkError(
                f"found the format {texts.get('format')!r}, expected {CHECKPOINT_FORMAT!r}", path=path
            )
        try:
            counts = msgspec.json.decode(texts.get("counts", ""), type=_Counts)
            saved: dict[str, Any] = msgspec.json.decode(texts.get("config", ""), type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise NetworkError(f"its table does not describe a checkpoint: {error}", path=path) from error
        names = ("tuples", "stages", "initial_value", "seed")
        expected = {name: getattr(config, name) for name in names}
        hint = "resume with the configuration it was made with, or train into another directory"
        check_same({name: saved.get(name) for name in names}, expected, path, ConfigError, hint)
        trainer = cls(config)
        trainer._restore(arrays, counts, path)
        return trainer

    def _restore(self, arrays: dict[str, Any], counts: _Counts, path: Path) -> None:
        expected = {
            "table": (self._network.table.shape, np.float32),
            "coherence": (self._coherence.shape, np.float32),
            "lanes": ((len(self._lanes), LANE_WORDS), U64),
        }
        for name, (shape, dtype) in expected.items():
            array = arrays.get(name)
            if array is None or array.shape != shape or array.dtype != dtype:
                found = "nothing" if array is None else f"{array.dtype} {array.shape}"
                hint = (
                    "the checkpoint is incomplete: resume from a copy of it, or train into another directory"
                )
                if name == "lanes" and array is not None and array.shape[1:] == shape[1:]:
                    hint = (
                        f"the checkpoint was made with {counted(len(array), 'thread')}; "
                        "resume with as many (--threads)"
                    )
                raise NetworkError(
                    f"{name}: found {found}, expected {np.dtype(dtype)} {shape}", path=path, hint=hint
                )
        self._network.table[:] = arrays["table"]
        self._coherence[:] = arrays["coherence"]
        for lane, state in zip(self._lanes, arrays["lanes"], strict=True):
            lane.state[:] = state
        self._counts = counts
