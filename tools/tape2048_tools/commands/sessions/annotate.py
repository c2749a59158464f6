"""``tape2048 annotate``: a player's values of every move, with loss and luck, as columns of sessions."""

from __future__ import annotations

import functools
from typing import Any

import click

from tape2048_tools.commands.columns import Maker, column_options, make_columns
from tape2048_tools.options.recorder import complete_player, parse_player
from tape2048_tools.terminal.click_extras import new_command


@new_command(
    "tape2048 annotate selfplay",
    "tape2048 annotate selfplay --player expectimax:depth=2 --dry-run",
    "tape2048 annotate /nfs/selfplay/sessions --out annotations --shard 1/8",
)
@click.option(
    "--player",
    default="ntuple",
    metavar="PLAYER",
    shell_complete=complete_player,
    help="Player with its parameters: ntuple, expectimax or greedy.  [default: ntuple]",
)
@column_options("the four columns", chunk_rows=262_144)
def command(*, player: str, **how: Any) -> None:
    """Value every move of sessions by a player, and write four columns of each session.

    values f32[rows, 4] holds the player's values of the moves up, down, left and right, NaN for illegal
    moves, in points. best u8[rows] is the best move. loss f32[rows] is the best value minus the value of the
    move that was made. luck f32[rows] is the value after the spawn minus its expectation. Loss and luck are
    NaN if the session does not tell the move or the next board.

    The columns of a session appear when they are complete. After a kill, the same command resumes. Convert
    runs of another format to a session first. `tape2048 convert` writes the values of a session as branch
    values.
    """
    _maker.cache_clear()
    make_columns("annotate", functools.partial(_maker, player), **how)


@functools.lru_cache(1)
def _maker(player: str) -> Maker:
    from tape2048_recorder.replay.annotation import Annotator

    annotator = Annotator(*parse_player(player))
    return Maker(f"player {player}", annotator.facts, annotator.columns, annotator.make)
