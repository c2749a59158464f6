"""Reader of data set directories: files, manifest, and opening as a whole.

:mod:`tape2048.datasets.dataset` describes the layout.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.base.text import counted
from tape2048.datasets.metadata import read_runs_db
from tape2048.datasets.packdat import DataPack
from tape2048.datasets.packdat_layout import MAGIC
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
    Manifest,
    SkippedRun,
)
from tape2048.formats.npy import read_header
from tape2048.formats.session import (
    SESSION_NAME,
    SHARD_NAME as SESSION_SHARD_NAME,
    STEP_DTYPES,
    file_defects,
    read_manifest_file,
)
from tape2048.io.reading import open_regular, reading
from tape2048.runs.files import first_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.datasets.run_table import RunTable
    from tape2048.formats.npy import NpyHeader

#: Largest accepted manifest: room for the names of some 100,000 skipped runs.
MANIFEST_BYTES_MAX = 64 * 1024 * 1024

_FILE_NAME = re.compile(r"(shards/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")

#: Attempts to open a data set that is exchanged meanwhile.
OPEN_TRIES = 5


def refuse_empty(skipped: Sequence[SkippedRun], path: str | os.PathLike[str]) -> None:
    """Raise EmptyCorpusError if a target has no run because all were skipped."""
    if skipped:
        first = skipped[0]
        raise EmptyCorpusError(
            f"0 of {counted(len(skipped), 'run')} can be written here; nothing was written; the first: "
            f"{first.run}: {first.error}: {first.message}",
            path=path,
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
    manifest: Manifest | None
    pack: DataPack | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.pack) if self.pack is not None else sum(file.header.rows for file in self.files)


def open_directory(directory: Path, stack: contextlib.ExitStack) -> Opened:
    """Open a data set, with all checks whose cost is in proportion to its runs; ``stack`` closes it."""
    for _ in range(OPEN_TRIES):
        with contextlib.ExitStack() as files:
            # An open directory keeps its inode number: no other one can get it meanwhile.
            pin = _open_pin(directory)
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
    """Check for a file that begins like a pack.dat; False where the path cannot be read."""
    try:
        with reading(path):
            return path.is_file() and first_bytes(path, len(MAGIC)) == MAGIC
    except StorageError:
        return False


def open_packdat(path: Path) -> Opened | None:
    """Open a pack.dat, mapped, with the checks of :meth:`DataPack.load`; None if none is at the path."""
    if not is_packdat(path):
        return None
    pack = DataPack.load(path, "mmap")
    return Opened(path, [], pack.run_table, None, pack)


def _open_pin(directory: Path) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MissingPathError("nothing stands at this path", path=directory) from None
    except NotADirectoryError:
        raise NotASessionError("neither a directory nor a pack.dat", path=directory) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror or error}", path=directory) from error


def _leads_to(directory: Path, pin: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(directory.stat(), os.fstat(pin))
    return False


def _open_once(directory: Path, stack: contextlib.ExitStack) -> Opened:
    parts = find_parts(directory)
    manifest = read_manifest_file(
        directory / MANIFEST, Manifest, version=FORMAT_VERSION, what="data set", bytes_max=MANIFEST_BYTES_MAX
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


def check_whole(manifest: Manifest | None, rows: int, table: RunTable, directory: Path) -> None:
    """Compare the manifest, if any, with the number of rows and the run table; raise for the first defect."""
    for name, found in (("num_steps", rows), ("num_runs", len(table))):
        claimed = getattr(manifest, name, found)
        if claimed != found:
            raise ManifestError(f"{name} is {claimed}; the data set has {found}", path=directory / MANIFEST)
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
    """Raise NotASessionError for a session, or a directory of them."""
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


def check_files(manifest: Manifest, directory: Path) -> None:
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
