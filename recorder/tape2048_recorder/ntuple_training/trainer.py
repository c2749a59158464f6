"""Training of n-tuple networks by threads that share the tables, and its checkpoints.

Threads share the tables as plain arrays, because the kernels run without the GIL. Unlike shared memory of
processes on most systems, these arrays can be in huge pages, and they do not outlive the trainer. Threads
write without locks (Hogwild; Recht et al., NIPS 2011). Two threads learn as much from a move as one.
The default is one thread, with which a training is reproducible.

With ``device = "cuda"``, a GPU plays and learns with copies of the tables, which are copied back for each
checkpoint (:mod:`tape2048_recorder.ntuple_training.gpu_learner`).

Moves are chosen by the current weights. Choosing by a smaller copy of the weights, renewed now and then, was
1.5 times as fast but ruined large networks. For 45M moves at a time, they played by values that were known to
be too high, and the share of games that reached 8192 fell from 72% to 22%. Without the copy, the same network
recovered.

Training pauses at a game's end to split the stages, and to write a checkpoint with the entries and the state
of each lane. With one thread, resuming from a checkpoint gives bit for bit the same network as a training
without interruption.

A training can start from a network's weights. A network's file has no rates, and entries without a rate would
be updated at the full rate, which ruins a good network within 15M moves. Therefore rates start low, and
change slowly. That is not enough for a late stage alone: if its values are too high, those of visited boards
fall first, and games then prefer boards that they never visited.

The files of a training::

    <dir>/
        checkpoint.safetensors   the state to resume from, replaced atomically
        metrics.jsonl            a line every ten seconds
        network.safetensors      the current network, float32, replaced with each checkpoint
        network.ntuple           the final network, int16 and compressed
        curve.svg                mean score and reach by moves, written at the end (extra ``plot``)

A training that is stopped before its first moves leaves no files.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base import resources
from tape2048.base.text import counted
from tape2048.errors import ConfigError, StateError
from tape2048.files.bulk_read import allocate
from tape2048.files.training_directory import (
    ArrayCheckpoint,
    Training,
    TrainingDirectory,
    TrainingProgress,
    TrainingView,
    check_array,
    check_same,
    decode_state,
    write_checkpoint,
)
from tape2048.ntuple.lookup import SYMMETRIES
from tape2048.ntuple.network import (
    Network,
    file_facts,
    load_network,
    places_of,
    save_network,
    stage_begins,
    tuple_text,
)
from tape2048.session.run_table import REACH_TILES
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.learning import (
    BEGUN,
    ENTERED,
    ENTRY_BYTES,
    GOALS,
    LANE_WORDS,
    LEARNED,
    LENGTH_MAX,
    USES,
    WEIGHT,
    A,
    E,
    Lane,
    Plays,
    TrainingTables,
    new_lane,
    train,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048_recorder.ntuple_training.gpu_learner import GpuLearner
    from tape2048_recorder.ntuple_training.training_config import TrainingConfig

U64 = np.uint64

NETWORK = "network.ntuple"
NETWORK_F32 = "network.safetensors"

METRICS_INTERVAL_S = 10.0

CHECKPOINT_FORMAT = "tape2048 n-tuple checkpoint 4"

#: Moves per call of the compiled loop, a third of a second, between which ``stop`` is checked.
_SLICE_MOVES = 500_000
_SLICE_GAMES = 4096

_TICK_S = 0.5

#: The share of E and A with which a new stage starts: it has the same rates |E| / A, which change faster.
_COHERENCE_KEPT = 0.1

#: For a training that starts from a network: A in points of score, and |E| / A of the network's entries and
#: of new entries. From "strong" with two more tuples, the mean score fell from 257,000 to 255,000 in 20M
#: moves. With an A of 1e6, it fell to 219,000 at rates of 0.02, and to 146,000 if new entries had the full
#: rate.
_START_ERRORS, _KNOWN_RATE, _NEW_RATE = 1e8, 0.002, 0.01

#: Number of last games from new boards over which scores and reach are averaged.
WINDOW_GAMES = 1000


class StageTally(NamedTuple):
    learned: int  # moves learned from in the stage
    begun: int  # games that started in the stage
    entered: int  # games that entered the stage from an earlier stage


class _Counts(msgspec.Struct):
    moves: int = 0
    games: int = 0
    elapsed_s: float = 0.0
    parted: bool = False  # whether the stages have split
    start: str = ""  # the SHA-256 of the network from which the training started


def memory_needed(config: TrainingConfig) -> int:
    """Return the bytes that the entries take, together with the network while it is written."""
    return config.layout.entries * (ENTRY_BYTES + 4 + (2 if config.quantise_step else 0))


class Trainer:
    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.layout = config.layout
        needed, free = memory_needed(config), resources.ram_available()
        if needed > free:
            raise ConfigError(
                f"found {free / 1e9:.1f} GB of free memory, expected {needed / 1e9:.1f} GB for these tuples "
                "and stages",
                hint="Use fewer stages or smaller tuples. One cell less leaves 1/16 of a tuple's entries.",
            )
        self._counts = _Counts()
        self._lanes = [
            new_lane(seed, self.layout, max(config.pool_boards, 1))
            for seed in game_seeds(config.seed, np.arange(config.thread_count, dtype=U64))
        ]
        self._entries = allocate(ENTRY_BYTES * self.layout.entries).view(np.float32).reshape(-1, 4)
        self._entries[:, WEIGHT] = config.initial_value / (SYMMETRIES * len(self.layout.tuples))
        self._scales = np.ones((self.layout.stage_count, len(self.layout.tuples)), np.float32)
        self._begun = time.monotonic()
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW_GAMES)
        # The last calls of the compiled loop: start, end, moves, errors.
        self._recent: deque[tuple[float, float, int, float]] = deque(maxlen=200)
        self._lock = threading.Lock()
        self._gpu: GpuLearner | None = None

    @property
    def moves(self) -> int:
        return self._counts.moves

    @property
    def done(self) -> bool:
        return self.moves >= self.config.moves

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, including the time before it was resumed."""
        return self._counts.elapsed_s + time.monotonic() - self._begun

    def network(self) -> Network:
        """Return the network with its facts. Before the stages split, all have the values of the first."""
        table = self._entries[:, WEIGHT].copy()
        if not self._counts.parted:
            stages = table.reshape(self.layout.stage_count, -1)
            stages[1:] = stages[0]
        facts = {
            "training": msgspec.to_builtins(self.config),
            "moves": self._counts.moves,
            "games": self._counts.games,
            "elapsed_s": round(self.elapsed_s, 1),
            "from": self._counts.start,
        }
        return Network(self.layout, table, self._scales, facts)

    def progress(self) -> TrainingProgress:
        gpu = self._gpu
        with self._lock:
            scores, highest = np.array(self._window or [(np.nan, 0)]).T
            recent = list(self._recent)
        moves_per_s = error = 0.0
        if recent:
            begins, ends, moves, errors = zip(*recent, strict=True)
            moves_per_s = sum(moves) / max(ends[-1] - min(begins), 1e-9)
            error = sum(errors) / max(sum(moves), 1)
        tallies = gpu.tallies if gpu else np.sum([lane.tallies for lane in self._lanes], axis=0)
        goals = gpu.goals if gpu else sum(int(lane.state[GOALS]) for lane in self._lanes)
        elapsed_s = self.elapsed_s
        figures = {
            "moves": self.moves,
            "moves_in_all": self.config.moves,
            "games": self._counts.games,
            "elapsed_s": elapsed_s,
            "moves_per_s": moves_per_s,
            "mean_score": float(scores.mean()),
            "reach": {tile: float((highest >= tile.bit_length() - 1).mean()) for tile in REACH_TILES},
            "mean_error": error,
            "goals": goals,  # games that reached a goal
            "stages": [StageTally(*tally) for tally in tallies[[LEARNED, BEGUN, ENTERED]].T.tolist()],
        }
        return TrainingProgress("moves", self.moves, self.config.moves, moves_per_s, elapsed_s, figures)

    def learn(
        self, moves: int, *, stop: threading.Event | None = None, tick: Callable[[], None] | None = None
    ) -> None:
        """Learn from about ``moves`` more moves. ``stop`` ends it in 2 s; ``tick`` runs twice a second."""
        stop = stop or threading.Event()
        target = min(self._counts.moves + moves, self.config.moves)
        while self._counts.moves < target and not stop.is_set():
            if not self._counts.parted and self._counts.moves >= self.config.split_moves:
                self._split_stages()
            limit = target if self._counts.parted else min(target, self.config.split_moves)
            run = self._run_gpu if self.config.device == "cuda" else self._run_threads
            run(limit, stop, tick)

    def _run_gpu(self, limit: int, stop: threading.Event, tick: Callable[[], None] | None) -> None:
        from tape2048_recorder.ntuple_training.gpu_learner import GpuLearner

        config = self.config
        if self._gpu is None:
            # The seed depends on the moves so far, so that a resumed training does not repeat its games.
            seed = config.seed, self._counts.moves
            self._gpu = GpuLearner(self.layout, config.gpu_games, config.pool_boards, seed)
        gpu, launches = self._gpu, 1
        gpu.upload(self._entries)
        begins = self.layout.stages if self._counts.parted else ()
        while not stop.is_set() and self._counts.moves < limit:
            begin = time.monotonic()
            beta, _ = self._phase(self._counts.moves)  # on a GPU, games are guided to the end
            moves = gpu.learn(
                launches, begins=begins, goals=config.goal_sums, guides=config.guide_sums,
                beta=beta, decay=config.decay,
            )  # fmt: skip
            self._note(*gpu.results(), begin, moves, gpu.take_errors())
            launches = max(1, int(launches * min(_TICK_S / (time.monotonic() - begin), 2)))
            if tick is not None:
                tick()
        gpu.download(self._entries)

    def _run_threads(self, limit: int, stop: threading.Event, tick: Callable[[], None] | None) -> None:
        begins = stage_begins(self.layout, parted=self._counts.parted)
        places = places_of(self.layout, ENTRY_BYTES)._replace(stage_begins=begins)
        goals, guides = (tuple(map(U64, sums)) for sums in (self.config.goal_sums, self.config.guide_sums))
        reward = np.float32(min((goal & -goal for goal in self.config.goal_sums), default=np.inf))
        tables = TrainingTables(self._entries, places)
        plays = Plays(places, self._entries.reshape(-1), self._scales, goals, reward, guides)
        with ThreadPoolExecutor(len(self._lanes), "lane") as pool:
            try:
                running = {
                    pool.submit(self._run_lane, lane, tables, plays, limit, stop) for lane in self._lanes
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
        self, lane: Lane, tables: TrainingTables, plays: Plays, limit: int, stop: threading.Event
    ) -> None:
        scores, highest = np.empty(_SLICE_GAMES), np.empty(_SLICE_GAMES, dtype=np.uint8)
        # No game is longer than LENGTH_MAX, and the setting can exceed i64.
        restart_moves_min = min(self.config.restart_moves_min, LENGTH_MAX + 1)
        pooling = self.config.pool_boards > 0 and self._counts.parted

        def run(moved: int, moves: int) -> tuple[int, int, float]:
            beta, guiding = self._phase(moved)
            learning = beta, self.config.decay, pooling, guiding, restart_moves_min
            found: tuple[int, int, float] = train(tables, plays, lane, *learning, moves, scores, highest)
            return found

        run(0, 0)  # compile before the clock starts
        while not stop.is_set() and (left := limit - (moved := self._counts.moves)) > 0:
            begin = time.monotonic()
            games, moves, errors = run(moved, min(_SLICE_MOVES, left))
            self._note(scores[:games], highest[:games], begin, moves, errors)

    def _phase(self, moves: int) -> tuple[float, bool]:
        """Return the learning rate, and whether games are guided.

        Over the last ``anneal_moves``, the rate falls to 0 and no game is guided.
        """
        config = self.config
        left = config.moves - moves
        return config.beta * min(left / max(config.anneal_moves, 1), 1.0), left > config.anneal_moves

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
                "found values outside the range of float32, expected finite values",
                hint="Lower initial_value or beta. The last checkpoint is intact.",
            )
        with self._lock:
            self._counts.moves += moves
            self._counts.games += len(scores)
            self._window.extend(zip(scores.tolist(), highest.tolist(), strict=True))
            self._recent.append((begin, time.monotonic(), moves, errors))

    def _split_stages(self) -> None:
        self._fill_stages(self._entries[: self.layout.stage_size], ())
        for lane in self._lanes:
            lane.tallies[:] = 0
        self._counts.parted = True

    def _fill_stages(self, entries: npt.NDArray[np.float32], stages: tuple[int, ...]) -> None:
        """Copy the values of ``entries``, a network with ``stages``, to all stages of the layout.

        A stage that is not in ``stages`` gets the values of the stage that contained it, and the same rates,
        which change faster. Its updates are counted from 0.
        """
        sources = entries.reshape(len(stages) + 1, -1, entries.shape[1])
        targets = self._entries.reshape(self.layout.stage_count, -1, entries.shape[1])
        for stage, begin in enumerate((0, *self.layout.stages)):
            source = sources[sum(begin >= other for other in stages)]
            if targets[stage].ctypes.data != source.ctypes.data:
                targets[stage] = source
            if begin and begin not in stages:
                targets[stage, :, [E, A]] *= np.float32(_COHERENCE_KEPT)
                targets[stage, :, USES] = 0

    def start_from(self, name: str) -> None:
        """Start from a network's weights; ``name`` as for :func:`tape2048.ntuple.network.load_network`.

        Tuples that are not in the network keep the initial value. A stage that is not in the network starts
        with the values of the stage that contained it.
        """
        start, network, ours = file_facts(name)["sha256"], load_network(name), self.layout
        layout = network.layout
        if not set(layout.tuples) <= set(ours.tuples) or not set(layout.stages) <= set(ours.stages):
            tuples, stages = " ".join(map(tuple_text, layout.tuples)), " ".join(map(str, layout.stages))
            raise ConfigError(
                f"found the tuples {tuples!r} and the stages {stages!r}, expected only tuples of "
                f"{self.config.tuples!r} and stages of {self.config.stages!r}",
                path=name,
                hint="Add the network's tuples and stages to the configuration.",
            )
        self._entries[:, A] = _START_ERRORS
        self._entries[:, E] = _START_ERRORS * _NEW_RATE
        known, targets = layout.tables(network.table), ours.tables(self._entries)
        for stage, begin in enumerate((0, *ours.stages)):
            source = sum(begin >= other for other in layout.stages)
            for t, cells in enumerate(layout.tuples):
                entries = targets[stage, ours.tuples.index(cells)]
                entries[:, WEIGHT] = known[source, t] * network.scales[source, t]
                entries[known[source, t] != 0, E] = _START_ERRORS * _KNOWN_RATE
        self._counts.parted, self._counts.start = True, start

    def train(self, training: Training) -> Iterator[None]:
        pause = threading.Event()
        noted, due = self.moves, time.monotonic() + METRICS_INTERVAL_S

        def note() -> None:  # unless nothing has changed since the last line
            nonlocal noted, due
            progress, due = self.progress(), time.monotonic() + METRICS_INTERVAL_S
            if progress.done != noted and training.note(progress.figures):
                noted = progress.done

        def tick() -> None:
            if time.monotonic() >= due:
                note()
            if training.pause(self.progress()):
                pause.set()

        while not self.done and not training.stopped():
            pause.clear()
            self.learn(self.config.moves, stop=pause, tick=tick)
            if self.moves:  # otherwise it was stopped, or a checkpoint was due, while it compiled
                note()
                yield

    def save(self, path: Path) -> None:
        """Write a checkpoint, and the network next to it; they replace earlier ones."""
        counts = msgspec.structs.replace(self._counts, elapsed_s=self.elapsed_s)
        arrays: dict[str, npt.NDArray[Any]] = {
            "entries": self._entries,
            "lanes": np.stack([lane.state for lane in self._lanes]),
            "pools": np.stack([lane.pools.ravel() for lane in self._lanes]),
            "tallies": np.stack([lane.tallies.ravel() for lane in self._lanes]).view(U64),
        }
        # The network first: if the process is killed between the two, the training repeats the moves.
        save_network(self.network(), path.with_name(NETWORK_F32), compress=False)
        text = msgspec.json.encode(counts).decode()
        write_checkpoint(path, CHECKPOINT_FORMAT, self.config, arrays, counts=text)

    @classmethod
    def resume(
        cls, content: memoryview, path: Path, config: TrainingConfig, start: str | None = None
    ) -> Trainer:
        """Return a trainer that resumes; with ``start``, it must have started from that network."""
        arrays, saved, texts = ArrayCheckpoint.of(content, path, CHECKPOINT_FORMAT)
        counts = decode_state(texts.get("counts", ""), path, _Counts)
        expected = {name: getattr(config, name) for name in ("tuples", "initial_value", "seed")}
        found = {name: saved.get(name) for name in expected}
        try:
            stages = tuple(map(int, str(saved.get("stages")).split()))
        except ValueError:
            stages = ()  # the check of the arrays' shapes will fail
        if not set(stages) <= set(config.layout.stages):
            expected["stages"], found["stages"] = config.stages, saved.get("stages")
        if start is not None:
            expected["from"], found["from"] = file_facts(start)["sha256"], counts.start
        check_same(found, expected, path)
        trainer = cls(config)
        trainer._restore(arrays, counts, stages, path)
        return trainer

    def _restore(self, arrays: dict[str, Any], counts: _Counts, stages: tuple[int, ...], path: Path) -> None:
        lanes, saved = len(self._lanes), arrays.get("lanes")
        if saved is not None and saved.ndim == 2 and len(saved) != lanes:
            raise StateError(
                f"found a checkpoint of {counted(len(saved), 'thread')}, expected {lanes}",
                path=path,
                hint=f"Resume with --threads {len(saved)}.",
            )
        boards = arrays["pools"].size // lanes if "pools" in arrays else 0  # pool_boards may have changed
        shapes = {
            "entries": ((len(stages) + 1) * self.layout.stage_size, self._entries.shape[1]),
            "lanes": (lanes, LANE_WORDS),
            "pools": (lanes, boards),
            "tallies": (lanes, 3 * (len(stages) + 1)),
        }
        for name, shape in shapes.items():
            check_array(arrays, name, shape, np.float32 if name == "entries" else U64, path)
        self._fill_stages(arrays["entries"], stages)
        for lane, state in zip(self._lanes, arrays["lanes"], strict=True):
            lane.state[:] = state
        if stages == self.layout.stages and boards == self._lanes[0].pools.size:
            for lane, kept, tallies in zip(self._lanes, arrays["pools"], arrays["tallies"], strict=True):
                lane.pools[:] = kept.reshape(lane.pools.shape)
                lane.tallies[:] = tallies.view(np.int64).reshape(lane.tallies.shape)
        self._counts = counts


def training_counts(network: Network, path: Path) -> npt.NDArray[np.uint32] | None:
    """Return how often a network's training updated each entry, ``u32[entries]``.

    The numbers are in the training's checkpoint, in the directory of the network's file ``path``. Returns
    None without a checkpoint of exactly this network, or if its numbers are 0, as from earlier versions.

    Raises:
        StateError: the checkpoint is damaged, or has another format.

    Example:
        >>> from pathlib import Path
        >>> from tape2048.ntuple import load_network
        >>> training_counts(load_network("fast"), Path("fast.ntuple")) is None
        True
    """
    files = TrainingDirectory(path.parent, "moves")
    if (content := files.read_checkpoint()) is None:
        return None
    arrays, config, texts = ArrayCheckpoint.of(content, files.checkpoint, CHECKPOINT_FORMAT)
    made = decode_state(texts.get("counts", ""), files.checkpoint, _Counts)
    known = config, made.moves, made.games, made.start
    if known != tuple(network.facts.get(name) for name in ("training", "moves", "games", "from")):
        return None
    shape = network.layout.entries, ENTRY_BYTES // 4
    entries = check_array(arrays, "entries", shape, np.float32, files.checkpoint)
    counts: npt.NDArray[np.uint32] = entries[:, USES].astype(np.uint32)
    if not made.parted:
        stages = counts.reshape(network.layout.stage_count, -1)
        stages[1:] = stages[0]
    return counts if counts.any() else None


def train_player(
    config: TrainingConfig,
    directory: Path,
    view: TrainingView,
    stop: threading.Event,
    *,
    start: str | None = None,
) -> Trainer:
    """Train in ``directory``, from its checkpoint if it has one, until done or ``stop`` is set.

    At the end it writes a checkpoint and a network, unless it learned from no move (``moves`` of the trainer
    is 0). On a full disk, see :class:`tape2048.files.training_directory.Training`.
    """

    def make(content: memoryview | None) -> Trainer:
        if content is not None:
            return Trainer.resume(content, files.checkpoint, config, start)
        trainer = Trainer(config)
        if start is not None:
            trainer.start_from(start)
            view.event(f"starting from the network {start}")
        return trainer

    files = TrainingDirectory(directory, "moves")
    with files.locked():
        trainer = Training(files, view, stop.is_set, config.checkpoint_s).run(make)
        if not trainer.moves:
            view.event("stopped before the first moves: no network is written")
            return trainer
        view.event(f"writing the final network to {directory / NETWORK}")
        network, step = trainer.network(), config.quantise_step
        save_network(network.quantised(step) if step else network, directory / NETWORK)
    return trainer
