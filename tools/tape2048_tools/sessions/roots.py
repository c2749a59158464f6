"""Directories of sessions: the default one, its checks, sizes."""

from __future__ import annotations

import os
from pathlib import Path

from tape2048.errors import OutDirError, TapeError


def default_root(config_path: Path | None = None) -> Path:
    """Return the directory into which ``tape2048 record`` would write.

    Args:
        config_path: the recorder's file, if named.

    Raises:
        ConfigError: an invalid configuration.
    """
    from tape2048_recorder.config.loading import load_config

    return Path(load_config({}, os.environ, config_path).config.out_dir)


def refuse_session(root: Path, hint: str) -> None:
    """Raise OutDirError if a path is a session instead of a directory of sessions.

    Args:
        root: the directory.
        hint: what to do instead.

    Raises:
        OutDirError: the path is a session.
        StorageError: the operating system could not read the directory.
    """
    from tape2048.formats.session import MANIFEST, METADATA_DB, STEPS_NPY
    from tape2048.io.reading import reading
    from tape2048.tape.layout import TAPE_NPY

    with reading(root):
        is_session = any((root / name).is_file() for name in (MANIFEST, METADATA_DB, STEPS_NPY, TAPE_NPY))
    if is_session:
        raise OutDirError("found a session, expected a directory of sessions", path=root, hint=hint)


def described(path: Path, error: TapeError) -> dict[str, str | None]:
    """Return an unreadable session and its error, for JSON."""
    return {
        "name": path.name,
        "path": str(path),
        "error": type(error).__name__,
        "message": str(error),
        "hint": error.advice,
    }


def directory_bytes(path: Path) -> int:
    """Return the size of a directory's own files."""
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
