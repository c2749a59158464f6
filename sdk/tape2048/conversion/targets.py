"""Conversion from one format to another, with all data that the target can hold.

A loss is a :class:`~tape2048.errors.MaintenanceError` before anything appears under the target's name, unless
the caller permits losses, which are then counted.

============  =========================================================================================
target        does not hold
============  =========================================================================================
``a2run``     branch values
``a2run2``    nothing
``pack``      nothing (a2run2 entries, or A2T1 for runs without branch values)
``packdat``   as ``dataset``, and the final board; branch values beyond 16 bits
``dataset``   branch values outside [0, 1], which are normalised, and the value of a chosen move that was not
              best (it becomes 1.0), unless the other values determine it
``session``   branch values, start, elapsed time, and the engine except for the identity of a recorded game.
              Also the final board and columns, which are left out with a line in the log
``tape``      a session on tape, of games that ended: as ``session``, but it holds the final board
``jsonl``     branch values
``parquet``   nothing
============  =========================================================================================

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
import itertools
import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.conversion.sources import (
    FORMATS,
    RUN_FILES,
    SESSIONS,
    RunSource,
    SourceRun,
    kind_of,
    open_source,
)
from tape2048.datasets.dataset import refuse_empty
from tape2048.datasets.packdat import DataPack
from tape2048.errors import FieldError, FormatError, MaintenanceError, NameTakenError
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, SkippedRun
from tape2048.formats.session import ROWS, TAPE
from tape2048.io.durable import Draft, new_file, storage_errors, sweep_drafts, write_all
from tape2048.players import identity_of
from tape2048.runs.a2run import write_run
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.jsonl import U64, run_line
from tape2048.runs.parquet import write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tape2048.conversion.session_runs import Replayer
    from tape2048.runs.run import Run

_NO_ENDING = "a final board that is uncertain"
#: Branch values that the rows of these targets cannot hold.
_NARROW = {"packdat": "beyond 16 bits", "dataset": "outside 0 to 1 (normalised)"}


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
        kind = next((name for name, one in FORMATS.items() if one.suffix and one.suffix == suffix), None)
        if kind is None:
            hint = f"name a format with --to: {', '.join(FORMATS)}"
            raise FormatError(f"extension {suffix!r} is that of no format to write", path=path, hint=hint)
    if kind not in FORMATS:
        raise FormatError(f"unknown target {kind!r}; expected one of {', '.join(FORMATS)}", path=path)
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
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Write the runs of a source in another format. The target appears atomically.

    Args:
        source: a path for :func:`~tape2048.conversion.open_source`, or its result.
        target: a path that does not exist: a directory for ``dataset``, ``session`` and ``tape``, and for
            ``a2run`` and ``a2run2`` unless its name ends in ``.a2run`` or ``.a2run2``. Otherwise, a file.
        to: a format of :data:`~tape2048.conversion.sources.FORMATS`. None: by the target's extension.
        lossy: whether data that the target cannot hold may be left out.
        u64: in JSON lines, packed boards as ``"number"`` or ``"text"``; see :mod:`tape2048.runs.jsonl`.
        workers: number of decoding threads. None: the number of cores.
        replayer: see :func:`~tape2048.conversion.open_source`.
        packing: arguments of :class:`~tape2048.packs.PackWriter` for the target ``pack``.
        progress: called with the runs read and all runs.

    Raises:
        MaintenanceError: a loss, without ``lossy``. Nothing was written.
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
    if not isinstance(source, RunSource):
        kind_of(Path(source))  # first: a missing source matters more than the target's name
    kind = target_of(target, to)
    where = Path(os.path.abspath(target))
    if os.path.lexists(where):
        raise NameTakenError("the path exists. Nothing was replaced", path=where)
    if not isinstance(source, RunSource):
        holds = FORMATS[kind]
        source = open_source(
            source, replayer, lossy=lossy, final_boards=holds.final_board, values=holds.values
        )
    if _is_run_file(where, kind) and source.count != 1:
        raise FormatError(
            f"found {'several runs' if source.count else 'no run'} in {source.path}, expected one: "
            f"{where.suffix} names the file of a single run",
            path=where,
            hint=f"name a directory, which gets a file for each run: --to {kind} {where.with_suffix('')}",
        )
    flow = _Flow(source, where, kind, lossy, workers, progress, packing or {}, u64)
    if kind in {"session", "tape"} and source.columns:
        logging.getLogger("tape2048").warning("columns left out: %s", ", ".join(source.columns))
    sweep_drafts(where.parent)
    try:
        _write(flow)
    except FieldError as error:
        if error.path is not None or flow.current is None:
            raise
        raise FieldError(f"{flow.current}: {error.message}. Nothing was written", path=where) from error
    return Converted(str(where), kind, flow.count, dict(flow.lost), tuple(flow.skipped))


@dataclasses.dataclass
class _Flow:
    source: RunSource
    target: Path
    kind: str
    lossy: bool
    workers: int | None
    progress: Callable[[int, int], object] | None
    packing: Mapping[str, Any]
    u64: U64
    lost: Counter[str] = dataclasses.field(default_factory=Counter)
    skipped: list[SkippedRun] = dataclasses.field(default_factory=list)
    count: int = 0  # of written runs
    current: str | None = None  # the run that is being written

    def chunks(self) -> Iterator[list[SourceRun]]:
        """Iterate over the runs in groups, unreadable ones included."""
        done = 0
        for checked in self.source.map(lambda runs: list(map(self._check, runs)), self.workers):
            done += len(checked)
            for found, losses in checked:
                for loss in losses:
                    self._lose(loss, found.name)
            if self.progress is not None:
                self.progress(done, max(done, self.source.count))
            yield [found for found, _ in checked]

    def named(self) -> Iterator[tuple[str, int, Run]]:
        """Iterate over the readable runs, their names, and their numbers: a session's ids, else from 0."""
        for found in itertools.chain.from_iterable(self.chunks()):
            if found.run is None:
                self.skipped.append(found.skipped)
                continue
            self.current = found.name
            self.count += 1
            yield found.name, self.count - 1 if found.id is None else found.id, found.run
            self.current = None
        if not self.count:
            refuse_empty(self.skipped, self.target)

    def runs(self) -> Iterator[Run]:
        """Iterate over the readable runs."""
        return (run for _, _, run in self.named())

    def _check(self, found: SourceRun) -> tuple[SourceRun, list[str]]:
        """List a run's losses in the target; on the threads that decode."""
        run = found.run
        if run is None:
            return found, []
        if self.kind == "tape":
            from tape2048.game.rules import legal_masks

            if legal_masks(np.array([run.final_board], np.uint64))[0]:
                message = f"a tape holds games that ended, but {found.name} breaks off. Nothing was written"
                raise MaintenanceError(message, path=self.source.path, hint="Use --to session.")
        losses = _losses(found, run, self.source.kind, self.kind)
        if _NO_ENDING in losses and self.source.kind in SESSIONS:
            found = found._replace(run=_without_last_move(run))
        return found, losses

    def _lose(self, loss: str, name: str) -> None:
        if not self.lossy:
            hint = "--lossy leaves it out"
            if loss == _NO_ENDING and self.source.kind in SESSIONS:
                hint = (
                    "--lossy ends the game at the board before. A data set or pack.dat needs no final board"
                )
            message = f"{self.kind} cannot hold {loss} ({name}). Nothing was written"
            raise MaintenanceError(message, path=self.source.path, hint=hint)
        self.lost[loss] += 1


def _losses(found: SourceRun, run: Run, source: str, target: str) -> list[str]:
    holds = FORMATS[target]
    losses = list(found.lost)
    if not found.ending_known and holds.final_board and target != "dataset":
        losses.append(_NO_ENDING)
    if not holds.final_board and source not in {"packdat", *SESSIONS} and found.ending_known:
        losses.append("the final board")
    if run.has_branches is not None and run.has_branches.any():
        if not holds.values:
            losses.append("branch values")
        if target in _NARROW and not _keeps_values(run, target):
            losses.append(f"branch values {_NARROW[target]}, or of a chosen move that was not best")
        if found.values_lost and target != "dataset":
            losses.append("chosen values that the source has lost")
    meta = run.meta
    unnamed = identity_of(meta.engine) is None and (meta.start_unix_s or meta.engine)
    if target in {"session", "tape"} and source not in SESSIONS and (meta.elapsed_s or unnamed):
        losses.append("start, elapsed time and engine")
    return losses


def _without_last_move(run: Run) -> Run:
    parts = {
        name: None if (array := getattr(run, name)) is None else array[:-1]
        for name in ("states", "moves", "branch_values", "branch_legal", "has_branches")
    }
    meta = msgspec.structs.replace(run.meta, steps=len(run) - 1)
    return dataclasses.replace(run, meta=meta, **parts)  # type: ignore[arg-type]


def _keeps_values(run: Run, target: str) -> bool:
    """Check that all branch values survive the rows of a pack.dat or of a data set."""
    from tape2048.datasets.records import dataset_records, restore_values

    assert run.has_branches is not None
    assert run.branch_legal is not None
    assert run.branch_values is not None
    try:
        if target == "packdat":
            back = DataPack.build([run]).run(0, run.final_board)
            values, legal, has = back.branch_values, back.branch_legal, run.has_branches
            if values is None or legal is None:
                return False
        else:
            rows = np.empty(len(run), DATASET_ROW_DTYPE)
            dataset_records(run, 0, rows.view(np.uint8))
            values, legal = rows["ev_values"].copy(), rows["ev_legal"].copy()
            has, _ = restore_values(values, legal, np.ascontiguousarray(run.moves))
            if (has != run.has_branches).any() or (legal[has] != run.branch_legal[has]).any():
                return False
    except FormatError:
        return True  # the writer refuses or skips the run
    mask = (legal[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(np.bool_)
    return bool((values == run.branch_values)[mask if target == "packdat" else has].all())


def _is_run_file(where: Path, kind: str) -> bool:
    return kind in RUN_FILES and where.suffix in {FORMATS[name].suffix for name in RUN_FILES}


def _write(flow: _Flow) -> None:
    match flow.kind:
        case "a2run" | "a2run2":
            _write_run_files(flow)
        case "pack":
            from tape2048.packs.a2pack import PackWriter

            with PackWriter(flow.target, count_hint=flow.source.count, **flow.packing) as writer:
                for run in flow.runs():
                    writer.add_run(run)
        case "packdat":
            DataPack.build(flow.runs()).save(flow.target)
        case "dataset":
            from tape2048.conversion.dataset_build import build_dataset

            # Lays out rows on this thread, not on the decoding threads: the check of losses comes first.
            chunks = ([(found.name, found) for found in chunk] for chunk in flow.chunks())
            source = dataclasses.replace(
                flow.source, _groups=lambda: chunks, _read=lambda found: (found.checked(), *found[2:6])
            )
            built = build_dataset(flow.target, [source], workers=1)
            flow.skipped += built.skipped
            flow.count = built.runs
        case "session" | "tape":
            from tape2048.conversion.session_runs import write_session

            facts = {"converted_from": flow.source.kind}
            write_session(flow.target, flow.runs(), facts, storage=TAPE if flow.kind == "tape" else ROWS)
        case "jsonl":
            with new_file(flow.target) as fd:
                for _, number, run in flow.named():
                    write_all(fd, run_line(run, number, flow.u64))
        case "parquet":
            write_parquet(flow.target, flow.runs())


def _write_run_files(flow: _Flow) -> None:
    write = write_run if flow.kind == "a2run" else lambda path, run: RunV2.from_run(run).save(path)
    if _is_run_file(flow.target, flow.kind):
        for run in flow.runs():
            write(flow.target, run)
        return
    taken: set[str] = set()
    with storage_errors(flow.target, "writing it"), Draft(flow.target) as draft:
        for name, number, run in flow.named():
            stem = Path(name).stem if flow.source.kind == "runs" else f"{number:06d}"
            while stem in taken:
                stem = f"{stem}-{flow.count - 1:06d}"
            taken.add(stem)
            write(draft.path / f"{stem}{FORMATS[flow.kind].suffix}", run)
        draft.publish()
