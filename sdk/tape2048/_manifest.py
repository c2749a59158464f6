"""Reading the ``manifest.json`` of a session or a data set, which somebody else may have written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import numpy as np

from tape2048._reading import open_regular, read_exactly
from tape2048.errors import ManifestError, StorageError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tape2048.formats.session import FileEntry


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
    files: Mapping[str, FileEntry], directory: Path, path: Path, is_name: Callable[[str], object]
) -> Iterator[ManifestError | TruncatedError | StorageError]:
    """Compare a manifest's list of files with a directory: names and sizes, not checksums.

    Args:
        files: the list.
        directory: where they stand.
        path: of the manifest.
        is_name: whether a name can only mean a file of the directory.

    Yields:
        ManifestError where a listed file is missing or too long, or its name is none; TruncatedError where
        one is too short; StorageError where the operating system would not say.
    """
    hint = "restore the directory from a copy"
    for name, entry in files.items():
        if not is_name(name):
            yield ManifestError(f"{name!r} is listed, which is no file's name", path=path)
            continue
        file = directory / name
        try:
            found = file.stat().st_size
        except FileNotFoundError:
            yield ManifestError(f"{name} is listed, and missing from the directory", path=path)
        except OSError as error:
            yield StorageError(f"cannot be read: {error.strerror or error}", path=file)
        else:
            said = f"{found} bytes; the manifest says {entry.bytes}"
            if found < entry.bytes:
                yield TruncatedError(f"has {said}", path=file, offset=found, hint=hint)
            elif found > entry.bytes:
                yield ManifestError(f"{name} has {said}", path=path, hint=hint)
