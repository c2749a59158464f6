"""``manifest.json`` of sessions and data sets: read without trusting it, and written as the last file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import numpy as np

from tape2048.errors import ManifestError, StorageError, TruncatedError
from tape2048.formats.metadata import write_metadata
from tape2048.formats.session import FORMAT_VERSION, MANIFEST, METADATA_DB, STEPS_NPY, FileEntry, Manifest
from tape2048.io.crc import crc32c_file
from tape2048.io.durable import fsync_dir, write_file
from tape2048.io.reading import open_regular, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


M = TypeVar("M", bound=_Versioned)


def read_manifest_file(path: Path, kind: type[M], *, version: int, what: str, bytes_max: int) -> M | None:
    """The manifest at ``path``, or None where nothing stands there.

    Args:
        path: of the file.
        kind: the Struct that it holds.
        version: the one that this package knows.
        what: whose version that is, for the error.
        bytes_max: no manifest is longer.

    Raises:
        ManifestError: it is malformed, or of another version.
        StorageError: the operating system could not read it.
    """
    if not os.path.lexists(path):
        return None
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if size > bytes_max:
            raise ManifestError(f"{size} bytes; expected at most {bytes_max}", path=path)
        content = np.empty(size, np.uint8)
        read_exactly(fd, content, 0, path)
    return parse_manifest(content.tobytes(), path, kind, version=version, what=what)


def parse_manifest(
    content: bytes, path: str | os.PathLike[str], kind: type[M], *, version: int, what: str
) -> M:
    """The manifest in a file's bytes; as :func:`read_manifest_file`.

    Raises:
        ManifestError: it is malformed, or of another version.
    """
    try:
        manifest = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"malformed: {error}", path=path) from error
    if manifest.version != version:
        raise ManifestError(
            f"{what} version {manifest.version}; expected {version}",
            path=path,
            hint="a newer tape2048 may read it",
        )
    return manifest


def file_defects(
    files: Mapping[str, FileEntry], directory: Path, is_name: Callable[[str], object]
) -> Iterator[ManifestError | TruncatedError | StorageError]:
    """Compare the names and sizes of a manifest's list with its directory.

    Args:
        files: the list.
        directory: where the manifest stands.
        is_name: whether a name can only mean a file of that directory.

    Yields:
        ManifestError where a file is missing or too long, or has a name that it cannot have; TruncatedError
        where one is too short; StorageError where the operating system would not say.
    """
    manifest = directory / MANIFEST
    for name, entry in files.items():
        if not is_name(name):
            yield ManifestError(f"{name!r} is listed, which is no file's name", path=manifest)
            continue
        path = directory / name
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            yield ManifestError(f"{name} is listed, and missing from the directory", path=manifest)
            continue
        except OSError as error:
            yield StorageError(f"cannot be read: {error.strerror or error}", path=path)
            continue
        message = f"has {found} bytes; the manifest says {entry.bytes}"
        hint = "restore the directory from a copy"
        if found < entry.bytes:
            yield TruncatedError(message, path=path, offset=found, hint=hint)
        if found > entry.bytes:
            yield ManifestError(f"{name} {message}", path=manifest, hint=hint)


def finish_session(
    directory: Path, steps: FileEntry, runs: NDArray[np.void], blocks: NDArray[np.void], facts: dict[str, Any]
) -> int:
    """Write what stands beside a session's rows, which are written and flushed; flush it, and the directory.

    Args:
        directory: the session's, which nobody reads yet.
        steps: of ``steps.npy``.
        runs: ``RUN_DTYPE[R]``.
        blocks: ``BLOCK_DTYPE[B]``.
        facts: of the table ``session``; ``rows`` is among them.

    Returns:
        The bytes of all three files.

    Raises:
        OSError: as the operating system gave it.
        StorageError: SQLite could not write ``metadata.db``.
    """
    database = directory / METADATA_DB
    write_metadata(database, runs=runs, blocks=blocks, session=facts)
    files = {STEPS_NPY: steps, METADATA_DB: flush_entry(database)}
    manifest = msgspec.json.encode(Manifest(FORMAT_VERSION, facts["rows"], len(runs), files))
    text = msgspec.json.format(manifest) + b"\n"
    write_file(directory / MANIFEST, text)
    fsync_dir(directory)
    return sum(entry.bytes for entry in files.values()) + len(text)


def flush_entry(path: Path) -> FileEntry:
    """Flush a file, and read its size and checksum.

    Raises:
        OSError: as the operating system gave it.
    """
    with open_regular(path) as fd:
        os.fsync(fd)
        size = os.fstat(fd).st_size
        return FileEntry(size, crc32c_file(fd, size, path))
