"""Views of a store: selected runs, and a part of each game, as arrays over runs and segments.

A **view** holds arrays over its runs (see ``row_map``), but neither rows nor an index of rows. Its rows are
numbered run after run, in step order.

A part of each game needs no index of rows either. ``steps``, ``fraction`` and ``rows_left`` select a range of
each run's rows, so they only cut its segments. ``empties`` depends on each board. It reads all rows once, and
keeps a mask of one bit for each row, and one count for every 512 rows. For 1e9 rows of 28 GB, these take 125
MB and 16 MB. The counts find the k-th row of the view. An epoch still serves every row once, and the number
of batches is known beforehand. A selection of rows is also a mask of this kind.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.loader.phases import ALL
from tape2048.loader.row_map import RowMap, Segments, make_label_guide
from tape2048.session.layout import SAMPLE_RATE_MAX, STEP_DTYPE, step_dtype
from tape2048.session.run_table import exponents_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from tape2048.loader.buffers import RowBuffers, ViewChunk
    from tape2048.loader.phases import Phase
    from tape2048.session.session import Session

_SCAN_ROWS = 1 << 20  # rows whose steps are read together: 4 MB


class ViewTables:
    """The runs of a view, and the tables that locate their rows in memory, for the kernels."""

    def __init__(
        self,
        store: RowBuffers,
        chosen: NDArray[Any] | None,
        phase: Phase,
        selected: NDArray[np.uint64] | None,
    ) -> None:
        self.store = store
        self.chosen = chosen
        self.phase = phase
        self.selected = selected  #: a bit for each row of the store, see ``boards``; None: all rows
        self.runs = store.runs if chosen is None else store.runs.take(chosen)
        used = itertools.compress(store.sessions, np.diff(self.runs.firsts) > 0)
        self.without_action = [session for session in used if session.dtype == STEP_DTYPE]
        self.dtype = step_dtype(record_action=not self.without_action)

    @property
    def chunks(self) -> Iterable[ViewChunk]:
        """The runs of some sessions at a time. Their segments ignore ``empties`` and the selection."""
        return self._kept_chunks if self.runs.in_memory else self._make_chunks()

    @cached_property
    def _kept_chunks(self) -> list[ViewChunk]:
        return list(self._make_chunks())

    def _make_chunks(self) -> Iterator[ViewChunk]:
        begin = 0
        for chunk in self.store.chunks():
            segments, runs = chunk.segments, chunk.runs
            if self.chosen is not None:
                low, high = np.searchsorted(self.chosen, [chunk.first, chunk.first + len(runs)])
                chosen = self.chosen[low:high].astype(np.int64) - chunk.first
                ordinal = np.full(len(runs), -1, np.int64)
                ordinal[chosen] = np.arange(len(chosen))
                segments = segments.take(ordinal[segments.run] >= 0)
                segments, runs = segments._replace(run=ordinal[segments.run]), runs[chosen]
            if self.phase.steps is not None or self.phase.fraction is not None:
                segments = _cut(segments, self.phase, runs, self.store)
            cut = chunk._replace(first=begin, runs=runs, segments=segments)
            if self.phase.rows_left is not None:
                least, end = self.phase.rows_left
                left = runs["rows"].astype(np.int64)[segments.run] - cut.places_in_games
                bounds = (np.clip(left - bound, 0, segments.rows) for bound in (end, least))
                cut = cut._replace(segments=_narrow(segments, np.arange(len(left)), bounds))
            yield cut
            begin += len(runs)

    @property
    def whole(self) -> ViewTables:
        if self.phase == ALL and self.selected is None:
            return self
        return ViewTables(self.store, self.chosen, ALL, None)

    def whole_starts(self, whole: ViewTables) -> NDArray[np.int64]:
        """Return, for each run, the difference between a row's numbers in ``whole`` and here: ``i64[R]``."""
        if whole.rowmap.rows == self.rowmap.rows:
            return np.zeros(len(self.runs), np.int64)
        starts = whole.rowmap.run_starts[:-1].astype(np.int64)
        for chunk, numbers in self._numbered_chunks():
            first = np.flatnonzero(np.diff(chunk.segments.run, prepend=-1))
            added = chunk.places_in_games - numbers.astype(np.int64)
            starts[chunk.segments.run[first] + chunk.first] += added[first]
        return starts

    @cached_property
    def rowmap(self) -> RowMap:
        store, held = self.store, None
        if (tapes := store.tapes) is not None:
            held = tapes.spans, tapes.starts if self.chosen is None else tapes.starts[self.chosen]
        is_cut = held is not None and self.phase._replace(empties=None) != ALL
        found = (
            (
                chunk.segments._replace(run=chunk.segments.run + chunk.first),
                chunk.board_addresses,
                chunk.cuts if is_cut else None,
            )
            for chunk in self.chunks
        )
        foreign = [number for number, session in enumerate(store.sessions) if session.foreign is not None]
        rows = RowMap.of(found, len(self.runs), self.dtype.itemsize, held, foreign)
        if self.selected is None and self.phase.empties is None:
            return rows
        from tape2048.loader.boards import copy_bits, mark_empties, masked, no_bits

        words = no_bits(rows.rows)
        if self.selected is None:
            words = ~words
        else:
            for chunk, firsts in self._numbered_chunks():
                copy_bits(self.selected, chunk.begins, words, firsts, chunk.segments.rows)
        if self.phase.empties is not None:
            if store.boards is None:
                store.check_files()
            with store.hold(np.unique(rows.session).tolist() if store.boards is None else []):
                words &= mark_empties(rows, *self.phase.empties, store.raise_defect)
        return masked(rows, words)

    def _numbered_chunks(self) -> Iterator[tuple[ViewChunk, NDArray[np.uint64]]]:
        """Yield the parts, each with the map's number of each segment's first row."""
        done = 0
        for chunk in self.chunks:
            ends = done + np.cumsum(chunk.segments.rows)
            yield chunk, (ends - chunk.segments.rows).astype(np.uint64)
            done = int(ends[-1]) if len(ends) else done

    def select(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Turn a mask of the view's rows into :attr:`selected`, a mask of the store's rows."""
        from tape2048.loader.boards import copy_bits, no_bits, spread_bits

        mask, selected = self.rowmap.mask, no_bits(self.store.rows)
        if mask.words.size:
            words = spread_bits(words, mask.words)
        for chunk, firsts in self._numbered_chunks():
            copy_bits(words, firsts, selected, chunk.begins, chunk.segments.rows)
        return selected

    @cached_property
    def exponents(self) -> NDArray[np.uint8]:
        """Exponent of the highest tile of each run's game, ``u8[R]``."""
        return self.runs.each(lambda table: exponents_of(table["highest_tile"]))

    @cached_property
    def label_guide(self) -> NDArray[np.uint32]:
        return make_label_guide(self.rowmap.guide, self.rowmap.of_runs(self.exponents))

    def in_place(self, first: int, end: int) -> NDArray[np.void] | None:
        """Return rows [first, end) as a view of the store's memory; None if they are not adjacent there."""
        rows = self.rowmap
        if rows.mask.words.size or self.store.remote:  # the cache may drop rows of a store
            return None
        a, b = rows.line_at(first), rows.line_at(end - 1) + 1
        if not (rows.address[a:b] == rows.address[a]).all() or not (rows.end[a:b] == rows.end[a]).all():
            return None
        if (rows.strides[a:b] != rows.row_bytes).any() or len(rows.tape.span):
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
            edges = rows.line_firsts[np.concatenate(([True], apart))].astype(np.int64)
        for begin, end in itertools.pairwise([*edges.tolist(), count]):
            for first in range(begin, end, rows_max):
                yield slice(first, min(end, first + rows_max))


def tables_of(corpus: object) -> ViewTables:
    """Return the tables of a corpus, for the packages that serve batches; raise TypeError for others."""
    tables = getattr(corpus, "_tables", None)
    if not isinstance(tables, ViewTables):
        raise TypeError(f"found {corpus!r:.200}, expected a Corpus (Corpus.open also opens one session)")
    return tables


def _cut(segments: Segments, phase: Phase, runs: NDArray[np.void], store: RowBuffers) -> Segments:
    """Cut segments down to the rows within the phase's steps and fraction.

    In a session with a ``sample_rate``, row j of a run is step j x rate, so runs are cut by arithmetic. In a
    session without a rate, the steps of all rows are read. The phase's other ranges are ignored.
    """
    low, high = phase.step_ranges(runs["steps"])
    rates = np.array([sample_rate(session) for session in store.sessions], np.int64)
    known = rates[segments.session] > 0
    whole = segments.take(known)  # cut by arithmetic
    rate = rates[whole.session]
    before = whole.first_row - runs["first_row"][whole.run].astype(np.int64)
    ends = (np.clip(-(-bound[whole.run] // rate) - before, 0, whole.rows) for bound in (low, high))
    parts = [_narrow(whole, np.arange(len(rate)), ends)]
    for owner in np.unique(segments.session[~known]).tolist():
        mine = segments.take(segments.session == owner)
        session = store.sessions[owner]
        rows, index = store.rows_of(mine, session.stored.dtype)
        step = "step_idx" if session.foreign is None else session.foreign.layout.step
        parts.append(_cut_by_reading(mine, low, high, rows[step], index))
    if len(parts) == 1:
        return parts[0]
    together = type(segments)(*map(np.concatenate, zip(*parts, strict=True)))
    return together.take(np.argsort(together.run, kind="stable"))


def sample_rate(session: Session) -> int:
    """Return N if every N-th step is a row; 0 if the steps are only known from the rows."""
    rate = session.meta.get("sample_rate")
    if session.tape is not None:
        return 1  # a tape has every step
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
    index: NDArray[np.int64],
) -> Segments:
    found: list[tuple[NDArray[np.int64], ...]] = []
    batch_end = np.cumsum(segments.rows) // _SCAN_ROWS
    for batch in np.unique(batch_end).tolist():
        chosen = np.flatnonzero(batch_end == batch)
        counts = segments.rows[chosen]
        which = np.repeat(chosen, counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        step = steps[index[which] + within]
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
        first_row=taken.first_row + first,
    )
