"""Files of single runs in directories: finding them, and reading them past the bad ones.

The extensions are those that have been in use: ``.a2run`` (A2T1), ``.a2run2`` (a2run2, in older
collections also A2T1), ``.run`` and ``.bin`` (A2T1). What a file is, its content decides.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tape2048.errors import FormatError, NoRunsError, OutDirError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tape2048.formats.run import Run

__all__ = ["RUN_SUFFIXES", "Found", "find_run_files", "scan_files"]

RUN_SUFFIXES = (".a2run", ".a2run2", ".run", ".bin")


class Found(NamedTuple):
    """A file of a directory: either its run, or the error that says what is wrong with it."""

    path: Path
    run: Run | None
    error: FormatError | StorageError | None


def find_run_files(root: str | os.PathLike[str], suffixes: Sequence[str] = RUN_SUFFIXES) -> list[Path]:
    """Every file below a directory that has one of the extensions, in ascending path order.

    Names that begin with a dot (still being written) are passed over, links to directories are not
    followed.

    Args:
        root: the directory.
        suffixes: extensions, each with its dot.

    Returns:
        Paths that begin with ``root``, ordered by their parts as bytes: the same on every machine.

    Raises:
        NoRunsError: there is none.
        OutDirError: the directory, or one below it, is missing or cannot be listed.
    """
    found = []
    for directory, inner, names in os.walk(root, onerror=_refuse):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [
            Path(directory, name)
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1] in suffixes  # noqa: PTH122 - 5x faster
        ]
    if not found:
        raise NoRunsError(f"no file named {' or '.join(f'*{suffix}' for suffix in suffixes)}", path=root)
    return sorted(found, key=lambda path: [os.fsencode(part) for part in path.parts])


def scan_files(paths: Iterable[Path], read: Callable[[Path], Run]) -> Iterator[Found]:
    """Read files one after the other; a bad one is yielded with its error, and the rest go on.

    Args:
        paths: the files.
        read: reads one, or raises FormatError or StorageError.
    """
    for path in paths:
        try:
            run = read(path)
        except (FormatError, StorageError) as error:
            yield Found(path, None, error)
        else:
            yield Found(path, run, None)


def _refuse(error: OSError) -> None:
    raise OutDirError(f"cannot be listed: {error.strerror or error}", path=error.filename) from error
