"""``tape2048 convert``: convert runs from one format to another."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted, printable
from tape2048.formats.registry import FORMATS, RUN_FILES, RUN_FORMATS
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    THREADS,
    exit_on_findings,
    job_options,
    json_option,
    new_command,
    options,
    out_option,
    quiet_option,
)
from tape2048_tools.terminal.output import complain, complain_left_out, print_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tape2048.formats.dataset_layout import SkippedRun
    from tape2048_tools.sessions.jobs import Engine

LOSSY = click.option(
    "--lossy",
    is_flag=True,
    help="Drop facts that the target cannot hold, and the ends of games that are not known.",
)

U64 = click.option(
    "--u64",
    type=click.Choice(["number", "text"]),
    default="number",
    help="jsonl: packed boards as numbers (default), which some readers round, or as text.",
)

#: The last flags of commands that write runs.
WRITING = options(THREADS, json_option(), quiet_option())


@new_command(
    "tape2048 convert runs/ --out runs.a2pack",
    "tape2048 convert selfplay/ --to a2run2 --out runs2/",
    "tape2048 convert runs.a2pack --out pack.dat --lossy",
    "tape2048 convert ds/ --out runs.parquet",
    "tape2048 convert /nfs/selfplay/sessions --out packs --to pack --shard 1/8",
)
@click.argument("source", type=EXISTING)
@out_option("File or directory to write, as --to and its name say.", "TARGET")
@U64
@job_options("--out")
@click.option("--to", type=click.Choice(RUN_FORMATS), help="Format to write.  [default: by TARGET's name]")
@click.option("--player", metavar="NAME", help="session, tape: their player.  [default: the runs' engine]")
@LOSSY
@WRITING
def command(
    *,
    source: Path,
    out: Path,
    shard: tuple[int, int] | None,
    engine: Engine | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Convert the runs in SOURCE to TARGET.

    SOURCE is a run file, a directory of run files, a pack, a pack.dat, a data set, a session, a directory of
    sessions, or JSONL or Parquet with one run a row. TARGET's extension (.a2run, .a2run2, .a2pack, .dat,
    .jsonl, .parquet) or --to selects the format. TARGET appears when it is complete. Files of runs and JSON
    lines have the ids of the runs in their session.

    The name and the format of TARGET decide what it is, not the number of runs: a name that ends in .a2run
    or .a2run2 is the file of one run, and SOURCE must have just one; with --to a2run or a2run2, any other
    name is a directory with a file for each run.

    A session of rows holds no final boards, and no moves without --record-action. One on tape holds both.
    Games of built-in players are replayed from their seeds to add missing facts. Games whose replay differs
    are left out. Without moves, games of other players are refused (5); with --lossy they end at their last
    recorded board.

    The column values of a session (tape2048 annotate), or branch_evs of another program's rows, becomes
    branch values in TARGET. Other columns are left out, and a warning names them. --to tape writes a session
    on tape, which holds games that ended. Runs of one engine become a session of this player.

    If TARGET cannot hold a fact of SOURCE, nothing is written and the exit code is 5; with --lossy, the fact
    is dropped and named on standard error. Unreadable runs are left out and named there, too, and the exit
    code is 1; without a readable run nothing is written (3).

    With --shard or --engine, each session of SOURCE gets a separate file in the directory TARGET.
    """
    if shard or engine:
        _as_job(source, out, shard=shard, engine=engine, as_json=as_json, quiet=quiet, **how)
        return
    from tape2048.conversion.targets import convert
    from tape2048_recorder.replay.replay import replayer
    from tape2048_tools.progress.panel import progress_bar

    with progress_bar("converting", quiet=quiet) as progress:
        converted = convert(source, out, progress=progress, replayer=replayer, **how)
    complain_missing(converted.lost, converted.skipped)
    text = f"{printable(converted.target)}: {counted(converted.runs, 'run')} ({converted.kind})"
    print_result(msgspec.to_builtins(converted), lambda: [text], as_json=as_json)
    exit_on_findings(converted.skipped)


def _as_job(
    source: Path,
    out: Path,
    *,
    to: str | None,
    lossy: bool,
    u64: str,
    player: str | None,
    workers: int | None,
    **run: Any,
) -> None:
    from tape2048.errors import MaintenanceError
    from tape2048.formats.dataset_layout import SkippedRun
    from tape2048_tools.commands.jobs import do_job
    from tape2048_tools.sessions.jobs import Job
    from tape2048_tools.sessions.summary import expand_sources

    if to is None:
        raise click.UsageError("--shard and --engine need --to: TARGET is a directory")
    if to == "dataset":
        hint = "--to pack makes a part of each session, and `tape2048 dataset build` one data set of them"
        raise MaintenanceError("a data set is made of all sessions, and knows when", path=out, hint=hint)
    how: dict[str, Any] = {"to": to, "lossy": lossy, "u64": u64} | ({"player": player} if player else {})
    job = Job("convert", how, functools.partial(_convert_one, workers=workers, **how), out)

    def show(result: dict[str, Any]) -> None:
        complain_missing(result["lost"], msgspec.convert(result["skipped"], tuple[SkippedRun, ...]))

    do_job(job, expand_sources(source), show=show, **run)


def _convert_one(session: Path, draft: Path, *, to: str, **how: Any) -> dict[str, Any]:
    from tape2048.conversion.targets import convert
    from tape2048_recorder.replay.replay import replayer

    name = session.name if to in RUN_FILES else f"{session.name}{FORMATS[to].suffix}"
    done = convert(session, draft / name, to, replayer=replayer, **how)
    return {"runs": done.runs, "lost": done.lost, "skipped": msgspec.to_builtins(done.skipped)}


def skipped_documents(skipped: Iterable[SkippedRun], key: str) -> list[dict[str, str]]:
    """Return skipped runs for ``--json``, with their names under ``key``."""
    return [{key: one.run, "error": one.error, "message": one.message} for one in skipped]


def complain_missing(lost: Mapping[str, int], skipped: Iterable[SkippedRun]) -> None:
    """Report on standard error what was dropped from how many runs, and the runs that were left out."""
    for what, count in lost.items():
        complain(f"lost: {what}, of {counted(count, 'run')}")
    complain_left_out((one.run, f"{one.error}: {one.message}") for one in skipped)
