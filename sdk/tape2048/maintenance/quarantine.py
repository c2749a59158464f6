"""Quarantine of damaged sessions, with the reason: ``<root>/.quarantine/``.

::

    <root>/.quarantine/<name>/               the directory, unchanged
    <root>/.quarantine/<name>.reason.json    the findings, the program, the time

The name begins with a dot, so no reader takes it for a session. To restore a session, move its directory
back.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import BusyError, NameTakenError
from tape2048.io.durable import fsync_dir, numbered, rename_noreplace, storage_errors, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048.base.findings import Finding
    from tape2048.session.locks import RemovalLock

QUARANTINE = ".quarantine"
_REASON = ".reason.json"


class Reason(msgspec.Struct, frozen=True):
    """The content of ``<name>.reason.json``: previous path, program, time (UTC), and findings."""

    was: str
    by: str
    at: str
    findings: list[dict[str, object]]


def quarantine(root: Path, path: Path, findings: Sequence[Finding], *, by: str) -> Path:
    """Move a directory of ``root``, which no other process uses, to the quarantine; return its new path.

    The reason is written first, so that even after a crash each directory in the quarantine has one.
    """
    home = root / QUARANTINE
    name = path.name.lstrip(".")
    reason = Reason(
        was=str(path),
        by=by,
        at=f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
        findings=[msgspec.to_builtins(finding) for finding in findings],
    )
    text = pretty_json(reason)
    with storage_errors(path, "moving it to the quarantine"):
        home.mkdir(exist_ok=True)
        for target in numbered(home / name):
            note = home / f"{target.name}{_REASON}"
            if os.path.lexists(target):
                continue
            note.unlink(missing_ok=True)  # left by a crash before the rename
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


def quarantine_session(path: Path, findings: Sequence[Finding], lock: RemovalLock, *, by: str) -> Path:
    """Move a published session to the quarantine, unless a process reads it; return its new path."""
    with storage_errors(path, "moving it to the quarantine"):
        locked = lock.try_lock(path)
    if locked is None:
        raise BusyError(
            "a process reads this session, which was not moved",
            path=path,
            hint="end that process, and try again",
        )
    try:
        return quarantine(path.parent, path, findings, by=by)
    finally:
        lock.unlock(locked)


def list_quarantine(root: Path) -> list[str]:
    """List the names of the directories in the quarantine, sorted; none without a quarantine."""
    try:
        with os.scandir(Path(root) / QUARANTINE) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
