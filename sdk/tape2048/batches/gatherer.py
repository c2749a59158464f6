"""Python interface of the gather: plans of views, orders of rows, and errors for invalid row numbers.

Importing this loads numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.base.text import counted
from tape2048.batches import gather_kernel
from tape2048.batches.fields import places_of, words_of
from tape2048.batches.plan import NO_CAP, NO_POOL, GatherPlan, Order, Outputs, address_of
from tape2048.errors import CorpusError
from tape2048.io.reading import populate
from tape2048.rows.row_map import NO_LABELS
from tape2048.rows.view import tables_of
from tape2048.session.directory import EMBEDDINGS_NPY
from tape2048.session.remote_session import RemoteSession, check_fits, prefetch
from tape2048.session.run_table import exponents_of
from tape2048.session.session import open_embeddings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tape2048.batches.fields import Batch
    from tape2048.batches.plan import Cap, Pool
    from tape2048.rows.view import BufferView
    from tape2048.session.remote_session import Hold

#: For orders that are not SHUFFLED.
NO_KEYS = np.empty(0, np.uint64)

# Sessions that an error names.
_NAMED = 5

#: Fields that need whole rows, not packed boards.
_OF_ROWS = frozenset({"step", "action", "move"})


class Gatherer:
    """A view with the tables that the kernel needs for some fields of its rows; keeps the rows alive.

    Attributes:
        plan: the kernel's tables.
        reads_rows: whether a field is read from rows or tapes, and not from packed boards in memory.
        takes_boards: whether boards as words suffice for all fields.
        fetches: whether rows are read from sessions in stores, which :meth:`hold` brings here.
        embedding_width: D; 0 without embeddings.
        session_starts: number of each session's first row in the order of the view, after the cap, and the
            number of rows, ``i64[S + 1]``.
    """

    def __init__(
        self, view: BufferView, fields: tuple[str, ...], thresholds: NDArray[np.int64], cap: Cap = NO_CAP
    ) -> None:
        tables = tables_of(view)
        if "action" in fields and (without := tables.without_action):
            names = ", ".join(session.name for session in without[:_NAMED])
            more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
            raise CorpusError(
                f"no action in the rows of {counted(len(without), 'session')}: {names}{more}",
                path=without[0].path,
                hint='leave them out, or take the field "move", which recovers moves from the boards',
            )
        # Not the view, which may hold this gatherer: only the garbage collector frees a cycle.
        self._store = tables.store
        self._rowmap = tables.rowmap
        self._cap = cap
        self.reads_rows = tables.store.boards is None or bool(_OF_ROWS & set(fields))
        # Comparing exponents is comparing tiles: a threshold is a power of two.
        self._exponents = exponents_of(view.runs["highest_tile"])
        self._thresholds = exponents_of(thresholds)
        self._labels = tables.label_guide if "labels" in fields else NO_LABELS
        self.plan = self.plan_of(NO_POOL)
        run_starts = cap.guide.starts if len(cap.guide.entries) else self._rowmap.run_starts
        first_runs = np.searchsorted(view.runs["session"], np.arange(len(tables.store.sessions) + 1))
        self.session_starts = run_starts[first_runs].astype(np.int64)
        self.fetches = tables.store.remote and self.reads_rows
        self._held: Hold | None = None
        self.takes_boards = self.plan.packed and not _OF_ROWS & set(fields)
        self._embeddings: list[NDArray[np.uint16]] = []
        self.embedding_width = 0
        if "embeddings" in fields:
            self._open_embeddings(view)

    def plan_of(self, pool: Pool) -> GatherPlan:
        """Make a plan that takes rows from a pool."""
        return GatherPlan(
            self._rowmap, self._exponents, self._thresholds, self._cap, pool, labels=self._labels
        )

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
        """Return the bytes of sessions, of those that are in stores."""
        found = (self._store.sessions[each] for each in sessions)
        return sum(session.bytes for session in found if isinstance(session, RemoteSession))

    def check_fits(self, sessions: Iterable[int], hint: str) -> None:
        """Raise CorpusError if these sessions are in stores, are read, and the cache cannot hold them all."""
        if self.fetches:
            held = [self._store.sessions[each] for each in sessions]
            check_fits(held, "rows in this order are read from all of them", hint)

    def hold(self, first: int, end: int) -> Hold:
        """Fetch and hold the sessions with rows in [first, end), where they are in stores and are read."""
        return self._store.hold(self.sessions_between(first, end) if self.fetches else [])

    def prefetch(self, sessions: Iterable[int], threads: int | None = None) -> None:
        """Fetch sessions that are in stores into the cache; errors as for ``RowBuffers.hold``."""
        if self.fetches:
            prefetch([self._store.sessions[each] for each in sessions], threads)

    def gather(self, numbers: NDArray[np.int64], batch: Batch) -> None:
        """Fill a batch with the rows of these numbers; raise IndexError for a number outside the view."""
        order = np.array(Order(gather_kernel.LISTED, address_of(numbers)), np.uint64)
        with self._store.hold(self.sessions_of(numbers) if self.fetches else []):
            self._check_done(self._fill(order, (0, len(numbers)), batch, NO_KEYS), numbers)

    def gather_records(self, numbers: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copy whole rows to ``out``, ``dtype[n]``; raise IndexError for a number outside the view."""
        if self._store.remote:
            with self._store.hold(self.sessions_of(numbers)):
                self._gather_records(numbers, out)
        else:
            self._gather_records(numbers, out)

    def _gather_records(self, numbers: NDArray[np.int64], out: NDArray[Any]) -> None:
        records = out.view(np.uint8).reshape(len(out), out.dtype.itemsize)
        if self.plan.line is not None:
            done = gather_kernel.copy_records(*self.plan.line, numbers, records)
        else:
            order = np.array(Order(gather_kernel.LISTED, address_of(numbers)), np.uint64)
            target = np.array(Outputs(records=address_of(records)), np.uint64)
            done = self.run(self.plan, order, (0, len(numbers)), NO_KEYS, target)
        self._check_done(done, numbers)

    def _check_done(self, done: int, numbers: NDArray[np.int64]) -> None:
        if done < len(numbers):
            raise IndexError(f"row {numbers[done]}; expected 0 <= row < {int(self._rowmap.run_starts[-1])}")

    def fill(
        self, order: NDArray[np.uint64], places: tuple[int, int], batch: Batch, keys: NDArray[np.uint64]
    ) -> int:
        """Fill a batch from its first row on, and return how many places were within the view.

        Runs in any number of threads, each with a batch of its own, and releases the GIL. Arguments as for
        ``gather_kernel.fill``. The order is not LISTED.

        Sessions in stores are held: all of the view for a SHUFFLED order, those of the batch for a STRAIGHT
        one, which stay until the next batch.
        """
        if self.fetches:
            if order[0] != gather_kernel.SHUFFLED:
                self._held = held = self.hold(places[0], places[0] + places[1])
            elif self._held is None:
                self._held = held = self.hold(0, int(self.session_starts[-1]))
            else:
                held = self._held
            done = self._fill(order, places, batch, keys)
            del held
            return done
        return self._fill(order, places, batch, keys)

    def _fill(
        self, order: NDArray[np.uint64], places: tuple[int, int], batch: Batch, keys: NDArray[np.uint64]
    ) -> int:
        assert places[1] <= batch.capacity
        done = self.run(self.plan, order, places, keys, words_of(batch))
        self.finish(batch, done)
        return done

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
            self._store.raise_defect(self._rowmap, -1 - done)
        return done

    def fill_part(
        self,
        plan: GatherPlan,
        order: NDArray[np.uint64],
        places: tuple[int, int],
        batch: Batch,
        keys: NDArray[np.uint64],
        *,
        at: int,
    ) -> None:
        """Fill rows from ``at`` on by a pool's plan, as :meth:`fill`; :meth:`finish` has to follow."""
        assert at + places[1] <= batch.capacity
        words = words_of(batch, at)
        done = self.run(plan, order, places, keys, words)
        assert done == places[1]

    def finish(self, batch: Batch, rows: int) -> None:
        """Set the number of rows of a batch, and add their embeddings."""
        batch.rows = rows
        if self.embedding_width:
            segment, base = places_of(batch)
            row_bytes = np.uint64(2 * self.embedding_width)
            out = batch["embeddings"].view(np.uint8)
            gather_kernel.copy_rows(self._embedding_addresses, segment, base, row_bytes, out)

    def check_files(self) -> None:
        """Check the mapped files; see ``RowBuffers.check_files``."""
        self._store.check_files()

    def _open_embeddings(self, view: BufferView) -> None:
        """Open the embeddings of the view's sessions, and compute each segment's address in them."""
        segments = tables_of(view).segments
        made: set[tuple[str, str, int]] = set()
        addresses = np.zeros(len(view.sessions), np.uint64)
        for owner in np.unique(segments.session).tolist():
            session = view.sessions[owner]
            found = open_embeddings(session)
            made.add((found.model_sha, found.pooling, found.values.shape[1]))
            if len(made) > 1:
                msg = f"embeddings of different models: {sorted(made)}"
                raise CorpusError(
                    msg,
                    path=session.path / EMBEDDINGS_NPY,
                    hint="Embed all sessions with one tower, or open only sessions of one tower.",
                )
            addresses[owner] = address_of(found.values)
            self._embeddings.append(found.values)
        # With rows in memory, embeddings that would fit as well are at least in the page cache.
        total_bytes = sum(values.nbytes for values in self._embeddings)
        if self._store.load != "mmap" and total_bytes <= ram_available() // 2:
            for values in self._embeddings:
                populate(values)
        self.embedding_width = made.pop()[2]
        row_bytes = np.uint64(2 * self.embedding_width)
        first = self._rowmap.guide.starts[:-1]
        place = segments.place.astype(np.uint64)
        # Modulo 2**64, as for the rows: the address that the view's row 0 would have in this segment.
        self._embedding_addresses = addresses[segments.session] + (place - first) * row_bytes
