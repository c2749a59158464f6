"""``tape2048 visualize``: show one run, or draw its boards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.terminal.click_extras import (
    EXISTING,
    force_option,
    int_option,
    json_option,
    new_command,
    out_option,
)
from tape2048_tools.terminal.display import board, size
from tape2048_tools.terminal.output import cell, print_result
from tape2048_tools.views.run import ChosenRun, choose_run, run_document, run_parts, step_document

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048_recorder.replay.judging import Judge

_FPS = 4  # boards a second of a GIF


@new_command(
    "tape2048 visualize game.a2run2",
    "tape2048 visualize game.a2run --step 100",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple --run-id 68 --step 10",
    "tape2048 visualize runs.a2pack --longest",
    "tape2048 visualize game.a2run2 --json | jq .moves_per_s",
    "tape2048 visualize game.a2run2 --step 100 --out board.svg",
    "tape2048 visualize selfplay --longest --step 2000 --moves 100 --out game.gif",
)
@click.argument("path", metavar="RUN", type=EXISTING)
@click.option(
    "--run-id", type=click.IntRange(0), metavar="ID", help="The run with this id.  [default: the best]"
)
@click.option("--longest", is_flag=True, help="The run with the most moves.")
@click.option("--step", type=int, metavar="N", help="The board before move N; -1 is the last board.")
@out_option("Write the board to FILE.svg, or the game to FILE.gif (extra [gif]).", required=False)
@int_option(
    "--moves", "Moves in the GIF: those after --step, or the last moves.", default=50, least=1, most=2000
)
@click.option(
    "--judge",
    "judge_text",
    default="own",
    metavar="PLAYER",
    help="N-tuple player that grades the moves of a GIF.  [default: own, the network of the recorded player]",
)
@force_option("the file")
@json_option()
def command(
    *,
    path: Path,
    run_id: int | None,
    longest: bool,
    step: int | None,
    out: Path | None,
    moves: int,
    judge_text: str,
    force: bool,
    as_json: bool,
) -> None:
    """Show a run: its facts and last board, or any other board. `tape2048 view` plays whole games.

    RUN is a file of one run (A2T1 or a2run2), or a source of several runs: a session, a directory of
    sessions, a pack, pack.dat, a data set, JSON lines, Parquet, or a directory of run files. In a session, a
    data set or a pack.dat, runs have the ids that `show` and `export` print. In other sources, the id of a
    run is its position, from 0. The final board of a game is in a session on tape, and not in a session of
    rows. Moves and spawns that are not stored are recovered from the boards.
    """
    if out is not None:
        data = _picture((path, run_id), step, out, moves, judge_text, longest=longest, force=force)
        document = {"path": str(out), "bytes": len(data)}
        print_result(document, lambda: [cell(f"{out}: {size(len(data))}")], as_json=as_json)
        return
    found = choose_run(path, run_id, longest=longest)
    if step is not None:
        position = found.position(step)
        document = found.facts | step_document(found.run, position) | {"step": int(found.steps[position])}
        print_result(document, lambda: _step_parts(document, found), as_json=as_json)
        return
    last = "final" if found.ended else "last"
    facts = run_document(found.run, last, found.facts.get("steps"), found.made)
    document = {"path": str(path)} | found.facts | facts | found.facts
    print_result(document, lambda: run_parts(found.run, document), as_json=as_json)


def _step_parts(document: dict[str, Any], found: ChosenRun) -> list[RenderableType]:
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
        values = [
            f"{name} {branch['value']:.4g}" if branch["legal"] else f"{name} -"
            for name, branch in zip(("UP", "DOWN", "LEFT", "RIGHT"), document["branches"], strict=True)
        ]
        parts.append(f"branch values: {', '.join(values)}")
    return parts


def _picture(
    choice: tuple[Path, int | None], step: int | None, out: Path, moves: int, judge_text: str,
    *, longest: bool, force: bool,
) -> bytes:  # fmt: skip
    """Write an SVG of one board, or a GIF of moves, with grades unless the judge may be weaker."""
    import numpy as np

    from tape2048.base.drawing import board_svg
    from tape2048.files.durable import check_new_file, publishing_file
    from tape2048.game.rules import boards_to_exps
    from tape2048.runs.a2run2 import Move
    from tape2048_recorder.replay.judging import GRADE_NAMES
    from tape2048_tools.viewer.pictures import gif

    if out.suffix not in {".svg", ".gif"}:
        raise click.BadParameter(f"found {out.name!r}, expected FILE.svg or FILE.gif", param_hint="--out")
    check_new_file(out, replace=force)
    found = choose_run(*choice, longest=longest, replay=True)
    boards, made = found.arrays()
    first = len(boards) - 1 if step is None else found.position(step)
    if out.suffix == ".svg":
        drawn = board_svg(boards_to_exps(boards[first : first + 1])[0].tolist())
        data = drawn.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).encode()  # unlike in HTML
    else:
        first = max(0, first - moves) if step is None else first
        boards, made = boards[first : first + moves + 1], made[first : first + moves]
        judge = _judge_of(found, judge_text)
        is_weak = judge.weakness(*found.played_by()) is not None
        judged = judge.game(boards, made) if len(made) and not is_weak else None
        losses = np.zeros((2, len(made))) if judged is None else np.stack([judged.loss, judged.spread])
        grades = np.zeros(len(made), np.uint8) if judged is None else judged.grade
        words = [f"move {number:,}" for number in found.steps[first : first + len(boards)].tolist()]
        for at, (move, loss, number) in enumerate(zip(made.tolist(), losses.T, grades.tolist(), strict=True)):
            grade = f", {GRADE_NAMES[number]} (loses {_with_error(*loss)})" if number else ""
            words[at] += f": {Move(move).name.lower()}{grade}" if move < len(Move) else ""
        data = gif(zip(boards_to_exps(boards).tolist(), words, strict=True), _FPS)
    with publishing_file(out, replace=force) as file:
        file.write(data)
    return data


def _with_error(loss: float, error: float) -> str:
    unit = 10 ** max(0, int(math.log10(max(min(loss, error), 1))))  # as exact as the error
    return f"{round(loss / unit) * unit:,} ± {round(error / unit) * unit:,}"


def _judge_of(found: ChosenRun, judge_text: str) -> Judge:
    from pathlib import Path

    from tape2048.session.session import Session
    from tape2048_recorder.replay.annotation import annotation_of
    from tape2048_tools.viewer.game_data import Judges

    known = Session.open(found.facts["path"]) if "seed" in found.facts else None
    of_session = (known.meta, annotation_of(known)) if known else ({}, None)
    return Judges([judge_text], Path("default")).of_game(0, *of_session)[0]
