"""``tape2048 repack``: write sessions of rows onto tape, or back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from tape2048.base.text import counted
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    PATH,
    exit_on_findings,
    job_options,
    json_option,
    new_command,
    quiet_option,
)
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, finding, print_human, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tape2048.tape.layout import Storage
    from tape2048_tools.sessions.jobs import Engine


@new_command(
    "tape2048 repack selfplay/20260101T000000Z_model=ntuple --storage tape --out on-tape",
    "tape2048 repack selfplay/20260101T* --storage tape --remove",
    "tape2048 repack on-tape/* --storage rows --out selfplay --json | jq '.failed[].message'",
    "tape2048 repack /nfs/selfplay/sessions --storage rows --out /nfs/rows --shard 1/8",
)
@click.argument("sessions", metavar="SESSION...", type=EXISTING, nargs=-1, required=True)
@click.option(
    "--storage", type=click.Choice(["tape", "rows"]), required=True, help="Storage of the new sessions."
)
@click.option(
    "--out", "out_dir", type=PATH, help="Directory of the new sessions.  [default: beside each original]"
)
@click.option(
    "--remove",
    is_flag=True,
    help="Remove each original when its new session is published, unless it is being read.",
)
@click.option(
    "--lossy", is_flag=True, help="End a game with a 2 where nothing tells whether a 2 or a 4 ended it."
)
@job_options("--out")
@json_option("Print one JSON document: the new sessions, failures, the removed originals.")
@quiet_option("Print failures only, and show no progress bar.")
def command(
    *,
    sessions: Sequence[Path],
    storage: Storage,
    out_dir: Path | None,
    remove: bool,
    lossy: bool,
    shard: tuple[int, int] | None,
    engine: Engine | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write sessions in the other storage: rows (steps.npy) onto tape, 1.5 bytes a row, or back.

    Rows, games, labels and facts stay the same to the byte. A new session has the name of its original, or
    with a number where that is taken. It is validated, and compared with the original, before it is
    published; without --remove, one directory then holds each game twice.

    A tape holds all moves and final boards. Games of built-in players are replayed for what rows lack. Games
    of other players need --record-action, and --lossy where both a 2 and a 4 would have ended one.

    A session that cannot be repacked (sampled, foreign, damaged, in this storage already) is named with the
    reason, stays as it is, and costs only itself. The exit code is then 1, as it is if an original could not
    be removed or is being read.

    With --shard or --engine, SESSION may be a directory of sessions, new sessions have the names of their
    originals, and those that are in --out already are not made again.
    """
    if shard or engine:
        run = {"shard": shard, "engine": engine, "as_json": as_json, "quiet": quiet}
        _as_job(sessions, out_dir, storage, remove=remove, lossy=lossy, **run)
        return
    from tape2048.errors import TapeError
    from tape2048_tools.sessions.roots import refuse_session

    if out_dir is not None:
        refuse_session(out_dir, "name a directory for the new sessions, as its parent")
    document: dict[str, Any] = {"storage": storage, "sessions": [], "failed": [], "removed": []}
    document["not_removed"] = []
    originals = list(dict.fromkeys(path.absolute() for path in sessions))
    for count, path in enumerate(originals, start=1):
        lines: list[Any] = []
        try:
            done, removed = _repack(
                path, out_dir, storage, f"{count}/{len(originals)}", remove=remove, lossy=lossy, quiet=quiet
            )
        except TapeError as error:
            failure = {"error": type(error).__name__, "message": str(error), "hint": error.advice}
            document["failed"].append({"path": str(path), **failure})
            lines.append(finding(type(error).__name__, str(error), error.advice))
        else:
            document["sessions"].append(done)
            counts = f"{counted(done['games'], 'game')}, {counted(done['rows'], 'row')}"
            sizes = f"{size(done['bytes_before'])} -> {size(done['bytes'])}"
            gone = "; original removed" if any(outcome.gone for outcome in removed) else ""
            if not quiet:
                lines.append(cell(f"{done['path']}: {counts}, {sizes}{gone}"))
            lines += _note_removal(document, path, removed)
        if not as_json:
            print_human(*lines)
    if as_json:
        print_json(document)
    exit_on_findings(document["failed"] or document["not_removed"])


def _note_removal(document: dict[str, Any], path: Path, removed: list[Any]) -> list[Any]:
    """Note in the document what became of an original; return lines on those that stay."""
    from tape2048_tools.sessions.originals import describe_kept

    lines = []
    for outcome in removed:
        if outcome.gone:
            document["removed"].append(str(path))
        else:
            why = describe_kept(outcome)
            document["not_removed"].append({"path": str(path), "why": why})
            lines.append(cell(f"not removed: {path}: {why}"))
    return lines


def _repack(
    path: Path,
    out_dir: Path | None,
    storage: Storage,
    which: str,
    *,
    remove: bool,
    lossy: bool,
    quiet: bool,
) -> tuple[dict[str, Any], list[Any]]:
    """Repack one session; return the new one, and the outcome of the original's removal."""
    from tape2048.conversion.repacking import repack_session
    from tape2048.errors import MaintenanceError
    from tape2048_recorder.replay.playing import replayer
    from tape2048_tools.sessions.originals import check_removable, remove_originals

    if remove:
        check_removable(path, MaintenanceError, "repack")
    with progress_bar(f"{which} repacking", unit="rows", quiet=quiet) as progress:
        made = repack_session(
            path, out_dir or path.parent, storage, replayer=replayer, lossy=lossy, progress=progress
        )
    done = {
        "source": str(path),
        "path": str(made.path),
        "rows": made.rows,
        "games": made.runs,
        "bytes_before": made.bytes_before,
        "bytes": made.bytes,
    }
    return done, remove_originals([path]) if remove else []


def _as_job(
    sources: Sequence[Path],
    out: Path | None,
    storage: Storage,
    *,
    remove: bool,
    lossy: bool,
    **run: Any,
) -> None:
    if out is None or remove:
        raise click.UsageError("--shard and --engine need --out, and keep the originals (no --remove)")
    from tape2048_tools.commands.jobs import do_job
    from tape2048_tools.sessions.jobs import Job
    from tape2048_tools.sessions.roots import expand_all

    work = functools.partial(_repack_one, storage=storage, lossy=lossy)
    job = Job("repack", {"storage": storage, "lossy": lossy}, work, out)
    do_job(job, expand_all(sources), **run)


def _repack_one(session: Path, draft: Path, *, storage: Storage, lossy: bool) -> dict[str, Any]:
    """Repack a session as part of a job."""
    from tape2048.conversion.repacking import repack_session
    from tape2048_recorder.replay.playing import replayer

    made = repack_session(session, draft, storage, replayer=replayer, lossy=lossy)
    return {"rows": made.rows, "games": made.runs, "bytes_before": made.bytes_before, "bytes": made.bytes}
