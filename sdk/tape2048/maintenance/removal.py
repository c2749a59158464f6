"""Removing sessions, so that no reader ever meets half of one.

A session is first renamed to a name that nobody reads (``.<name>.removed``), the directory is flushed,
and then its files go. What a crash leaves has such a name, and goes with the next removal.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tape2048.errors import TapeError
from tape2048.formats.session import MANIFEST, METADATA_DB, SESSION_NAME, STEPS_NPY
from tape2048.io.durable import fsync_dir, rename_numbered, storage_error, storage_errors
from tape2048.session.directory import list_names, read_manifest
from tape2048.session.embeddings import EMBEDDINGS_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tape2048.session.locks import RemovalLock

_LEFTOVER = re.compile(rf"\.{SESSION_NAME.pattern}\.removed(-\d+)?")

#: Sessions that are hidden before the directory is flushed once for all of them.
_BATCH = 128


class Removed(NamedTuple):
    """What became of one session: gone, or left since it is read (neither), or an error."""

    path: Path
    gone: bool
    error: TapeError | None = None


def why_not_ours(path: Path) -> str | None:  # noqa: PLR0911 - one line for each reason
    """Why a directory is not surely a session that the recorder or ``merge`` has published; None if it is.

    Nothing is removed that has another name, is a link, lacks a manifest, or holds anything else.
    """
    if not SESSION_NAME.fullmatch(path.name):
        return "its name is not that of a session"
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return "it is a link or a file"
        names = set(list_names(path))
        manifest = read_manifest(path)
    except FileNotFoundError:
        return "it is gone"
    except OSError as error:
        return error.strerror or str(error)
    except TapeError as error:
        return error.message
    if manifest is None:
        return f"it has no {MANIFEST}: others wrote it"
    if not {STEPS_NPY, METADATA_DB} <= names:
        return f"it lacks {STEPS_NPY} or {METADATA_DB}"
    foreign = sorted(names - {MANIFEST, *manifest.files, *EMBEDDINGS_FILES})
    return f"it holds {foreign[0]}, which is no part of a session" if foreign else None


def hidden_leftovers(root: Path) -> list[Path]:
    """What removals that were killed have left, sorted.

    Raises:
        OSError: the directory cannot be listed.
    """
    with os.scandir(root) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if _LEFTOVER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def clear_leftovers(root: Path, upkeep: RemovalLock) -> list[Removed]:  # noqa: ARG001 - the right to do so
    """Remove what removals that were killed have left; says of each, sorted, what became of it.

    One that fails does not keep the others: it would keep them for ever.

    Raises:
        StorageError: the directory cannot be listed, or could not be flushed after.
    """
    outcomes: list[Removed] = []
    with storage_errors(root, "removing what was left"):
        for path in hidden_leftovers(root):
            try:
                shutil.rmtree(path)
            except OSError as error:
                failed = storage_error(error, path, "removing what was left")
                outcomes.append(Removed(path, gone=False, error=failed))
            else:
                outcomes.append(Removed(path, gone=True))
        if outcomes:
            fsync_dir(root)
    return outcomes


def remove_sessions(
    root: Path,
    paths: Iterable[Path],
    upkeep: RemovalLock,
    *,
    still_needed: Callable[[Path], bool] = lambda _: True,
) -> Iterator[Removed]:
    """Remove sessions of a directory, and say of each what became of it.

    Args:
        root: the directory.
        paths: the sessions, directly in it.
        upkeep: the right to do so.
        still_needed: asked right before each is hidden; False leaves it, and it is not yielded.

    Yields:
        One after the other, in the order of ``paths``. One that fails does not keep the others.

    Raises:
        StorageError: they are gone, and the directory could not be flushed after.
    """
    remaining = iter(paths)
    while batch := list(itertools.islice(remaining, _BATCH)):
        hidden = [found for path in batch if still_needed(path) for found in [_hide(path, upkeep)]]
        try:
            fsync_dir(root)
        except OSError as error:
            # Nobody sees them any more, and nothing has been deleted: the next removal goes on.
            failed = storage_error(error, root, "flushing it")
            yield from (Removed(path, gone=False, error=failed) for path, _, _ in hidden)
            return
        for path, outcome, taken in hidden:
            try:
                if not isinstance(outcome, Path):
                    yield Removed(path, gone=False, error=outcome)
                    continue
                try:
                    shutil.rmtree(outcome)
                except OSError as error:
                    yield Removed(path, gone=False, error=storage_error(error, outcome, "removing it"))
                    continue
                yield Removed(path, gone=True)
            finally:
                if taken is not None:
                    upkeep.unlock(taken)
        with storage_errors(root, "flushing it"):
            fsync_dir(root)


def _hide(path: Path, upkeep: RemovalLock) -> tuple[Path, Path | TapeError | None, int | None]:
    """Rename one session; its path, then its hidden name, an error, or None where it is read; its lock."""
    taken = None
    try:
        taken = upkeep.try_lock(path)
        if taken is None:
            return path, None, None
        return path, rename_numbered(path, path.with_name(f".{path.name}.removed")), taken
    except OSError as error:
        if taken is not None:
            upkeep.unlock(taken)
        return path, storage_error(error, path, "removing it"), None
