"""Names in a directory, which tell sessions, data sets and packs apart."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.text import printable
from tape2048.errors import (
    NotASessionError,
    StorageError,
    TapeError,
)
from tape2048.files.npy import peek_header
from tape2048.files.reading import first_bytes, reading
from tape2048.session.layout import (
    ACTION_STEP_DTYPE,
    METADATA_DB,
    SHARD_NAME,
    STEP_DTYPE,
    STEPS_NPY,
    FileEntry,
)
from tape2048.session.tape_layout import TAPE_NPY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

#: The largest manifest that is parsed. A manifest of two files has about 200 bytes.
MANIFEST_BYTES_MAX = 1024 * 1024

#: The usual name of a pack of 32-byte rows.
PACK_DAT = "pack.dat"

#: The first bytes of a pack.dat.
PACKDAT_MAGIC = b"2048"

#: The directory of a data set's files of rows, if it has several.
SHARDS = "shards"

#: A row of a data set: see :mod:`tape2048.runs.dataset`.
DATASET_ROW_DTYPE = np.dtype(
    [("board", "<u8"), ("move", "u1"), ("ev_legal", "u1"), ("ev_values", "<f4", (4,)), ("run_id", "<u4"),
     ("step_index", "<u2")]
)  # fmt: skip

#: Valid names in a manifest: names of files directly in the directory. 63 characters take at most the 255
#: bytes that Linux allows.
PLAIN_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\0]{1,63}")


def is_dataset(directory: Path, names: Collection[str]) -> bool:
    """Check for a data set; ``steps.npy``'s header tells it from a session with the same names."""
    if METADATA_DB not in names:
        return False
    if STEPS_NPY not in names:
        return SHARDS in names
    path = directory / STEPS_NPY
    try:
        return peek_header(path).dtype == DATASET_ROW_DTYPE
    except TapeError:
        return False


def is_packdat(path: Path) -> bool:
    """Check whether a path is a file that starts like a pack.dat; False if it cannot be read."""
    try:
        with reading(path):
            return path.is_file() and first_bytes(path, len(PACKDAT_MAGIC)) == PACKDAT_MAGIC
    except StorageError:
        return False


def kind_of_table(path: Path) -> str:
    """Return "dataset" or "packdat", or "" for a path of another kind."""
    with reading(path):
        is_directory = path.is_dir()
    if is_directory:
        return "dataset" if is_dataset(path, list_names(path)) else ""
    return "packdat" if is_packdat(path) else ""


def is_session(names: Collection[str]) -> bool:
    """Check whether names are of a session, or of a part of it. A data set has such names, too."""
    return any(name in {METADATA_DB, STEPS_NPY, TAPE_NPY} or SHARD_NAME.fullmatch(name) for name in names)


def kind_of_directory(directory: Path) -> str | None:
    """Return a directory's kind: session, data set, or only ``pack.dat``; None for any other."""
    try:
        names = list_names(directory)
    except StorageError:
        return None
    if is_dataset(directory, names):
        return "a data set"
    if is_session(names):
        return "a session"
    visible = [name for name in names if not name.startswith(".")]
    return "the directory of a pack" if visible == [PACK_DAT] else None


#: Hint that lists the kinds of paths with rows.
ROW_SOURCES = (
    "Name a session, a directory of sessions, a data set, a pack.dat, or a directory of steps-*.npy and "
    "metadata.db."
)
_NAMED_MAX = 5  # entries of a directory that a message names


def describe_path(path: Path) -> str:
    """Describe the content of a path without rows, for a message."""
    with reading(path):
        is_directory = path.is_dir()
    if not is_directory:
        return "a file that is not a pack.dat"
    names = [name for name in list_names(path) if not name.startswith(".")]
    kinds = [(name, kind_of_directory(path / name)) for name in names if (path / name).is_dir()]
    kinds += [(name, "a pack.dat") for name in names if name == PACK_DAT]
    if named := [f"{kind} ({printable(name)})" for name, kind in kinds if kind]:
        more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
        return ", ".join(named[:_NAMED_MAX]) + more
    if not names:
        return "an empty directory"
    more = ", ..." if len(names) > _NAMED_MAX else ""
    return f"{len(names)} entries: {', '.join(map(printable, names[:_NAMED_MAX]))}{more}"


def refuse_dataset(directory: Path) -> None:
    if is_dataset(directory, list_names(directory)):
        raise NotASessionError(
            "found a data set, expected a session",
            path=directory,
            hint=f"use the commands for data sets: tape2048 dataset stats {directory}, or dataset verify",
        )


def whole_shards(
    names: Iterable[str], pattern: re.Pattern[str], first_max: int, directory: Path
) -> list[str]:
    """Return the names of shards, sorted; raise NotASessionError for a gap, or a first number too high."""
    matches = sorted(filter(None, map(pattern.fullmatch, names)), key=lambda match: int(match[1]))
    start = min(first_max, int(matches[0][1])) if matches else 0
    for expected, match in enumerate(matches, start):
        if int(match[1]) != expected:
            wanted = f"{match.string[: match.start(1)]}{expected:0{len(match[1])}d}.npy"
            raise NotASessionError(f"shard {wanted} is missing; found {match[0]}", path=directory)
    return [match[0] for match in matches]


def as_unsigned(rows: NDArray[np.void]) -> NDArray[np.void]:
    return rows.view(STEP_DTYPE if rows.dtype.itemsize == STEP_DTYPE.itemsize else ACTION_STEP_DTYPE)


def rows_entry(manifest: Any) -> FileEntry | None:
    """Return the manifest's entry of ``steps.npy`` or the tape; None for shards, or without a manifest."""
    files = manifest.files if manifest else {}
    return files.get(TAPE_NPY) or files.get(STEPS_NPY)


def list_names(directory: Path) -> list[str]:
    with reading(directory):
        return sorted(os.listdir(directory))  # noqa: PTH208 - making paths takes longer than listing names
