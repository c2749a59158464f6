"""``tape2048 visualize`` and ``tape2048 play``: show one run, step through it with keys, or play a game."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import click

from tape2048.base.text import counted
from tape2048_tools.terminal.click_extras import (
    CRITIC,
    EXISTING,
    force_option,
    int_option,
    json_option,
    new_command,
    out_option,
)
from tape2048_tools.terminal.display import board, size
from tape2048_tools.terminal.output import cell, complain, print_result
from tape2048_tools.terminal.screen import Screen
from tape2048_tools.views.run import RUN_CHOICE, ChosenRun, choose_run, run_document, run_parts, step_document

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048_recorder.replay.judging import Judge
    from tape2048_tools.views.screens import CriticView, PersonScreen


@new_command(
    "tape2048 visualize game.a2run2",
    "tape2048 visualize game.a2run --step 100",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple",
    "tape2048 visualize selfplay/20260101T000000Z_model=ntuple --run 68 --step 10",
    "tape2048 visualize runs.a2pack --longest",
    "tape2048 visualize game.a2run2 --json | jq .moves_per_s",
    "tape2048 visualize game.a2run2 --step 100 --out board.svg",
    "tape2048 visualize selfplay --longest --step 2000 --moves 100 --out game.gif",
)
@click.argument("path", metavar="RUN", type=EXISTING)
@RUN_CHOICE
@click.option("--step", type=int, metavar="N", help="The board before move N; -1 is the last board.")
@out_option("Write the board to FILE.svg, or the game to FILE.gif (extra [gif]).", required=False)
@int_option(
    "--moves", "Moves in the GIF: those after --step, or the last moves.", default=50, least=1, most=2000
)
@click.option("--judge", "judge_text", default="own", metavar="PLAYER", help="Judge for a GIF, as in `play`.")
@force_option("the file")
@json_option()
def visualize(
    *,
    path: Path,
    run_id: int | None,
    which: str | None,
    step: int | None,
    out: Path | None,
    moves: int,
    judge_text: str,
    force: bool,
    as_json: bool,
) -> None:
    """Show a run: its facts and last board, or any other board. `play` shows the whole game.

    RUN is a file of one run (A2T1 or a2run2), or a source of several runs: a session, a directory of
    sessions, a pack, pack.dat, a data set, JSON lines, Parquet, or a directory of run files. In a session, a
    data set or a pack.dat, runs have the ids that `show` and `export` print. In other sources, the id of a
    run is its position, from 0. The final board of a game is in a session on tape, and not in a session of
    rows. Moves and spawns that are not stored are recovered from the boards.
    """
    if out is not None:
        data = _picture((path, run_id, which), step, out, moves, judge_text, force=force)
        document = {"path": str(out), "bytes": len(data)}
        print_result(document, lambda: [cell(f"{out}: {size(len(data))}")], as_json=as_json)
        return
    found = choose_run(path, run_id, which)
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
    choice: tuple[Path, int | None, str | None], step: int | None, out: Path, moves: int, judge_text: str,
    *, force: bool,
) -> bytes:  # fmt: skip
    """Write an SVG of one board, or a GIF of moves, with grades unless the judge may be weaker."""
    from tape2048.base.drawing import board_svg
    from tape2048.files.durable import check_new_file, publishing_file
    from tape2048.game.rules import boards_to_exps
    from tape2048_recorder.replay.judging import GRADES
    from tape2048_tools.viewer.pictures import gif
    from tape2048_tools.views.screens import MOVES

    if out.suffix not in {".svg", ".gif"}:
        raise click.BadParameter(f"found {out.name!r}, expected FILE.svg or FILE.gif", param_hint="--out")
    check_new_file(out, replace=force)
    found = choose_run(*choice, replay=True)
    boards, made = found.arrays()
    first = len(boards) - 1 if step is None else found.position(step)
    if out.suffix == ".svg":
        drawn = board_svg(boards_to_exps(boards[first : first + 1])[0].tolist())
        data = drawn.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).encode()  # unlike in HTML
    else:
        first = max(0, first - moves) if step is None else first
        boards, made = boards[first : first + moves + 1], made[first : first + moves]
        judge = _judge_of(found, judge_text)
        grades = {} if judge.weakness(*found.played_by()) else GRADES["points"]
        losses = judge.game(boards, made).loss if len(made) else made
        words = [f"move {number:,}" for number in found.steps[first : first + len(boards)].tolist()]
        for at, (move, loss) in enumerate(zip(made.tolist(), losses, strict=True)):
            grade = next(
                (f", {name} (loss {loss:,.0f})" for name, least in grades.items() if loss >= least), ""
            )
            words[at] += f": {MOVES[move].lower()}{grade}" if move < len(MOVES) else ""
        data = gif(zip(boards_to_exps(boards).tolist(), words, strict=True), _FPS)
    with publishing_file(out, replace=force) as file:
        file.write(data)
    return data


def _judge_of(found: ChosenRun, judge_text: str) -> Judge:
    """Return the judge that the replay of a run shows first."""
    from pathlib import Path

    from tape2048.session.session import Session
    from tape2048_recorder.replay.annotation import annotation_of
    from tape2048_tools.viewer.game_data import Judges

    known = Session.open(found.facts["path"]) if "seed" in found.facts else None
    of_session = (known.meta, annotation_of(known)) if known else ({}, None)
    return Judges([judge_text], Path("default")).of_game(0, *of_session)[0]


#: Boards a second of a GIF.
_FPS = 4

_SUFFIXES = (".a2run", ".a2run2")


@new_command(
    "tape2048 play",
    "tape2048 play --out mine.a2run2",
    "tape2048 play selfplay/20260101T000000Z_model=ntuple",
    "tape2048 play selfplay/20260101T000000Z_model=ntuple --run 68 --step 1200",
    "tape2048 play runs.a2pack --longest --judge ntuple:weights=fast",
)
@click.argument("path", metavar="[RUN]", type=EXISTING, required=False)
@RUN_CHOICE
@click.option("--step", type=int, metavar="N", help="Start at the board before move N; -1 is the last board.")
@click.option(
    "--fps",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Boards per second.",
)
@click.option(
    "--judge",
    "judge_text",
    default="own",
    metavar="PLAYER",
    help="N-tuple player that judges moves and gives advice; ahead=2 searches one ply deeper."
    "  [default: own, the network of the recorded player, 2-ply or 3-ply]",
)
@CRITIC
@out_option("Write your game to this new .a2run or .a2run2 file.", required=False)
@int_option("--seed", "Seed of your game's spawns.  [default: a random one]", most=2**64 - 1)
def play(
    *,
    path: Path | None,
    run_id: int | None,
    which: str | None,
    step: int | None,
    fps: float,
    judge_text: str,
    critic: Path,
    out: Path | None,
    seed: int | None,
) -> None:
    """Step through a recorded game, or play one yourself.

    RUN is as for `visualize`. The arrow keys go one move, and PgUp and PgDn go 100 moves. p and n go to the
    previous and next large loss. [ and ] go to the previous and next move that differs from the judge's
    choice. / goes to a move number. Space plays and pauses. c switches to the critic as judge, tile by tile.
    ? shows the keys, and q quits.

    Beside the board are the move, the score, the values of all moves, the loss and the luck. Loss is how much
    worse the move was than the best move. Luck is how much better the spawn was than the mean. The network of
    --judge measures both in points of future score, and the critic in the probability of a tile.

    Without RUN, you play: the arrow keys (or w, a, s, d) move, p shows the player's advice, and c the
    critic's advice.
    """
    from tape2048.jit.compiler import announced
    from tape2048.session.session import Session
    from tape2048_recorder.replay.annotation import annotation_of
    from tape2048_tools.terminal.background import in_background
    from tape2048_tools.viewer.game_data import Judges
    from tape2048_tools.views.screens import PersonGame, PersonScreen, ReplayScreen, show, view_of

    if path is None and (run_id, which, step) != (None, None, None):
        raise click.UsageError(
            "--run, --best, --worst, --longest and --step need RUN, the source of the game"
        )
    if path is not None and (out, seed) != (None, None):
        raise click.UsageError("--out and --seed are for playing yourself, without RUN")
    if out is not None:
        _refuse_taken(out)
    screen = Screen()
    judges = Judges([judge_text], critic)

    with announced(lambda: complain("compiling, once per version: at most a minute")):
        found = None if path is None else choose_run(path, run_id, which, replay=True)
        # Only sessions hold the seed, and their facts name the player.
        known = Session.open(found.facts["path"]) if found is not None and "seed" in found.facts else None
        judge, message = judges.of_game(
            0, known.meta if known else {}, annotation_of(known) if known else None
        )
        if found is None:
            PersonGame.compile(judge)
        if message:
            complain(message)
    if path is None or found is None:
        game = PersonGame(secrets.randbits(64) if seed is None else seed)
        _play(screen, PersonScreen(game, judge, lambda: Judges([], critic).all()), out)
        return
    number = f"run {found.facts['run']} of " if "run" in found.facts else ""
    shown = ReplayScreen(
        number + str(found.facts.get("path", path)).rstrip("/").rpartition("/")[2],
        found,
        in_background(lambda: view_of(judge, *found.arrays(), judge.weakness(*found.played_by()))),
        in_background(lambda: _by_critic(critic, found)),
        position=0 if step is None else found.position(step),
    )
    with screen:
        show(screen, shown, 1 / fps)


def _by_critic(path: Path, found: ChosenRun) -> CriticView:
    from tape2048.critic.facts import strangers
    from tape2048.players import PlayedBy, identity_of
    from tape2048_tools.viewer.game_data import Judges
    from tape2048_tools.views.screens import CriticView, view_of

    judges = Judges([], path)
    critic = judges.critic
    boards, moves = found.arrays()
    identity = identity_of(found.run.meta.engine)
    note = ""
    if strangers(critic.info, [PlayedBy("", identity.player_sha256 if identity else "", 1)]):
        judged = ", ".join(player.player_name for player in critic.info.players)
        whose = "another player" if identity else "an unknown player"
        note = f"the critic was trained on games of {judged}. This game is by {whose}"
    played_by = found.played_by()
    views = [view_of(judge, boards, moves, judge.weakness(*played_by)) for judge in judges.all()]
    return CriticView(critic.thresholds, critic(boards), views, note)


def _play(screen: Screen, shown: PersonScreen, out: Path | None) -> None:
    from tape2048._version import __version__
    from tape2048.runs.a2run import write_run
    from tape2048.runs.a2run2 import RunV2
    from tape2048.runs.run import Run, RunMeta
    from tape2048_tools.views.screens import show

    game = shown.game
    begin, began_unix_s = time.monotonic(), int(time.time())
    try:
        with screen:
            show(screen, shown)
    finally:
        said = f"score {game.score:,}, {counted(len(game.moves), 'move')}"
        if out is not None and game.moves:
            meta = RunMeta(
                steps=len(game.moves),
                start_unix_s=began_unix_s,
                elapsed_s=time.monotonic() - begin,
                max_score=game.score,
                highest_tile=1 << max(game.exps),
                engine=f"tape2048 {__version__} person",
            )
            run = Run(*game.arrays(), meta)
            if out.suffix == ".a2run":
                write_run(out, run)
            else:
                RunV2.from_run(run).save(out)
            said += f", recorded in {out}"
        complain(said)


def _refuse_taken(path: Path) -> None:
    from tape2048.files.durable import check_new_file

    if path.suffix not in _SUFFIXES:
        raise click.BadParameter(
            f"found {path.name!r}, expected a name that ends with .a2run or .a2run2", param_hint="--out"
        )
    check_new_file(path)
