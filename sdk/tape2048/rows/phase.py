"""Segments of rows cut down to a phase of their games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.formats.session import SAMPLE_RATE_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.rows.buffers import RowBuffers
    from tape2048.rows.row_map import Segments
    from tape2048.selection.phase import Phase
    from tape2048.session.session import Session

# Rows whose steps are read together: 4 MB.
_SCAN_ROWS = 1 << 20


def cut(segments: Segments, phase: Phase, runs: NDArray[np.void], store: RowBuffers) -> Segments:
    """Cut segments down to the rows within the phase's steps and fraction.

    In a session with a ``sample_rate``, row j of a run is step j x rate, and runs are cut by arithmetic. In a
    foreign session without one, the steps of all rows are read. The phase's ``empties`` are ignored.
    """
    if phase.steps is None and phase.fraction is None:
        return segments
    low, high = phase.step_ranges(runs["steps"])
    rates = np.array([_sample_rate(session) for session in store.sessions], np.int64)
    known = rates[segments.session] > 0
    parts = [_cut_whole_runs(segments.take(known), low, high, rates)]
    for owner in np.unique(segments.session[~known]).tolist():
        mine = segments.take(segments.session == owner)
        parts.append(_cut_by_reading(mine, low, high, store.rows_of(owner)))
    if len(parts) == 1:
        return parts[0]
    together = type(segments)(*map(np.concatenate, zip(*parts, strict=True)))
    return together.take(np.argsort(together.run, kind="stable"))


def _sample_rate(session: Session) -> int:
    """Return N if every N-th step is a row; 0 if the rows have to be read to know their steps."""
    rate = session.meta.get("sample_rate")
    if session.tape is not None:
        return 1  # every step is there
    ours = session.blocks is not None and session.contiguous
    if not ours or not isinstance(rate, int) or not 1 <= rate <= SAMPLE_RATE_MAX:
        return 0
    expected = -(-session.runs["steps"].astype(np.int64) // rate)
    return rate if bool((session.runs["rows"] == expected).all()) else 0


def _cut_whole_runs(
    segments: Segments, low: NDArray[Any], high: NDArray[Any], rates: NDArray[Any]
) -> Segments:
    """Cut segments that are whole runs, by arithmetic."""
    rate = rates[segments.session]
    first = np.minimum(-(-low[segments.run] // rate), segments.rows)
    end = np.minimum(-(-high[segments.run] // rate), segments.rows)
    return _narrow(segments, np.arange(len(first)), (first, end))


def _cut_by_reading(
    segments: Segments, low: NDArray[np.int64], high: NDArray[np.int64], rows_held: NDArray[np.void]
) -> Segments:
    """Cut segments of ``rows_held`` by their steps; a segment may become several."""
    steps = rows_held["step_idx"]
    begin = np.uint64(rows_held.__array_interface__["data"][0])
    places = ((segments.address - begin) // np.uint64(rows_held.dtype.itemsize)).astype(np.int64)
    found: list[tuple[NDArray[np.int64], ...]] = []
    batch_end = np.cumsum(segments.rows) // _SCAN_ROWS
    for batch in np.unique(batch_end).tolist():
        chosen = np.flatnonzero(batch_end == batch)
        rows = segments.rows[chosen]
        which = np.repeat(chosen, rows)
        within = np.arange(len(which)) - np.repeat(np.cumsum(rows) - rows, rows)
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
    """Take rows [first, end) of some segments, without those that become empty."""
    first, end = bounds
    kept = first < end
    first, end = first[kept], end[kept]
    taken = segments.take(which[kept])
    return taken._replace(
        address=taken.address + (first * taken.stride).astype(np.uint64),
        rows=end - first,
        place=taken.place + first,
    )
