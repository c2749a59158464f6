"""Sources of runs: run files, directories of them, packs, data sets, sessions, JSON lines and Parquet.

:func:`open_source` detects the kind of a path by its content; :meth:`RunSource.runs` decodes its runs in a
stable order on several threads. A run that cannot be read comes with its error and does not affect the
others.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.base.threads import map_ordered
from tape2048.errors import (
    MagicError,
    MaintenanceError,
    MissingPathError,
    NotASessionError,
    ReplayError,
    TapeError,
)
from tape2048.formats.dataset_layout import METADATA_DB, SkippedRun
from tape2048.formats.metadata import read_facts
from tape2048.formats.session import TAPE_NPY
from tape2048.io.reading import reading
from tape2048.runs import jsonl, parquet
from tape2048.runs.files import JSONL_GZ, find_run_files, first_bytes, read_run_file
from tape2048.runs.run import Run, check_rules, until_win

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from tape2048.conversion.session_runs import Play, Replayer

    #: A run, then the other fields of :class:`SourceRun`.
    RunFacts = tuple[Run, *tuple[Any, ...]]
    Check = Callable[[Run], Run]


class RunFormat(NamedTuple):
    """A format that holds runs."""

    suffix: str  # of its files; "" for directories
    magic: bytes = b""
    values: bool = True  # whether it holds branch values
    final_board: bool = True


#: The formats that :func:`tape2048.conversion.convert` writes.
FORMATS = {
    "a2run": RunFormat(".a2run", b"A2T1", values=False),
    "a2run2": RunFormat(".a2run2"),
    "pack": RunFormat(".a2pack", b"A2PACK\0\0"),
    "packdat": RunFormat(".dat", b"2048", final_board=False),
    "dataset": RunFormat(""),
    "session": RunFormat("", values=False, final_board=False),
    "tape": RunFormat("", values=False),
    "jsonl": RunFormat(".jsonl", values=False),
    "parquet": RunFormat(".parquet", b"PAR1"),
}

#: Formats with one file for each run.
RUN_FILES = ("a2run", "a2run2")

#: Kinds of sources other than these formats: a run's file, a directory of them, a directory of sessions.
SESSIONS = ("session", "sessions")

#: Runs that one thread decodes together.
JOB_RUNS = 16


class SourceRun(NamedTuple):
    """One run of a source, or its error.

    Attributes:
        name: of the run, for people: a file's path, an entry's number, a run's id.
        run: the run; None if it could not be read.
        ending_known: whether the final board is the source's own, not a candidate.
        values_lost: steps whose chosen move's value the source does not hold.
        lost: what the run lacks since the source was opened with ``lossy``.
        id: the run's id in its session; None elsewhere.
        error: the defect; None with a run.

    Example:
        >>> from tape2048.conversion import open_source
        >>> [found.error for found in open_source("runs/golden.a2run").runs()]
        [None]
    """

    name: str
    run: Run | None
    ending_known: bool = True
    values_lost: int = 0
    lost: tuple[str, ...] = ()
    id: int | None = None
    error: TapeError | None = None

    @property
    def skipped(self) -> SkippedRun:
        """Name and error of a run that could not be read."""
        assert self.error is not None
        return SkippedRun.of(self.name, self.error)

    @classmethod
    def attempt(
        cls, name: str, read: Callable[[Any], RunFacts], item: Any, check: Check = check_rules
    ) -> SourceRun:
        """Return the run and facts that ``read`` returns, or the error of ``read`` or ``check``."""
        try:
            run, *facts = read(item)
            return cls(name, check(until_win(run)), *facts)
        except TapeError as error:
            return cls(name, None, error=error.detach())

    def checked(self) -> Run:
        """Return the run, or raise its error."""
        if self.error is not None:
            raise self.error
        assert self.run is not None
        return self.run


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class RunSource:
    """A source of runs.

    Attributes:
        path: of the source.
        kind: a name of ``tape2048.conversion.sources.FORMATS``, or ``"run"``, ``"runs"`` or ``"sessions"``.
        count: number of runs, damaged ones included.
        columns: names of the columns of its sessions.
    """

    path: Path
    kind: str
    count: int
    _groups: Callable[[], Iterable[list[tuple[str, Any]]]]  # names and items that one thread decodes
    _read: Callable[[Any], RunFacts]
    columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RunSource {self.path}: {self.kind}, {self.count:,} runs>"

    def runs(self, workers: int | None = None) -> Iterator[SourceRun]:
        """Decode every run on several threads; iterate over them in order."""
        for found in self.map(lambda runs: runs, workers):
            yield from found

    def map(
        self, work: Callable[[list[SourceRun]], Any], workers: int | None = None, check: Check = check_rules
    ) -> Iterator[Any]:
        """Apply ``work`` to groups of runs on the threads that decode; iterate over the results in order."""

        def job(items: list[tuple[str, Any]]) -> Any:
            return work([SourceRun.attempt(name, self._read, item, check) for name, item in items])

        return map_ordered(job, self._groups(), workers)


def open_source(
    path: str | os.PathLike[str],
    replayer: Replayer | None = None,
    *,
    lossy: bool = False,
    final_boards: bool = True,
    values: bool = True,
) -> RunSource:
    """Detect the kind of a path and open it.

    Args:
        path: a run file, a directory with run files below it, a pack, a pack.dat, a data set, a session,
            a directory of sessions, or JSONL or Parquet with one run a row.
        replayer: makes the player of a session, to replay games if the session and the rules leave moves or
            boards open. If it is None or raises ReplayError, no game is replayed.
        lossy: whether games without recorded moves that cannot be played again end at their last board.
        final_boards: whether a session's games are played again for their final boards alone.
        values: whether runs of a session with the column ``values`` (``tape2048 annotate``) get them as
            branch values, normalized by :func:`tape2048.runs.normalize`.

    Raises:
        MaintenanceError: a session without moves cannot be replayed, and ``lossy`` is False.
        ReplayError: a session that cannot be played again keeps every Nth step only. No row was read.
        MissingPathError: no such file or directory.
        MagicError: it is of no known kind.
        NotASessionError: a directory without any run file.
        FormatError: the source is damaged as a whole.
        StorageError: it cannot be read.

    Example:
        >>> from tape2048.conversion import open_source
        >>> open_source("runs")
        <RunSource runs: runs, 2 runs>
    """
    where = Path(path)
    kind = kind_of(where)
    if kind in SESSIONS:
        return _sessions(where, kind, replayer, lossy=lossy, final_boards=final_boards, values=values)
    return _open_file(where, kind)


def kind_of(path: Path) -> str:
    """Return the kind of a path, see :class:`RunSource`; errors as :func:`open_source`."""
    with reading(path):
        is_directory = path.is_dir()
        if not is_directory and not path.exists():
            raise MissingPathError("no such file or directory", path=path)
    if is_directory:
        from tape2048.session.directory import is_dataset, is_session, list_names
        from tape2048.session.session import sessions

        names = list_names(path)
        if is_dataset(path, names):
            return "dataset"
        if is_session(names):
            return "session"
        return "sessions" if sessions(path) else "runs"
    head = first_bytes(path, 8)
    for kind, one in FORMATS.items():
        if one.magic and head.startswith(one.magic):
            return "run" if kind == "a2run" else kind
    if path.name.endswith(JSONL_GZ):
        return "run"
    kind_by_suffix = {".a2run2": "run", ".jsonl": "jsonl", ".ndjson": "jsonl"}
    if path.suffix in kind_by_suffix:
        return kind_by_suffix[path.suffix]
    raise MagicError(
        f"has no known magic and {path.suffix or 'no'} extension; not a known kind of file with runs",
        path=path,
        hint="a2run2 files have no magic: name them *.a2run2, and JSON lines *.jsonl",
    )


def _numbered(
    path: Path, kind: str, count: int, name: Callable[[int], str], read: Callable[[int], RunFacts]
) -> RunSource:
    def groups() -> Iterator[list[tuple[str, int]]]:
        for first in range(0, count, JOB_RUNS):
            yield [(name(i), i) for i in range(first, min(first + JOB_RUNS, count))]

    return RunSource(path, kind, count, groups, read)


def _open_file(path: Path, kind: str) -> RunSource:
    def lines() -> Iterator[list[tuple[str, tuple[int, bytes]]]]:
        for group in jsonl.line_groups(path):
            yield [(f"{path}: line {line[0]}", line) for line in group]

    source = functools.partial(RunSource, path, kind)
    match kind:
        case "jsonl":
            count = sum(map(len, jsonl.line_groups(path)))
            return source(count, lines, lambda line: (jsonl.parse_line(line[1], path, line[0]),))
        case "parquet":
            groups = functools.partial(parquet.row_groups, path)
            return source(parquet.count_rows(path), groups, lambda row: (parquet.parse_row(row, path),))
        case "pack":
            from tape2048.packs.reader import PackReader

            pack = PackReader.open(path)
            return _numbered(path, kind, len(pack), lambda i: f"{path}: entry {i}", lambda i: (pack[i],))
        case "packdat" | "dataset":
            from tape2048.datasets.dataset import Dataset
            from tape2048.datasets.packdat import DataPack

            table = DataPack.load(path) if kind == "packdat" else Dataset.open(path, load="mmap")
            ids = table.runs["id"]
            return _numbered(path, kind, len(ids), lambda i: f"{path}: run {ids[i]}", table.run_and_losses)
    files = [path] if kind == "run" else find_run_files(path)

    def read(i: int) -> RunFacts:
        run = read_run_file(files[i])
        return run, not files[i].name.endswith(JSONL_GZ)

    return _numbered(path, kind, len(files), lambda i: str(files[i]), read)


def _sessions(
    path: Path, kind: str, replayer: Replayer | None, *, lossy: bool, final_boards: bool, values: bool
) -> RunSource:
    from tape2048.conversion.session_runs import move_values, session_run, with_values
    from tape2048.session.session import Session, sessions

    paths = [path] if kind == "session" else sessions(path)
    if not paths:
        raise NotASessionError("no sessions", path=path)
    plays = [_play_of(one, replayer, lossy=lossy) for one in paths]  # before any row is read
    opened = [Session.open(one) for one in paths]
    columns = {one.path: move_values(one) if values else None for one in opened}

    def groups() -> Iterator[list[tuple[str, tuple[Session, Play | None, int]]]]:
        for session, play in zip(opened, plays, strict=True):
            ids = session.runs["id"]
            for first in range(0, len(ids), JOB_RUNS):
                numbers = range(first, min(first + JOB_RUNS, len(ids)))
                yield [(f"{session.path}: run {ids[i]}", (session, play, i)) for i in numbers]

    def read(item: tuple[Session, Play | None, int]) -> RunFacts:
        session, play, i = item
        run, certain, lost = session_run(session, i, play, lossy=lossy, final_board=final_boards)
        if (column := columns[session.path]) is not None:
            run = with_values(run, session, i, column)
        return run, certain, 0, lost, int(session.runs["id"][i])

    names = sorted({name for one in opened for name in one.columns})
    return RunSource(path, kind, sum(len(one.runs) for one in opened), groups, read, tuple(names))


def _play_of(path: Path, replayer: Replayer | None, *, lossy: bool) -> Play | None:
    """Return the function that plays a session's games again; None without a replayable player, and on tape.

    Raises MaintenanceError if the player is needed for moves and ``lossy`` is not set, and ReplayError if it
    is needed for boards.
    """
    from tape2048.conversion.session_runs import SAMPLED, player_of
    from tape2048.session.directory import check_directory, find_steps
    from tape2048.session.foreign import step_layout

    directory = check_directory(path)
    steps = find_steps(directory)[0]
    if steps.name == TAPE_NPY:
        return None  # which holds every move and the final boards
    facts = read_facts(directory / METADATA_DB)
    play, why = player_of(replayer, directory, facts)
    if play is not None:
        return play
    rate = facts.get("sample_rate", 1)
    if isinstance(rate, int) and rate > 1:
        raise ReplayError(
            f"only every {rate}th step was {SAMPLED}, and its games cannot be replayed: {why}",
            path=directory,
            hint="export and Session read its rows; for whole games, record with sample_rate = 1",
        )
    if not step_layout(steps).move and not lossy:
        raise MaintenanceError(
            f"its moves were not recorded, and its games cannot be replayed: {why}",
            path=directory,
            hint="--lossy ends each game at its last recorded board, without its last move; "
            "recordings with --record-action know every move",
        )
    return None
