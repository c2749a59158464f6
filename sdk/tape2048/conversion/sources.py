"""Sources of runs: run files, directories of them, packs, data sets, sessions, JSON lines and Parquet.

:func:`open_source` detects the kind of a path by its content; :meth:`RunSource.runs` decodes its runs in a
stable order on several threads. A run that cannot be read comes with its error and does not affect the
others.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.errors import (
    MagicError,
    MaintenanceError,
    ReplayError,
    TapeError,
)
from tape2048.files.reading import first_bytes, reading
from tape2048.formats.dataset_layout import SkippedRun
from tape2048.formats.registry import FORMATS, load_function
from tape2048.runs import jsonl, parquet
from tape2048.runs.files import JSONL_GZ, find_run_files, read_run_file
from tape2048.runs.run import Run, check_rules, until_win
from tape2048.session.layout import METADATA_DB, START_BOARDS
from tape2048.session.metadata import read_facts

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.conversion.session_runs import Play, Replayer
    from tape2048.datasets.dataset import TableCorpus
    from tape2048.session.session import Session

    #: A run, then the other fields of :class:`SourceRun`.
    RunFacts = tuple[Run, *tuple[Any, ...]]
    Check = Callable[[Run], Run]


#: Kinds of sources with sessions.
SESSIONS = ("session", "sessions")

#: The formats of the kinds of sources that are not formats: a run file, a directory of run files, and a
#: directory of sessions.
_FORMATS = {"run": "a2run2", "runs": "a2run2", "sessions": "session"}

#: The fields of records that become branch values.
_OF_RECORDS = ("ev_legal", "ev_mask", "ev_q", "ev_values")

#: Runs that one thread decodes together.
JOB_RUNS = 16


class SourceRun(NamedTuple):
    """One run of a source, or its error.

    Attributes:
        name: name of the run for people: a file's path, an entry's number, or a run's id.
        run: the run; None if it could not be read.
        ending_known: whether the final board is certain. Otherwise, it is a candidate.
        values_lost: number of steps without the value of the chosen move, which the source does not hold.
        lost: losses that ``lossy`` permitted, such as the last move.
        id: the run's id in its session; None for other sources.
        given_start: whether it started from a given board, as its session says.
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
    given_start: bool = False
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
    """A source of runs; ``count`` includes damaged runs.

    ``kind`` is a name of ``FORMATS``, ``"run"``, ``"runs"`` or ``"sessions"``. No run has the ``columns``.
    """

    path: Path
    kind: str
    count: int
    _groups: Callable[[], Iterable[list[tuple[str, Any]]]]  # names and items that one thread decodes
    _read: Callable[[Any], RunFacts]
    columns: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RunSource {self.path}: {self.kind}, {self.count:,} runs>"

    def warn_of_columns(self) -> None:
        """Log a warning that names the columns, which no target of runs holds."""
        if self.columns:
            text = "%s: columns left out: %s"
            logging.getLogger("tape2048").warning(text, self.path, ", ".join(self.columns))

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
            a directory of sessions, or JSONL or Parquet with one run a row. A game that several sessions of
            a directory hold comes once, as with ``Corpus.open``.
        replayer: function that makes the player of a session, to replay games if the session and the rules
            leave moves or boards open. If it is None or raises ReplayError, no game is replayed.
        lossy: whether games without recorded moves that cannot be replayed end at their last board.
        final_boards: whether a session's games are replayed for their final boards alone.
        values: whether runs of a session with the column ``values`` (``tape2048 annotate``) get them as
            branch values, normalized by :func:`tape2048.runs.normalize`. The ``branch_evs`` of another
            program's rows always are the branch values of sessions without that column.

    Raises:
        MaintenanceError: a session without moves cannot be replayed, and ``lossy`` is False.
        ReplayError: a session has only every Nth step, and cannot be replayed. No row was read.
        MissingPathError: ``path`` does not exist.
        MagicError: the file is of no known kind.
        NotASessionError: the directory has no run file.
        FormatError: the source is damaged as a whole.
        StorageError: the source cannot be read.

    Example:
        >>> from tape2048.conversion import open_source
        >>> open_source("runs")
        <RunSource runs: runs, 2 runs>
    """
    (source,) = open_sources([path], replayer, lossy=lossy, final_boards=final_boards, values=values)
    return source


class _Tables(NamedTuple):
    """The run tables of a source: its sessions, or its data set with the session of each part."""

    sessions: Sequence[Session] = ()
    rows: TableCorpus | None = None


def open_sources(
    paths: Iterable[str | os.PathLike[str]],
    replayer: Replayer | None = None,
    *,
    target: Session | None = None,
    **how: bool,
) -> list[RunSource]:
    """Open several sources, with the options and errors of :func:`open_source`.

    A game that several of their sessions and data sets hold comes once. A warning names those with games that
    the ``target`` already holds. Run files and packs are not compared: they have no run tables.
    """
    from tape2048.loader.duplicates import Copies, distinct_runs, warn_of_doubled
    from tape2048.loader.run_columns import RunColumns

    places = [*map(Path, paths)]
    kinds = [*map(kind_of, places)]
    early: list[Play | None] = []
    if kinds == ["session"]:  # a session that cannot be replayed is an error before it is opened
        early = [_play_of(places[0], replayer, lossy=how.get("lossy", False))]
    tables = [_open_tables(*pair) for pair in zip(places, kinds, strict=True)]
    opened = [session for each in tables for session in each.sessions]
    masks = iter(distinct_runs(opened) if opened else [])
    if target is not None:
        every = [target, *opened]
        warn_of_doubled(Copies(RunColumns.of(every), every, held=1).left_out()[1], "added again")
    sources: list[RunSource] = []
    for path, kind, each in zip(places, kinds, tables, strict=True):
        served = [np.flatnonzero(next(masks)) for _ in each.sessions]
        read = load_function(FORMATS[_FORMATS.get(kind, kind)].reader)
        sources.append(read(path, kind, tables=each, served=served, replayer=replayer, early=early, **how))
    return sources


def _open_tables(path: Path, kind: str) -> _Tables:
    if kind in SESSIONS:
        from tape2048.session.session import Session, sessions

        return _Tables([Session.open(one) for one in ([path] if kind == "session" else sessions(path))])
    if kind in {"dataset", "packdat"}:
        from tape2048.datasets.dataset import Dataset
        from tape2048.datasets.packdat import DataPack

        rows = DataPack.load(path) if kind == "packdat" else Dataset.open(path, load="mmap")
        return _Tables(rows.sessions, rows)
    return _Tables()


def kind_of(path: Path) -> str:
    """Return the kind of a path, see :class:`RunSource`; errors as :func:`open_source`."""
    with reading(path):
        is_directory = path.is_dir()
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
        f"found no known magic, and {f'the extension {path.suffix}' if path.suffix else 'no extension'}; "
        "expected a file with runs",
        path=path,
        hint="name a2run2 files *.a2run2, and JSON lines *.jsonl: these formats have no magic",
    )


def _numbered(
    path: Path, kind: str, count: int, name: Callable[[int], str], read: Callable[[int], RunFacts]
) -> RunSource:
    def groups() -> Iterator[list[tuple[str, int]]]:
        for first in range(0, count, JOB_RUNS):
            yield [(name(i), i) for i in range(first, min(first + JOB_RUNS, count))]

    return RunSource(path, kind, count, groups, read)


def read_files(path: Path, kind: str, **_: object) -> RunSource:
    files = [path] if kind == "run" else find_run_files(path)

    def read(i: int) -> RunFacts:
        return read_run_file(files[i]), not files[i].name.endswith(JSONL_GZ)

    return _numbered(path, kind, len(files), lambda i: str(files[i]), read)


def read_lines(path: Path, kind: str, **_: object) -> RunSource:
    def groups() -> Iterator[list[tuple[str, tuple[int, bytes]]]]:
        for group in jsonl.line_groups(path):
            yield [(f"{path}: line {line[0]}", line) for line in group]

    count = sum(map(len, jsonl.line_groups(path)))
    return RunSource(path, kind, count, groups, lambda line: (jsonl.parse_line(line[1], path, line[0]),))


def read_parquet(path: Path, kind: str, **_: object) -> RunSource:
    count, groups = parquet.count_rows(path), functools.partial(parquet.row_groups, path)
    return RunSource(path, kind, count, groups, lambda row: (parquet.parse_row(row, path),))


def read_pack(path: Path, kind: str, **_: object) -> RunSource:
    from tape2048.packs.reader import PackReader

    pack = PackReader.open(path)
    return _numbered(path, kind, len(pack), lambda i: f"{path}: entry {i}", lambda i: (pack[i],))


def read_rows(
    path: Path, kind: str, *, tables: _Tables, served: Sequence[NDArray[np.int64]], **_: object
) -> RunSource:
    """Open a pack.dat or a data set: the ``served`` runs of each of its parts."""
    rows = tables.rows
    assert rows is not None
    ids, (chosen,) = rows.runs["id"], served
    source = _numbered(
        path, kind, len(chosen),
        lambda i: f"{path}: run {ids[chosen[i]]}", lambda i: rows.run_and_losses(int(chosen[i])),
    )  # fmt: skip
    names = {name for one in rows.sessions for name in one.columns} - {*_OF_RECORDS}
    return dataclasses.replace(source, columns=tuple(sorted(names)))


def read_sessions(
    path: Path,
    kind: str,
    *,
    tables: _Tables,
    served: Sequence[NDArray[np.int64]],
    replayer: Replayer | None,
    early: Sequence[Play | None],
    lossy: bool = False,
    final_boards: bool = True,
    values: bool = True,
) -> RunSource:
    """Open a session, or a directory of sessions: the ``served`` runs of each; options of `open_source`."""
    from tape2048.conversion.session_runs import move_values, session_run, with_values

    every = zip(tables.sessions, served, strict=True)
    pairs = [pair for pair in every if len(pair[1]) or not len(pair[0].runs)]
    opened, served = [one for one, _ in pairs], [ordinals for _, ordinals in pairs]
    plays = early or [_play_of(one.path, replayer, lossy=lossy) for one in opened]
    columns = [move_values(one, annotated=values) for one in opened]
    ends = list(itertools.accumulate(map(len, served)))

    def at(i: int) -> tuple[int, int]:
        number = bisect.bisect_right(ends, i)
        return number, int(served[number][i - ends[number]])

    def name(i: int) -> str:
        number, ordinal = at(i)
        return f"{opened[number].path}: run {opened[number].runs['id'][ordinal]}"

    def read(i: int) -> RunFacts:
        number, ordinal = at(i)
        session, column = opened[number], columns[number]
        run, certain, lost = session_run(
            session, ordinal, plays[number], lossy=lossy, final_board=final_boards
        )
        if column is not None:
            run = with_values(run, session, ordinal, column)
        return run, certain, 0, lost, int(session.runs["id"][ordinal]), START_BOARDS in session.meta

    source = _numbered(path, kind, ends[-1] if ends else 0, name, read)
    kept = [set() if found is None else {*found.columns} for found in columns]
    names = {name for one, its in zip(opened, kept, strict=True) for name in {*one.columns} - its}
    # Without the player, a seed identifies no game.
    unknown = (one for one in opened if one.foreign is not None and not one.meta.get("player_sha256"))
    names |= {"seed"} if any(one.runs["seed"].any() for one in unknown) else set()
    names |= {START_BOARDS} if any(START_BOARDS in one.meta for one in opened) else set()
    return dataclasses.replace(source, columns=tuple(sorted(names)))


def _play_of(path: Path, replayer: Replayer | None, *, lossy: bool) -> Play | None:
    """Return the function that replays a session's games; None if there is none, or on tape.

    Raises MaintenanceError if a replay is needed for moves and ``lossy`` is not set, and ReplayError if it is
    needed for boards.
    """
    from tape2048.conversion.session_runs import SAMPLED, player_of
    from tape2048.session.session_files import SessionFiles

    files = SessionFiles(path)
    directory = files.path
    if files.on_tape:
        return None  # a tape holds every move and the final boards
    facts = read_facts(directory / METADATA_DB)
    play, why = player_of(replayer, directory, facts)
    if play is not None:
        return play
    rate = facts.get("sample_rate", 1)
    if isinstance(rate, int) and rate > 1:
        raise ReplayError(
            f"one step in {rate} was {SAMPLED}, and its games cannot be replayed: {why}",
            path=directory,
            hint="read its rows with `tape2048 export` or Session, or record with sample_rate = 1",
        )
    if not files.layout.move and not lossy:
        raise MaintenanceError(
            f"its moves were not recorded, and its games cannot be replayed: {why}",
            path=directory,
            hint="pass --lossy to end each game at its last recorded board, without its last move, or record "
            "with --record-action",
        )
    return None
