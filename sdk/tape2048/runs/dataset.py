"""Data sets: directories with all steps of many runs in one array, and the runs in SQLite.

::

    <name>/
        steps.npy        one packed record of 32 bytes for each step, or
        shards/          the same in several files, steps_00000.npy, steps_00001.npy, ...
        metadata.db      SQLite: the run table
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

The rows of a run are contiguous and in step order, and the runs cover all rows. In ``metadata.db``, the table
``runs`` and its indexes follow the original design. A second table, ``tape2048_runs``, which readers may
ignore, holds the board after the last move and the seed of a recorded game.

**Atomicity.** The files of a data set never change. Building and appending write a whole new directory under
a name that starts with a dot, flush it, and publish it by one rename. :func:`append_dataset` exchanges the
names of the two directories, and then removes the old one. A reader that has opened the old data set keeps
it. Opening detects an exchange and starts again. A killed process leaves the old or the new data set, and
perhaps a directory with a dot, which the next append removes.

The same sources give the same bytes on any number of threads. Memory holds a few runs for each thread.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections import Counter
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import counted, pretty_json
from tape2048.errors import (
    BookkeepingError,
    ChecksumError,
    EmptyCorpusError,
    FieldError,
    FormatError,
    ManifestError,
    MissingPathError,
    NameTakenError,
    NotASessionError,
    SchemaError,
    StorageError,
    TapeError,
)
from tape2048.files.durable import Draft, fsync_dir, hold_lock, write_file
from tape2048.files.npy import check_load, peek_header, read_header
from tape2048.files.opening import open_fd, storage_errors
from tape2048.files.reading import crc32c_combine, crc32c_file, open_regular, reading
from tape2048.files.sqlite import WorkLimit, columns_of, open_untrusted
from tape2048.files.sqlite_writer import fresh_database, insert_rows
from tape2048.loader.phases import ALL
from tape2048.players import file_names
from tape2048.runs.a2run2 import legal_bits
from tape2048.runs.engine_text import split_seed
from tape2048.runs.packdat import PACKDAT_STEP_DTYPE, open_rows as open_packdat, values_of_steps
from tape2048.runs.run import RunSource, SkippedRun, check_meta
from tape2048.runs.tables import (
    RUN_TABLE_DTYPE,
    OpenTable,
    RunTable,
    ShardWriter,
    TableCorpus,
    refuse_empty,
    restore_values,
    run_source,
    values_within_one,
)
from tape2048.session.blocks import open_checked_shards
from tape2048.session.directory import DATASET_ROW_DTYPE, SHARDS, is_packdat, whole_shards
from tape2048.session.foreign import ForeignRows
from tape2048.session.layout import (
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    SHARD_NAME as SESSION_SHARD_NAME,
    STEP_DTYPES,
    STEPS_NPY,
    FileEntry,
    file_defects,
    read_manifest_file,
)
from tape2048.session.metadata_writer import flush_entry
from tape2048.session.session import Session
from tape2048.session.tape_layout import TAPE_NPY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.files.npy import Load
    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import Replayer, Run, SourceRun, Tables

    OneSource = str | os.PathLike[str] | RunSource
    Sources = OneSource | Iterable[OneSource]
    PathText = str | os.PathLike[str]
    #: Path and kind of a source, and its runs.
    Part = tuple[str, str, Iterable[Sequence["LaidOut | SkippedRun"]]]

FORMAT_VERSION = 1
HEADER_BYTES = 256
RUN_ID_MAX, RUN_STEPS_MAX, _U63_MAX = 2**32 - 1, 2**16, 2**63 - 1
_F32_MAX = float(np.finfo(np.float32).max)
#: Largest accepted manifest, with room for the names of about 100,000 skipped runs.
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
#: Number of attempts to open a data set that other processes exchange.
OPEN_TRIES = 5
#: A run takes about 60 operations to read and at least 20 bytes; see :mod:`tape2048.session.metadata`.
READ_LIMIT = WorkLimit(1_000_000, 16)
_SHARD_NAME = re.compile(r"steps_(\d{5,})\.npy")
_FILE_NAME = re.compile(r"(shards/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_VIEW_RUNS = 256  # copied at once


class SourceCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contribution of one source. ``normalised`` counts runs with branch values outside [0, 1]."""

    path: str
    kind: str
    runs: int
    steps: int
    skipped: int
    normalised: int = 0


class DatasetManifest(msgspec.Struct, frozen=True):
    """``manifest.json``. Manifests of other programs have the first four keys only."""

    version: int
    num_steps: int
    num_runs: int
    created: str | None = None
    updated: str | None = None
    steps_crc32c: int | None = None
    files: dict[str, FileEntry] = {}
    sources: list[SourceCount] = []
    skipped: list[SkippedRun] = []
    release: str = ""  # of tape2048, which wrote the manifest


_TABLES = (
    """CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    first_step_idx INTEGER NOT NULL,
    num_steps INTEGER NOT NULL,
    max_score INTEGER NOT NULL,
    highest_tile INTEGER NOT NULL,
    engine TEXT,
    start_time INTEGER,
    elapsed_s REAL
)""",
    "CREATE TABLE tape2048_runs (id INTEGER PRIMARY KEY, final_board BIGINT, seed BIGINT)",
)
_INDEXES = "CREATE INDEX idx_score ON runs(max_score)", "CREATE INDEX idx_steps ON runs(num_steps)"
#: The columns of the tables, and their fields in a :class:`RunTable`.
_COLUMNS: Final = {
    "id": "run_id", "first_step_idx": "first_row", "num_steps": "steps", "max_score": "score",
    "highest_tile": "highest_tile", "start_time": "start_unix_s", "elapsed_s": "elapsed_s",
    "engine": "engine",
}  # fmt: skip
_EXTRA, _EXTRA_COLUMNS = "tape2048_runs", ("id", "final_board", "seed")
_KNOWN = {"final_board": "has_final", "seed": "has_seed"}
_KINDS = tuple[int, int, int, int, int, int, float, str | None, int | None, int | None]


def write_runs_db(path: PathText, table: RunTable) -> None:
    """Write the table to a new file. No number may be above 2**63 - 1."""
    columns = [table.rows[name].tolist() for name in list(_COLUMNS.values())[:-1]]
    extras = [
        [value if has else None for value, has in zip(values, table.rows[known].tolist(), strict=True)]
        for name, known in _KNOWN.items()
        for values in [table.rows[name].astype(np.int64).tolist()]
    ]
    with fresh_database(path) as database:
        for statement in _TABLES:
            database.execute(statement)
        insert_rows(database, "runs", tuple(_COLUMNS), zip(*columns, table.engine_names(), strict=True))
        facts = (fact for fact in zip(columns[0], *extras, strict=True) if fact[1:] != (None, None))
        insert_rows(database, _EXTRA, _EXTRA_COLUMNS, facts)
        for statement in _INDEXES:  # after the rows: sorting once is faster than keeping them sorted
            database.execute(statement)


def read_runs_db(path: PathText) -> RunTable:
    """Read the runs, sorted by first row, without writing to the disk or waiting for locks."""
    fields = ", ".join(
        f"ifnull({c}, 0)" if c in {"start_time", "elapsed_s"} else f"runs.{c}" for c in _COLUMNS
    )
    extras, join = "NULL, NULL", ""
    with open_untrusted(path, {"runs", _EXTRA}, READ_LIMIT) as (database, tables):
        database.text_factory = bytes.decode  # which raises UnicodeDecodeError
        columns_of(database, "runs", tuple(_COLUMNS), (), path)
        if _EXTRA in tables:
            columns_of(database, _EXTRA, _EXTRA_COLUMNS, (), path)
            extras, join = "final_board, seed", f" LEFT JOIN {_EXTRA} ON {_EXTRA}.id = runs.id"
            query = f"SELECT id FROM {_EXTRA} WHERE id NOT IN (SELECT id FROM runs)"  # noqa: S608 - own names
            if unknown := database.execute(query).fetchone():
                text = f"{_EXTRA} has run {unknown[0]!r:.80}, which is not in the table runs"
                raise BookkeepingError(text, path=path)
        try:
            found = database.execute(f"SELECT {fields}, {extras} FROM runs{join}")  # noqa: S608 - own names
            records = msgspec.convert(found.fetchall(), list[_KINDS])
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise SchemaError(f"runs: {error}", path=path) from error
    names = (*_COLUMNS.values(), *_KNOWN)
    columns: dict[str, Any] = dict(
        zip(names, zip(*records, strict=True) if records else [()] * 10, strict=True)
    )
    engines, elapsed = columns.pop("engine"), columns["elapsed_s"]
    for name in names[:6]:
        highest = min(_U63_MAX, int(np.iinfo(RUN_TABLE_DTYPE[name]).max))  # SQLite's integers have a sign
        low, high = min(columns[name], default=0), max(columns[name], default=0)
        if low < 0 or high > highest:
            raise BookkeepingError(f"{name} is {low} to {high}; expected 0 to {highest}", path=path)
    if not all(abs(value) <= _F32_MAX for value in elapsed):
        raise SchemaError("runs.elapsed_s has a value that is not finite as float32", path=path)
    for name, known in _KNOWN.items():
        columns[known] = [value is not None for value in columns[name]]
        columns[name] = [(value or 0) % 2**64 for value in columns[name]]
    table = RunTable.of_columns(columns, engines)
    # A run without steps comes before the run that starts at its row.
    order = np.lexsort([table.rows[name] for name in ("run_id", "steps", "first_row")])
    return RunTable(table.rows[order], table.engines)


def open_rows(directory: Path, load: Load = "mmap") -> OpenTable:
    """Open a data set, with all checks whose time grows with its runs and not with its rows."""
    found: OpenTable | TapeError
    for _ in range(OPEN_TRIES):
        with reading(directory):
            if directory.exists() and not directory.is_dir():
                raise NotASessionError("neither a directory nor a pack.dat", path=directory)
            # An open directory keeps its inode number: no other directory can get it.
            with open_fd(directory, os.O_RDONLY | os.O_DIRECTORY) as pin:
                try:
                    found = _open_once(directory, load)
                except TapeError as error:
                    found = error
                is_same = os.path.samestat(directory.stat(), os.fstat(pin))
        if is_same and isinstance(found, TapeError):
            raise found
        if is_same and isinstance(found, OpenTable):
            return found
    text, hint = (
        f"was replaced {OPEN_TRIES} times while it was opened",
        "try again when no process appends to it",
    )
    raise StorageError(text, path=directory, hint=hint)


def _open_once(directory: Path, load: Load) -> OpenTable:
    parts, path = _find_parts(directory), directory / METADATA_DB
    limits = {"version": FORMAT_VERSION, "bytes_max": MANIFEST_BYTES_MAX}
    manifest = read_manifest_file(directory / MANIFEST, DatasetManifest, what="data set", **limits)
    for defect in file_defects(manifest.files, directory, _FILE_NAME.fullmatch) if manifest else ():
        raise defect
    table = read_runs_db(path)
    files = {directory / name: entry for name, entry in manifest.files.items()} if manifest else {}
    again = partial(open_checked_shards, parts, [DATASET_ROW_DTYPE], files)
    shards = again(load)
    rows = int(shards.counts.sum())
    if manifest and (manifest.num_steps, manifest.num_runs) != (rows, len(table)):
        text = (
            f"num_steps, num_runs are {manifest.num_steps}, {manifest.num_runs}; found {rows}, {len(table)}"
        )
        raise ManifestError(text, path=directory / MANIFEST)
    table.check(rows, path)
    found_rows = ForeignRows(parts, shards, table.to_metadata(), path, tiled=True, again=again)
    return OpenTable(found_rows, table, manifest)


def _find_parts(directory: Path) -> list[Path]:
    with reading(directory):
        names = {entry.name for entry in directory.iterdir()}
        inner = [entry.name for entry in ((directory / SHARDS).iterdir() if SHARDS in names else ())]
    shards = list(filter(_SHARD_NAME.fullmatch, inner))
    if found := _other_kind(directory, names):
        hint = "use the commands for sessions, such as tape2048 show, or make a data set of sessions with "
        hint += "moves: tape2048 dataset build"
        raise NotASessionError(f"found {found}, expected a data set", path=directory, hint=hint)
    if METADATA_DB not in names or (STEPS_NPY in names) == bool(shards):
        found = ", ".join(sorted(names & {METADATA_DB, STEPS_NPY})) or "neither"
        text = f"found {found} and {counted(len(shards), 'shard')}; expected {METADATA_DB} and {STEPS_NPY}"
        raise NotASessionError(f"{text} or {SHARDS}/, not both", path=directory)
    names_in_order = whole_shards(shards, _SHARD_NAME, 0, directory)
    return [directory / SHARDS / name for name in names_in_order] or [directory / STEPS_NPY]


def _other_kind(directory: Path, names: set[str]) -> str:
    if STEPS_NPY in names:
        with contextlib.suppress(TapeError):
            return "a session" if peek_header(directory / STEPS_NPY).dtype in STEP_DTYPES else ""
        return ""
    if any(map(SESSION_NAME.fullmatch, names)):
        return "a directory of sessions"
    return "a session" if TAPE_NPY in names or any(map(SESSION_SHARD_NAME.fullmatch, names)) else ""


class Dataset(TableCorpus):
    """One data set, or several as one, or a view of them: a corpus whose records are ``DATASET_ROW_DTYPE``.

    :meth:`Corpus.open` reads the same paths as rows of sessions. Pickling sends the paths and the selection.

    Args:
        path: a data set's directory or a pack.dat, or several. The run ids of each further path continue
            after the highest id before. A game that several paths hold is served once. The records of a
            pack.dat are converted when they are read.
        load: ``"ram"`` reads all rows into memory, in parallel; ``"mmap"`` maps them, which is slow for
            random rows that are not in the page cache.
        progress: function that is called with the bytes read and all bytes, while rows are read into memory.

    Attributes:
        paths: the directories, absolute.
        manifests: manifest of each directory; None for a directory without manifest.

    Raises:
        NotASessionError: a path is not a data set.
        FormatError: a subclass, for the first defect found.
        StorageError: the operating system could not read a file.
        ValueError: no path, or an unknown ``load``.

    Example:
        >>> from tape2048.runs import Dataset, build_dataset
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
        path: PathText | Sequence[PathText],
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
            found = open_packdat(place) if is_packdat(place) else open_rows(place, load)
            ids, steps = found.table.rows["run_id"], found.table.rows["steps"]
            for name, value, most in (
                ("run id", shift + int(ids.max(initial=0)), RUN_ID_MAX),
                ("number of steps of a run", int(steps.max(initial=0)), RUN_STEPS_MAX),
            ):
                if value > most:
                    hint = "open fewer data sets together, or read a pack.dat with DataPack.load"
                    raise FieldError(f"{name} is {value}; expected at most {most}", path=place, hint=hint)
            sessions.append(Session.of_dataset(place, found.shifted(shift) if shift else found))
            shift += int(ids.max()) + 1 if len(ids) else 0
        self.manifests: list[DatasetManifest | None] = [session.dataset.manifest for session in sessions]
        self._become(sessions, load, progress)

    @classmethod
    def open(  # type: ignore[override]
        cls,
        path: PathText | Sequence[PathText],
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

    def _source(self) -> tuple[Callable[..., TableCorpus], tuple[Any, ...]]:
        return type(self), ([str(path) for path in self.paths], self.load)

    def _gather(self, numbers: NDArray[np.int64], out: NDArray[np.void]) -> None:
        super()._gather(numbers, out)
        if len(self.sessions) == 1 and not self._packs.any():
            return
        run = self.run_index(numbers)
        if (mine := self._packs[self.runs["session"][run]]).any():
            out[mine] = _of_packdat(out[mine].view(PACKDAT_STEP_DTYPE))
        out["run_id"] = self.runs["run_id"][run]

    @cached_property
    def _packs(self) -> NDArray[np.bool_]:
        return np.array([session.dataset.is_pack for session in self.sessions])

    def _records_of(self, session: Session, first: int, count: int) -> NDArray[np.void]:
        rows = super()._records_of(session, first, count)
        return _of_packdat(rows) if session.dataset.is_pack else rows

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


def _of_packdat(steps: NDArray[np.void]) -> NDArray[np.void]:
    from tape2048.game.rules import legal_masks

    rows = np.empty(len(steps), DATASET_ROW_DTYPE)
    rows["board"], rows["move"], rows["ev_values"] = steps["board"], steps["move_dir"], values_of_steps(steps)
    rows["ev_legal"] = legal_masks(np.ascontiguousarray(steps["board"]))
    rows["run_id"], rows["step_index"] = steps["run_id"], steps["index_in_run"]
    return rows


class Built(msgspec.Struct, frozen=True):
    """Result of a build or an append.

    Attributes:
        path: the data set.
        runs: number of added runs.
        steps: number of added rows.
        skipped: runs that were left out, and the reason of each.
        lost: for each kind of loss, the number of runs.
        normalised: number of added runs with branch values outside [0, 1], which were normalised.
        copies: number of runs that were left out, since another run or the data set holds the same game.

    Example:
        >>> from tape2048.runs import build_dataset
        >>> built = build_dataset("built", "runs")
        >>> built.runs, built.skipped
        (2, ())
    """

    path: str
    runs: int
    steps: int
    skipped: tuple[SkippedRun, ...]
    lost: dict[str, int] = {}
    normalised: int = 0
    copies: int = 0


def build_dataset(
    output: PathText,
    sources: Sources,
    *,
    workers: int | None = None,
    shard_rows: int | None = None,
    replayer: Replayer | None = None,
    lossy: bool = False,
    progress: Callable[[int, int, int], object] | None = None,
) -> Built:
    """Build a data set of all runs of some sources.

    A game that the sources hold more than once is added once, and warnings name the copies. A run that cannot
    be read, breaks the rules (:func:`tape2048.runs.check_rules`), or has more than 65,536 steps is left out;
    the result and the manifest list it and the reason. The value of a chosen move becomes 1. The values of a
    step with a value outside [0, 1] are normalised.

    Args:
        output: the directory to make. It must not exist.
        sources: one source or several in the order of their rows; paths for :func:`open_source`, or its
            results.
        workers: number of decoding threads. None: the number of cores.
        shard_rows: rows of a file; None: one ``steps.npy``. Appending to shards copies no rows.
        replayer: as for :func:`open_source`.
        lossy: whether games whose moves are unknown may end early.
        progress: function that is called with the runs read, all runs, and the steps written.

    Raises:
        NameTakenError: ``output`` exists.
        EmptyCorpusError: every run would be left out. Nothing was written.
        MaintenanceError: see :func:`open_source`.
        FormatError: a source is damaged as a whole.
        StorageError: a source cannot be read, or the data set not written.
        ValueError: ``workers`` or ``shard_rows`` is below 1.

    Example:
        >>> from tape2048.runs import build_dataset
        >>> build_dataset("sharded", ["runs/golden.a2run"], shard_rows=1000).runs
        1
    """
    target = _new_target(output)
    opened = _opened(sources, replayer, lossy=lossy)
    return _build(target, opened, workers, progress, shard_rows)


def append_dataset(
    path: PathText,
    sources: Sources,
    *,
    workers: int | None = None,
    replayer: Replayer | None = None,
    lossy: bool = False,
    progress: Callable[[int, int, int], object] | None = None,
) -> Built:
    """Add all runs of some sources to a data set; their ids continue after the highest id.

    Games that the data set already holds are left out, and warnings name their sources. A new directory is
    written beside the old one and exchanged with it in one step: readers see the old data set or the new one,
    also after a crash. Rows in one ``steps.npy`` are copied (and their checksum compared); shards are linked.

    Args:
        path: the data set.
        sources: as for :func:`build_dataset`.
        workers: as for :func:`build_dataset`.
        replayer: as for :func:`build_dataset`.
        lossy: as for :func:`build_dataset`.
        progress: as for :func:`build_dataset`.

    Raises:
        MissingPathError: ``path`` does not exist.
        NotASessionError: ``path`` is not a data set.
        ChecksumError: its rows were changed. Nothing is appended.
        StorageError: another process appends to the data set, the file system cannot exchange two names, or
            the operating system could not write.
        FormatError: the data set or a source is damaged.

    Example:
        >>> from tape2048.runs import append_dataset, build_dataset
        >>> _ = build_dataset("growing", "runs")
        >>> again = append_dataset("growing", "runs")
        >>> again.runs, again.copies
        (0, 2)
    """
    target = Path(os.path.abspath(path))
    with contextlib.ExitStack() as stack:
        with storage_errors(target, "locking it"):
            try:
                hold_lock(target, stack)
            except FileNotFoundError:
                raise MissingPathError("no such file or directory", path=target) from None
            except NotADirectoryError:
                raise NotASessionError("not a directory", path=target) from None
        old = open_rows(target)
        opened = _opened(sources, replayer, lossy=lossy, target=Dataset(target, "mmap"))
        in_shards = old.rows.paths[0].parent.name == SHARDS
        shard_rows = max(1, int(old.rows.counts[0])) if in_shards else None
        return _build(target, opened, workers, progress, shard_rows, old)


def write_view(
    output: PathText,
    view: Dataset,
    *,
    shard_rows: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Built:
    """Write the runs of a view (or of several data sets opened as one) as a new data set.

    Rows do not change, except that run ids count from 0.

    Args:
        output: the new data set.
        view: the view.
        shard_rows: as for :func:`build_dataset`.
        progress: function that is called with the rows written and all rows.

    Raises:
        EmptyCorpusError: the view has no run. Nothing was written.
        ValueError: the view has parts of games.

    Example:
        >>> from tape2048.runs import Dataset, build_dataset, write_view
        >>> _ = build_dataset("whole", "runs")
        >>> write_view("part", Dataset("whole").filter_by_length(min_steps=1)).runs
        2
    """
    target = _new_target(output)
    view.refuse_parts()
    if not len(view.runs):
        text = "the view has 0 runs; expected at least 1. Nothing was written"
        raise EmptyCorpusError(text, path=target)
    table, begins = view.run_table, np.append(0, np.cumsum(view.runs["steps"], dtype=np.int64))

    def groups() -> Iterator[list[LaidOut | SkippedRun]]:
        for first in range(0, len(table), _VIEW_RUNS):
            part = table.rows[first : first + _VIEW_RUNS]
            end = int(begins[first + len(part)])
            yield [LaidOut(view[int(begins[first]) : end], RunTable(part, table.engines))]
            if progress is not None:
                progress(end, len(view))

    return _write(target, [(str(view.paths[0]), "dataset", groups())], shard_rows)


def read(path: Path, kind: str, **_: object) -> Tables:
    """Open a data set as a source of runs."""
    return run_source(Dataset.open(path, load="mmap"), path, kind)


def write(flow: Conversion) -> None:
    """Write the runs of a conversion."""

    def groups() -> Iterator[list[LaidOut | SkippedRun]]:
        for group in flow.groups(_lay_out):
            yield [result for _, result in group]
        yield [*flow.skipped]

    _write(flow.target, [(str(flow.source.path), flow.source.kind, groups())])


def _new_target(output: PathText) -> Path:
    target = Path(os.path.abspath(output))
    if os.path.lexists(target):
        hint = "append to it, or choose another directory"
        raise NameTakenError("the path exists. Nothing was replaced", path=target, hint=hint)
    return target


def _build(target: Path, sources: Sequence[RunSource], workers: Any, progress: Any, *how: Any) -> Built:
    built = _write(target, _laid_out(sources, workers, progress), *how)
    games = sources[0].games if sources else None
    return msgspec.structs.replace(built, copies=games.left_out if games else 0)


def _opened(
    sources: Sources, replayer: Replayer | None, *, lossy: bool, target: Dataset | None = None
) -> list[RunSource]:
    from tape2048.runs.conversion import open_sources, share_games

    # A str is also an iterable of str: the first of "/data" would be the root directory.
    each = [sources] if isinstance(sources, str | os.PathLike | RunSource) else [*sources]
    paths = [source for source in each if not isinstance(source, RunSource)]
    opened = iter(open_sources(paths, replayer, target=target, lossy=lossy))
    found = [source if isinstance(source, RunSource) else next(opened) for source in each]
    return found if len(paths) == len(found) else share_games(found, target)


def dataset_records(run: Run) -> tuple[NDArray[np.void], int]:
    """Return a run that the rules allow as rows, with run_id 0, and the number of its normalised steps."""
    from tape2048.game.rules import legal_masks

    rows, masks = np.zeros(len(run), DATASET_ROW_DTYPE), legal_masks(run.boards)
    values, _, normalised = values_within_one(run, masks)
    if run.has_branches is not None:
        steps = np.flatnonzero(run.has_branches)
        values[steps, run.moves[steps]] = 1
    rows["board"], rows["move"], rows["ev_legal"], rows["ev_values"] = run.boards, run.moves, masks, values
    rows["step_index"] = np.arange(len(run))
    return rows, normalised


def changes_values(run: Run) -> bool:
    """Whether rows of a data set would not give back all branch values of a run."""
    if run.has_branches is None or run.branch_legal is None or not run.has_branches.any():
        return False
    try:
        rows, _ = dataset_records(run)
    except FormatError:
        return False  # the writer skips the run
    values, legal = rows["ev_values"].copy(), rows["ev_legal"].copy()
    has, _ = restore_values(values, legal, np.ascontiguousarray(run.moves))
    if (has != run.has_branches).any() or (legal[has] != run.branch_legal[has]).any():
        return True
    return not bool((values == run.branch_values)[legal_bits(legal) & has[:, None]].all())


class LaidOut(NamedTuple):
    """Runs as rows of a data set. ``normalised`` counts runs with branch values outside [0, 1]."""

    rows: NDArray[np.void]
    table: RunTable
    lost: tuple[str, ...] = ()
    normalised: int = 0


def _lay_out(found: SourceRun) -> LaidOut | SkippedRun:
    try:
        run = found.checked()
        check_meta(run.meta, None, steps=RUN_STEPS_MAX, max_score=_U63_MAX, start_unix_s=_U63_MAX)
        rows, normalised = dataset_records(run)
    except TapeError as error:
        return SkippedRun.of(found.name, error)
    engine, seed = split_seed(run.meta.engine)
    extras = {"final_board": run.final_board, "has_final": found.ending_known, "seed": seed or 0}
    meta = msgspec.structs.replace(run.meta, engine=engine)
    table = RunTable.of_metas([meta], **extras, has_seed=seed is not None)
    return LaidOut(rows, table, found.lost, int(normalised > 0))


def _laid_out(
    sources: Sequence[RunSource],
    workers: int | None,
    progress: Callable[[int, int, int], object] | None,
) -> Iterator[Part]:
    total, done, steps = sum(source.count for source in sources), 0, 0

    def groups(source: RunSource) -> Iterator[list[LaidOut | SkippedRun]]:
        nonlocal done, steps
        for group in source.map(lambda runs: list(map(_lay_out, runs)), workers):
            yield group
            done, steps = (
                done + len(group),
                steps + sum(len(one.rows) for one in group if isinstance(one, LaidOut)),
            )
            if progress is not None:
                progress(done, max(done, total), steps)

    for source in sources:
        source.warn_of_columns()
        yield file_names(str(source.path)), source.kind, groups(source)


def _write(
    target: Path, parts: Iterable[Part], shard_rows: int | None = None, old: OpenTable | None = None
) -> Built:
    """Write and publish a data set: the rows of ``old``, which it replaces, then the runs of all parts."""
    if shard_rows is not None and shard_rows < 1:
        raise ValueError(f"shard_rows={shard_rows}; expected at least 1")
    name = STEPS_NPY if shard_rows is None else f"{SHARDS}/steps_{{:05d}}.npy"
    before = DatasetManifest(FORMAT_VERSION, 0, 0) if old is None or old.manifest is None else old.manifest
    tables = [RunTable.of_metas([]) if old is None else old.table]
    next_id = first_id = 1 + int(tables[0].rows["run_id"].max()) if len(tables[0]) else 0
    sources, skipped, lost = list(before.sources), list(before.skipped), Counter[str]()
    normalised = 0
    with storage_errors(target, "writing it"), Draft(target) as draft:
        if shard_rows is not None:
            (draft.path / SHARDS).mkdir()
        with contextlib.closing(
            ShardWriter(draft.path, name, DATASET_ROW_DTYPE, HEADER_BYTES, shard_rows)
        ) as file:
            if old is not None:
                _copy_rows(old, file, link=shard_rows is not None)
            first_row = file.rows
            for path, kind, groups in parts:
                counts = next_id, file.rows, len(skipped), normalised
                for group in groups:
                    skipped += [one for one in group if isinstance(one, SkippedRun)]
                    laid_out = [one for one in group if isinstance(one, LaidOut)]
                    tables.append(
                        RunTable.joined([one.table for one in laid_out]).renumbered(next_id, file.rows)
                    )
                    for one in laid_out:
                        ids = np.arange(next_id, next_id + len(one.table))
                        next_id += len(ids)
                        if next_id - 1 > RUN_ID_MAX:
                            raise FieldError(f"a run has id {next_id - 1}; expected at most {RUN_ID_MAX}")
                        one.rows["run_id"] = np.repeat(ids, one.table.rows["steps"])
                        file.write(one.rows)
                        lost.update(one.lost)
                        normalised += one.normalised
                now = next_id, file.rows, len(skipped), normalised
                sources.append(SourceCount(path, kind, *(b - a for a, b in zip(counts, now, strict=True))))
            files = file.finish()
        if old is None and next_id == 0:
            refuse_empty(skipped, target)
        if shard_rows is not None:
            fsync_dir(draft.path / SHARDS)
        table = RunTable.joined(tables)
        write_runs_db(draft.path / METADATA_DB, table)
        now_text = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = DatasetManifest(
            version=FORMAT_VERSION,
            num_steps=file.rows,
            num_runs=len(table),
            created=before.created or now_text,
            updated=None if old is None or old.manifest is None else now_text,
            steps_crc32c=files[STEPS_NPY].crc32c if STEPS_NPY in files else None,
            files={**files, METADATA_DB: flush_entry(draft.path / METADATA_DB)},
            sources=sources,
            skipped=[_public(one) for one in skipped],
            release=__version__,
        )
        write_file(draft.path / MANIFEST, pretty_json(manifest))
        draft.publish(exchange=old is not None)
    left_out = tuple(skipped[len(before.skipped) :])
    return Built(str(target), next_id - first_id, file.rows - first_row, left_out, dict(lost), normalised)


def _public(one: SkippedRun) -> SkippedRun:
    return msgspec.structs.replace(one, run=file_names(one.run), message=file_names(one.message))


def _copy_rows(old: OpenTable, file: ShardWriter, *, link: bool) -> None:
    listed = old.manifest.files if old.manifest else {}
    for path in old.rows.paths:
        entry = listed.get(f"{SHARDS}/{path.name}" if link else path.name)
        with open_regular(path) as fd:
            header = read_header(fd, path, [DATASET_ROW_DTYPE])
            begin, end = header.data_offset, header.end_offset
            if link:
                file.link(path, header.rows, entry or FileEntry(end, crc32c_file(fd, end, path)))
                continue
            head = crc32c_file(fd, begin, path)
            rows = crc32c_file(fd, end - begin, path, offset=begin, on_chunk=file.write)
        found = crc32c_combine(head, rows, end - begin)
        if entry is not None and entry.crc32c != found:
            text = f"has CRC-32C {found:08x}. The manifest says {entry.crc32c:08x}. Nothing was appended"
            raise ChecksumError(text, path=path, hint="restore the data set from a copy, or build it again")
