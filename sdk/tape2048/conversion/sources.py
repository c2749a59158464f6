"""Sources of runs: run files, directories of them, packs, data sets, sessions, JSON lines and Parquet.

:func:`open_source` detects the kind of a path by its content; :meth:`Source.runs` decodes its runs in a
stable order on several threads. A run that cannot be read comes with its error and does not affect the
others.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tape2048.base.threads import map_ordered
from tape2048.datasets.packdat import DataPack
from tape2048.datasets.packdat_layout import MAGIC as PACKDAT_MAGIC
from tape2048.errors import (
    MagicError,
    MaintenanceError,
    MissingPathError,
    NotASessionError,
    ReplayError,
    TapeError,
)
from tape2048.formats.dataset_layout import METADATA_DB
from tape2048.formats.metadata import read_facts
from tape2048.formats.npy import read_header
from tape2048.formats.session import STEP_DTYPES
from tape2048.io.reading import open_regular, reading
from tape2048.packs.layout import MAGIC as PACK_MAGIC
from tape2048.runs import jsonl, parquet
from tape2048.runs.files import find_run_files, first_bytes, read_run_file
from tape2048.tape.layout import TAPE_NPY

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tape2048.conversion.session_runs import Play
    from tape2048.datasets.dataset import Dataset
    from tape2048.runs.run import Run

    #: Makes the :data:`Play` of a session's player, from the session's path and its facts; raises ReplayError
    #: if that player cannot be had here.
    Replayer = Callable[[Path, Mapping[str, Any]], Play]

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
        lost: what the run lacks since the source was opened with ``lossy``.
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
    lost: tuple[str, ...] = ()
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

        def read(found: SourceRun) -> tuple[Run, bool, int, tuple[str, ...], int | None]:
            if found.run is None:
                raise found.failure
            return change(found.run), found.ending_known, found.values_lost, found.lost, found.id

        def decode(job: Any) -> list[SourceRun]:
            return _attempts(((found.name, found) for found in self._decode(job)), read)

        return dataclasses.replace(self, _decode=decode)

    def map(self, work: Callable[[list[SourceRun]], Any], workers: int | None = None) -> Iterator[Any]:
        """Apply ``work`` to groups of runs on the threads that decode; iterate over the results in order."""
        decode = self._decode
        yield from map_ordered(lambda job: work(decode(job)), self._jobs, workers)


def open_source(
    path: str | os.PathLike[str],
    replayer: Replayer | None = None,
    *,
    lossy: bool = False,
    final_boards: bool = True,
) -> Source:
    """Detect the kind of a path and open it.

    Args:
        path: a run file, a directory with run files below it, a pack, a pack.dat, a data set, a session,
            a directory of sessions, or JSONL or Parquet with one run a row.
        replayer: makes the player of a session, whose games are then played again for what the session does
            not hold and the rules do not tell; None, or where it raises ReplayError: nothing is played.
        lossy: whether games without recorded moves that cannot be played again end at their last board.
        final_boards: whether a session's games are played again for their final boards alone.

    Raises:
        MaintenanceError: a session without moves cannot be replayed, and ``lossy`` is False.
        ReplayError: a session that cannot be played again keeps every Nth step only. No row was read.
        MissingPathError: nothing stands at the path.
        MagicError: it is of no known kind.
        NotASessionError: a directory without any run file.
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
        return _sessions(where, kind, replayer, lossy=lossy, final_boards=final_boards)
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
        f"has no known magic and {path.suffix or 'no'} extension; not a known kind of file with runs",
        path=path,
        hint="a2run2 files have no magic: name them *.a2run2, and JSON lines *.jsonl",
    )


def _directory_kind(path: Path) -> str:
    from tape2048.session.directory import is_dataset, is_session, list_names
    from tape2048.session.session import sessions

    names = list_names(path)
    if is_dataset(path, names):
        return "dataset"
    if is_session(names):
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
            found.append(SourceRun(name, None, error.detach()))
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
    return _table(path, kind, DataPack.load(path))


def _dataset(path: Path, kind: str) -> Source:
    from tape2048.datasets.dataset import Dataset

    return _table(path, kind, Dataset.open(path, load="mmap"))


def _table(path: Path, kind: str, opened: DataPack | Dataset) -> Source:
    runs = opened.runs

    def read(i: int) -> tuple[Run, bool, int]:
        run, (certain, lost) = opened.run_and_losses(i)
        return run, certain, lost

    return _numbered(path, kind, len(runs), lambda i: f"{path}: run {runs['id'][i]}", read)


def _sessions(path: Path, kind: str, replayer: Replayer | None, *, lossy: bool, final_boards: bool) -> Source:
    from tape2048.conversion.session_runs import session_run
    from tape2048.session.session import Session, sessions

    paths = [path] if kind == "session" else sessions(path)
    if not paths:
        raise NotASessionError("no sessions", path=path)
    plays = [_play_of(one, replayer, lossy=lossy) for one in paths]  # before any row is read
    opened = [Session.open(one) for one in paths]
    jobs = [(number, part) for number, one in enumerate(opened) for part in _slices(len(one.runs))]

    def decode(job: tuple[int, range]) -> list[SourceRun]:
        number, numbers = job
        session, play = opened[number], plays[number]

        def read(i: int) -> tuple[Run, bool, int, tuple[str, ...], int]:
            run, certain, lost = session_run(session, i, play, lossy=lossy, final_board=final_boards)
            return run, certain, 0, lost, int(session.runs["id"][i])

        return _attempts(((f"{session.path}: run {session.runs['id'][i]}", i) for i in numbers), read)

    return Source(path, kind, sum(len(one.runs) for one in opened), jobs, decode)


def _play_of(path: Path, replayer: Replayer | None, *, lossy: bool) -> Play | None:
    """Return the function that plays a session's games again; None without a replayable player, and on tape.

    Raises:
        MaintenanceError: the player is needed for moves, and ``lossy`` is not set.
        ReplayError: the player is needed for boards.
    """
    from tape2048.session.directory import check_directory, find_steps

    directory = check_directory(path)
    steps = find_steps(directory)[0]
    if steps.name == TAPE_NPY:
        return None  # which holds every move and the final boards
    facts = read_facts(directory / METADATA_DB)
    why = "no player was given"
    if replayer is not None:
        try:
            return replayer(directory, facts)
        except ReplayError as error:
            why = error.message
    rate = facts.get("sample_rate", 1)
    if isinstance(rate, int) and rate > 1:
        raise ReplayError(
            f"only every {rate}th step was recorded (sample_rate), and its games cannot be replayed: {why}",
            path=directory,
            hint="export and Session read its rows; for whole games, record with sample_rate = 1",
        )
    with open_regular(steps) as fd:
        has_moves = "action" in (read_header(fd, steps, STEP_DTYPES).dtype.names or ())
    if not has_moves and not lossy:
        raise MaintenanceError(
            f"its moves were not recorded, and its games cannot be replayed: {why}",
            path=directory,
            hint="--lossy ends each game at its last recorded board, without its last move; "
            "recordings with --record-action know every move",
        )
    return None


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
            return [SourceRun(name, None, error.detach())]
        items = ((f"{name}, row {number}", row) for number, row in enumerate(rows))
        return _attempts(items, lambda row: (parquet.parse_row(row, path),))

    groups = parquet.groups_of(path)
    return Source(path, kind, len(groups), groups, decode)
