"""Removal of sessions, which is atomic for readers, and quarantine of damaged sessions.

A session is renamed to a hidden name (``.<name>.removed``), the directory is flushed, and then its files are
deleted. After a crash, the next removal deletes the hidden sessions that are left. OverlayFS does not rename
sessions of an image's layers: there, ``manifest.json`` is deleted first, and the quarantine receives a copy.

The quarantine::

    <root>/.quarantine/<name>/               the directory, unchanged
    <root>/.quarantine/<name>.reason.json    the findings, the program, the time

To restore a session, move its directory back.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import (
    BusyError,
    ColumnError,
    FormatError,
    NameTakenError,
    ReplayError,
    TapeError,
    error_class,
)
from tape2048.files.durable import (
    fsync_dir,
    hide_directory,
    move_directory,
    numbered,
    sweep_drafts,
    write_file,
)
from tape2048.files.opening import storage_error, storage_errors
from tape2048.files.removal_locks import RemovalLock
from tape2048.session.columns import column_files
from tape2048.session.directory import is_dataset, list_names
from tape2048.session.layout import MANIFEST, METADATA_DB, SESSION_NAME, STEPS_NPY
from tape2048.session.session_files import SessionFiles
from tape2048.session.tape_layout import ANCHORS_NPY, TAPE_NPY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tape2048.base.findings import Finding, Report

_LEFTOVER = re.compile(rf"\.{SESSION_NAME.pattern}\.removed(-\d+)?")

_BATCH = 128  # sessions hidden by one flush of the directory


class Removed(NamedTuple):
    """The outcome for one session: removed, or not, because of an error or (no error) of a reader."""

    path: Path
    gone: bool
    error: TapeError | None = None


def explain_refusal(path: Path) -> str | None:  # noqa: PLR0911 - one line for each reason
    """Return the reason why a directory is not safe to remove; None for a session of this project.

    Links, and directories with another name, without a manifest or with other files, are never removed.
    """
    if not SESSION_NAME.fullmatch(path.name):
        return "its name is not the name of a session"
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return "it is a link or a file"
        files = SessionFiles(path)
        names, manifest = set(files.names), files.manifest
    except FileNotFoundError:
        return "it is gone"
    except OSError as error:
        return error.strerror or str(error)
    except TapeError as error:
        return error.message
    if manifest is None:
        return f"it has no {MANIFEST}, so another program wrote it"
    rows = {TAPE_NPY, ANCHORS_NPY} if TAPE_NPY in names else {STEPS_NPY}
    if missing := sorted({METADATA_DB, *rows} - names):
        return f"it lacks {missing[0]}"
    foreign = sorted(names - {MANIFEST, *manifest.files, *column_files(path)})
    return f"it holds {foreign[0]}, which is not a file of a session" if foreign else None


def find_leftovers(root: Path) -> list[Path]:
    with os.scandir(root) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if _LEFTOVER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def clear_leftovers(root: Path, removal_lock: RemovalLock) -> list[Removed]:  # noqa: ARG001 - must be held
    """Remove the files that interrupted removals and killed writers have left; return the outcomes."""
    doing = "removing leftovers"
    with storage_errors(root, doing):
        outcomes = [Removed(path, gone=True) for path in sweep_drafts(root)]
        outcomes += [_delete(path, path, doing) for path in find_leftovers(root)]
        if outcomes:
            fsync_dir(root)
    return outcomes


def _delete(path: Path, hidden: Path, doing: str) -> Removed:
    try:
        shutil.rmtree(hidden)
    except OSError as error:
        return Removed(path, gone=False, error=storage_error(error, hidden, doing))
    return Removed(path, gone=True)


def remove_sessions(root: Path, paths: Iterable[Path], removal_lock: RemovalLock) -> Iterator[Removed]:
    """Remove sessions of a directory, and continue after a failure."""
    remaining = iter(paths)
    while batch := list(itertools.islice(remaining, _BATCH)):
        hidden = [_hide(path, removal_lock) for path in batch]
        try:
            fsync_dir(root)
        except OSError as error:
            # The sessions are hidden, and nothing has been deleted: the next removal continues.
            failed = storage_error(error, root, "flushing it")
            yield from (Removed(path, gone=False, error=failed) for path, _, _ in hidden)
            return
        for path, outcome, locked in hidden:
            try:
                if isinstance(outcome, Path):
                    yield _delete(path, outcome, "removing it")
                else:
                    yield Removed(path, gone=False, error=outcome)
            finally:
                if locked is not None:
                    removal_lock.unlock(locked)
        with storage_errors(root, "flushing it"):
            fsync_dir(root)


def _hide(path: Path, removal_lock: RemovalLock) -> tuple[Path, Path | TapeError | None, int | None]:
    """Hide a session; return its path, its hidden path (or an error, or None if it is read), its lock."""
    locked = None
    try:
        locked = removal_lock.try_lock(path)
        if locked is None:
            return path, None, None
        return path, hide_directory(path, path.with_name(f".{path.name}.removed"), MANIFEST), locked
    except OSError as error:
        if locked is not None:
            removal_lock.unlock(locked)
        return path, storage_error(error, path, "removing it"), None


QUARANTINE = ".quarantine"
_REASON = ".reason.json"


def quarantine(root: Path, path: Path, findings: Sequence[Finding], *, by: str) -> Path:
    """Move a directory to the quarantine, the reason first, in case of a crash; return its new path."""
    home = root / QUARANTINE
    name = path.name.lstrip(".")
    text = pretty_json(
        {
            "was": str(path),
            "by": by,
            "at": f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            "findings": [msgspec.to_builtins(finding) for finding in findings],
        }
    )
    with storage_errors(path, "moving it to the quarantine"):
        home.mkdir(exist_ok=True)
        for target in numbered(home / name):
            note = home / f"{target.name}{_REASON}"
            if os.path.lexists(target):
                continue
            note.unlink(missing_ok=True)  # left by a crash before the rename
            write_file(note, text)
            try:
                move_directory(path, target, MANIFEST)
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
            "another process reads this session. It was not moved",
            path=path,
            hint="end that process, and try again",
        )
    try:
        return quarantine(path.parent, path, findings, by=by)
    finally:
        lock.unlock(locked)


def quarantine_damaged(report: Report, check: Callable[[Path], Report], *, by: str) -> Path | None:
    """Move a session with damaged rows or bookkeeping to the quarantine; return its new path, or None.

    It stays if the operating system could not read it, if only columns are damaged, which can be made again,
    or if ``check`` finds other defects when it reads the session again. Data sets stay, too.
    """
    path, kinds = Path(report.path), {error_class(finding.error) for finding in report.findings}
    if kinds == {ColumnError} or not all(issubclass(kind, FormatError) for kind in kinds):
        return None
    if path.is_symlink() or not path.is_dir() or is_dataset(path, list_names(path)):
        return None
    # A transient failure of the device is no reason. Findings of a replay are the player's.
    if ReplayError not in kinds and check(path).findings != report.findings:
        return None
    with RemovalLock(path.parent) as lock:
        return quarantine_session(path, report.findings, lock, by=by)


def list_quarantine(root: Path) -> list[str]:
    try:
        with os.scandir(Path(root) / QUARANTINE) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
