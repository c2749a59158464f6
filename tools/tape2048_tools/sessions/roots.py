"""Directories of sessions, as commands are given them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.errors import OutDirError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["refuse_session"]


def refuse_session(root: Path, hint: str) -> None:
    """Raise OutDirError where a session stands in place of the directory that holds it.

    Args:
        root: the directory.
        hint: what to do instead.

    Raises:
        OutDirError: a session.
        StorageError: the operating system would not say.
    """
    from tape2048.formats.session import MANIFEST, METADATA_DB, STEPS_NPY
    from tape2048.io.reading import reading

    with reading(root):
        is_session = any((root / name).is_file() for name in (MANIFEST, METADATA_DB, STEPS_NPY))
    if is_session:
        raise OutDirError("found a session, expected a directory of sessions", path=root, hint=hint)
