"""``tape2048 report``: a report of recordings in one file."""

from __future__ import annotations

from pathlib import Path

import click

from tape2048_tools.commands.look.view import judge_options, make_data
from tape2048_tools.terminal.click_extras import (
    PATH,
    force_option,
    int_option,
    json_option,
    new_command,
    quiet_option,
)


@new_command(
    "tape2048 report selfplay -o report.html",
    "tape2048 report selfplay other-sessions -o report.html --games 20 --force",
    "tape2048 report selfplay -o report.html --judge ntuple:weights=fast",
)
@click.argument("roots", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="ROOT...")
@click.option("-o", "--out", type=PATH, required=True, metavar="FILE", help="The file to write.")
@int_option("--games", "Number of games to replay, at most.", default=50, most=50)
@judge_options
@force_option("the report")
@quiet_option()
@json_option()
def command(
    *,
    roots: tuple[Path, ...],
    out: Path,
    games: int,
    judges: tuple[str, ...],
    critic: Path,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a report of the sessions in ROOT: the overview, and games to replay, in one HTML file.

    The file opens offline and asks for nothing. It holds the best, the worst, the longest games, and of sixty
    games spread over all those that lost the most on each move.
    """
    from tape2048.errors import NameTakenError
    from tape2048.io.durable import publishing_file
    from tape2048_tools.terminal.display import size
    from tape2048_tools.terminal.output import cell, print_result
    from tape2048_tools.viewer.report import make_report
    from tape2048_tools.views.opening import progress_bar

    if out.exists() and not force:
        raise NameTakenError("the report exists; nothing was replaced", path=out, hint="--force replaces it")
    data = make_data(roots, judges, critic)
    with progress_bar("judging games", quiet=quiet) as progress:
        page = make_report(data, games=games, progress=progress)
    with publishing_file(out, replace=force) as file:
        file.write(page)
    document = {"path": str(out), "bytes": len(page), "games": len(data.collection.games())}
    print_result(document, lambda: [cell(f"{out}: {size(len(page))}")], as_json=as_json)
