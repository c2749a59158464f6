"""Where sessions go that are not what they should be: ``<root>/.quarantine/``, with the reason.

::

    <root>/.quarantine/<name>/               the directory as it was, nothing changed
    <root>/.quarantine/<name>.reason.json    what was found, by whom, when

Its name begins with a dot, so that no reader takes it for a session. What stands there is for a person to
look at; moving the directory back is all it takes to have it again.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tape2048.base.text import json_bytes
from tape2048.errors import HeldError, NameTakenError
from tape2048.io.durable import fsync_dir, numbered, rename_noreplace, storage_errors, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048.base.findings import Finding
    from tape2048.session.locks import RemovalLock

QUARANTINE = ".quarantine"
_REASON = ".reason.json"


class Reason(msgspec.Struct, frozen=True):
    """Why a directory was put away: ``<name>.reason.json``.

    Attributes:
        was: its path before.
        by: what put it there.
        at: when, UTC, RFC 3339.
        findings: each defect, as ``tape2048 validate --json`` says it.
    """

    was: str
    by: str
    at: str
    findings: list[dict[str, object]]


def quarantine(root: Path, path: Path, findings: Sequence[Finding], *, by: str) -> Path:
    """Put a directory of ``root`` away that nobody else can be at work on; returns where it is now.

    The reason is written first: whatever stands in the quarantine has one, also after a crash in between.

    Raises:
        StorageError: the operating system refused; the directory is where it was.
    """
    home = root / QUARANTINE
    name = path.name.lstrip(".")
    reason = Reason(
        was=str(path),
        by=by,
        at=f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
        findings=[msgspec.to_builtins(finding) for finding in findings],
    )
    text = msgspec.json.format(json_bytes(reason)) + b"\n"
    with storage_errors(path, "moving it to the quarantine"):
        home.mkdir(exist_ok=True)
        for target in numbered(home / name):
            note = home / f"{target.name}{_REASON}"
            if os.path.lexists(target):
                continue
            note.unlink(missing_ok=True)  # of a crash before the rename
            write_file(note, text)
            try:
                rename_noreplace(path, target)
            except NameTakenError:
                note.unlink()
                continue
            except BaseException:
                note.unlink(missing_ok=True)
                raise
            break
        fsync_dir(home)
        fsync_dir(root)
    return target


def quarantine_session(path: Path, findings: Sequence[Finding], upkeep: RemovalLock, *, by: str) -> Path:
    """Put a published session away, unless somebody reads it.

    Raises:
        HeldError: somebody reads it.
        StorageError: the operating system refused; the session is where it was.
    """
    with storage_errors(path, "moving it to the quarantine"):
        taken = upkeep.try_lock(path)
    if taken is None:
        raise HeldError(
            "a process reads this session; it stays where it is",
            path=path,
            hint="end that process, then again",
        )
    try:
        return quarantine(path.parent, path, findings, by=by)
    finally:
        upkeep.unlock(taken)


def quarantined(root: Path) -> list[str]:
    """Names of what stands in the quarantine of a directory, sorted; none where it has none."""
    try:
        with os.scandir(Path(root) / QUARANTINE) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
