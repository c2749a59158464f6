"""The data set directory: a format with all steps of many runs in one array, and the runs in SQLite.

::

    <name>/
        steps.npy        one packed record of 32 bytes for each step, or
        shards/          ... in several files, steps_00000.npy, steps_00001.npy, ...
        metadata.db      SQLite: the run table (tape2048.datasets.run_table)
        manifest.json    counts, sizes, checksums, sources, skipped runs; other writers may omit it

``steps.npy``: NumPy format 1.0, one-dimensional, C order, packed. This package writes a header of 256 bytes,
so that each row is in one cache line and the header's length does not depend on the number of rows.

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
that starts with a dot, flush its files, and publish it by one rename:
:func:`~tape2048.conversion.dataset_build.append_dataset` exchanges the two directories' names (``renameat2``
with ``RENAME_EXCHANGE``) and removes the old one afterwards. A reader sees the old data set before the rename
and the new data set after it. It keeps the data set that it has opened: mapped and open files outlive their
names. A reader that has opened some files at the time of the rename notices that the name leads to another
directory, and opens it again (:func:`~tape2048.datasets.dataset.open_directory`). A program that opens
``steps.npy`` and ``metadata.db`` by path without this check can get files of both. A killed process leaves
the old data set or the new one, and perhaps a directory with a dot, which the next append removes.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tape2048.base.text import counted
from tape2048.datasets.packdat import MAGIC, DataPack
from tape2048.datasets.run_table import RunTable, read_runs_db
from tape2048.datasets.table_rows import ROW_BYTES, TableRows, aligned_records
from tape2048.errors import (
    BookkeepingError,
    EmptyCorpusError,
    ManifestError,
    MissingPathError,
    NotASessionError,
    StorageError,
    TapeError,
)
from tape2048.formats.dataset_layout import (
    DATASET_ROW_DTYPE,
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    RUN_ID_MAX,
    SHARD_NAME,
    SHARDS,
    STEPS_NPY,
    DatasetManifest,
    SkippedRun,
)
from tape2048.formats.npy import Load, NpyHeader, check_load, read_header
from tape2048.formats.session import (
    SESSION_NAME,
    SHARD_NAME as SESSION_SHARD_NAME,
    STEP_DTYPES,
    file_defects,
    read_manifest_file,
)
from tape2048.io.bulk_read import Stretch, read_into
from tape2048.io.reading import first_bytes, map_file, open_regular, reading
from tape2048.rows.phases import ALL, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


#: Largest accepted manifest: room for the names of about 100,000 skipped runs.
MANIFEST_BYTES_MAX = 64 * 1024 * 1024

_FILE_NAME = re.compile(r"(shards/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")

#: Attempts to open a data set that another process exchanges.
OPEN_TRIES = 5


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


class RowsFile(NamedTuple):
    """A file of rows, open for reading."""

    path: Path
    fd: int
    header: NpyHeader


class Opened(NamedTuple):
    """A data set with open files, or a pack.dat."""

    path: Path
    files: list[RowsFile]
    table: RunTable
    manifest: DatasetManifest | None
    pack: DataPack | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.pack) if self.pack is not None else sum(file.header.rows for file in self.files)


def open_directory(directory: Path, stack: contextlib.ExitStack) -> Opened:
    """Open a data set, with all checks whose cost is in proportion to its runs; ``stack`` closes it."""
    for _ in range(OPEN_TRIES):
        with contextlib.ExitStack() as files:
            # An open directory keeps its inode number: no other directory can get it.
            try:
                pin = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise MissingPathError("no such file or directory", path=directory) from None
            except NotADirectoryError:
                raise NotASessionError("neither a directory nor a pack.dat", path=directory) from None
            except OSError as error:
                raise StorageError(f"cannot be read: {error.strerror or error}", path=directory) from error
            files.callback(os.close, pin)
            try:
                opened = _open_once(directory, files)
            except TapeError:
                if _leads_to(directory, pin):
                    raise
            else:
                if _leads_to(directory, pin):
                    stack.enter_context(files.pop_all())
                    return opened
    raise StorageError(
        f"was exchanged for another one {OPEN_TRIES} times while it was opened",
        path=directory,
        hint="another process keeps appending to it; try again",
    )


def is_packdat(path: Path) -> bool:
    """Check for a file that starts like a pack.dat; False where the path cannot be read."""
    try:
        with reading(path):
            return path.is_file() and first_bytes(path, len(MAGIC)) == MAGIC
    except StorageError:
        return False


def _open_packdat(path: Path) -> Opened:
    pack = DataPack.load(path, "mmap")
    return Opened(path, [], pack.run_table, None, pack)


def _leads_to(directory: Path, pin: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(directory.stat(), os.fstat(pin))
    return False


def _open_once(directory: Path, stack: contextlib.ExitStack) -> Opened:
    parts = find_parts(directory)
    manifest = read_manifest_file(
        directory / MANIFEST,
        DatasetManifest,
        version=FORMAT_VERSION,
        what="data set",
        bytes_max=MANIFEST_BYTES_MAX,
    )
    if manifest is not None:
        check_files(manifest, directory)
    files = []
    for part in parts:
        fd = stack.enter_context(open_regular(part))
        files.append(RowsFile(part, fd, read_header(fd, part, [DATASET_ROW_DTYPE])))
    table = read_runs_db(directory / METADATA_DB)
    check_whole(manifest, sum(file.header.rows for file in files), table, directory)
    return Opened(directory, files, table, manifest)


def check_whole(manifest: DatasetManifest | None, rows: int, table: RunTable, directory: Path) -> None:
    """Compare the manifest, if any, with the number of rows and the run table; raise for the first defect."""
    for name, found in (("num_steps", rows), ("num_runs", len(table))):
        claimed = getattr(manifest, name, found)
        if claimed != found:
            raise ManifestError(f"{name} is {claimed}. The data set has {found}", path=directory / MANIFEST)
    table.check_tiles(rows, directory / METADATA_DB)
    table.check_ids(RUN_ID_MAX, directory / METADATA_DB)


def find_parts(directory: Path) -> list[Path]:
    """List the file or the shards with the rows, in order; check that ``metadata.db`` exists."""
    with reading(directory):
        names = {entry.name for entry in directory.iterdir()}
        shards = sorted(
            (int(match[1]), entry)
            for entry in ((directory / SHARDS).iterdir() if SHARDS in names else ())
            if (match := SHARD_NAME.fullmatch(entry.name))
        )
    _refuse_sessions(directory, names)
    if METADATA_DB not in names:
        raise NotASessionError(f"no {METADATA_DB} in this directory", path=directory)
    if STEPS_NPY in names and shards:
        raise NotASessionError(
            f"{STEPS_NPY} and {SHARDS}/ both hold rows; expected one form of them", path=directory
        )
    if STEPS_NPY in names:
        return [directory / STEPS_NPY]
    if not shards:
        raise NotASessionError(f"no {STEPS_NPY} in this directory", path=directory)
    for expected, (number, path) in enumerate(shards):
        if number != expected:
            raise NotASessionError(
                f"shard steps_{expected:05d}.npy is missing; {path.name} is there", path=directory
            )
    return [path for _, path in shards]


def _refuse_sessions(directory: Path, names: set[str]) -> None:
    if STEPS_NPY in names:
        try:
            with open_regular(directory / STEPS_NPY) as fd:
                read_header(fd, directory / STEPS_NPY, STEP_DTYPES)
        except TapeError:
            return  # not a session
        found = "a session"
    elif METADATA_DB in names and any(SESSION_SHARD_NAME.fullmatch(name) for name in names):
        found = "a session"
    elif any(SESSION_NAME.fullmatch(name) for name in names):
        found = "a directory of sessions"
    else:
        return
    raise NotASessionError(
        f"found {found}, expected a data set",
        path=directory,
        hint="for sessions: tape2048 list or show; `tape2048 dataset build` makes data sets of sessions "
        "with record_action",
    )


def check_files(manifest: DatasetManifest, directory: Path) -> None:
    """Raise the first defect of the files' names and sizes in a manifest."""
    for defect in file_defects(manifest.files, directory, _FILE_NAME.fullmatch):
        raise defect


def check_run_ends(records: NDArray[np.uint8], first_row: int, runs: NDArray[np.void], path: Path) -> None:
    """Compare the first and last rows of runs with the run table.

    ``records`` are ``u8[32 * n]``, from row ``first_row``; rows elsewhere are not checked. ``runs`` have at
    least one step each. Raise BookkeepingError, which names ``path``, for a row of another run or step.
    """
    rows = records.view(DATASET_ROW_DTYPE)
    for last in (False, True):
        steps = runs["steps"].astype(np.int64) - 1 if last else np.zeros(len(runs), np.int64)
        numbers = runs["first_row"].astype(np.int64) + steps - first_row
        here = (numbers >= 0) & (numbers < len(rows))
        ids = runs["id"][here]
        found, expected, numbers = rows[numbers[here]], steps[here], numbers[here]
        bad = (found["run_id"] != ids) | (found["step_index"] != expected)
        if bad.any():
            at = int(bad.argmax())
            raise BookkeepingError(
                f"run {ids[at]} has row {first_row + numbers[at]} as its step {expected[at]}, "
                f"but that row is step {found['step_index'][at]} of run {found['run_id'][at]}",
                path=path,
                hint="the steps belong to another data set, or one of the two files was changed",
            )


# Runs of a mapped data set whose first and last row are checked when it is opened.
_PROBED_RUNS = 8


class Dataset(TableRows):
    """One data set, or several as one, or a view made by a filter. A source of rows.

    Rows have ``DATASET_ROW_DTYPE``. Nothing must be closed. Pickling sends the paths (of a view also its
    choice of runs and its phase) and opens them again.

    Args:
        path: a data set's directory or a pack.dat, or several. The rows of a pack.dat are always converted in
            memory. Run ids of the second and later ones continue after the highest one before, in
            :attr:`runs` and in every row.
        load: ``"ram"`` reads all rows into memory, in parallel; ``"mmap"`` maps them, which is slow for
            random rows that are not in the page cache.
        progress: called with the bytes read and all bytes, while rows are read into memory.

    Attributes:
        paths: the directories, absolute.
        load: ``"ram"`` or ``"mmap"``.
        manifests: of each directory; None for a directory without manifest.

    Raises:
        NotASessionError: a path is not a data set.
        FormatError: a subclass, for the first defect found. FieldError: a pack.dat has a run
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
            opened = [
                _open_packdat(place) if is_packdat(place) else open_directory(place, stack)
                for place in places
            ]
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
