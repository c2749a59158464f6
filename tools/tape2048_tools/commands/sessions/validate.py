"""``tape2048 validate``: check sessions completely, and optionally replay their games."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tape2048.base.findings import Finding
from tape2048.base.text import counted
from tape2048.errors import (
    EmbeddingsError,
    FormatError,
    NotASessionError,
    ReplayError,
    TapeError,
    error_class,
)
from tape2048.io.reading import reading
from tape2048.maintenance.validation import validate_session
from tape2048.session.directory import refuse_dataset
from tape2048_tools.terminal.click_extras import (
    EXISTING,
    exit_on_findings,
    json_option,
    new_command,
    quiet_option,
)
from tape2048_tools.terminal.output import cell, finding, print_human, print_json
from tape2048_tools.views.opening import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXPECTED = "name a session, or a directory of sessions"


class Checked(msgspec.Struct, frozen=True):
    """The result of checking one session.

    Attributes:
        name: the directory's name.
        path: the directory.
        ok: whether there are no findings.
        rows: number of rows read.
        runs: number of runs in the run table.
        checksums: number of checksums recomputed.
        replayed: number of runs replayed; None if not requested, or not possible.
        not_replayed: why no run could be replayed, or None.
        findings: all defects.
        notes: facts that are no defects.
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
    quarantined: str | None = None


@new_command(
    "tape2048 validate selfplay",
    "tape2048 validate selfplay/20260101T000000Z_model=ntuple --replay",
    "tape2048 validate selfplay --quarantine",
    "tape2048 validate selfplay --json | jq '.sessions[] | select(.ok | not) | .path'",
)
@click.argument("paths", type=EXISTING, nargs=-1, required=True)
@click.option("--replay", is_flag=True, help="Replay every recorded game from its seed, and compare.")
@click.option(
    "--quarantine",
    "put_away",
    is_flag=True,
    help="Move a session with findings to .quarantine beside it, with the reason, unless it is being read.",
)
@json_option("Print one JSON document: each session with its findings.")
@quiet_option("Print findings only, and show no progress bar.")
def command(*, paths: Sequence[Path], replay: bool, put_away: bool, as_json: bool, quiet: bool) -> None:
    """Check sessions completely: checksums, bookkeeping, every row.

    Each of PATHS is a session, or a directory of sessions. The exit code is 1 if there are findings. A player
    that cannot be replayed here is no finding: a note says why. If one of PATHS is missing (38) or not a
    directory (11), nothing is read. --quarantine does not move sessions that the operating system failed to
    read: the session itself may be fine. Nor does it for embeddings alone, which `embed --force` makes again.
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
    exit_on_findings(bad)


def _expand(path: Path) -> list[Path]:
    """Return the session, or the sessions of a directory.

    Raises:
        NotASessionError: a file, a data set, or a directory that neither is nor holds a session.
    """
    from tape2048.formats.session import MANIFEST, METADATA_DB, SESSION_NAME, STEPS_NPY
    from tape2048.session.session import sessions

    with reading(path):
        is_directory = path.is_dir()
    if not is_directory:
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
    raise NotASessionError("neither a session nor a directory of sessions", path=path, hint=_EXPECTED)


def _check(path: Path, which: str, *, replay: bool, quiet: bool) -> Checked:
    with progress_bar(f"{which} reading", quiet=quiet) as progress:
        report = validate_session(path, progress=progress)
    findings = report.findings
    replayed = not_replayed = None
    if replay and report.ok:  # damaged games prove nothing about the player
        replayed, not_replayed, found = _replay(path, which, quiet=quiet)
        findings += found
    return Checked(
        name=Path(report.path).name,
        path=report.path,
        ok=not findings,
        rows=report.rows,
        runs=report.runs,
        checksums=report.checksums,
        replayed=replayed,
        not_replayed=not_replayed,
        findings=findings,
        notes=report.notes,
    )


def _put_away(result: Checked) -> Checked:
    """Move a session to the quarantine if its findings are about its bytes."""
    from tape2048.maintenance.quarantine import quarantine_session
    from tape2048.session.locks import RemovalLock

    path = Path(result.path)
    kinds = [error_class(found.error) for found in result.findings]
    about_bytes = all(issubclass(kind, FormatError) for kind in kinds) and set(kinds) != {EmbeddingsError}
    if not path.is_dir() or path.is_symlink() or not about_bytes:
        return result
    # Read it again: a transient failure of the device is no reason. Findings of a replay are the player's.
    replay_failed = any(found.error == ReplayError.__name__ for found in result.findings)
    if not replay_failed and validate_session(path).findings != result.findings:
        return result
    try:
        with RemovalLock(path.parent) as upkeep:
            moved = quarantine_session(path, result.findings, upkeep, by="tape2048 validate")
    except TapeError as error:
        return msgspec.structs.replace(result, findings=(*result.findings, Finding.of(error)))
    return msgspec.structs.replace(result, quarantined=str(moved))


def _replay(path: Path, which: str, *, quiet: bool) -> tuple[int | None, str | None, tuple[Finding, ...]]:
    """Return the number of runs replayed, or why there is none, and the findings."""
    from tape2048_recorder.replay.replay import replay_session

    try:
        with progress_bar(f"{which} replaying", quiet=quiet) as progress:
            report = replay_session(path, progress=progress)
    except ReplayError as error:  # such as an unknown player, which says nothing about the games
        return None, error.message, ()
    except TapeError as error:
        return None, None, (Finding.of(error),)
    return report.runs, None, tuple(report.findings)


def _print(result: Checked, *, quiet: bool) -> None:
    if not quiet:
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
