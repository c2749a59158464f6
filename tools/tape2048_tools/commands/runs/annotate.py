"""``tape2048 annotate``: a player's values of all four moves, for runs that have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.commands.runs.convert import conversion_options, write_converted
from tape2048_tools.terminal.click_extras import PATH, Command

if TYPE_CHECKING:
    from pathlib import Path


@click.command(
    cls=Command,
    examples=[
        "tape2048 annotate runs/ annotated.a2pack --player expectimax:depth=2",
        "tape2048 annotate selfplay/ ds --player ntuple:look_below=16 --to dataset --lossy",
    ],
)
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--player",
    default="ntuple",
    metavar="PLAYER",
    help="Whose values, parameters included.  [default: ntuple]",
)
@click.option("--replace", is_flag=True, help="Compute anew what runs have already.")
@conversion_options
def command(*, source: Path, target: Path, player: str, replace: bool, **how: Any) -> None:
    """Write the runs in SOURCE to TARGET with a player's values of the four moves of every step.

    Values are normalised step by step over the legal moves: the best is just below 1, the worst 0. Steps
    that have values keep them, but for --replace. SOURCE and TARGET are as for `tape2048 convert`.
    """
    from tape2048.conversion import open_source
    from tape2048_recorder.config.loading import split_player
    from tape2048_recorder.replay.annotate import Annotator
    from tape2048_recorder.replay.replay import final_boards

    name, args = split_player(player)
    annotator = Annotator(name, args or {}, replace=replace)
    annotated = open_source(source, final_boards).changed(annotator)
    write_converted("annotating", annotated, target, **how)
