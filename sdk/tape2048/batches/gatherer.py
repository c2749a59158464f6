"""Python interface of the gather: plans of views, orders of rows, pools, and errors for invalid row numbers.

Importing this loads numba.

**Pools** shuffle in bounded memory: batches are drawn from a pool of chunks, which are read sequentially.

A chunk is 2**16 consecutive rows of the view. An epoch has all chunks in a random order, which the ranks take
in turns. A rank reads as many of its chunks as fit half of ``pool_rows`` into a pool, and serves the pool's
rows in a random order, while a thread reads the next pool into the other half. Both orders are keyed
bijections: (seed, epoch, index) decides a batch, and resuming in the middle reads one pool again.

A batch is a random sample of its pool's chunks, not of the corpus: with c chunks in a pool, it sees about c
places of the corpus. The pool should therefore hold hundreds of chunks: 512 chunks have 33M rows or 0.94 GB,
twice that in memory. Where boards suffice and are packed or on tape, the pool has boards alone: 0.27 GB.

With ``pool_sessions``, the order is random within windows of adjacent chunks with rows of at most so many
sessions, and so is that of the windows. A corpus in a store is then fetched once in an epoch, and two windows
in the cache suffice. The sessions of the next pool are fetched while a pool is served.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tape2048.base.guide import NO_GUIDE, Guide
from tape2048.base.resources import ram_available
from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.batches import gather_kernel
from tape2048.batches.fields import (
    GAME_FIELDS,
    Batch,
    BatchLayout,
    ColumnEntries,
    Order,
    Outputs,
    PlanEntries,
    floats_of,
    words_of,
)
from tape2048.batches.shuffle import Permutation
from tape2048.errors import CorpusError, TapeError
from tape2048.io.bulk_read import allocate
from tape2048.io.reading import populate
from tape2048.rows.row_map import BOARD_BYTES, NO_LABELS, RowMap, address_of, line_of
from tape2048.session.remote_session import Hold, RemoteSession, check_fits, prefetch
from tape2048.session.run_table import exponents_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tape2048.batches.columns import ViewColumn
    from tape2048.rows.view import ViewTables


#: For orders that are not SHUFFLED.
NO_KEYS = np.empty(0, np.uint64)

_LINE_BYTES = 64
_NAMED = 5  # sessions that an error names
#: Fields that need whole rows, not packed boards.
_OF_ROWS = frozenset({"step", "steps_left", "action", "move"})


class Cap(NamedTuple):
    """A cap on the rows of each range, a run or a part of a run. The order's key draws them.

    Attributes:
        guide: over the capped numbers of the ranges' rows.
        firsts: the view's number of each range's first row, and the number of rows, ``u64[n + 1]``.
        evenly: draw at equal distances, not one random row of each of equal stretches.
        weights: rows of the view that a drawn row of each range represents, ``f32[n]``.
    """

    guide: Guide
    firsts: NDArray[np.uint64]
    evenly: bool
    weights: NDArray[np.float32]


class Pool(NamedTuple):
    """Copied rows or boards, each with its values in all columns: chunks of the view, one after the other.

    Attributes:
        rows: the copied rows, or their packed boards, ``u8[n, stride]``.
        firsts: the view's number of each chunk's first row, ``u64[C]``.
        shift: a chunk has ``2**shift`` rows; only the last one may be shorter.
        packed: whether they are packed boards.
    """

    rows: NDArray[np.uint8]
    firsts: NDArray[np.uint64]
    shift: int
    packed: bool


NO_CAP = Cap(NO_GUIDE, NO_GUIDE.starts, evenly=False, weights=np.empty(0, np.float32))
NO_POOL = Pool(np.empty((0, 0), np.uint8), np.empty(0, np.uint64), 0, packed=False)


class GatherPlan:
    """The tables of a view, or of a pool of its rows, as the kernel takes them. The rows are the caller's.

    Attributes:
        words: the entries of ``PlanEntries``, ``u64``.
        packed: whether boards are served as words.
        line: address of row 0, number of rows and bytes of a row, ``u64``, if all rows are adjacent in memory
            and in the view's order. Otherwise, None.
    """

    __slots__ = ("_kept", "line", "packed", "words")

    def __init__(
        self,
        rows: RowMap,
        exponents: NDArray[np.uint8],
        thresholds: NDArray[np.uint8],
        cap: Cap = NO_CAP,
        pool: Pool = NO_POOL,
        *,
        labels: NDArray[np.uint32] = NO_LABELS,
        columns: Sequence[ColumnEntries] = (),
    ) -> None:
        by_segment = exponents[rows.run]
        pooled = len(pool.rows) > 0
        in_memory = len(rows.board) > 0 and not pooled
        packed = pool.packed if pooled else in_memory or rows.tape.alone
        numbers = cap.guide.starts if len(cap.guide.entries) else rows.run_starts
        patterns = np.zeros((256 if len(thresholds) <= 8 else 0, 8), np.uint8)
        patterns[:, : len(thresholds)] = np.arange(len(patterns))[:, None] >= thresholds[:8]
        entries = np.array(columns, np.uint64)
        tables = PlanEntries(
            limit=numbers[-1],
            entries=address_of(rows.guide.entries),
            starts=address_of(rows.guide.starts),
            shift=rows.guide.shift,
            line=0 if len(rows.strides) else line_of(rows.address),
            address=address_of(rows.address),
            strides=address_of(rows.strides),
            packed=int(packed),
            board_line=line_of(rows.board) if in_memory else 0,
            board=address_of(rows.board) if in_memory else 0,
            run=address_of(rows.run),
            end=address_of(rows.end),
            rows=rows.rows,
            row_bytes=rows.row_bytes,
            words=address_of(rows.mask.words),
            ranks=address_of(rows.mask.ranks),
            samples=address_of(rows.mask.samples),
            cap_entries=address_of(cap.guide.entries),
            cap_starts=address_of(cap.guide.starts),
            cap_firsts=address_of(cap.firsts),
            cap_shift=cap.guide.shift,
            cap_evenly=int(cap.evenly),
            pool=address_of(pool.rows),
            pool_firsts=address_of(pool.firsts),
            pool_shift=pool.shift,
            pool_rows=len(pool.rows),
            pool_stride=pool.rows.shape[1],
            labels=address_of(labels),
            exponents=address_of(by_segment),
            thresholds=address_of(thresholds),
            threshold_count=len(thresholds),
            patterns=address_of(patterns),
            weights=address_of(cap.weights),
            tape=address_of(rows.tape.segments),
            runs=address_of(rows.tape.runs["id"]) if len(rows.tape.segments) else 0,
            run_bytes=rows.tape.runs.itemsize,
            columns=address_of(entries),
            column_count=len(columns),
        )
        self.words = np.array(tables, np.uint64)
        self.packed = packed
        is_line = tables.line and not (tables.words or tables.cap_entries or tables.pool)
        line = np.uint64(tables.line), np.uint64(tables.limit), np.uint64(tables.row_bytes)
        self.line = line if is_line else None
        self._kept = (rows, by_segment, labels, thresholds, patterns, cap, pool, entries)


class Gatherer:
    """A view with the tables that the kernel needs for some fields of its rows; keeps the rows alive.

    Attributes:
        store: the row buffers of the view.
        plan: the kernel's tables.
        reads_rows: whether a field is read from rows or tapes, and not from packed boards in memory.
        takes_boards: whether boards as words suffice for all fields.
        fetches: whether rows are read from sessions in stores, which :meth:`hold` brings here.
        pool_stride: bytes of a pool's row: the row or its board, and its values in all columns.
        session_starts: number of each session's first row in the order of the view, after the cap, and the
            number of rows, ``i64[S + 1]``.
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
                hint='leave them out, or take the field "move", which recovers moves from the boards',
            )
        # Not the view, which may hold this gatherer: only the garbage collector frees a cycle.
        self.store = tables.store
        self._rowmap = tables.rowmap
        self._cap = cap
        self.reads_rows = tables.store.boards is None or bool(_OF_ROWS & set(fields))
        # Comparing exponents is comparing tiles: a threshold is a power of two.
        self._exponents = exponents_of(tables.runs["highest_tile"])
        self._thresholds = exponents_of(thresholds)
        self._labels = tables.label_guide if "labels" in fields else NO_LABELS
        self._runs = tables.runs
        runs, own = tables.runs, GAME_FIELDS & set(fields)
        facts = {"steps_left": runs["steps"], "score": runs["max_score"], "seed": runs["seed"]}
        facts["highest"] = self._exponents
        self._facts = {name: np.ascontiguousarray(facts[name]) for name in own}
        self._columns = columns
        self.plan = self.plan_of(NO_POOL)
        first_runs = np.searchsorted(tables.runs["session"], np.arange(len(tables.store.sessions) + 1))
        starts = self._rowmap.run_starts[first_runs]
        if len(cap.guide.entries):
            starts = cap.guide.starts[np.searchsorted(cap.firsts, starts)]
        self.session_starts = starts.astype(np.int64)
        self.fetches = tables.store.remote and self.reads_rows
        self._held: Hold | None = None
        of_boards = not _OF_ROWS & set(fields)
        self.takes_boards = of_boards and (self.plan.packed or bool(joins and self._exponents.max() <= 15))
        own_bytes = BOARD_BYTES if self.takes_boards else self._rowmap.row_bytes
        *self._places, end = np.cumsum([own_bytes, *(each.info.row_bytes for each in columns)]).tolist()
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

    def plan_of(self, pool: Pool) -> GatherPlan:
        """Make a plan that takes rows from a pool."""
        entries = [column.entries for column in self._columns]
        if len(pool.rows):
            entries = [each._replace(line=at) for each, at in zip(entries, self._places, strict=True)]
        return GatherPlan(
            self._rowmap, self._exponents, self._thresholds, self._cap, pool,
            labels=self._labels, columns=entries,
        )  # fmt: skip

    def _join(self, table: NDArray[np.uint8]) -> None:
        """Copy boards and columns into memory, beside each other.

        Shuffled batches with four values and a loss then have 0.8 of the rows/s without, and else 0.45.
        """
        order, size = np.array(Order(gather_kernel.STRAIGHT), np.uint64), 1 << CHUNK_SHIFT
        firsts = range(0, len(table), size)
        deque(map_ordered(lambda at: self.read(order, at, table[at : at + size]), firsts), maxlen=0)
        self.plan = self.plan_of(Pool(table, np.zeros(1, np.uint64), 63, packed=True))

    def allocate_pool(self, rows: int) -> NDArray[np.uint8]:
        """Allocate the memory of a pool."""
        return allocate(rows * self.pool_stride).reshape(rows, self.pool_stride)

    def read(self, order: NDArray[np.uint64], first: int, rows: NDArray[np.uint8]) -> None:
        """Copy consecutive rows of the view to a pool; ``order`` is STRAIGHT."""
        begin, stride = address_of(rows), self.pool_stride
        outputs = Outputs(**{"boards" if self.takes_boards else "records": begin, "stride": stride})
        places = itertools.chain(*((begin + at, stride) for at in self._places))
        target = np.array([*outputs, *places], np.uint64)
        self.run(self.plan, order, (first, len(rows)), NO_KEYS, target)

    def sessions_of(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return the ordinals of the sessions of some rows; numbers outside the view count for none."""
        inside = numbers[(numbers >= 0) & (numbers < self.session_starts[-1])]
        found: list[int] = np.unique(np.searchsorted(self.session_starts, inside, "right") - 1).tolist()
        return found

    def sessions_between(self, first: int, end: int) -> list[int]:
        """Return the ordinals of the sessions with rows in [first, end)."""
        starts = self.session_starts
        here = (starts[:-1] < end) & (starts[1:] > first) & (starts[1:] > starts[:-1])
        found: list[int] = np.flatnonzero(here).tolist()
        return found

    def size_of(self, sessions: Iterable[int]) -> int:
        """Return the bytes of the sessions that are in stores."""
        found = (self.store.sessions[each] for each in sessions)
        return sum(session.bytes for session in found if isinstance(session, RemoteSession))

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

    def gather(self, numbers: NDArray[np.int64], batch: Batch) -> None:
        """Fill a batch with the rows of these numbers; raise IndexError for a number outside the view."""
        order = np.array(Order(gather_kernel.LISTED, address_of(numbers)), np.uint64)
        with self.store.hold(self.sessions_of(numbers) if self.fetches else []):
            done = self.run(self.plan, order, (0, len(numbers)), NO_KEYS, words_of(batch))
            self.finish(batch, done)
        self._check_done(done, numbers)

    def gather_records(self, numbers: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy whole rows to ``out``, ``dtype[n]``; raise IndexError for a number outside the view."""
        held = self.store.hold(self.sessions_of(numbers)) if self.store.remote else None
        records = out.view(np.uint8).reshape(len(out), out.dtype.itemsize)
        if self.plan.line is not None:
            done = gather_kernel.copy_records(*self.plan.line, numbers, records)
        else:
            order = np.array(Order(gather_kernel.LISTED, address_of(numbers)), np.uint64)
            target = np.array(Outputs(records=address_of(records), stride=records.shape[1]), np.uint64)
            done = self.run(self.plan, order, (0, len(numbers)), NO_KEYS, target)
        del held
        self._check_done(done, numbers)

    def _check_done(self, done: int, numbers: NDArray[np.int64]) -> None:
        if done < len(numbers):
            raise IndexError(f"row {numbers[done]}; expected 0 <= row < {int(self._rowmap.run_starts[-1])}")

    def fill(
        self, order: NDArray[np.uint64], places: tuple[int, int], batch: Batch, keys: NDArray[np.uint64]
    ) -> None:
        """Fill a batch from its first row on with the places that are within the view.

        Runs in any number of threads, each with its own batch, and releases the GIL. Arguments as for
        ``gather_kernel.fill``. The order is not LISTED.

        Sessions in stores are held: all sessions of the view for a SHUFFLED order, and the batch's sessions
        for a STRAIGHT order, until the next batch.
        """
        if self.fetches:
            if order[0] != gather_kernel.SHUFFLED:
                self._held = self.hold(places[0], places[0] + places[1])
            elif self._held is None:
                self._held = self.hold(0, int(self.session_starts[-1]))
        held = self._held  # which another thread may replace
        self.finish(batch, self.run(self.plan, order, places, keys, words_of(batch)))
        del held

    def run(
        self,
        plan: GatherPlan,
        order: NDArray[np.uint64],
        places: tuple[int, int],
        keys: NDArray[np.uint64],
        out: NDArray[np.uint64],
    ) -> int:
        """Call ``gather_kernel.fill``; raise the FormatError of a tape with a step against the rules."""
        done: int = gather_kernel.fill(plan.words, order, places, keys, out)
        if done < 0:
            self.store.raise_defect(self._rowmap, -1 - done)
        return done

    def finish(self, batch: Batch, rows: int) -> None:
        """Set the number of rows, and make weights and labels of columns.

        Raises:
            CorpusError: a weight is invalid.
        """
        batch.rows, layout = rows, batch.layout
        if not (self._facts or layout.columns):
            return
        for name in self._facts.keys() & set(layout.fields):
            found = {field: array[:rows] for field, array in batch._targets.items()}  # noqa: SLF001 - of this package
            np.take(self._facts[name], found["run"], out=batch[name], mode="clip")
            if name == "steps_left":
                batch[name][:] -= np.minimum(found["step"] + 1, batch[name])
        if layout.targets:
            batch["labels"][:] = floats_of(batch, layout.targets).reshape(rows, layout.thresholds)
        if not layout.weight or not rows:
            return
        weights = floats_of(batch, layout.weight)
        batch["weight"][:] *= weights
        if weights.min() >= 0 and weights.max() < np.inf:  # NaN fails every comparison
            return
        at = int(np.argmin((weights >= 0) & (weights < np.inf)))
        row = int(batch._targets["row"][at])  # noqa: SLF001 - of this package
        owner = int(self._runs["session"][np.searchsorted(self._rowmap.run_starts, row, "right") - 1])
        paths = next(each.paths for each in self._columns if each.info.name == layout.weight)
        msg = f"{layout.weight} is {weights[at]} in row {row} of the corpus; expected a weight of at least 0"
        raise CorpusError(msg, path=paths.get(owner))


def check_weights(tables: ViewTables, column: ViewColumn) -> None:
    """Raise CorpusError if no row of a view has a positive weight; reads until there is one."""
    gatherer = Gatherer(tables, (), np.empty(0, np.int64), columns=[column])
    batch = Batch.allocate(BatchLayout((column.info.name,), 0, "bool", (column.info,)), 1 << CHUNK_SHIFT)
    rows, order = int(gatherer.session_starts[-1]), np.array(Order(gather_kernel.STRAIGHT), np.uint64)
    for first in range(0, rows, batch.capacity):
        places = first, min(batch.capacity, rows - first)
        batch.rows = gatherer.run(gatherer.plan, order, places, NO_KEYS, words_of(batch))
        if (floats_of(batch, column.info.name) > 0).any():
            return
    msg = f"{column.info.name} has no positive weight in {rows:,} rows; expected at least one"
    raise CorpusError(msg, path=column.path)


#: Bits of a chunk's rows: 1.8 MB, which a disk reads at full speed. A corpus with fewer than CHUNKS_MIN
#: chunks per rank has smaller chunks.
CHUNK_SHIFT = 16
CHUNKS_MIN = 64

#: The next pool is read once this fraction (1 in 16) of a pool has been served.
READ_AHEAD_AFTER = 16


class _Epoch(NamedTuple):
    """This rank's share of an epoch.

    Attributes:
        chunks: chunk numbers of each pool.
        starts: first row of each pool in the rank's order, and the number of rows, ``i64[P + 1]``.
        seed: seed of the pools' orders.
        cap_key: key of the capped rows.
    """

    chunks: list[NDArray[np.int64]]
    starts: NDArray[np.int64]
    seed: int
    cap_key: int


#: A pool in memory, and the keys of its order.
_Loaded: TypeAlias = "tuple[GatherPlan, NDArray[np.uint64]]"


class PoolReader:
    """Reader of pools that fills batches from them.

    Attributes:
        rank_rows: rows that each rank serves in an epoch: as many as the rank with the fewest has.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        rows: int,
        *,
        pool_rows: int,
        pool_sessions: int | None,
        ranks: tuple[int, int],
    ) -> None:
        self._gatherer = gatherer
        self._rows = rows
        self._rank, self._world = ranks
        self._shift = max(0, min(CHUNK_SHIFT, (rows // (CHUNKS_MIN * self._world)).bit_length() - 1))
        size = 1 << self._shift
        if pool_rows < 2 * size:
            raise ValueError(f"pool_rows={pool_rows}; expected at least two chunks of {size} rows")
        self._pool_chunks = pool_rows // 2 >> self._shift
        self._chunks = -(-rows // size)
        self.rank_rows = rows
        if self._world > 1:
            # In some epoch, the rank with the fewest chunks has the short one.
            short = self._chunks * size - rows
            self.rank_rows = max(0, self._chunks // self._world * size - short)
        self._windows = self._cut_windows(pool_sessions)
        # The cache has to hold the sessions of any two windows.
        edges = (self._windows << self._shift).tolist()
        between = gatherer.sessions_between
        windows = [between(first, min(end, rows)) for first, end in itertools.pairwise(edges)]
        largest = sorted(windows, key=gatherer.size_of)[-2:]
        hint = "raise cache_max_mb, or lower pool_sessions, two windows of which are here at a time"
        gatherer.check_fits(set().union(*largest), hint)
        self._epochs: dict[tuple[int, int], _Epoch] = {}
        self._reset()

    def _cut_windows(self, sessions: int | None) -> NDArray[np.int64]:
        """Return the first chunk of each window, and the number of chunks: ``i64[W + 1]``."""
        if sessions is None:
            return np.array([0, self._chunks])
        if sessions < 1:
            raise ValueError(f"pool_sessions={sessions}; expected at least 1")
        starts = np.unique(self._gatherer.session_starts)  # without sessions that have no row
        firsts = np.arange(self._chunks) << self._shift
        first = np.searchsorted(starts, firsts, "right") - 1
        last = np.searchsorted(starts, np.minimum(firsts + (1 << self._shift), self._rows), "left") - 1
        edges = [0]
        while edges[-1] < self._chunks:
            end = int(np.searchsorted(last, first[edges[-1]] + sessions, "left"))
            edges.append(max(end, edges[-1] + 1))
        return np.array(edges)

    def _reset(self) -> None:
        """Start without pools, reader thread, and locks that another thread holds."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pools: dict[tuple[int, int, int], Future[_Loaded]] = {}
        self._reader: ThreadPoolExecutor | None = None
        self._fetcher: threading.Thread | None = None

    def fill(
        self,
        batch: Batch,
        epoch: tuple[int, int],
        places: tuple[int, int],
        order: NDArray[np.uint64],
    ) -> None:
        """Fill a batch from this rank's order of an epoch (a seed and a number). A batch may span two pools.

        ``places``: first place in the rank's order, and number of rows; ``order``: the entries of a SHUFFLED
        ``Order``, ``u64``.
        """
        if self._process != os.getpid():
            self._reset()  # a forked child has its parent's futures but not the thread that completes them
        share = self._epoch(epoch, Order(*order.tolist()).cap_key)
        place, count = places
        done = 0
        assert count <= batch.capacity
        while done < count:
            number = int(np.searchsorted(share.starts, place, "right")) - 1
            begin, end = int(share.starts[number]), int(share.starts[number + 1])
            some = min(count - done, end - place)
            # Not at once: other threads may still need the end of the previous pool.
            ahead = place - begin >= (end - begin) // READ_AHEAD_AFTER
            plan, keys = self._pool(share, epoch, number, ahead=ahead)
            self._gatherer.run(plan, order, (place - begin, some), keys, words_of(batch, done))
            place, done = place + some, done + some
        self._gatherer.finish(batch, count)

    def _epoch(self, epoch: tuple[int, int], cap_key: int) -> _Epoch:
        with self._lock:
            if epoch not in self._epochs:
                if len(self._epochs) > 1:
                    self._epochs.clear()
                self._epochs[epoch] = self._plan_epoch(*epoch, cap_key)
            return self._epochs[epoch]

    def _plan_epoch(self, seed: int, epoch: int, cap_key: int) -> _Epoch:
        derived = hashlib.sha256(
            b"tape2048 pool 1" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
        )
        chunk_seed, pool_seed, window_seed, _ = np.frombuffer(derived.digest(), "<u8").tolist()
        order = np.empty(self._chunks, np.uint64)
        windows = np.zeros(len(self._windows) - 1, np.uint64)
        Permutation(len(windows), seed=window_seed, epoch=epoch).fill(0, windows)
        done = 0
        for window in windows.tolist():
            first, end = self._windows[window : window + 2].tolist()
            part = order[done : done + end - first]
            # The first window is the only one without pool_sessions.
            Permutation(end - first, seed=chunk_seed ^ window, epoch=epoch).fill(0, part)
            part += np.uint64(first)
            done += len(part)
        mine = order[self._rank :: self._world].astype(np.int64)
        pools, sizes = [], []
        for at in range(0, len(mine), self._pool_chunks):
            chunks = mine[at : at + self._pool_chunks]
            # The short chunk comes last in its pool, so that a shift turns a slot into a chunk.
            chunks = chunks[np.argsort(chunks == self._chunks - 1, kind="stable")]
            pools.append(chunks)
            sizes.append(int(self._lengths(chunks).sum()))
        return _Epoch(pools, np.cumsum([0, *sizes]), pool_seed, cap_key)

    def _lengths(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        first = chunks << self._shift
        ends: NDArray[np.int64] = np.minimum(first + (1 << self._shift), self._rows)
        return ends - first

    def _pool(self, share: _Epoch, epoch: tuple[int, int], number: int, *, ahead: bool) -> _Loaded:
        """Return a pool, read if it is missing; keep the next one (``ahead``) or the previous one as well."""
        with self._lock:
            beside = number + 1 if ahead else number - 1
            kept = {(*epoch, number), (*epoch, beside)}
            self._pools = {key: pool for key, pool in self._pools.items() if key in kept}
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, thread_name_prefix="tape2048-pool")
            for each in (number, beside) if ahead and beside < len(share.chunks) else (number,):
                if (*epoch, each) not in self._pools:
                    self._pools[*epoch, each] = self._reader.submit(self._read, share, each)
            wanted = self._pools[*epoch, number]
        try:
            return wanted.result()
        except Exception:
            with self._lock:  # the next attempt may succeed: a file was restored, or memory was freed
                if self._pools.get((*epoch, number)) is wanted:
                    del self._pools[*epoch, number]
            raise

    def _read(self, share: _Epoch, number: int) -> _Loaded:
        self._gatherer.store.check_files()
        chunks = share.chunks[number]
        lengths = self._lengths(chunks)
        rows = self._gatherer.allocate_pool(int(lengths.sum()))
        firsts = (chunks << self._shift).astype(np.uint64)
        order = np.array(Order(gather_kernel.STRAIGHT, cap_key=share.cap_key), np.uint64)
        places = np.cumsum([0, *lengths.tolist()])
        self._gatherer.prefetch(self._sessions_of(share, number))
        for at in np.argsort(firsts).tolist():  # by session, so that each is held once
            first, length = int(firsts[at]), int(lengths[at])
            held = self._gatherer.hold(first, first + length)  # and then the last one goes
            self._gatherer.read(order, first, rows[places[at] : places[at] + length])
        held.close()
        is_idle = self._fetcher is None or not self._fetcher.is_alive()
        if self._gatherer.fetches and number + 1 < len(share.chunks) and is_idle:
            # Until this thread reads that pool, when this one has been served in part.
            wanted = self._sessions_of(share, number + 1)
            self._fetcher = threading.Thread(target=self._fetch_ahead, args=(wanted,), daemon=True)
            self._fetcher.start()
        keys = Permutation(int(places[-1]), seed=share.seed, epoch=number).keys
        return self._gatherer.plan_of(Pool(rows, firsts, self._shift, self._gatherer.takes_boards)), keys

    def _fetch_ahead(self, sessions: list[int]) -> None:
        """Fetch sessions before they are needed. A failed download is repeated then, and raises its error."""
        with contextlib.suppress(TapeError):
            self._gatherer.prefetch(sessions, 1)

    def _sessions_of(self, share: _Epoch, number: int) -> list[int]:
        if not self._gatherer.fetches:
            return []
        between, size = self._gatherer.sessions_between, 1 << self._shift
        firsts = (share.chunks[number] << self._shift).tolist()
        return sorted({each for first in firsts for each in between(first, first + size)})
