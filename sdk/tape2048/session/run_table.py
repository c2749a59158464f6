"""The run table of a session: the run of each row, and the labels of runs.

The rows are a sequence of segments, each a range of consecutive rows of one run. A recorded run is one
segment. Sessions of other programs may interleave their runs, so that a run has several segments. The mapping
of rows to runs takes memory that grows with the segments, and not with the rows.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import BookkeepingError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_SCAN_ROWS = 1 << 20  # rows scanned at a time: 8 MB of ids


class Owners:
    """The run of each row, as its ordinal in the run table."""

    def __init__(
        self, starts: NDArray[np.int64], runs: NDArray[np.int64], rows: int, *, contiguous: bool
    ) -> None:
        self._starts = starts
        self._runs = runs
        self.rows = rows
        self.contiguous = contiguous

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.diff(self._starts, append=self.rows)

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
        begin = int(np.searchsorted(self._starts, first, "right")) - 1
        end = int(np.searchsorted(self._starts, last, "left"))
        edges = np.clip(self._starts[begin:end], first, last)
        return np.repeat(self._runs[begin:end], np.diff(edges, append=last))

    def of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.contiguous:
            return self._runs[np.searchsorted(self._starts, rows, "right") - 1]
        # There may be a segment for each row. A table of 4 bytes for each row is then faster than a search.
        return self._dense[rows].astype(np.int64)

    def rows_of(self, run: int) -> NDArray[np.int64]:
        mine = np.flatnonzero(self._runs == run)
        parts = [np.arange(self._starts[i], self._starts[i] + self._lengths[i]) for i in mine]
        return np.concatenate([np.empty(0, np.int64), *parts])


def check_tiles(
    table: NDArray[np.void],
    counts: NDArray[np.integer[Any]],
    rows: int,
    path: str | os.PathLike[str],
    what: str = "run",
) -> None:
    """Raise BookkeepingError unless runs or blocks, in their order, cover each row exactly once."""
    first = table["first_row"].astype(np.int64)
    ends = np.append(0, first + counts.astype(np.int64))
    wrong = np.flatnonzero(first != ends[:-1])
    if wrong.size:
        at = int(wrong[0])
        name = table["run_id"][at] if what == "run" else at
        found = f"{what} {name} starts at row {first[at]}. The {what}s before it end at row {ends[at]}"
        raise BookkeepingError(found, path=path)
    if ends[-1] != rows:
        covered = f"have {ends[-1]} rows together" if what == "run" else f"cover {ends[-1]} rows"
        found = f"the {len(table)} {what}s {covered}. The steps have {rows}"
        raise BookkeepingError(found, path=path)


def from_run_table(
    runs: NDArray[np.void], rows: int, path: str | os.PathLike[str]
) -> tuple[NDArray[np.void], Owners]:
    """Sort a run table, ``RUN_DTYPE[R]``, by ``first_row``; return it, and the run of each row."""
    if (np.diff(runs["first_row"].astype(np.int64)) <= 0).any():
        # A run without rows comes before the run that starts at the same row.
        runs = runs[np.lexsort((runs["rows"], runs["first_row"]))]
    check_tiles(runs, runs["rows"], rows, path)
    filled = np.flatnonzero(runs["rows"])
    return runs, Owners(runs["first_row"][filled].astype(np.int64), filled, rows, contiguous=True)


def ordinals_of(
    table: NDArray[Any], ids: NDArray[Any], order: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the indices of ids in a table of different ids, -1 for an unknown id; ``order`` sorts it."""
    order = np.argsort(table, kind="stable") if order is None else order
    place = np.searchsorted(table[order], ids)
    found = np.append(order, -1)[place]
    found[np.append(table, table.dtype.type(0))[found] != ids] = -1
    return found


def find_owners(
    runs: NDArray[np.void],
    rows: int,
    ids: Callable[[NDArray[np.int64]], NDArray[np.uint64]],
    path: str | os.PathLike[str],
    *,
    whole: bool = True,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each segment's first row and run (-1: none); with ``whole``, rows of no run are an error."""
    starts, segment_ids = _segments(rows, ids)
    owner = ordinals_of(runs["run_id"], segment_ids)
    known = owner >= 0
    if not known.all() and (whole or (len(runs) and not known.any())):
        at = int(known.argmin())
        raise BookkeepingError(
            f"row {starts[at]} belongs to run {segment_ids[at]}, which is not in the run table",
            path=path,
        )
    return starts, owner


def keep_owned(
    runs: NDArray[np.void], starts: NDArray[np.int64], owner: NDArray[np.int64], rows: int
) -> tuple[NDArray[np.void], Owners, NDArray[np.int64]]:
    """Leave out rows of no run; return run table, owners, and the indices of the segments that remain."""
    kept = np.flatnonzero(owner >= 0)
    owner, lengths = owner[kept], np.diff(starts, append=rows)[kept]
    starts, rows = np.cumsum(lengths) - lengths, int(lengths.sum())
    runs = runs.copy()
    runs["rows"] = np.bincount(owner, weights=lengths, minlength=len(runs))  # exact below 2**53
    runs["first_row"] = rows
    runs["first_row"][owner[::-1]] = starts[::-1]  # the last of equal owners stays: the first segment
    order = np.argsort(runs["first_row"], kind="stable")
    ordinal = np.empty(len(runs), np.int64)
    ordinal[order] = np.arange(len(runs))
    changes = np.count_nonzero(owner[1:] != owner[:-1]) + min(1, len(owner))
    contiguous = changes == np.count_nonzero(runs["rows"])
    return runs[order], Owners(starts, ordinal[owner], rows, contiguous=bool(contiguous)), kept


def _segments(
    rows: int, ids: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    starts: list[NDArray[np.int64]] = [np.zeros(min(1, rows), np.int64)]
    for first in range(0, rows, _SCAN_ROWS):
        # Starts one row earlier, since that row may be of the same run.
        begin = max(0, first - 1)
        chunk = ids(np.arange(begin, min(first + _SCAN_ROWS, rows)))
        starts.append(np.flatnonzero(chunk[1:] != chunk[:-1]) + 1 + begin)
    found = np.concatenate(starts)
    return found, ids(found)


#: The tiles that a critic predicts by default.
DEFAULT_THRESHOLDS = (8192, 16384, 32768)
#: The tiles for which documents give the share of games that reached them. Tables show some of them.
REACH_TILES = tuple(1 << exponent for exponent in range(5, 17))


def check_thresholds(thresholds: Sequence[int]) -> NDArray[np.int64]:
    """Return thresholds as ``i64[T]``; raise ValueError unless they are different powers of two, 2..2**62."""
    given = np.asarray(thresholds)
    # A u64 of 2**63 becomes negative. Values other than integers cannot always be converted.
    tiles = given.astype(np.int64) if given.dtype.kind in "iu" else np.empty(0, np.int64)
    valid = tiles.ndim == 1 and tiles.size > 0 and len(np.unique(tiles)) == len(tiles)
    if not valid or not ((tiles >= 2) & (tiles & (tiles - 1) == 0)).all():
        raise ValueError(
            f"thresholds {thresholds!r}; expected different powers of two, at least one, each from 2 to 2**62"
        )
    return tiles


def run_labels(runs: NDArray[np.void], thresholds: Sequence[int]) -> NDArray[np.bool_]:
    """Compare the highest tile of each run with each threshold: ``bool[R, T]``."""
    reached: NDArray[np.bool_] = runs["highest_tile"][:, None] >= check_thresholds(thresholds)
    return reached


_TOLD: set[str] = set()  # warnings of this process, without the numbers of games


def warn_of_constants(run_labels: NDArray[np.bool_], thresholds: Sequence[int]) -> None:
    """Log a warning about the thresholds that all runs or no runs reached, once in a process."""
    found = {text.partition(" of ")[0]: text for text in constant_labels(run_labels, thresholds)}
    if told := [text for key, text in found.items() if key not in _TOLD]:
        _TOLD.update(found)
        logging.getLogger("tape2048").warning("constant labels: %s; pass other thresholds", "; ".join(told))


def constant_labels(run_labels: NDArray[np.bool_], thresholds: Sequence[int]) -> list[str]:
    return [
        f"{tile:,} was reached by {'all' if column.any() else 'none'} of {len(column):,} games"
        for tile, column in zip(thresholds, run_labels.T, strict=True)
        if column.all() or not column.any()
    ]


def exponents_of(tiles: NDArray[Any]) -> NDArray[np.uint8]:
    """Return ``floor(log2(tile))`` of each tile, 0 for 0; exact, since a double holds the leading bit."""
    exponents: NDArray[np.uint8] = np.maximum(np.frexp(tiles.astype(np.float64))[1] - 1, 0).astype(np.uint8)
    return exponents


def game_facts(runs: Any) -> tuple[dict[str, object], dict[str, float]]:
    tiles, counts = np.unique(runs["highest_tile"], return_counts=True)
    facts: dict[str, object] = {"games": len(runs)}
    if len(runs):
        facts["mean score"] = f"{runs['score'].mean():,.0f}"
        facts["best score"] = int(runs["score"].max())
    shares = counts / max(len(runs), 1)
    return facts, {f"highest tile {tile}": float(share) for tile, share in zip(tiles, shares, strict=True)}
