"""Data sets: directories with all steps of many runs in one array, and the runs in SQLite.

::

    <name>/
        steps.npy        one packed record of 32 bytes for each step, or
        shards/          the same in several files, steps_00000.npy, steps_00001.npy, ...
        metadata.db      SQLite: the run table (tape2048.session.dataset_runs)
        manifest.json    counts, sizes, checksums, sources, skipped runs; other programs may omit it

``steps.npy`` is in NumPy format 1.0, one-dimensional, C order, packed. This package writes a header of 256
bytes: each row is in one cache line, and the length of the header does not depend on the number of rows.

==========  =======  =======================================================================
field       type     meaning
==========  =======  =======================================================================
board       ``<u8``  the board before the move, packed
move        ``u1``   0 up, 1 down, 2 left, 3 right
ev_legal    ``u1``   the moves that are legal, by the rules
ev_values   ``<f4``  [4] branch values in [0, 1]: the chosen move exactly 1.0, illegal moves 0.0;
                     all 0 if the source had no values
run_id      ``<u4``  ``runs.id``
step_index  ``<u2``  0-based move number within the run: a run has at most 65,536 steps
==========  =======  =======================================================================

The rows of a run are contiguous and in step order, and the runs cover all rows.

**Atomicity.** The files of a data set never change. Building and appending write a whole new directory under
a name that starts with a dot, flush its files, and publish it by one rename.
:func:`~tape2048.conversion.dataset_build.append_dataset` exchanges the names of the two directories
(``renameat2`` with ``RENAME_EXCHANGE``), and then removes the old directory. A reader opens the old data set
before the rename, and the new data set after it. A reader that has opened the old data set keeps it, since
mapped and open files outlive their names. :func:`open_dataset` detects a rename that happens while it opens
the files, and starts again. A program that opens ``steps.npy`` and ``metadata.db`` by path without this check
can get one file of each. A killed process leaves the old or the new data set, and perhaps a directory with a
dot, which the next append removes.

A data set, or a pack.dat (:mod:`tape2048.session.packdat`), opens as a session of another program
(:mod:`tape2048.session.foreign`). The columns of a data set are ``ev_legal`` and ``ev_values``. The columns
of a pack.dat are ``ev_mask``, ``ev_q``, and ``ev_values`` as in a data set.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.errors import ManifestError, MissingPathError, NotASessionError, StorageError, TapeError
from tape2048.files.bulk_read import FileRange, read_rows
from tape2048.files.npy import Shards, open_shards, peek_header
from tape2048.files.reading import first_bytes, map_path, reading
from tape2048.formats.dataset_layout import (
    DATASET_ROW_DTYPE,
    FORMAT_VERSION,
    LEVELS,
    PACKDAT_STEP_DTYPE,
    RUN_ID_MAX,
    SHARD_NAME,
    SHARDS,
    DatasetManifest,
)
from tape2048.runs.a2run2 import VALUE_MAX, legal_bits
from tape2048.session import packdat
from tape2048.session.dataset_runs import RunTable, read_runs_db
from tape2048.session.directory import is_dataset, list_names, whole_shards
from tape2048.session.foreign import ForeignRows
from tape2048.session.layout import (
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    SHARD_NAME as SESSION_SHARD_NAME,
    STEP_DTYPES,
    STEPS_NPY,
    file_defects,
    read_manifest_file,
)
from tape2048.session.metadata import Metadata
from tape2048.session.tape_layout import TAPE_NPY

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tape2048.files.npy import Load

#: Largest accepted manifest, with room for the names of about 100,000 skipped runs.
MANIFEST_BYTES_MAX = 64 * 1024 * 1024

_FILE_NAME = re.compile(r"(shards/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")

#: Number of attempts to open a data set that other processes exchange.
OPEN_TRIES = 5

#: The steps of a pack.dat without their padding.
_PACKDAT_FIELDS = PACKDAT_STEP_DTYPE[[name for name in PACKDAT_STEP_DTYPE.names or () if name != "padding"]]


class OpenDataset(NamedTuple):
    """An open data set or pack.dat; ``padded`` counts steps of a pack.dat with padding that is not 0."""

    rows: ForeignRows
    table: RunTable
    manifest: DatasetManifest | None = None
    padded: int = 0

    @property
    def metadata(self) -> Metadata:
        return _metadata(self.table)

    def shifted(self, shift: int) -> OpenDataset:
        """Return the data set with ``shift`` added to the run ids in its tables; the rows keep theirs."""
        rows, table = copy.copy(self.rows), self.table.rows.copy()
        rows.runs = rows.runs.copy()
        rows.runs["id"] += np.uint64(shift)
        table["id"] += np.uint64(shift)
        return self._replace(rows=rows, table=RunTable(table, self.table.engines))

    @property
    def is_pack(self) -> bool:
        return self.rows.layout.dtype == _PACKDAT_FIELDS


def is_packdat(path: Path) -> bool:
    """Check whether a path is a file that starts like a pack.dat; False if it cannot be read."""
    try:
        with reading(path):
            return path.is_file() and first_bytes(path, len(packdat.MAGIC)) == packdat.MAGIC
    except StorageError:
        return False


def is_table(path: Path) -> bool:
    with reading(path):
        is_directory = path.is_dir()
    return is_dataset(path, list_names(path)) if is_directory else is_packdat(path)


def open_table(path: Path, load: Load = "mmap") -> OpenDataset:
    return open_packdat(path) if is_packdat(path) else open_dataset(path, load)


def open_packdat(path: Path) -> OpenDataset:
    """Open a pack.dat, and check all its bytes. Its rows are mapped."""
    records, table, padded = packdat.parse(map_path(path), path)
    return of_records(records, table, path, padded, again=partial(_read_records, path, len(records)))


def of_records(
    records: NDArray[np.uint8],
    table: RunTable,
    path: Path,
    padded: int = 0,
    again: Callable[[], Shards] | None = None,
) -> OpenDataset:
    """Return the records of a pack.dat as an open data set; ``again`` reads mapped records into memory."""
    made = {"ev_values": values_of_steps}
    rows = ForeignRows([path], _shard(records), _metadata(table), path, tiled=True, again=again, made=made)
    return OpenDataset(rows, table, None, padded)


def _metadata(table: RunTable) -> Metadata:
    return Metadata(table.to_runs(), None, {}, has_rows=True)


def _shard(records: NDArray[np.uint8]) -> Shards:
    steps = records.view(_PACKDAT_FIELDS)
    return Shards(steps, np.array([len(steps)]), np.zeros(1, np.int64))


def _read_records(path: Path, count: int) -> Shards:
    return _shard(read_rows([FileRange(path, packdat.HEADER_BYTES, count)]))


def values_of_steps(steps: NDArray[np.void]) -> NDArray[np.float32]:
    """Convert the values of the steps of a pack.dat to ``ev_values`` of a data set, ``f32[n, 4]``."""
    has = legal_bits(steps["ev_mask"])
    # At most the largest float32 below 1; 0 for moves that are not in the mask.
    values = np.where(has, np.minimum(steps["ev_q"].astype(np.float32) / LEVELS, VALUE_MAX), np.float32(0))
    values[has & (steps["move_dir"][:, None] == np.arange(4))] = 1
    return values


def open_dataset(directory: Path, load: Load) -> OpenDataset:
    """Open a data set directory, with all checks whose time grows with its runs and not with its rows."""
    for _ in range(OPEN_TRIES):
        # An open directory keeps its inode number: no other directory can get it.
        try:
            pin = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MissingPathError("no such file or directory", path=directory) from None
        except NotADirectoryError:
            raise NotASessionError("neither a directory nor a pack.dat", path=directory) from None
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror or error}", path=directory) from error
        try:
            opened = _open_once(directory, load)
        except TapeError:
            if leads_to(directory, pin):
                raise
        else:
            if leads_to(directory, pin):
                return opened
        finally:
            os.close(pin)
    raise StorageError(
        f"was replaced {OPEN_TRIES} times while it was opened",
        path=directory,
        hint="try again when no process appends to it",
    )


def leads_to(directory: Path, pin: int) -> bool:
    """Check whether a path still leads to an open directory, of which ``pin`` is the descriptor."""
    with contextlib.suppress(OSError):
        return os.path.samestat(directory.stat(), os.fstat(pin))
    return False


def _open_once(directory: Path, load: Load) -> OpenDataset:
    parts, path = find_parts(directory), directory / METADATA_DB
    manifest = read_manifest_file(
        directory / MANIFEST,
        DatasetManifest,
        version=FORMAT_VERSION,
        what="data set",
        bytes_max=MANIFEST_BYTES_MAX,
    )
    if manifest is not None:
        check_files(manifest, directory)
    table = read_runs_db(path)
    shards = open_shards(parts, [DATASET_ROW_DTYPE], load)
    check_whole(manifest, int(shards.counts.sum()), table, directory)
    again = partial(open_shards, parts, [DATASET_ROW_DTYPE])
    rows = ForeignRows(parts, shards, _metadata(table), path, tiled=True, again=again)
    return OpenDataset(rows, table, manifest)


def check_files(manifest: DatasetManifest, directory: Path) -> None:
    for defect in file_defects(manifest.files, directory, _FILE_NAME.fullmatch):
        raise defect


def check_whole(manifest: DatasetManifest | None, rows: int, table: RunTable, directory: Path) -> None:
    """Compare the manifest, if any, with the number of rows and the run table; raise for the first defect."""
    for name, found in (("num_steps", rows), ("num_runs", len(table))):
        claimed = getattr(manifest, name, found)
        if claimed != found:
            raise ManifestError(f"{name} is {claimed}. The data set has {found}", path=directory / MANIFEST)
    table.check(rows, RUN_ID_MAX, directory / METADATA_DB)


def find_parts(directory: Path) -> list[Path]:
    with reading(directory):
        names = {entry.name for entry in directory.iterdir()}
        shards = [entry.name for entry in ((directory / SHARDS).iterdir() if SHARDS in names else ())]
        shards = list(filter(SHARD_NAME.fullmatch, shards))
    _refuse_sessions(directory, names)
    if METADATA_DB not in names:
        raise NotASessionError(f"no {METADATA_DB} in this directory", path=directory)
    if STEPS_NPY in names and shards:
        raise NotASessionError(
            f"found rows in {STEPS_NPY} and in {SHARDS}/, expected only one of them", path=directory
        )
    if STEPS_NPY in names:
        return [directory / STEPS_NPY]
    if not shards:
        raise NotASessionError(f"no {STEPS_NPY} in this directory", path=directory)
    return [directory / SHARDS / name for name in whole_shards(shards, SHARD_NAME, 0, directory)]


def _refuse_sessions(directory: Path, names: set[str]) -> None:
    found = "a session"
    if STEPS_NPY in names:
        try:
            if peek_header(directory / STEPS_NPY).dtype not in STEP_DTYPES:
                return
        except TapeError:
            return
    elif any(map(SESSION_NAME.fullmatch, names)):
        found = "a directory of sessions"
    elif TAPE_NPY not in names and not any(map(SESSION_SHARD_NAME.fullmatch, names)):
        return
    raise NotASessionError(
        f"found {found}, expected a data set",
        path=directory,
        hint="use the commands for sessions, such as tape2048 show, or make a data set of sessions with "
        "moves: tape2048 dataset build",
    )
