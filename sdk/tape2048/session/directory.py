"""What stands in a session directory: its steps files, its metadata and its manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.base.text import counted
from tape2048.errors import ManifestError, NotASessionError, StorageError, TapeError, TruncatedError
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, SHARDS
from tape2048.formats.manifest import file_defects, read_manifest_file
from tape2048.formats.npy import HEADER_TEXT_BYTES_MAX, open_rows, open_shards, parse_header
from tape2048.formats.session import (
    ACTION_STEP_DTYPE,
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    SHARD_NAME,
    STEP_DTYPE,
    STEP_DTYPES,
    STEPS_NPY,
    Manifest,
)
from tape2048.io.reading import open_regular, reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from tape2048.formats.npy import Load

#: Largest manifest that is parsed; one with two files has about 200 bytes.
MANIFEST_BYTES_MAX = 1024 * 1024

#: Linux has no longer names.
_NAME_BYTES_MAX = 255


def check_directory(path: str | os.PathLike[str]) -> Path:
    """The directory as an absolute path.

    Raises:
        NotASessionError: no directory stands there, or its name says that it is not (yet) a session.
        StorageError: the operating system would not say.
    """
    # Not Path.resolve: the name asked for counts, not that of a link's target.
    absolute = Path(os.path.abspath(path))
    if absolute.name.startswith("."):
        raise NotASessionError(
            "a name that begins with '.' is not (yet) a session: it is still being written, or was given up",
            path=absolute,
            hint="the recorder's next start finishes what it left behind",
        )
    with reading(absolute):
        if not absolute.is_dir():
            found = "not a directory" if absolute.exists() else "nothing stands at this path"
            raise NotASessionError(found, path=absolute)
    return absolute


def find_steps(directory: Path) -> list[Path]:
    """The file or the shards that hold the rows, in order; and make sure that ``metadata.db`` is there.

    Raises:
        NotASessionError: no rows, no metadata, both forms of rows, or a gap in the shards' numbers.
    """
    names = list_names(directory)
    if METADATA_DB not in names:
        within = sorted(name for name in names if SESSION_NAME.fullmatch(name))
        sessions = counted(len(within), "session")
        hint = f"a directory of {sessions}? name one of them: {within[-1]}" if within else None
        raise NotASessionError(f"no {METADATA_DB} in this directory", path=directory, hint=hint)
    numbered = ((name, SHARD_NAME.fullmatch(name)) for name in names)
    shards = {int(match[1]): directory / name for name, match in numbered if match}
    if STEPS_NPY in names:
        if shards:
            raise NotASessionError(
                f"{STEPS_NPY} and {shards[min(shards)].name} both stand here; expected one form of rows",
                path=directory,
            )
        return [directory / STEPS_NPY]
    if not shards:
        refuse_dataset(directory)
        raise NotASessionError(f"no {STEPS_NPY} in this directory", path=directory)
    for expected, number in enumerate(sorted(shards), start=1):
        if number != expected:
            raise NotASessionError(
                f"shard steps-{expected:06d}.npy is missing; {shards[number].name} is there", path=directory
            )
    return [shards[number] for number in sorted(shards)]


def is_dataset(directory: Path, names: Collection[str]) -> bool:
    """Whether a directory is a data set: it has a ``steps.npy`` and a ``metadata.db`` as a session does.

    Args:
        directory: where it stands.
        names: of what stands in it.
    """
    if METADATA_DB not in names:
        return False
    if STEPS_NPY not in names:
        return SHARDS in names
    path = directory / STEPS_NPY
    try:
        with open_regular(path) as fd, reading(path):
            head = os.pread(fd, 12 + HEADER_TEXT_BYTES_MAX, 0)
        return parse_header(head, path).dtype == DATASET_ROW_DTYPE
    except TapeError:
        return False  # it cannot be told


def refuse_dataset(directory: Path) -> None:
    """Raise NotASessionError where a data set stands in a directory."""
    if is_dataset(directory, list_names(directory)):
        raise NotASessionError(
            "a data set, not a session",
            path=directory,
            hint=f"for data sets: tape2048 dataset stats {directory}, or dataset verify",
        )


def read_steps(paths: list[Path], load: Load) -> NDArray[np.void]:
    """The rows of a file, or of all shards as one array; errors as for ``open_rows``."""
    if len(paths) == 1 and paths[0].name == STEPS_NPY:
        return as_unsigned(open_rows(paths[0], STEP_DTYPES, load))
    return as_unsigned(open_shards(paths, STEP_DTYPES))


def as_unsigned(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The same rows as ``STEP_DTYPE`` or ``ACTION_STEP_DTYPE``."""
    return rows.view(STEP_DTYPE if rows.dtype.itemsize == STEP_DTYPE.itemsize else ACTION_STEP_DTYPE)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest, or None where there is none (a directory written by others).

    Raises:
        ManifestError: it is malformed, or of a version that this package does not know.
        StorageError: the operating system could not read it.
    """
    return read_manifest_file(
        directory / MANIFEST,
        Manifest,
        version=FORMAT_VERSION,
        what="session format",
        bytes_max=MANIFEST_BYTES_MAX,
    )


def manifest_defects(
    manifest: Manifest, steps: list[Path], directory: Path
) -> Iterator[ManifestError | TruncatedError | StorageError]:
    """Compare the manifest's list of files with the directory: names and sizes, not checksums.

    Yields:
        ManifestError where a file that holds the session's data is not listed, and where a listed one
        is missing or too long; TruncatedError where one is too short; StorageError where the operating
        system would not say.
    """
    path = directory / MANIFEST
    for name in (METADATA_DB, *(part.name for part in steps)):
        if name not in manifest.files:
            yield ManifestError(f"{name} is not listed", path=path)
    yield from file_defects(manifest.files, directory, is_plain_name)


def is_plain_name(name: str) -> bool:
    """Whether a name from a manifest can only mean a file of the directory itself."""
    has_length = 0 < len(name.encode()) <= _NAME_BYTES_MAX
    return has_length and name not in {".", ".."} and "/" not in name and "\0" not in name


def list_names(directory: Path) -> list[str]:
    """Names of all that stands in the directory, sorted; StorageError where it cannot be read."""
    with reading(directory):
        return sorted(os.listdir(directory))  # noqa: PTH208 - a path of each costs more than the names
