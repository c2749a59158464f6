r"""N-tuple critics: their files, their probabilities for boards, and their training. No PyTorch.

A critic is one file: safetensors, compressed with xz. Its arrays are ``<stage>/<tuple>`` (``0/01245``), the
weights of each tile as ``i16[T, size]`` in units of ``step`` logits. In the header's metadata, ``format`` is
``tape2048 n-tuple critic 1``, ``stages`` lists the tiles at which stages start, ``step`` is the unit, and
``facts`` is a JSON object, :class:`tape2048.critic.facts.CriticFacts`.

Temporal difference learning of the probabilities that games reach tiles, compiled.

The logit of each tile is the sum of its weights over the tuples and the eight symmetries of a board, as a
player's value is (:mod:`tape2048.ntuple.lookup`). It learns from a finished game backwards: for the rows
:math:`s_0, s_1, ...` that count (every ``stride``-th one), the tile's outcome :math:`y` and the probability
:math:`p_i` of row :math:`i`,

.. math::

    G_i = (1 - \lambda)\, p_{i+1} + \lambda\, G_{i+1}, \qquad \delta_i = G_i - p_i,

with :math:`G = y` for the last row (the lambda-return of Sutton and Barto, 2nd ed., section 12.1, with no
reward before the end). Backwards, :math:`p_{i+1}` has already learned. A game's outcome is one bit for
thousands of rows. The probability of the next row has more information: it averages over all games that
passed through it. On a board that has the tile already, the probability is 1 and nothing is learned. A column
of targets takes the place of :math:`G_i`. A column of weights multiplies :math:`\delta_i`.

Each weight moves by the gradient of the log loss at a separate rate (AdaGrad: Duchi, Hazan and Singer, JMLR
12, 2011):

.. math::

    S \leftarrow S + \delta^2, \qquad w \leftarrow w + \eta\, \delta / \sqrt{S + \epsilon}

A training has a directory::

    <dir>/
        checkpoint.safetensors   state for resumption; replaced atomically
        metrics.jsonl            a line for each pass over the games
        best.critic              the critic after the last pass, or with ``patience`` that of the lowest loss

Outcomes of a few hundred games are too few to select a pass: luck changes their loss more than twelve passes
do, while the critic explains more and more of the rollouts. Unless ``patience`` is set, the critic is that of
the last pass, when the rate has fallen to 0.

With one thread, a training that was stopped and resumed gives the same critic to the last bit.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.drawing import DrawsBoards
from tape2048.base.resources import ram_available
from tape2048.base.threads import map_ordered
from tape2048.critic.facts import (
    CriticFacts,
    check_columns,
    doubts,
    open_parts,
    public_settings,
    training_facts,
)
from tape2048.critic.metrics import cross_entropy
from tape2048.critic.shipped import critic_path
from tape2048.errors import ConfigError, EmptyCorpusError, FormatError, ModelError, StateError, TrainingError
from tape2048.files.durable import publishing_file
from tape2048.files.known_files import remember_file
from tape2048.files.reading import map_path
from tape2048.files.safetensors import encode
from tape2048.files.training_directory import (
    ArrayCheckpoint,
    SilentView,
    Training,
    TrainingDirectory,
    TrainingProgress,
    TrainingView,
    check_array,
    decode_state,
    write_checkpoint,
)
from tape2048.game.rules import exps_to_boards, max_exponent
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.memory import prefetch
from tape2048.loader.splits import parts_of_seeds
from tape2048.ntuple.lookup import SYMMETRIES, indices_of, stage_of
from tape2048.ntuple.network import (
    NetworkLayout,
    compressed,
    decode_tables,
    file_texts,
    readable,
    stage_begins,
)
from tape2048.session.layout import TOP_TILE
from tape2048.session.run_table import check_thresholds, constant_labels, exponents_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from tape2048.corpus import Corpus
    from tape2048.critic.critic_config import NTupleCriticConfig
    from tape2048.players import PlayedBy

    Progress = Callable[[int, int], object]


U64 = np.uint64
F32 = np.float32

_EPSILON = F32(1e-6)


class CriticTables(NamedTuple):
    """A learning critic; threads share it. The columns of a record are the weights of W tiles and their S.

    ``exponents`` has the tiles' exponents in ascending order, then 0 up to W, a power of two: on any board, a
    tile of exponent 0 is reached, and nothing is learned for it.
    """

    records: npt.NDArray[np.float32]  # `f32[entries, 2 W]`
    exponents: tuple[np.uint64, ...]  # W
    masks: tuple[np.uint64, ...]
    offsets: tuple[np.uint64, ...]
    stage_begins: tuple[np.uint64, ...]
    stage_size: np.uint64


class Scratch(NamedTuple):
    """Buffers of a thread: the places of two boards, and for W tiles G, p of the next row, and steps."""

    places: npt.NDArray[np.uint64]  # `u64[2, 8 T]`
    columns: npt.NDArray[np.float32]  # `f32[4, W]`


def new_scratch(tables: CriticTables) -> Scratch:
    places = np.empty((2, SYMMETRIES * len(tables.masks)), dtype=U64)
    return Scratch(places, np.empty((4, len(tables.exponents)), dtype=F32))


@helper
def _sigmoid(logit: Any) -> Any:
    return F32(1) / (F32(1) + math.exp(-logit))


@helper
def _look_up(tables: Any, board: Any, places: Any) -> Any:
    base = stage_of(tables.stage_begins, board) * tables.stage_size
    indices_of(tables.masks, tables.offsets, base, board, places)
    records = tables.records
    address, size = U64(records.ctypes.data), U64(records.itemsize * records.shape[1])
    for k in range(places.shape[0]):
        prefetch(address + size * places[k])


@kernel
def learn(
    tables: Any, boards: Any, starts: Any, highest: Any, targets: Any, weights: Any, order: Any, decay: Any,
    rate: Any, scratch: Any,
) -> Any:  # fmt: skip
    """Learn from games, each backwards; empty ``targets`` and ``weights`` are not used."""
    records, exponents = tables.records, tables.exponents
    width = len(exponents)
    returns, following, steps, squares = scratch.columns
    decay, rate = F32(decay), F32(rate)
    given = targets.shape[1]
    learned = 0
    for at in range(order.shape[0]):
        game = order[at]
        first, i = starts[game], starts[game + 1] - 1
        for c in range(width):
            returns[c] = following[c] = F32(U64(highest[game]) >= exponents[c])
        if i >= first:
            _look_up(tables, boards[i], scratch.places[i & 1])
        while i >= first:
            board, places = boards[i], scratch.places[i & 1]
            if i > first:
                # The records of the row before arrive while this one learns.
                _look_up(tables, boards[i - 1], scratch.places[~i & 1])
            steps[:] = F32(0)
            for k in range(places.shape[0]):
                for c in range(width):
                    steps[c] += records[places[k], c]
            reached = max_exponent(board)
            weight = weights[i] if len(weights) else F32(1)
            for c in range(width):
                target = (F32(1) - decay) * following[c] + decay * returns[c]
                if c < given:
                    target = targets[i, c]
                p = _sigmoid(steps[c])
                has_tile = reached >= exponents[c]
                delta = F32(0) if has_tile else weight * (target - p)
                returns[c] = F32(1) if has_tile else target
                following[c] = F32(1) if has_tile else p
                steps[c] = rate * delta
                squares[c] = delta * delta
            for k in range(places.shape[0]):
                place = places[k]
                for c in range(width):
                    total = records[place, width + c] + squares[c]
                    records[place, width + c] = total
                    records[place, c] += steps[c] / math.sqrt(total + _EPSILON)
            learned += 1
            i -= 1
    return learned


@kernel
def predict(tables: Any, scale: Any, boards: Any, out: Any, scratch: Any) -> None:
    """Write P(the game reaches each tile) of boards ``u64[n]`` into ``f32[n, T]``, T <= W.

    The first W columns of ``tables.records`` are the weights, in units of ``scale``. No probability is above
    that of a lower tile; on a board that has the tile it is 1.
    """
    records, exponents = tables.records, tables.exponents
    logits, scale = scratch.columns[0], F32(scale)
    if boards.shape[0]:
        _look_up(tables, boards[0], scratch.places[0])
    for i in range(boards.shape[0]):
        board, places = boards[i], scratch.places[i & 1]
        if i + 1 < boards.shape[0]:
            _look_up(tables, boards[i + 1], scratch.places[~i & 1])
        logits[:] = F32(0)
        for k in range(places.shape[0]):
            for c in range(len(exponents)):
                logits[c] += F32(records[places[k], c])
        reached = max_exponent(board)
        least = F32(1)
        for c in range(out.shape[1]):
            p = F32(1) if reached >= exponents[c] else _sigmoid(scale * logits[c])
            least = min(least, p)
            out[i, c] = least


FORMAT = "tape2048 n-tuple critic 1"

_PIECE_ROWS = 65_536  # boards predicted by one thread at a time


def tables_of(layout: NetworkLayout, thresholds: list[int], records: npt.NDArray[Any]) -> CriticTables:
    """Return the tables of the kernels; ``records`` has W or 2 W columns."""
    exponents = [tile.bit_length() - 1 for tile in thresholds]
    return CriticTables(
        records,
        tuple(map(np.uint64, exponents + [0] * (width_of(thresholds) - len(exponents)))),
        layout.masks,
        layout.offsets,
        stage_begins(layout),
        np.uint64(layout.stage_size),
    )


def width_of(thresholds: list[int]) -> int:
    """Return W, the power of two from the number of tiles on."""
    return 1 << (len(thresholds) - 1).bit_length()


def predict_all(
    tables: CriticTables, step: float, boards: npt.NDArray[np.uint64], tiles: int, threads: int | None = None
) -> npt.NDArray[np.float32]:
    """Return the probabilities ``f32[n, tiles]`` of boards ``u64[n]``; None: a thread for each core."""
    found = np.empty((len(boards), tiles), np.float32)

    def piece(first: int) -> None:
        part = slice(first, first + _PIECE_ROWS)
        predict(tables, step, boards[part], found[part], new_scratch(tables))

    list(map_ordered(piece, range(0, len(boards), _PIECE_ROWS), threads))
    return found


class NTupleCritic(DrawsBoards):
    """An n-tuple critic: maps boards to probabilities; see :meth:`load`.

    Attributes:
        info: the facts in its file.
        thresholds: tiles, in the order of the probabilities, ascending.
        sha256: of its file (hex); empty if it was not loaded.
        needs_embeddings: False: it takes boards.

    Example:
        >>> import numpy as np
        >>> from tape2048.critic import NTupleCritic
        >>> critic = NTupleCritic.load("default")
        >>> critic(np.array([0x1200, 0x3], np.uint64)).shape, critic.thresholds
        ((2, 3), (8192, 16384, 32768))
    """

    needs_embeddings = False
    kind: Literal["ntuple"] = "ntuple"

    def __init__(
        self,
        info: CriticFacts,
        layout: NetworkLayout,
        weights: npt.NDArray[np.int16],
        step: float,
        sha256: str = "",
    ) -> None:
        """Make a critic of weights ``i16[entries, W]``; see :func:`width_of`."""
        self.info = info
        self.layout = layout
        self.weights = weights
        self.step = step
        self.sha256 = sha256
        self.thresholds = tuple(info.thresholds)
        self.tables = tables_of(layout, info.thresholds, weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NTupleCritic:
        """Load a critic's file, or the critic that ships under this name (``"default"``).

        Raises:
            ModelError: the critic does not exist, or the file is of another kind.
            FormatError: the file is damaged.
            StorageError: the operating system could not read it.
        """
        file = critic_path(path)
        data = map_path(file).data
        arrays, texts, layout, facts = decode_tables(
            data, str(file), [FORMAT], CriticFacts, "critic train --kind ntuple"
        )
        try:
            step, tiles = float(texts.get("step", "nan")), check_thresholds(facts.thresholds).tolist()
        except ValueError as error:
            raise ModelError(f"the metadata does not describe a critic: {error}", path=file) from error
        if not (0 < step <= 1) or tiles != sorted(tiles) or tiles[-1] > TOP_TILE:
            raise ModelError(f"found tiles {tiles} in units of {step} logits", path=file)
        arrays.pop("scales", None)
        weights = np.zeros((layout.entries, width_of(tiles)), np.int16)
        for (name, array), table in zip(arrays.items(), layout.tables(weights).values(), strict=True):
            if array.shape != (shape := (len(tiles), len(table))) or array.dtype != np.int16:
                found = f"{array.dtype} {array.shape}"
                raise FormatError(f"{name}: found {found}, expected int16 {shape}", path=file)
            table[:, : len(tiles)] = array.T
        sha256 = hashlib.sha256(data).hexdigest()
        if file == Path(path):  # not a shipped critic
            remember_file(file, sha256)
        return cls(facts, layout, weights, step, sha256)

    def save(self, path: str | os.PathLike[str], *, preset: int = 6) -> int:
        """Write the critic's file, instead of an earlier one; return its size in bytes.

        Args:
            path: of the file.
            preset: of xz: 0 is fast, 6 small.

        Raises:
            StorageError: the operating system refused. The old file stays.
        """
        tables = self.layout.tables(self.weights[:, : len(self.thresholds)]).values()
        arrays = {
            name: np.ascontiguousarray(table.T) for name, table in zip(self.layout.names, tables, strict=True)
        }
        texts = file_texts(FORMAT, self.layout, self.info, step=repr(self.step))
        with publishing_file(Path(path), replace=True) as file:
            parts = [*encode(arrays, texts)]
            file.writelines(readable(parts, compressed(parts, preset)))
            return file.tell()

    def __repr__(self) -> str:
        return f"<NTupleCritic: {self.kind} -> {self.thresholds}, {self.layout.stage_count} stages>"

    def __call__(self, boards: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return P(the game reaches each threshold), ``f32[N, T]``."""
        given = np.asarray(boards)
        packed = exps_to_boards(given) if given.ndim == 2 else given
        if packed.ndim != 1 or packed.dtype != np.uint64:
            raise ValueError(f"found {given.dtype} of shape {given.shape}; expected u64[N] or u8[N, 16]")
        return predict_all(self.tables, self.step, np.ascontiguousarray(packed), len(self.thresholds))

    def from_embeddings(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Raise ModelError: it takes boards."""
        raise ModelError(f"an n-tuple critic takes boards, and was given embeddings {x.shape}")


#: Share of the free memory that boards may take. The tables and other programs need the rest.
_RAM_SHARE = 1 / 4

_FETCHED = 1 << 20  # boards fetched at a time

#: Boards of the pieces in which games are learned from. The order within a piece is random, so free memory
#: must not decide where one ends: a resumed training would learn other things.
_PIECE_BOARDS = 1 << 26


class GameBoards(NamedTuple):
    """Every few boards of some games, and their values in columns."""

    boards: npt.NDArray[np.uint64]  # `u64[N]`, game by game, in step order
    starts: npt.NDArray[np.int64]  # `i64[R + 1]`, the first board of each game, and N
    highest: npt.NDArray[np.uint8]  # `u8[R]`, the exponent of each game's highest tile
    targets: npt.NDArray[np.float32] = np.empty((0, 0), F32)  # `f32[N, T]`; empty without a column
    weights: npt.NDArray[np.float32] = np.empty(0, F32)  # `f32[N]`, likewise

    def __len__(self) -> int:
        return len(self.highest)

    def between(self, begin: int, end: int) -> GameBoards:
        starts = self.starts[begin : end + 1]
        rows = slice(starts[0], starts[-1])
        columns = self.targets[rows], self.weights[rows]
        return GameBoards(self.boards[rows], starts - starts[0], self.highest[begin:end], *columns)

    def take(self, chosen: npt.NDArray[np.bool_]) -> GameBoards:
        counts = np.diff(self.starts)
        return GameBoards(
            self.boards[np.repeat(chosen, counts)],
            np.append(0, np.cumsum(counts[chosen])),
            self.highest[chosen],
        )


class GameSource(NamedTuple):
    # Yields the games of the training part from a piece on, in pieces that fit into memory; for each pass.
    chunks: Callable[[int], Iterator[GameBoards]]
    val: GameBoards  # those of the validation part
    train_games: int  # number of games of the training part
    highest: npt.NDArray[np.uint8]  # exponents of their highest tiles, `u8[R]`
    players: list[PlayedBy]  # whose games they are
    identity: str  # of all games, before the split
    columns_sha256: str | None = None  # of the facts of the columns that are learned from


def read_games(corpus: Corpus, stride: int, progress: Progress | None = None, **columns: Any) -> GameBoards:
    """Read every ``stride``-th row of each run, from its first on; ``columns`` are options of ``fetch``."""
    starts = np.append(0, np.cumsum(-(-corpus.row_counts // stride)))
    boards = np.empty(starts[-1], np.uint64)
    targets = np.empty((len(boards), len(columns["thresholds"])) if columns.get("targets") else (0, 0), F32)
    weights = np.empty(len(boards) if columns.get("weight") else 0, F32)
    shift = corpus.row_starts[:-1] - stride * starts[:-1]
    for first in range(0, len(boards), _FETCHED):
        numbers = np.arange(first, min(first + _FETCHED, len(boards)))
        runs = np.searchsorted(starts, numbers, "right") - 1
        found = corpus.fetch(stride * numbers + shift[runs], ("tokens",), **columns)
        boards[numbers] = exps_to_boards(found["tokens"])
        if targets.size:
            targets[numbers] = found["labels"]
        if len(weights):
            weights[numbers] = found["weight"]
        if progress is not None:
            progress(first + len(numbers), len(boards))
    return GameBoards(boards, starts, exponents_of(corpus.runs["highest_tile"]), targets, weights)


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
    check_columns(val, config)
    _, columns_sha256 = check_columns(train, config)
    row_bytes = 8 + 4 * (bool(config.targets) * len(config.tiles) + bool(config.weight))
    ends = np.cumsum(-(-train.row_counts // config.stride))
    begins = np.flatnonzero(np.diff((np.maximum(ends, 1) - 1) // _PIECE_BOARDS, prepend=-1))
    pieces = list(pairwise([*begins.tolist(), len(ends)]))
    fits = row_bytes * int(ends[-1]) <= ram_available() * _RAM_SHARE
    columns = config.column_options
    held = read_games(train, config.stride, progress, **columns) if fits else None

    def chunks(first: int) -> Iterator[GameBoards]:
        numbers = np.arange(len(ends))
        for begin, end in pieces[first:]:
            if held is None:
                chosen = train.where((begin <= numbers) & (numbers < end))
                yield read_games(chosen, config.stride, **columns)
            else:
                yield held.between(begin, end)

    return GameSource(
        chunks,
        read_games(val, config.stride, **columns),
        len(train.runs),
        exponents_of(train.runs["highest_tile"]),
        players,
        corpus.identity,
        columns_sha256,
    )


def split_games(
    games: GameBoards,
    seeds: npt.NDArray[np.uint64],
    player: PlayedBy,
    config: NTupleCriticConfig,
    identity: str,
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

#: Unit of a stored weight in logits. Finer units make larger files, and no better critics.
_WEIGHT_STEP = 1 / 32


class TrainedNTuple(NamedTuple):
    progress: TrainingProgress
    best: Path | None  # the best critic's file
    done: bool = False  # False: stopped, to be resumed
    early: bool = False  # whether it ended since validations no longer improved


class _NTupleState(msgspec.Struct):
    epoch: int = 0
    chunk: int = 0  # piece of the games within the epoch
    position: int = 0  # games of the piece that are done
    games: int = 0
    rows: int = 0
    loss: float | None = None
    best_loss: float | None = None
    base_loss: float | None = None
    best_epoch: int = 0


class _NTupleLearner:
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
        self.state = _NTupleState()
        self.begun, self.learned_s, self.rows_before = time.monotonic(), 0.0, 0

    @property
    def width(self) -> int:
        return len(self.tables.exponents)

    def progress(self) -> TrainingProgress:
        state, of = self.state, self.config.epochs * self.source.train_games
        elapsed_s = time.monotonic() - self.begun  # of this process, without validations, like the speed
        rows_per_s = (state.rows - self.rows_before) / max(self.learned_s, 1e-9)
        figures = {
            "epoch": state.epoch,  # complete passes
            "epochs": self.config.epochs,
            "games": state.games,
            "games_in_all": of,
            "rows": state.rows,
            "rows_per_s": rows_per_s,
            "elapsed_s": elapsed_s,
            "loss": state.loss,  # of the last validation: mean log loss over rows and tiles
            "best_loss": state.best_loss,
            "base_loss": state.base_loss,  # of constants: each tile's share of these rows that reach it
        }
        per_s = rows_per_s * state.games / max(state.rows, 1)
        return TrainingProgress("games", state.games, of, per_s, elapsed_s, figures)

    @property
    def done(self) -> bool:
        """Whether all passes are made, or later ones would not be better."""
        return self.state.epoch >= self.config.epochs or self.stalled

    @property
    def stalled(self) -> bool:
        patience = self.config.patience
        return patience is not None and self.state.epoch - self.state.best_epoch >= patience

    def train(self, training: Training) -> Iterator[None]:
        while not self.done:
            for _ in self._pass():
                if training.pause(self.progress()):
                    yield
                    if training.stopped():
                        return
            self._end_pass(training)
            yield

    def _end_pass(self, training: Training) -> None:
        state, best = self.state, training.files.path / BEST
        state.loss, state.base_loss = self._validate()
        improved = state.best_loss is None or state.loss < state.best_loss
        if improved:
            state.best_loss, state.best_epoch = state.loss, state.epoch
        if improved or self.config.patience is None:
            self._critic().save(best, preset=0)
        if self.done:
            training.event("compressing the critic")
            NTupleCritic.load(best).save(best)
        progress = self.progress()
        training.note(progress.figures)
        training.pause(progress)

    def _pass(self) -> Iterator[None]:
        """Continue to the end of the pass over the games, and yield after every round but the last."""
        state, config = self.state, self.config
        in_all = config.epochs * self.source.train_games
        size = _ROUND_GAMES * config.thread_count
        chunks = enumerate(self.source.chunks(state.chunk), state.chunk)
        with ThreadPoolExecutor(config.thread_count, "critic") as pool:
            for number, games in chunks:
                order = np.random.default_rng([config.seed, state.epoch, number]).permutation(len(games))
                while state.position < len(games):
                    chosen = order[state.position : state.position + size]
                    rate = config.learning_rate * (1 - state.games / in_all)
                    shares = np.array_split(chosen, config.thread_count)
                    learner = functools.partial(learn, self.tables, *games)
                    begin = time.monotonic()
                    rows = pool.map(learner, shares, repeat(config.decay), repeat(rate), self.scratches)
                    state.rows += int(sum(rows))
                    self.learned_s += time.monotonic() - begin
                    state.position += len(chosen)
                    state.games += len(chosen)
                    if state.position < len(games):
                        yield
                state.chunk, state.position = number + 1, 0
        state.epoch, state.chunk = state.epoch + 1, 0

    def _validate(self) -> tuple[float, float]:
        """Return the mean log loss over the validation part's rows and the tiles, and the base rate's."""
        games, tiles = self.source.val, len(self.config.tiles)
        found = predict_all(self.tables, 1.0, games.boards, tiles, self.config.thread_count).astype(float)
        truth = games.highest[:, None] >= [tile.bit_length() - 1 for tile in self.config.tiles]
        labels = np.repeat(truth, np.diff(games.starts), axis=0)
        p = np.where(labels, found, 1 - found)
        losses = -np.log(np.maximum(p, 1e-7)).mean(axis=1)
        weights = games.weights if len(games.weights) else None
        base = np.average(labels, axis=0, weights=weights)
        return float(np.average(losses, weights=weights)), float(cross_entropy(base, base).mean())

    def _critic(self) -> NTupleCritic:
        """Return the critic so far, in its stored precision."""
        config, width = self.config, self.width
        limit = np.iinfo(np.int16).max
        weights = np.empty((self.layout.entries, width), np.int16)
        tables = self.layout.tables(self.records), self.layout.tables(weights)
        for records, out in zip(*(found.values() for found in tables), strict=True):
            learned, squares = records[:, :width], records[:, width:]
            pruned = squares < config.prune_below
            # The mean of weights that moved a little is a better guess than 0, also for untouched weights.
            moved = pruned & (squares > 0)
            mean = (learned * moved).sum(axis=0, dtype=np.float64) / np.maximum(moved.sum(axis=0), 1)
            units = np.rint(np.where(pruned, mean.astype(np.float32), learned) / _WEIGHT_STEP)
            out[:] = np.clip(units, -limit, limit)
        source, metrics = self.source, {"loss": self.state.loss}
        facts = training_facts(config, source.identity, source.players, self.state.games, metrics)
        facts["training"] = {"kind": "ntuple", **public_settings(config)}
        return NTupleCritic(CriticFacts(**facts), self.layout, weights, _WEIGHT_STEP)

    def save(self, path: Path) -> None:
        """Write a checkpoint: the records that have learned, and their places."""
        used = np.flatnonzero(self.records[:, self.width :].any(axis=1))
        arrays: dict[str, npt.NDArray[Any]] = {"places": used.astype(U64), "records": self.records[used]}
        state = msgspec.json.encode(self.state).decode()
        write_checkpoint(path, CHECKPOINT_FORMAT, self.config, arrays, **self._data, state=state)

    @property
    def _data(self) -> dict[str, str]:
        return {"corpus": self.source.identity, "columns_sha256": self.source.columns_sha256 or ""}

    def restore(self, content: memoryview, path: Path) -> None:
        arrays, saved, texts = ArrayCheckpoint.of(content, path, CHECKPOINT_FORMAT)
        self.state = decode_state(texts.get("state", ""), path, _NTupleState)
        self.config.check_resumed(saved, {name: texts.get(name, "") for name in self._data}, self._data, path)
        count = len(arrays.get("places", ()))
        places = check_array(arrays, "places", (count,), U64, path)
        records = check_array(arrays, "records", (count, 2 * self.width), F32, path)
        if count and places.max() >= len(self.records):
            raise StateError(f"found a record at {places.max()} of {len(self.records)}", path=path)
        self.records[places] = records
        self.rows_before = self.state.rows


def train_ntuple_critic(
    config: NTupleCriticConfig,
    source: GameSource,
    directory: Path,
    view: TrainingView | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainedNTuple:
    """Train an n-tuple critic in a directory, or continue with the training there.

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
    told = constant_labels(source.highest[:, None] >= exponents_of(np.array(config.tiles)), config.tiles)
    if len(told) == len(config.tiles):
        hint = "other tiles (--thresholds), or more games"
        raise TrainingError(f"nothing can be learned: {'; '.join(told)}", hint=hint)
    for one in told:
        view.event(f"{one}: its probability says no more than that")
    files = TrainingDirectory(directory, "epoch")

    def make(content: memoryview | None) -> _NTupleLearner:
        learner = _NTupleLearner(config, source)
        if content is not None:
            learner.restore(content, files.checkpoint)
        return learner

    with files.locked():
        learner = Training(files, view, stop, config.checkpoint_s).run(make)
    best = directory / BEST
    return TrainedNTuple(
        learner.progress(), best if best.exists() else None, done=learner.done, early=learner.stalled
    )
