"""Base of pack.dat and the data set directory: rows of 32 bytes with a run table.

A filter chooses runs and makes a view, which is itself a source of rows that can be filtered again. It shares
the rows and holds a few numbers for each chosen run: no row is copied, and no list of rows is made.
"""

from __future__ import annotations

import copy
import datetime as dt
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tape2048.base.guide import make_guide
from tape2048.formats.rows import RowView, row_numbers, run_ordinal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.base.guide import Guide
    from tape2048.datasets.run_table import RunTable

ROW_BYTES = 32

_CACHE_LINE_BYTES = 64


class Part(NamedTuple):
    """Consecutive rows in one piece of memory.

    Attributes:
        records: ``u8[32 * rows]``, read-only.
        first_row: number of the first one.
        rows: number of rows.
        id_shift: offset to add to each ``run_id``, so that ids differ among several sets.
    """

    records: NDArray[np.uint8]
    first_row: int
    rows: int
    id_shift: int = 0


class TableRows(RowView):
    """A source of 32-byte rows with a run table, or a view of some of its runs.

    Args:
        parts: the rows, one part after the other.
        table: the runs in the order of their rows, which they cover.
    """

    def __init__(self, parts: Sequence[Part], table: RunTable) -> None:
        self._parts = tuple(parts)
        self._table = table
        self._rows = sum(part.rows for part in parts)
        self._is_view = False
        self._places: tuple[Guide, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Number of rows, N."""
        return self._rows

    @property
    def run_table(self) -> RunTable:
        """The runs of this source or view; ``first_row`` counts the rows of the source."""
        return self._table

    @property
    def runs(self) -> NDArray[np.void]:
        """One record a run, in the order of the rows: ``RUN_TABLE_DTYPE[R]``."""
        return self._table.rows

    @property
    def is_view(self) -> bool:
        """Whether a filter made this."""
        return self._is_view

    @abstractmethod
    def get_batch(self, indices: ArrayLike, out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        """Return the rows with these numbers, in this order; see :meth:`RowView.get_batch`."""

    def _gather(self, indices: ArrayLike, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Return the records with these numbers, one after the other: ``u8[32 * n]``."""
        from tape2048.datasets.records import gather, gather_scattered

        fast = type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1
        numbers = np.ascontiguousarray(indices if fast else row_numbers(indices, len(self)))
        if out is None:
            out = np.empty(ROW_BYTES * len(numbers), np.uint8)
        if self._is_view:
            _, rows, bad = self._locate(numbers)
        else:
            rows, bad = numbers, -1
        if bad < 0 and len(self._parts) == 1:
            part = self._parts[0]
            bad = gather(part.records, rows, part.rows, out)
        elif bad < 0:
            copied = 0
            for part in self._parts:
                copied += gather_scattered(part.records, rows, part.first_row, part.rows, out)
            if copied < len(rows):
                bad = int(np.flatnonzero((rows < 0) | (rows >= len(self)))[0])
        if bad >= 0:
            raise IndexError(f"row {numbers[bad]}; expected 0 <= row < {len(self)}")
        return out

    def _id_shifts(self, indices: ArrayLike) -> NDArray[np.uint32] | None:
        """Return the offset of each row's ``run_id``; None where all are 0."""
        if not any(part.id_shift for part in self._parts):
            return None
        rows = self.source_rows(indices)
        begins = [part.first_row for part in self._parts]
        owner = np.searchsorted(begins, rows, side="right") - 1
        return np.array([part.id_shift for part in self._parts], np.uint32)[owner]

    def source_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the rows' numbers in the source of this view: ``i64[n]``."""
        numbers = row_numbers(indices, len(self))
        if not self._is_view:
            return numbers
        return self._locate(numbers)[1]

    def run_index(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the ordinal, in :attr:`runs`, of each row's run: ``i64[n]``; errors as :meth:`get_batch`."""
        return self._locate(row_numbers(indices, len(self)))[0]

    def _locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return each row's run and number in the source, and the position of an invalid number, or -1."""
        from tape2048.datasets.records import locate

        if self._places is None:
            starts = np.concatenate(([0], np.cumsum(self.runs["steps"], dtype=np.int64)))
            self._places = make_guide(starts), self.runs["first_row"].astype(np.int64) - starts[:-1]
        return locate(numbers, *self._places)

    def rows_of(self, run: int) -> slice:
        """Return the rows of one run of :attr:`runs`, as a slice of this source.

        Raises:
            IndexError: no such run.
            TypeError: not an integer.
        """
        run = run_ordinal(run, len(self.runs))
        steps = self.runs["steps"]
        first = int(steps[:run].sum(dtype=np.int64)) if self.is_view else int(self.runs["first_row"][run])
        return slice(first, first + int(steps[run]))

    def filter_runs(self, chosen: ArrayLike) -> Self:
        """Make a view of the runs of a mask, ``bool[R]``.

        Raises:
            ValueError: not such a mask.
        """
        mask = np.asarray(chosen)
        if mask.dtype != np.bool_ or mask.shape != (len(self.runs),):
            raise ValueError(f"a mask of {mask.dtype}{list(mask.shape)}; expected bool[{len(self.runs)}]")
        view = copy.copy(self)
        view._choose(mask)  # noqa: SLF001 - of the same class
        return view

    def _choose(self, mask: NDArray[np.bool_]) -> None:
        self._table = self._table.choose(mask)
        self._rows = int(self._table.rows["steps"].sum(dtype=np.int64))
        self._is_view = True
        self._places = None

    def filter_by_score(self, min_score: int | None = None, max_score: int | None = None) -> Self:
        """Make a view of the runs with ``max_score`` between the two, both included."""
        return self.filter_runs(_between(self.runs["max_score"], min_score, max_score))

    def filter_by_length(self, min_steps: int | None = None, max_steps: int | None = None) -> Self:
        """Make a view of the runs with a number of steps between the two, both included."""
        return self.filter_runs(_between(self.runs["steps"], min_steps, max_steps))

    def filter_by_highest_tile(self, min_tile: int | None = None, max_tile: int | None = None) -> Self:
        """Make a view of the runs with a highest tile (its value, as 8192) between the two, both included."""
        return self.filter_runs(_between(self.runs["highest_tile"], min_tile, max_tile))

    def filter_by_engine(self, *engines: str | None) -> Self:
        """Make a view of the runs of these engines; None: of the runs without one."""
        known = np.array([name in engines for name in (*self._table.engines, None)], np.bool_)
        return self.filter_runs(known[self.runs["engine"]])

    def filter_by_time(
        self, since: float | dt.datetime | None = None, until: float | dt.datetime | None = None
    ) -> Self:
        """Make a view of the runs with a known start in ``[since, until)``.

        Args:
            since: seconds since 1970 (UTC), or a datetime with its time zone.
            until: as ``since``.

        Raises:
            TypeError: neither of these.
            ValueError: a datetime without a time zone.
        """
        start = self.runs["start_unix_s"]
        mask = start > 0
        if since is not None:
            mask &= start >= _seconds(since)
        if until is not None:
            mask &= start < _seconds(until)
        return self.filter_runs(mask)


def aligned_records(count: int) -> NDArray[np.uint8]:
    """Allocate records, ``u8[32 * count]``, from the start of a cache line.

    NumPy's own memory begins 16 bytes after a page: every other record would lie across two lines.
    """
    memory = np.empty(ROW_BYTES * count + _CACHE_LINE_BYTES, np.uint8)
    skip = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[skip : skip + ROW_BYTES * count]


def _between(values: NDArray[Any], low: int | None, high: int | None) -> NDArray[np.bool_]:
    mask = np.ones(len(values), np.bool_)
    if low is not None:
        mask &= values >= low
    if high is not None:
        mask &= values <= high
    return mask


def _seconds(moment: float | dt.datetime) -> float:
    if not isinstance(moment, dt.datetime):
        if isinstance(moment, float | int | np.number):
            return float(moment)
        raise TypeError(f"found {moment!r}, expected seconds since 1970, or a datetime with its time zone")
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; expected one, as datetime.UTC")
    return moment.timestamp()
