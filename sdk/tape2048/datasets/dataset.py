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

import numpy as np

from tape2048.base.text import counted
from tape2048.datasets.directory import check_run_ends, open_directory, open_packdat
from tape2048.datasets.run_table import RunTable
from tape2048.datasets.table_rows import ROW_BYTES, TableRows, aligned_records
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, METADATA_DB, RUN_ID_MAX
from tape2048.formats.npy import check_load
from tape2048.io.bulk_read import Stretch, read_into
from tape2048.io.reading import map_file, reading
from tape2048.selection import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tape2048.datasets.directory import Opened
    from tape2048.formats.npy import Load
    from tape2048.selection import Phase

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

    dtype = DATASET_ROW_DTYPE

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
            places = [Path(os.path.abspath(one)) for one in paths]
            opened = [open_packdat(place) or open_directory(place, stack) for place in places]
            table = _joined_table(opened)
            parts = _in_memory(opened, progress) if load == "ram" else _mapped(opened)
        self.paths = [one.path for one in opened]
        self.load: Load = load
        self.manifests = [one.manifest for one in opened]
        super().__init__(parts, table)
        self._renumbered = load == "mmap" and len(opened) > 1

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
        return self._parts[0].view(DATASET_ROW_DTYPE)


def _reopen(paths: list[str], load: Load, chosen: NDArray[np.uint64] | None, phase: Phase) -> Dataset:
    opened = Dataset(paths, load)
    if chosen is not None:
        opened = opened._of_runs(np.isin(opened.runs["id"], chosen))  # noqa: SLF001 - of the same module
    return opened if phase == ALL else opened.phase(**phase._asdict())


def _joined_table(opened: list[Opened]) -> RunTable:
    """Join the runs of all, with consecutive rows and ids."""
    tables = []
    first_row = shift = 0
    for one in opened:
        rows = one.table.rows.copy()
        rows["id"] += np.uint64(shift)
        rows["first_row"] += np.uint64(first_row)
        tables.append(RunTable(rows, one.table.engines))
        first_row += one.row_count
        if len(rows):
            shift = int(rows["id"].max()) + 1
    table = RunTable.joined(tables)
    table.check_ids(RUN_ID_MAX, opened[-1].path)
    return table


def _mapped(opened: list[Opened]) -> list[NDArray[np.uint8]]:
    parts = []
    for one in opened:
        if one.pack is not None:
            records = aligned_records(one.row_count)
            one.pack.fill_dataset(records)
            records.flags.writeable = False
            parts.append(records)
        runs = one.table.rows[one.table.rows["steps"] > 0]
        if len(runs) > _PROBED_RUNS:  # a run costs two reads on a cold disk
            runs = runs[np.linspace(0, len(runs) - 1, _PROBED_RUNS).astype(np.int64)]
        first_row = 0
        for file in one.files:
            with reading(file.path):
                records = map_file(file.fd, file.header.end_offset)[file.header.data_offset :]
            check_run_ends(records, first_row, runs, one.path / METADATA_DB)
            parts.append(records)
            first_row += file.header.rows
    return parts


def _in_memory(
    opened: list[Opened], progress: Callable[[int, int], object] | None
) -> list[NDArray[np.uint8]]:
    """Read all rows into one array; make their run ids those among all data sets."""
    records = aligned_records(sum(one.row_count for one in opened))
    done = shift = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, len(records))

    for one in opened:
        part = records[done : done + ROW_BYTES * one.row_count]
        if one.pack is not None:
            one.pack.fill_dataset(part)
            advance(len(part))
        else:
            files = [
                Stretch(file.path, file.header.data_offset, file.header.rows * ROW_BYTES, file.fd)
                for file in one.files
            ]
            read_into(part, files, progress=advance)
        runs = one.table.rows[one.table.rows["steps"] > 0]
        check_run_ends(part, 0, runs, one.path if one.pack else one.path / METADATA_DB)
        if shift:
            part.view(DATASET_ROW_DTYPE)["run_id"] += np.uint32(shift)
        shift += int(one.table.rows["id"].max(initial=0)) + 1 if len(one.table) else 0
    records.flags.writeable = False
    return [records]
