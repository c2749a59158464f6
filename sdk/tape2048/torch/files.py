"""Atomic publication and replacement of directories of a few small files."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import NameTakenError
from tape2048.io.durable import fsync_path, storage_errors, write_file
from tape2048.io.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Mapping


def publish_directory(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, replace: bool = False
) -> None:
    """Write a directory of files in one step.

    Args:
        path: of the directory.
        files: content by name.
        replace: whether to replace a directory that has files of these names and no others, or all of these
            names; in the latter case its other files (a report, notes) are kept.

    Raises:
        NameTakenError: the path is something else, which the message names; nothing was changed.
        StorageError: the operating system refused something; nothing was changed.
    """
    target = Path(os.path.abspath(path))
    with storage_errors(target, "writing it"):
        target.parent.mkdir(parents=True, exist_ok=True)
        there = os.path.lexists(target)
        if there and not (replace and target.is_dir()):
            raise NameTakenError("the name is taken; nothing was replaced", path=target)
        others = _others(target, set(files)) if there else []
        with Staging(target) as staging:
            for name, content in files.items():
                write_file(staging.path / name, content)
            for other in others:
                _carry(other, staging.path / other.name)
            staging.publish(exchange=there)


def _others(directory: Path, names: set[str]) -> list[Path]:
    """Return the files of a former version that are not in ``names``.

    Raises:
        NameTakenError: it is no former version, or contains more than files.
        OSError: it cannot be read.
    """
    there = {entry.name: entry for entry in os.scandir(directory)}
    others = sorted(there.keys() - names)
    former = names <= there.keys()
    in_the_way = [name for name in others if not (former and there[name].is_file(follow_symlinks=False))]
    if in_the_way:
        raise NameTakenError(
            f"the directory has {in_the_way[0]} in it; nothing was replaced",
            path=directory,
            hint="move this file, or choose another name",
        )
    return [directory / name for name in others]


def _carry(file: Path, to: Path) -> None:
    """Link a file to another name, unless it is gone; copy it if its owner forbids links."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(file, to, follow_symlinks=False)
        except PermissionError:
            shutil.copy2(file, to, follow_symlinks=False)
            fsync_path(to)
