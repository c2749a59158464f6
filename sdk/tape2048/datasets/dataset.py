"""The data set directory: a format with all steps of many runs in one array, and the runs in SQLite.

::

    <name>/
        steps.npy        one packed record of 32 bytes for each step, or
        shards/          ... in several files, steps_00000.npy, steps_00001.npy, ...
        metadata.db      SQLite: the run table (tape2048.datasets.metadata)
        manifest.json    counts, sizes, checksums, sources, skipped runs; other writers may omit it

``steps.npy``: NumPy format 1.0, one-dimensional, C order, packed. This package writes a header of 256 bytes,
so that a row lies in one cache line and the header's length does not depend on the number of rows.

==========  =======  =======================================================================
field       type     meaning
==========  =======  =======================================================================
board       ``<u8``  the board before the move, packed
move        ``u1``   0 up, 1 down, 2 left, 3 right
ev_legal    ``u1``   the moves that are legal, by the rules
ev_values   ``<f4``  [4] branch values in [0, 1]: the chosen move exactly 1.0, illegal ones 0.0;
                     all 0 where the source had none
run_id      ``<u4``  ``runs.id``
step_index  ``<u2``  0-based move number within the run: a run has at most 65,536 steps
==========  =======  =======================================================================

The rows of one run are contiguous and in step order, and the runs cover all rows.

**Atomicity.** A data set never changes in place. Building and appending write a whole directory under a name
that begins with a dot, flush its files, and publish it by one rename:
:func:`~tape2048.conversion.dataset_build.append_dataset` exchanges the two directories' names (``renameat2``
with ``RENAME_EXCHANGE``) and removes the old one afterwards. A reader sees the old data set before the rename
and the new one after it, and keeps the one that it has opened: mapped and open files outlive their names. A
reader that has opened some files when the rename happens notices that the name leads to another directory,
and opens again (:func:`~tape2048.datasets.directory.open_directory`); a program that opens ``steps.npy`` and
``metadata.db`` by path without this check can get one of each. A killed process leaves the old data set or
the new one, and perhaps a directory with a dot, which the next append removes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.datasets.directory import begin_rows, check_run_ends, open_directory, open_packdat
from tape2048.datasets.run_table import RunTable
from tape2048.datasets.table_rows import ROW_BYTES, Part, TableRows, aligned_records
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, METADATA_DB, RUN_ID_MAX
from tape2048.formats.npy import check_load
from tape2048.io.reading import map_file, reading
from tape2048.runs.engine_text import join_seed
from tape2048.runs.run import Run
from tape2048.selection.phase import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.datasets.directory import Opened
    from tape2048.formats.npy import Load
    from tape2048.selection.phase import Phase

# Runs of a mapped data set whose first and last row are checked when it is opened.
_PROBED_RUNS = 8


class Dataset(TableRows):
    """One data set, or several as one, or a view made by a filter; a source of rows.

    Rows have ``DATASET_ROW_DTYPE``. Nothing has to be closed. Pickling sends the paths (of a view also its
    choice of runs and its phase) and opens them again.

    Args:
        path: a data set's directory or a pack.dat, or several. The rows of a pack.dat are converted in
            memory, whatever ``load`` says. Run ids of the second and later ones continue after the
            highest one before, in :attr:`runs` and in every row.
        load: ``"ram"`` reads all rows into memory, in parallel; ``"mmap"`` maps them, which is slow for
            random rows that are not in the page cache.
        progress: called with the bytes read and all bytes, while rows are read into memory.

    Attributes:
        paths: the directories, absolute.
        load: ``"ram"`` or ``"mmap"``.
        manifests: of each directory, None where it is missing.

    Raises:
        NotASessionError: a path is not a data set.
        FormatError: one of the classes below it, for the first defect found; FieldError: a pack.dat has a run
            of more than 65,536 steps.
        StorageError: the operating system could not read a file.
        ValueError: no path, or an unknown ``load``.

    Example:
        >>> from tape2048.conversion import build_dataset
        >>> from tape2048.datasets import Dataset
        >>> built = build_dataset("rows", "runs")
        >>> len(Dataset("rows")) == built.steps, Dataset("rows").filter_by_length(min_steps=10**6)
        (True, <Dataset rows: 0 rows, 0 runs, ram, a view>)
    """

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
        with contextlib.ExitStack() as stack:
            # Rows of several go into one array, whose size is known when all are open.
            at_once = load == "ram" and len(paths) == 1
            places = [Path(os.path.abspath(one)) for one in paths]
            opened = [
                open_packdat(place) or open_directory(place, stack, read_rows=at_once) for place in places
            ]
            table, shifts = _joined_table(opened)
            if load == "ram":
                parts = [_in_memory(opened, shifts, stack, progress)]
            else:
                parts = _mapped(opened, shifts)
        runs = table.rows[table.rows["steps"] > 0]
        if load == "mmap" and len(runs) > _PROBED_RUNS:  # a run costs two reads on a cold disk
            runs = runs[np.linspace(0, len(runs) - 1, _PROBED_RUNS).astype(np.int64)]
        for part in parts:
            check_run_ends(part, runs, opened[0].path if opened[0].pack else opened[0].path / METADATA_DB)
        self.paths = [one.path for one in opened]
        self.load: Load = load
        self.manifests = [one.manifest for one in opened]
        super().__init__(parts, table)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        load: Load = "ram",
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> Self:
        """Open a data set as the constructor does, under the name of :meth:`tape2048.Session.open`."""
        return cls(path, load, progress=progress)

    def __repr__(self) -> str:
        names = ", ".join(path.name for path in self.paths)
        kind = f"{self.load}, a view" if self.is_view else self.load
        kind += "" if self.game_phase == ALL else f"; {self.game_phase}"
        return f"<Dataset {names}: {counted(len(self), 'row')}, {counted(len(self.runs), 'run')}, {kind}>"

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        chosen = self.runs["id"] if self.is_view else None
        return _reopen, ([str(path) for path in self.paths], self.load, chosen, self.game_phase)

    @property
    def steps(self) -> NDArray[np.void]:
        """All rows as one array, ``DATASET_ROW_DTYPE[N]``, read-only.

        Raises:
            ValueError: this is a view, or mapped from several files.
        """
        if self.is_view or len(self._parts) != 1:
            what = "a view" if self.is_view else "mapped from several files"
            raise ValueError(f"{self!r} is {what}, so its rows are not one array; use get_batch")
        return self._parts[0].records.view(DATASET_ROW_DTYPE)

    def get_batch(self, indices: ArrayLike, out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        """Return the rows with these numbers, in this order.

        Args:
            indices: row numbers ``[n]``, in any order, repeats allowed; or a mask ``bool[N]``. A
                negative number is an error, not counted from the end. ``int64`` is the fast type.
            out: ``DATASET_ROW_DTYPE[n]`` to write into, contiguous; None: a new array.

        Returns:
            ``DATASET_ROW_DTYPE[n]``.

        Raises:
            IndexError: a number outside [0, N), or a mask of another length.
            TypeError: not integers of one dimension.
            ValueError: an unsuitable ``out``.
        """
        target = None
        if out is not None:
            count = len(indices) if isinstance(indices, np.ndarray) else len(np.asarray(indices))
            if out.dtype != DATASET_ROW_DTYPE or not out.flags.c_contiguous or out.shape != (count,):
                raise ValueError(
                    f"out is {out.dtype}{list(out.shape)}; expected {DATASET_ROW_DTYPE}[{count}]"
                )
            target = out.view(np.uint8)
        rows = self._gather(indices, target).view(DATASET_ROW_DTYPE)
        shifts = self._id_shifts(indices)
        if shifts is not None:
            rows["run_id"] += shifts
        return rows

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

    def run_and_losses(self, ordinal: int, final_board: int | None = None) -> tuple[Run, tuple[bool, int]]:
        """Return a run as :meth:`run`, and the uncertain parts of it.

        Returns:
            The run; whether its final board is certain; and the number of steps whose chosen move's value is
            lost (see :func:`tape2048.datasets.records.restore_values`).
        """
        from tape2048.datasets.records import restore_values
        from tape2048.game.moves import last_boards

        rows = self._whole_run(ordinal).view(DATASET_ROW_DTYPE)
        moves = np.ascontiguousarray(rows["move"])
        values = np.ascontiguousarray(rows["ev_values"])
        legal = np.ascontiguousarray(rows["ev_legal"])
        has, lost = restore_values(values, legal, moves)
        row = self.runs[ordinal]
        certain = final_board is not None or bool(row["has_final"])
        if final_board is None and certain:
            final_board = int(row["final_board"])
        elif final_board is None and len(rows):
            finals, sure = last_boards(np.ascontiguousarray(rows["board"][-1:]), moves[-1:])
            final_board, certain = int(finals[0]), bool(sure[0])
        branches = {"branch_values": values, "branch_legal": legal, "has_branches": has}
        meta = self._table.meta(ordinal)
        if row["has_seed"]:
            engine = join_seed(meta.engine, int(row["seed"]))
            meta = msgspec.structs.replace(meta, engine=engine)
        run = Run.from_boards(rows["board"], moves, final_board or 0, meta, **(branches if has.any() else {}))
        return run, (certain, lost)


def _reopen(paths: list[str], load: Load, chosen: NDArray[np.uint64] | None, phase: Phase) -> Dataset:
    opened = Dataset(paths, load)
    if chosen is not None:
        opened = opened.filter_runs(np.isin(opened.runs["id"], chosen))
    return opened if phase == ALL else opened.phase(**phase._asdict())


def _joined_table(opened: list[Opened]) -> tuple[RunTable, list[int]]:
    """Join the runs of all, with consecutive rows and ids; return also the offset of each one's ids."""
    tables = []
    shifts = []
    first_row = shift = 0
    for one in opened:
        rows = one.table.rows.copy()
        rows["id"] += np.uint64(shift)
        rows["first_row"] += np.uint64(first_row)
        tables.append(RunTable(rows, one.table.engines))
        shifts.append(shift)
        first_row += one.row_count
        if len(rows):
            shift = int(rows["id"].max()) + 1
    table = RunTable.joined(tables)
    table.check_ids(RUN_ID_MAX, opened[-1].path)
    return table, shifts


def _mapped(opened: list[Opened], shifts: list[int]) -> list[Part]:
    parts = []
    first_row = 0
    for one, shift in zip(opened, shifts, strict=True):
        if one.pack is not None:
            records = aligned_records(one.row_count)
            one.pack.fill_dataset(records)
            records.flags.writeable = False
            parts.append(Part(records, first_row, one.row_count, shift))
            first_row += one.row_count
        for file in one.files:
            with reading(file.path):
                records = map_file(file.fd, file.header.end_offset)[file.header.data_offset :]
            parts.append(Part(records, first_row, file.header.rows, shift))
            first_row += file.header.rows
    return parts


def _in_memory(
    opened: list[Opened],
    shifts: list[int],
    stack: contextlib.ExitStack,
    progress: Callable[[int, int], object] | None,
) -> Part:
    """Read all rows into one piece of memory; make their run ids those among all data sets."""
    ends = np.cumsum([ROW_BYTES * one.row_count for one in opened]).tolist()
    pending = [opened[0].rows]
    if opened[0].rows is not None:  # the only one, begun already
        records = opened[0].rows.records
    else:
        records = aligned_records(ends[-1] // ROW_BYTES)
        pieces = [records[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        pending = [
            None if one.pack is not None else begin_rows(one.files, stack, piece)
            for one, piece in zip(opened, pieces, strict=True)
        ]
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, len(records))

    for one, rows, shift, begin, end in zip(opened, pending, shifts, [0, *ends], ends, strict=False):
        if rows is not None:
            rows.reading.finish(advance)
        elif one.pack is not None:
            one.pack.fill_dataset(records[begin:end])
            advance(end - begin)
        if shift:
            from tape2048.datasets.records import shift_ids

            shift_ids(records[begin:end], shift)
    records.flags.writeable = False
    return Part(records, 0, len(records) // ROW_BYTES)
