"""``tape2048 report``: a report of recordings in one file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048_tools.commands.look.view import judge_options, make_data
from tape2048_tools.terminal.click_extras import (
    PATH,
    force_option,
    int_option,
    job_options,
    json_option,
    new_command,
    quiet_option,
)

if TYPE_CHECKING:
    from tape2048_tools.sessions.jobs import Engine, Job


@new_command(
    "tape2048 report selfplay -o report.html",
    "tape2048 report selfplay other-sessions -o report.html --games 20 --force",
    "tape2048 report selfplay -o report.html --judge ntuple:weights=fast",
    "tape2048 report /nfs/selfplay/sessions -o reports --shard 1/8",
)
@click.argument("roots", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="ROOT...")
@click.option(
    "-o",
    "--out",
    type=PATH,
    required=True,
    metavar="FILE",
    help="The file to write; of a job, the directory.",
)
@int_option("--games", "Number of games to replay, at most.", default=50, most=50)
@judge_options
@force_option("the report")
@job_options("--out")
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
    shard: tuple[int, int] | None,
    engine: Engine | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a report of the sessions in ROOT: the overview, and games to replay, in one HTML file.

    The file opens offline and asks for nothing. It holds the best, the worst, the longest games, and of sixty
    games spread over all those that lost the most on each move.

    With --shard or --engine, each session has a report of its own in the directory --out.
    """
    if shard or engine:
        from tape2048_tools.commands.jobs import do_job
        from tape2048_tools.sessions.roots import expand_all

        job = _job(out, games, judges, critic)
        do_job(job, expand_all(roots), shard=shard, engine=engine, as_json=as_json, quiet=quiet)
        return
    from tape2048.errors import NameTakenError
    from tape2048.io.durable import publishing_file
    from tape2048_tools.progress.panel import progress_bar
    from tape2048_tools.terminal.display import size
    from tape2048_tools.terminal.output import cell, print_result
    from tape2048_tools.viewer.report import make_report

    if out.exists() and not force:
        raise NameTakenError("the report exists; nothing was replaced", path=out, hint="--force replaces it")
    data = make_data(roots, judges, critic)
    with progress_bar("judging games", quiet=quiet) as progress:
        page = make_report(data, games=games, progress=progress)
    with publishing_file(out, replace=force) as file:
        file.write(page)
    document = {"path": str(out), "bytes": len(page), "games": len(data.collection.games())}
    print_result(document, lambda: [cell(f"{out}: {size(len(page))}")], as_json=as_json)


def _job(out: Path, games: int, judges: tuple[str, ...], critic: Path) -> Job:
    from tape2048.critic.facts import SHIPPED
    from tape2048_tools.sessions.jobs import Job
    from tape2048_tools.viewer.judges import DEFAULT_JUDGE, Judges

    path = critic if str(critic) in SHIPPED else critic.absolute()
    players = judges or (DEFAULT_JUDGE,)
    made = Judges(players, path)
    identities = [made[number].identity for number in range(len(players))]
    parameters = {"games": games, "judges": identities, "critic": made.critic.sha256}
    work = functools.partial(_report_one, games=games, judges=judges, critic=path)
    return Job("report", parameters, work, out)


def _report_one(
    session: Path, draft: Path, *, games: int, judges: tuple[str, ...], critic: Path
) -> dict[str, Any]:
    """Report on a session as part of a job: as of the time at which the session ended."""
    from tape2048.io.durable import write_file
    from tape2048.session.session import Session
    from tape2048_tools.viewer.report import make_report

    ended_at = Session.open(session).meta.get("ended_at")
    made = ended_at if isinstance(ended_at, str) else "1970-01-01T00:00:00Z"
    page = make_report(make_data((session,), judges, critic), games=games, made=made)
    write_file(draft / f"{session.name}.html", page)
    return {"bytes": len(page)}
