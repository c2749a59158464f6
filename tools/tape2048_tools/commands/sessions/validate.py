"""``tape2048 validate``: check sessions completely, and optionally replay their games."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tape2048.base.findings import Finding
from tape2048.base.text import counted, pretty_json
from tape2048.errors import ColumnError, FormatError, ReplayError, TapeError, error_class
from tape2048.files.durable import path_exists, write_file
from tape2048.files.reading import reading
from tape2048.loader.duplicates import Doubled, describe_doubled
from tape2048.maintenance.validation import validate_session
from tape2048.session.dataset import is_table
from tape2048.session.layout import SESSION_NAME
from tape2048.session.session import Session
from tape2048_tools.progress.panel import progress_bar
from tape2048_tools.sessions.retention_plan import start_s
from tape2048_tools.sessions.session_jobs import Engine, Job
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

_DAY_S = 86_400


class Validated(msgspec.Struct, frozen=True):
    """The result of checking one session.

    Attributes:
        name: the directory's name.
        path: the directory.
        ok: True without findings.
        rows: number of rows read.
        runs: number of runs in the run table.
        checksums: number of checksums recomputed.
        replayed: number of runs replayed; None if not requested, or not possible.
        not_replayed: reason why no run could be replayed, or None.
        findings: all defects.
        notes: remarks that are not defects.
        removed: whether another process removed it before or during the check.
        quarantined: the path in the quarantine, or None.
    """

    name: str
    path: str
    ok: bool
    rows: int
    runs: int
    checksums: int
    replayed: int | None
    not_replayed: str | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    removed: bool = False
    quarantined: str | None = None


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
    put_away: bool,
    overlay: Path | None,
    out: Path | None,
    shard: tuple[int, int] | None,
    engine: Engine | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check sessions completely: checksums, bookkeeping, every row, columns.

    Each of PATHS is a session, a directory of sessions, a data set or a pack.dat. The exit code is 1 if there
    are findings. If a path is missing or not a directory, nothing is read, and the exit code is 3.

    These are notes, not findings: players that cannot be replayed on this machine, unknown files such as
    .DS_Store, and games that two of the sessions hold, which other commands count once. A session that
    another process removes during the check is reported as removed.

    --quarantine does not move sessions that the operating system failed to read, because the session itself
    may be intact. It does not move sessions with intact rows and damaged columns, because columns can be made
    again. It does not move data sets.

    With --out, a session whose result is already in DIR is not checked again.
    """
    if out is None and (shard or engine):
        raise click.UsageError("--shard and --engine need --out DIR, which records the finished sessions")
    if out is not None and put_away:
        raise click.UsageError(
            "--quarantine and --out exclude each other: run --quarantine later, on the sessions with findings"
        )
    is_part = older is not None or share > 1
    sessions = _sessions(paths, config_path, may_be_empty=is_part)
    total = len(sessions)
    sessions = [session for session in sessions if _is_due(session, older, share)]
    if out is not None:
        from tape2048_tools.commands.jobs import do_job

        facts = {"replay": replay} | ({"columns": str(overlay.absolute())} if overlay else {})
        job = Job("validate", facts, functools.partial(_check_one, replay=replay, overlay=overlay), out)
        do_job(
            job, sessions, shard=shard, engine=engine, as_json=as_json, quiet=quiet,
            show=lambda result: _print(msgspec.convert(result, Validated), quiet=quiet),
        )  # fmt: skip
        return
    homes = {session.parent: _identify(session.parent) for session in sessions}
    checked: list[Validated] = []
    for count, session in enumerate(sessions, start=1):
        result = _check(session, f"{count}/{len(sessions)}", replay=replay, overlay=overlay, quiet=quiet)
        if not result.ok and _is_removed(session, homes[session.parent]):
            result = msgspec.structs.replace(result, ok=True, findings=(), removed=True)
        checked.append(_put_away(result, overlay) if put_away and not result.ok else result)
        if not as_json:
            _print(checked[-1], quiet=quiet)
    bad = sum(not result.ok for result in checked)
    twice = _twice(checked, overlay)
    if as_json:
        print_json({"ok": bad == 0, "sessions": checked, "twice": twice})
    elif not quiet and (is_part or len(checked) > 1):
        part = f" of {total}" if is_part else ""
        if twice:
            print_human(cell(f"note: other commands leave out {describe_doubled(twice)}"))
        print_human(f"{len(checked)}{part} sessions, {bad or 'none'} with findings")
    exit_on_findings(bad)


def _sessions(paths: Sequence[Path], config_path: Path | None, *, may_be_empty: bool) -> list[Path]:
    if not paths and config_path is None:
        raise click.UsageError("Missing argument 'PATHS...' (or --config).")
    given = list(paths)
    if config_path is not None:
        given.append(default_root(config_path))
        refuse_missing(given[-1], "Start the recorder, which creates this directory, or correct out_dir.")
    how = {"may_be_empty": may_be_empty, "may_be_dataset": True}
    return [session for path in given for session in expand_sources(path, **how)]


def _twice(checked: Sequence[Validated], overlay: Path | None) -> list[Doubled]:
    """Return the pairs of sessions without findings that hold games twice."""
    opened: list[Session] = []
    for result in checked:
        with contextlib.suppress(TapeError, OSError):  # another process removed it just now
            if result.ok and not result.removed:
                opened.append(Session.open(result.path, columns=overlay))
    return find_twice(opened)[1] if opened else []


def _check_one(session: Path, draft: Path, **how: Any) -> dict[str, Any]:
    result: dict[str, Any] = msgspec.to_builtins(_check(session, "", quiet=True, **how))
    write_file(draft / f"{session.name}.json", pretty_json(result))
    return result


def _is_due(path: Path, older: int | None, share: int) -> bool:
    """Return whether a session is old enough, and today is the day of its share; both by its name."""
    now = time.time()
    if (zlib.crc32(os.fsencode(path.name)) + int(now // _DAY_S)) % share:
        return False
    return older is None or _began(path) < now - older * _DAY_S


def _began(path: Path) -> float:
    match = SESSION_NAME.fullmatch(path.name)
    with contextlib.suppress(ValueError):  # no time, such as a 13th month
        if match is not None:
            return start_s(match["ts"])
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0  # old: its check reports the error


def _identify(path: Path) -> os.stat_result:
    with reading(path):
        return path.stat()


def _is_removed(path: Path, home: os.stat_result) -> bool:
    """Return whether a session was removed from its directory, and the directory itself was not replaced."""
    try:
        return not path_exists(path) and os.path.samestat(path.parent.stat(), home)
    except OSError:
        return False


def _check(path: Path, which: str, *, replay: bool, overlay: Path | None, quiet: bool) -> Validated:
    is_dataset = is_table(path)
    with progress_bar(f"{which} reading", quiet=quiet) as progress:
        if is_dataset:
            from tape2048.datasets import verify_dataset

            report = verify_dataset(path, progress=progress)
        else:
            report = validate_session(path, columns=overlay, progress=progress)
    findings = report.findings
    replayed = not_replayed = None
    if replay and is_dataset:
        not_replayed = "a data set's games are checked move by move instead"
    elif replay and report.ok:  # damaged games prove nothing about the player
        from tape2048_recorder.replay.replay import replay_session

        try:
            with progress_bar(f"{which} replaying", quiet=quiet) as progress:
                again = replay_session(path, progress=progress)
            replayed, findings = again.runs, tuple(again.findings)
        except ReplayError as error:  # such as an unknown player, which is no defect of the games
            not_replayed = error.message
        except TapeError as error:
            findings = (Finding.of(error),)
    counts = (report.rows, report.runs, report.checksums, replayed, not_replayed)
    return Validated(Path(report.path).name, report.path, not findings, *counts, findings, report.notes)


def _put_away(result: Validated, overlay: Path | None) -> Validated:
    from tape2048.files.locks import RemovalLock
    from tape2048.maintenance.removal import quarantine_session

    path = Path(result.path)
    kinds = [error_class(found.error) for found in result.findings]
    about_bytes = all(issubclass(kind, FormatError) for kind in kinds) and set(kinds) != {ColumnError}
    if not path.is_dir() or path.is_symlink() or not about_bytes or is_table(path):
        return result
    # Read it again: a transient failure of the device is no reason. Findings of a replay are the player's.
    replay_failed = any(found.error == ReplayError.__name__ for found in result.findings)
    if not replay_failed and validate_session(path, columns=overlay).findings != result.findings:
        return result
    try:
        with RemovalLock(path.parent) as upkeep:
            moved = quarantine_session(path, result.findings, upkeep, by="tape2048 validate")
    except TapeError as error:
        return msgspec.structs.replace(result, findings=(*result.findings, Finding.of(error)))
    return msgspec.structs.replace(result, quarantined=str(moved))


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
