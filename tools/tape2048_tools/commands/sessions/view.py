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
    PATH,
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
    from tape2048_tools.sessions.session_jobs import Job
    from tape2048_tools.viewer.data import Data

#: Bounds of the examination that the page of the critic shows.
_EXAMINED_ROWS, _REPLICATES = 200_000, 200

judge_options = options(
    click.option(
        "--judge",
        "judges",
        multiple=True,
        metavar="PLAYER",
        help="N-tuple player that judges moves; ahead=2 searches one ply deeper. Repeat it for more judges."
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
    "--port", type=click.IntRange(0, 65535), default=2048, show_default=True, help="Port; 0: any free port."
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Further host name that browsers may use (repeatable).",
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
    `tape2048 record`. Another source, such as a data set, a pack, run files or JSON lines, is first converted
    to a temporary session on tape (1.5 bytes per move). The pages only read files, and do not contact
    recorders. The printed link works once, in one browser. The next link is then printed to standard error.
    Ctrl-C ends the command.
    """
    from tape2048_tools.viewer.app import serve

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
        data = make_data(roots, judges, critic, ending)
        serve(data, host, port, allowed=allow_host, started=started)


def make_data(
    roots: tuple[Path, ...], judges: tuple[str, ...], critic: Path, ending: contextlib.ExitStack
) -> Data:
    """Return the data for the pages and the report. ``ending`` removes temporary sessions."""
    from tape2048.critic.shipped import SHIPPED
    from tape2048_recorder.replay.judging import OWN_JUDGE
    from tape2048_tools.critic_report import document, examine, read_curves
    from tape2048_tools.sessions.summary import default_root
    from tape2048_tools.viewer.collection import Collection
    from tape2048_tools.viewer.data import Data
    from tape2048_tools.viewer.game_data import Judges

    chosen = [_with_sessions(ROOT.convert(root, None, None), ending) for root in roots or (default_root(),)]

    if str(critic) in SHIPPED:  # prefer the critic of a training among the sources
        trained = [root / name for root in chosen for name in ("best", "best.critic")]
        critic = next((path for path in trained if path.exists()), critic)

    def examined() -> dict[str, Any]:
        found = document(
            *examine(critic, chosen, own_games=True, rows_max=_EXAMINED_ROWS, bootstrap=_REPLICATES)
        )
        curves = None if str(critic) in SHIPPED else read_curves(critic)
        shown = {name: value for name, value in found.items() if name not in {"critic", "root"}}  # paths
        return shown | {"curves": curves}

    return Data(Collection(chosen), Judges(judges or (OWN_JUDGE,), critic), examined)


def _with_sessions(root: Path, ending: contextlib.ExitStack) -> Path:
    """Return a directory of sessions; convert another source to a temporary session on tape first."""
    from tape2048.runs.conversion import convert
    from tape2048.runs.files import find_run_files
    from tape2048.runs.registry import kind_of
    from tape2048_recorder.replay.replay import replayer
    from tape2048_tools.commands.runs.convert import complain_missing

    kind = kind_of(root)
    if kind in {"session", "sessions"}:
        return root
    if kind == "runs":
        try:
            find_run_files(root)
        except NotASessionError:  # a training, or a recorder that has published nothing yet
            return root
    made = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="tape2048-")))
    with progress_bar(f"reading {root.name}") as progress:
        done = convert(root, made / root.name, "tape", lossy=True, replayer=replayer, progress=progress)
    complain_missing(done.lost, done.skipped)
    return made


@new_command(
    "tape2048 report selfplay -o report.html",
    "tape2048 report selfplay other-sessions -o report.html --games 20 --force",
    "tape2048 report selfplay -o report.html --judge ntuple:weights=fast",
    "tape2048 report selfplay --site public",
    "tape2048 report selfplay -o game.html --game 20260101T000000Z_model=ntuple/68",
    "tape2048 report /nfs/selfplay/sessions -o reports --shard 1/8",
)
@click.argument("roots", nargs=-1, required=True, type=ROOT, metavar="ROOT...")
@out_option("File to write; with --shard, the directory.", required=False)
@click.option(
    "--site", type=PATH, metavar="DIR", help="Directory to write for a web server, instead of --out."
)
@click.option(
    "--game", "one_game", metavar="SESSION/ID", help="Write this game only, with every move to replay."
)
@int_option("--games", "Most games to include.", default=50, most=200)
@judge_options
@force_option("the report")
@job_options("--out")
@quiet_option()
@json_option()
def report(
    *,
    roots: tuple[Path, ...],
    out: Path | None,
    site: Path | None,
    one_game: str | None,
    games: int,
    judges: tuple[str, ...],
    critic: Path,
    force: bool,
    shard: tuple[int, int] | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a report of the sessions in ROOT: the overview, and games to replay, in one HTML file.

    The file works offline. It has the best, the worst and the longest games. If `tape2048 annotate` has
    judged the sessions, it also has the games with the largest losses. --site writes a directory instead, for
    any web server or a static Space of Hugging Face.

    With --game, the file has one game: SESSION is a session's name, and #move=NUMBER in the address of the
    file opens a move. With --shard, each session has a separate report in the directory --out.
    """
    if (out is None) == (site is None):
        raise click.UsageError("expected either --out FILE or --site DIR")
    if one_game and (site or shard):
        raise click.UsageError("--game writes one file: pass --out FILE, without --site and --shard")
    if shard:
        from tape2048_tools.commands.jobs import do_job
        from tape2048_tools.sessions.summary import expand_all

        if out is None:
            raise click.UsageError("--shard needs --out, a directory: each session gets a separate report")
        job = _job(out, games, judges, critic)
        do_job(job, expand_all(roots), shard=shard, as_json=as_json, quiet=quiet)
        return
    from tape2048.files.durable import Draft, check_name, check_new_file, publishing_file
    from tape2048_tools.viewer.report import game_file, make_report, write_site

    with contextlib.ExitStack() as ending:
        if out:
            check_new_file(out, replace=force)
        elif site and not (force and (site / "index.html").is_file() and (site / "games").is_dir()):
            check_name(site)  # --force replaces sites only
        data = make_data(roots, judges, critic, ending)
        bar = ending.enter_context(progress_bar("judging games", quiet=quiet))
        if out:
            page = (
                game_file(data, *data.collection.find_game(one_game)) if one_game
                else make_report(data, games=games, progress=bar)
            )  # fmt: skip
            with publishing_file(out, replace=force) as file:
                file.write(page)
            written = len(page)
        elif site:
            with Draft(site) as draft:
                write_site(data, draft.path, games=games, progress=bar)
                written = sum(path.stat().st_size for path in draft.path.rglob("*"))
                draft.publish(exchange=site.exists())
    table = data.collection.games()
    counted = len(table) - int(table.once(None).left_out.sum())
    document = {"path": str(out or site), "bytes": written, "games": counted}
    print_result(document, lambda: [cell(f"{out or site}: {size(written)}")], as_json=as_json)


def _job(out: Path, games: int, judges: tuple[str, ...], critic: Path) -> Job:
    from tape2048.critic.shipped import SHIPPED
    from tape2048_recorder.replay.judging import OWN_JUDGE
    from tape2048_tools.sessions.session_jobs import Job
    from tape2048_tools.viewer.game_data import Judges

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
    from tape2048.files.durable import write_file
    from tape2048.session.session import Session
    from tape2048_tools.viewer.report import make_report

    ended_at = Session.open(session, "mmap").meta.get("ended_at")
    made = ended_at if isinstance(ended_at, str) else "1970-01-01T00:00:00Z"
    with contextlib.ExitStack() as ending:
        page = make_report(make_data((session,), judges, critic, ending), games=games, made=made)
    write_file(draft / f"{session.name}.html", page)
    return {"bytes": len(page)}
