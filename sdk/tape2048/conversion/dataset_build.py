"""Building of data sets: build, append, write a view. See :mod:`tape2048.datasets.dataset` on atomicity.

Several threads decode runs and lay them out as rows, which are written in the order of their sources: the
same sources give the same bytes on any number of threads. Memory is bounded by a few runs for each thread.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import pretty_json
from tape2048.conversion.sources import RunSource, open_sources
from tape2048.datasets.dataset import refuse_empty
from tape2048.errors import (
    ChecksumError,
    EmptyCorpusError,
    FieldError,
    MissingPathError,
    NameTakenError,
    NotASessionError,
    TapeError,
)
from tape2048.files.durable import Draft, fsync_dir, fsync_path, hold_lock, write_file
from tape2048.files.npy import read_header
from tape2048.files.opening import storage_errors
from tape2048.files.reading import crc32c_combine, crc32c_file, open_regular
from tape2048.formats.dataset_layout import (
    DATASET_ROW_DTYPE,
    FORMAT_VERSION,
    HEADER_BYTES,
    ROW_BYTES,
    RUN_ID_MAX,
    RUN_STEPS_MAX,
    SHARDS,
    DatasetManifest,
    SkippedRun,
    SourceCount,
)
from tape2048.players import split_seed
from tape2048.runs.run import check_meta
from tape2048.session.dataset import open_dataset
from tape2048.session.dataset_runs import RunTable, write_runs_db
from tape2048.session.layout import MANIFEST, METADATA_DB, STEPS_NPY, FileEntry
from tape2048.session.metadata_writer import flush_entry
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.conversion.session_runs import Replayer
    from tape2048.conversion.sources import SourceRun
    from tape2048.datasets.dataset import Dataset
    from tape2048.runs.run import RunMeta
    from tape2048.session.dataset import OpenDataset

    OneSource = str | os.PathLike[str] | RunSource
    Sources = OneSource | Iterable[OneSource]

_VIEW_ROWS = 1 << 18
_U63_MAX = 2**63 - 1


class Built(msgspec.Struct, frozen=True):
    """Result of a build or an append.

    Attributes:
        path: the data set.
        runs: number of added runs.
        steps: number of added rows.
        skipped: runs that were left out, and the reason of each.
        lost: for each kind of loss, the number of runs.
        normalised: number of added runs with branch values outside [0, 1], which were normalised.

    Example:
        >>> from tape2048.conversion import build_dataset
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


def build_dataset(
    output: str | os.PathLike[str],
    sources: Sources,
    *,
    workers: int | None = None,
    shard_rows: int | None = None,
    replayer: Replayer | None = None,
    lossy: bool = False,
    progress: Callable[[int, int, int], object] | None = None,
) -> Built:
    """Build a data set of all runs of some sources.

    A game that several sessions or data sets hold is added once, and a warning names them; games of run files
    and packs are not compared. A run that cannot be read, breaks the rules
    (:func:`tape2048.runs.check_rules`), or has more than 65,536 steps is left out. The result and the
    manifest list it and the reason. Branch values in [0, 1] are kept, except that the value of the chosen
    move becomes 1. The values of a step with a value outside [0, 1] are normalised, and the result counts
    such runs.

    Args:
        output: the directory to make. It must not exist.
        sources: one source or several in the order of their rows; paths for
            :func:`~tape2048.conversion.open_source`, or its results.
        workers: number of decoding threads. None: the number of cores.
        shard_rows: rows of a file; None: one ``steps.npy``. Appending to shards copies no rows.
        replayer: as for :func:`~tape2048.conversion.open_source`.
        lossy: whether games whose moves are unknown may end early.
        progress: function that is called with the runs read, all runs, and the steps written.

    Raises:
        NameTakenError: ``output`` exists.
        EmptyCorpusError: every run would be left out. Nothing was written.
        MaintenanceError: see :func:`~tape2048.conversion.open_source`.
        FormatError: a source is damaged as a whole.
        StorageError: a source cannot be read, or the data set not written.
        ValueError: ``workers`` or ``shard_rows`` is below 1.

    Example:
        >>> from tape2048.conversion import build_dataset
        >>> build_dataset("sharded", ["runs/golden.a2run"], shard_rows=1000).runs
        1
    """
    target = _new_target(output)
    opened = _opened(sources, replayer, lossy=lossy)
    with new_dataset(target, shard_rows) as writer:
        _add_all(writer, opened, workers, progress)
        if not writer.runs:
            refuse_empty(writer.skipped, target)
    return writer.built(target)


def append_dataset(
    path: str | os.PathLike[str],
    sources: Sources,
    *,
    workers: int | None = None,
    replayer: Replayer | None = None,
    lossy: bool = False,
    progress: Callable[[int, int, int], object] | None = None,
) -> Built:
    """Add all runs of some sources to a data set; their ids continue after the highest id.

    Games that the data set already holds are added again, and a warning names their sessions and data sets.
    A new directory is written beside the old one and exchanged with it in one step: readers see the old data
    set or the new one, also after a crash. Rows in one ``steps.npy`` are copied (and their checksum
    compared); shards are linked.

    Args:
        path: the data set.
        sources: as for :func:`build_dataset`.
        workers: number of decoding threads. None: the number of cores.
        replayer: as for :func:`build_dataset`.
        lossy: as for :func:`build_dataset`.
        progress: function that is called with the runs read, all runs, and the steps written.

    Raises:
        MissingPathError: ``path`` does not exist.
        NotASessionError: ``path`` is not a data set.
        ChecksumError: its rows were changed. Nothing is appended.
        MaintenanceError: see :func:`~tape2048.conversion.open_source`.
        StorageError: another process appends to the data set, the file system cannot exchange two names, or
            the operating system could not write.
        FormatError: the data set or a source is damaged.

    Example:
        >>> from tape2048.conversion import append_dataset, build_dataset
        >>> _ = build_dataset("growing", "runs")
        >>> append_dataset("growing", "runs").runs
        2
    """
    target = Path(os.path.abspath(path))
    with ExitStack() as stack:
        with storage_errors(target, "locking it"):
            try:
                hold_lock(target, stack)
            except FileNotFoundError:
                raise MissingPathError("no such file or directory", path=target) from None
            except NotADirectoryError:
                raise NotASessionError("not a directory", path=target) from None
        old = open_dataset(target, "mmap")
        opened = _opened(sources, replayer, lossy=lossy, target=Session.of_dataset(target, old))
        in_shards = old.rows.paths[0].parent.name == SHARDS
        shard_rows = max(1, int(old.rows.counts[0])) if in_shards else None
        writer = stack.enter_context(new_dataset(target, shard_rows, old))
        _add_all(writer, opened, workers, progress)
    return writer.built(target)


def write_view(
    output: str | os.PathLike[str],
    view: Dataset,
    *,
    shard_rows: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Built:
    """Write the runs of a view (or of several data sets opened as one) as a new data set.

    Rows do not change, except that run ids count from 0.

    Args:
        output: the directory to make. It must not exist.
        view: a view or a data set.
        shard_rows: as for :func:`build_dataset`.
        progress: function that is called with the rows written and all rows.

    Raises:
        NameTakenError: ``output`` exists.
        EmptyCorpusError: the view has no run. Nothing was written.
        ValueError: the view has parts of games.
        StorageError: the operating system could not write it.

    Example:
        >>> from tape2048.conversion import build_dataset, write_view
        >>> from tape2048.datasets import Dataset
        >>> _ = build_dataset("whole", "runs")
        >>> write_view("part", Dataset("whole").filter_by_length(min_steps=1)).runs
        2
    """
    target = _new_target(output)
    view.refuse_parts()
    if not len(view.runs):
        raise EmptyCorpusError("the view has 0 runs; expected at least 1. Nothing was written", path=target)
    ends = np.cumsum(view.runs["steps"], dtype=np.int64)
    with new_dataset(target, shard_rows) as writer:
        for first in range(0, len(view), _VIEW_ROWS):
            rows = view.get_batch(np.arange(first, min(first + _VIEW_ROWS, len(view))))
            rows["run_id"] = np.searchsorted(ends, np.arange(first, first + len(rows)), side="right")
            writer.write(rows.view(np.uint8))
            if progress is not None:
                progress(first + len(rows), len(view))
        writer.tables, writer.runs = [view.run_table], len(view.runs)
        writer.sources = [SourceCount(str(view.paths[0]), "dataset", len(view.runs), len(view), 0)]
    return writer.built(target)


def _new_target(output: str | os.PathLike[str]) -> Path:
    target = Path(os.path.abspath(output))
    if os.path.lexists(target):
        hint = "append to it, or choose another directory"
        raise NameTakenError("the path exists. Nothing was replaced", path=target, hint=hint)
    return target


def _add_all(
    writer: DatasetWriter,
    sources: Sequence[RunSource],
    workers: int | None,
    progress: Callable[[int, int, int], object] | None,
) -> None:
    total, done, before = sum(source.count for source in sources), 0, writer.rows

    def groups(source: RunSource) -> Iterator[list[LaidOut | SkippedRun]]:
        nonlocal done
        for group in source.map(lambda runs: list(map(lay_out, runs)), workers):
            yield group
            done += len(group)
            if progress is not None:
                progress(done, max(done, total), writer.rows - before)

    for source in sources:
        source.warn_of_columns()
        writer.add_source(source, groups(source))


@contextmanager
def new_dataset(
    target: Path, shard_rows: int | None, old: OpenDataset | None = None
) -> Iterator[DatasetWriter]:
    """Yield the writer of a draft; publish it, in place of ``old``, when the block ends without an error."""
    with (
        storage_errors(target, "writing it"),
        Draft(target) as draft,
        closing(DatasetWriter(draft.path, shard_rows, old)) as writer,
    ):
        writer.copy_old()
        yield writer
        writer.finish()
        draft.publish(exchange=old is not None)


def _opened(
    sources: Sources, replayer: Replayer | None, *, lossy: bool, target: Session | None = None
) -> list[RunSource]:
    # A str is also an iterable of str: the first of "/data" would be the root directory.
    each = [sources] if isinstance(sources, str | os.PathLike | RunSource) else [*sources]
    paths = [source for source in each if not isinstance(source, RunSource)]
    opened = iter(open_sources(paths, replayer, target=target, lossy=lossy))
    return [source if isinstance(source, RunSource) else next(opened) for source in each]


class LaidOut(NamedTuple):
    """A run as rows of a data set: the rows' bytes, and the run's row of the run table."""

    records: NDArray[np.uint8]
    meta: RunMeta
    final_board: int
    has_final: bool
    seed: int
    has_seed: bool
    lost: tuple[str, ...]
    normalised: bool


def lay_out(found: SourceRun) -> LaidOut | SkippedRun:
    """Lay a run out as rows, on any thread; describe a run that cannot be read, or that no data set holds."""
    from tape2048.datasets.records import dataset_records

    try:
        run = found.checked()
        check_meta(run.meta, None, steps=RUN_STEPS_MAX, max_score=_U63_MAX, start_unix_s=_U63_MAX)
        records = np.empty(ROW_BYTES * len(run), np.uint8)
        normalised = dataset_records(run, 0, records) > 0
    except TapeError as error:
        return SkippedRun.of(found.name, error)
    engine, seed = split_seed(run.meta.engine)
    meta = msgspec.structs.replace(run.meta, engine=engine)
    end = run.final_board, found.ending_known
    return LaidOut(records, meta, *end, seed or 0, seed is not None, found.lost, normalised)


class DatasetWriter:
    """Writer of a data set in an unpublished directory: first the rows of ``old``, then further runs.

    ``shard_rows`` is the number of rows of a full shard; None: one ``steps.npy``. Methods raise OSError.
    """

    def __init__(self, directory: Path, shard_rows: int | None, old: OpenDataset | None = None) -> None:
        if shard_rows is not None and shard_rows < 1:
            raise ValueError(f"shard_rows={shard_rows}; expected at least 1")
        self._directory, self._shard_rows, self._old = directory, shard_rows, old
        self._first_id = 0
        if old is not None and len(old.table):
            self._first_id = int(old.table.rows["id"].max()) + 1
        self._first_row = 0
        self._file: NpyWriter | None = None
        self.rows = self.runs = self.normalised = 0
        self.files: dict[str, FileEntry] = {}
        self.tables = [RunTable.of_metas([])]
        self.sources: list[SourceCount] = []
        self.skipped: list[SkippedRun] = []
        self.lost: Counter[str] = Counter()
        if shard_rows is not None:
            (directory / SHARDS).mkdir()

    def copy_old(self) -> None:
        """Start with the old rows: link shards, copy one ``steps.npy`` and compare its checksum."""
        if self._old is None:
            return
        listed = self._old.manifest.files if self._old.manifest is not None else {}
        for path in self._old.rows.paths:
            name = path.name if self._shard_rows is None else f"{SHARDS}/{path.name}"
            entry = listed.get(name)
            with open_regular(path) as fd:
                header = read_header(fd, path, [DATASET_ROW_DTYPE])
                begin, end = header.data_offset, header.end_offset
                if self._shard_rows is not None:
                    self._link(path, header.rows, entry or FileEntry(end, crc32c_file(fd, end, path)))
                    continue
                head = crc32c_file(fd, begin, path)
                rows = crc32c_file(fd, end - begin, path, offset=begin, on_chunk=self.write)
            found = crc32c_combine(head, rows, end - begin)
            if entry is not None and entry.crc32c != found:
                raise ChecksumError(
                    f"has CRC-32C {found:08x}. The manifest says {entry.crc32c:08x}. Nothing was appended",
                    path=path,
                    hint="restore the data set from a copy, or build it again",
                )
        self._first_row = self.rows

    def _link(self, shard: Path, rows: int, entry: FileEntry) -> None:
        """Add a finished shard of another directory, by a link if the file system can, else by a copy."""
        name = self._next_name()
        target = self._directory / name
        try:
            os.link(shard, target)
        except OSError:
            shutil.copyfile(shard, target)
            fsync_path(target)
        self.files[name] = entry
        self.rows += rows

    def add_source(
        self,
        source: RunSource,
        groups: Iterable[Sequence[LaidOut | SkippedRun]],
        skipped: list[SkippedRun] | None = None,
    ) -> None:
        """Write the rows of a source, in order; ``skipped`` is the list to which its reader adds runs."""
        runs, rows, left_out, normalised = self.runs, self.rows, len(self.skipped), self.normalised
        for group in groups:
            self._add([one for one in group if isinstance(one, LaidOut)])
            self.skipped += [one for one in group if isinstance(one, SkippedRun)]
        self.skipped += skipped or ()
        counts = self.runs - runs, self.rows - rows, len(self.skipped) - left_out
        self.sources.append(SourceCount(str(source.path), source.kind, *counts, self.normalised - normalised))

    def _add(self, group: list[LaidOut]) -> None:
        for number, one in enumerate(group, start=self._first_id + self.runs):
            if number > RUN_ID_MAX:
                raise FieldError(
                    f"the next run has id {number}; expected at most {RUN_ID_MAX}, as run_id holds"
                )
            one.records.view(DATASET_ROW_DTYPE)["run_id"] = number
            self.write(one.records)
            self.lost.update(one.lost)
            self.normalised += one.normalised
        names = ("final_board", "has_final", "seed", "has_seed")
        columns = {name: [getattr(one, name) for one in group] for name in names}
        self.tables.append(RunTable.of_metas([one.meta for one in group], **columns))
        self.runs += len(group)

    def write(self, records: NDArray[np.uint8]) -> None:
        """Append rows, ``u8[32 * n]``."""
        while len(records):
            file = self._begin() if self._file is None else self._file
            room = len(records)
            if self._shard_rows is not None:
                room = (self._shard_rows - file.rows) * ROW_BYTES
            piece = records[:room]
            file.append(piece)
            self.rows += len(piece) // ROW_BYTES
            records = records[room:]
            if file.rows == self._shard_rows:
                self._end(file)

    def finish(self) -> None:
        """Write the files beside the rows, for old and new runs, and flush all files."""
        if not self.files and self._file is None:
            self._begin()  # a data set without rows has a file, too
        if self._file is not None:
            self._end(self._file)
        if self._shard_rows is not None:
            fsync_dir(self._directory / SHARDS)
        table = RunTable.joined(self.tables).renumbered(self._first_id, self._first_row)
        before = None
        if self._old is not None:
            table, before = RunTable.joined([self._old.table, table]), self._old.manifest
        database = self._directory / METADATA_DB
        write_runs_db(database, table)
        rows = self.files.get(STEPS_NPY)
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = DatasetManifest(
            version=FORMAT_VERSION,
            num_steps=self.rows,
            num_runs=len(table),
            created=(before and before.created) or now,
            updated=None if before is None else now,
            steps_crc32c=None if rows is None else rows.crc32c,
            files={**self.files, METADATA_DB: flush_entry(database)},
            sources=[*(before.sources if before else ()), *self.sources],
            skipped=[*(before.skipped if before else ()), *self.skipped],
            release=__version__,
        )
        write_file(self._directory / MANIFEST, pretty_json(manifest))

    def built(self, path: Path) -> Built:
        rows = self.rows - self._first_row
        return Built(str(path), self.runs, rows, tuple(self.skipped), dict(self.lost), self.normalised)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next_name(self) -> str:
        return STEPS_NPY if self._shard_rows is None else f"{SHARDS}/steps_{len(self.files):05d}.npy"

    def _begin(self) -> NpyWriter:
        self._file = NpyWriter(self._directory / self._next_name(), DATASET_ROW_DTYPE, HEADER_BYTES)
        return self._file

    def _end(self, file: NpyWriter) -> None:
        self.files[self._next_name()] = file.finish()
        self._file = None
