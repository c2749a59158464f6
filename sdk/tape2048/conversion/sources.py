"""Sources of runs: run files, directories of them, packs, data sets, sessions, JSON lines and Parquet.

:func:`open_source` detects the kind of a path by its content; :meth:`Source.runs` decodes its runs in a
stable order on several threads. A run that cannot be read comes with its error and does not affect the
others.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.datasets.packdat import DataPack
from tape2048.datasets.packdat_layout import MAGIC as PACKDAT_MAGIC
from tape2048.errors import MagicError, MissingPathError, NoRunsError, TapeError
from tape2048.formats.dataset_layout import METADATA_DB, STEPS_NPY
from tape2048.io.reading import reading
from tape2048.packs.layout import MAGIC as PACK_MAGIC
from tape2048.runs import jsonl, parquet
from tape2048.runs.files import find_run_files, first_bytes, read_run_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from tape2048.runs.run import Run
    from tape2048.session.session import Session

    Endings = Callable[[Session], NDArray[np.uint64] | None]

T = TypeVar("T")

#: Runs that one thread decodes together.
JOB_RUNS = 16

#: Kinds of sources.
KINDS = ("run", "runs", "pack", "packdat", "dataset", "session", "sessions", "jsonl", "parquet")

_PARQUET_MAGIC = b"PAR1"


class SourceRun(NamedTuple):
    """One run of a source, or its error.

    Attributes:
        name: of the run, for people: a file's path, an entry's number, a run's id.
        run: the run; None where it could not be read.
        error: the defect; None where ``run`` is there.
        ending_known: whether the final board is the source's own, not a candidate.
        values_lost: steps whose chosen move's value the source does not hold.
        id: the run's id in its session; None elsewhere.

    Example:
        >>> from tape2048.conversion import open_source
        >>> [found.error for found in open_source("runs/golden.a2run").runs()]
        [None]
    """

    name: str
    run: Run | None
    error: TapeError | None = None
    ending_known: bool = True
    values_lost: int = 0
    id: int | None = None

    @property
    def failure(self) -> TapeError:
        """The error, for a run that could not be read."""
        assert self.error is not None
        return self.error


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Source:
    """A source of runs.

    Attributes:
        path: of the source.
        kind: one of :data:`KINDS`.
        count: number of runs, damaged ones included; for JSON lines and Parquet, of the pieces to read.
    """

    path: Path
    kind: str
    count: int
    _jobs: Iterable[Any]
    _decode: Callable[[Any], list[SourceRun]]

    def __repr__(self) -> str:
        what = "pieces" if self.kind in {"jsonl", "parquet"} else "runs"
        return f"<Source {self.path}: {self.kind}, {self.count:,} {what}>"

    def runs(self, workers: int | None = None) -> Iterator[SourceRun]:
        """Decode every run on several threads; iterate over them in order.

        Args:
            workers: threads; None: one for each core.
        """
        for found in self.map(lambda runs: runs, workers):
            yield from found

    def changed(self, change: Callable[[Run], Run]) -> Source:
        """Return a source that changes every run, on the threads that decode."""

        def read(found: SourceRun) -> tuple[Run, bool, int, int | None]:
            if found.run is None:
                raise found.failure
            return change(found.run), found.ending_known, found.values_lost, found.id

        def decode(job: Any) -> list[SourceRun]:
            return _attempts(((found.name, found) for found in self._decode(job)), read)

        return dataclasses.replace(self, _decode=decode)

    def map(self, work: Callable[[list[SourceRun]], Any], workers: int | None = None) -> Iterator[Any]:
        """Apply ``work`` to groups of runs on the threads that decode; iterate over the results in order."""
        decode = self._decode
        yield from map_ordered(lambda job: work(decode(job)), self._jobs, workers)


def open_source(path: str | os.PathLike[str], endings: Endings | None = None) -> Source:
    """Detect the kind of a path and open it.

    Args:
        path: a run file, a directory with run files below it, a pack, a pack.dat, a data set, a session,
            a directory of sessions, or JSONL or Parquet with one run a row.
        endings: function from a session to its runs' final boards, ``u64[R]`` (by replay), or to None where
            it cannot; None: final boards follow from the rules alone.

    Raises:
        MissingPathError: nothing stands at the path.
        MagicError: it is of no known kind.
        NoRunsError: a directory without any run file.
        FormatError: the source is damaged as a whole.
        StorageError: it cannot be read.

    Example:
        >>> from tape2048.conversion import open_source
        >>> open_source("runs")
        <Source runs: runs, 2 runs>
    """
    where = Path(path)
    kind = kind_of(where)
    if kind in {"session", "sessions"}:
        return _sessions(where, kind, endings)
    openers = {"pack": _pack, "packdat": _packdat, "dataset": _dataset, "jsonl": _jsonl, "parquet": _parquet}
    return openers.get(kind, _run_files)(where, kind)


def kind_of(path: Path) -> str:
    """Return the kind of a path, one of :data:`KINDS`; errors as :func:`open_source`."""
    with reading(path):
        is_directory = path.is_dir()
        if not is_directory and not path.exists():
            raise MissingPathError("nothing stands at this path", path=path)
    if is_directory:
        return _directory_kind(path)
    head = first_bytes(path, 8)
    for magic, kind in ((PACK_MAGIC, "pack"), (PACKDAT_MAGIC, "packdat"), (_PARQUET_MAGIC, "parquet")):
        if head.startswith(magic):
            return kind
    if head.startswith(b"A2T1") or path.suffix == ".a2run2":
        return "run"
    if path.suffix in {".jsonl", ".ndjson"}:
        return "jsonl"
    raise MagicError(
        f"begins with {head!r} and has {path.suffix or 'no'} extension; not a known kind of file with runs",
        path=path,
        hint="a2run2 files have no magic: name them *.a2run2, and JSON lines *.jsonl",
    )


def _directory_kind(path: Path) -> str:
    from tape2048.session.directory import is_dataset, list_names
    from tape2048.session.session import sessions

    names = list_names(path)
    if is_dataset(path, names):
        return "dataset"
    if any(name in {STEPS_NPY, METADATA_DB} or name.startswith("steps-") for name in names):
        return "session"
    return "sessions" if sessions(path) else "runs"


def _attempts(
    items: Iterable[tuple[str, T]], read: Callable[[T], tuple[Run, *tuple[Any, ...]]]
) -> list[SourceRun]:
    """Make a :class:`SourceRun` of each item: its name, and the run and facts that ``read`` returns."""
    found = []
    for name, item in items:
        try:
            run, *facts = read(item)
            found.append(SourceRun(name, run, None, *facts))
        except TapeError as error:
            found.append(SourceRun(name, None, error))
    return found


def _slices(count: int) -> list[range]:
    return [range(first, min(first + JOB_RUNS, count)) for first in range(0, count, JOB_RUNS)]


def _numbered(
    path: Path,
    kind: str,
    count: int,
    name: Callable[[int], str],
    read: Callable[[int], tuple[Run, *tuple[Any, ...]]],
) -> Source:
    """Open runs with numbers; ``read`` returns the run, ``ending_known`` and ``values_lost``."""

    def decode(numbers: range) -> list[SourceRun]:
        return _attempts(((name(i), i) for i in numbers), read)

    return Source(path, kind, count, _slices(count), decode)


def _run_files(path: Path, kind: str) -> Source:
    files = [path] if kind == "run" else find_run_files(path)
    return _numbered(path, kind, len(files), lambda i: str(files[i]), lambda i: (read_run_file(files[i]),))


def _pack(path: Path, kind: str) -> Source:
    from tape2048.packs.reader import PackReader

    reader = PackReader.open(path)
    return _numbered(path, kind, len(reader), lambda i: f"{path}: entry {i}", lambda i: (reader.decode(i),))


def _packdat(path: Path, kind: str) -> Source:
    from tape2048.game.moves import last_boards

    pack = DataPack.load(path)
    runs = pack.runs

    def read(i: int) -> tuple[Run, bool]:
        final, certain = 0, not runs["steps"][i]
        if runs["steps"][i]:
            last = pack.records(np.array([pack.rows_of(i).stop - 1]))
            finals, sure = last_boards(last["board"], last["move_dir"])
            final, certain = int(finals[0]), bool(sure[0])
        return pack.run(i, final), certain

    return _numbered(path, kind, len(runs), lambda i: f"{path}: run {runs['id'][i]}", read)


def _dataset(path: Path, kind: str) -> Source:
    from tape2048.datasets.dataset import Dataset

    dataset = Dataset.open(path, load="mmap")
    runs = dataset.runs

    def read(i: int) -> tuple[Run, bool, int]:
        run, (certain, lost) = dataset.run_and_losses(i)
        return run, certain, lost

    return _numbered(path, kind, len(runs), lambda i: f"{path}: run {runs['id'][i]}", read)


def _sessions(path: Path, kind: str, endings: Endings | None) -> Source:
    from tape2048.conversion.session_runs import session_run
    from tape2048.session.session import Session, sessions

    opened = [Session.open(one) for one in ([path] if kind == "session" else sessions(path))]
    if not opened:
        raise NoRunsError("no sessions", path=path)
    jobs = [(number, part) for number, one in enumerate(opened) for part in _slices(len(one.runs))]
    finals: dict[int, Any] = {}
    lock = threading.Lock()

    def decode(job: tuple[int, range]) -> list[SourceRun]:
        number, numbers = job
        session = opened[number]
        with lock:
            if endings is not None and number not in finals:
                finals[number] = endings(session)
        known = finals.get(number)

        def read(i: int) -> tuple[Run, bool, int, int]:
            run, certain = session_run(session, i, None if known is None else int(known[i]))
            return run, certain, 0, int(session.runs["id"][i])

        return _attempts(((f"{session.path}: run {session.runs['id'][i]}", i) for i in numbers), read)

    return Source(path, kind, sum(len(one.runs) for one in opened), jobs, decode)


def _jsonl(path: Path, kind: str) -> Source:
    def decode(piece: jsonl.Piece) -> list[SourceRun]:
        items = ((f"{path}: line {line[0]}", line) for line in jsonl.read_piece(path, piece))
        return _attempts(items, lambda line: (jsonl.parse_line(line[1], path, line[0]),))

    pieces = jsonl.pieces_of(path)
    return Source(path, kind, len(pieces), pieces, decode)


def _parquet(path: Path, kind: str) -> Source:
    def decode(group: int) -> list[SourceRun]:
        name = f"{path}: row group {group}"
        try:
            rows = parquet.read_group(path, group)
        except TapeError as error:
            return [SourceRun(name, None, error)]
        items = ((f"{name}, row {number}", row) for number, row in enumerate(rows))
        return _attempts(items, lambda row: (parquet.parse_row(row, path),))

    groups = parquet.groups_of(path)
    return Source(path, kind, len(groups), groups, decode)
