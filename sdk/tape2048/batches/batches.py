"""Batches of a corpus, epoch after epoch: shuffled, shared among ranks, resumable to the row.

What stands in batch b of epoch e is decided by (seed, e, b) and the settings alone. So a loader's whole
state is three integers, resuming is starting at another b, and any thread can fill any batch::

    batches = corpus.batches(4096, seed=7)
    for batch in batches:  # the rest of this epoch, in one buffer that is filled anew
        train(batch["tokens"], batch["labels"])

**From threads.** :meth:`Batches.fill` takes the epoch and the number of a batch, and changes nothing but
the buffer it is given: it may run in any number of threads, each with buffers of its own from
:meth:`Batches.buffer`, and it lets the GIL go for the whole batch (but for some microseconds). A
prefetching loader keeps a ring of buffers, hands out numbers ``batches.position, batches.position + 1,
...`` below ``len(batches)`` to its threads, passes the buffers on in this order, and calls
:meth:`Batches.advance` for each batch that it passes on, so that :meth:`Batches.state_dict` counts what
was consumed and not what was made ahead. With ``pool_rows`` the numbers should come nearly in order,
since a pool is read for many of them.

**Ranks.** An epoch is one sequence of batches, dealt in turns: rank r of W has every W-th. Of the rows
after the last W whole batches, each rank gets an equal share as a short batch (with ``drop_last``: none),
and fewer than W rows are left out of the epoch. So all ranks have the same number of batches, no row comes
twice, and one number says how far all of them are. With ``pool_rows`` chunks are dealt in turns, and each
rank serves as many rows as the one with the fewest: fewer than 2 (W - 1) chunks are left out, at most one row
in 32, other ones in each epoch.

**Pools.** ``shuffle=True`` reads single rows from all over the corpus. What does not fit into memory and
lies on a slow disk is served by ``pool_rows`` better: chunks of rows are read in order, in a random order
of the chunks, some of them at a time; batches are drawn at random from those. See ``pool`` for what that
gives up.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from tape2048.base.guide import make_guide
from tape2048.base.text import as_int
from tape2048.batches import gather_kernel
from tape2048.batches.fields import FIELDS, Batch, Layout, check_fields, check_label_dtype
from tape2048.batches.gatherer import Gatherer
from tape2048.batches.plan import NO_CAP, Cap, Order
from tape2048.batches.pool import PoolReader
from tape2048.batches.shuffle import Permutation
from tape2048.errors import CorpusError, EmptyCorpusError, LoaderStateError, RankError
from tape2048.session.labels import DEFAULT_THRESHOLDS, check_thresholds
from tape2048.store.view import CappedView, View, check_corpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.batches.fields import LabelDtype

__all__ = ["FIELDS", "Batch", "Batches"]

STATE_VERSION = 2
#: States of this version count where nothing is shuffled: since then, shuffles alone became others.
_SHUFFLED_OTHERWISE = 1


class _State(msgspec.Struct, forbid_unknown_fields=True):
    """What :meth:`Batches.state_dict` holds; all of it fits JSON."""

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


class _Draw(NamedTuple):
    """What decides an epoch's rows, given the view."""

    seed: int
    epoch: int
    shuffle: bool
    augment: bool


class _Keys:
    """What an epoch's rows are drawn with."""

    __slots__ = ("cap", "draw", "order", "permutation", "symmetry")

    def __init__(self, rows: int, draw: _Draw) -> None:
        self.draw = draw
        seed, epoch, shuffle, augment = draw
        self.permutation = Permutation(rows, seed=seed, epoch=epoch).keys
        name = b"tape2048 batches 1" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
        words = np.frombuffer(hashlib.sha256(name).digest(), "<u8")
        self.cap = int(words[0])
        self.symmetry = int(words[1]) | 1 if augment else 0  # 0 means no symmetry
        kind = gather_kernel.SHUFFLED if shuffle else gather_kernel.STRAIGHT
        self.order = np.array(Order(kind, cap_key=self.cap, symmetry_key=self.symmetry), np.uint64)


class Batches:
    """The batches of a corpus, as an iterable that goes on where it stopped; see the module.

    Each iteration serves the rest of the current epoch, and leaves the state at the beginning of the next
    one. The batch that it yields is one buffer, overwritten by the next: copy what is to be kept.

    Args:
        source: a corpus, or ``corpus.capped(...)``.
        batch_size: rows of a batch, >= 1.
        shuffle: a new random order in each epoch; else the order of the corpus.
        seed: decides every epoch, 0 <= seed < 2**64.
        fields: what each row gives, out of

            - ``tokens``: the board's exponents, ``u8[B, 16]``;
            - ``labels``: whether its game reached each threshold, ``[B, T]`` of ``label_dtype``;
            - ``row``: number of the row in the corpus, ``i8[B]``, as :meth:`Corpus.get_batch` takes it;
            - ``run``: ordinal of its run in ``corpus.runs``, ``u4[B]``;
            - ``step``: ``step_idx``, ``u4[B]``;
            - ``action``: the recorded move, ``u8[B]``, where sessions have it;
            - ``legal``: legal mask, ``u8[B]``;
            - ``move``: the move recovered from this board and the next, ``u8[B]``: see
            ``tape2048.game.moves``,
              ``UNKNOWN`` where the next board was not recorded (a game's last row, sampled rows);
            - ``symmetry``: which of the 8 was applied, ``u8[B]``;
            - ``embeddings``: bits of bfloat16, ``u2[B, D]``, from the sessions' embeddings files.

        thresholds: tiles of the labels.
        label_dtype: ``"bool"`` or ``"float32"``.
        augment: ``"d4"`` applies one of the square's 8 symmetries to each row, drawn anew each epoch, to
            board, moves and masks together.
        drop_last: leave out the last batch where it is short.
        rank: which of ``world_size`` loaders this is; by default ``$RANK``, or 0.
        world_size: how many loaders share each epoch; by default ``$WORLD_SIZE``, or 1.
        pool_rows: with ``shuffle``, hold at most so many rows in memory and draw from them.

    Attributes:
        corpus: the view whose rows these are.
        seed: as given, or as loaded.
        epoch: the current one, from 0.
        position: batches of this epoch that were consumed.

    Raises:
        TypeError: ``source`` is something else.
        ValueError: a wrong argument.
        RankError: a rank outside [0, world_size), or fewer rows than ranks.
        EmptyCorpusError: with ``drop_last``, not one whole batch.
        CorpusError: a field that these sessions do not have, or that does not go with a setting.
    """

    def __init__(
        self,
        source: View | CappedView,
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
    ) -> None:
        self.batch_size = as_int("batch_size", batch_size)
        self.seed = as_int("seed", seed)
        self.pool_rows = None if pool_rows is None else as_int("pool_rows", pool_rows)
        if self.batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed={seed}; expected 0 <= seed < 2**64")
        if augment not in {None, "d4"}:
            raise ValueError(f"augment={augment!r}; expected None or 'd4'")
        check_label_dtype(label_dtype)
        names = check_fields(fields)
        if augment and "embeddings" in names:
            raise CorpusError("embeddings are those of the boards as they are; augment turns the boards")
        check_corpus(source, or_capped=True)
        self.source = source
        self.corpus: View = source.corpus if isinstance(source, CappedView) else source
        self.shuffle = bool(shuffle)
        self.augment = augment
        self.drop_last = bool(drop_last)
        self.rank, self.world_size = _ranks(rank, world_size)
        self.go_to(0, 0)
        self._rows = len(source)
        tiles = check_thresholds(thresholds)
        self._tiles = tuple(tiles.tolist())
        self._gatherer = Gatherer(self.corpus, names, tiles, _cap_of(source))
        self.layout = Layout(names, len(tiles), label_dtype, self._gatherer.embedding_width)
        self._keys: _Keys | None = None
        self._pool = None
        if self.pool_rows is not None:
            if not self.shuffle:
                raise ValueError("pool_rows is for shuffle=True; the rows in order need no pool")
            self._pool = PoolReader(
                self._gatherer,
                rows=self._rows,
                row_bytes=self.corpus.dtype.itemsize,
                pool_rows=self.pool_rows,
                rank=self.rank,
                world_size=self.world_size,
            )
        self._batch_count = self._count_batches()
        self._check_size()

    # ------------------------------------------------------------------------------------- sizes

    @property
    def rows(self) -> int:
        """Rows of an epoch, all ranks together, before any are left out."""
        return self._rows

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._batch_count

    def _count_batches(self) -> int:
        whole, rest = divmod(self._rank_rows(), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def _rank_rows(self) -> int:
        """Rows of an epoch that the rank with the fewest has."""
        if self._pool is not None:
            return self._pool.rank_rows
        whole, rest = divmod(self._rows, self.batch_size * self.world_size)
        return whole * self.batch_size + rest // self.world_size

    def _check_size(self) -> None:
        if self._rank_rows() == 0:
            raise RankError(
                f"{self._rows:,} rows for {self.world_size} ranks", hint="fewer ranks, or a smaller pool"
            )
        if len(self) == 0:
            raise EmptyCorpusError(
                f"{self._rank_rows():,} rows a rank make no whole batch of {self.batch_size:,}",
                hint="a smaller batch_size, or drop_last=False",
            )

    def _extent(self, index: int) -> tuple[int, int]:
        """First place in the epoch's order, and number of rows, of this rank's batch ``index``."""
        if not 0 <= index < self._batch_count:
            raise IndexError(f"batch {index}; expected 0 <= index < {len(self)}")
        size, world = self.batch_size, self.world_size
        if self._pool is not None:
            return index * size, min(size, self._pool.rank_rows - index * size)
        whole, rest = divmod(self._rows, size * world)
        if index < whole:
            return (index * world + self.rank) * size, size
        # Equal shares, and fewer rows left out than there are ranks: equal shapes on all ranks are what a
        # collective operation wants.
        share = rest // world
        return whole * size * world + self.rank * share, share

    # ----------------------------------------------------------------------------------- batches

    def buffer(self, arrays: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """A batch to fill: with new arrays, or with the caller's (pinned, shared, ...), one for each field.

        Raises:
            ValueError: an array is missing, or not of its field's type, shape ``[batch_size, ...]`` or order.
        """
        if arrays is None:
            return Batch.allocate(self.layout, self.batch_size)
        batch = Batch(arrays, self.layout)
        if batch.capacity < self.batch_size:
            raise ValueError(f"buffers for {batch.capacity} rows; expected {self.batch_size}")
        return batch

    def fill(self, batch: Batch, *, epoch: int, index: int) -> int:
        """Make batch ``index`` of an epoch, without touching the state; see the module on threads.

        Args:
            batch: from :meth:`buffer`, or of other batches with the same fields and labels.
            epoch: >= 0.
            index: 0 <= index < ``len(self)``.

        Returns:
            Its number of rows, also ``batch.rows``.

        Raises:
            IndexError: no such batch.
            ValueError: a buffer of other fields or labels, or for fewer rows; a number that is not whole.
            RowsGoneError: with ``pool_rows`` and mapped rows, a file was truncated.
        """
        first, count = self._extent(as_int("index", index))
        epoch = as_int("epoch", epoch)
        if batch.layout != self.layout or batch.capacity < count:
            raise ValueError(
                f"a buffer for {batch.capacity} rows of {batch.layout}; expected {count} of {self.layout}"
            )
        keys = self._keys_of(epoch)
        if self._pool is not None:
            self._pool.fill(
                batch,
                seed=keys.draw.seed,
                epoch=epoch,
                first=first,
                count=count,
                cap_key=keys.cap,
                symmetry_key=keys.symmetry,
            )
        else:
            self._gatherer.fill(keys.order, (first, count), batch, keys.permutation)
        assert batch.rows == count
        return count

    def _keys_of(self, epoch: int) -> _Keys:
        # One attribute, read once: another thread may replace it meanwhile.
        keys = self._keys
        draw = _Draw(self.seed, epoch, self.shuffle, bool(self.augment))
        if keys is None or keys.draw != draw:
            keys = self._keys = _Keys(self._rows, draw)
        return keys

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, batch: Batch | None = None) -> Iterator[Batch]:
        """The rest of this epoch, in a given buffer or a new one; then the next epoch is the current one.

        Raises:
            RowsGoneError: mapped rows were truncated since the corpus was opened.
        """
        self.begin()
        self.check_files()
        batch = batch or self.buffer()
        while self.position < len(self):
            self.fill(batch, epoch=self.epoch, index=self.position)
            # Counted as it is handed out: a state that is taken in the loop's body has this batch behind it.
            self.advance()
            yield batch
        self.next_epoch()

    def check_files(self) -> None:
        """Make sure that the files that batches are read from are as long as they were.

        Raises:
            RowsGoneError: mapped rows were truncated since the corpus was opened.
        """
        if self._gatherer.reads_rows or self._pool is not None:
            self.corpus.store.check_files()

    def begin(self) -> None:
        """Be where an iteration begins: in the next epoch, if all batches of this one were handed out here.

        Who takes ``len(batches)`` of them, and asks for no more, does not end the epoch. (After
        :meth:`load_state_dict` the rest of an epoch may well be empty.)
        """
        if self.is_over:
            self.next_epoch()

    @property
    def is_over(self) -> bool:
        """Whether all batches of the current epoch were handed out here; see :meth:`begin`."""
        return self._handed_out and self.position >= len(self)

    def advance(self, count: int = 1) -> None:
        """Count batches of this epoch as consumed."""
        self.position += count
        self._handed_out = True

    def next_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.go_to(self.epoch + 1, 0)

    def go_to(self, epoch: int, position: int) -> None:
        """Go to a batch of an epoch, which is not checked."""
        self.epoch, self.position = epoch, position
        self._handed_out = False

    # ------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from, as plain values; the same on all ranks but for ``rank``."""
        return msgspec.structs.asdict(self._state())

    def _state(self) -> _State:
        return _State(
            version=STATE_VERSION,
            seed=self.seed,
            epoch=self.epoch,
            position=self.position,
            corpus=self.source.identity,
            rows=self._rows,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            pool_rows=self.pool_rows,
            rank=self.rank,
            world_size=self.world_size,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: with its seed, in its epoch, at its position.

        The state of any rank will do, since all ranks are equally far. Fields, thresholds and
        augmentation may be other ones than before.

        Raises:
            LoaderStateError: malformed, of another version (if that shuffled: its order was another one), or
                of other rows, another batch size, or other ranks, ...; the message names all that differ.
        """
        try:
            found = msgspec.convert(dict(state), _State)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise LoaderStateError(f"no state of a loader: {error}") from error
        mine = self._state()
        free = {"seed", "epoch", "position", "rank"}
        if found.version == _SHUFFLED_OTHERWISE and not found.shuffle:
            free.add("version")
        differing = [
            f"{name} {getattr(found, name)!r}, not {getattr(mine, name)!r}"
            for name in _State.__struct_fields__
            if name not in free and getattr(found, name) != getattr(mine, name)
        ]
        if differing:
            hints = []
            if differing[0].startswith("version "):
                hints.append("another version of tape2048 shuffles otherwise: begin the epoch again")
            if len(differing) > len(hints):
                hints.append(
                    "open the same sessions with the same filters, and make batches with the same settings"
                )
            raise LoaderStateError(
                f"the state is of a loader with {'; '.join(differing)}", hint="; ".join(hints)
            )
        if not (
            0 <= found.seed < 1 << 64 and 0 <= found.epoch < 1 << 64 and 0 <= found.position <= len(self)
        ):
            raise LoaderStateError(
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

    def __getstate__(self) -> dict[str, Any]:
        """For pickling to a worker process: the settings and the state, not what was built from them."""
        settings = {
            name: getattr(self, name)
            for name in ("shuffle", "seed", "augment", "drop_last", "rank", "world_size", "pool_rows")
        }
        settings |= {
            "fields": self.layout.fields,
            "thresholds": self._tiles,
            "label_dtype": self.layout.label_dtype,
        }
        return {"source": self.source, "batch_size": self.batch_size, "settings": settings,
                "epoch": self.epoch, "position": self.position, "handed_out": self._handed_out}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"], state["batch_size"], **state["settings"])  # type: ignore[misc]
        self.go_to(state["epoch"], state["position"])
        self._handed_out = state["handed_out"]


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of ranks, from the environment where they are not given."""
    found = []
    for name, given, default in (("RANK", rank, 0), ("WORLD_SIZE", world_size, 1)):
        if given is not None:
            found.append(as_int(name.lower(), given))
            continue
        text = os.environ.get(name, "")
        try:
            found.append(int(text) if text else default)
        except ValueError as error:
            raise RankError(f"${name} is {text!r}; expected a whole number") from error
    if not 0 <= found[0] < found[1]:
        raise RankError(f"rank {found[0]} of {found[1]}; expected 0 <= rank < world_size")
    return found[0], found[1]


def _cap_of(source: View | CappedView) -> Cap:
    if not isinstance(source, CappedView):
        return NO_CAP
    return Cap(make_guide(source.starts), evenly=source.spread == "even")
