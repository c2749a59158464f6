"""One session directory as a sequence of rows and a table of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tape2048.errors import BookkeepingError, ManifestError, OutDirError
from tape2048.formats.metadata import Metadata, read_metadata
from tape2048.formats.npy import check_load
from tape2048.formats.rows import RowView, row_numbers, run_ordinal
from tape2048.formats.session import EXPS_OFFSET, MANIFEST, METADATA_DB, SESSION_NAME, SHARD_NAME, STEPS_NPY
from tape2048.session.directory import (
    check_directory,
    find_steps,
    is_dataset,
    manifest_defects,
    read_manifest,
    read_steps,
    refuse_dataset,
)
from tape2048.session.labels import DEFAULT_THRESHOLDS, check_thresholds
from tape2048.session.locks import hold_to_read
from tape2048.session.row_owners import from_run_table, from_scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.formats.npy import Load
    from tape2048.formats.session import Manifest
    from tape2048.session.locks import Hold
    from tape2048.session.row_owners import Owners

#: A choice of rows: a slice, row numbers, or a mask of all rows.
Rows: TypeAlias = "slice | ArrayLike"

# Runs whose first and last row are looked at when a mapped session is opened. Each costs two pages,
# which on a cold disk are two reads; a steps.npy of another session is noticed by the first.
_PROBED_RUNS = 8


class Session(RowView):
    """A finished session, checked as a whole when it is opened; see :meth:`open`.

    Nothing has to be closed: no file of it stays open, and the mapping goes with the last array that views
    it. While the object lives, ``tape2048 prune`` leaves the session alone (one descriptor for all
    sessions of a directory; :mod:`tape2048.session.locks`). Pickling (to a worker process of a loader)
    sends the
    path alone, and opens it again there.

    Attributes:
        path: the directory, absolute.
        steps: the rows, ``STEP_DTYPE[N]`` or ``ACTION_STEP_DTYPE[N]``, read-only.
        runs: one row for each run, ``RUN_DTYPE[R]`` ordered by ``first_row``, read-only. In a file of
            others, runs without any row stand at the end, with ``first_row`` = N and ``rows`` = 0.
        blocks: ``BLOCK_DTYPE[B]``, or None in a directory of others that has none.
        meta: the facts of the table ``session``, decoded.
        manifest: the manifest, or None in a directory of others that has none.
        load: how the rows are held, ``"mmap"`` or ``"ram"``.
    """

    def __init__(
        self,
        path: Path,
        steps: NDArray[np.void],
        metadata: Metadata,
        manifest: Manifest | None,
        load: Load,
    ) -> None:
        """Put together what :meth:`open` has read; the constructor itself touches no file."""
        self.path = path
        self.steps = steps
        self.runs, self._owners = _assign(metadata, steps, path / METADATA_DB, load)
        self.runs.flags.writeable = False
        self.blocks = metadata.blocks
        self.meta = metadata.session
        self.manifest = manifest
        self.load: Load = load
        self._hold: Hold | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], load: Load = "mmap") -> Session:
        """Open a session directory: ours, or one with the columns of the original design alone.

        What is checked costs time in proportion to the runs: sizes, types, and that the runs tile
        the rows. Checksums and the rows themselves are for :func:`tape2048.validate_session`. Where
        the run table does not say which rows a run has, all ``run_id`` are read once.

        Args:
            path: the directory.
            load: ``"mmap"`` maps the rows, ``"ram"`` reads them at once. Rows in shards
                (``steps-000001.npy``, ...) are always read.

        Raises:
            NotASessionError: there is no (finished) session at this path.
            FormatError: one of the other classes below it, for the first defect found; never a
                session of which a part is missing.
            StorageError: the operating system could not read a file.
            ValueError: ``load`` is something else.
        """
        check_load(load)
        directory = check_directory(path)
        hold = hold_to_read(directory)
        parts = find_steps(directory)
        try:
            manifest = read_manifest(directory)
        except ManifestError:
            refuse_dataset(directory)
            raise
        if manifest is not None:
            for defect in manifest_defects(manifest, parts, directory):
                raise defect
        metadata = read_metadata(directory / METADATA_DB)
        steps = read_steps(parts, load)
        if manifest is not None:
            _check_counts(manifest, len(steps), len(metadata.runs), directory / MANIFEST)
        session = cls(directory, steps, metadata, manifest, load if parts[0].name == STEPS_NPY else "ram")
        session._hold = hold
        return session

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.name

    @property
    def contiguous(self) -> bool:
        """Whether the rows of each run stand next to each other; only others write it otherwise."""
        return self._owners.contiguous

    def __len__(self) -> int:
        """Number of rows, N."""
        return len(self.steps)

    def __repr__(self) -> str:
        return f"<Session {self.name}: {len(self):,} rows, {len(self.runs):,} runs, {self.load}>"

    def __reduce__(self) -> tuple[Callable[..., Session], tuple[str, str]]:
        return Session.open, (str(self.path), self.load)

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """The rows with these numbers, in this order: ``STEP_DTYPE[n]`` or ``ACTION_STEP_DTYPE[n]``.

        Args:
            indices: row numbers or a mask, as for :meth:`tokens`, with the same errors.
        """
        # Whole records through an untyped view: NumPy copies structured rows field by field. The numbers
        # are checked, so "clip" only spares NumPy its second, slower check.
        numbers = self._row_numbers(indices)
        taken = np.take(self.steps.view(f"V{self.steps.dtype.itemsize}"), numbers, mode="clip")
        return taken.view(self.steps.dtype)

    def run_labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Whether each run reached each threshold.

        Args:
            thresholds: T different tiles, each a power of two >= 2.

        Returns:
            ``bool[R, T]``: ``highest_tile >= threshold``.

        Raises:
            ValueError: not such tiles, or none.
        """
        reached: NDArray[np.bool_] = self.runs["highest_tile"][:, None] >= check_thresholds(thresholds)
        return reached

    def labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Whether the run of each row reached each threshold: ``bool[N, T]``; see :meth:`run_labels`.

        Every call makes a new array of N x T bytes; no row is read for it.
        """
        return self._owners.spread(self.run_labels(thresholds))

    def tokens(self, rows: Rows) -> NDArray[np.uint8]:
        """The boards of the given rows as exponents.

        Args:
            rows: a slice; row numbers (integers of one dimension, in any order, repeats allowed); or
                a mask ``bool[N]``. A row number is a name and not a position to count back from: a
                negative one is refused, so that a -1 that marks padding never becomes the last row.
                Slices follow Python's rules.

        Returns:
            ``u8[n, 16]``, row-major cells, a new C-ordered array.

        Raises:
            IndexError: a row number outside [0, N), or a mask of another length.
            TypeError: row numbers that are not integers of one dimension.
        """
        if isinstance(rows, slice):
            return self.steps["exps"][rows].copy()
        numbers = self._row_numbers(rows)
        # Whole records through an untyped view: taking from the strided field would first copy the
        # whole column. The numbers are checked, so "clip" only spares NumPy its second, slower check.
        row_bytes = self.steps.dtype.itemsize
        taken = np.take(self.steps.view(f"V{row_bytes}"), numbers, mode="clip")
        taken = taken.view(np.uint8).reshape(len(numbers), row_bytes)
        return np.ascontiguousarray(taken[:, EXPS_OFFSET : EXPS_OFFSET + 16])

    def run_index(self, rows: Rows) -> NDArray[np.int64]:
        """The ordinal, in :attr:`runs`, of the run of each given row: ``i8[n]``.

        Args:
            rows: as for :meth:`tokens`, with the same errors.
        """
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step == 1:
                return self._owners.between(first, last)
            return self._owners.of(np.arange(first, last, step))
        return self._owners.of(self._row_numbers(rows))

    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The stretches of rows that belong to one run each, in the order of the rows.

        Returns:
            First row, number of rows, and ordinal in :attr:`runs`, ``i8[S]`` each, read-only. S is the number
            of runs that have rows where the session is :attr:`contiguous`.
        """
        return self._owners.segments()

    def rows_of(self, run: int) -> slice | NDArray[np.int64]:
        """The rows of one run, in step order, as an index into :attr:`steps`.

        Args:
            run: ordinal in :attr:`runs`, 0 <= run < R.

        Returns:
            A slice where the session is :attr:`contiguous`, else ascending row numbers ``i8[rows]``.

        Raises:
            IndexError: no such run.
            TypeError: no integer.
        """
        run = run_ordinal(run, len(self.runs))
        if not self.contiguous:
            return self._owners.rows_of(run)
        first = int(self.runs["first_row"][run])
        return slice(first, first + int(self.runs["rows"][run]))

    def _row_numbers(self, rows: Rows) -> NDArray[np.int64]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        return row_numbers(rows, len(self))


def sessions(root: str | os.PathLike[str]) -> list[Path]:
    """Paths of the finished sessions that stand directly in a directory, sorted by name.

    A directory counts when it is named like a session, or holds ``metadata.db`` or rows. So a damaged
    session is listed, and opening it says what is wrong, where leaving it out would hide it. Names
    that begin with ``.`` (still being written), data sets and anything else are passed over.

    Raises:
        OutDirError: ``root`` is missing, not a directory, or cannot be listed.
    """
    return [Path(root, name) for name in session_names(root)]


def session_names(root: str | os.PathLike[str]) -> list[str]:
    """The names of :func:`sessions` alone: making ten thousand paths takes longer than finding them."""
    try:
        with os.scandir(os.fspath(root)) as entries:  # not None, which is the current directory there
            found = [entry.name for entry in entries if _is_session(entry)]
    except OSError as error:
        raise OutDirError(f"cannot be listed: {error.strerror or error}", path=root) from error
    return sorted(found)


def _is_session(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    try:
        if not entry.is_dir():
            return False
        if SESSION_NAME.fullmatch(entry.name):
            return True
        names = {inner.name for inner in Path(entry.path).iterdir()}
    except OSError:
        return False  # gone meanwhile, or not ours to read and not named like a session
    looks_like_one = any(name in {METADATA_DB, STEPS_NPY} or SHARD_NAME.fullmatch(name) for name in names)
    return looks_like_one and not is_dataset(Path(entry.path), names)


def _assign(
    metadata: Metadata, steps: NDArray[np.void], path: Path, load: Load
) -> tuple[NDArray[np.void], Owners]:
    """Find out which rows each run has, from the run table or else from the rows."""
    if not metadata.has_rows:
        return from_scan(metadata.runs, steps["run_id"], path)
    runs, owners = from_run_table(metadata.runs, len(steps), path)
    probed = np.flatnonzero(runs["rows"])
    if load == "mmap" and len(probed) > _PROBED_RUNS:
        probed = probed[np.arange(_PROBED_RUNS) * (len(probed) - 1) // (_PROBED_RUNS - 1)]
    first = runs["first_row"][probed].astype(np.int64)
    last = first + runs["rows"][probed].astype(np.int64) - 1
    ids = runs["id"][probed]
    wrong = (steps["run_id"][first] != ids) | (steps["run_id"][last] != ids) | (steps["step_idx"][first] != 0)
    if wrong.any():
        at = int(wrong.argmax())
        begin, end = steps[first[at]], steps[last[at]]
        msg = (
            f"run {ids[at]} has rows {first[at]} to {last[at]}, but these belong to run {begin['run_id']} "
            f"(step {begin['step_idx']}) and run {end['run_id']} (step {end['step_idx']})"
        )
        hint = "the steps belong to another session, or one of the two files was changed"
        raise BookkeepingError(msg, path=path, hint=hint)
    return runs, owners


def _check_counts(manifest: Manifest, rows: int, runs: int, path: Path) -> None:
    for name, claimed, found in (("rows", manifest.rows, rows), ("runs", manifest.runs, runs)):
        if claimed != found:
            raise ManifestError(f"{name} is {claimed}; the session has {found}", path=path)
