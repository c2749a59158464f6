"""Conversion from one format to another, with all data that the target can hold.

:data:`tape2048.formats.registry.FORMATS` lists what each target cannot hold. A loss is a
:class:`~tape2048.errors.MaintenanceError` before anything appears under the target's name, unless the caller
permits losses, which are then counted.

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
from tape2048.conversion.sources import SESSIONS, RunSource, SourceRun, open_source
from tape2048.datasets.dataset import refuse_empty
from tape2048.datasets.packdat import DataPack
from tape2048.errors import FieldError, FormatError, MaintenanceError, NameTakenError
from tape2048.files.durable import Draft, new_file, sweep_drafts, write_all, write_file
from tape2048.files.opening import storage_errors
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, SkippedRun
from tape2048.formats.registry import (
    ENGINES,
    FACTS,
    FINAL_BOARD,
    FORMATS,
    LOST_VALUES,
    RUN_FILES,
    RUN_FORMATS,
    UNCERTAIN,
    VALUES,
    VALUES_0_TO_1,
    VALUES_16_BITS,
    load_function,
)
from tape2048.players import facts_of_engine
from tape2048.runs import parquet
from tape2048.runs.a2run import run_bytes
from tape2048.runs.a2run2 import RunV2, legal_bits
from tape2048.runs.jsonl import U64, run_line
from tape2048.runs.run import first_steps
from tape2048.session.layout import ROWS, TAPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tape2048.conversion.session_runs import Replayer
    from tape2048.runs.run import Run


class Converted(msgspec.Struct, frozen=True):
    """Result of a conversion.

    Attributes:
        target: path of the target.
        kind: its format.
        runs: number of its runs.
        lost: for each kind of loss, the number of runs.
        skipped: runs that could not be read, and the reason of each.

    Example:
        >>> from tape2048.conversion import convert
        >>> convert("runs/golden.a2run2", "lossy.jsonl", lossy=True).lost
        {'branch values': 1}
    """

    target: str
    kind: str
    runs: int
    lost: dict[str, int]
    skipped: tuple[SkippedRun, ...]


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
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Write the runs of a source in another format. The target appears atomically.

    Args:
        source: a path for :func:`~tape2048.conversion.open_source`, or its result.
        target: a path that does not exist: a directory for ``dataset``, ``session`` and ``tape``, and for
            ``a2run`` and ``a2run2`` unless its name ends in ``.a2run`` or ``.a2run2``. Otherwise, a file.
        to: a name of :data:`~tape2048.formats.registry.RUN_FORMATS`. None: by the target's extension.
        lossy: whether data that the target cannot hold may be left out.
        u64: in JSON lines, packed boards as ``"number"`` or ``"text"``; see :mod:`tape2048.runs.jsonl`.
        workers: number of decoding threads. None: the number of cores.
        replayer: see :func:`~tape2048.conversion.open_source`.
        packing: arguments of :class:`~tape2048.packs.PackWriter` for the target ``pack``.
        player: name of the player of a session. None: the engine of the runs.
        progress: function that is called with the runs read and all runs.

    Raises:
        MaintenanceError: the target cannot hold all data, and ``lossy`` is False; or ``player`` is given for
            a target that is not a session. Nothing was written.
        EmptyCorpusError: no run of the source can be read. Nothing was written.
        NameTakenError: ``target`` exists.
        FormatError: the source is damaged as a whole, the target's kind is unknown, or the target is a single
            run's file and the source does not hold one run.
        ReplayError: see :func:`~tape2048.conversion.open_source`.
        FieldError: the target's fields cannot hold a value of a run, which the message names.
        MissingPackageError: a package for the target's format is not installed.
        StorageError: the operating system could not read or write.

    Example:
        >>> from tape2048.conversion import convert
        >>> done = convert("runs", "converted.a2pack")
        >>> done.kind, done.runs, done.lost
        ('pack', 2, {})
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
        source = open_source(
            source, replayer, lossy=lossy, final_boards=FINAL_BOARD not in lacks, values=VALUES not in lacks
        )
    flow = Conversion(source, where, kind, lossy, workers, progress, packing or {}, u64, player)
    if flow.is_one_file and source.count != 1:
        raise FormatError(
            f"found {'several runs' if source.count else 'no run'} in {source.path}, expected one: "
            f"{where.suffix} names the file of a single run",
            path=where,
            hint=f"name a directory, which gets a file for each run: --to {kind} {where.with_suffix('')}",
        )
    sweep_drafts(where.parent)
    source.warn_of_columns()
    try:
        load_function(FORMATS[kind].writer)(flow)
    except FormatError as error:
        raise flow.named(error, flow.current) from error
    if flow.starts_differ:
        flow.lost[FACTS] += flow.started
    return Converted(str(where), kind, flow.count, dict(flow.lost), tuple(flow.skipped))


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


def _beyond_16_bits(found: SourceRun, run: Run, kind: str) -> bool:
    if not _has_values(found, run, kind):
        return False
    try:
        back = DataPack.build([run]).run(0, run.final_board)
    except FormatError:
        return False  # the writer refuses the run
    values, legal = back.branch_values, back.branch_legal
    return values is None or legal is None or _differ(values, run, legal_bits(legal))


def _beyond_0_to_1(found: SourceRun, run: Run, kind: str) -> bool:
    if run.has_branches is None or run.branch_legal is None or not _has_values(found, run, kind):
        return False
    from tape2048.datasets.records import dataset_records, restore_values

    rows = np.empty(len(run), DATASET_ROW_DTYPE)
    try:
        dataset_records(run, 0, rows.view(np.uint8))
    except FormatError:
        return False  # the writer skips the run
    values, legal = rows["ev_values"].copy(), rows["ev_legal"].copy()
    has, _ = restore_values(values, legal, np.ascontiguousarray(run.moves))
    if (has != run.has_branches).any() or (legal[has] != run.branch_legal[has]).any():
        return True
    return _differ(values, run, legal_bits(legal) & has[:, None])


def _differ(values: Any, run: Run, mask: Any) -> bool:
    return not bool((values == run.branch_values)[mask].all())


#: Whether a run of a kind of source has a fact. ``ENGINES`` is of several runs.
_HAS: dict[str, Callable[[SourceRun, Run, str], bool]] = {
    VALUES: _has_values,
    VALUES_16_BITS: _beyond_16_bits,
    VALUES_0_TO_1: _beyond_0_to_1,
    LOST_VALUES: lambda found, run, kind: found.values_lost > 0 and _has_values(found, run, kind),
    FINAL_BOARD: lambda found, _, kind: found.ending_known and kind not in {"packdat", *SESSIONS},
    UNCERTAIN: lambda found, _run, _kind: not found.ending_known,
    FACTS: lambda _found, run, _kind: bool(run.meta.elapsed_s),  # and see Conversion
}


def write_files(flow: Conversion) -> None:
    def encode(found: SourceRun) -> bytes:
        run = found.checked()
        return b"".join(run_bytes(run)) if flow.kind == "a2run" else RunV2.from_run(run).to_bytes()

    if flow.is_one_file:
        for _, _, data in flow.each(encode):
            with new_file(flow.target) as fd:
                write_all(fd, data)
        return
    taken: set[str] = set()
    with storage_errors(flow.target, "writing it"), Draft(flow.target) as draft:
        for place, (name, number, data) in enumerate(flow.each(encode)):
            stem = Path(name).stem if flow.source.kind == "runs" else f"{number:06d}"
            while stem in taken:
                stem = f"{stem}-{place:06d}"
            taken.add(stem)
            write_file(draft.path / f"{stem}{FORMATS[flow.kind].suffix}", data)
        draft.publish()


def write_pack(flow: Conversion) -> None:
    from tape2048.packs.a2pack import PackWriter

    with PackWriter(flow.target, count_hint=flow.source.count, **flow.packing) as writer:
        for _, _, entry in flow.each(lambda found: writer.prepare(found.checked())):
            writer.append(entry)


def write_packdat(flow: Conversion) -> None:
    DataPack.build(flow.runs()).save(flow.target)


def write_dataset(flow: Conversion) -> None:
    from tape2048.conversion.dataset_build import lay_out, new_dataset

    with new_dataset(flow.target, None) as writer:
        groups = ([result for _, result in group] for group in flow.groups(lay_out))
        writer.add_source(flow.source, groups, flow.skipped)


def write_sessions(flow: Conversion) -> None:
    from tape2048.conversion.session_runs import write_session

    facts = {"converted_from": flow.source.kind} | ({"player": flow.player} if flow.player else {})
    write_session(flow.target, flow.runs(), facts, storage=TAPE if flow.kind == "tape" else ROWS)


def write_lines(flow: Conversion) -> None:
    with new_file(flow.target) as fd:
        for _, number, run in flow.each():
            write_all(fd, run_line(run, number, flow.u64))


def write_parquet(flow: Conversion) -> None:
    parquet.write_parquet(flow.target, flow.runs())
