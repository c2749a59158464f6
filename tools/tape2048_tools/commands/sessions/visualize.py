"""``tape2048 visualize``: show one run, its facts and its boards, in the terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import EXISTING, json_option, new_command
from tape2048_tools.terminal.output import cell, print_human, print_result

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048.runs.run import Run


@new_command(
    "tape2048 visualize game.a2run2",
    "tape2048 visualize game.a2run --step 100",
    "tape2048 visualize runs.a2pack --index 5 --play --fps 20",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple --index 0 --step 10",
    "tape2048 visualize game.a2run2 --json | jq .moves_per_s",
)
@click.argument("run", type=EXISTING)
@click.option("--index", type=click.IntRange(0), metavar="I", help="The run's number, from 0.")
@click.option("--step", type=int, metavar="N", help="The board before move N; -1 is the final board.")
@click.option("--play", is_flag=True, help="Show every board in turn.")
@click.option("--fps", type=click.FloatRange(0, min_open=True), default=10.0, help="Boards a second.")
@json_option()
def command(*, run: Path, index: int | None, step: int | None, play: bool, fps: float, as_json: bool) -> None:
    """Show a run: its facts and final board, any one of its boards, or the whole game.

    RUN is a file of one run (A2T1 or a2run2), or, with --index, a file or directory of several: a pack, a
    session, pack.dat, a data set, JSON lines. A session shows the boards that it recorded, without the final
    one. Moves and spawns that are not stored are recovered from the boards.
    """
    from tape2048_tools.views.run import run_document, run_parts, step_document

    found = _read(run, index)
    if step is not None:
        if not -1 <= step <= len(found):
            raise click.BadParameter(f"{step}; the run has boards 0 to {len(found)}", param_hint="--step")
        document = step_document(found, len(found) if step == -1 else step)
        print_result(document, lambda: _step_parts(document, len(found)), as_json=as_json)
        return
    document = {"path": str(run), **run_document(found)}
    if play and not as_json:
        _play(found, fps)
    print_result(document, lambda: run_parts(found, document), as_json=as_json)


def _read(path: Path, index: int | None) -> Run:
    from itertools import islice

    from tape2048.conversion.sources import kind_of, open_source
    from tape2048.io.reading import reading
    from tape2048.packs.layout import MAGIC
    from tape2048.runs.files import first_bytes, read_run_file

    if index is None:
        with reading(path):
            is_directory = path.is_dir()
        if is_directory or first_bytes(path, len(MAGIC)) == MAGIC:
            count = open_source(path).count
            raise click.BadParameter(f"name one of its {counted(count, 'run')}, from 0", param_hint="--index")
        return read_run_file(path)  # which recognises the content, not the name
    kind = kind_of(path)
    if kind == "run":
        raise click.BadParameter("the file has a single run: leave --index out", param_hint="--index")
    if kind == "pack":
        from tape2048.packs import PackReader

        reader = PackReader.open(path)
        return reader.decode(_checked(index, len(reader)))
    if kind == "session":
        return _of_session(path, index)
    source = open_source(path)
    found = next(islice(source.runs(workers=1), index, None), None)
    if found is None:
        raise click.BadParameter(f"{index}: there are fewer runs", param_hint="--index")
    if found.run is None:
        raise found.failure
    return found.run


def _of_session(path: Path, index: int) -> Run:
    """Return the recorded boards of a game; recover its moves if they were not recorded."""
    import numpy as np

    from tape2048.conversion.session_runs import boards_of
    from tape2048.game.moves import recover
    from tape2048.runs.run import Run, RunMeta
    from tape2048.session.session import Session

    session = Session.open(path)
    row = session.runs[_checked(index, len(session.runs))]
    rows = session.steps[session.rows_of(index)]
    if not len(rows):
        raise click.BadParameter(f"the session has no board of run {index}", param_hint="--index")
    boards = boards_of(rows, f"run {row['id']}", path)
    names = rows.dtype.names or ()
    moves = np.ascontiguousarray(rows["action"][:-1]) if "action" in names else recover(boards).moves
    engine = session.meta.get("player")
    meta = RunMeta(
        steps=len(boards) - 1,
        max_score=int(row["max_score"]),
        highest_tile=int(row["highest_tile"]),
        engine=engine if isinstance(engine, str) else None,
    )
    return Run(boards, moves, meta)


def _checked(index: int, count: int) -> int:
    if index >= count:
        there = f"there are runs 0 to {count - 1}" if count else "there is no run"
        raise click.BadParameter(f"{index}; {there}", param_hint="--index")
    return index


def _step_parts(document: dict[str, Any], steps: int) -> list[RenderableType]:
    from tape2048_tools.terminal.display import board

    parts: list[RenderableType] = [
        cell(f"board {document['step']} of {steps}", "bold"),
        board(document["exps"]),
    ]
    spawn = document["spawn"]
    if document["move"] is None:
        last = document["step"] == steps
        parts.append("the final board" if last else "the move cannot be recovered from the boards")
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


def _play(run: Run, fps: float) -> None:
    """Show every board in turn: in one place on a terminal, one below the other elsewhere."""
    from rich.console import Group as Parts

    from tape2048_tools.terminal.display import board
    from tape2048_tools.views.run import exps_of

    def frame(step: int) -> RenderableType:
        return Parts(cell(f"board {step} of {len(run)}", "bold"), board(exps_of(int(run.states[step]))))

    if not sys.stdout.isatty():
        for step in range(len(run) + 1):
            print_human(frame(step))
        return
    from rich.live import Live

    with Live(frame(0), auto_refresh=False, transient=True) as live:
        for step in range(len(run) + 1):
            live.update(frame(step), refresh=True)
            time.sleep(1 / fps)
