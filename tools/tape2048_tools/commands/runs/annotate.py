"""``tape2048 annotate``: add a player's values of all four moves to runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.commands.runs.convert import conversion_options, write_converted
from tape2048_tools.options.recorder import complete_player
from tape2048_tools.terminal.click_extras import EXISTING, PATH, new_command

if TYPE_CHECKING:
    from pathlib import Path


@new_command(
    "tape2048 annotate runs/ annotated.a2pack --player expectimax:depth=2",
    "tape2048 annotate selfplay/ ds --player ntuple:look_below=16 --to dataset --lossy",
)
@click.argument("source", type=EXISTING)
@click.argument("target", type=PATH)
@click.option(
    "--player",
    default="ntuple",
    metavar="PLAYER",
    shell_complete=complete_player,
    help="Player with its parameters.  [default: ntuple]",
)
@click.option("--replace", is_flag=True, help="Replace values that exist.")
@conversion_options
def command(*, source: Path, target: Path, player: str, replace: bool, **how: Any) -> None:
    """Write the runs in SOURCE to TARGET with a player's values of the four moves of every step.

    Values are normalised step by step over the legal moves: the best is just below 1, the worst 0. Without
    --replace, steps keep the values that they have. SOURCE and TARGET are as for `tape2048 convert`.
    """
    from tape2048_recorder.replay.judging import Annotator
    from tape2048_tools.options.recorder import parse_player

    name, args = parse_player(player)
    write_converted("annotating", source, target, change=Annotator(name, args, replace=replace), **how)
