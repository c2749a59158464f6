"""Data sets as corpora: the rows of data set directories and of pack.dat in the types of their files."""

from __future__ import annotations

import copy
import os
import zlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.corpus import Corpus
from tape2048.errors import EmptyCorpusError, FieldError
from tape2048.files.npy import Load, check_load
from tape2048.files.row_source import run_ordinal
from tape2048.formats.dataset_layout import (
    DATASET_ROW_DTYPE,
    PACKDAT_STEP_DTYPE,
    RUN_ID_MAX,
    RUN_STEPS_MAX,
    SkippedRun,
)
from tape2048.loader.buffers import load_rows
from tape2048.loader.duplicates import distinct_runs
from tape2048.loader.phases import ALL
from tape2048.loader.row_map import NO_TAPE
from tape2048.loader.run_columns import RunColumns
from tape2048.players import join_seed
from tape2048.runs.run import Run
from tape2048.session.dataset import open_table, values_of_steps
from tape2048.session.dataset_runs import RunTable
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.loader.gatherer import Gatherer


def refuse_empty(skipped: Sequence[SkippedRun], path: str | os.PathLike[str]) -> None:
    """Raise EmptyCorpusError if a target has no run because all were skipped."""
    if skipped:
        first = skipped[0]
        raise EmptyCorpusError(
            f"0 of {counted(len(skipped), 'run')} can be written here. Nothing was written. The first: "
            f"{first.run}: {first.error}: {first.message}",
            path=path,
            hint="repair the runs, or choose other runs",
        )


class TableCorpus(Corpus):
    """A corpus of data sets, with the records of the files: 32 bytes, with the branch values.

    It has all views, fields and batches of a corpus. Selections by ``filter_by_...`` may be empty.
    """

    #: The type of the records of :meth:`get_batch`.
    row_dtype: ClassVar[np.dtype[Any]]
    #: The value 0.5 of a branch as the rows hold it.
    _half: ClassVar[np.float32] = np.float32(0.5)
    #: Whether ``ev_legal`` of a record is 0 at steps without values.
    _mask_tells: ClassVar[bool] = False

    def _become(
        self, sessions: Sequence[Session], load: Load, progress: Callable[[int, int], object] | None = None
    ) -> None:
        opened = tuple(sessions)
        chosen = np.concatenate(distinct_runs(opened))
        runs = RunColumns.of(opened)
        runs = runs if chosen.all() else runs.take(chosen)
        super().__init__(load_rows(opened, runs, load, progress=progress))

    @property
    def is_view(self) -> bool:
        """Whether a filter, a phase or a selection made this."""
        tables = self._tables
        return tables.chosen is not None or self.game_phase != ALL or tables.selected is not None

    @cached_property
    def run_table(self) -> RunTable:
        """The runs with all facts of the files, in the order of :attr:`runs`."""
        tables = []
        for ordinal, session in enumerate(self.sessions):
            assert session.dataset is not None
            table = session.dataset.table
            tables.append(table.choose(table.ordinals(self.runs["id"][self.runs["session"] == ordinal])))
        return RunTable.joined(tables)

    @cached_property
    def _raw(self) -> Gatherer:
        from tape2048.loader.gatherer import Gatherer

        raw, rows = copy.copy(self._tables), self._tables.rowmap
        none = rows.address[:0]
        vars(raw)["rowmap"] = rows._replace(
            row_bytes=DATASET_ROW_DTYPE.itemsize, strides=none, board=none, tape=NO_TAPE
        )
        return Gatherer(raw, (), np.empty(0, np.int64))

    def get_batch(self, indices: ArrayLike, out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        """Return the records with these numbers, in this order: ``row_dtype[n]``.

        Args:
            indices: row numbers ``[n]``, in any order, repeats allowed; or a mask ``bool[N]``. A
                negative number is an error, and does not count from the end. ``int64`` is the fastest type.
            out: ``row_dtype[n]`` to write into, contiguous; None: a new array.

        Raises:
            IndexError: a number is outside [0, N), or a mask has another length.
            TypeError: the indices are not integers of one dimension.
            ValueError: ``out`` has another type, shape or order.
        """
        numbers = self._row_numbers(indices)
        if out is None:
            out = np.empty(len(numbers), self.row_dtype)
        elif out.dtype != self.row_dtype or not out.flags.c_contiguous or out.shape != numbers.shape:
            expected = f"{self.row_dtype}[{len(numbers)}]"
            raise ValueError(f"out is {out.dtype}{list(out.shape)}; expected {expected}")
        self._gather(numbers, out)
        return out

    def _gather(self, numbers: NDArray[np.int64], out: NDArray[np.void]) -> None:
        self._raw.gather_records(numbers, out)

    def _range(self, first: int, end: int, step: int) -> NDArray[np.void]:
        return self.get_batch(np.arange(first, end, step, dtype=np.int64))

    def run(self, ordinal: int, final_board: int | None = None) -> Run:
        """Return one run of :attr:`runs` as a :class:`Run`.

        Args:
            ordinal: index of the run in :attr:`runs`.
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

        place = run_ordinal(ordinal, len(self.runs))
        record, row = self.run_table.rows[place], self.runs[place]
        rows = self._records_of(self.sessions[row["session"]], int(row["first_row"]), int(row["rows"]))
        boards, moves, values, legal = (
            np.ascontiguousarray(rows[name]) for name in ("board", "move", "ev_values", "ev_legal")
        )
        has, lost = restore_values(values, legal, moves, legal != 0 if self._mask_tells else None, self._half)
        certain = final_board is not None or bool(record["has_final"]) or not len(boards)
        if final_board is None and record["has_final"]:
            final_board = int(record["final_board"])
        elif final_board is None and len(boards):
            finals, sure = last_boards(boards[-1:], moves[-1:])
            final_board, certain = int(finals[0]), bool(sure[0])
        meta = self.run_table.meta(ordinal)
        if record["has_seed"]:
            meta = msgspec.structs.replace(meta, engine=join_seed(meta.engine, int(record["seed"])))
        branches = {"branch_values": values, "branch_legal": legal, "has_branches": has}
        run = Run.from_boards(boards, moves, final_board or 0, meta, **(branches if has.any() else {}))
        return run, certain, lost

    def _records_of(self, session: Session, first: int, count: int) -> NDArray[np.void]:
        assert session.foreign is not None
        return session.foreign.take(session.foreign.index_of(np.arange(first, first + count)))

    def refuse_parts(self) -> None:
        """Raise ValueError for a view of parts of games, which no file holds."""
        if (self.row_counts != self.runs["rows"]).any():
            raise ValueError(
                f"{self!r} has parts of games; expected whole games: write it without phase() and select()"
            )

    def filter_by_score(self, min_score: int | None = None, max_score: int | None = None) -> Self:
        """Make a view of the runs with ``max_score`` between two bounds, both included."""
        return self._of_runs(_between(self.run_table.rows["max_score"], min_score, max_score))

    def filter_by_length(self, min_steps: int | None = None, max_steps: int | None = None) -> Self:
        """Make a view of the runs with a number of steps between two bounds, both included."""
        return self._of_runs(_between(self.run_table.rows["steps"], min_steps, max_steps))

    def filter_by_highest_tile(self, min_tile: int | None = None, max_tile: int | None = None) -> Self:
        """Make a view of the runs with a highest tile (8192, not 13) between two bounds, both included."""
        return self._of_runs(_between(self.run_table.rows["highest_tile"], min_tile, max_tile))

    def filter_by_engine(self, *engines: str | None) -> Self:
        """Make a view of the runs of these engines; None selects the runs without an engine."""
        known = np.array([name in engines for name in (*self.run_table.engines, None)], np.bool_)
        return self._of_runs(known[self.run_table.rows["engine"]])

    def _source(self) -> tuple[Callable[..., TableCorpus], tuple[Any, ...]]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        tables, packed = self._tables, None
        if tables.selected is not None:
            packed = zlib.compress(tables.selected.tobytes(), 1)
        return _restore, (*self._source(), tables.chosen, self.game_phase, packed)


def _restore(
    make: Callable[..., TableCorpus], args: tuple[Any, ...], chosen: Any, phase: Any, packed: bytes | None
) -> TableCorpus:
    selected = None if packed is None else np.frombuffer(bytearray(zlib.decompress(packed)), np.uint64)
    return make(*args)._view(chosen, phase, selected)  # noqa: SLF001 - of this module


class Dataset(TableCorpus):
    """One data set, or several as one, or a view of them: a corpus whose records are ``DATASET_ROW_DTYPE``.

    :meth:`Corpus.open` reads the same paths, beside sessions, as rows of sessions. There is nothing to close.
    Pickling sends the paths and the selection, and unpickling opens the paths again.

    Args:
        path: a data set's directory or a pack.dat, or several. The run ids of each further path continue
            after the highest id before, in :attr:`runs` and in every row. A game that several paths hold is
            served once, as by :meth:`Corpus.open`. The records of a pack.dat are converted when they are
            read.
        load: ``"ram"`` reads all rows into memory, in parallel; ``"mmap"`` maps them, which is slow for
            random rows that are not in the page cache.
        progress: function that is called with the bytes read and all bytes, while rows are read into memory.

    Attributes:
        paths: the directories, absolute.
        manifests: manifest of each directory; None for a directory without manifest.

    Raises:
        NotASessionError: a path is not a data set.
        FormatError: a subclass, for the first defect found.
        FieldError: a pack.dat has a run of more than 65,536 steps.
        StorageError: the operating system could not read a file.
        ValueError: no path, or an unknown ``load``.

    Example:
        >>> from tape2048.conversion import build_dataset
        >>> from tape2048.datasets import Dataset
        >>> built = build_dataset("rows", "runs")
        >>> len(Dataset("rows")) == built.steps, Dataset("rows").filter_by_length(min_steps=10**6)
        (True, <Dataset rows: 0 rows, 0 runs, ram, a view>)
        >>> batch = next(iter(Dataset("rows").batches(4, fields=("tokens", "move", "ev_values"))))
        >>> batch["tokens"].shape, batch["ev_values"].shape
        ((4, 16), (4, 4))
    """

    row_dtype = DATASET_ROW_DTYPE
    _kept = ("paths", "manifests")

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        load: Load = "ram",
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        check_load(load)
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        if not paths:
            raise ValueError("no data set; expected at least one path")
        self.paths = [Path(os.path.abspath(one)) for one in paths]
        sessions, shift = [], 0
        for place in self.paths:
            found = open_table(place)
            longest = int(found.table.rows["steps"].max(initial=0))
            if longest > RUN_STEPS_MAX:
                raise FieldError(
                    f"a run has {longest} steps; expected at most {RUN_STEPS_MAX} in rows of a data set",
                    path=place,
                    hint="read it with DataPack.load",
                )
            sessions.append(Session.of_dataset(place, found.shifted(shift) if shift else found))
            shift = max(shift, 1 + int(sessions[-1].runs["id"].max(initial=0))) if len(found.table) else shift
        if shift - 1 > RUN_ID_MAX:
            raise FieldError(
                f"run id {shift - 1}; expected at most {RUN_ID_MAX}, as run_id holds", path=place
            )
        self.manifests = [session.dataset.manifest for session in sessions if session.dataset]
        self._become(sessions, load, progress)

    @classmethod
    def open(cls, *args: Any, **options: Any) -> Self:
        """Open a data set as the constructor does, under the name of :meth:`tape2048.Session.open`."""
        return cls(*args, **options)

    def __repr__(self) -> str:
        names = ", ".join(path.name for path in self.paths)
        kind = f"{self.load}, a view" if self.is_view else self.load
        kind += "" if self.game_phase == ALL else f"; {self.game_phase}"
        return f"<Dataset {names}: {counted(len(self), 'row')}, {counted(len(self.runs), 'run')}, {kind}>"

    def _source(self) -> tuple[Callable[..., TableCorpus], tuple[Any, ...]]:
        return type(self), ([str(path) for path in self.paths], self.load)

    def _gather(self, numbers: NDArray[np.int64], out: NDArray[np.void]) -> None:
        super()._gather(numbers, out)
        if len(self.sessions) == 1 and not self._packs.any():
            return
        run = self.run_index(numbers)
        if (mine := self._packs[self.runs["session"][run]]).any():
            out[mine] = _as_rows(out[mine].view(PACKDAT_STEP_DTYPE))
        out["run_id"] = self.runs["id"][run]

    @cached_property
    def _packs(self) -> NDArray[np.bool_]:
        return np.array(
            [session.dataset is not None and session.dataset.is_pack for session in self.sessions]
        )

    def _records_of(self, session: Session, first: int, count: int) -> NDArray[np.void]:
        rows = super()._records_of(session, first, count)
        is_pack = session.dataset is not None and session.dataset.is_pack
        return _as_rows(rows) if is_pack else rows

    @property
    def steps(self) -> NDArray[np.void]:
        """All rows as one read-only array, ``DATASET_ROW_DTYPE[N]``; a copy unless they are in one file."""
        foreign = self.sessions[0].foreign
        assert foreign is not None
        if len(self.sessions) == len(foreign.counts) == 1 and not self._packs.any() and not self.is_view:
            found = self._tables.store.memory[0] if len(self) else foreign.rows
            return found.view(np.uint8).reshape(-1).view(DATASET_ROW_DTYPE)
        rows = self[:]
        rows.flags.writeable = False
        return rows


def _as_rows(steps: NDArray[np.void]) -> NDArray[np.void]:
    from tape2048.game.rules import legal_masks

    rows = np.empty(len(steps), DATASET_ROW_DTYPE)
    rows["board"], rows["move"], rows["ev_values"] = steps["board"], steps["move_dir"], values_of_steps(steps)
    rows["ev_legal"] = legal_masks(np.ascontiguousarray(steps["board"]))
    rows["run_id"], rows["step_index"] = steps["run_id"], steps["index_in_run"]
    return rows


def _between(values: NDArray[Any], low: int | None, high: int | None) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.ones(len(values), np.bool_)
    return mask & (low is None or values >= low) & (high is None or values <= high)
