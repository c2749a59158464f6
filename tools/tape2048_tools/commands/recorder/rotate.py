"""``tape2048 rotate``: have a recorder that runs publish its open session now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tape2048_tools.terminal.click_extras import Command, json_option, running_recorder
from tape2048_tools.terminal.output import complain, print_human, print_json, printable

if TYPE_CHECKING:
    from pathlib import Path

EXIT_NOTHING = 1


@click.command(
    cls=Command,
    examples=[
        "tape2048 rotate",
        "tape2048 rotate /data/selfplay --instance gpu0",
        'tape2048 show "$(tape2048 rotate selfplay)"',
    ],
)
@running_recorder
@click.option(
    "--timeout-s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="The longest to wait.",
)
@json_option("One JSON document: the path, or null.")
def command(*, directory: Path, instance: str | None, timeout_s: float, as_json: bool) -> None:
    """Have the recorder of DIRECTORY (selfplay) publish its open session now; print the session's path.

    All games that have ended are in it, those too that workers still held in memory; games in play go into
    the next one. Where no game has ended since the last session there is nothing to publish, and the exit
    code is 1. A worker that cannot write within 10 s (the disk is full) is not waited for.
    """
    from tape2048_recorder.status.control import Running

    with Running(directory, instance) as recorder:
        path = recorder.rotate(timeout_s)
    if as_json:
        print_json({"path": path})
    elif path is not None:
        print_human(printable(path))
    else:
        complain("nothing to publish: no game has ended since the last session")
    if path is None:
        raise click.exceptions.Exit(EXIT_NOTHING)
