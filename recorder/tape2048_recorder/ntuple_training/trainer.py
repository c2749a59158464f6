"""The trainer: threads that play and learn into one set of tables, and what is kept of them.

Threads, not processes: the kernels run without the GIL, so threads share the tables as plain arrays, in
huge pages where the system gives them (shared memory between processes gets none on most systems), and
nothing outlives the trainer. They write without locks (Hogwild; Recht et al., NIPS 2011), and choose
their moves by a copy, which one of them renews while it is young: the lines that hold common patterns
are written all the time, and a line that another core has written has to come from there. Two learn 1.7
to 1.9 times as fast as one. After as many moves of theirs, mean scores were 0.87 to 1.25 of those after one
thread's (median 1.0, 22 trainings), and seeds differ by as much (``python -m tests.bench.training``): one,
whose games the seed decides, is the default.

Training pauses at a game's end to part the stages and to write a checkpoint, which holds all that is
needed to go on: tables, coherence, and each thread's place. With one thread, going on from a checkpoint
gives what going through would have given, to the bit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
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
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.learning import LANE_WORDS, LENGTH_MAX, Lane, Tables, new_lane, train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048_recorder.ntuple_training.config import TrainingConfig

U64 = np.uint64

CHECKPOINT_FORMAT = "tape2048 n-tuple checkpoint 1"

#: Moves of one call of the compiled loop: a third of a second, after which a pause is seen.
_SLICE_MOVES = 500_000
_SLICE_GAMES = 4096

#: Where threads play by a copy, it is renewed after as many moves as these parts of the tables' entries and
#: of all moves before (copying takes a hundredth or two of one thread's time), but not more often than this.
_COPY_ENTRIES = 1 / 4
_COPY_MOVES = 1 / 16
_COPY_MOVES_MIN = 20_000

_TICK_S = 0.5

#: The part of E and A that a new stage begins with: the rates |E| / A of what it copies, on a short memory.
_COHERENCE_KEPT = 0.1

#: Games of the means that are shown.
WINDOW_GAMES = 1000

REACH_TILES = (2048, 4096, 8192, 16384, 32768)


class Progress(NamedTuple):
    """How training stands; means are over the last :data:`WINDOW_GAMES` new games."""

    moves: int
    games: int
    elapsed_s: float
    moves_per_s: float
    mean_score: float
    reach: dict[int, float]
    mean_error: float


class _Slice(NamedTuple):
    """A call of the compiled loop: when, and what it came to."""

    begin: float
    end: float
    moves: int
    errors: float


class _Copy:
    """The tables that several threads choose their moves by: those that learn, as they were lately.

    One for all: whichever thread finds it old renews it, and the others play on by what is half new.

    Args:
        tables: those that learn.
        entries: how many of them, from the first, are in use.
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
        """Make it new where it is old, after so many moves of all threads; how many more it is good for."""
        if moves >= self._good_until and self._renewing.acquire(blocking=False):
            try:
                if moves >= self._good_until:  # or another one was just done
                    self.tables.table[:] = self._source
                    self._good_until = self._end_at(moves)
            finally:
                self._renewing.release()
        left = self._good_until - moves
        return left if left > 0 else _COPY_MOVES_MIN


class _Counts(msgspec.Struct):
    """What a checkpoint says beside the tables."""

    moves: int = 0
    games: int = 0
    elapsed_s: float = 0.0
    parted: bool = False


def memory_needed(config: TrainingConfig) -> int:
    """Bytes of the tables, what they learn with, and a copy (threads play by one, or it ships as int16)."""
    copy = 4 if config.thread_count > 1 else 2 if config.quantise_step else 0
    return config.layout.entries * (12 + copy)


class Trainer:
    """Learns until it is stopped.

    Args:
        config: what to learn, and how.

    Raises:
        ConfigError: it needs more memory than there is.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.layout = config.layout
        _check_memory(config)
        self._counts = _Counts()
        self._lanes = [
            new_lane(seed, len(self.layout.tuples))
            for seed in game_seeds(config.seed, np.arange(config.thread_count, dtype=U64))
        ]
        network = Network.empty(self.layout, initial_value=config.initial_value)
        self._network = network
        self._coherence = np.zeros((self.layout.entries, 2), dtype=np.float32)
        self._begun = time.monotonic()
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW_GAMES)
        self._recent: deque[_Slice] = deque(maxlen=200)
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    # What it knows.

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
        """Seconds of training, those before the last resumption included."""
        return self._counts.elapsed_s + time.monotonic() - self._begun

    def network(self) -> Network:
        """The network as it stands (its tables go on learning), with the facts of its training.

        Before the stages part, each stage has what the first one knows by now.
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
        """How training stands."""
        with self._lock:
            scores = np.array([score for score, _ in self._window] or [np.nan])
            highest = np.array([exponent for _, exponent in self._window] or [0])
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

    # Learning.

    def learn(
        self, moves: int, *, stop: threading.Event | None = None, tick: Callable[[], None] | None = None
    ) -> None:
        """Learn from about this many moves more, and not beyond the configured number; ends at ends of games.

        Args:
            moves: how many.
            stop: ends it sooner, within a second or two, when it is set.
            tick: called twice a second or so while the threads learn.
        """
        stop = stop or threading.Event()
        target = min(self._counts.moves + moves, self.config.moves)
        while self._counts.moves < target and not stop.is_set():
            if not self._counts.parted and self._counts.moves >= self.config.split_moves:
                self._part_stages()
            limit = target if self._counts.parted else min(target, self.config.split_moves)
            self._run_threads(limit, stop, tick)
            if self._error is not None:
                raise self._error

    def _run_threads(self, limit: int, stop: threading.Event, tick: Callable[[], None] | None) -> None:
        tables, copy = self._tables(), None
        if len(self._lanes) > 1:
            layout = self.layout
            entries = layout.entries if self._counts.parted else layout.stage_size
            copy = _Copy(tables, entries, self._counts.moves)
        threads = [
            threading.Thread(
                target=self._run_lane, args=(lane, tables, copy, limit, stop), name=f"lane {index}"
            )
            for index, lane in enumerate(self._lanes)
        ]
        try:
            for thread in threads:
                thread.start()
            while alive := [thread for thread in threads if thread.is_alive()]:
                alive[0].join(_TICK_S)
                if tick is not None:
                    tick()
        except BaseException:
            stop.set()
            raise
        finally:
            for thread in threads:
                if thread.ident is not None:  # the system may have refused to start it
                    thread.join()

    def _run_lane(
        self, lane: Lane, tables: Tables, copy: _Copy | None, limit: int, stop: threading.Event
    ) -> None:
        try:
            plays = tables if copy is None else copy.tables
            scores = np.empty(_SLICE_GAMES)
            highest = np.empty(_SLICE_GAMES, dtype=np.uint8)
            config = self.config
            # No game is longer; what is larger says no more, and may be no i64.
            settings = (config.decay, min(config.restart_moves_min, LENGTH_MAX + 1))
            # Compiled before the clock starts.
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
        except BaseException as error:  # noqa: BLE001 - the thread's edge: raised again by learn
            self._error = error
            stop.set()  # the others would go on alone

    def _beta(self, moves: int) -> float:
        """The learning rate of a slice that begins after ``moves``: 0 after the last ``anneal_moves``.

        Moves are counted once for a slice: others, counted meanwhile, may be more than all.
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
                hint="a smaller initial_value or beta; an earlier checkpoint is as it was",
            )
        with self._lock:
            self._counts.moves += moves
            self._counts.games += len(scores)
            self._window.extend(zip(scores.tolist(), highest.tolist(), strict=True))
            self._recent.append(_Slice(begin, time.monotonic(), moves, errors))

    def _tables(self) -> Tables:
        layout = self.layout
        reaches = stage_reaches(layout, parted=self._counts.parted)
        return Tables(
            cast("npt.NDArray[np.float32]", self._network.table),
            self._coherence,
            self._network.scales,
            layout.masks,
            layout.offsets,
            U64(layout.stage_size),
            places_of(layout, 4)._replace(stage_reaches=reaches),
        )

    def _part_stages(self) -> None:
        """Let each stage begin with what the first one knows, and with its rates, free to change soon."""
        stages = self._network.table.reshape(self.layout.stage_count, -1)
        stages[1:] = stages[0]
        coherence = self._coherence.reshape(self.layout.stage_count, -1)
        coherence[1:] = coherence[0] * np.float32(_COHERENCE_KEPT)
        self._counts.parted = True

    # Going on later.

    def save_checkpoint(self, path: Path) -> None:
        """Write all that going on needs, in the place of an earlier checkpoint.

        Raises:
            StorageError: it could not be written; the earlier one is still there.
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
        """A trainer that goes on from a checkpoint.

        Args:
            path: the checkpoint.
            config: may differ from the checkpoint's, but not in what its arrays come from.

        Raises:
            FormatError: the file is not a whole checkpoint, or one of another number of threads.
            ConfigError: it is one of another network, or of a training that began otherwise.
            StorageError: it cannot be read.
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
        hint = "go on with the configuration it was made with, or train into another directory"
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
                hint = "it is no whole checkpoint: go on from a copy of it, or train into another directory"
                if name == "lanes" and array is not None and array.shape[1:] == shape[1:]:
                    hint = (
                        f"the checkpoint was made with {counted(len(array), 'thread')}; "
                        "go on with as many (--threads)"
                    )
                raise NetworkError(
                    f"{name}: found {found}, expected {np.dtype(dtype)} {shape}", path=path, hint=hint
                )
        self._network.table[:] = arrays["table"]
        self._coherence[:] = arrays["coherence"]
        for lane, state in zip(self._lanes, arrays["lanes"], strict=True):
            lane.state[:] = state
        self._counts = counts


def _check_memory(config: TrainingConfig) -> None:
    needed, free = memory_needed(config), resources.ram_available()
    if needed > free:
        raise ConfigError(
            f"found tuples and stages that need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
            hint="fewer stages, or tuples of fewer cells (a cell less is a sixteenth)",
        )
