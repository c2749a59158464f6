"""Directories of sessions: the default one, its checks, sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import NotASessionError, StorageError, TapeError
from tape2048.formats.session import MANIFEST, METADATA_DB, SESSION_NAME, STEPS_NPY, TAPE_NPY
from tape2048.io.reading import reading
from tape2048.session.directory import refuse_dataset
from tape2048.session.session import sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Files of which each session has one.
_FILES = (STEPS_NPY, TAPE_NPY, METADATA_DB, MANIFEST)

_EXPECTED = "name a session, or a directory of sessions"


def default_root(config_path: Path | None = None) -> Path:
    """Return the directory into which ``tape2048 record`` would write."""
    from tape2048_recorder.config.loading import load_config

    return Path(load_config({}, os.environ, config_path).config.out_dir)


def refuse_session(root: Path, hint: str) -> None:
    """Raise StorageError if a path is a session instead of a directory of sessions."""
    with reading(root):
        is_session = any((root / name).is_file() for name in _FILES)
    if is_session:
        raise StorageError("found a session, expected a directory of sessions", path=root, hint=hint)


def expand_sources(path: Path, *, may_be_empty: bool = False) -> list[Path]:
    """Return the session, or the sessions of a directory."""
    with reading(path):
        is_directory = path.is_dir()
    if not is_directory:
        raise NotASessionError("found a file, expected a directory", path=path, hint=_EXPECTED)
    looks_like_session = (
        SESSION_NAME.fullmatch(path.resolve().name)
        or any((path / name).exists() for name in _FILES)
        or any(path.glob("steps-*.npy"))
    )
    if looks_like_session:
        refuse_dataset(path)
        return [path]
    if found := sessions(path):
        return found
    if may_be_empty and all(entry.name.startswith(".") for entry in path.iterdir()):
        return []  # a recorder's directory before its first session
    raise NotASessionError("neither a session nor a directory of sessions", path=path, hint=_EXPECTED)


def expand_all(paths: Sequence[Path]) -> list[Path]:
    """Return the sessions of several paths, as :func:`expand_sources` does."""
    return [session for path in paths for session in expand_sources(path)]


def described(path: Path | str, error: TapeError) -> dict[str, str | None]:
    """Return an unreadable session and its error, for JSON."""
    return {
        "name": str(path).rpartition("/")[2],
        "path": str(path),
        "error": type(error).__name__,
        "message": str(error),
        "hint": error.advice,
    }


def directory_bytes(path: Path) -> int:
    """Return the size of a directory's own files."""
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
