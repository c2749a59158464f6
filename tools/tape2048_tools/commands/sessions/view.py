"""``tape2048 view`` and ``tape2048 report``: recordings in a browser, and in one file."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tape2048.errors import NotASessionError
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    CRITIC,
    ROOT,
    force_option,
    int_option,
    job_options,
    json_option,
    new_command,
    options,
    out_option,
    quiet_option,
)
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, print_json, print_result, print_text

if TYPE_CHECKING:
    from tape2048_tools.sessions.jobs import Engine, Job
    from tape2048_tools.viewer.data import Data

#: Bounds of the examination that the page of the critic shows.
_EXAMINED_ROWS, _REPLICATES = 200_000, 200

judge_options = options(
    click.option(
        "--judge",
        "judges",
        multiple=True,
        metavar="PLAYER",
        help="N-tuple player that judges moves; ahead=2 searches one ply deeper. Repeat for several. The"
        " first is shown first."
        "  [default: own, the network of the recorded player, 2-ply or 3-ply]",
    ),
    CRITIC,
)


@new_command(
    "tape2048 view",
    "tape2048 view /data/selfplay --open",
    "tape2048 view selfplay runs/critic --port 0",
    "tape2048 view selfplay --judge ntuple:weights=fast --critic critic/best.critic",
)
@click.argument("roots", nargs=-1, type=ROOT, metavar="[ROOT]...")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=2048, show_default=True, help="Port; 0: a free one."
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A further host name that may be asked for."
)
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@judge_options
@json_option("Print the link as a JSON document.")
def view(
    *,
    roots: tuple[Path, ...],
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    opened: bool,
    judges: tuple[str, ...],
    critic: Path,
    as_json: bool,
) -> None:
    """Look at recordings, live recorders, trainings and critics in a browser.

    ROOT is a directory of sessions, one session, or a directory of a training; by default the out_dir of
    `tape2048 record`. The pages only read files, and do not contact recorders. The link
    that is printed opens the pages in one browser, once. The next link is then printed to standard error.
    Ctrl-C ends it at once.
    """
    from tape2048_tools.viewer.app import serve

    data = make_data(roots, judges, critic)

    def started(link: str) -> None:
        if as_json:
            print_json({"link": link})
        else:
            print_text(f"{link}\nCtrl-C ends it.\n")
        if opened:
            import webbrowser

            # Other users can read the arguments of the browser, but not this file.
            number, name = tempfile.mkstemp(".html", "tape2048-")
            ending.callback(Path(name).unlink)
            os.write(number, f'<meta http-equiv="refresh" content="0; url={link}">'.encode())
            webbrowser.open(f"file://{name}")

    with contextlib.ExitStack() as ending:
        serve(data, host, port, allowed=allow_host, started=started)


def make_data(roots: tuple[Path, ...], judges: tuple[str, ...], critic: Path) -> Data:
    """Return what the pages and the report show of some directories."""
    from tape2048.critic.facts import SHIPPED
    from tape2048.session.directory import refuse_dataset
    from tape2048_recorder.replay.judging import OWN_JUDGE
    from tape2048_tools.critic_report import document, examine, read_curves
    from tape2048_tools.sessions.summary import default_root
    from tape2048_tools.viewer.collection import Collection
    from tape2048_tools.viewer.data import Data
    from tape2048_tools.viewer.games import Judges

    chosen = [ROOT.convert(root, None, None) for root in roots or (default_root(),)]
    for root in chosen:
        if root.is_file():
            hint = f"Convert games first: tape2048 convert {root} --to tape --out DIR"
            raise NotASessionError("found a file, expected a directory", path=root, hint=hint)
        if root.is_dir():
            refuse_dataset(root)

    def examined() -> dict[str, Any]:
        found = document(*examine(critic, chosen, rows_max=_EXAMINED_ROWS, bootstrap=_REPLICATES))
        curves = None if str(critic) in SHIPPED else read_curves(critic)
        shown = {name: value for name, value in found.items() if name not in {"critic", "root"}}  # paths
        return shown | {"curves": curves}

    return Data(Collection(chosen), Judges(judges or (OWN_JUDGE,), critic), examined)


@new_command(
    "tape2048 report selfplay -o report.html",
    "tape2048 report selfplay other-sessions -o report.html --games 20 --force",
    "tape2048 report selfplay -o report.html --judge ntuple:weights=fast",
    "tape2048 report /nfs/selfplay/sessions -o reports --shard 1/8",
)
@click.argument("roots", nargs=-1, required=True, type=ROOT, metavar="ROOT...")
@out_option("The file to write; of a job, the directory.")
@int_option("--games", "Number of games to replay, at most.", default=50, most=50)
@judge_options
@force_option("the report")
@job_options("--out")
@quiet_option()
@json_option()
def report(
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

    The file works offline. It has the best, the worst and the longest games. If `tape2048 annotate` has
    judged the sessions, it also has the games that lost the most.

    With --shard or --engine, each session has a separate report in the directory --out.
    """
    if shard or engine:
        from tape2048_tools.commands.jobs import do_job
        from tape2048_tools.sessions.summary import expand_all

        job = _job(out, games, judges, critic)
        do_job(job, expand_all(roots), shard=shard, engine=engine, as_json=as_json, quiet=quiet)
        return
    from tape2048.io.durable import check_new_file, publishing_file
    from tape2048_tools.viewer.report import make_report

    check_new_file(out, replace=force)
    data = make_data(roots, judges, critic)
    with progress_bar("judging games", quiet=quiet) as progress:
        page = make_report(data, games=games, progress=progress)
    with publishing_file(out, replace=force) as file:
        file.write(page)
    table = data.collection.games()
    counted = len(table) - int(table.once(None).left_out.sum())
    document = {"path": str(out), "bytes": len(page), "games": counted}
    print_result(document, lambda: [cell(f"{out}: {size(len(page))}")], as_json=as_json)


def _job(out: Path, games: int, judges: tuple[str, ...], critic: Path) -> Job:
    from tape2048.critic.facts import SHIPPED
    from tape2048_recorder.replay.judging import OWN_JUDGE
    from tape2048_tools.sessions.jobs import Job
    from tape2048_tools.viewer.games import Judges

    path = critic if str(critic) in SHIPPED else critic.absolute()
    players = judges or (OWN_JUDGE,)
    made = Judges(players, path)
    identities = [one if one == OWN_JUDGE else made[number].identity for number, one in enumerate(players)]
    parameters = {"games": games, "judges": identities, "critic": made.critic.sha256}
    work = functools.partial(_report_one, games=games, judges=judges, critic=path)
    return Job("report", parameters, work, out)


def _report_one(
    session: Path, draft: Path, *, games: int, judges: tuple[str, ...], critic: Path
) -> dict[str, Any]:
    from tape2048.io.durable import write_file
    from tape2048.session.session import Session
    from tape2048_tools.viewer.report import make_report

    ended_at = Session.open(session).meta.get("ended_at")
    made = ended_at if isinstance(ended_at, str) else "1970-01-01T00:00:00Z"
    page = make_report(make_data((session,), judges, critic), games=games, made=made)
    write_file(draft / f"{session.name}.html", page)
    return {"bytes": len(page)}
