"""``tape2048 visualize``: show one run, its facts and its boards, in the terminal."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import EXISTING, json_option, new_command
from tape2048_tools.terminal.output import cell, print_human, print_result

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from tape2048.conversion.sources import Source, SourceRun
    from tape2048.runs.run import Run
    from tape2048.session.session import Session


class _Found(NamedTuple):
    """A run, and what its source says of it."""

    run: Run
    facts: dict[str, Any]
    steps: NDArray[np.int64]  # number of the move before which each board stood; the last one may be final
    ended: bool = True  # whether the last board is the final one


@new_command(
    "tape2048 visualize game.a2run2",
    "tape2048 visualize game.a2run --step 100",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple --run 68 --step 10",
    "tape2048 visualize runs.a2pack --longest --play --fps 20",
    "tape2048 visualize game.a2run2 --json | jq .moves_per_s",
)
@click.argument("path", metavar="RUN", type=EXISTING)
@click.option("--run", "run_id", type=click.IntRange(0), metavar="ID", help="The run with this id.")
@click.option("--best", "which", flag_value="best", help="The run with the highest score (default).")
@click.option("--worst", "which", flag_value="worst", help="The run with the lowest score.")
@click.option("--longest", "which", flag_value="longest", help="The run with the most moves.")
@click.option("--step", type=int, metavar="N", help="The board before move N; -1 is the last board.")
@click.option("--play", is_flag=True, help="Show every board in turn.")
@click.option("--fps", type=click.FloatRange(0, min_open=True), default=10.0, help="Boards a second.")
@json_option()
def command(
    *,
    path: Path,
    run_id: int | None,
    which: str | None,
    step: int | None,
    play: bool,
    fps: float,
    as_json: bool,
) -> None:
    """Show a run: its facts and last board, any one of its boards, or the whole game.

    RUN is a file of one run (A2T1 or a2run2), or holds several: a session, a directory of sessions, a pack,
    pack.dat, a data set, JSON lines, Parquet, a directory of run files. A run's id is the one in its session,
    data set or pack.dat, as `show` and `export` have it; elsewhere runs have none, and their position from 0
    is their id. A session shows the boards that it recorded, without the final one. Moves and spawns that are
    not stored are recovered from the boards.
    """
    from tape2048_tools.views.run import run_document, run_parts, step_document

    if run_id is not None and which is not None:
        raise click.UsageError(f"--run and --{which} both select a run: give one of them")
    found = _read(path, run_id, which or "best")
    if step is not None:
        position = _position(found.steps, step)
        document = found.facts | step_document(found.run, position) | {"step": int(found.steps[position])}
        print_result(document, lambda: _step_parts(document, found), as_json=as_json)
        return
    last = "final" if found.ended else "last"
    document = {"path": str(path)} | found.facts | run_document(found.run, last) | found.facts
    if play and not as_json:
        _play(found, fps)
    print_result(document, lambda: run_parts(found.run, document), as_json=as_json)


def _position(steps: NDArray[np.int64], step: int) -> int:
    """Return the position of the board before a move."""
    if step == -1:
        return len(steps) - 1
    position = int(steps.searchsorted(step))
    if position == len(steps) or steps[position] != step:
        every = f", every {steps[1] - steps[0]}th" if len(steps) > 1 and steps[1] - steps[0] > 1 else ""
        message = f"{step}; the run has boards {steps[0]} to {steps[-1]}{every}"
        raise click.BadParameter(message, param_hint="--step")
    return position


def _read(path: Path, run_id: int | None, which: str) -> _Found:
    from itertools import islice

    import numpy as np

    from tape2048.conversion.sources import kind_of, open_source
    from tape2048.errors import MagicError
    from tape2048.runs.files import read_run_file

    try:
        kind = kind_of(path)
    except MagicError:
        kind = "run"  # read_run_file recognises the content, not the name
    facts: dict[str, Any] = {}
    if kind == "run":
        if run_id:
            raise click.BadParameter("the file has a single run, 0", param_hint="--run")
        run = read_run_file(path)
    elif kind in {"session", "sessions"}:
        return _of_sessions(path, kind, run_id, which)
    elif kind == "pack" and run_id is not None:
        from tape2048.packs import PackReader

        reader = PackReader.open(path)
        run, facts = reader.decode(_chosen(np.arange(len(reader)), run_id)), {"run": run_id}
    elif kind in {"dataset", "packdat"}:
        from tape2048.datasets import DataPack, Dataset

        table = (Dataset.open(path, load="mmap") if kind == "dataset" else DataPack.load(path)).runs
        position = _choose(table["id"], table["max_score"], table["steps"], run_id, which)
        (read,) = islice(open_source(path, lossy=True).runs(workers=1), position, position + 1)
        run, facts = _run_of(read), {"run": int(table["id"][position])}
    else:
        read, position = _search(open_source(path, lossy=True), run_id, which)
        run, facts = _run_of(read), {"run": position}
        facts |= {"path": read.name} if kind == "runs" else {}
    return _Found(run, facts, np.arange(len(run) + 1))


def _run_of(found: SourceRun) -> Run:
    if found.run is None:
        raise found.failure
    return found.run


def _search(source: Source, run_id: int | None, which: str) -> tuple[SourceRun, int]:
    """Read runs that have no table up to the one with this position, or all of them for the chosen one."""
    from tape2048_tools.views.opening import progress_bar

    best: tuple[float, SourceRun, int] | None = None
    count = 0
    with progress_bar(f"reading {source.path.name}") as progress:
        for position, found in enumerate(source.runs()):
            count = position + 1
            if position == run_id:
                return found, position
            if progress is not None:
                progress(count, max(count, source.count))
            if found.run is None:
                value = -math.inf  # a damaged one is chosen only where all are
            else:
                meta = found.run.meta
                value = {"best": meta.max_score, "worst": -meta.max_score, "longest": meta.steps}[which]
            if best is None or value > best[0]:
                best = value, found, position
    if run_id is not None or best is None:
        _refuse(run_id, count, 0, count - 1)
    return best[1:]


def _choose(
    ids: NDArray[Any], scores: NDArray[Any], steps: NDArray[Any], run_id: int | None, which: str
) -> int:
    """Return the position of the run with this id, or else of the first one that is the best."""
    if run_id is not None or not len(ids):
        return _chosen(ids, run_id)
    return int({"best": scores.argmax, "worst": scores.argmin, "longest": steps.argmax}[which]())


def _chosen(ids: NDArray[Any], run_id: int | None) -> int:
    found = (ids == run_id).nonzero()[0]
    if not len(found):
        _refuse(run_id, len(ids), *((int(ids.min()), int(ids.max())) if len(ids) else (0, 0)))
    return int(found[0])


def _refuse(run_id: int | None, count: int, first: int, last: int) -> NoReturn:
    if not count:
        raise click.BadParameter("there is no run", param_hint="RUN")
    message = f"{run_id}; there is no such run: {counted(count, 'run')}, {first} to {last}"
    raise click.BadParameter(message, param_hint="--run")


def _of_sessions(path: Path, kind: str, run_id: int | None, which: str) -> _Found:
    import numpy as np

    from tape2048.session.session import Session, sessions

    opened = [Session.open(one) for one in ([path] if kind == "session" else sessions(path))]
    runs = np.concatenate([one.runs for one in opened])
    owners = np.repeat(np.arange(len(opened)), [len(one.runs) for one in opened])
    if run_id is not None and len(names := {opened[i].name for i in owners[runs["id"] == run_id]}) > 1:
        message = f"{run_id}; {len(names)} sessions have it: name one of them ({min(names)})"
        raise click.BadParameter(message, param_hint="--run")
    position = _choose(runs["id"], runs["max_score"], runs["steps"], run_id, which)
    owner = int(owners[position])
    return _of_session(opened[owner], position - int((owners < owner).sum()))


def _of_session(session: Session, ordinal: int) -> _Found:
    """Return the recorded boards of a game; recover its moves if they were not recorded."""
    import numpy as np

    from tape2048.conversion.session_runs import boards_of
    from tape2048.game.moves import recover
    from tape2048.runs.run import Run, RunMeta

    row = session.runs[ordinal]
    rows = session.steps[session.rows_of(ordinal)]
    if not len(rows):
        raise click.BadParameter(f"the session has no board of run {row['id']}", param_hint="--run")
    boards = boards_of(rows, f"run {row['id']}", session.path)
    names = rows.dtype.names or ()
    moves = np.ascontiguousarray(rows["action"][:-1]) if "action" in names else recover(boards).moves
    engine = session.meta.get("player")
    meta = RunMeta(
        steps=len(boards) - 1,
        max_score=int(row["max_score"]),
        highest_tile=int(row["highest_tile"]),
        engine=engine if isinstance(engine, str) else None,
    )
    # The moves made, which are more than those between recorded boards.
    facts = {"path": str(session.path), "run": int(row["id"]), "seed": int(row["seed"])}
    facts["steps"] = int(row["steps"])
    return _Found(Run(boards, moves, meta), facts, rows["step_idx"].astype(np.int64), ended=False)


def _step_parts(document: dict[str, Any], found: _Found) -> list[RenderableType]:
    from tape2048_tools.terminal.display import board

    parts: list[RenderableType] = [
        cell(f"board {document['step']} of {found.steps[-1]}", "bold"),
        board(document["exps"]),
    ]
    spawn = document["spawn"]
    if document["move"] is None:
        last = "the final board" if found.ended else "the last recorded board"
        is_last = document["step"] == found.steps[-1]
        parts.append(last if is_last else "the move cannot be recovered from the boards")
    elif spawn is None:
        parts.append(f"{document['move']}, which does not lead to the next board")
    else:
        row, column = divmod(spawn["cell"], 4)
        parts.append(f"{document['move']}, then a {spawn['tile']} in row {row + 1}, column {column + 1}")
    if document["branches"] is not None:
        names = ("UP", "DOWN", "LEFT", "RIGHT")
        values = [
            f"{name} {branch['value']:.4g}" if branch["legal"] else f"{name} -"
            for name, branch in zip(names, document["branches"], strict=True)
        ]
        parts.append(f"branch values: {', '.join(values)}")
    return parts


def _play(found: _Found, fps: float) -> None:
    """Show every board in turn: in one place on a terminal, one below the other elsewhere."""
    from rich.console import Group as Parts

    from tape2048_tools.terminal.display import board
    from tape2048_tools.views.run import exps_of

    def frame(at: int) -> RenderableType:
        return Parts(
            cell(f"board {found.steps[at]} of {found.steps[-1]}", "bold"),
            board(exps_of(int(found.run.states[at]))),
        )

    if not sys.stdout.isatty():
        for at in range(len(found.steps)):
            print_human(frame(at))
        return
    from rich.live import Live

    with Live(frame(0), auto_refresh=False, transient=True) as live:
        for at in range(len(found.steps)):
            live.update(frame(at), refresh=True)
            time.sleep(1 / fps)
