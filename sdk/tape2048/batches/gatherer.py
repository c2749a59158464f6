"""The gather as Python calls it: plans of views, orders of rows, and errors for wrong ones.

Importing this loads numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.batches import gather_kernel
from tape2048.batches.plan import NO_CAP, NO_POOL, Order, Outputs, Plan, address_of
from tape2048.errors import CorpusError, MixedRowsError
from tape2048.formats.session import ACTION_STEP_DTYPE
from tape2048.io.reading import populate
from tape2048.session.embeddings import EMBEDDINGS_NPY, open_embeddings
from tape2048.session.labels import exponents_of
from tape2048.store.row_map import NO_LABELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.batches.fields import Batch
    from tape2048.batches.plan import Cap, Pool
    from tape2048.store.view import View

_NO_KEYS = np.empty(0, np.uint64)
_NO_THRESHOLDS = np.empty(0, np.int64)

_LISTED_WORDS = np.array(Order(gather_kernel.LISTED), np.uint64)
_LISTED = Order._fields.index("listed")
_RECORD_WORDS = np.array(Outputs(), np.uint64)
_RECORDS = Outputs._fields.index("records")


#: Fields that packed boards do not have.
_OF_ROWS = frozenset({"step", "action", "move"})


class Gatherer:
    """A view with all that the kernel needs for some fields of its rows; holds the rows alive.

    Args:
        view: whose rows.
        fields: what will be asked for.
        thresholds: tiles, ``i64[T]``.
        cap: at most so many rows of each run.

    Attributes:
        plan: of the view.
        rowmap: of the view.
        reads_rows: whether any field is read from the rows themselves, and not from packed boards.
        embedding_width: D; 0 without embeddings.

    Raises:
        CorpusError: the rows have no action, and ``fields`` asks for it.
        EmbeddingsError: a session has no embeddings, or others.
        MixedRowsError: embeddings of several models, or widths.
    """

    def __init__(
        self, view: View, fields: tuple[str, ...], thresholds: NDArray[np.int64], cap: Cap = NO_CAP
    ) -> None:
        if "action" in fields and view.dtype != ACTION_STEP_DTYPE:
            raise CorpusError(
                "these rows have no action",
                path=view.sessions[0].path,
                hint='record with record_action = true; the field "move" recovers moves from the boards',
            )
        # Not the view: a corpus holds this one, and memory of a cycle waits for the collector.
        self._store = view.store
        self.rowmap = view.rowmap
        self._cap = cap
        self.reads_rows = view.store.boards is None or bool(_OF_ROWS & set(fields))
        # Comparing exponents is comparing tiles: a threshold is a power of two.
        self._exponents = exponents_of(view.runs["highest_tile"])
        self._thresholds = exponents_of(thresholds)
        self._labels = view.label_guide if "labels" in fields else NO_LABELS
        self.plan = self.plan_of(NO_POOL)
        self._embeddings: list[NDArray[np.uint16]] = []
        self._embedding_addresses = _NO_KEYS
        self.embedding_width = 0
        if "embeddings" in fields:
            self._open_embeddings(view)

    def plan_of(self, pool: Pool) -> Plan:
        """The plan with rows that were copied out of the view."""
        return Plan(self.rowmap, self._exponents, self._thresholds, self._cap, pool, labels=self._labels)

    def fill(
        self, order: NDArray[np.uint64], places: tuple[int, int], batch: Batch, keys: NDArray[np.uint64]
    ) -> int:
        """Fill a batch from its first row on; returns how many places were within the view.

        Safe in any number of threads, each with a batch of its own; the GIL is free meanwhile.

        Args:
            order: the entries of an ``Order``, ``u64``.
            places: the first one (where they are not listed), and how many.
            batch: has room for as many rows.
            keys: ``Permutation.keys`` where the order is SHUFFLED.
        """
        assert places[1] <= batch.capacity
        done: int = gather_kernel.fill(self.plan.words, order, places, keys, batch.words)
        self.finish(batch, done)
        return done

    @staticmethod
    def fill_part(
        plan: Plan, order: Order, places: tuple[int, int], batch: Batch, keys: NDArray[np.uint64], *, at: int
    ) -> None:
        """As :meth:`fill`, out of a pool, to row ``at`` and after; :meth:`finish` has to follow."""
        assert at + places[1] <= batch.capacity
        words = batch.words_from(at) if at else batch.words
        done = gather_kernel.fill(plan.words, np.array(order, np.uint64), places, keys, words)
        assert done == places[1]

    def finish(self, batch: Batch, rows: int) -> None:
        """Say how many rows a batch has, and add their embeddings."""
        batch.rows = rows
        if self.embedding_width:
            segment, base = batch.places
            row_bytes = np.uint64(2 * self.embedding_width)
            out = batch["embeddings"].view(np.uint8)
            gather_kernel.copy_rows(self._embedding_addresses, segment, base, row_bytes, out)

    def check_files(self) -> None:
        """See ``Store.check_files``."""
        self._store.check_files()

    def _open_embeddings(self, view: View) -> None:
        """Embeddings of the sessions that the view has rows of, and each segment's address in them."""
        segments = view.segments
        made: set[tuple[str, str, int]] = set()
        addresses = np.zeros(len(view.sessions), np.uint64)
        for owner in np.unique(segments.session).tolist():
            session = view.sessions[owner]
            found = open_embeddings(session)
            made.add((found.model_sha, found.pooling, found.values.shape[1]))
            if len(made) > 1:
                raise MixedRowsError(
                    f"embeddings of different models: {sorted(made)}", path=session.path / EMBEDDINGS_NPY
                )
            addresses[owner] = address_of(found.values)
            self._embeddings.append(found.values)
        # With rows in memory, embeddings that would fit as well are at least in the page cache.
        bytes_of_all = sum(values.nbytes for values in self._embeddings)
        if self._store.load != "mmap" and bytes_of_all <= ram_available() // 2:
            for values in self._embeddings:
                populate(values)
        self.embedding_width = made.pop()[2]
        row_bytes = np.uint64(2 * self.embedding_width)
        first = self.rowmap.guide.starts[:-1]
        place = segments.place.astype(np.uint64)
        # Modulo 2**64, as for the rows: the address of the view's row 0, were it in this segment.
        self._embedding_addresses = addresses[segments.session] + (place - first) * row_bytes


def gather(
    gatherer: Gatherer,
    numbers: NDArray[np.int64],
    *,
    batch: Batch | None = None,
    records: NDArray[np.uint8] | None = None,
) -> None:
    """Fill a batch, or whole records, with the rows of these numbers.

    Raises:
        IndexError: a number outside the view; the rows before it are filled.
    """
    if batch is not None:
        order = np.array(Order(gather_kernel.LISTED, address_of(numbers)), np.uint64)
        done = gatherer.fill(order, (0, len(numbers)), batch, _NO_KEYS)
    else:
        assert records is not None
        if gatherer.plan.line is not None:
            done = gather_kernel.copy_records(*gatherer.plan.line, numbers, records)
            _check_done(done, numbers, gatherer)
            return
        # Copies of words that are the same each time: three microseconds less than making them anew.
        order, target = _LISTED_WORDS.copy(), _RECORD_WORDS.copy()
        order[_LISTED], target[_RECORDS] = address_of(numbers), address_of(records)
        done = gather_kernel.fill(gatherer.plan.words, order, (0, len(numbers)), _NO_KEYS, target)
    _check_done(done, numbers, gatherer)


def _check_done(done: int, numbers: NDArray[np.int64], gatherer: Gatherer) -> None:
    if done < len(numbers):
        raise IndexError(f"row {numbers[done]}; expected 0 <= row < {gatherer.rowmap.view_rows}")


def record_gatherer(view: View) -> Gatherer:
    """A gatherer for whole rows."""
    return Gatherer(view, (), _NO_THRESHOLDS)
