"""Views of a store: selected runs, and a part of each game, as arrays over runs and segments.

A **view** holds arrays over its runs and segments (see ``row_map``), and neither rows nor an index of rows.
Its rows are numbered run after run, each in step order.

Parts of games need no index of rows either. ``steps``, ``fraction`` and ``rows_left`` select a range of each
run's rows, which are in step order, so they only cut its segments. ``empties`` depends on each board: it
reads all rows once, and keeps one bit a row and one count every 512 rows (125 MB and 16 MB for 1e9 rows of 28
GB); counting finds the k-th row of the view. An epoch serves every row once, as without the filter, and the
number of batches is known beforehand. Selected rows are also a mask of this kind.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.formats.session import SAMPLE_RATE_MAX, STEP_DTYPE, step_dtype
from tape2048.rows.phases import ALL
from tape2048.rows.row_map import NO_TAPE, RowMap, Segments, TapeMap, make_label_guide
from tape2048.session.run_table import exponents_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tape2048.rows.buffers import RowBuffers
    from tape2048.rows.phases import Phase
    from tape2048.session.session import Session

_SCAN_ROWS = 1 << 20  # rows whose steps are read together: 4 MB


class ViewTables:
    """The runs of a view, and where their rows are in memory; for the kernels."""

    def __init__(
        self,
        store: RowBuffers,
        chosen: NDArray[np.int64] | None,
        phase: Phase,
        selected: NDArray[np.uint64] | None,
    ) -> None:
        self.store = store
        self.chosen = chosen
        self.phase = phase
        self.selected = selected  #: a bit for each row of the store, see ``boards``; None: all
        self.runs = store.runs if chosen is None else store.runs[chosen]
        self.runs.flags.writeable = False
        has_runs = np.bincount(self.runs["session"], minlength=len(store.sessions)) > 0
        used = itertools.compress(store.sessions, has_runs)
        self.without_action = [session for session in used if session.dtype == STEP_DTYPE]
        self.dtype = step_dtype(record_action=not self.without_action)

    @cached_property
    def segments(self) -> Segments:
        """The segments of the view's runs, before ``empties`` and the selection."""
        segments = self.store.segments
        if self.chosen is not None:
            ordinal = np.full(len(self.store.runs), -1, np.int64)
            ordinal[self.chosen] = np.arange(len(self.chosen))
            segments = segments.take(ordinal[segments.run] >= 0)
            segments = segments._replace(run=ordinal[segments.run])
        if self.phase.steps is not None or self.phase.fraction is not None:
            segments = _cut(segments, self.phase, self.runs, self.store)
        if self.phase.rows_left is not None:
            least, end = self.phase.rows_left
            left = self.runs["rows"].astype(np.int64)[segments.run] - self._places_of(segments)
            bounds = (np.clip(left - bound, 0, segments.rows) for bound in (end, least))
            segments = _narrow(segments, np.arange(len(left)), bounds)
        return segments

    def _places_of(self, segments: Segments) -> NDArray[np.int64]:
        """Return the place of each segment's first row among all rows of its run."""
        ordinals = segments.run if self.chosen is None else self.chosen[segments.run]
        ends = np.append(0, np.cumsum(self.store.segments.rows))
        starts = ends[np.searchsorted(self.store.segments.run, ordinals)]
        places: NDArray[np.int64] = self.store.begins_of(segments).astype(np.int64) - starts
        return places

    @property
    def whole(self) -> ViewTables:
        """The tables of all rows of the same runs."""
        if self.phase == ALL and self.selected is None:
            return self
        return ViewTables(self.store, self.chosen, ALL, None)

    def whole_starts(self, whole: ViewTables) -> NDArray[np.int64]:
        """Return what to add to a row's number in the map for its number in ``whole``, by run: ``i64[R]``."""
        if whole.rowmap.rows == self.rowmap.rows:
            return np.zeros(len(self.runs), np.int64)
        segments, starts = self.segments, whole.rowmap.run_starts[:-1].astype(np.int64)
        first = np.flatnonzero(np.diff(segments.run, prepend=-1))
        run = segments.run[first]
        starts[run] += (
            self._places_of(segments)[first] - self.rowmap.guide.starts[:-1].astype(np.int64)[first]
        )
        return starts

    @cached_property
    def rowmap(self) -> RowMap:
        """The tables that locate the view's rows."""
        segments, store = self.segments, self.store
        boards = None if store.boards is None else store.begins_of(segments, store.boards)
        tape = NO_TAPE
        if (tapes := store.tapes) is not None:
            starts = tapes.starts if self.chosen is None else tapes.starts[self.chosen]
            tape = TapeMap.of(segments, self.runs, starts, tapes.spans)
        rows = RowMap.of(segments, len(self.runs), self.dtype.itemsize, boards, tape)
        if self.selected is None and self.phase.empties is None:
            return rows
        from tape2048.rows.boards import copy_bits, mark_empties, masked, no_bits

        words = no_bits(rows.rows)
        if self.selected is None:
            words = ~words
        else:
            copy_bits(self.selected, store.begins_of(segments), words, rows.guide.starts, segments.rows)
        if self.phase.empties is not None:
            if boards is None:
                store.check_files()
            with store.hold(np.unique(segments.session).tolist() if boards is None else []):
                words &= mark_empties(rows, *self.phase.empties, store.raise_defect)
        return masked(rows, words)

    def select(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Turn the words of a mask of the view's rows into a selection."""
        from tape2048.rows.boards import copy_bits, no_bits, spread_bits

        rows, segments, selected = self.rowmap, self.segments, no_bits(int(self.store.segments.rows.sum()))
        if rows.mask.words.size:
            words = spread_bits(words, rows.mask.words)
        copy_bits(words, rows.guide.starts, selected, self.store.begins_of(segments), segments.rows)
        return selected

    @cached_property
    def label_guide(self) -> NDArray[np.uint32]:
        """The guide from rows to labels."""
        return make_label_guide(self.rowmap.guide, exponents_of(self.runs["highest_tile"])[self.rowmap.run])

    def in_place(self, first: int, end: int) -> NDArray[np.void] | None:
        """Return rows [first, end) as a view of the store's memory; None if they are not adjacent there."""
        rows = self.rowmap
        if rows.mask.words.size or self.store.remote:  # rows in the cache come and go
            return None
        a = int(np.searchsorted(rows.guide.starts, np.uint64(first), "right")) - 1
        b = int(np.searchsorted(rows.guide.starts, np.uint64(end), "left"))
        if not (rows.address[a:b] == rows.address[a]).all() or not (rows.end[a:b] == rows.end[a]).all():
            return None
        if (rows.strides[a:b] != rows.row_bytes).any() or len(rows.tape.segments):
            return None
        address = (int(rows.address[a]) + first * rows.row_bytes) % 2**64
        return self.store.bytes_at(address, (end - first) * rows.row_bytes).view(self.dtype)

    def pieces(self, rows_max: int) -> Iterator[slice]:
        """Cut all rows, in order, into slices of at most ``rows_max`` rows that are adjacent in memory."""
        rows, count = self.rowmap, int(self.rowmap.run_starts[-1])
        if rows.mask.words.size:
            edges = np.arange(0, count, rows_max)
        else:
            apart = (rows.address[1:] != rows.address[:-1]) | (rows.end[1:] != rows.end[:-1])
            edges = rows.guide.starts[:-1][np.concatenate(([True], apart))].astype(np.int64)
        for begin, end in itertools.pairwise([*edges.tolist(), count]):
            for first in range(begin, end, rows_max):
                yield slice(first, min(end, first + rows_max))


def tables_of(corpus: object) -> ViewTables:
    """Return the tables of a corpus, for the packages that serve batches; TypeError for anything else."""
    tables = getattr(corpus, "_tables", None)
    if not isinstance(tables, ViewTables):
        raise TypeError(f"found {corpus!r:.200}, expected a Corpus (Corpus.open takes one session, too)")
    return tables


def _cut(segments: Segments, phase: Phase, runs: NDArray[np.void], store: RowBuffers) -> Segments:
    """Cut segments down to the rows within the phase's steps and fraction.

    In a session with a ``sample_rate``, row j of a run is step j x rate, and runs are cut by arithmetic. In a
    foreign session without one, the steps of all rows are read. The phase's other ranges are ignored.
    """
    low, high = phase.step_ranges(runs["steps"])
    rates = np.array([sample_rate(session) for session in store.sessions], np.int64)
    known = rates[segments.session] > 0
    whole = segments.take(known)  # segments of runs in step order are cut by arithmetic
    rate = rates[whole.session]
    before = whole.place - runs["first_row"][whole.run].astype(np.int64)
    ends = (np.clip(-(-bound[whole.run] // rate) - before, 0, whole.rows) for bound in (low, high))
    parts = [_narrow(whole, np.arange(len(rate)), ends)]
    for owner in np.unique(segments.session[~known]).tolist():
        mine = segments.take(segments.session == owner)
        session = store.sessions[owner]
        rows, places = store.rows_of(mine, session.stored.dtype)
        step = "step_idx" if session.foreign is None else session.foreign.layout.step
        parts.append(_cut_by_reading(mine, low, high, rows[step], places))
    if len(parts) == 1:
        return parts[0]
    together = type(segments)(*map(np.concatenate, zip(*parts, strict=True)))
    return together.take(np.argsort(together.run, kind="stable"))


def sample_rate(session: Session) -> int:
    """Return N if every N-th step is a row; 0 if the rows must be read to know their steps."""
    rate = session.meta.get("sample_rate")
    if session.tape is not None:
        return 1  # every step is there
    if session.foreign is not None:
        return int(session.foreign.dense)
    ours = session.blocks is not None and session.contiguous
    if not ours or not isinstance(rate, int) or not 1 <= rate <= SAMPLE_RATE_MAX:
        return 0
    expected = -(-session.runs["steps"].astype(np.int64) // rate)
    return rate if bool((session.runs["rows"] == expected).all()) else 0


def _cut_by_reading(
    segments: Segments,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    steps: NDArray[np.uint32],
    places: NDArray[np.int64],
) -> Segments:
    found: list[tuple[NDArray[np.int64], ...]] = []
    batch_end = np.cumsum(segments.rows) // _SCAN_ROWS
    for batch in np.unique(batch_end).tolist():
        chosen = np.flatnonzero(batch_end == batch)
        counts = segments.rows[chosen]
        which = np.repeat(chosen, counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        step = steps[places[which] + within]
        run = segments.run[which]
        inside = (low[run] <= step) & (step < high[run])
        edge = np.ones(len(which), np.bool_)
        edge[1:] = (inside[1:] != inside[:-1]) | (which[1:] != which[:-1])
        begins = np.flatnonzero(edge)
        lengths = np.diff(begins, append=len(which))
        kept = inside[begins]
        at, length = begins[kept], lengths[kept]
        found.append((which[at], within[at], within[at] + length))
    if not found:
        return segments
    which, *bounds = (np.concatenate(column) for column in zip(*found, strict=True))
    return _narrow(segments, which, bounds)


def _narrow(segments: Segments, which: NDArray[np.int64], bounds: Any) -> Segments:
    first, end = bounds
    kept = first < end
    first, end = first[kept], end[kept]
    taken = segments.take(which[kept])
    return taken._replace(
        address=taken.address + (first * taken.stride).astype(np.uint64),
        rows=end - first,
        place=taken.place + first,
    )
