"""Reader, writer and checks of ``manifest.json``, the last file of a session or data set to be written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import ManifestError, StorageError, TruncatedError
from tape2048.formats.metadata import write_metadata
from tape2048.formats.session import FORMAT_VERSION, MANIFEST, METADATA_DB, FileEntry, Manifest
from tape2048.io.durable import fsync_dir, open_fd, write_file
from tape2048.io.reading import crc32c_file, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


M = TypeVar("M", bound=_Versioned)


def read_manifest_file(path: Path, kind: type[M], *, version: int, what: str, bytes_max: int) -> M | None:
    """Read a manifest; None if there is none."""
    if not os.path.lexists(path):
        return None
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if size > bytes_max:
            raise ManifestError(f"{size} bytes; expected at most {bytes_max}", path=path)
        content = os.pread(fd, bytes_max, 0)
    return parse_manifest(content, path, kind, version=version, what=what)


def parse_manifest(
    content: bytes, path: str | os.PathLike[str], kind: type[M], *, version: int, what: str
) -> M:
    """Parse a manifest; arguments and errors as for :func:`read_manifest_file`."""
    try:
        manifest = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"malformed: {error}", path=path) from error
    if manifest.version != version:
        raise ManifestError(
            f"{what} version {manifest.version}; expected {version}",
            path=path,
            hint="try a newer tape2048",
        )
    return manifest


def file_defects(
    files: Mapping[str, FileEntry], directory: Path, is_name: Callable[[str], object]
) -> Iterator[ManifestError | TruncatedError | StorageError]:
    """Compare a manifest's files with its directory by name (those that ``is_name`` allows) and size."""
    manifest = directory / MANIFEST
    for name, entry in files.items():
        if not is_name(name):
            yield ManifestError(f"{name!r} is listed, which is not a valid file name", path=manifest)
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
    directory: Path,
    rows_files: Mapping[str, FileEntry],
    runs: NDArray[np.void],
    blocks: NDArray[np.void],
    facts: dict[str, Any],
    *,
    start_boards: NDArray[np.uint64] | None = None,
    anchor_rows: int | None = None,
) -> int:
    """Write ``metadata.db`` and the manifest of an unpublished session, and flush them and the directory."""
    database = directory / METADATA_DB
    write_metadata(database, runs=runs, blocks=blocks, session=facts, start_boards=start_boards)
    files = {**rows_files, METADATA_DB: flush_entry(database)}
    text = pretty_json(Manifest(FORMAT_VERSION, facts["rows"], len(runs), files, anchor_rows))
    write_file(directory / MANIFEST, text)
    fsync_dir(directory)
    return sum(entry.bytes for entry in files.values()) + len(text)


def flush_entry(path: Path) -> FileEntry:
    """Flush a file, and return its size and checksum; OSError of the operating system."""
    with open_fd(path, os.O_RDONLY) as fd:
        os.fsync(fd)
        size = os.fstat(fd).st_size
        return FileEntry(size, crc32c_file(fd, size, path))
