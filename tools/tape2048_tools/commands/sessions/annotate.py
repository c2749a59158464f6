"""``tape2048 annotate``: a judge's values of every move, with loss and luck, as columns of sessions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.commands.column_jobs import Maker, column_options, make_columns
from tape2048_tools.options.recorder_options import parse_player
from tape2048_tools.terminal.click_extras import new_command

if TYPE_CHECKING:
    from tape2048.session.session import Session


@new_command(
    "tape2048 annotate selfplay",
    "tape2048 annotate selfplay --judge ntuple:weights=fast,ahead=2 --dry-run",
    "tape2048 annotate /nfs/selfplay/sessions --out annotations --shard 1/8",
)
@click.option(
    "--judge",
    default="own",
    metavar="JUDGE",
    help="N-tuple player that judges by a 2-ply search, with ahead=2 by a 3-ply search."
    "  [default: own, the network of the recorded player, 2-ply or 3-ply]",
)
@column_options("columns", chunk_rows=262_144)
def command(*, judge: str, **how: Any) -> None:
    """Judge every move of sessions, and write the result as columns of each session.

    values f32[rows, 4] are the judge's values of the moves up, down, left and right: the score that comes,
    with NaN for illegal moves. best u8[rows] is the best move. loss f32[rows] is the value of the best move
    minus the value of the played move. luck f32[rows] is the value after the spawn minus its expectation, so
    its mean is 0. grade u8[rows] is 0, or 1 to 3 for an inaccuracy, mistake or blunder. All moves are
    searched to the same depth.

    The network's file has the calibration that makes its values the score that comes: see `tape2048 player
    calibrate`. network_values f32[rows, 4] are its values without. If the file has no calibration for the
    player of a session, all points are the network's, and no move has a grade.

    Moves and boards that a session does not hold are replayed. If the player cannot be replayed on this
    machine, loss and luck are NaN for a move or a next board that is not recorded. A warning is printed if
    the judge is or may be weaker than the player: its losses are then not the player's mistakes.

    The columns of a session appear when they are complete. After a kill, the same command resumes. Convert
    runs of another format to a session first. `tape2048 convert` writes the values of a session as branch
    values.
    """
    _maker.cache_clear()
    make_columns("annotate", functools.partial(_maker, judge), **how)


@functools.lru_cache(1)
def _maker(text: str) -> Maker:
    from tape2048_recorder.replay.annotation import Annotator, columns_of, facts_of
    from tape2048_recorder.replay.judging import OWN_JUDGE, Judge, check_judge, own_judges

    name, args = parse_player(text)
    check_judge(name, args)
    own = own_judges()
    chosen = None if name == OWN_JUDGE else (Judge.of_player(name, args), None)

    def of_session(session: Session) -> Maker:
        judge, message = chosen or own(session.meta)
        made = Annotator(judge, session)
        notes = [message, *made.notes] if message else made.notes
        return Maker(
            label, made.facts, made.columns, lambda _, rows: made.make(rows), notes=lambda _: notes
        )  # fmt: skip

    facts = {"judge": text} if chosen is None else facts_of(chosen[0])
    label = f"judge {text}"
    return Maker(
        label, facts, columns_of(facts), lambda one, rows: of_session(one).make(one, rows), of=of_session
    )  # fmt: skip
