"""``tape2048 visualize``: show one run, its facts and its boards, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import EXISTING, json_option, new_command
from tape2048_tools.terminal.output import cell, print_result
from tape2048_tools.views.run import RUN_CHOICE, ChosenRun, choose_run, run_document, run_parts, step_document

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType


@new_command(
    "tape2048 visualize game.a2run2",
    "tape2048 visualize game.a2run --step 100",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple --run 68 --step 10",
    "tape2048 visualize runs.a2pack --longest",
    "tape2048 visualize game.a2run2 --json | jq .moves_per_s",
)
@click.argument("path", metavar="RUN", type=EXISTING)
@RUN_CHOICE
@click.option("--step", type=int, metavar="N", help="The board before move N; -1 is the last board.")
@json_option()
def command(*, path: Path, run_id: int | None, which: str | None, step: int | None, as_json: bool) -> None:
    """Show a run: its facts and last board, or any one of its boards. `play` shows the game.

    RUN is a file of one run (A2T1 or a2run2), or holds several: a session, a directory of sessions, a pack,
    pack.dat, a data set, JSON lines, Parquet, a directory of run files. A run's id is the one in its session,
    data set or pack.dat, as `show` and `export` have it; elsewhere runs have none, and their position from 0
    is their id. A session of rows shows the boards that it recorded, without the final one, which a tape has.
    Moves and spawns that are not stored are recovered from the boards.
    """
    found = choose_run(path, run_id, which)
    if step is not None:
        position = found.position(step)
        document = found.facts | step_document(found.run, position) | {"step": int(found.steps[position])}
        print_result(document, lambda: _step_parts(document, found), as_json=as_json)
        return
    last = "final" if found.ended else "last"
    document = {"path": str(path)} | found.facts | run_document(found.run, last) | found.facts
    print_result(document, lambda: run_parts(found.run, document), as_json=as_json)


def _step_parts(document: dict[str, Any], found: ChosenRun) -> list[RenderableType]:
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
