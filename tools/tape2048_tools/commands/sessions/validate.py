"""``tape2048 validate``: check sessions completely, and optionally replay their games."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
import msgspec

from tape2048.base.findings import Finding
from tape2048.base.text import counted
from tape2048.errors import TapeError
from tape2048.files.known_files import remember_file
from tape2048.files.opening import path_exists
from tape2048.files.reading import reading
from tape2048.loader.duplicates import Doubled, describe_doubled
from tape2048.maintenance.removal import quarantine_damaged
from tape2048.maintenance.validation import validate_session
from tape2048.session.directory import kind_of_table
from tape2048.session.session import Session
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.sessions.ages import is_due
from tape2048_tools.sessions.checks import Check, Validated
from tape2048_tools.sessions.session_jobs import Job
from tape2048_tools.sessions.summary import default_root, expand_sources, find_twice
from tape2048_tools.terminal.click_extras import (
    COLUMNS,
    EXISTING,
    PATH,
    exit_on_findings,
    job_options,
    json_option,
    new_command,
    out_option,
    quiet_option,
    refuse_missing,
)
from tape2048_tools.terminal.output import cell, finding, print_human, print_json


@new_command(
    "tape2048 validate selfplay",
    "tape2048 validate selfplay/20260101T000000Z_model=ntuple --replay",
    "tape2048 validate selfplay --quarantine",
    "tape2048 validate selfplay --older 7 --share 30",
    "tape2048 validate /nfs/selfplay/sessions --out checked --shard 1/8",
    "tape2048 validate selfplay --json | jq '.sessions[] | select(.ok | not) | .path'",
)
@click.argument("paths", type=EXISTING, nargs=-1)
@click.option("--config", "config_path", type=PATH, help="TOML file: check the sessions in its out_dir.")
@click.option(
    "--older",
    type=click.IntRange(0),
    help="Check only sessions that started more than DAYS days ago.",
    metavar="DAYS",
)
@click.option(
    "--share",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Check a different Nth of the sessions every day (UTC), and all in N days.",
)
@click.option("--replay", is_flag=True, help="Replay every recorded game from its seed, and compare.")
@click.option(
    "--weights",
    "files",
    type=EXISTING,
    multiple=True,
    metavar="FILE",
    help="Network or critic that --replay needs, if its path is not known here. It is remembered.",
)
@click.option(
    "--quarantine",
    "put_away",
    is_flag=True,
    help="Move a session with findings, and the reason, to .quarantine beside it, unless it is being read.",
)
@COLUMNS
@out_option("Keep the result of each session without findings in DIR.", "DIR", required=False)
@job_options("--out")
@json_option("Print one JSON document: each session with its findings.")
@quiet_option("Print findings only, and show no progress bar.")
def command(
    *,
    paths: Sequence[Path],
    config_path: Path | None,
    older: int | None,
    share: int,
    replay: bool,
    files: Sequence[Path],
    put_away: bool,
    overlay: Path | None,
    out: Path | None,
    shard: tuple[int, int] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check sessions completely: checksums, bookkeeping, every row, columns.

    Each of PATHS is a session, a directory of sessions, a data set or a pack.dat. The exit code is 1 if there
    are findings. If a path is missing or not a directory, nothing is read, and the exit code is 3.

    A session has the name and digest of its player's network, and no path. --replay finds the file in the
    working directory, or where this machine last used it.

    These are notes, not findings: players that cannot be replayed on this machine, unknown files such as
    .DS_Store, and games that two of the sessions hold, which other commands count once. A session that
    another process removes during the check is reported as removed.

    --quarantine does not move sessions that the operating system failed to read, because the session itself
    may be intact. It does not move sessions with intact rows and damaged columns, because columns can be made
    again. It does not move data sets.

    With --out, a session whose result is already in DIR is not checked again.
    """
    if out is None and shard:
        raise click.UsageError("--shard needs --out DIR, which records the finished sessions")
    if out is not None and put_away:
        raise click.UsageError(
            "--quarantine and --out exclude each other: run --quarantine later, on the sessions with findings"
        )
    for file in files:
        remember_file(file)
    is_part = older is not None or share > 1
    given, datasets = _sessions(paths, config_path, may_be_empty=is_part)
    sessions = [session for session in given if is_due(session, older, share)]
    check = Check(replay, overlay, datasets)
    if out is not None:
        from tape2048_tools.commands.jobs import do_job

        facts = {"replay": replay} | ({"columns": str(overlay.absolute())} if overlay else {})
        do_job(
            Job("validate", facts, check.keep, out),
            sessions, shard=shard, as_json=as_json, quiet=quiet,
            show=lambda result: _print(msgspec.convert(result, Validated), quiet=quiet),
        )  # fmt: skip
        return
    checked: list[Validated] = []
    for result in _check_each(sessions, check, quiet=quiet):
        checked.append(_put_away(result, overlay) if put_away and not result.ok else result)
        if not as_json:
            _print(checked[-1], quiet=quiet)
    bad = sum(not result.ok for result in checked)
    twice = _twice(checked, overlay)
    if as_json:
        documents = [result.document for result in checked]
        print_json({"ok": bad == 0, "sessions": documents, "twice": twice})
    elif not quiet and (is_part or len(checked) > 1):
        part = f" of {len(given)}" if is_part else ""
        if twice:
            print_human(cell(f"note: other commands leave out {describe_doubled(twice)}"))
        print_human(f"{len(checked)}{part} sessions, {bad or 'none'} with findings")
    exit_on_findings(bad)


def _sessions(
    paths: Sequence[Path], config_path: Path | None, *, may_be_empty: bool
) -> tuple[list[Path], frozenset[Path]]:
    """Return all sessions and data sets of the arguments, and the data sets among them."""
    if not paths and config_path is None:
        raise click.UsageError("Missing argument 'PATHS...' (or --config).")
    given = list(paths)
    if config_path is not None:
        given.append(default_root(config_path))
        refuse_missing(given[-1], "Start the recorder, which creates this directory, or correct out_dir.")
    how = {"may_be_empty": may_be_empty, "may_be_dataset": True}
    found = [session for path in given for session in expand_sources(path, **how)]
    return found, frozenset(path for path in given if bool(kind_of_table(path)))


def _check_each(sessions: Sequence[Path], check: Check, *, quiet: bool) -> Iterator[Validated]:
    homes = {session.parent: _identify(session.parent) for session in sessions}
    for count, session in enumerate(sessions, start=1):
        result = check(session, functools.partial(_bar, f"{count}/{len(sessions)}", quiet=quiet))
        if not result.ok and _is_removed(session, homes[session.parent]):
            result = msgspec.structs.replace(result, findings=(), removed=True)
        yield result


def _bar(which: str, title: str, *, quiet: bool) -> AbstractContextManager[Any]:
    return progress_bar(f"{which} {title}", quiet=quiet)


def _twice(checked: Sequence[Validated], overlay: Path | None) -> list[Doubled]:
    opened: list[Session] = []
    for result in checked:
        with contextlib.suppress(TapeError, OSError):  # another process removed it just now
            if result.ok and not result.removed:
                opened.append(Session.open(result.path, "mmap", columns=overlay))
    return find_twice(opened)[1] if opened else []


def _identify(path: Path) -> os.stat_result:
    with reading(path):
        return path.stat()


def _is_removed(path: Path, home: os.stat_result) -> bool:
    """Return whether a session was removed from its directory, and the directory itself was not replaced."""
    try:
        return not path_exists(path) and os.path.samestat(path.parent.stat(), home)
    except OSError:
        return False


def _put_away(result: Validated, overlay: Path | None) -> Validated:
    check = functools.partial(validate_session, columns=overlay)
    try:
        moved = quarantine_damaged(result, check, by="tape2048 validate")
    except TapeError as error:
        return msgspec.structs.replace(result, findings=(*result.findings, Finding.of(error)))
    return msgspec.structs.replace(result, quarantined=None if moved is None else str(moved))


def _print(result: Validated, *, quiet: bool) -> None:
    if result.removed:
        if not quiet:
            print_human(cell(f"--  {result.name}: removed by another process"))
    elif not quiet:
        facts = [counted(result.rows, "row"), counted(result.runs, "run")]
        facts.append(counted(result.checksums, "checksum") if result.checksums else "no checksums to compare")
        if result.replayed is not None:
            facts.append(f"{counted(result.replayed, 'run')} replayed")
        if result.not_replayed is not None:
            facts.append(f"not replayed: {result.not_replayed}")
        word = "ok " if result.ok else "BAD"
        print_human(cell(f"{word} {result.name}: {', '.join(facts)}", "" if result.ok else "bold red"))
        for note in result.notes:
            print_human(cell(f"    note: {note}"))
    for found in result.findings:
        text = str(TapeError(found.message, path=found.path, offset=found.offset))
        print_human(finding(found.error, text, found.hint))
    if result.quarantined is not None:
        print_human(cell(f"moved to {result.quarantined}"))
