"""``tape2048 prune``: remove sessions past the retention limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tape2048.base.text import counted
from tape2048.errors import StorageError
from tape2048.files.removal_locks import LockProbe, RemovalLock
from tape2048.maintenance.removal import Removed, clear_leftovers, remove_sessions
from tape2048_recorder.record_options import CONFIG_ENV
from tape2048_recorder.retention import RetentionLimits, load_retention
from tape2048_tools.options.recorder_options import flags_of
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.sessions.retention_plan import (
    NO_LIMIT,
    Candidate,
    PrunePlan,
    candidates,
    make_plan,
)
from tape2048_tools.sessions.summary import default_root, refuse_session
from tape2048_tools.terminal.click_extras import (
    PATH,
    ROOT,
    exit_on_findings,
    json_option,
    new_command,
    quiet_option,
)
from tape2048_tools.terminal.display import number, size
from tape2048_tools.terminal.output import cell, complain, print_human, print_json, print_lines


@new_command(
    "tape2048 prune selfplay --max-total-mb 500GB --dry-run",
    "tape2048 prune selfplay --max-age-s 30d --keep-last 10",
    "tape2048 prune selfplay --tag greedy --max-sessions 20",
    "tape2048 prune --config recorder.toml",
)
@click.argument("root", type=ROOT, required=False)
@click.option(
    "--config",
    "config_path",
    type=PATH,
    help=f"TOML file with [retention] and out_dir.  [default: the file named by {CONFIG_ENV}]",
)
@click.option("--tag", "tags", multiple=True, help="Consider sessions of this model tag only (repeatable).")
@flags_of(RetentionLimits)
@click.option("--dry-run", is_flag=True, help="List what would be removed and why, and remove nothing.")
@click.option("--yes-really", is_flag=True, help="Allow the removal of all sessions.")
@json_option("Print one JSON document: what is removed and why, what stays.")
@quiet_option("Show no table and no progress bar.")
def command(
    *,
    root: Path | None,
    config_path: Path | None,
    tags: Sequence[str],
    dry_run: bool,
    yes_really: bool,
    as_json: bool,
    quiet: bool,
    **limits: Any,
) -> None:
    """Remove the sessions in ROOT that exceed the retention limits, the oldest first.

    The oldest session was recorded first. Within a lease, the ids of games decide, even if the clock was set
    back. Ages are counted from the start in the name.

    Flags override the [retention] table of the file. ROOT is by default the out_dir of
    `tape2048 record`. Only sessions that the recorder, `merge` or `repack` published are removed. Sessions
    that a process reads stay, and limits of size and number then remove the next sessions. Without a limit,
    nothing is removed. The exit code is 1 if a session could not be removed.
    """
    path = config_path or (Path(os.environ[CONFIG_ENV]) if os.environ.get(CONFIG_ENV) else None)
    retention = load_retention(limits, path)
    directory = root or default_root(config_path)
    refuse_session(directory, "name its parent directory")
    found, skipped = _candidates(directory, tags)
    with LockProbe(directory) if dry_run else RemovalLock(directory) as upkeep:
        leftovers = clear_leftovers(directory, upkeep) if isinstance(upkeep, RemovalLock) else []
        plan = make_plan(found, retention, is_held=lambda session: _is_read(upkeep, directory / session.name))
        done: list[Removed] = []
        if isinstance(upkeep, RemovalLock):
            if not yes_really:
                plan.refuse_to_empty(directory)
            done = _remove(directory, plan, upkeep, quiet=quiet)
    document = _document(directory, plan, leftovers, done, skipped, dry_run=dry_run)
    if as_json:
        print_json(document)
    else:
        _print(document, plan.held, quiet=quiet, has_limit=retention.limited)
    exit_on_findings(document["failed"])


def _candidates(root: Path, tags: Sequence[str]) -> tuple[list[Candidate], list[tuple[Path, str]]]:
    try:
        found, skipped = candidates(root, tags)
    except StorageError as error:
        error.hint = error.hint or "Give the directory that `tape2048 record` writes to (out_dir)."
        raise
    for tag in sorted(set(tags) - {session.tag for session in found}):
        complain(f"no removable session has the tag {tag!r}: `tape2048 list` shows the names")
    return found, skipped


def _is_read(upkeep: LockProbe | RemovalLock, path: Path) -> bool:
    try:
        return upkeep.is_read(path)
    except OSError:
        return False  # missing or not accessible: the removal reports it


def _remove(root: Path, plan: PrunePlan, upkeep: RemovalLock, *, quiet: bool) -> list[Removed]:
    paths = [root / going.session.name for going in plan.going]
    done: list[Removed] = []
    with progress_bar(f"removing {counted(len(paths), 'session')}", quiet=quiet) as progress:
        for outcome in remove_sessions(root, paths, upkeep):
            done.append(outcome)
            if progress is not None:
                progress(len(done), len(paths))
    return done


def _document(
    root: Path,
    plan: PrunePlan,
    leftovers: Sequence[Removed],
    done: Sequence[Removed],
    skipped: Sequence[tuple[Path, str]],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    gone = {outcome.path.name for outcome in done if outcome.gone}
    return {
        "root": str(root),
        "dry_run": dry_run,
        "sessions": [
            {
                "name": session.name,
                "model_tag": session.tag,
                "bytes": session.bytes,
                "rule": rule,
                "why": why,
                "removed": session.name in gone,
            }
            for session, rule, why in plan.going
        ],
        "bytes_removed": sum(going.session.bytes for going in plan.going if going.session.name in gone),
        "staying": plan.staying,
        "staying_bytes": plan.staying_bytes,
        "read": [*plan.held, *(one.path.name for one in done if not one.gone and not one.error)],
        "passed_over": [{"name": path.name, "why": why} for path, why in skipped],
        "failed": [
            {"name": one.path.name, "error": type(one.error).__name__, "message": str(one.error)}
            for one in (*leftovers, *done)
            if one.error is not None
        ],
        "unmet": plan.unmet,
        "leftovers_removed": [outcome.path.name for outcome in leftovers if outcome.gone],
    }


def _print(document: dict[str, Any], held: Sequence[str], *, quiet: bool, has_limit: bool) -> None:
    chosen, verb = document["sessions"], "would be removed"
    notes = dict.fromkeys(document["read"], "stays: it is being read")
    notes |= {one["name"]: "failed" for one in document["failed"]}
    notes |= {one["name"]: "removed" for one in chosen if one["removed"]}
    if document["dry_run"]:
        notes = {one["name"]: verb for one in chosen}
    if chosen and not quiet:
        rows = [(one["name"], size(one["bytes"]), one["why"], notes.get(one["name"], "")) for one in chosen]
        print_lines(("session", ">size", "why", "note"), rows)
    lines = [f"kept, because a process reads it: {name}" for name in held]
    lines += [f"skipped: {one['name']}: {one['why']}" for one in document["passed_over"]]
    lines += [f"not met: {text}" for text in document["unmet"]]
    lines += [f"failed: {one['message']}" for one in document["failed"]]
    if not has_limit:
        lines.append(NO_LIMIT)
    kept = document["staying"]
    if not document["dry_run"]:
        kept, verb = kept + sum(not one["removed"] for one in chosen), "removed"
        chosen = [one for one in chosen if one["removed"]]
    freed = size(sum(one["bytes"] for one in chosen))
    stay = f"{number(kept)} {'stays' if kept == 1 else 'stay'}"
    lines.append(f"{document['root']}: {counted(len(chosen), 'session')} {verb} ({freed}), {stay}")
    print_human(*map(cell, lines))
