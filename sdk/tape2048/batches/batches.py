"""Batches of a corpus, epoch after epoch: shuffled, distributed over ranks, resumable to the row.

(seed, e, b) and the settings alone decide the rows of batch b of epoch e. So a loader's whole state is three
integers, resuming is starting at another b, and any thread can fill any batch::

    batches = corpus.batches(4096, seed=7)
    for batch in batches:  # the rest of this epoch, in one buffer
        train(batch["tokens"], batch["labels"])

**Threads.** :meth:`Batches.fill` changes only the given buffer and releases the GIL, so any number of threads
can fill buffers from :meth:`Batches.buffer`. A prefetching loader assigns the indices from
``batches.position`` to ``len(batches)`` to its threads, returns the buffers in this order, and calls
:meth:`Batches.advance` for each, so that :meth:`Batches.state_dict` counts consumed batches.

**Ranks.** An epoch is one sequence of batches; rank r of W has every W-th one. Of the rows after the last W
whole batches, each rank gets an equal share as a short batch (with ``drop_last``: none), and fewer than W
rows are dropped. With ``pool_rows``, the ranks take chunks in turns, and each serves as many rows as the rank
with the fewest: fewer than 2 (W - 1) chunks are dropped, at most one row in 32, and others in each epoch.

**Pools.** ``pool_rows`` suits rows on a slow disk that do not fit the memory; see ``pool``.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from tape2048.base.guide import make_guide
from tape2048.base.text import as_int, facts_table
from tape2048.batches import gather_kernel
from tape2048.batches.fields import Batch, BatchLayout, Order, check_fields
from tape2048.batches.gatherer import NO_CAP, Cap, Gatherer, PoolReader
from tape2048.batches.shuffle import Permutation
from tape2048.errors import ConfigError, CorpusError, EmptyCorpusError, StateError
from tape2048.rows.view import tables_of
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.batches.fields import LabelDtype

_STREAM_HINT = "raise cache_max_mb, or stream some sessions at a time: pool_rows=..., pool_sessions=..."

STATE_VERSION = 2
#: Only the shuffle differs from version 1, so states of unshuffled loaders remain valid.
_OTHER_SHUFFLE_VERSION = 1


class _State(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    seed: int
    epoch: int
    position: int
    corpus: str
    rows: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    pool_rows: int | None
    rank: int
    world_size: int
    pool_sessions: int | None = None


class _Keys(NamedTuple):
    """The keys of an epoch's random order, caps and symmetries; ``order`` has the entries of an ``Order``."""

    permutation: NDArray[np.uint64]
    cap: int
    order: NDArray[np.uint64]


@lru_cache(maxsize=16)
def _keys_of(rows: int, seed: int, epoch: int, shuffle: bool, augment: bool) -> _Keys:  # noqa: FBT001
    name = b"tape2048 batches 1" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    words = np.frombuffer(hashlib.sha256(name).digest(), "<u8")
    symmetry = int(words[1]) | 1 if augment else 0  # 0 means no symmetry
    kind = gather_kernel.SHUFFLED if shuffle else gather_kernel.STRAIGHT
    order = np.array(Order(kind, cap_key=int(words[0]), symmetry_key=symmetry), np.uint64)
    return _Keys(Permutation(rows, seed=seed, epoch=epoch).keys, int(words[0]), order)


class Batches:
    """An iterable over batches of a corpus that continues where it stopped. Made by ``corpus.batches(...)``.

    Each iteration serves the rest of the current epoch, and ends at the beginning of the next one. It yields
    one buffer again and again, so copy what has to outlive the loop's body. :meth:`state_dict` and
    :meth:`load_state_dict` save and restore the position; see the module for threads, ranks and pools.

    Args:
        source: a corpus, or ``corpus.capped(...)``.
        batch_size: rows of a batch, B >= 1.
        shuffle: draw a new random order for each epoch; else keep the order of the corpus.
        seed: seed of all epochs, 0 <= seed < 2**64.
        fields: the fields of each row, out of

            - ``tokens``: exponents of the board, ``u8[B, 16]``;
            - ``labels``: whether the game reached each threshold, ``[B, T]`` of ``label_dtype``;
            - ``weight``: rows of the corpus that the row stands for, ``f32[B]``: with a cap, the rows of its
              run in the corpus / those drawn in an epoch; without one, 1;
            - ``row``: number of the row in the corpus, ``i64[B]``;
            - ``run``: ordinal of the run in ``corpus.runs``, ``u32[B]``;
            - ``step``: ``step_idx``, ``u32[B]``;
            - ``action``: the recorded move, ``u8[B]``, if all sessions of the rows have it;
            - ``legal``: mask of legal moves, ``u8[B]``;
            - ``move``: the move recovered from this board and the next, ``u8[B]`` (``tape2048.game.moves``);
              ``UNKNOWN`` if the next board was not recorded (a game's last row, sampled rows);
            - ``symmetry``: index of the applied symmetry, ``u8[B]``;
            - ``embeddings``: bits of bfloat16, ``u16[B, D]``, from the sessions' embeddings files.

        thresholds: tiles of the labels.
        label_dtype: ``"bool"`` or ``"float32"``.
        augment: ``"d4"`` applies a random symmetry of the square to each row's board, moves and masks, drawn
            anew in each epoch.
        drop_last: drop the last batch if it is short.
        rank: index of this loader; by default ``$RANK``, or 0.
        world_size: number of loaders that share each epoch; by default ``$WORLD_SIZE``, or 1.
        pool_rows: with ``shuffle``, draw from a pool of at most so many rows in memory.
        pool_sessions: with ``pool_rows``, read the chunks of so many adjacent sessions before those of
            others, whichever come next at random; so sessions in a store are fetched once in an epoch.

    Attributes:
        corpus: the view that the rows come from.
        rows: rows of an epoch on all ranks together, before any are dropped.
        seed: as given, or as loaded.
        epoch: the current epoch, from 0.
        position: number of consumed batches of this epoch.

    Raises:
        TypeError: ``source`` is not a corpus.
        ValueError: an argument is invalid.
        ConfigError: the rank is outside [0, world_size), or there are fewer rows than ranks.
        EmptyCorpusError: with ``drop_last``, there is no whole batch.
        CorpusError: these sessions do not have a field, or it does not go with a setting.

    Example:
        >>> from tape2048 import Corpus
        >>> batches = Corpus.open("selfplay").batches(256, seed=7, fields=("tokens", "move"), augment="d4")
        >>> sum(batch.rows for batch in batches) == batches.rows
        True
        >>> batches.epoch, batches.position
        (1, 0)
    """

    def __init__(
        self,
        source: Any,
        batch_size: int = 4096,
        *,
        shuffle: bool = True,
        seed: int = 0,
        fields: Sequence[str] = ("tokens", "labels"),
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelDtype = "bool",
        augment: Literal["d4"] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        pool_rows: int | None = None,
        pool_sessions: int | None = None,
    ) -> None:
        self.batch_size = as_int("batch_size", batch_size)
        self.seed = as_int("seed", seed)
        self.pool_rows = None if pool_rows is None else as_int("pool_rows", pool_rows)
        self.pool_sessions = None if pool_sessions is None else as_int("pool_sessions", pool_sessions)
        if self.batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed={seed}; expected 0 <= seed < 2**64")
        if augment not in {None, "d4"}:
            raise ValueError(f"augment={augment!r}; expected None or 'd4'")
        names = check_fields(fields, label_dtype)
        if augment and "embeddings" in names:
            raise CorpusError("embeddings are those of the boards as they are; augment turns the boards")
        self.source = source
        self.corpus: Any = source
        cap = NO_CAP
        if hasattr(source, "spread"):  # a capped corpus
            self.corpus = source.corpus
            cap = Cap(make_guide(source.starts), source.spread == "even", source.weights)
        self._tables = tables_of(self.corpus)
        self.shuffle = bool(shuffle)
        self.augment = augment
        self.drop_last = bool(drop_last)
        self.rank, self.world_size = launched_ranks(rank, world_size)
        self.epoch = self.position = 0
        self._handed_out = False
        self.rows = len(source)
        tiles = check_thresholds(thresholds)
        self._tiles = tuple(tiles.tolist())
        self._gatherer = Gatherer(self._tables, names, tiles, cap)
        self.layout = BatchLayout(names, len(tiles), label_dtype, self._gatherer.embedding_width)
        self._pool = self._make_pool()
        if self._pool is None:
            whole, rest = divmod(self.rows, self.batch_size * self.world_size)
            rank_rows = whole * self.batch_size + rest // self.world_size
        else:
            rank_rows = self._pool.rank_rows
        if rank_rows == 0:
            found = f"{self.rows:,} rows for {self.world_size} ranks"
            raise ConfigError(found, hint="fewer ranks, or a smaller pool")
        whole, rest = divmod(rank_rows, self.batch_size)
        self._batch_count = whole + (rest > 0 and not self.drop_last)
        if self._batch_count == 0:
            msg = f"{rank_rows:,} rows a rank make no whole batch of {self.batch_size:,}"
            raise EmptyCorpusError(msg, hint="a smaller batch_size, or drop_last=False")

    def _make_pool(self) -> PoolReader | None:
        """Make the reader of pools, if there are any; check that the cache suffices for the order."""
        if self.pool_rows is None:
            if self.pool_sessions is not None:
                raise ValueError("pool_sessions is for pool_rows, which says how many rows a pool has")
            if self.shuffle and self._gatherer.fetches:
                self._gatherer.check_fits(self._gatherer.sessions_between(0, self.rows), _STREAM_HINT)
            return None
        if not self.shuffle:
            raise ValueError("pool_rows is for shuffle=True; the rows in order need no pool")
        if self._tables.store.remote and "move" in self.layout.fields:
            raise CorpusError(
                "the field move reads rows beside those of the pool, which are not kept here of a store",
                hint='take "action", or leave pool_rows out',
            )
        return PoolReader(
            self._gatherer,
            self.rows,
            self._tables.dtype.itemsize,
            pool_rows=self.pool_rows,
            pool_sessions=self.pool_sessions,
            ranks=(self.rank, self.world_size),
        )

    def __len__(self) -> int:
        """Number of batches of a whole epoch on this rank."""
        return self._batch_count

    def _extent(self, index: int) -> tuple[int, int]:
        """Return first place in the epoch's order, and number of rows, of this rank's batch ``index``."""
        if not 0 <= index < self._batch_count:
            raise IndexError(f"batch {index}; expected 0 <= index < {len(self)}")
        size, world = self.batch_size, self.world_size
        if self._pool is not None:
            return index * size, min(size, self._pool.rank_rows - index * size)
        whole, rest = divmod(self.rows, size * world)
        if index < whole:
            return (index * world + self.rank) * size, size
        # Equal shares: collective operations need equal shapes on all ranks.
        share = rest // world
        return whole * size * world + self.rank * share, share

    def buffer(self, arrays: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """Make a batch to fill, from new arrays or the caller's (pinned, shared, ...), one for each field.

        Raises:
            ValueError: an array is missing, or has another type, shape ``[batch_size, ...]`` or order.
        """
        if arrays is None:
            return Batch.allocate(self.layout, self.batch_size)
        batch = Batch(arrays, self.layout)
        if batch.capacity < self.batch_size:
            raise ValueError(f"buffers for {batch.capacity} rows; expected {self.batch_size}")
        return batch

    def fill(self, batch: Batch, *, epoch: int, index: int) -> int:
        """Fill a buffer with batch ``index`` of an epoch, without changing the position; thread-safe.

        Args:
            batch: from :meth:`buffer`, or of another loader with the same fields and labels.
            epoch: >= 0.
            index: 0 <= index < ``len(self)``.

        Returns:
            The number of rows, also ``batch.rows``.

        Raises:
            IndexError: there is no such batch.
            ValueError: the buffer has other fields or labels, or fewer rows; a number is not whole.
            CorpusError: with ``pool_rows`` and mapped rows, a file was truncated.
        """
        first, count = self._extent(as_int("index", index))
        epoch = as_int("epoch", epoch)
        if batch.layout != self.layout or batch.capacity < count:
            raise ValueError(
                f"a buffer for {batch.capacity} rows of {batch.layout}; expected {count} of {self.layout}"
            )
        keys = _keys_of(self.rows, self.seed, epoch, self.shuffle, bool(self.augment))
        if self._pool is not None:
            self._pool.fill(batch, (self.seed, epoch), (first, count), keys.order, cap_key=keys.cap)
        else:
            self._gatherer.fill(keys.order, (first, count), batch, keys.permutation)
        assert batch.rows == count
        return count

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, batch: Batch | None = None) -> Iterator[Batch]:
        """Serve the rest of this epoch, in a given buffer or a new one, and begin the next epoch.

        Raises:
            CorpusError: a mapped file was truncated since the corpus was opened.
        """
        self.begin()
        self.check_files()
        batch = batch or self.buffer()
        while self.position < len(self):
            self.fill(batch, epoch=self.epoch, index=self.position)
            self.advance()  # before the loop's body, where a state counts this batch
            yield batch
        self.next_epoch()

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file that batches are read from was truncated."""
        if self._gatherer.reads_rows or self._pool is not None:
            self._tables.store.check_files()

    def begin(self) -> None:
        """Go to the next epoch if this loader has served the last batch of this one.

        A caller that takes ``len(batches)`` batches, and no more, does not end the epoch. (After
        :meth:`load_state_dict`, the rest of an epoch may be empty.)
        """
        if self.is_over:
            self.next_epoch()

    @property
    def is_over(self) -> bool:
        """Whether this loader has served the last batch of the current epoch; see :meth:`begin`."""
        return self._handed_out and self.position >= len(self)

    def advance(self, count: int = 1) -> None:
        """Count batches of this epoch as consumed."""
        self.position += count
        self._handed_out = True

    def next_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.go_to(self.epoch + 1, 0)

    def go_to(self, epoch: int, position: int) -> None:
        """Go to a batch of an epoch, without a check."""
        self.epoch, self.position = epoch, position
        self._handed_out = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON values; the same on all ranks except ``rank``."""
        return msgspec.structs.asdict(self._state())

    def _state(self) -> _State:
        names = set(_State.__struct_fields__) - {"version", "corpus"}
        own = {name: getattr(self, name) for name in names}
        return _State(version=STATE_VERSION, corpus=self.source.identity, **own)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: with its seed, in its epoch, at its position.

        The state of any rank is valid on all. Fields, thresholds and augmentation may differ.

        Args:
            state: from :meth:`state_dict`.

        Raises:
            StateError: the state is malformed, of another version with another shuffle, or of a loader
                with other rows, batch size, ranks, ...; the message names all differences.
        """
        try:
            found = msgspec.convert(dict(state), _State)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise StateError(f"no state of a loader: {error}") from error
        mine = self._state()
        free = {"seed", "epoch", "position", "rank"}
        if found.version == _OTHER_SHUFFLE_VERSION and not found.shuffle:
            free.add("version")
        pairs = [(name, getattr(found, name), getattr(mine, name)) for name in _State.__struct_fields__]
        differing = {name: f"{name} {a!r}, not {b!r}" for name, a, b in pairs if name not in free and a != b}
        if differing:
            hints = []
            if "version" in differing:
                hints.append("another version of tape2048 shuffles otherwise: begin the epoch again")
            if differing.keys() - {"version"}:
                hints.append(
                    "open the same sessions with the same filters, and make batches with the same settings"
                )
            msg = f"the state is of a loader with {'; '.join(differing.values())}"
            raise StateError(msg, hint="; ".join(hints))
        limits = (found.seed, (1 << 64) - 1), (found.epoch, (1 << 64) - 1), (found.position, len(self))
        if not all(0 <= value <= most for value, most in limits):
            raise StateError(
                f"seed {found.seed}, epoch {found.epoch}, position {found.position} of {len(self)} batches"
            )
        self.seed = found.seed
        self.go_to(found.epoch, found.position)

    def __repr__(self) -> str:
        ranks = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return (
            f"<Batches: {len(self):,} of {self.batch_size:,} rows an epoch{ranks}; epoch {self.epoch}, "
            f"position {self.position}>"
        )

    def _repr_html_(self) -> str:
        facts = {
            "rows": self.rows,
            "batches an epoch": len(self),
            "rows a batch": self.batch_size,
            "fields": ", ".join(self.layout.fields),
            "seed": str(self.seed),
            "epoch": self.epoch,
            "position": self.position,
        }
        return facts_table("Batches", facts, {"of this epoch": self.position / max(len(self), 1)})

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the settings and the position; unpickling opens the rest again."""
        names = "source batch_size shuffle seed augment drop_last rank world_size pool_rows pool_sessions"
        settings = {name: getattr(self, name) for name in names.split()}
        layout = self.layout
        settings |= {"fields": layout.fields, "thresholds": self._tiles, "label_dtype": layout.label_dtype}
        return {"settings": settings, "position": (self.epoch, self.position), "handed_out": self._handed_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["settings"])  # type: ignore[misc]
        self.go_to(*state["position"])
        self._handed_out = state["handed_out"]


def launched_ranks(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return rank and number of ranks, by default from the environment."""
    found = []
    for name, given, default in (("RANK", rank, 0), ("WORLD_SIZE", world_size, 1)):
        if given is not None:
            found.append(as_int(name.lower(), given))
            continue
        text = os.environ.get(name, "")
        try:
            found.append(int(text) if text else default)
        except ValueError as error:
            raise ConfigError(
                f"${name} is {text!r}; expected a whole number",
                hint="Let the launcher set RANK and WORLD_SIZE, or pass rank and world_size.",
            ) from error
    if not 0 <= found[0] < found[1]:
        raise ConfigError(
            f"rank {found[0]} of {found[1]}; expected 0 <= rank < world_size",
            hint="Let the launcher set RANK and WORLD_SIZE, or pass rank and world_size.",
        )
    return found[0], found[1]
