"""Base of pack.dat and the data set directory: rows of 32 bytes with a run table.

A filter chooses runs, a phase a part of each, and makes a view, which is itself a source of rows that can be
filtered again. It shares the rows and holds a few numbers for each chosen run, or for each stretch of rows
with the chosen numbers of empty cells: no row is copied, and no list of rows is made.
"""

from __future__ import annotations

import copy
import datetime as dt
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from tape2048.base.guide import make_guide
from tape2048.formats.rows import RowView, row_numbers, run_ordinal
from tape2048.selection.phase import ALL, make_phase
from tape2048.session.labels import DEFAULT_THRESHOLDS, run_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.base.guide import Guide
    from tape2048.datasets.run_table import RunTable
    from tape2048.session.session import Rows

ROW_BYTES = 32

#: The names of the fields of :meth:`TableRows.fetch`.
TABLE_FIELDS = ("tokens", "labels", "row", "run", "step", "move", "legal", "values")

_CACHE_LINE_BYTES = 64
# Rows whose empty cells are counted together: 8 MB.
_SCAN_ROWS = 1 << 18


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


class _Segments(NamedTuple):
    """Stretches of consecutive rows, each of one run, run after run.

    Attributes:
        first: ``i64[S]``, number of the first row in the source.
        rows: ``i64[S]``.
        run: ``i64[S]``, ordinal of the run.
    """

    first: NDArray[np.int64]
    rows: NDArray[np.int64]
    run: NDArray[np.int64]

    def take(self, chosen: NDArray[Any]) -> _Segments:
        """Return those of a mask or of ordinals."""
        return _Segments(*(column[chosen] for column in self))


class TableRows(RowView):
    """A source of 32-byte rows with a run table, or a view of some of its runs.

    Args:
        parts: the rows, one part after the other.
        table: the runs in the order of their rows, which they cover.

    Attributes:
        game_phase: the part of each game that is in the view.
    """

    def __init__(self, parts: Sequence[Part], table: RunTable) -> None:
        self._parts = tuple(parts)
        self._table = table
        self._rows = sum(part.rows for part in parts)
        self._is_view = False
        self.game_phase = ALL
        self._segments: _Segments | None = None  # of a phase; None: whole runs
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

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Rows of each run in the view: ``i64[R]``."""
        segments = self._stretches()
        counts = np.zeros(len(self.runs), np.int64)
        np.add.at(counts, segments.run, segments.rows)
        return counts

    @abstractmethod
    def get_batch(self, indices: ArrayLike, out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        """Return the rows with these numbers, in this order; see :meth:`RowView.get_batch`."""

    def _gather(self, indices: ArrayLike, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Return the records with these numbers, one after the other: ``u8[32 * n]``."""
        fast = type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1
        numbers = np.ascontiguousarray(indices if fast else row_numbers(indices, len(self)))
        if out is None:
            out = np.empty(ROW_BYTES * len(numbers), np.uint8)
        if self._is_view:
            _, rows, bad = self._locate(numbers)
        else:
            rows, bad = numbers, -1
        if bad < 0:
            bad = self._copy(rows, out)
        if bad >= 0:
            raise IndexError(f"row {numbers[bad]}; expected 0 <= row < {len(self)}")
        return out

    def _copy(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
        """Copy rows of the source; return the position in ``rows`` of an invalid number, or -1."""
        from tape2048.datasets.records import gather, gather_scattered

        if len(self._parts) == 1:
            part = self._parts[0]
            return int(gather(part.records, rows, part.rows, out))
        copied = 0
        for part in self._parts:
            copied += gather_scattered(part.records, rows, part.first_row, part.rows, out)
        if copied == len(rows):
            return -1
        return int(np.flatnonzero((rows < 0) | (rows >= sum(part.rows for part in self._parts)))[0])

    def _whole_run(self, ordinal: int) -> NDArray[np.uint8]:
        """Return all records of a run, ``u8[32 * steps]``, also of a phase; errors as :meth:`rows_of`."""
        run = self.runs[run_ordinal(ordinal, len(self.runs))]
        first, steps = int(run["first_row"]), int(run["steps"])
        out = np.empty(ROW_BYTES * steps, np.uint8)
        self._copy(np.arange(first, first + steps), out)
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
        found = self._locate(row_numbers(indices, len(self)))[0]
        return found if self._segments is None else self._segments.run[found]

    def _stretches(self) -> _Segments:
        """Return the stretches of rows of the view."""
        if self._segments is not None:
            return self._segments
        runs = self.runs
        return _Segments(
            runs["first_row"].astype(np.int64), runs["steps"].astype(np.int64), np.arange(len(runs))
        )

    def _guide(self) -> tuple[Guide, NDArray[np.int64]]:
        """Return the guide over the stretches' rows, and the offset from each one's rows to the source's."""
        if self._places is None:
            segments = self._stretches()
            starts = np.concatenate(([0], np.cumsum(segments.rows)))
            self._places = make_guide(starts), segments.first - starts[:-1]
        return self._places

    def _locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return each row's stretch and number in the source, and the position of a bad number, or -1."""
        from tape2048.datasets.records import locate

        return locate(numbers, *self._guide())

    def rows_of(self, run: int) -> slice:
        """Return the rows of one run of :attr:`runs`, as a slice of this source.

        Raises:
            IndexError: no such run.
            TypeError: not an integer.
        """
        run = run_ordinal(run, len(self.runs))
        if self._segments is not None:
            ends = np.searchsorted(self._segments.run, [run, run + 1])
            return slice(*self._guide()[0].starts[ends].tolist())
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
        segments = self._segments
        if segments is not None:
            segments = segments.take(mask[segments.run])
            segments = segments._replace(run=(np.cumsum(mask) - 1)[segments.run])
        self._table = self._table.choose(mask)
        self._show(segments)

    def _show(self, segments: _Segments | None) -> None:
        """Become a view of these stretches, or of whole runs."""
        self._segments = segments
        self._places = None
        self._is_view = True
        self._rows = int(self._stretches().rows.sum())

    def phase(
        self,
        *,
        steps: tuple[int | None, int | None] | None = None,
        fraction: tuple[float | None, float | None] | None = None,
        empties: tuple[int | None, int | None] | None = None,
    ) -> Self:
        """Make a view of a part of each game, by half-open ranges ``(first, end)``; None leaves a side open.

        The ranges are those of :meth:`tape2048.Corpus.phase`; one replaces that of an earlier call. Runs
        without a row in the view stay in :attr:`runs`.

        Args:
            steps: range of the step's number.
            fraction: range of its number / ``steps``, from 0 to 1; ``(0.5, None)`` is the second half.
            empties: range of the number of empty cells; ``(0, 4)`` is at most three. Reads the rows once, and
                keeps about 30 bytes for each stretch of rows.

        Raises:
            ValueError: a range is invalid.

        Example:
            >>> from tape2048.datasets import DataPack
            >>> from tape2048.runs import read_run
            >>> pack = DataPack.build([read_run("runs/golden.a2run")])
            >>> late = pack.phase(fraction=(0.5, None))
            >>> len(pack), late[:]["step_index"].tolist()
            (12, [6, 7, 8, 9, 10, 11])
        """
        view = copy.copy(self)
        view.game_phase = make_phase(self.game_phase, steps, fraction, empties)
        view._show(view._cut())  # noqa: SLF001 - of the same class
        if view.game_phase.empties is not None:
            view._show(view._with_empties(*view.game_phase.empties))  # noqa: SLF001
        return view

    def _cut(self) -> _Segments:
        """Return the stretches of the runs' rows within the phase's steps and fraction."""
        steps = self.runs["steps"].astype(np.int64)
        low, high = self.game_phase.step_ranges(steps)
        rows = np.maximum(np.minimum(high, steps) - low, 0)
        first = self.runs["first_row"].astype(np.int64) + low
        return _Segments(first, rows, np.arange(len(rows))).take(rows > 0)

    def _with_empties(self, low: int, high: int) -> _Segments:
        """Return the stretches of the view's rows whose board has ``low <= empty cells < high``."""
        run = self._stretches().run
        found = [self._stretches().take(np.zeros(0, np.int64))]
        for begin in range(0, len(self), _SCAN_ROWS):
            numbers = np.arange(begin, min(begin + _SCAN_ROWS, len(self)))
            owner, rows, _ = self._locate(numbers)
            boards = self._gather(numbers).view("<u8")[:: ROW_BYTES // 8]
            filled = boards | boards >> np.uint64(1)
            filled = (filled | filled >> np.uint64(2)) & np.uint64(0x1111111111111111)
            empties = 16 - np.bitwise_count(filled).astype(np.int64)
            inside = (low <= empties) & (empties < high)
            edge = np.ones(len(rows), np.bool_)
            edge[1:] = (inside[1:] != inside[:-1]) | (owner[1:] != owner[:-1])
            begins = np.flatnonzero(edge)
            lengths = np.diff(begins, append=len(rows))
            kept = inside[begins]
            found.append(_Segments(rows[begins], lengths, run[owner[begins]]).take(kept))
        return _Segments(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def refuse_phase(self) -> None:
        """Raise ValueError for a phase, which no file holds."""
        if self.game_phase != ALL:
            raise ValueError(
                f"{self!r} has parts of games; a file holds whole ones: write it without phase()"
            )

    def fetch(
        self,
        rows: Rows,
        fields: Sequence[str] = ("tokens", "labels"),
        *,
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: Literal["bool", "float32"] = "bool",
    ) -> dict[str, NDArray[Any]]:
        """Return fields of any rows, as :meth:`tape2048.Corpus.fetch`.

        Args:
            rows: a slice, row numbers, or a mask ``bool[N]``.
            fields: of ``tokens`` (exponents, ``u8[n, 16]``), ``labels`` (``[n, T]``, whether the run's
                highest tile reaches each threshold), ``row`` (``i64[n]``), ``run`` (ordinal in :attr:`runs`,
                ``u32[n]``), ``step`` (``u32[n]``), ``move`` (``u8[n]``), ``legal`` (by the rules, bit m for
                move m, ``u8[n]``), ``values`` (of the branches, ``f32[n, 4]``).
            thresholds: tiles of the labels.
            label_dtype: ``"bool"`` or ``"float32"``.

        Returns:
            New arrays by field.

        Raises:
            IndexError: a number is outside [0, N), or a mask has another length.
            TypeError: ``rows`` is not a selection of rows.
            ValueError: a field or a threshold is invalid.

        Example:
            >>> from tape2048.datasets import DataPack
            >>> from tape2048.runs import read_run
            >>> pack = DataPack.build([read_run("runs/golden.a2run")])
            >>> {name: array.shape for name, array in pack.fetch([0, 3], ("tokens", "values")).items()}
            {'tokens': (2, 16), 'values': (2, 4)}
        """
        names = check_table_fields(fields)
        if label_dtype not in {"bool", "float32"}:
            raise ValueError(f"label_dtype={label_dtype!r}; expected 'bool' or 'float32'")
        labels = run_labels(self.runs, thresholds).astype(label_dtype)
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(len(self)))
        else:
            numbers = row_numbers(rows, len(self))
        batch = self.get_batch(numbers)
        return {name: self._field(name, numbers, batch, labels) for name in names}

    def _field(
        self, name: str, numbers: NDArray[np.int64], batch: NDArray[np.void], labels: NDArray[Any]
    ) -> NDArray[Any]:
        from tape2048.game.rules import boards_to_exps, legal_masks

        match name:
            case "tokens":
                return boards_to_exps(batch["board"])
            case "labels":
                return labels[self.run_index(numbers)]
            case "legal":
                return legal_masks(batch["board"])
            case "row":
                return numbers.copy()
            case "run":
                return self.run_index(numbers).astype(np.uint32)
            case _:
                column = batch[{"step": "step_index", "values": "ev_values"}.get(name, name)]
                return column.astype(np.uint32 if name == "step" else column.dtype)

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


def check_table_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the fields as a tuple; raise ValueError for an unknown or repeated one, or for none."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not names or len(set(names)) != len(names) or not set(names) <= set(TABLE_FIELDS):
        raise ValueError(f"fields={names!r}; expected one or more of {TABLE_FIELDS}, each once")
    return names


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
