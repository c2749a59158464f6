"""One run of a file or a directory: its choice, and its display as a document or as text."""

from __future__ import annotations

import datetime as dt
import math
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import MagicError, ReplayError
from tape2048.loader.buffers import find_sessions, open_sessions
from tape2048.loader.duplicates import distinct_runs
from tape2048.loader.run_columns import RunColumns
from tape2048.runs.engine_text import facts_of_engine
from tape2048.runs.run import Run, RunMeta, SourceRun, exps_at
from tape2048.session.layout import RUN_DTYPE
from tape2048.session.session import Session
from tape2048_tools.terminal.display import board, number
from tape2048_tools.terminal.output import cell, columns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import RenderableType

    from tape2048.runs.run import RunSource


class ChosenRun(NamedTuple):
    run: Run
    facts: dict[str, Any]
    steps: NDArray[np.int64]  # for each board, the number of the move that follows
    ended: bool = True  # whether the last board is the final board
    made: NDArray[np.uint8] | None = None  # known moves, including the last board's; None: the run's moves

    def arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return copies of the boards, ``u64[n + 1]``, and moves, ``u8[n]``; unknown moves are above 3."""
        return np.array(self.run.states, np.uint64), np.array(self.run.moves, np.uint8)

    def played_by(self) -> tuple[Mapping[str, Any], NDArray[np.void]]:
        if "seed" in self.facts:  # only sessions hold it
            session = Session.open(self.facts["path"])
            return session.meta, session.runs
        runs, meta = np.zeros(1, RUN_DTYPE), self.run.meta
        runs["score"], runs["highest_tile"] = meta.max_score, meta.highest_tile
        return facts_of_engine(meta.engine), runs

    def position(self, step: int) -> int:
        """Return the position of the board before a move, or of the last board for -1."""
        if step == -1:
            return len(self.steps) - 1
        position = int(self.steps.searchsorted(step))
        if position == len(self.steps) or self.steps[position] != step:
            first, last = self.steps[0], self.steps[-1]
            apart = self.steps[1] - first if len(self.steps) > 1 else 1
            every = f" in steps of {apart}" if apart > 1 else ""
            message = f"found {step}, expected a board from {first} to {last}{every}"
            raise click.BadParameter(message, param_hint="--step")
        return position


def choose_run(path: Path, run_id: int | None, *, longest: bool = False, replay: bool = False) -> ChosenRun:
    """Read one run of a file or a directory: the run with this id, or the best or the longest run."""
    if run_id is not None and longest:
        raise click.UsageError("--run-id and --longest both select a run: give only one")
    from tape2048.runs.conversion import open_source
    from tape2048.runs.files import read_run_file
    from tape2048.runs.registry import kind_of

    try:
        kind = kind_of(path)
    except MagicError:
        kind = "run"  # read_run_file recognises the content, not the name
    facts: dict[str, Any] = {}
    if kind == "run":
        if run_id:
            raise click.BadParameter(
                f"found {run_id}, expected 0: the file has one run", param_hint="--run-id"
            )
        run = read_run_file(path)
    elif kind in {"session", "sessions"}:
        return _of_sessions(path, run_id, longest=longest, replay=replay)
    elif kind == "a2pack" and run_id is not None:
        from tape2048.runs import PackReader

        reader = PackReader.open(path)
        run, facts = reader.decode(_chosen(np.arange(len(reader)), run_id)), {"run_id": run_id}
    elif kind in {"dataset", "packdat"}:
        from tape2048.runs import DataPack, Dataset

        rows = Dataset.open(path, load="mmap") if kind == "dataset" else DataPack.load(path)
        table = rows.runs
        position = _choose(table["run_id"], table["steps" if longest else "score"], run_id)
        run = SourceRun.attempt(str(path), rows.run_and_losses, position).checked()
        facts = {"run_id": int(table["run_id"][position])}
    else:
        read, position = _search(open_source(path, lossy=True), run_id, longest=longest)
        run, facts = read.checked(), {"run_id": position}
        facts |= {"path": read.name} if kind == "runs" else {}
    return ChosenRun(run, facts, np.arange(len(run) + 1))


def _search(source: RunSource, run_id: int | None, *, longest: bool) -> tuple[SourceRun, int]:
    from tape2048_tools.progress.panel import progress_bar

    best: tuple[float, SourceRun, int] | None = None
    count = 0
    with progress_bar(f"reading {source.path.name}") as progress:
        for position, found in enumerate(chain.from_iterable(source.every(list))):
            count = position + 1
            if position == run_id:
                return found, position
            if progress is not None:
                progress(count, max(count, source.count))
            if found.run is None:
                value = -math.inf  # a damaged run is chosen only if all are damaged
            else:
                meta = found.run.meta
                value = meta.steps if longest else meta.max_score
            if best is None or value > best[0]:
                best = value, found, position
    if run_id is not None or best is None:
        _refuse(run_id, count, 0, count - 1)
    return best[1:]


def _choose(ids: NDArray[Any], values: NDArray[Any], run_id: int | None) -> int:
    return _chosen(ids, run_id) if run_id is not None or not len(ids) else int(values.argmax())


def _chosen(ids: NDArray[Any], run_id: int | None) -> int:
    found = (ids == run_id).nonzero()[0]
    if not len(found):
        _refuse(run_id, len(ids), *((int(ids.min()), int(ids.max())) if len(ids) else (0, 0)))
    return int(found[0])


def _refuse(run_id: int | None, count: int, first: int, last: int) -> NoReturn:
    if not count:
        raise click.BadParameter("found no run", param_hint="RUN")
    message = f"found {run_id}, but the source has {counted(count, 'run')} with ids from {first} to {last}"
    raise click.BadParameter(message, param_hint="--run-id")


def _of_sessions(path: Path, run_id: int | None, *, longest: bool, replay: bool) -> ChosenRun:
    opened, _ = open_sessions(find_sessions(path))
    runs = RunColumns.of(opened).table[np.concatenate(distinct_runs(opened))]
    owners = runs["session"]
    if run_id is not None and len(names := {opened[i].name for i in owners[runs["run_id"] == run_id]}) > 1:
        message = f"found {run_id} in {len(names)} sessions: give one of them as RUN, such as {min(names)}"
        raise click.BadParameter(message, param_hint="--run-id")
    position = _choose(runs["run_id"], runs["steps" if longest else "score"], run_id)
    owner = int(owners[position])
    ordinal = int(np.flatnonzero(opened[owner].runs["run_id"] == runs["run_id"][position])[0])
    whole = replay or opened[owner].tape is not None
    return (whole and _whole_run(opened[owner], ordinal)) or _of_session(opened[owner], ordinal)


def _whole_run(session: Session, ordinal: int) -> ChosenRun | None:
    from tape2048.runs import session_run
    from tape2048_recorder.replay.replay import replayer

    try:
        play = replayer(session.path, session.meta) if session.tape is None else None
        run, _, _ = session_run(session, ordinal, play)
    except ReplayError:
        return None
    row = session.runs[ordinal]
    facts = {"path": str(session.path), "run_id": int(row["run_id"]), "seed": int(row["seed"])}
    return ChosenRun(run, facts, np.arange(len(run) + 1))


def _of_session(session: Session, ordinal: int) -> ChosenRun:
    from tape2048.game.moves import recover
    from tape2048.runs.sessions import boards_of

    row = session.runs[ordinal]
    rows = session.rows_of(ordinal)
    if not len(rows):
        raise click.BadParameter(f"the session has no board of run {row['run_id']}", param_hint="--run-id")
    boards = boards_of(rows, f"run {row['run_id']}", session.path)
    names = rows.dtype.names or ()
    moves = np.ascontiguousarray(rows["action"][:-1]) if "action" in names else recover(boards).moves
    engine = session.meta.get("player")
    meta = RunMeta(
        steps=len(boards) - 1,
        max_score=int(row["score"]),
        highest_tile=int(row["highest_tile"]),
        engine=engine if isinstance(engine, str) else None,
    )
    # All moves of the game: more than the moves between recorded boards.
    facts = {"path": str(session.path), "run_id": int(row["run_id"]), "seed": int(row["seed"])}
    facts["steps"] = int(row["steps"])
    made = np.ascontiguousarray(rows["action"]) if "action" in names else moves
    return ChosenRun(
        Run(boards, moves, meta), facts, rows["step_idx"].astype(np.int64), ended=False, made=made
    )


def run_document(
    run: Run, last: str = "final", steps: int | None = None, made: NDArray[np.uint8] | None = None
) -> dict[str, Any]:
    """Return the run's facts, None if unknown; ``steps`` and ``made`` are for moves that it lacks."""
    from tape2048.runs.a2run2 import Move

    meta = run.meta
    try:
        started = (
            dt.datetime.fromtimestamp(meta.start_unix_s, dt.UTC).isoformat() if meta.start_unix_s else None
        )
    except (ValueError, OverflowError, OSError):
        started = None  # outside the years of datetime
    counts = np.bincount(run.moves if made is None else made, minlength=4)[:4]
    return {
        "steps": meta.steps,
        "start_unix_s": meta.start_unix_s or None,
        "started": started,
        "elapsed_s": round(meta.elapsed_s, 6) or None,
        "moves_per_s": meta.steps / meta.elapsed_s if meta.elapsed_s > 0 else None,
        "score": meta.max_score,
        "highest_tile": meta.highest_tile,
        "engine": meta.engine,
        "moves": {move.name: int(counts[move]) for move in Move},
        "moves_unknown": (meta.steps if steps is None else steps) - int(counts.sum()),
        "steps_with_branches": None if run.has_branches is None else int(run.has_branches.sum()),
        f"{last}_board": run.final_board,
        f"{last}_exps": exps_at(run.states, run.moves, len(run)),
    }


def run_parts(run: Run, document: dict[str, Any]) -> list[RenderableType]:
    written = {
        "steps": number(document["steps"]),
        "score": number(document["score"]),
        "moves_per_s": f"{document['moves_per_s'] or 0:,.1f}",
        "moves": ", ".join(f"{name} {number(count)}" for name, count in document["moves"].items()),
    }
    unsaid = {"moves_unknown"} if not document["moves_unknown"] else set()
    if not any(document["moves"].values()) and document["moves_unknown"]:
        unsaid = {"moves"}
    shown = {
        key: written.get(key, value)
        for key, value in document.items()
        if value is not None and not key.endswith(("_board", "_exps")) and key not in unsaid
    }
    title = "final board" if "final_board" in document else "last recorded board"
    return [columns(shown), "", cell(title, "bold"), board(exps_at(run.states, run.moves, len(run)))]


def step_document(run: Run, step: int) -> dict[str, Any]:
    from tape2048.game.moves import recover
    from tape2048.runs.a2run2 import Move, RunV2

    exps = exps_at(run.states, run.moves, step)
    document: dict[str, Any] = {"step": step, "board": int(run.states[step]), "exps": exps}
    if step == len(run):
        return document | {"move": None, "spawn": None, "branches": None}
    found = recover(run.states[step : step + 2], run.moves[step : step + 1])
    spawn = None
    if found.cells[0] < 16:
        spawn = {"cell": int(found.cells[0]), "tile": 1 << int(found.exponents[0])}
    branches = None if run.has_branches is None else RunV2.from_run(run).steps[step].branches
    return document | {
        "move": Move(move).name if (move := int(run.moves[step])) < len(Move) else None,
        "spawn": spawn,
        "branches": None if branches is None else [branch._asdict() for branch in branches],
    }
