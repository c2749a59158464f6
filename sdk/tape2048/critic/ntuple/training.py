"""Training of an n-tuple critic by temporal differences, in a directory.

::

    <dir>/
        checkpoint.safetensors   state for resumption; replaced atomically
        metrics.jsonl            a line for each pass over the games
        best.critic              the critic after the last pass, or with ``patience`` that of the lowest loss

Outcomes of some hundred games are too few to choose by: luck moves their loss more than twelve passes do,
while the critic explains more and more of what rollouts say. So, unless ``patience`` is set, the critic is
that of the last pass, when the rate has fallen to 0.

With one thread, a training that was stopped and resumed gives the same critic to the last bit.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.resources import ram_available
from tape2048.critic.config import FREE
from tape2048.critic.facts import CriticFacts, PlayedBy, doubts, open_parts, training_facts
from tape2048.critic.ntuple.critic import NTupleCritic, learn, new_scratch, predict_all, tables_of, width_of
from tape2048.errors import ConfigError, EmptyCorpusError, FormatError, StateError, TrainingError
from tape2048.game.rules import exps_to_boards
from tape2048.io.durable import publishing_file
from tape2048.io.reading import map_path
from tape2048.io.safetensors import decode, encode
from tape2048.selection import parts_of_seeds
from tape2048.session.run_table import exponents_of
from tape2048.training import SilentView, TrainingDirectory, check_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048.corpus import Corpus
    from tape2048.critic.config import NTupleCriticConfig
    from tape2048.training import TrainingView

    Progress = Callable[[int, int], object]


#: Share of the free memory that boards may take; the tables and other programs need the rest.
_RAM_SHARE = 1 / 4

#: Boards fetched at a time.
_FETCHED = 1 << 20

#: Boards of the pieces in which games are learned from. The order within a piece is random, so free memory
#: must not decide where one ends: a resumed training would learn other things.
_PIECE_BOARDS = 1 << 26


class Games(NamedTuple):
    """Every few boards of some games."""

    boards: npt.NDArray[np.uint64]  # `u64[N]`, game by game, in step order
    starts: npt.NDArray[np.int64]  # `i64[R + 1]`, the first board of each game, and N
    highest: npt.NDArray[np.uint8]  # `u8[R]`, the exponent of each game's highest tile

    def __len__(self) -> int:
        """Number of games, R."""
        return len(self.highest)

    def between(self, begin: int, end: int) -> Games:
        """Return the games from number ``begin`` to ``end``, as views."""
        first, last = self.starts[begin], self.starts[end]
        return Games(self.boards[first:last], self.starts[begin : end + 1] - first, self.highest[begin:end])

    def take(self, chosen: npt.NDArray[np.bool_]) -> Games:
        """Return the games under a mask ``bool[R]``."""
        counts = np.diff(self.starts)
        return Games(
            self.boards[np.repeat(chosen, counts)],
            np.append(0, np.cumsum(counts[chosen])),
            self.highest[chosen],
        )


class GameSource(NamedTuple):
    """The games of a training, and their facts."""

    # Yields the games of the training part from a piece on, in pieces that fit into memory; for each pass.
    chunks: Callable[[int], Iterator[Games]]
    val: Games  # those of the validation part
    train_games: int  # number of games of the training part
    highest: npt.NDArray[np.uint8]  # exponents of their highest tiles, `u8[R]`
    players: list[PlayedBy]  # whose games they are
    identity: str  # of all games, before the split


def read_games(corpus: Corpus, stride: int, progress: Progress | None = None) -> Games:
    """Read every ``stride``-th row of each run of a corpus, from its first on."""
    counts = -(-corpus.row_counts // stride)
    starts = np.append(0, np.cumsum(counts))
    boards = np.empty(starts[-1], np.uint64)
    shift = corpus.row_starts[:-1] - stride * starts[:-1]
    for first in range(0, len(boards), _FETCHED):
        numbers = np.arange(first, min(first + _FETCHED, len(boards)))
        runs = np.searchsorted(starts, numbers, "right") - 1
        boards[numbers] = exps_to_boards(corpus.tokens(stride * numbers + shift[runs]))
        if progress is not None:
            progress(first + len(numbers), len(boards))
    return Games(boards, starts, exponents_of(corpus.runs["highest_tile"]))


def corpus_games(config: NTupleCriticConfig, progress: Progress | None = None) -> GameSource:
    """Open the sessions of a training, and split them.

    Games whose boards do not fit into a quarter of the free memory are read piece by piece in each pass.

    Args:
        config: the settings of the training.
        progress: as for :func:`read_games`.

    Raises:
        EmptyCorpusError: no session, no run, or a part without runs.
        ConfigError: an invalid share, or games of several players.
        TapeError: as for :meth:`Corpus.open`.

    Example:
        >>> from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games
        >>> source = corpus_games(NTupleCriticConfig(data="selfplay"))
        >>> source.train_games > len(source.val) > 0
        True
    """
    corpus, players, parts = open_parts(config, "mmap")
    train, val = parts["train"], parts["val"]
    ends = np.cumsum(-(-train.row_counts // config.stride))
    begins = np.flatnonzero(np.diff((np.maximum(ends, 1) - 1) // _PIECE_BOARDS, prepend=-1))
    pieces = list(pairwise([*begins.tolist(), len(ends)]))
    fits = 8 * int(ends[-1]) <= ram_available() * _RAM_SHARE
    held = read_games(train, config.stride, progress) if fits else None

    def chunks(first: int) -> Iterator[Games]:
        numbers = np.arange(len(ends))
        for begin, end in pieces[first:]:
            if held is None:
                yield read_games(train.where((begin <= numbers) & (numbers < end)), config.stride)
            else:
                yield held.between(begin, end)

    return GameSource(
        chunks,
        read_games(val, config.stride),
        len(train.runs),
        exponents_of(train.runs["highest_tile"]),
        players,
        corpus.identity,
    )


def split_games(
    games: Games, seeds: npt.NDArray[np.uint64], player: PlayedBy, config: NTupleCriticConfig, identity: str
) -> GameSource:
    """Split games that were played for a training and not recorded, as their recordings would be."""
    part = parts_of_seeds(seeds, player.sha256, list(config.fractions.values()), config.split_salt)
    train, val = (games.take(part == list(config.fractions).index(name)) for name in ("train", "val"))
    if not (len(train) and len(val)):
        raise EmptyCorpusError(
            f"found {len(train)} games to learn from and {len(val)} for validation", hint="more games"
        )
    return GameSource(lambda first: iter([train][first:]), val, len(train), train.highest, [player], identity)


CHECKPOINT_FORMAT = "tape2048 n-tuple critic checkpoint 1"
BEST = "best.critic"

#: Games that each thread learns from between two looks at the clock and at ``stop``: a fifth of a second.
_ROUND_GAMES = 256


class NTupleProgress(NamedTuple):
    """State of a training."""

    epoch: int  # complete passes
    epochs: int
    games: int  # games learned from, in all passes
    games_in_all: int
    rows: int  # rows learned from
    rows_per_s: float  # of this process, without validations
    elapsed_s: float  # of this process
    loss: float | None  # of the last validation: mean log loss over rows and tiles
    best_loss: float | None


class TrainedNTuple(NamedTuple):
    """The end of a training."""

    progress: NTupleProgress
    best: Path | None  # the best critic's file
    done: bool = False  # False: stopped, to be resumed
    early: bool = False  # whether it ended since validations no longer improved


class _State(msgspec.Struct):
    """Counters in a checkpoint."""

    epoch: int = 0
    chunk: int = 0  # piece of the games within the epoch
    position: int = 0  # games of the piece that are done
    games: int = 0
    rows: int = 0
    loss: float | None = None
    best_loss: float | None = None
    best_epoch: int = 0


class _Trainer:
    def __init__(self, config: NTupleCriticConfig, source: GameSource) -> None:
        self.config = config
        self.source = source
        self.layout = config.layout
        width = width_of(list(config.tiles))
        needed, free = self.layout.entries * 8 * width, ram_available()
        if needed > free:
            raise ConfigError(
                f"found tuples, stages and tiles of {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
                hint="fewer stages, or tuples of fewer cells (a cell less is a sixteenth)",
            )
        self.records = np.zeros((self.layout.entries, 2 * width), np.float32)
        self.tables = tables_of(self.layout, list(config.tiles), self.records)
        self.scratches = [new_scratch(self.tables) for _ in range(config.thread_count)]
        self.state = _State()
        self.begun, self.learned_s, self.rows_before = time.monotonic(), 0.0, 0

    @property
    def width(self) -> int:
        return len(self.tables.exponents)

    def progress(self) -> NTupleProgress:
        state, epochs = self.state, self.config.epochs
        return NTupleProgress(
            state.epoch, epochs, state.games, epochs * self.source.train_games, state.rows,
            (state.rows - self.rows_before) / max(self.learned_s, 1e-9), time.monotonic() - self.begun,
            state.loss, state.best_loss,
        )  # fmt: skip

    def done(self) -> bool:
        """Whether all passes are made, or later ones would not be better."""
        return self.state.epoch >= self.config.epochs or self.stalled

    @property
    def stalled(self) -> bool:
        """Whether as many validations as ``patience`` have not improved."""
        patience = self.config.patience
        return patience is not None and self.state.epoch - self.state.best_epoch >= patience

    def learn_epoch(self, tick: Callable[[], bool]) -> bool:
        """Go on to the end of the pass; return False if ``tick``, called after each round, asked to stop."""
        state, config = self.state, self.config
        in_all = config.epochs * self.source.train_games
        size = _ROUND_GAMES * config.thread_count
        chunks = enumerate(self.source.chunks(state.chunk), state.chunk)
        with ThreadPoolExecutor(config.thread_count, "critic") as pool:
            for number, games in chunks:
                order = np.random.default_rng([config.seed, state.epoch, number]).permutation(len(games))
                while state.position < len(games):
                    chosen = order[state.position : state.position + size]
                    learner = self._learner(games, config.learning_rate * (1 - state.games / in_all))
                    shares = np.array_split(chosen, config.thread_count)
                    begin = time.monotonic()
                    state.rows += sum(pool.map(learner, shares, self.scratches))
                    self.learned_s += time.monotonic() - begin
                    state.position += len(chosen)
                    state.games += len(chosen)
                    if not tick() and state.position < len(games):
                        return False
                state.chunk, state.position = number + 1, 0
        state.epoch, state.chunk = state.epoch + 1, 0
        return True

    def _learner(self, games: Games, rate: float) -> Callable[[Any, Any], int]:
        def piece(order: npt.NDArray[np.int64], scratch: Any) -> int:
            return int(learn(self.tables, *games, order, self.config.decay, rate, scratch))

        return piece

    def validate(self) -> float:
        """Return the mean log loss over the rows of the validation part and the tiles."""
        games, tiles = self.source.val, len(self.config.tiles)
        found = predict_all(self.tables, 1.0, games.boards, tiles, self.config.thread_count).astype(float)
        truth = games.highest[:, None] >= [tile.bit_length() - 1 for tile in self.config.tiles]
        p = np.where(np.repeat(truth, np.diff(games.starts), axis=0), found, 1 - found)
        return float(-np.log(np.maximum(p, 1e-7)).mean())

    def critic(self) -> NTupleCritic:
        """Return the critic so far, in its stored precision."""
        config, width = self.config, self.width
        limit = np.iinfo(np.int16).max
        weights = np.empty((self.layout.entries, width), np.int16)
        tables = self.layout.tables(self.records), self.layout.tables(weights)
        for records, out in zip(*(found.values() for found in tables), strict=True):
            learned, squares = records[:, :width], records[:, width:]
            pruned = squares < config.prune_below
            # The mean of those that moved a little is a better guess than 0, also where nothing was learned.
            moved = pruned & (squares > 0)
            mean = (learned * moved).sum(axis=0, dtype=np.float64) / np.maximum(moved.sum(axis=0), 1)
            units = np.rint(np.where(pruned, mean.astype(np.float32), learned) / config.weight_step)
            out[:] = np.clip(units, -limit, limit)
        source, metrics = self.source, {"loss": self.state.loss}
        facts = training_facts(config, source.identity, source.players, self.state.games, metrics)
        facts["training"] = {"kind": "ntuple", **msgspec.to_builtins(config)}
        return NTupleCritic(CriticFacts(**facts), self.layout, weights, config.weight_step)

    def save(self, path: Path) -> None:
        """Write a checkpoint: the records that have learned, and their places."""
        used = np.flatnonzero(self.records[:, self.width :].any(axis=1))
        texts = {
            "format": CHECKPOINT_FORMAT,
            "config": msgspec.json.encode(self.config).decode(),
            "corpus": self.source.identity,
            "state": msgspec.json.encode(self.state).decode(),
        }
        with publishing_file(path, replace=True) as file:
            file.writelines(encode({"places": used.astype(np.uint64), "records": self.records[used]}, texts))

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint; raise StateError for one of another training."""
        try:
            arrays, texts = decode(map_path(path).data, str(path))
        except FormatError as error:
            hint = "start over with another --out, or restore the file from a copy"
            raise StateError(error.message, path=path, offset=error.offset, hint=hint) from error
        if texts.get("format") != CHECKPOINT_FORMAT:
            raise StateError(
                f"found the format {texts.get('format')!r:.60}, expected {CHECKPOINT_FORMAT!r}", path=path
            )
        try:
            saved = msgspec.json.decode(texts.get("config", ""), type=dict[str, Any])
            self.state = msgspec.json.decode(texts.get("state", ""), type=_State)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise StateError(f"its table does not describe a checkpoint: {error}", path=path) from error
        found = {"corpus": texts.get("corpus"), **{k: v for k, v in saved.items() if k not in FREE}}
        expected = {"corpus": self.source.identity, **self.config.deciding()}
        hint = "resume with its settings and games, or start over with another --out"
        check_same(found, expected, path, StateError, hint)
        places, records = arrays.get("places"), arrays.get("records")
        if (
            places is None
            or records is None
            or records.dtype != np.float32
            or records.shape != (len(places), 2 * self.width)
            or (len(places) and places.max() >= len(self.records))
        ):
            raise StateError("its records are missing, or of another shape", path=path)
        self.records[places] = records
        self.rows_before = self.state.rows


def train_ntuple_critic(
    config: NTupleCriticConfig,
    source: GameSource,
    directory: Path,
    view: TrainingView[NTupleProgress] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainedNTuple:
    """Train an n-tuple critic in a directory, or go on with the training there.

    Args:
        config: the settings.
        source: the games, from :func:`tape2048.critic.ntuple.corpus_games`.
        directory: for the files; see the module.
        view: shows progress and events.
        stop: asked several times a second; True writes a checkpoint and ends.

    Raises:
        BusyError: another training runs there.
        StateError: the directory has the checkpoint of another training, or a damaged one.
        TrainingError: all games of the training part are of one kind for every tile.
        ConfigError: too little memory.
        StorageError: a write failed; earlier files are intact.

    Example:
        >>> from pathlib import Path
        >>> from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games, train_ntuple_critic
        >>> small = {"tuples": "0123 0145", "stages": "", "thresholds": "256 512", "epochs": 1}
        >>> config = NTupleCriticConfig(data="selfplay", **small)
        >>> train_ntuple_critic(config, corpus_games(config), Path("small")).best.name
        'best.critic'
    """
    view = view or SilentView()
    for doubt in doubts(source.players):
        view.event(doubt)
    _tell_kinds(config, source, view)
    files = TrainingDirectory(directory, "epoch")
    with files.locked():
        trainer = _Trainer(config, source)
        if files.has_checkpoint():
            trainer.restore(files.checkpoint)
            view.event(f"going on from {trainer.state.games:,} games ({files.checkpoint})")
        files.cut_metrics(trainer.state.epoch)
        due = time.monotonic() + config.checkpoint_s
        state, best = trainer.state, directory / BEST

        def tick() -> bool:
            nonlocal due
            view.progress(trainer.progress())
            if time.monotonic() >= due:
                trainer.save(files.checkpoint)
                due = time.monotonic() + config.checkpoint_s
            return not stop()

        while not trainer.done():
            if not trainer.learn_epoch(tick):
                trainer.save(files.checkpoint)
                return TrainedNTuple(trainer.progress(), best if best.exists() else None)
            state.loss = trainer.validate()
            improved = state.best_loss is None or state.loss < state.best_loss
            if improved:
                state.best_loss, state.best_epoch = state.loss, state.epoch
            if improved or config.patience is None:
                trainer.critic().save(best, preset=0)
            if trainer.done():
                view.event("compressing the critic")
                NTupleCritic.load(best).save(best)
            files.append_metrics(trainer.progress()._asdict(), view.event)
            view.progress(trainer.progress())
            trainer.save(files.checkpoint)
    return TrainedNTuple(trainer.progress(), best, early=trainer.stalled, done=True)


def _tell_kinds(config: NTupleCriticConfig, source: GameSource, view: TrainingView[NTupleProgress]) -> None:
    """Report tiles that all games or none reached; raise TrainingError if there is no other."""
    games = len(source.highest)
    reached = [int((source.highest >= tile.bit_length() - 1).sum()) for tile in config.tiles]
    told = [
        f"{tile:,} was reached by {'none' if count == 0 else 'all'} of {games:,} games"
        for tile, count in zip(config.tiles, reached, strict=True)
        if count in {0, games}
    ]
    if len(told) == len(reached):
        hint = "other tiles (--thresholds), or more games"
        raise TrainingError(f"nothing can be learned: {'; '.join(told)}", hint=hint)
    for one in told:
        view.event(f"{one}: its probability says no more than that")
