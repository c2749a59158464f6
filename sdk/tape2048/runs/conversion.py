"""Conversion of runs from one format to another, with all data that the target can hold.

:func:`open_source` opens any path with runs; :func:`convert` reads its runs, checks each for facts that the
target cannot hold (:data:`tape2048.runs.registry.FORMATS`), and writes them. A loss is a
:class:`~tape2048.errors.MaintenanceError` before anything appears under the target's name, unless the caller
permits losses, which are then counted. A run that cannot be read is skipped by name.

For a source without final boards (sessions, pack.dat, data sets of other writers), a run gets the final board
that the rules leave. If both a 2 and a 4 would have ended the game, the board is uncertain. This is a loss,
too, unless the target holds no final board. With their player, games of sessions are replayed for the final
board. Otherwise, a permitted loss ends the game at the board before.

The target's name and format decide its shape, never the number of runs. A name that ends in
``.a2run`` or ``.a2run2`` is the file of a single run; under any other name, these two formats are a
directory with a file for each run.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import utc_text
from tape2048.errors import FieldError, FormatError, MaintenanceError, NameTakenError
from tape2048.files.durable import sweep_drafts
from tape2048.runs.engine_text import facts_of_engine
from tape2048.runs.games import SeenGames
from tape2048.runs.registry import (
    ENGINES,
    FACTS,
    FINAL_BOARD,
    FORMATS,
    LOST_VALUES,
    RUN_FILES,
    RUN_FORMATS,
    SESSIONS,
    UNCERTAIN,
    VALUES,
    VALUES_0_TO_1,
    VALUES_16_BITS,
    kind_of,
    load,
)
from tape2048.runs.run import RunSource, SkippedRun, SourceRun, Tables, first_steps
from tape2048.runs.tables import refuse_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tape2048.runs.run import U64, Replayer, Run
    from tape2048.runs.tables import TableCorpus


def open_source(
    path: str | os.PathLike[str],
    replayer: Replayer | None = None,
    *,
    lossy: bool = False,
    final_boards: bool = True,
    values: bool = True,
    columns: Mapping[str, str] | None = None,
) -> RunSource:
    """Detect the kind of a path and open it.

    Args:
        path: a run file, a directory with run files below it, an a2pack, a pack.dat, a data set, a session,
            a directory of sessions, or a file of another program: see :mod:`tape2048.runs.foreign_games`. A
            game that it holds more than once comes once, and a warning names the copies; see
            :mod:`tape2048.runs.games`.
        replayer: function that makes the player of a session, to replay games if the session and the rules
            leave moves or boards open. If it is None or raises ReplayError, no game is replayed.
        lossy: whether games without recorded moves that cannot be replayed end at their last board.
        final_boards: whether a session's games are replayed for their final boards alone.
        values: whether runs of a session with the column ``values`` (``tape2048 annotate``) get them as
            branch values, normalized by :func:`tape2048.runs.normalize`. The ``branch_evs`` of another
            program's rows always are the branch values of sessions without that column.
        columns: names of a file's columns by what they hold, such as ``{"board": "b", "move": "m"}``, in
            place of the usual names; see :data:`tape2048.runs.foreign_games.NAMES`.

    Raises:
        MaintenanceError: a session without moves cannot be replayed, and ``lossy`` is False.
        ReplayError: a session has only every Nth step, and cannot be replayed. No row was read.
        MissingPathError: ``path`` does not exist.
        MagicError: the file is of no known kind.
        NotASessionError: the directory has no run file.
        FormatError: the source is damaged as a whole.
        StorageError: the source cannot be read.

    Example:
        >>> from tape2048.runs import open_source
        >>> open_source("runs")
        <RunSource runs: runs, 2 runs>
    """
    (source,) = open_sources(
        [path], replayer, lossy=lossy, final_boards=final_boards, values=values, columns=columns
    )
    return source


def open_sources(
    paths: Iterable[str | os.PathLike[str]],
    replayer: Replayer | None = None,
    *,
    target: TableCorpus | None = None,
    **how: Any,
) -> list[RunSource]:
    """Open several sources, with the options and errors of :func:`open_source`.

    A game that several of them hold comes once, and a game of the ``target`` not at all. Warnings name the
    copies. Run tables are compared here, and all other runs when they are decoded.
    """
    from tape2048.loader.duplicates import Copies, warn_of_doubled
    from tape2048.loader.run_columns import RunColumns

    kinds = [(Path(path), kind_of(Path(path))) for path in paths]
    opened = [load(kind).read(path, kind, replayer=replayer, **how) for path, kind in kinds]
    held = [] if target is None else [*target.sessions]
    sessions = [*held, *(session for one in opened if isinstance(one, Tables) for session in one.sessions)]
    runs = RunColumns.of(sessions)
    is_copy, doubled = Copies(runs, sessions, held=len(held)).left_out()
    warn_of_doubled(doubled)
    masks = iter(np.split(~is_copy, runs.firsts[1:-1])[len(held) :])
    served = [
        one.serve([np.flatnonzero(next(masks)) for _ in one.sessions]) if isinstance(one, Tables) else one
        for one in opened
    ]
    return share_games(served, target, sum(one.games for one in doubled))


def share_games(
    sources: Sequence[RunSource], target: TableCorpus | None = None, left_out: int = 0
) -> list[RunSource]:
    """Return the sources without copies of a game in another source or the ``target``."""
    games = SeenGames([str(source.path) for source in sources], target)
    games.left_out = left_out + sum(one.left_out for one in {source.games for source in sources} if one)
    return [dataclasses.replace(one, games=games, place=place) for place, one in enumerate(sources)]


class Converted(msgspec.Struct, frozen=True):
    """Result of a conversion: the target and its format, the number of its runs, and the losses.

    Example:
        >>> from tape2048.runs import convert
        >>> convert("runs/golden.a2run2", "lossy.jsonl", lossy=True).lost
        {'branch values': 1}
    """

    target: str
    kind: str
    runs: int
    lost: dict[str, int]  # for each kind of loss, the number of runs
    skipped: tuple[SkippedRun, ...]  # runs that could not be read, and the reason of each
    copies: int = 0  # runs that were left out, since another run of the source is the same game


def target_of(path: str | os.PathLike[str], kind: str | None = None) -> str:
    """Return the format to write: ``kind``, or by the name's extension; FormatError for an unknown one."""
    if kind is None:
        suffix = Path(path).suffix
        kind = next((name for name in RUN_FORMATS if suffix and FORMATS[name].suffix == suffix), None)
        if kind is None:
            hint = f"name a format with --to: {', '.join(RUN_FORMATS)}"
            raise FormatError(f"no format to write has the extension {suffix!r}", path=path, hint=hint)
    if kind not in RUN_FORMATS:
        raise FormatError(f"unknown format {kind!r}; expected one of {', '.join(RUN_FORMATS)}", path=path)
    return kind


def convert(
    source: str | os.PathLike[str] | RunSource,
    target: str | os.PathLike[str],
    to: str | None = None,
    *,
    lossy: bool = False,
    u64: U64 = "number",
    workers: int | None = None,
    replayer: Replayer | None = None,
    packing: Mapping[str, Any] | None = None,
    player: str | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Write the runs of a source in another format. The target appears atomically.

    Args:
        source: a path for :func:`~tape2048.runs.open_source`, or its result.
        target: a path that does not exist: a directory for ``dataset``, ``session`` and ``tape``, and for
            ``a2run`` and ``a2run2`` unless its name ends in ``.a2run`` or ``.a2run2``. Otherwise, a file.
        to: a name of :data:`~tape2048.runs.registry.RUN_FORMATS`. None: by the target's extension.
        lossy: whether data that the target cannot hold may be left out.
        u64: in JSON lines, packed boards as ``"number"`` or ``"text"``; see :mod:`tape2048.runs.jsonl`.
        workers: number of decoding threads. None: the number of cores.
        replayer: see :func:`~tape2048.runs.open_source`.
        packing: arguments of :class:`~tape2048.runs.PackWriter` for the target ``pack``.
        player: name of the player of a session. None: the engine of the runs.
        columns: see :func:`~tape2048.runs.open_source`.
        progress: function that is called with the runs read and all runs.

    Raises:
        MaintenanceError: the target cannot hold all data, and ``lossy`` is False; or ``player`` is given for
            a target that is not a session. Nothing was written.
        EmptyCorpusError: no run of the source can be read. Nothing was written.
        NameTakenError: ``target`` exists.
        FormatError: the source is damaged as a whole, the target's kind is unknown, or the target is a single
            run's file and the source does not hold one run.
        ReplayError: see :func:`~tape2048.runs.open_source`.
        FieldError: the target's fields cannot hold a value of a run, which the message names.
        MissingPackageError: a package for the target's format is not installed.
        StorageError: the operating system could not read or write.

    Example:
        >>> from tape2048.runs import convert
        >>> done = convert("runs", "converted.a2pack")
        >>> done.kind, done.runs, done.lost
        ('a2pack', 2, {})
    """
    kind = target_of(target, to)
    where = Path(os.path.abspath(target))
    if os.path.lexists(where):
        raise NameTakenError("the path exists. Nothing was replaced", path=where)
    if player is not None and ENGINES not in FORMATS[kind].lacks:
        found = (
            f"found the player {player!r}; expected none, since runs of the format {kind} keep their engines"
        )
        raise MaintenanceError(found, path=where, hint="leave --player out, or use --to session")
    if not isinstance(source, RunSource):
        lacks = FORMATS[kind].lacks
        ends, values = FINAL_BOARD not in lacks, VALUES not in lacks
        source = open_source(source, replayer, lossy=lossy, final_boards=ends, values=values, columns=columns)
    flow = Conversion(source, where, kind, lossy, workers, progress, packing or {}, u64, player)
    if flow.is_one_file and source.count != 1:
        raise FormatError(
            f"found {'several runs' if source.count else 'no run'} in {source.path}, expected one: "
            f"{where.suffix} names the file of a single run",
            path=where,
            hint=f"name a directory, which gets a file for each run: --to {kind} {where.with_suffix('')}",
        )
    sweep_drafts(where.parent)
    source.warn_of_columns(FORMATS[kind].fields)
    try:
        load(kind).write(flow)
    except FormatError as error:
        raise flow.named(error, flow.current) from error
    if flow.starts_differ:
        flow.lost[FACTS] += flow.started
    copies = source.games.left_out if source.games else 0
    return Converted(str(where), kind, flow.count, dict(flow.lost), tuple(flow.skipped), copies)


@dataclasses.dataclass
class Conversion:
    source: RunSource
    target: Path
    kind: str
    lossy: bool
    workers: int | None
    progress: Callable[[int, int], object] | None
    packing: Mapping[str, Any]
    u64: U64
    player: str | None
    lost: Counter[str] = dataclasses.field(default_factory=Counter)
    skipped: list[SkippedRun] = dataclasses.field(default_factory=list)
    count: int = 0  # of written runs
    current: str | None = None  # the run that is being written
    first_player: dict[str, Any] | None = None  # of a session's runs
    first_start: int | None = None  # of a session's runs, in seconds since 1970; 0 if it is unknown
    starts_differ: bool = False
    started: int = 0  # runs with a start, whose other facts the target holds

    @property
    def is_one_file(self) -> bool:
        return self.kind in RUN_FILES and self.target.suffix in {FORMATS[name].suffix for name in RUN_FILES}

    def groups(self, work: Callable[[SourceRun], Any]) -> Iterator[list[tuple[SourceRun, Any]]]:
        """Yield groups with results of ``work``, on the threads that decode; a SkippedRun drops its run."""

        def check(found: SourceRun) -> tuple[SourceRun, list[str], Any]:
            if found.run is None:
                return found, [], found.skipped
            found, losses = self._check(found, found.run)
            try:
                return found, losses, work(found)
            except FieldError as error:
                raise self.named(error, found.name) from error

        done = 0
        for checked in self.source.map(lambda runs: list(map(check, runs)), self.workers):
            good = []
            for found, losses, result in checked:
                for loss in (*losses, *self._other_player(found), *self._other_start(found, losses)):
                    self._lose(loss, found.name)
                if isinstance(result, SkippedRun):
                    self.skipped.append(result)
                else:
                    good.append((found, result))
            done += len(checked)
            if self.progress is not None:
                self.progress(done, max(done, self.source.count))
            yield good
            self.count += len(good)
        if not self.count:
            refuse_empty(self.skipped, self.target)

    def each(self, work: Callable[[SourceRun], Any] = SourceRun.checked) -> Iterator[tuple[str, int, Any]]:
        """Iterate over names, numbers (a session's ids, else from 0) and results of :meth:`groups`."""
        for group in self.groups(work):
            for number, (found, result) in enumerate(group, start=self.count):
                self.current = found.name
                yield found.name, number if found.id is None else found.id, result
                self.current = None

    def runs(self) -> Iterator[Run]:
        return (run for _, _, run in self.each())

    def named(self, error: FormatError, name: str | None) -> FormatError:
        """Return an error that names the run, if it names no file."""
        if error.path is not None or name is None:
            return error
        message = f"{name}: {error.message}. Nothing was written"
        return type(error)(message, path=self.target, hint=error.hint)

    def _check(self, found: SourceRun, run: Run) -> tuple[SourceRun, list[str]]:
        """List a run's losses in the target; on the threads that decode."""
        if self.kind == "tape":
            from tape2048.game.rules import legal_masks

            if legal_masks(np.array([run.final_board], np.uint64))[0]:
                message = f"{found.name} breaks off; a tape holds only games that ended. Nothing was written"
                raise MaintenanceError(message, path=self.source.path, hint="Use --to session.")
        kind = self.source.kind
        lacks = [fact for fact in FORMATS[self.kind].lacks if fact in _HAS]
        losses = [*found.lost, *(fact for fact in lacks if _HAS[fact](found, run, kind))]
        if UNCERTAIN in losses and kind in SESSIONS:
            found = found._replace(run=first_steps(run, len(run) - 1))
        return found, losses

    def _other_player(self, found: SourceRun) -> list[str]:
        """Return the loss of a run in a session if the first run is of another player."""
        if found.run is None or self.player is not None or ENGINES not in FORMATS[self.kind].lacks:
            return []
        player = facts_of_engine(found.run.meta.engine)
        self.first_player = self.first_player or player
        return [] if player == self.first_player else [ENGINES]

    def _other_start(self, found: SourceRun, losses: list[str]) -> list[str]:
        """Return the loss of a run's start in a session, if it differs from the first run's or has no year.

        Once two starts differ, all are lost: :func:`convert` counts them at the end.
        """
        if found.run is None or FACTS not in FORMATS[self.kind].lacks:
            return []
        start = found.run.meta.start_unix_s
        self.first_start = start if self.first_start is None else self.first_start
        self.started += bool(start) and FACTS not in losses
        if start == self.first_start and (not start or utc_text(start)):
            return []
        self.starts_differ = True
        return [] if self.lossy else [FACTS]

    def _lose(self, loss: str, name: str) -> None:
        if not self.lossy:
            hint = "pass --lossy to leave it out"
            if loss == ENGINES:
                hint = "pass --player NAME for all runs, or --lossy to join the names of the engines"
            if loss == UNCERTAIN and self.source.kind in SESSIONS:
                hint = "pass --lossy to end the game one board earlier, or write a data set or a pack.dat"
            message = f"{self.kind} cannot hold {loss} ({name}). Nothing was written"
            raise MaintenanceError(message, path=self.source.path, hint=hint)
        self.lost[loss] += 1


def _has_values(_found: SourceRun, run: Run, _kind: str) -> bool:
    return run.has_branches is not None and bool(run.has_branches.any())


def _has_end(found: SourceRun, run: Run, kind: str) -> bool:
    """Tell whether a run has a final board that does not follow from its last move."""
    from tape2048.game.moves import last_boards

    if not found.ending_known or kind in {"packdat", *SESSIONS}:
        return False
    if not len(run):
        return True
    finals, certain = last_boards(run.boards[-1:], run.moves[-1:])
    return not (certain[0] and int(finals[0]) == run.final_board)


#: Whether a run of a kind of source has a fact. ``ENGINES`` is of several runs.
_HAS: dict[str, Callable[[SourceRun, Run, str], bool]] = {
    VALUES: _has_values,
    VALUES_16_BITS: lambda _found, run, _kind: load("packdat").changes_values(run),
    VALUES_0_TO_1: lambda _found, run, _kind: load("dataset").changes_values(run),
    LOST_VALUES: lambda found, run, kind: found.values_lost > 0 and _has_values(found, run, kind),
    FINAL_BOARD: _has_end,
    UNCERTAIN: lambda found, _run, _kind: not found.ending_known,
    FACTS: lambda _found, run, _kind: bool(run.meta.elapsed_s),  # and see Conversion
}
