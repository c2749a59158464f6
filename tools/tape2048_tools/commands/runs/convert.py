"""``tape2048 convert``: convert runs from one format to another."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tape2048.base.text import counted, printable, split_words
from tape2048.runs.registry import FORMATS, RUN_FILES, RUN_FORMATS
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
from tape2048_tools.terminal.output import complain, complain_left_out, copies_note, print_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tape2048.runs.run import SkippedRun

LOSSY = click.option(
    "--lossy", is_flag=True, help="Drop facts that the target cannot hold, and unknown ends of games."
)
U64 = click.option(
    "--u64",
    type=click.Choice(["number", "text"]),
    default="number",
    help="For jsonl: boards, ids and seeds as numbers (default), which some readers round, or as text.",
)


class _Format(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "pack":
            self.fail("The format 'pack' was renamed. Use a2pack.", param, ctx)
        return super().convert(value, param, ctx)


def _columns(_ctx: click.Context, _param: click.Parameter, value: str | None) -> dict[str, str] | None:
    pairs = [word.partition("=") for word in split_words(value or "") if word]
    if not all(mark for _, mark, _ in pairs):
        raise click.BadParameter(f"found {value!r}, expected pairs such as board=grid,move=dir")
    return {role: name for role, _, name in pairs} or None


#: The last flags of commands that write runs.
WRITING = options(THREADS, json_option(), quiet_option())


@new_command(
    "tape2048 convert runs/ --out runs.a2pack",
    "tape2048 convert selfplay/ --to a2run2 --out runs2/",
    "tape2048 convert runs.a2pack --out pack.dat --lossy",
    "tape2048 convert ds/ --out runs.parquet",
    "tape2048 convert bot.csv --to session --out bot --columns board=grid,move=dir",
    "tape2048 convert /nfs/selfplay/sessions --out packs --to a2pack --shard 1/8",
)
@click.argument("source", type=EXISTING)
@out_option("File or directory to write.", "TARGET")
@U64
@job_options("--out")
@click.option("--to", type=_Format(RUN_FORMATS), help="Format of TARGET.  [default: by its extension]")
@click.option(
    "--player", metavar="NAME", help="For session and tape: their player.  [default: the runs' engine]"
)
@click.option(
    "--columns", metavar="NAMES", callback=_columns, help="Columns of a foreign file: board=b,move=m,game=g."
)
@LOSSY
@WRITING
def command(
    *, source: Path, out: Path, shard: tuple[int, int] | None, as_json: bool, quiet: bool, **how: Any
) -> None:
    """Convert the runs in SOURCE to TARGET.

    SOURCE is a run file, a directory of run files, an a2pack, a pack.dat, a data set, a session, a directory
    of sessions, or games or rows of any program in JSON lines, JSON, CSV, Parquet or Arrow, also with gzip or
    zstd. The usual names of columns are found; --columns names the others.

    TARGET's extension (.a2run, .a2run2, .a2pack, .dat, .jsonl, .parquet) or --to selects the format. With
    --to a2run or a2run2, a TARGET of another extension is a directory with a file for each run. With --shard,
    each session of SOURCE gets a file there.

    A session of rows holds no final boards, and no moves without --record-action. Games of built-in players
    are replayed from their seeds to add them, and left out if the replay differs. Games of other players
    without moves are an error (exit code 5). With --lossy, they end at their last recorded board.

    The column `values` of a session (see annotate) and branch_evs of another program's rows become branch
    values in TARGET. Other columns are left out with a warning. --to tape holds finished games only. A
    session has one player: without --player, all runs must have the same engine.

    If TARGET cannot hold a fact of SOURCE, nothing is written, and the exit code is 5. With --lossy, the fact
    is dropped and reported on standard error. Copies of a game are left out and counted. Unreadable runs are
    left out and reported, and the exit code is 1. If no run is readable, nothing is written, and the exit
    code is 3.
    """
    if shard:
        _as_job(source, out, shard=shard, as_json=as_json, quiet=quiet, **how)
        return
    from tape2048.runs.conversion import convert
    from tape2048_recorder.replay.replay import replayer
    from tape2048_tools.progress.panel import progress_bar

    with progress_bar("converting", quiet=quiet) as progress:
        converted = convert(source, out, progress=progress, replayer=replayer, **how)
    complain_missing(converted.lost, converted.skipped)
    text = f"{printable(converted.target)}: {counted(converted.runs, 'run')} ({converted.kind})"
    text += copies_note(converted.copies)
    print_result(msgspec.to_builtins(converted), lambda: [text], as_json=as_json)
    exit_on_findings(converted.skipped)


def _as_job(
    source: Path, out: Path, *, to: str | None, workers: int | None, player: str | None, **run: Any
) -> None:
    from tape2048.errors import MaintenanceError
    from tape2048.runs.run import SkippedRun
    from tape2048_tools.commands.jobs import do_job
    from tape2048_tools.sessions.session_jobs import Job
    from tape2048_tools.sessions.summary import expand_sources

    if to is None:
        raise click.UsageError("--shard needs --to: TARGET is a directory")
    if to == "dataset":
        hint = "Write a pack of each session with --to a2pack, then run `tape2048 dataset build` on them."
        found = "found --to dataset with --shard, expected a format with one file per session"
        raise MaintenanceError(found, path=out, hint=hint)
    how = {"to": to, "lossy": run.pop("lossy"), "u64": run.pop("u64")} | (
        {"player": player} if player else {}
    )
    run.pop("columns")  # of files of other programs, which are no sessions
    job = Job("convert", how, functools.partial(_convert_one, workers=workers, **how), out)

    def show(result: dict[str, Any]) -> None:
        complain_missing(result["lost"], msgspec.convert(result["skipped"], tuple[SkippedRun, ...]))

    do_job(job, expand_sources(source), show=show, **run)


def _convert_one(session: Path, draft: Path, *, to: str, **how: Any) -> dict[str, Any]:
    from tape2048.runs.conversion import convert
    from tape2048_recorder.replay.replay import replayer

    name = session.name if to in RUN_FILES else f"{session.name}{FORMATS[to].suffix}"
    done = convert(session, draft / name, to, replayer=replayer, **how)
    return {"runs": done.runs, "lost": done.lost, "skipped": msgspec.to_builtins(done.skipped)}


def skipped_documents(skipped: Iterable[SkippedRun], key: str) -> list[dict[str, str]]:
    return [{key: one.run, "error": one.error, "message": one.message} for one in skipped]


def complain_missing(lost: Mapping[str, int], skipped: Iterable[SkippedRun]) -> None:
    for what, count in lost.items():
        complain(f"lost: {what}, of {counted(count, 'run')}")
    complain_left_out((one.run, f"{one.error}: {one.message}") for one in skipped)
