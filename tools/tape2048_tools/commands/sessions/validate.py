"""``tape2048 validate``: read sessions to the last byte, and on request play their games again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tape2048.base.findings import Finding
from tape2048.base.text import counted
from tape2048.errors import FormatError, NotASessionError, OutDirError, ReplayError, TapeError, error_class
from tape2048.io.reading import reading
from tape2048.maintenance.validation import validate_session
from tape2048.session.directory import refuse_dataset
from tape2048_tools.terminal.click_extras import PATH, Command, json_option, quiet_option
from tape2048_tools.terminal.output import cell, finding, print_human, print_json
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FINDINGS = 1

_EXPECTED = "name a session, or where `record` writes"


class Checked(msgspec.Struct, frozen=True):
    """What is known of one session after it was checked.

    Attributes:
        name: the directory's name.
        path: the directory.
        ok: whether there are no findings.
        rows: rows that were read.
        runs: runs in the run table.
        checksums: checksums that were recomputed.
        replayed: runs that were played again; None where that was not asked for, or not possible.
        findings: everything that is wrong.
        quarantined: where it was moved; None where it stays.
    """

    name: str
    path: str
    ok: bool
    rows: int
    runs: int
    checksums: int
    replayed: int | None
    findings: tuple[Finding, ...]
    quarantined: str | None = None


@click.command(
    cls=Command,
    examples=[
        "tape2048 validate selfplay",
        "tape2048 validate selfplay/20260101T000000Z_model=ntuple --replay",
        "tape2048 validate selfplay --quarantine",
        "tape2048 validate selfplay --json | jq '.sessions[] | select(.ok | not) | .path'",
    ],
)
@click.argument("paths", type=PATH, nargs=-1, required=True)
@click.option("--replay", is_flag=True, help="Play every recorded game again from its seed, and compare.")
@click.option(
    "--quarantine",
    "put_away",
    is_flag=True,
    help="Move a session with findings to .quarantine beside it, with the reason; not one that is read.",
)
@json_option("One JSON document: each session with its findings.")
@quiet_option("Say nothing but findings; no progress bar.")
def command(*, paths: Sequence[Path], replay: bool, put_away: bool, as_json: bool, quiet: bool) -> None:
    """Check sessions completely: checksums, bookkeeping, every row.

    Each of PATHS is a session, or a directory of sessions. The exit code is 1 where anything is wrong; where
    no directory stands at one of PATHS (11, 31), nothing is read.
    With --quarantine, what the operating system could not read stays: that says nothing of the session.
    """
    sessions = [session for path in paths for session in _expand(path)]
    checked: list[Checked] = []
    for count, session in enumerate(sessions, start=1):
        result = _check(session, f"{count}/{len(sessions)}", replay=replay, quiet=quiet)
        checked.append(_put_away(result) if put_away and not result.ok else result)
        if not as_json:
            _print(checked[-1], quiet=quiet)
    bad = sum(not result.ok for result in checked)
    if as_json:
        print_json({"ok": bad == 0, "sessions": msgspec.to_builtins(checked)})
    elif not quiet and len(checked) > 1:
        print_human(f"{len(checked)} sessions, {bad or 'none'} with findings")
    if bad:
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _expand(path: Path) -> list[Path]:
    """A session as it is; a directory of sessions as its sessions.

    Raises:
        OutDirError: nothing stands there: no finding about a session.
        NotASessionError: a file, a data set, or a directory that is no session and holds none: "nothing
            wrong" would be true, but mislead.
    """
    from tape2048.formats.session import MANIFEST, METADATA_DB, SESSION_NAME, STEPS_NPY
    from tape2048.session.session import sessions

    with reading(path):
        there = path.exists()
    if not there:
        raise OutDirError("nothing stands at this path", path=path, hint=_EXPECTED)
    if not path.is_dir():
        raise NotASessionError("found a file, expected a directory", path=path, hint=_EXPECTED)
    looks_like_session = (
        SESSION_NAME.fullmatch(path.resolve().name)
        or any((path / name).exists() for name in (STEPS_NPY, METADATA_DB, MANIFEST))
        or any(path.glob("steps-*.npy"))
    )
    if looks_like_session:
        refuse_dataset(path)
        return [path]
    if found := sessions(path):
        return found
    raise NotASessionError(
        "neither a session nor a directory that holds one",
        path=path,
        hint=_EXPECTED,
    )


def _check(path: Path, which: str, *, replay: bool, quiet: bool) -> Checked:
    with progress_bar(f"{which} reading", quiet=quiet) as progress:
        report = validate_session(path, progress=progress)
    findings = report.findings
    replayed = None
    if replay and report.ok:  # what is known to be damaged proves nothing about the player
        replayed, found = _replay(path, which, quiet=quiet)
        findings += found
    return Checked(
        name=Path(report.path).name,
        path=report.path,
        ok=not findings,
        rows=report.rows,
        runs=report.runs,
        checksums=report.checksums,
        replayed=replayed,
        findings=findings,
    )


def _put_away(result: Checked) -> Checked:
    """Move a session to the quarantine, if it is one and its findings are about its bytes."""
    from tape2048.maintenance.quarantine import quarantine_session
    from tape2048.session.locks import RemovalLock

    path = Path(result.path)
    about_bytes = (issubclass(error_class(found.error), FormatError) for found in result.findings)
    if not path.is_dir() or path.is_symlink() or not all(about_bytes):
        return result
    # Once more: what a device failed once is no reason (of a replay, the findings are the player's).
    if all(found.error != ReplayError.__name__ for found in result.findings):
        again = validate_session(path).findings
        if again != result.findings:
            return result
    try:
        with RemovalLock(path.parent) as upkeep:
            moved = quarantine_session(path, result.findings, upkeep, by="tape2048 validate")
    except TapeError as error:
        refused = Finding.of(error)
        return msgspec.structs.replace(result, findings=(*result.findings, refused))
    return msgspec.structs.replace(result, quarantined=str(moved))


def _replay(path: Path, which: str, *, quiet: bool) -> tuple[int | None, tuple[Finding, ...]]:
    from tape2048_recorder.replay.replay import replay_session

    try:
        with progress_bar(f"{which} playing again", quiet=quiet) as progress:
            report = replay_session(path, progress=progress)
    except TapeError as error:  # a player that is not known here, say
        found = Finding.of(error)
        return None, (found,)
    return report.runs, tuple(report.findings)


def _print(result: Checked, *, quiet: bool) -> None:
    if not quiet:
        facts = [counted(result.rows, "row"), counted(result.runs, "run")]
        facts.append(counted(result.checksums, "checksum") if result.checksums else "no checksums to compare")
        if result.replayed is not None:
            facts.append(f"{counted(result.replayed, 'run')} played again")
        word = "ok " if result.ok else "BAD"
        print_human(cell(f"{word} {result.name}: {', '.join(facts)}", "" if result.ok else "bold red"))
    for found in result.findings:
        text = str(TapeError(found.message, path=found.path, offset=found.offset))
        print_human(finding(found.error, text, found.hint))
    if result.quarantined is not None:
        print_human(cell(f"moved to {result.quarantined}"))
