"""Base of pack.dat and the data set directory: rows of 32 bytes with a run table.

A filter chooses runs, a phase a part of each, and makes a view, which can be filtered again. It shares the
rows and holds a few numbers for each chosen run, or for each span of rows with the chosen numbers of empty
cells: no row is copied, and no list of rows is made.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import msgspec
import numpy as np

from tape2048.base.guide import Guide, make_guide
from tape2048.formats.rows import row_numbers, run_ordinal
from tape2048.jit.mix import mix64
from tape2048.players import identity_of, join_seed, player_of_engine
from tape2048.rows.base import View
from tape2048.rows.phases import ALL, Phase, make_phase
from tape2048.rows.splits import player_key
from tape2048.runs.run import Run
from tape2048.session.run_table import DEFAULT_THRESHOLDS, run_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.datasets.run_table import RunTable
    from tape2048.rows.filters import Columns
    from tape2048.session.session import Rows

ROW_BYTES = 32

#: The names of the fields of :meth:`TableRows.fetch`.
TABLE_FIELDS = ("tokens", "labels", "row", "run", "step", "move", "legal", "values")

_CACHE_LINE_BYTES = 64
# Rows whose empty cells are counted together: 8 MB.
_SCAN_ROWS = 1 << 18
_FACTS = ["steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s"]


class _Spans(NamedTuple):
    """Spans of consecutive rows, each of one run, run after run. All ``i64[S]``."""

    first: NDArray[np.int64]  # number of the first row in the source
    rows: NDArray[np.int64]
    run: NDArray[np.int64]  # ordinal of the run

    def take(self, chosen: NDArray[Any]) -> _Spans:
        """Return the spans of a mask or of ordinals."""
        return _Spans(*(column[chosen] for column in self))


class TableRows(View):
    """A source of 32-byte rows with a run table, or a view of some of its runs.

    Args:
        parts: the records, ``u8[32 * n]`` each, one part after the other, read-only.
        table: the runs in the order of their rows, which they cover.

    Attributes:
        game_phase: the part of each game that is in the view.
        dtype: the type of a row.
    """

    dtype: ClassVar[np.dtype[Any]]
    #: The value 0.5 of a branch as the rows hold it.
    _half: ClassVar[np.float32] = np.float32(0.5)
    #: Whether ``ev_legal`` is 0 at steps without values.
    _mask_tells: ClassVar[bool] = False

    def __init__(self, parts: Sequence[NDArray[np.uint8]], table: RunTable) -> None:
        self._parts = tuple(parts)
        self._part_starts = np.cumsum([0, *(len(part) // ROW_BYTES for part in parts)])
        self._renumbered = False  # whether the run table has other ids than the rows
        self._become(table, ALL, None)

    def _become(self, table: RunTable, phase: Phase, spans: _Spans | None) -> None:
        self._table = table
        self.game_phase = phase
        self._cut = spans  # None: whole runs
        self._is_view = False

    def _view(self, table: RunTable, phase: Phase, spans: _Spans | None) -> Self:
        view = object.__new__(type(self))
        vars(view).update(vars(self))
        for name in ("_spans", "row_starts", "_guide"):  # cached of this one
            vars(view).pop(name, None)
        view._become(table, phase, spans)
        view._is_view = True
        return view

    def __len__(self) -> int:
        """Number of rows, N."""
        return int(self.row_starts[-1])

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

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """First row of each run in this view, then the number of rows: ``i64[R + 1]``."""
        counts = np.bincount(self._spans.run, self._spans.rows, len(self.runs)).astype(np.int64)
        return np.concatenate(([0], np.cumsum(counts)))

    @cached_property
    def _spans(self) -> _Spans:
        if self._cut is not None:
            return self._cut
        first, steps = (self.runs[name].astype(np.int64) for name in ("first_row", "steps"))
        return _Spans(first, steps, np.arange(len(self.runs)))

    @cached_property
    def _guide(self) -> tuple[Guide, NDArray[np.int64]]:
        """The guide over the spans' rows, and the offset from each span's rows to the source's."""
        starts = np.concatenate(([0], np.cumsum(self._spans.rows)))
        return make_guide(starts), self._spans.first - starts[:-1]

    def get_batch(self, indices: ArrayLike, out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        """Return the rows with these numbers, in this order.

        Args:
            indices: row numbers ``[n]``, in any order, repeats allowed; or a mask ``bool[N]``. A
                negative number is an error, not counted from the end. ``int64`` is the fast type.
            out: ``dtype[n]`` to write into, contiguous; None: a new array.

        Returns:
            ``dtype[n]``.

        Raises:
            IndexError: a number outside [0, N), or a mask of another length.
            TypeError: not integers of one dimension.
            ValueError: an unsuitable ``out``.
        """
        numbers = self._numbers(indices)
        if out is not None and (
            out.dtype != self.dtype or not out.flags.c_contiguous or out.shape != numbers.shape
        ):
            raise ValueError(f"out is {out.dtype}{list(out.shape)}; expected {self.dtype}[{len(numbers)}]")
        rows = self._decode(self._gather(numbers, out), out)
        if self._renumbered:
            rows["run_id"] = self.runs["id"][self.run_index(numbers)]
        return rows

    def _decode(
        self,
        records: NDArray[np.uint8],
        out: NDArray[np.void] | None = None,  # noqa: ARG002 - of a subclass
    ) -> NDArray[np.void]:
        return records.view(self.dtype)

    def _numbers(self, indices: ArrayLike) -> NDArray[np.int64]:
        fast = type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1
        return np.ascontiguousarray(indices if fast else row_numbers(indices, len(self)))

    def _gather(self, numbers: NDArray[np.int64], out: NDArray[Any] | None = None) -> NDArray[np.uint8]:
        """Return the records with these numbers, ``u8[32 * n]``; in ``out``, if its rows have 32 bytes."""
        if out is not None and out.itemsize == ROW_BYTES:
            records = out.view(np.uint8)
        else:
            records = np.empty(ROW_BYTES * len(numbers), np.uint8)
        rows, bad = self._locate(numbers) if self._is_view else (numbers, -1)
        if bad < 0:
            bad = self._copy(rows, records)
        if bad >= 0:
            raise IndexError(f"row {numbers[bad]}; expected 0 <= row < {len(self)}")
        return records

    def _copy(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
        """Copy rows of the source; return the position in ``rows`` of an invalid number, or -1."""
        from tape2048.datasets.records import gather

        if len(self._parts) == 1:
            return int(gather(self._parts[0], rows, self._part_starts[-1], out))
        owner = np.searchsorted(self._part_starts, rows, side="right") - 1
        bad = (owner < 0) | (owner >= len(self._parts))
        if bad.any():
            return int(bad.argmax())
        whole = np.dtype((np.void, ROW_BYTES))
        for i, part in enumerate(self._parts):
            here = np.flatnonzero(owner == i)
            found = np.empty(ROW_BYTES * len(here), np.uint8)
            gather(part, rows[here] - self._part_starts[i], len(part) // ROW_BYTES, found)
            out.view(whole)[here] = found.view(whole)
        return -1

    def _locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Return the rows' numbers in the source, and the position of a bad number, or -1."""
        from tape2048.datasets.records import locate

        source = np.empty(len(numbers), np.int64)
        return source, int(locate(numbers, *self._guide, source))

    def source_rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the rows' numbers in the source of this view: ``i64[n]``; errors as :meth:`get_batch`."""
        numbers = row_numbers(indices, len(self))
        return self._locate(numbers)[0] if self._is_view else numbers

    def _of_runs(self, chosen: NDArray[np.bool_]) -> Self:
        spans = self._cut
        if spans is not None:
            spans = spans.take(chosen[spans.run])
            spans = spans._replace(run=(np.cumsum(chosen) - 1)[spans.run])
        return self._view(self._table.choose(chosen), self.game_phase, spans)

    def _columns(self) -> Columns:
        engines = np.array(self._table.engine_names(), object)
        start = self.runs["start_unix_s"].astype(np.float64)
        return {
            **super()._columns(),
            "engine": lambda: engines,
            "model": lambda: engines,
            "player": lambda: np.array(
                [player_of_engine(one) for one in (*self._table.engines, None)], object
            )[self.runs["engine"]],
            "started": lambda: np.where(start > 0, start, np.nan),
        }

    def _run_hashes(self, salt: str) -> NDArray[np.uint64]:
        """Hash recorded games by player and seed, as a corpus does, and others by their metadata."""
        keys: dict[str, int] = {}
        found = np.zeros((2, len(self.runs)), np.uint64)
        facts = self.runs[_FACTS].tolist()
        seeds = zip(self.runs["seed"].tolist(), self.runs["has_seed"].tolist(), strict=True)
        for i, (engine, (seed, known)) in enumerate(zip(self._table.engine_names(), seeds, strict=True)):
            identity = identity_of(join_seed(engine, seed if known else None))
            player = "" if identity is None else identity.player_sha256
            digest = hashlib.sha256(repr((engine, facts[i])).encode()).digest()
            number = int.from_bytes(digest[:8], "little") if identity is None else identity.seed
            found[:, i] = number, keys.setdefault(player, player_key(player, salt))
        hashes: NDArray[np.uint64] = mix64(mix64(found[0] + found[1]))
        return hashes

    def run(self, ordinal: int, final_board: int | None = None) -> Run:
        """Return one run of :attr:`runs` as a :class:`Run`.

        Args:
            ordinal: of the run.
            final_board: the board after its last move; None: the stored one, or the candidate of
                :func:`tape2048.game.moves.last_boards`.

        Raises:
            IndexError: no such run.
        """
        return self.run_and_losses(ordinal, final_board)[0]

    def run_and_losses(self, ordinal: int, final_board: int | None = None) -> tuple[Run, bool, int]:
        """Return a run as :meth:`run`, and the uncertain parts of it.

        Returns:
            The run; whether its final board is certain; and the number of steps whose chosen move's value is
            lost (see :func:`tape2048.datasets.records.restore_values`).
        """
        from tape2048.datasets.records import restore_values
        from tape2048.game.moves import last_boards

        record = self.runs[run_ordinal(ordinal, len(self.runs))]
        first, steps = int(record["first_row"]), int(record["steps"])
        records = np.empty(ROW_BYTES * steps, np.uint8)
        self._copy(np.arange(first, first + steps), records)  # the whole run, also of a phase
        rows = self._decode(records)
        boards, moves, values, legal = (
            np.ascontiguousarray(rows[name]) for name in ("board", "move", "ev_values", "ev_legal")
        )
        has, lost = restore_values(values, legal, moves, legal != 0 if self._mask_tells else None, self._half)
        certain = final_board is not None or bool(record["has_final"]) or not steps
        if final_board is None and record["has_final"]:
            final_board = int(record["final_board"])
        elif final_board is None and steps:
            finals, sure = last_boards(boards[-1:], moves[-1:])
            final_board, certain = int(finals[0]), bool(sure[0])
        meta = self._table.meta(ordinal)
        if record["has_seed"]:
            meta = msgspec.structs.replace(meta, engine=join_seed(meta.engine, int(record["seed"])))
        branches = {"branch_values": values, "branch_legal": legal, "has_branches": has}
        run = Run.from_boards(boards, moves, final_board or 0, meta, **(branches if has.any() else {}))
        return run, certain, lost

    def phase(
        self,
        *,
        steps: tuple[int | None, int | None] | None = None,
        fraction: tuple[float | None, float | None] | None = None,
        empties: tuple[int | None, int | None] | None = None,
    ) -> Self:
        """Make a view of a part of each game, by half-open ranges ``(first, end)``; None leaves a side open.

        The ranges are as for :meth:`tape2048.Corpus.phase`. A range replaces the range of an earlier call.
        Runs without a row in the view stay in :attr:`runs`.

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
        phase = make_phase(self.game_phase, steps, fraction, empties)
        lengths, starts = (self.runs[name].astype(np.int64) for name in ("steps", "first_row"))
        low, high = phase.step_ranges(lengths)
        rows = np.maximum(np.minimum(high, lengths) - low, 0)
        view = self._view(self._table, phase, _Spans(starts + low, rows, np.arange(len(rows))).take(rows > 0))
        return view if phase.empties is None else view._with_empties(*phase.empties)  # noqa: SLF001

    def _with_empties(self, low: int, high: int) -> Self:
        found = [self._spans.take(np.zeros(0, np.int64))]
        for begin in range(0, len(self), _SCAN_ROWS):
            numbers = np.arange(begin, min(begin + _SCAN_ROWS, len(self)))
            owner, rows = self.run_index(numbers), self._locate(numbers)[0]
            boards = self._gather(numbers).view("<u8")[:: ROW_BYTES // 8]
            filled = boards | boards >> np.uint64(1)
            filled = (filled | filled >> np.uint64(2)) & np.uint64(0x1111111111111111)
            empties = 16 - np.bitwise_count(filled).astype(np.int64)
            inside = (low <= empties) & (empties < high)
            edge = np.ones(len(rows), np.bool_)
            edge[1:] = (inside[1:] != inside[:-1]) | (owner[1:] != owner[:-1])
            begins = np.flatnonzero(edge)
            lengths = np.diff(begins, append=len(rows))
            found.append(_Spans(rows[begins], lengths, owner[begins]).take(inside[begins]))
        spans = _Spans(*(np.concatenate(column) for column in zip(*found, strict=True)))
        return self._view(self._table, self.game_phase, spans)

    def refuse_phase(self) -> None:
        """Raise ValueError for a phase, which no file holds."""
        if self.game_phase != ALL:
            raise ValueError(
                f"{self!r} has parts of games. A file holds whole games: write it without phase()"
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
        from tape2048.game.rules import boards_to_exps, legal_masks

        names = (fields,) if isinstance(fields, str) else tuple(fields)
        if not names or len(set(names)) != len(names) or not set(names) <= set(TABLE_FIELDS):
            raise ValueError(f"fields={names!r}; expected one or more of {TABLE_FIELDS}, each once")
        if label_dtype not in {"bool", "float32"}:
            raise ValueError(f"label_dtype={label_dtype!r}; expected 'bool' or 'float32'")
        labels = run_labels(self.runs, thresholds).astype(label_dtype)
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(len(self)))
        else:
            numbers = row_numbers(rows, len(self))
        batch = self.get_batch(numbers)
        columns: dict[str, Callable[[], NDArray[Any]]] = {
            "tokens": lambda: boards_to_exps(batch["board"]),
            "labels": lambda: labels[self.run_index(numbers)],
            "legal": lambda: legal_masks(batch["board"]),
            "row": numbers.copy,
            "run": lambda: self.run_index(numbers).astype(np.uint32),
            "step": lambda: batch["step_index"].astype(np.uint32),
            "move": batch["move"].copy,
            "values": batch["ev_values"].copy,
        }
        return {name: columns[name]() for name in names}

    def filter_by_score(self, min_score: int | None = None, max_score: int | None = None) -> Self:
        """Make a view of the runs with ``max_score`` between the two, both included."""
        return self._of_runs(_between(self.runs["max_score"], min_score, max_score))

    def filter_by_length(self, min_steps: int | None = None, max_steps: int | None = None) -> Self:
        """Make a view of the runs with a number of steps between the two, both included."""
        return self._of_runs(_between(self.runs["steps"], min_steps, max_steps))

    def filter_by_highest_tile(self, min_tile: int | None = None, max_tile: int | None = None) -> Self:
        """Make a view of the runs with a highest tile (its value, as 8192) between the two, both included."""
        return self._of_runs(_between(self.runs["highest_tile"], min_tile, max_tile))

    def filter_by_engine(self, *engines: str | None) -> Self:
        """Make a view of the runs of these engines; None: of the runs without one."""
        known = np.array([name in engines for name in (*self._table.engines, None)], np.bool_)
        return self._of_runs(known[self.runs["engine"]])


def aligned_records(count: int) -> NDArray[np.uint8]:
    """Allocate records, ``u8[32 * count]``, from the start of a cache line.

    NumPy's own memory starts 16 bytes after a page: every other record would lie across two lines.
    """
    memory = np.empty(ROW_BYTES * count + _CACHE_LINE_BYTES, np.uint8)
    skip = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[skip : skip + ROW_BYTES * count]


def _between(values: NDArray[Any], low: int | None, high: int | None) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.ones(len(values), np.bool_)
    return mask & (low is None or values >= low) & (high is None or values <= high)
