"""Directories of a few small files that are seen whole or not at all, and replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048._durable import fsync_dir, rename_exchange, rename_noreplace, storage_error, write_file
from tape2048._staging import Staging, sweep
from tape2048.errors import NameTakenError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["publish_directory"]


def publish_directory(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, replace: bool = False
) -> None:
    """Make a directory of these files.

    Args:
        path: its name.
        files: content by name.
        replace: whether a directory there gives way, where it holds files of these names and nothing else.

    Raises:
        NameTakenError: something else stands there; nothing was changed.
        StorageError: the operating system refused something; nothing was changed.
    """
    target = Path(os.path.abspath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        there = os.path.lexists(target)
        if there and not (
            replace and target.is_dir() and {entry.name for entry in target.iterdir()} <= set(files)
        ):
            raise NameTakenError("the name is taken; nothing was replaced", path=target)
        sweep(target)
        with Staging(target) as staging:
            for name, content in files.items():
                write_file(staging.path / name, content)
            fsync_dir(staging.path)
            if there:
                rename_exchange(staging.path, target)  # and what had the name goes with the staging
            else:
                rename_noreplace(staging.path, target)
                staging.keep()
            fsync_dir(target.parent)
    except OSError as error:
        raise storage_error(error, target, "writing it") from error
