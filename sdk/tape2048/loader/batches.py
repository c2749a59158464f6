"""Batches of a corpus, epoch after epoch: shuffled, distributed over ranks, resumable to the row.

(seed, e, b) and the settings alone decide the rows of batch b of epoch e. A loader's whole state is therefore
a few integers, a resumed loader starts at another b, and any thread can fill any batch::

    batches = corpus.batches(4096, seed=7)
    for batch in batches:  # the rest of this epoch
        train(batch["tokens"], batch["labels"])

**Threads.** :meth:`Batches.fill` changes only the given buffer and releases the GIL, so any number of threads
can fill buffers from :meth:`Batches.buffer`. A prefetching loader assigns the indices from
``batches.position`` to ``len(batches)`` to its threads, returns the buffers in this order, and calls
:meth:`Batches.advance` for each, so that :meth:`Batches.state_dict` counts consumed batches.

**Ranks.** An epoch is one sequence of batches, which W ranks take in turns. The rows after the last W whole
batches are divided equally into a short batch for each rank (with ``drop_last``, they are dropped), and fewer
than W rows are dropped. With ``pool_rows``, the ranks take chunks in turns, and each serves as many rows as
the rank with the fewest. Fewer than 2 (W - 1) chunks are dropped, at most one row in 32, and different rows
in each epoch.

**Another number of ranks.** A state counts the rows of the epoch that all ranks consumed. Any number of ranks
with any batch size can load it: they share the remaining rows by the same rule. Each row is served once, and
fewer than W are dropped at the end. A state saved at the end counts dropped rows as remaining. With
``pool_rows``, a state in the middle of an epoch needs as many ranks as before.

**Mixtures.** Each source has separate epochs, in each of which every row is served once. A batch may
contain the end of a source's epoch and the start of its next epoch, so all batches are whole, and no row is
dropped. An epoch of the mixture has as many batches as the rows of all sources fill. In it, a small source
with a large share is served several times. The ranks take batches in turns. A state has each source's place,
so any number of ranks, with any batch size, continues where the saved ranks stopped.

**Pools.** ``pool_rows`` suits rows on a slow disk that do not fit the memory; see ``batches.pool``.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.guide import make_guide
from tape2048.base.signatures import lists_options
from tape2048.base.text import as_int, counted, facts_table
from tape2048.errors import ConfigError, CorpusError, EmptyCorpusError, StateError, reader_hint
from tape2048.loader.ahead import Games, Windows
from tape2048.loader.batch import (
    FIRSTS,
    Batch,
    BatchLayout,
    BatchPool,
    check_fields,
    windows_of,
)
from tape2048.loader.column_fields import describe_difference, plan_fields
from tape2048.loader.gatherer import Gatherer, check_weights, mean_weight
from tape2048.loader.options import DEFAULTS, BatchOptions
from tape2048.loader.order import Order, order_of
from tape2048.loader.plan import NO_CAP, Cap
from tape2048.loader.pool import PoolReader
from tape2048.loader.row_view import tables_of
from tape2048.players import player_label
from tape2048.session.batch_fields import field_of
from tape2048.session.run_table import check_thresholds, warn_of_constants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from numpy.typing import NDArray

    from tape2048.loader.column_fields import ViewColumn
    from tape2048.loader.row_view import ViewTables

_STREAM_HINT = "raise cache_max_mb, or stream some sessions at a time: pool_rows=..., pool_sessions=..."

_SAME_HINT = "open the same sessions with the same filters, and make batches with the same settings"
#: Hints for a state with a difference; `_SAME_HINT` for the others.
_STATE_HINTS = {
    "version": "start the epoch again: the version of tape2048 that saved the state shuffles differently",
    "world_size": "with pool_rows, resume on as many ranks as before, or at the start of an epoch",
}
_WINDOW_HINT = "Take a smaller window or stride."
_RANKS_HINT = "Let the launcher set RANK and WORLD_SIZE, or pass rank and world_size."

#: SplitMix64's increment. The seeds of a mixture's sources are hashed before they are used.
_SEEDS_APART = 0x9E3779B97F4A7C15

_COUNTED_MAX = 1 << 20  # rows that statistics count

STATE_VERSION = 2
#: Only the shuffle differs from version 1, so states of unshuffled loaders remain valid.
_OTHER_SHUFFLE_VERSION = 1


class Shares(NamedTuple):
    """The rows of an epoch from ``start`` on: ``whole`` batches per rank, then a batch of ``short`` rows."""

    start: int
    batch_size: int
    world_size: int
    whole: int
    short: int
    batches: int  # of each rank

    def consumed(self, position: int) -> int:
        """Return the rows of the epoch that all ranks have consumed before this batch."""
        if position <= self.whole:
            return self.start + position * self.batch_size * self.world_size
        return self.start + (self.whole * self.batch_size + self.short) * self.world_size


@lru_cache(maxsize=16)
def share_rows(rows: int, start: int, batch_size: int, world_size: int, drop_last: bool) -> Shares:  # noqa: FBT001
    """Share the rows [start, rows) among ranks, equally: collective operations need equal shapes."""
    whole, rest = divmod(rows - start, batch_size * world_size)
    short = 0 if drop_last else rest // world_size
    return Shares(start, batch_size, world_size, whole, short, whole + (short > 0))


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
    start: int = 0
    places: list[int] = []
    sessions: list[list[str]] = []
    release: str = __version__  # that saved it


class RowServer:
    """A source that serves fields of its rows at the places of an order.

    ``rows`` are of an epoch. The ranks together serve ``shared_rows``; with a pool, each serves as many as
    the rank with the fewest.
    """

    def __init__(self, source: Any, batch_size: int, options: BatchOptions, ranks: tuple[int, int]) -> None:
        self.source = self.corpus = source
        self.batch_size = batch_size
        cap = NO_CAP
        if hasattr(source, "spread"):  # a capped corpus
            self.corpus = source.corpus
            firsts = source.firsts.astype(np.uint64)
            cap = Cap(make_guide(source.starts), firsts, int(source.spread == "even"), source.weights)
        self._tables = tables_of(self.corpus)
        columns = self._plan(self._tables, options)
        tiles = check_thresholds(options["thresholds"])
        shuffle, pool_rows = options["shuffle"], options["pool_rows"]
        joins = shuffle and cap is NO_CAP if columns and pool_rows is None else None
        self._gatherer = Gatherer(self._tables, self.layout.fields, tiles, cap, columns, joins=joins)
        self.rows = self.shared_rows = len(source)
        self._pool: PoolReader | None = None
        if pool_rows is not None:
            own = ((name, field_of(name)) for name in self.layout.fields)
            far = [name for name, field in own if name == "move" or (field and field.moves is not None)]
            if self._tables.store.remote and far:
                raise CorpusError(
                    f"the field {far[0]} needs the rows after a pool's rows; with sessions in stores, these "
                    "are not kept",
                    hint='use the field "action", or leave pool_rows out',
                )
            self._pool = PoolReader(
                self._gatherer, self.rows,
                pool_rows=pool_rows, pool_sessions=options["pool_sessions"],
                ranks=ranks,
            )  # fmt: skip
            self.shared_rows = self._pool.rank_rows * ranks[1]
        elif shuffle and self._gatherer.fetches:
            self._gatherer.check_fits(self._gatherer.sessions_between(0, self.rows), _STREAM_HINT)

    def _plan(self, tables: ViewTables, options: BatchOptions) -> list[ViewColumn]:
        """Check the fields of the rows of some tables; return their columns."""
        tiles, weight = check_thresholds(options["thresholds"]), options["weight"]
        self.layout, columns = plan_fields(
            tables, options["fields"], tiles, options["label_dtype"], extra=options["extra"],
            weight=weight, targets=options["targets"], turned=options["augment"] is not None,
        )  # fmt: skip
        weights = next((each for each in columns if each.info.name == weight), None)
        self._weights = None if weights is None else (tables, weights)
        if self._weights is not None:
            check_weights(*self._weights)
        if "labels" in self.layout.fields and not options["targets"]:
            tiles_ = tuple(tiles.tolist())
            labels, starts = self.corpus.run_labels(tiles_), self.corpus.row_starts
            has_rows = starts[1:] > starts[:-1]
            warn_of_constants(labels if has_rows.all() else labels[has_rows], tiles_)
        return columns

    @cached_property
    def mean_weight(self) -> float:
        """Mean weight of an epoch's rows; with a column of weights, an estimate from a sample of the rows."""
        drawn = int(self._tables.rowmap.run_starts[-1]) / self.rows  # 1 without a cap
        return drawn if self._weights is None else drawn * mean_weight(*self._weights)

    @property
    def pooled(self) -> bool:
        """Whether each rank has a separate order."""
        return self._pool is not None

    def serve(self, batch: Batch, order: Order, epoch: tuple[int, int], places: tuple[int, int]) -> None:
        """Fill a batch; ``epoch`` is (seed, epoch), and ``places`` the first place and the number of rows."""
        if self._pool is not None:
            self._pool.fill(batch, epoch, places, order)
        else:
            self._gatherer.fill(order, places, batch)

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file that batches are read from was truncated."""
        if self._gatherer.reads_rows or self._pool is not None:
            self._tables.store.check_files()


class WindowServer(RowServer):
    """A server of windows: the rows at the places of an order, each with later boards of its game."""

    def __init__(self, source: Any, batch_size: int, options: BatchOptions, ranks: tuple[int, int]) -> None:
        corpus = getattr(source, "corpus", source)
        window, stride, pad = options["window"] or 1, options["stride"], options["pad"]
        of_firsts: BatchOptions = {
            **options, "fields": FIRSTS.fields, "extra": None, "weight": None, "targets": None,
        }  # fmt: skip
        span, longest = (window - 1) * stride + 1, int(tables_of(corpus).runs["rows"].max())
        if span > longest:
            msg = f"a window spans {span:,} rows; expected at most {longest:,}, the rows of the longest game"
            raise CorpusError(msg, hint=_WINDOW_HINT)
        firsts = source if pad else _whole_only(source, corpus, span - 1)
        super().__init__(firsts, batch_size, of_firsts, ranks)
        left_out = corpus.row_starts - self.corpus.row_starts
        self.source, self.corpus = source, corpus
        tables = self._tables.whole
        if options["extra"] and tables.rowmap.rows != len(corpus):
            raise ValueError(
                f"extra has {len(corpus):,} rows, but windows reach all {tables.rowmap.rows:,} rows of these "
                "games; expected a corpus of whole games"
            )
        names = check_fields(options["fields"])
        with_valid: BatchOptions = {**options, "fields": (*names, "valid")}
        columns = self._plan(tables, with_valid if pad and "valid" not in names else options)
        tiles = check_thresholds(options["thresholds"])
        self._boards = Gatherer(tables, self.layout.fields, tiles, columns=columns)
        self.layout = self.layout._replace(window=window)
        self._windows = Windows(Games(self._tables, tables, self._boards), window, stride, left_out)

    def serve(self, batch: Batch, order: Order, epoch: tuple[int, int], places: tuple[int, int]) -> None:
        """Fill a batch with the windows at some places; a batch without windows with their first rows."""
        found = windows_of(batch)
        super().serve(batch if found is None else found[0], order, epoch, places)
        if found is not None:
            self._windows.fill(batch, order.symmetry_key)

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file that batches are read from was truncated."""
        super().check_files()
        if self._boards.reads_rows:
            self._tables.store.check_files()


def _whole_only(source: Any, corpus: Any, span: int) -> Any:
    """Return the rows of a source with at least ``span`` rows after them in their games."""
    first, end = corpus.game_phase.rows_left or (0, None)
    try:
        firsts = corpus.phase(rows_left=(max(first, span), end))
    except (EmptyCorpusError, ValueError) as error:
        msg = f"no window is whole: none of the {len(corpus):,} rows is followed by {span:,} rows of its game"
        raise EmptyCorpusError(msg, hint=f"{_WINDOW_HINT} Or pass pad=True.") from error
    return firsts if source is corpus else firsts.capped(source.per_run, source.spread, source.by)


def _open_server(source: Any, batch_size: int, options: BatchOptions, ranks: tuple[int, int]) -> RowServer:
    kind = RowServer if options["window"] is None else WindowServer
    return kind(source, batch_size, options, ranks)


@lists_options(BatchOptions, DEFAULTS)
class Batches:
    """An iterable over batches of a corpus that continues where it stopped. Made by ``corpus.batches(...)``.

    Each iteration serves the rest of the current epoch, and ends at the start of the next one. A batch
    stays valid as long as you hold it or a view of it. :meth:`state_dict` and :meth:`load_state_dict` save
    and restore the position; see the module for threads, ranks and pools.

    Args:
        source: a corpus, or ``corpus.capped(...)``.
        batch_size: rows of a batch, B >= 1.
        **options: the options.

    Attributes:
        corpus: the view that the rows come from.
        rows: rows of an epoch on all ranks together, before any are dropped.
        seed: as given, or as loaded.
        epoch: the current epoch, from 0.
        position: number of consumed batches of this epoch, since ``start``.
        start: rows of this epoch that were consumed before a state of another batch size or number of ranks
            was loaded; otherwise 0.

    Raises:
        TypeError: ``source`` is not a corpus.
        ValueError: an argument is invalid.
        ConfigError: the rank is outside [0, world_size), or there are fewer rows than ranks.
        EmptyCorpusError: with ``drop_last``, there is no whole batch.
        CorpusError: these sessions do not have a field, or a field cannot be combined with an option.

    Example:
        >>> from tape2048 import Corpus
        >>> batches = Corpus.open("selfplay").batches(256, seed=7, fields=("tokens", "move"), augment="d4")
        >>> sum(batch.rows for batch in batches) == batches.rows
        True
        >>> batches.epoch, batches.position
        (1, 0)
    """

    def __init__(self, source: Any, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> None:
        self.batch_size = as_int("batch_size", batch_size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        self.source = source
        self._options = options = _checked(DEFAULTS | options)
        self.seed = options["seed"]
        self.rank, self.world_size = launched_ranks(options["rank"], options["world_size"])
        options |= {"rank": self.rank, "world_size": self.world_size}
        self.shuffle, self.augment, self.drop_last = (
            options["shuffle"], options["augment"], options["drop_last"],
        )  # fmt: skip
        self.pool_rows, self.pool_sessions = options["pool_rows"], options["pool_sessions"]
        self._tiles = tuple(check_thresholds(options["thresholds"]).tolist())
        self.epoch = self.position = self.start = 0
        self._servers, self._strides = self._open()
        # The places of a mixture's sources at ``start``.
        self._bases = [0] * len(self._strides)
        self.layout = self._servers[0].layout
        self._buffers = BatchPool()
        # Where each served range started, and the position at its end.
        self._served: list[tuple[tuple[int, ...], int]] = []
        self._since = self.here
        self._handed_out = False
        if not len(self):
            rank_rows = self._shared_rows // self.world_size
            msg = f"found {rank_rows:,} rows for each rank; expected a whole batch of {self.batch_size:,}"
            hint = "pass a smaller batch_size" + ("" if self._strides else ", or drop_last=False")
            raise EmptyCorpusError(msg, hint=hint)

    def _open(self) -> tuple[list[RowServer], list[int]]:
        """Open the sources; return them, and for a mixture the rows of each in a batch of all ranks."""
        server = _open_server(self.source, self.batch_size, self._options, (self.rank, self.world_size))
        self.corpus, self.rows, self._shared_rows = server.corpus, server.rows, server.shared_rows
        if self._shared_rows < self.world_size:
            found = f"found {self.rows:,} rows for {self.world_size} ranks; expected a row for each rank"
            raise ConfigError(found, hint="use fewer ranks, or smaller pool_rows")
        return [server], []

    def __len__(self) -> int:
        return self._shares(self.epoch).batches

    def _shares(self, epoch: int) -> Shares:
        return self._shares_from(self.start if epoch == self.epoch else 0)

    def _shares_from(self, start: int) -> Shares:
        return share_rows(self._shared_rows, start, self.batch_size, self.world_size, self.drop_last)

    def buffer(self, arrays: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """Make a batch to fill, from new arrays or the caller's (pinned, shared, ...), an array per field.

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
            epoch: number of the epoch, >= 0.
            index: number of the batch, 0 <= index < ``len(self)``.

        Returns:
            The number of rows, also ``batch.rows``.

        Raises:
            IndexError: there is no such batch.
            ValueError: the buffer has other fields or labels, or fewer rows; or a number is not whole.
            CorpusError: with ``pool_rows`` and mapped rows, a file was truncated.
        """
        index, epoch = as_int("index", index), as_int("epoch", epoch)
        shares = self._shares(epoch)
        if not 0 <= index < shares.batches:
            raise IndexError(f"batch {index}; expected 0 <= index < {shares.batches}")
        count = self.batch_size if index < shares.whole else shares.short
        is_other = batch.layout is not self.layout and batch.layout != self.layout
        if is_other or batch.capacity < count:
            raise ValueError(
                f"a buffer for {batch.capacity} rows of {batch.layout}; expected {count} of {self.layout}"
            )
        self._fill(batch, epoch, index, shares.consumed(index), count)
        assert batch.rows == count
        return count

    def _fill(self, batch: Batch, epoch: int, _index: int, first: int, count: int) -> None:
        (server,) = self._servers
        first = first // self.world_size if server.pooled else first + self.rank * count
        self._serve(server, batch, (self.seed, epoch), (first, count))

    def _serve(
        self, server: RowServer, batch: Batch, epoch: tuple[int, int], places: tuple[int, int]
    ) -> None:
        order = order_of(server.rows, *epoch, self.shuffle, bool(self.augment))
        server.serve(batch, order, epoch, places)

    def __iter__(self) -> Iterator[Batch]:
        """Serve the rest of this epoch, then go to the next; CorpusError if a mapped file was truncated."""
        self.begin()
        self.check_files()
        while self.position < len(self):
            batch = self._buffers.take(self.buffer)
            self.fill(batch, epoch=self.epoch, index=self.position)
            self.advance()  # before the loop's body, where a state counts this batch
            yield batch
        self.next_epoch()

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file that batches are read from was truncated."""
        for server in self._servers:
            server.check_files()

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
        """Go to the start of the next epoch."""
        self.go_to(*self.start_of(self.epoch + 1))

    def go_to(self, epoch: int, position: int, start: int = 0, *bases: int) -> None:
        """Go to a batch of an epoch, without a check; arguments as in :attr:`here`."""
        if self.position > self._since[1]:
            self._served.append((self._since, self.position))
        self._bases = list(bases) or self._bases_of(epoch)
        self.epoch, self.position, self.start = epoch, position, start
        self._since = self.here
        self._handed_out = False

    @property
    def here(self) -> tuple[int, ...]:
        """Arguments of :meth:`go_to`: epoch, position, start, and each source's place in a mixture."""
        return self.epoch, self.position, self.start, *self._bases

    def start_of(self, epoch: int) -> tuple[int, ...]:
        """Return the arguments of :meth:`go_to` for the start of an epoch."""
        return epoch, 0, 0, *self._bases_of(epoch)

    def _bases_of(self, epoch: int) -> list[int]:
        whole = self._shares_from(0).batches
        batches = (epoch - self.epoch) * whole + (len(self) - whole if epoch > self.epoch else 0)
        return [max(0, base + batches * each) for base, each in zip(self._bases, self._strides, strict=True)]

    def _taken(self, epoch: int, start: int, position: int) -> Sequence[int]:
        del epoch, start
        return [position * each for each in self._strides]

    def _counts(self, epoch: int, index: int) -> Sequence[int]:
        del epoch, index
        return [server.batch_size for server in self._servers]

    @property
    def places(self) -> list[int]:
        """Consumed rows of each source of a mixture, in all epochs."""
        taken = self._taken(self.epoch, self.start, self.position)
        return [base + each for base, each in zip(self._bases, taken, strict=True)]

    @property
    def sessions(self) -> list[list[str]]:
        """Names of the sessions of each source of a mixture that grows; see :class:`tape2048.Mixture`."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON values. The same on all ranks except ``rank``."""
        return msgspec.structs.asdict(self._state())

    def _state(self) -> _State:
        names = set(_State.__struct_fields__) - {"version", "corpus", "release"}
        own = {name: getattr(self, name) for name in names}
        return _State(version=STATE_VERSION, corpus=self.source.identity, **own)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: with its seed, in its epoch, at its position.

        The state of any rank is valid on all. Fields, thresholds and augmentation may differ, and so may
        the batch size and, without ``pool_rows``, the number of ranks: see the module.

        Args:
            state: from :meth:`state_dict`.

        Raises:
            StateError: the state is malformed, of another version with another shuffle, or of a loader
                with other rows, another order, ...; the message names all differences.
        """
        version = state.get("version")
        if isinstance(version, int) and version > STATE_VERSION:
            hint = reader_hint(str(state.get("release", "")))
            raise StateError(f"loader state version {version}; expected {STATE_VERSION}", hint=hint)
        try:
            found = msgspec.convert(dict(state), _State)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise StateError(f"found something else than a state of a loader: {error}") from error
        mine = self._state()
        free = {"seed", "epoch", "position", "start", "places", "rank", "batch_size", "sessions", "release"}
        if self.pool_rows is None or found.position == found.start == 0:
            free.add("world_size")
        if found.version == _OTHER_SHUFFLE_VERSION and not found.shuffle:
            free.add("version")
        pairs = [(name, getattr(found, name), getattr(mine, name)) for name in _State.__struct_fields__]
        differing = {name: f"{name} {a!r}, not {b!r}" for name, a, b in pairs if name not in free and a != b}
        if differing:
            msg = f"the state is of a loader with {'; '.join(differing.values())}"
            hints = dict.fromkeys(_STATE_HINTS.get(name, _SAME_HINT) for name in differing)
            raise StateError(msg, hint="; ".join(hints))
        sizes = max(1, found.batch_size), max(1, found.world_size)
        then = share_rows(self._shared_rows, found.start, *sizes, found.drop_last)
        largest = (1 << 64) - 1
        position, start = found.position, found.start
        if sizes != (self.batch_size, self.world_size):
            position, start = 0, then.consumed(found.position)
        taken = self._taken(found.epoch, start, position if 0 <= position <= then.batches else 0)
        bases = [place - each for place, each in zip(found.places, taken, strict=False)]
        limits = [
            ("seed", 0, largest), ("epoch", 0, largest), ("start", 0, self._shared_rows),
            ("position", 0, then.batches), ("batch_size", 1, largest), ("world_size", 1, largest),
        ]  # fmt: skip
        wrong = [
            f"{name} is {getattr(found, name)}; expected {least} to {most}"
            for name, least, most in limits
            if not least <= getattr(found, name) <= most
        ]
        if len(found.places) != len(self._strides):
            wrong.append(f"places has {counted(len(found.places), 'number')}; expected {len(self._strides)}")
        elif not all(0 <= base <= largest >> 1 for base in bases):
            wrong.append(f"places is {found.places}; expected places that fit the position")
        if wrong:
            raise StateError(f"the state is invalid: {', '.join(wrong)}")
        self.seed = found.seed
        self.go_to(found.epoch, position, start, *bases)
        self._served.clear()

    def stats(self) -> dict[str, Any]:
        """Count the rows that this loader has served since it was made or has loaded a state.

        Costs nothing until it is called: served batches are gathered again, about 10 million rows a second.
        Of more than 2**20 rows, as many are counted, at equal distances (with ``pool_rows`` the newest), and
        the counts are scaled.

        Returns:
            ``rows`` served, ``counted`` rows, and rows by session (``sessions``), by player
            (``players``), by highest tile on the board (``stages``) and with a true label (``labels``).
        """
        seen: Batches = object.__new__(type(self))
        seen.__dict__.update(self.__dict__, layout=BatchLayout(("tokens", "run"), 0, "bool"), _served=[])
        batch, servers = seen.buffer(), self._servers
        tables = [tables_of(server.corpus).runs for server in servers]
        runs = [np.zeros(len(each), np.int64) for each in tables]
        names = ("sessions", "players", "stages", "labels")
        found: dict[str, Counter[Any]] = {name: Counter() for name in names}
        ranges = [*self._served, (self._since, self.position)]
        ends = np.cumsum([end - here[1] for here, end in ranges])
        total, most = int(ends[-1]), max(1, _COUNTED_MAX // self.batch_size)
        first = 0 if self.pool_rows is None else max(0, total - most)
        for number in np.linspace(first, total - 1, min(total, most)).astype(np.int64).tolist():
            at = int(np.searchsorted(ends, number, "right"))
            here, end = ranges[at]
            seen.go_to(*here)
            index = end - int(ends[at]) + number
            seen.fill(batch, epoch=seen.epoch, index=index)
            found["stages"].update((1 << batch["tokens"].max(axis=1).astype(np.int64)).tolist())
            done = 0
            for count, by_run in zip(seen._counts(seen.epoch, index), runs, strict=True):
                np.add.at(by_run, batch["run"][done:][:count], 1)
                done += count
        for server, table, by_run in zip(servers, tables, runs, strict=True):
            by_session = np.diff(np.append(0, np.cumsum(by_run))[table.firsts])
            for session, count in zip(server.corpus.sessions, by_session.tolist(), strict=True):
                found["sessions"][session.name] += count
                found["players"][player_label(session.meta)] += count
            by_label = by_run @ server.corpus.run_labels(self._tiles)
            found["labels"].update(dict(zip(self._tiles, by_label.tolist(), strict=True)))
        rows = 0
        for (_, position, start, *_), end in ranges:
            shares = self._shares_from(start)
            rows += (shares.consumed(end) - shares.consumed(position)) // self.world_size
        counted = found["stages"].total()
        scaled = {
            name: {key: round(count * rows / counted) for key, count in counts.items() if count}
            for name, counts in found.items()
        }
        return {"rows": rows, "counted": counted, **scaled}

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
        """Pickle the options and the position; unpickling opens the rest again."""
        options = {**self._options, "seed": self.seed, "shuffle": self.shuffle, "augment": self.augment}
        made = self.source, self.batch_size, options
        return {"made": made, "position": self.here, "handed_out": self._handed_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        source, batch_size, options = state["made"]
        self.__init__(source, batch_size, **options)  # type: ignore[misc]
        self.go_to(*state["position"])
        self._handed_out = state["handed_out"]


class MixedBatches(Batches):
    """Batches of a mixture; options as for :class:`Batches`, and all batches are whole.

    The weights of each source are divided by their mean (``mean_weights``), so that its share of the rows is
    its share of a weighted loss.
    """

    def _open(self) -> tuple[list[RowServer], list[int]]:
        mixture, options = self.source, self._options
        counts = mixture.rows_of_batch(self.batch_size)
        if mixture.grows and self.world_size > 1:
            msg = f"sources that are functions can differ between ranks: found {self.world_size}, expected 1"
            raise ConfigError(
                msg, hint="Open the same sessions on all ranks, and make batches for each epoch."
            )
        self._lock, self._sums = threading.Lock(), dict[tuple[int, int], list[tuple[int, ...]]]()
        shares = [1 / len(counts)] * len(counts) if callable(mixture.shares) else mixture.shares
        extra = options["extra"] or {}
        if any(len(arrays) != len(counts) for arrays in extra.values()):
            found = {name: len(arrays) for name, arrays in extra.items()}
            raise ValueError(
                f"extra has these numbers of arrays: {found}; expected {len(counts)} for each name, one for "
                "each source"
            )
        servers = []
        for number, (one, share, rows) in enumerate(zip(mixture.sources, shares, counts, strict=True)):
            own: BatchOptions = {
                **options,
                "pool_rows": None if self.pool_rows is None else int(self.pool_rows * share),
                "extra": {name: arrays[number] for name, arrays in extra.items()},
            }  # fmt: skip
            servers.append(_open_server(one, rows, own, (0, 1)))
            if servers[-1].layout != servers[0].layout:
                raise CorpusError(
                    f"source {number} of the mixture: "
                    f"{describe_difference(servers[-1].layout, servers[0].layout)}, as in source 0",
                    hint="Open the sessions as one corpus, which joins names, or leave the field out.",
                )
        has_weights = "weight" in servers[0].layout.fields
        self.mean_weights = tuple(server.mean_weight if has_weights else 1.0 for server in servers)
        self.corpus, self.drop_last = mixture, True
        self.rows = self._shared_rows = len(mixture)
        return servers, [self.world_size * rows for rows in counts]

    def _counts(self, epoch: int, index: int) -> Sequence[int]:
        if not callable(self.source.shares):
            return super()._counts(epoch, index)
        start = self.start if epoch == self.epoch else 0
        after, before = self._taken(epoch, start, index + 1), self._taken(epoch, start, index)
        return [(b - a) // self.world_size for a, b in zip(before, after, strict=True)]

    def _taken(self, epoch: int, start: int, position: int) -> Sequence[int]:
        if not callable(self.source.shares):
            return super()._taken(epoch, start, position)
        first = start // (self.batch_size * self.world_size)
        with self._lock:
            if (epoch, start) not in self._sums:
                self._sums = {(epoch, start): [tuple(0 for _ in self._servers)]}
            sums = self._sums[epoch, start]
            while len(sums) <= position:
                step = first + len(sums) - 1
                counts = self.source.rows_of_batch(self.batch_size, epoch=epoch, step=step)
                sums.append(tuple(a + self.world_size * b for a, b in zip(sums[-1], counts, strict=True)))
            return sums[position]

    def _bases_of(self, epoch: int) -> list[int]:
        if not callable(self.source.shares):
            return super()._bases_of(epoch)
        if epoch == self.epoch:
            return list(self._bases)
        rows, first, whole = [0] * len(self._servers), 0, self._shares_from(0).batches
        if epoch > self.epoch:
            rows, first = self._bases, self.epoch + 1
            rows = [a + b for a, b in zip(rows, self._taken(self.epoch, self.start, len(self)), strict=True)]
        for between in range(first, epoch):
            rows = [a + b for a, b in zip(rows, self._taken(between, 0, whole), strict=True)]
        return rows

    @property
    def sessions(self) -> list[list[str]]:
        """Names of the sessions of each source that is a function; empty for other sources."""
        names: list[list[str]] = self.source.sessions() if self.source.grows else []
        return names

    def next_epoch(self) -> None:
        """Go to the start of the next epoch; call sources that are functions again."""
        super().next_epoch()
        new = self.source.refresh() if self.source.grows else self.source
        if new is not self.source:
            pairs = zip(self._bases, self.source.sources, new.sources, strict=True)
            self._bases = [base if one is other else 0 for base, one, other in pairs]
            self._use(new)

    def _use(self, mixture: Any) -> None:
        """Serve another mixture, whose rows are counted from here on."""
        self.source = mixture
        self._servers, self._strides = self._open()
        if self._servers[0].layout != self.layout:
            found = describe_difference(self._servers[0].layout, self.layout)
            raise CorpusError(f"source 0 of the mixture has changed: {found}")
        self._since = self.here
        self._served.clear()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Sources that are functions serve the sessions of the state."""
        before, names = self.source, state.get("sessions")
        try:
            if names and self.source.grows:
                self._use(self.source.of_sessions(names))
            super().load_state_dict(state)
        except StateError:
            self._use(before)
            raise

    def _fill(self, batch: Batch, epoch: int, index: int, _first: int, _count: int) -> None:
        done, counts = 0, self._counts(epoch, index)
        taken = self._taken(epoch, self.start if epoch == self.epoch else 0, index)
        bases = self._bases_of(epoch)
        for number, (server, rows) in enumerate(zip(self._servers, counts, strict=True)):
            seed = (self.seed + number * _SEEDS_APART) % (1 << 64)  # equal sources have different orders
            place, end = bases[number] + taken[number] + self.rank * rows, done + rows
            while done < end:
                turn, first = divmod(place, server.rows)
                count = min(end - done, server.rows - first)
                arrays = {name: array[done : done + count] for name, array in batch.arrays.items()}
                self._serve(server, Batch(arrays, self.layout), (seed, turn), (first, count))
                if "weight" in arrays:
                    arrays["weight"] /= np.float32(self.mean_weights[number])
                done, place = done + count, place + count
        batch.rows = done


def _checked(options: BatchOptions) -> BatchOptions:
    """Return options of the expected types, and this process's rank; errors as for :class:`Batches`."""
    own = options.copy()
    own["seed"] = as_int("seed", options["seed"])
    if not 0 <= own["seed"] < 1 << 64:
        raise ValueError(f"seed={options['seed']}; expected 0 <= seed < 2**64")
    if options["augment"] not in {None, "d4"}:
        raise ValueError(f"augment={options['augment']!r}; expected None or 'd4'")
    own["shuffle"], own["drop_last"] = bool(options["shuffle"]), bool(options["drop_last"])
    if options["pool_sessions"] is not None:
        own["pool_sessions"] = as_int("pool_sessions", options["pool_sessions"])
        if options["pool_rows"] is None:
            raise ValueError("pool_sessions needs pool_rows, the number of rows in a pool")
    _check_window(own)
    if options["pool_rows"] is not None:
        own["pool_rows"] = as_int("pool_rows", options["pool_rows"])
        if not own["shuffle"]:
            raise ValueError("pool_rows with shuffle=False; expected None, since rows in order need no pool")
    return own


def _check_window(own: BatchOptions) -> None:
    own["stride"], own["pad"] = as_int("stride", own["stride"]), bool(own["pad"])
    if own["window"] is None:
        if own["stride"] != 1 or not own["pad"]:
            raise ValueError("stride and pad need window, the number of boards in a window")
        return
    own["window"] = as_int("window", own["window"])
    if min(own["window"], own["stride"]) < 1:
        raise ValueError(f"window={own['window']}, stride={own['stride']}; expected at least 1 of each")
    if own["pool_rows"] is not None:
        raise ValueError("pool_rows with window; expected None, since a pool lacks the rows after its rows")


def launched_ranks(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    found = []
    for name, given, default in (("RANK", rank, "0"), ("WORLD_SIZE", world_size, "1")):
        text = os.environ.get(name) or default
        try:
            found.append(int(text) if given is None else given)
        except ValueError as error:
            msg = f"${name} is {text!r}; expected a whole number"
            raise ConfigError(msg, hint=_RANKS_HINT) from error
    rank, world_size = as_int("rank", found[0]), as_int("world_size", found[1])
    if not 0 <= rank < world_size:
        msg = f"rank {rank} of {world_size}; expected 0 <= rank < world_size"
        raise ConfigError(msg, hint=_RANKS_HINT)
    return rank, world_size
