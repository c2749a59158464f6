"""Mapping of rows to runs, in memory that grows with the runs and not with the rows.

The rows are a sequence of segments, each a stretch of consecutive rows of one run. A run that the recorder
wrote is one segment; a foreign session may interleave its runs, and then a run has several segments.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import BookkeepingError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

# Rows scanned at a time: 8 MB of ids.
_SCAN_ROWS = 1 << 20


class Owners:
    """The run of each row, as its ordinal in the run table."""

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
        """Return first row, rows and run of each segment, in row order: ``i64[S]`` each, read-only."""
        columns = self._starts, self._lengths, self._runs
        for column in columns:
            column.flags.writeable = False
        return columns

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeat each run's value for each of its rows: ``[R, ...]`` to ``[N, ...]``."""
        return np.repeat(values[self._runs], self._lengths, axis=0)

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the run of each row in [first, last)."""
        begin = int(np.searchsorted(self._starts, first, "right")) - 1
        end = int(np.searchsorted(self._starts, last, "left"))
        edges = np.clip(self._starts[begin:end], first, last)
        return np.repeat(self._runs[begin:end], np.diff(edges, append=last))

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the run of each given row, all in [0, N)."""
        if self.contiguous:
            return self._runs[np.searchsorted(self._starts, rows, "right") - 1]
        # There may be one segment a row, and a table of 4 bytes a row, made once, beats a binary search.
        return self._dense[rows].astype(np.int64)

    def rows_of(self, run: int) -> NDArray[np.int64]:
        """Return all rows of one run, ascending."""
        mine = np.flatnonzero(self._runs == run)
        parts = [np.arange(self._starts[i], self._starts[i] + self._lengths[i]) for i in mine]
        return np.concatenate([np.empty(0, np.int64), *parts])


def from_run_table(
    runs: NDArray[np.void], rows: int, path: str | os.PathLike[str]
) -> tuple[NDArray[np.void], Owners]:
    """Sort a run table, ``RUN_DTYPE[R]``, by ``first_row``; return it with the owners of the rows."""
    if (np.diff(runs["first_row"].astype(np.int64)) <= 0).any():
        # A run without rows comes before the run that begins at the same row.
        runs = runs[np.lexsort((runs["rows"], runs["first_row"]))]
    first = runs["first_row"].astype(np.int64)
    ends = np.append(0, first + runs["rows"].astype(np.int64))
    wrong = np.flatnonzero(first != ends[:-1])
    if wrong.size:
        at = wrong[0]
        found = f"run {runs['id'][at]} begins at row {first[at]}; the runs before it end at row {ends[at]}"
        raise BookkeepingError(found, path=path)
    if ends[-1] != rows:
        found = f"the {len(runs)} runs have {ends[-1]} rows together; the steps have {rows}"
        raise BookkeepingError(found, path=path)
    filled = np.flatnonzero(runs["rows"])
    return runs, Owners(first[filled], filled, rows, contiguous=True)


def from_scan(
    runs: NDArray[np.void], ids: NDArray[np.uint64], path: str | os.PathLike[str], *, whole: bool = True
) -> tuple[NDArray[np.void], Owners, NDArray[np.bool_] | None]:
    """Find the rows of each run from every row's ``run_id``."""
    starts, segment_ids = _segments(ids)
    by_id = np.argsort(runs["id"], kind="stable")
    sorted_ids = runs["id"][by_id]
    place = np.searchsorted(sorted_ids, segment_ids)
    known = place < len(runs)
    known[known] = sorted_ids[place[known]] == segment_ids[known]
    lengths = np.diff(starts, append=len(ids))
    kept = None
    if not known.all():
        if whole or (len(runs) and not known.any()):
            at = int(known.argmin())
            raise BookkeepingError(
                f"row {starts[at]} belongs to run {segment_ids[at]}, which the run table does not have",
                path=path,
            )
        kept = np.repeat(known, lengths)
        place, lengths = place[known], lengths[known]
        # Stretches of one run with only others' rows between them become one.
        begins = np.flatnonzero(np.append(True, place[1:] != place[:-1])[: len(place)])
        place, lengths = place[begins], np.add.reduceat(lengths, begins)
        starts = np.cumsum(lengths) - lengths
    owner = by_id[place]
    rows = int(lengths.sum())
    runs = runs.copy()
    runs["rows"] = np.bincount(owner, weights=lengths, minlength=len(runs))  # exact below 2**53
    runs["first_row"] = rows
    runs["first_row"][owner[::-1]] = starts[::-1]  # the last of equal owners stays: the first segment
    order = np.argsort(runs["first_row"], kind="stable")
    ordinal = np.empty(len(runs), np.int64)
    ordinal[order] = np.arange(len(runs))
    contiguous = len(starts) == np.count_nonzero(runs["rows"])
    return runs[order], Owners(starts, ordinal[owner], rows, contiguous=contiguous), kept


def _segments(ids: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return first row and id of each stretch of equal ids."""
    starts: list[NDArray[np.int64]] = [np.zeros(min(1, len(ids)), np.int64)]
    for first in range(0, len(ids), _SCAN_ROWS):
        # With the row before, which may be of the same run.
        begin = max(0, first - 1)
        chunk = np.ascontiguousarray(ids[begin : first + _SCAN_ROWS])
        starts.append(np.flatnonzero(chunk[1:] != chunk[:-1]) + 1 + begin)
    found = np.concatenate(starts)
    return found, ids[found]
