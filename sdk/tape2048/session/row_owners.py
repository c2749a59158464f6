"""Which run each row belongs to, in memory that grows with the runs and not with the rows.

The rows are a sequence of segments, each a stretch of consecutive rows of one run. A run of a session
that the recorder wrote is one segment; a foreign session may interleave its runs, and then a run has
several. Every question about rows is answered from the segments.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import BookkeepingError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = ["Owners", "from_run_table", "from_scan"]

# Rows scanned at a time: 8 MB of ids, small beside any session and large beside a call's overhead.
_SCAN_ROWS = 1 << 20


class Owners:
    """The run, as its ordinal in the run table, that each row belongs to.

    Args:
        starts: first row of each segment, ``i8[S]``, ascending, the first one 0.
        runs: ordinal of each segment's run, ``i8[S]``.
        rows: number of rows, N.
        contiguous: whether no run has more than one segment.
    """

    def __init__(
        self, starts: NDArray[np.int64], runs: NDArray[np.int64], rows: int, *, contiguous: bool
    ) -> None:
        self._starts = starts
        self._runs = runs
        self._rows = rows
        self.contiguous = contiguous

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.diff(self._starts, append=self._rows)

    @cached_property
    def _dense(self) -> NDArray[np.uint32]:
        return np.repeat(self._runs.astype(np.uint32), self._lengths)

    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First row, number of rows, run of each segment, in the order of the rows: ``i8[S]``, read-only."""
        found = self._starts, self._lengths, self._runs
        for column in found:
            column.flags.writeable = False
        return found

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """``values[r]`` of each run as one value for each of its rows: ``[R, ...]`` to ``[N, ...]``."""
        return np.repeat(values[self._runs], self._lengths, axis=0)

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """Ordinals of the rows ``first <= row < last``, without touching the others."""
        begin = int(np.searchsorted(self._starts, first, "right")) - 1
        end = int(np.searchsorted(self._starts, last, "left"))
        edges = np.clip(self._starts[begin:end], first, last)
        return np.repeat(self._runs[begin:end], np.diff(edges, append=last))

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ordinals of the given rows, all within [0, N)."""
        if self.contiguous:
            return self._runs[np.searchsorted(self._starts, rows, "right") - 1]
        # Nearly one segment a row: a search would cost more than a table of 4 bytes a row, made once.
        return self._dense[rows].astype(np.int64)

    def rows_of(self, run: int) -> NDArray[np.int64]:
        """All rows of one run, ascending, for a run of several segments."""
        mine = np.flatnonzero(self._runs == run)
        parts = [np.arange(self._starts[i], self._starts[i] + self._lengths[i]) for i in mine]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def from_run_table(
    runs: NDArray[np.void], rows: int, path: str | os.PathLike[str]
) -> tuple[NDArray[np.void], Owners]:
    """Sort a run table by ``first_row`` and check that its ranges tile the rows.

    Args:
        runs: ``RUN_DTYPE[R]``, in any order.
        rows: number of rows, N.
        path: named in errors.

    Raises:
        BookkeepingError: a gap, an overlap, or ranges that do not end at N.
    """
    first, counts, wrong = _tiling(runs)
    if wrong.size:
        # A run without rows comes before the run that begins at the same row.
        runs = runs[np.lexsort((runs["rows"], runs["first_row"]))]
        first, counts, wrong = _tiling(runs)
    if wrong.size:
        at = wrong[0]
        end = first[at - 1] + counts[at - 1] if at else 0
        raise BookkeepingError(
            f"run {runs['id'][at]} begins at row {first[at]}; the runs before it end at row {end}", path=path
        )
    total = int(first[-1] + counts[-1]) if len(runs) else 0
    if total != rows:
        raise BookkeepingError(
            f"the {len(runs)} runs have {total} rows together; the steps have {rows}", path=path
        )
    filled = np.flatnonzero(counts)
    return runs, Owners(first[filled], filled, rows, contiguous=True)


def _tiling(runs: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """First rows and numbers of rows of runs, and which of them do not begin where the one before ends."""
    first = runs["first_row"].astype(np.int64)
    counts = runs["rows"].astype(np.int64)
    wrong = first.copy()
    wrong[1:] -= first[:-1] + counts[:-1]
    return first, counts, np.flatnonzero(wrong)


def from_scan(
    runs: NDArray[np.void], ids: NDArray[np.uint64], path: str | os.PathLike[str]
) -> tuple[NDArray[np.void], Owners]:
    """Find the rows of each run by reading every row's ``run_id``.

    Args:
        runs: ``RUN_DTYPE[R]``, in any order; ``first_row`` and ``rows`` are filled in.
        ids: ``run_id`` of each row, ``u8[N]``.
        path: named in errors.

    Returns:
        The run table by first row, and the owners. A run without rows is kept, at the end, with
        ``first_row`` = N and ``rows`` = 0: it is a game that was played.

    Raises:
        BookkeepingError: a row of a run that the table does not have.
    """
    starts, segment_ids = _segments(ids)
    by_id = np.argsort(runs["id"], kind="stable")
    sorted_ids = runs["id"][by_id]
    place = np.searchsorted(sorted_ids, segment_ids)
    inside = place < len(runs)
    known = np.zeros(len(place), np.bool_)
    known[inside] = sorted_ids[place[inside]] == segment_ids[inside]
    if not known.all():
        at = int(known.argmin())
        raise BookkeepingError(
            f"row {starts[at]} belongs to run {segment_ids[at]}, which the run table does not have", path=path
        )
    owner = by_id[place]
    lengths = np.diff(starts, append=len(ids))
    runs = runs.copy()
    runs["rows"] = np.bincount(owner, weights=lengths, minlength=len(runs))  # exact below 2**53
    runs["first_row"] = len(ids)
    runs["first_row"][owner[::-1]] = starts[::-1]  # of equal owners the last one stays: the first segment
    order = np.argsort(runs["first_row"], kind="stable")
    ordinal = np.empty(len(runs), np.int64)
    ordinal[order] = np.arange(len(runs))
    contiguous = len(starts) == np.count_nonzero(runs["rows"])
    return runs[order], Owners(starts, ordinal[owner], len(ids), contiguous=contiguous)


def _segments(ids: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """First row and id of each stretch of equal ids."""
    starts: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    found: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for first in range(0, len(ids), _SCAN_ROWS):
        # One more row at the front, to see whether the chunk goes on with the run before.
        chunk = np.ascontiguousarray(ids[max(0, first - 1) : first + _SCAN_ROWS])
        changes = np.flatnonzero(chunk[1:] != chunk[:-1]) + 1
        if first == 0:
            changes = np.concatenate(([0], changes))
        found.append(chunk[changes])
        starts.append(changes + max(0, first - 1))
    return np.concatenate(starts), np.concatenate(found)
