"""``tape2048 merge`` and ``tape2048 repack``: join small sessions, and convert rows to tape, or back."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import click

from tape2048.base.text import counted
from tape2048.errors import MaintenanceError, TapeError
from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import Removed, clear_leftovers, explain_refusal, remove_sessions
from tape2048.session.columns import find_drafts
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.sessions.session_jobs import Job
from tape2048_tools.sessions.summary import expand_all, refuse_session
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    exit_on_findings,
    job_options,
    json_option,
    new_command,
    out_option,
    quiet_option,
)
from tape2048_tools.terminal.display import size
from tape2048_tools.terminal.output import cell, error_finding, print_human, print_json, print_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tape2048.runs.repack import Repacked
    from tape2048.session.layout import Storage


@new_command(
    "tape2048 merge selfplay/20260101T*_model=greedy --out merged",
    "tape2048 merge selfplay/20260101T*_model=greedy --out selfplay --remove",
)
@click.argument("sessions", metavar="SESSION...", type=EXISTING, nargs=-1, required=True)
@out_option("Directory for the new session, which gets the name of the earliest session.", "DIR")
@click.option(
    "--remove", is_flag=True, help="Remove the originals after publishing, except those being read."
)
@json_option("Print one JSON document: the new session, the removed ones.")
@quiet_option()
def merge(*, sessions: Sequence[Path], out: Path, remove: bool, as_json: bool, quiet: bool) -> None:
    """Merge many small sessions into one: same games, same labels, same splits.

    All sessions must have the same player, recording settings and storage. Rows are checked against their
    checksums while they are copied, and the new session is read back before it is published. Columns are
    merged if all sessions have the columns, with equal facts. Other columns are dropped and listed. With
    --remove, they are an error. The exit code is 1 if --remove could not remove an original, or it is being
    read.

    Packs of another program become one pack with every field. Their rows must have the same type.
    """
    from tape2048.maintenance.merging import merge_sessions
    from tape2048.runs import merge_pack48
    from tape2048.session.session_files import SessionFiles

    for path in sessions if remove else ():
        _check_removable(path, "merge")
    with progress_bar(f"merging {counted(len(sessions), 'session')}", quiet=quiet) as progress:
        all_packs = all(SessionFiles(path).manifest is None for path in sessions)
        merge = merge_pack48 if all_packs else merge_sessions
        merged = merge(sessions, out, all_columns=remove, progress=progress)
    removed = _remove_originals(sessions) if remove else []
    staying = _not_removed(removed)
    document = {
        "path": str(merged.path),
        "sessions": merged.sessions,
        "rows": merged.rows,
        "games": merged.runs,
        "bytes": merged.bytes,
        "renumbered": merged.renumbered,
        "removed": [str(outcome.path) for outcome in removed if outcome.gone],
        "not_removed": staying,
    }
    counts = (merged.sessions, "session"), (merged.runs, "game"), (merged.rows, "row")
    what = ", ".join(counted(count, noun) for count, noun in counts)
    ids = "; games are renumbered" if merged.renumbered else ""
    gone = f"; {counted(len(removed) - len(staying), 'original')} removed" if remove else ""
    lines = [f"{merged.path}: {what}, {size(merged.bytes)}{ids}{gone}", *_kept_lines(staying)]
    print_result(document, lambda: map(cell, lines), as_json=as_json)
    exit_on_findings(staying)


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
@out_option("Directory of the new sessions.  [default: beside each original]", "DIR", required=False)
@click.option(
    "--remove",
    is_flag=True,
    help="Remove each original when its new session is published, unless it is being read.",
)
@click.option("--lossy", is_flag=True, help="End a game with a 2 if a 2 or a 4 could have ended it.")
@job_options("--out")
@json_option("Print one JSON document: the new sessions, failures, the removed originals.")
@quiet_option("Print failures only, and show no progress bar.")
def repack(
    *,
    sessions: Sequence[Path],
    storage: Storage,
    out: Path | None,
    remove: bool,
    lossy: bool,
    shard: tuple[int, int] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Convert sessions from rows (steps.npy) to tape (1.5 bytes per row), or back.

    Rows, games, labels, facts and columns stay the same. A new session has the name of its original, with a
    number if the name is taken. It is validated and compared with the original before it is published.
    Without --out and --remove, the directory then holds each game twice.

    A tape holds all moves and final boards. If rows lack them, games of built-in players are replayed. Games
    of other players must have been recorded with --record-action. They need --lossy if both a 2 and a 4
    could have ended a game.

    A session that cannot be repacked (sampled, from another program, damaged, already in this storage) is
    skipped, and the reason is printed. The exit code is then 1. It is also 1 if an original could not be
    removed or is being read.

    With --shard, SESSION can be a directory of sessions. New sessions have the names of their
    originals, and sessions that are already in --out are skipped.
    """
    if shard:
        if out is None or remove:
            raise click.UsageError("--shard needs --out, and keep the originals (no --remove)")
        from tape2048_tools.commands.jobs import do_job

        work = functools.partial(_repack_one, storage=storage, lossy=lossy)
        job = Job("repack", {"storage": storage, "lossy": lossy}, work, out)
        do_job(job, expand_all(sessions), shard=shard, as_json=as_json, quiet=quiet)
        return
    if out is not None:
        refuse_session(out, "Choose a directory for the new sessions, such as the parent of this session.")
    done: dict[str, list[Any]] = {"sessions": [], "failed": [], "removed": [], "not_removed": []}
    originals = list(dict.fromkeys(path.absolute() for path in sessions))
    for count, path in enumerate(originals, start=1):
        lines: list[Any] = []
        try:
            if remove:
                _check_removable(path, "repack")
            with progress_bar(f"{count}/{len(originals)} repacking", unit="rows", quiet=quiet) as progress:
                made = _repack(path, out or path.parent, storage, lossy=lossy, progress=progress)
        except TapeError as error:
            failure = {"error": type(error).__name__, "message": str(error), "hint": error.advice}
            done["failed"].append({"path": str(path), **failure})
            lines.append(error_finding(error))
        else:
            removed = _remove_originals([path]) if remove else []
            done["sessions"].append({"source": str(path), "path": str(made.path), **_sizes(made)})
            done["removed"] += [str(path) for outcome in removed if outcome.gone]
            done["not_removed"] += (kept := _not_removed(removed))
            counts = f"{counted(made.runs, 'game')}, {counted(made.rows, 'row')}"
            gone = "; original removed" if removed and not kept else ""
            text = f"{made.path}: {counts}, {size(made.bytes_before)} -> {size(made.bytes)}{gone}"
            lines += map(cell, [*([] if quiet else [text]), *_kept_lines(kept)])
        if not as_json:
            print_human(*lines)
    if as_json:
        print_json({"storage": storage, **done})
    exit_on_findings(done["failed"] or done["not_removed"])


def _repack(path: Path, out: Path, storage: Storage, *, lossy: bool, progress: Any = None) -> Repacked:
    from tape2048.runs.repack import repack_session
    from tape2048_recorder.replay.replay import replayer

    return repack_session(path, out, storage, replayer=replayer, lossy=lossy, progress=progress)


def _sizes(made: Repacked) -> dict[str, Any]:
    return {"rows": made.rows, "games": made.runs, "bytes_before": made.bytes_before, "bytes": made.bytes}


def _repack_one(session: Path, draft: Path, *, storage: Storage, lossy: bool) -> dict[str, Any]:
    return _sizes(_repack(session, draft, storage, lossy=lossy))


def _check_removable(path: Path, doing: str) -> None:
    """Refuse a session that could not be removed, before anything is written. A missing path passes."""
    if not os.path.lexists(path):
        return
    why = explain_refusal(path.absolute())
    if why is None and (drafts := find_drafts(path)):
        why = f"{drafts[0]} is an unfinished column, which the new session would lack"
    if why is not None:
        raise MaintenanceError(
            f"this session cannot be removed: {why}. Nothing was written",
            path=path,
            hint=f"Run {doing} without --remove, or leave this session out.",
        )


def _remove_originals(paths: Sequence[Path]) -> list[Removed]:
    """Remove sessions, directory by directory, and continue after a failure; return the outcomes."""
    done: list[Removed] = []
    absolute = [path.absolute() for path in paths]
    for root in sorted({path.parent for path in absolute}):
        here = [path for path in absolute if path.parent == root]
        try:
            with RemovalLock(root) as upkeep:
                clear_leftovers(root, upkeep)  # `prune` reports its failures
                done += remove_sessions(root, here, upkeep)
        except TapeError as error:
            # Removals that are not durable yet count as failed, too.
            done = [outcome for outcome in done if outcome.path not in here]
            done += [Removed(path, gone=False, error=error) for path in here]
    return done


def _not_removed(removed: Sequence[Removed]) -> list[dict[str, str]]:
    return [
        {"path": str(one.path), "why": "it is being read" if one.error is None else str(one.error)}
        for one in removed
        if not one.gone
    ]


def _kept_lines(kept: Sequence[dict[str, str]]) -> list[str]:
    return [f"not removed: {one['path']}: {one['why']}" for one in kept]
