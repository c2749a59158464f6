"""Gathers: fields of rows of a view, in any order. Importing this loads numba.

A gather takes an ``Order`` of places and a range of them, and fills a batch. The plan of its steps is made
once for a view and some fields.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.errors import CorpusError
from tape2048.files.bulk_read import allocate
from tape2048.files.reading import populate
from tape2048.loader import gather_kernel
from tape2048.loader.ahead import Ahead
from tape2048.loader.batch import (
    Batch,
    BatchLayout,
    Outputs,
    floats_of,
    make_fields,
    output_of,
    words_of,
)
from tape2048.loader.order import Order
from tape2048.loader.plan import NO_CAP, Cap, Labels, Plan, Pool
from tape2048.loader.row_map import BOARD_BYTES, NO_LABELS, address_of
from tape2048.session.batch_fields import field_of
from tape2048.session.run_table import exponents_of
from tape2048.session.stored import Hold, check_fits, prefetch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.loader.column_fields import ViewColumn
    from tape2048.loader.row_view import ViewTables
    from tape2048.loader.run_columns import RunColumns

_LINE_BYTES = 64
_NAMED = 5  # sessions that an error names
_F32_MAX = float(np.finfo(np.float32).max)

#: Rows that show the mean of a weight, in this many parts: 1e9 rows take 4 GB of a column.
_SAMPLE_ROWS, _SAMPLE_PARTS = 1 << 20, 256

#: Binary logarithm of the rows that are copied together to a pool, or to the columns.
CHUNK_SHIFT = 16


class _Held(dict[str, Any]):
    """Columns of a run table that fields need, which stay in memory once they are read."""

    def __init__(self, runs: RunColumns) -> None:
        self._runs = runs

    def __missing__(self, name: str) -> NDArray[Any]:
        self[name] = column = self._runs[name]
        return column


class Gatherer:
    """A view with the tables that the kernel needs for some fields of its rows; keeps the rows alive.

    ``reads_rows`` is false if packed boards in memory suffice. ``fetches``: :meth:`hold` brings the rows from
    stores. ``pool_stride`` is the bytes of a pool's row, with its values in all columns. ``session_starts``
    (``i64[S + 1]``) are in the order of the view, after the cap.
    """

    def __init__(
        self,
        tables: ViewTables,
        fields: tuple[str, ...],
        thresholds: NDArray[np.int64],
        cap: Cap = NO_CAP,
        columns: Sequence[ViewColumn] = (),
        *,
        joins: bool | None = None,
    ) -> None:
        if "action" in fields and (without := tables.without_action):
            names = ", ".join(session.name for session in without[:_NAMED])
            more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
            raise CorpusError(
                f"no action in the rows of {counted(len(without), 'session')}: {names}{more}",
                path=without[0].path,
                hint='leave these sessions out, or use the field "move", which is recovered from the boards',
            )
        # Not the view: it may hold this gatherer, and only the garbage collector frees a cycle.
        self.store = tables.store
        self._rowmap, self._runs, self._held_runs = tables.rowmap, tables.runs, _Held(tables.runs)
        if not fields and len(self._rowmap.tape.span):  # for records
            tape = self._rowmap.tape._replace(ids=np.ascontiguousarray(tables.runs["run_id"]))
            self._rowmap = self._rowmap._replace(tape=tape)
        own = {found for name in fields if (found := field_of(name))}
        own |= {found for field in own for name in field.needs if (found := field_of(name))}
        of_boards = not any(field.of_rows for field in own)
        self.reads_rows = tables.store.boards is None or not of_boards
        self._ahead: Ahead | None = None
        if any(field.moves is not None for field in own):
            self._ahead = Ahead(tables, fields, lambda whole, of: Gatherer(whole, of, np.empty(0, np.int64)))
        # Comparing exponents is comparing tiles: a threshold is a power of two.
        label_guide = tables.label_guide if "labels" in fields else NO_LABELS
        exponents = self._rowmap.of_runs(tables.exponents)
        labels = Labels.of(exponents, exponents_of(thresholds), label_guide)
        self._columns = columns
        self._plan = Plan.of(self._rowmap, labels, cap, [each.entries for each in columns])
        self.words = self._plan.words
        # Address of row 0, number of rows and bytes of a row, if all rows are adjacent, in the view's order.
        at, self._line = self._rowmap, None
        if at.row_line and not (at.mask.words.size or cap.firsts.size):
            self._line = np.uint64(at.row_line), np.uint64(at.rows), np.uint64(at.row_bytes)
        starts = self._rowmap.run_starts[tables.runs.firsts]
        if len(cap.guide.entries):
            starts = cap.guide.starts[np.searchsorted(cap.firsts, starts)]
        self.session_starts = starts.astype(np.int64)
        self.fetches = tables.store.remote and self.reads_rows
        self._held: Hold | None = None
        self.takes_boards = of_boards and bool(self._plan.packed or joins)
        own_bytes = BOARD_BYTES if self.takes_boards else self._rowmap.row_bytes
        *self._offsets, end = np.cumsum([own_bytes, *(each.info.row_bytes for each in columns)]).tolist()
        power = 1 << (end - 1).bit_length()
        # Rows that do not cross a cache line are worth a third more memory.
        self.pool_stride = power if columns and power <= _LINE_BYTES and 3 * power <= 4 * end else end
        rows = int(self._rowmap.run_starts[-1])
        if joins is None or self.store.load == "mmap" or rows * self.pool_stride > ram_available() // 2:
            return
        if joins and self.takes_boards:
            self._join(self.allocate_pool(rows))
        else:
            for values in itertools.chain(*(column.kept for column in columns if column.paths)):
                populate(values)

    def with_pool(self, pool: Pool) -> Plan:
        columns = self._plan.columns.copy()
        columns[:, :1] = np.array(self._offsets, np.uint64).reshape(-1, 1)
        return self._plan._replace(packed=int(self.takes_boards), pool=pool, columns=columns)

    def _join(self, table: NDArray[np.uint8]) -> None:
        """Copy boards and columns into memory, beside each other.

        Shuffled batches with two columns (four values and a loss) then have 0.8 of the rows/s of batches
        without columns, instead of 0.45.
        """
        order, size = Order.straight(), 1 << CHUNK_SHIFT
        firsts = range(0, len(table), size)
        deque(map_ordered(lambda at: self.read(order, at, table[at : at + size]), firsts), maxlen=0)
        self._plan = self.with_pool(Pool.of(table, np.zeros(1, np.uint64), 63))
        self.words = self._plan.words

    def allocate_pool(self, rows: int) -> NDArray[np.uint8]:
        return allocate(rows * self.pool_stride).reshape(rows, self.pool_stride)

    def read(self, order: Order, first: int, rows: NDArray[np.uint8]) -> None:
        begin, stride = address_of(rows), self.pool_stride
        outputs = Outputs(**{"boards" if self.takes_boards else "records": begin, "stride": stride})
        lines = itertools.chain(*((begin + at, stride) for at in self._offsets))
        target = np.array([*outputs, *lines], np.uint64)
        self.run(self.words, order, (first, len(rows)), target)

    def sessions_of(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return the ordinals of the sessions of some rows; numbers outside the view count for none."""
        inside = numbers[(numbers >= 0) & (numbers < self.session_starts[-1])]
        found: list[int] = np.unique(np.searchsorted(self.session_starts, inside, "right") - 1).tolist()
        return found

    def sessions_between(self, first: int, end: int) -> list[int]:
        starts = self.session_starts
        here = (starts[:-1] < end) & (starts[1:] > first) & (starts[1:] > starts[:-1])
        found: list[int] = np.flatnonzero(here).tolist()
        return found

    def size_of(self, sessions: Iterable[int]) -> int:
        found = (self.store.sessions[each] for each in sessions)
        return sum(session.bytes for session in found if session.is_remote)

    def check_fits(self, sessions: Iterable[int], hint: str) -> None:
        """Raise CorpusError if these sessions are in stores, are read, and the cache cannot hold them all."""
        if self.fetches:
            held = [self.store.sessions[each] for each in sessions]
            check_fits(held, "rows in this order are read from all of them", hint)

    def hold(self, first: int, end: int) -> Hold:
        """Fetch and hold the sessions in stores with rows in [first, end), if rows are read."""
        return self.store.hold(self.sessions_between(first, end) if self.fetches else [])

    def prefetch(self, sessions: Iterable[int], threads: int | None = None) -> None:
        """Fetch sessions that are in stores into the cache; errors as for ``RowBuffers.hold``."""
        if self.fetches:
            prefetch([self.store.sessions[each] for each in sessions], threads)

    def gather(self, numbers: NDArray[np.int64], batch: Batch, order: Order | None = None) -> None:
        """Fill a batch with these rows; IndexError for a number outside the view. ``order`` has its keys."""
        order = order or Order.listed(numbers)
        with self.store.hold(self.sessions_of(numbers) if self.fetches else []):
            done = self.run(self.words, order, (0, len(numbers)), words_of(batch))
            self.finish(batch, done)
        self._check_done(done, numbers)

    def gather_records(self, numbers: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy whole rows to ``out``, ``dtype[n]``; raise IndexError for a number outside the view."""
        held = self.store.hold(self.sessions_of(numbers)) if self.store.remote else None
        records = out.view(np.uint8).reshape(len(out), out.dtype.itemsize)
        if self._line is not None:
            done = gather_kernel.copy_records(*self._line, numbers, records)
            if done < 0:
                self.store.raise_defect(self._rowmap, -1 - done)
        else:
            target = np.array(Outputs(records=address_of(records), stride=records.shape[1]), np.uint64)
            done = self.run(self.words, Order.listed(numbers), (0, len(numbers)), target)
        del held
        self._check_done(done, numbers)

    def _check_done(self, done: int, numbers: NDArray[np.int64]) -> None:
        if done < len(numbers):
            raise IndexError(f"row {numbers[done]}; expected 0 <= row < {int(self._rowmap.run_starts[-1])}")

    def fill(self, order: Order, places: tuple[int, int], batch: Batch) -> None:
        """Fill a batch from the first of ``places`` on, as many as the second; the order is not listed.

        Runs in any number of threads, each with its own batch, and releases the GIL. Sessions in stores are
        held: all for a shuffled order, the batch's for a straight order, until the next batch.
        """
        if self.fetches:
            if not order.shuffled:
                self._held = self.hold(places[0], places[0] + places[1])
            elif self._held is None:
                self._held = self.hold(0, int(self.session_starts[-1]))
        held = self._held  # which another thread may replace
        self.finish(batch, self.run(self.words, order, places, words_of(batch)))
        del held

    def run(
        self, words: NDArray[np.uint64], order: Order, places: tuple[int, int], out: NDArray[np.uint64]
    ) -> int:
        """Call ``gather_kernel.fill``; raise the FormatError of a board or of a step against the rules."""
        done: int = gather_kernel.fill(words, order.words, places, order.keys, out)
        if done < 0:
            self.store.raise_defect(self._rowmap, -1 - done)
        return done

    def finish(self, batch: Batch, rows: int) -> None:
        """Set the number of rows, and make the fields beyond the kernel's; CorpusError if one is invalid."""
        batch.rows, layout = rows, batch.layout
        make_fields(batch, self._held_runs)
        if self._ahead is not None:
            self._ahead.fill(batch)
        if layout.targets:
            targets = floats_of(batch, layout.targets).reshape(rows, layout.thresholds)
            batch["labels"][:] = targets
            self._check(batch, layout.targets, targets, 1.0, "probabilities")
        if layout.weight:
            weights = floats_of(batch, layout.weight)
            batch["weight"][:] *= weights
            self._check(batch, layout.weight, weights, _F32_MAX, "a weight of at least 0")

    def _check(self, batch: Batch, name: str, values: NDArray[Any], most: float, expected: str) -> None:
        if not batch.rows or (values.min() >= 0 and values.max() <= most):  # NaN fails every comparison
            return
        at = int(((values >= 0) & (values <= most)).reshape(batch.rows, -1).all(axis=1).argmin())
        row = int(output_of(batch, "row")[at])
        run = int(np.searchsorted(self._rowmap.run_starts, row, "right")) - 1
        owner = int(np.searchsorted(self._runs.firsts, run, "right")) - 1
        paths = next(each.paths for each in self._columns if each.info.name == name)
        msg = f"{name} is {values[at].tolist()} in row {row} of the corpus; expected {expected}"
        raise CorpusError(msg, path=paths.get(owner))


def check_weights(tables: ViewTables, column: ViewColumn) -> None:
    """Raise CorpusError if no row of a view has a positive weight; reads until there is one."""
    rows, size = int(tables.rowmap.run_starts[-1]), 1 << CHUNK_SHIFT
    if not any((weights > 0).any() for weights in _weights_at(tables, column, range(0, rows, size), size)):
        msg = f"{column.info.name} has no positive weight in {rows:,} rows; expected at least one"
        raise CorpusError(msg, path=column.path)


def mean_weight(tables: ViewTables, column: ViewColumn) -> float:
    """Return the mean weight of a view's rows, or of about 2**20 of them, from all parts of the view."""
    rows, size = int(tables.rowmap.run_starts[-1]), _SAMPLE_ROWS // _SAMPLE_PARTS
    firsts: Iterable[int] = range(0, rows, size)
    if rows > _SAMPLE_ROWS:
        firsts = np.linspace(0, rows - size, _SAMPLE_PARTS).astype(np.int64).tolist()
    total = count = 0.0
    for weights in _weights_at(tables, column, firsts, size):
        total += float(weights[(weights > 0) & (weights < np.inf)].sum(dtype=np.float64))
        count += len(weights)
    return total / count or 1.0


def _weights_at(
    tables: ViewTables, column: ViewColumn, firsts: Iterable[int], size: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the weights of ``size`` rows from each of some rows on, in an array that is used again."""
    gatherer = Gatherer(tables, (), np.empty(0, np.int64), columns=[column])
    batch = Batch.allocate(BatchLayout((column.info.name,), 0, "bool", (column.info,)), size)
    rows, order = int(gatherer.session_starts[-1]), Order.straight()
    for first in firsts:
        batch.rows = gatherer.run(gatherer.words, order, (first, min(size, rows - first)), words_of(batch))
        yield floats_of(batch, column.info.name)
