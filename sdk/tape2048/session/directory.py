"""The files of a session directory: steps or tape, metadata and manifest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.base.text import counted
from tape2048.errors import (
    ManifestError,
    MissingPathError,
    NotASessionError,
    StorageError,
    TapeError,
    TruncatedError,
)
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, SHARDS
from tape2048.formats.npy import Load, open_rows, peek_header
from tape2048.formats.session import (
    ACTION_STEP_DTYPE,
    ANCHORS_NPY,
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    SHARD_NAME,
    STEP_DTYPE,
    STEP_DTYPES,
    STEPS_NPY,
    TAPE_NPY,
    FileEntry,
    Manifest,
    file_defects,
    read_manifest_file,
)
from tape2048.io.reading import reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np
    from numpy.typing import NDArray


#: The largest manifest that is parsed. A manifest of two files has about 200 bytes.
MANIFEST_BYTES_MAX = 1024 * 1024

#: The usual name of a pack of 32-byte rows.
PACK_DAT = "pack.dat"

#: A name in a manifest, which can only mean a file directly in the directory: 63 characters take at most the
#: 255 bytes that Linux allows.
PLAIN_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\0]{1,63}")


def check_directory(path: str | os.PathLike[str]) -> Path:
    """Return the directory as an absolute path."""
    # Not Path.resolve: the given name counts, not the name of a link's target.
    absolute = Path(os.path.abspath(path))
    if absolute.name.startswith("."):
        raise NotASessionError(
            "a name that starts with '.' is not a session: it is still being written, or was abandoned",
            path=absolute,
            hint="the recorder's next start finishes it",
        )
    with reading(absolute):
        if not absolute.is_dir():
            if not absolute.exists():
                raise MissingPathError("no such file or directory", path=absolute)
            raise NotASessionError("not a directory", path=absolute)
    return absolute


def check_files(directory: Path) -> tuple[list[Path], Manifest | None]:
    """Return the files of the rows, and the manifest; raise the first defect of names and sizes."""
    parts = find_steps(directory)
    try:
        manifest = read_manifest(directory)
    except ManifestError:
        refuse_dataset(directory)
        raise
    for defect in manifest_defects(manifest, parts, directory) if manifest else ():
        raise defect
    return parts, manifest


def find_steps(directory: Path) -> list[Path]:
    """Return the files of the rows, after checking that ``metadata.db`` exists."""
    names = list_names(directory)
    if METADATA_DB not in names:
        within = [name for name in names if SESSION_NAME.fullmatch(name)]
        sessions = counted(len(within), "session")
        hint = f"a directory of {sessions}? name a session: {within[-1]}" if within else None
        raise NotASessionError(f"no {METADATA_DB} in this directory", path=directory, hint=hint)
    shards = sorted((int(match[1]), match[0]) for match in map(SHARD_NAME.fullmatch, names) if match)
    forms = [name for name in (TAPE_NPY, STEPS_NPY, shards[0][1] if shards else "") if name in names]
    if len(forms) > 1:
        raise NotASessionError(
            f"found both {forms[0]} and {forms[1]}; expected one form of rows", path=directory
        )
    if TAPE_NPY in names:
        if ANCHORS_NPY not in names:
            raise NotASessionError(f"no {ANCHORS_NPY} beside {TAPE_NPY}", path=directory)
        return [directory / TAPE_NPY, directory / ANCHORS_NPY]
    if STEPS_NPY in names:
        return [directory / STEPS_NPY]
    if not shards:
        refuse_dataset(directory)
        raise NotASessionError(f"no {STEPS_NPY} or {TAPE_NPY} in this directory", path=directory)
    for expected, (number, name) in enumerate(shards, start=min(1, shards[0][0])):
        if number != expected:
            wanted = f"steps-{expected:0{len(name) - len('steps-.npy')}d}.npy"
            raise NotASessionError(f"shard {wanted} is missing; {name} is there", path=directory)
    return [directory / name for _, name in shards]


def is_dataset(directory: Path, names: Collection[str]) -> bool:
    """Tell a data set from a session, given the names of its entries: both have steps and metadata."""
    if METADATA_DB not in names:
        return False
    if STEPS_NPY not in names:
        return SHARDS in names
    path = directory / STEPS_NPY
    try:
        return peek_header(path).dtype == DATASET_ROW_DTYPE
    except TapeError:
        return False


def is_session(names: Collection[str]) -> bool:
    """Tell a session, or a part of one, by the names of its entries. A data set has such names, too."""
    return any(name in {METADATA_DB, STEPS_NPY, TAPE_NPY} or SHARD_NAME.fullmatch(name) for name in names)


def kind_of_directory(directory: Path) -> str | None:
    """Return the kind of a directory that is a session, a data set or a pack's directory.

    A pack's directory holds ``pack.dat`` and nothing else. A directory with other files beside a pack has no
    kind, and neither has a directory that cannot be listed.
    """
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


def refuse_dataset(directory: Path) -> None:
    """Raise NotASessionError if the directory is a data set."""
    if is_dataset(directory, list_names(directory)):
        raise NotASessionError(
            "a data set, not a session",
            path=directory,
            hint=f"for data sets: tape2048 dataset stats {directory}, or dataset verify",
        )


def read_steps(path: Path, load: Load) -> NDArray[np.void]:
    """Open the rows of a file; errors as for ``open_rows``."""
    return as_unsigned(open_rows(path, STEP_DTYPES, load))


def as_unsigned(rows: NDArray[np.void]) -> NDArray[np.void]:
    """View rows as ``STEP_DTYPE`` or ``ACTION_STEP_DTYPE``."""
    return rows.view(STEP_DTYPE if rows.dtype.itemsize == STEP_DTYPE.itemsize else ACTION_STEP_DTYPE)


def rows_entry(manifest: Manifest | None) -> FileEntry | None:
    """Return the manifest's entry of the one file of rows, or of the tape; None for shards or no manifest."""
    files = manifest.files if manifest else {}
    return files.get(TAPE_NPY) or files.get(STEPS_NPY)


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest. None for a session of another program."""
    path, bytes_max = directory / MANIFEST, MANIFEST_BYTES_MAX
    return read_manifest_file(
        path, Manifest, version=FORMAT_VERSION, what="session format", bytes_max=bytes_max
    )


def manifest_defects(
    manifest: Manifest, steps: list[Path], directory: Path
) -> Iterator[ManifestError | TruncatedError | StorageError]:
    """Compare the manifest's list of files with the directory: names and sizes, not checksums."""
    path = directory / MANIFEST
    for name in (METADATA_DB, *(part.name for part in steps)):
        if name not in manifest.files:
            yield ManifestError(f"{name} is not listed", path=path)
    yield from file_defects(manifest.files, directory, PLAIN_NAME.fullmatch)


def list_names(directory: Path) -> list[str]:
    """List the names in the directory, sorted; raise StorageError if it cannot be read."""
    with reading(directory):
        return sorted(os.listdir(directory))  # noqa: PTH208 - paths would cost more than the names
