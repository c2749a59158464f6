"""Functions that find and read the run files of a directory. A damaged file does not affect the others.

Extensions: ``.a2run`` (A2T1), ``.a2run2`` (a2run2, in older collections also A2T1), ``.run`` and ``.bin``
(A2T1), and ``.jsonl.gz`` (see :func:`tape2048.runs.jsonl.read_game`). The content of other files decides
their format.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tape2048.base.threads import map_ordered
from tape2048.errors import FormatError, MissingPathError, NotASessionError, StorageError
from tape2048.files.durable import Draft, new_file, write_all, write_file
from tape2048.files.opening import storage_errors
from tape2048.files.reading import load_path
from tape2048.runs import a2run, jsonl
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.registry import FORMATS, JSONL_GZ
from tape2048.runs.run import Run, check_rules, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import RunFacts, RunSource, SourceRun

RUN_SUFFIXES = (".a2run", ".a2run2", ".run", ".bin", JSONL_GZ)


class Found(NamedTuple):
    """A run file, with its run or its error."""

    path: Path
    run: Run | None
    error: FormatError | StorageError | None


def find_run_files(root: str | os.PathLike[str], suffixes: Sequence[str] = RUN_SUFFIXES) -> list[Path]:
    """List every file with one of these extensions below a directory, sorted by path.

    Names that start with a dot (unfinished files) are skipped, and links to directories are not followed. The
    paths start with ``root``, and are compared part by part as bytes: the order is the same on every machine.
    """

    def refuse(error: OSError) -> None:
        kind = MissingPathError if isinstance(error, FileNotFoundError) else StorageError
        raise kind(f"cannot be listed: {error.strerror or error}", path=error.filename) from error

    found, ends = [], tuple(suffixes)
    for directory, inner, names in os.walk(root, onerror=refuse):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(directory, name) for name in names if not name.startswith(".") and name.endswith(ends)]
    if not found:
        expected = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise NotASessionError(f"found no run files, expected {expected}", path=root)
    return sorted(found, key=lambda path: [os.fsencode(part) for part in path.parts])


def read_run_file(path: str | os.PathLike[str]) -> Run:
    """Read a file of one run. Its name tells ``.jsonl.gz``, and its first bytes tell A2T1 and a2run2.

    Errors are as for :func:`tape2048.runs.parse_run` and :meth:`tape2048.runs.RunV2.from_bytes`.

    Example:
        >>> from tape2048.runs import read_run_file
        >>> len(read_run_file("runs/golden.a2run2")) > 0
        True
    """
    if os.fspath(path).endswith(JSONL_GZ):
        return jsonl.read_game(Path(path))
    data = load_path(path)
    if data[: len(a2run.MAGIC)].tobytes() == a2run.MAGIC:
        return a2run.parse_run(data, path)
    return RunV2.from_bytes(data, path)


def scan(
    root: str | os.PathLike[str], workers: int | None = 1, suffixes: Sequence[str] = RUN_SUFFIXES
) -> Iterator[Found]:
    """Read every run file below a directory in path order. A damaged file comes with its error.

    Args:
        root: the directory.
        workers: number of reading threads. None: the number of cores.
        suffixes: extensions of the files to read.

    Raises:
        NotASessionError: there are no run files.
        MissingPathError: ``root`` does not exist.
        StorageError: ``root`` cannot be listed.

    Example:
        >>> from tape2048.runs import scan
        >>> [(found.path.name, found.error) for found in scan("runs")]
        [('golden.a2run', None), ('golden.a2run2', None)]
    """

    def attempt(path: Path) -> Found:
        try:
            return Found(path, check_rules(read_run_file(path)), None)
        except (FormatError, StorageError) as error:
            return Found(path, None, error.detach())

    return map_ordered(attempt, find_run_files(root, suffixes), workers)


def read(path: Path, kind: str, **_: object) -> RunSource:
    """Open a run's file, or a directory of them, for a conversion."""
    files = [path] if kind == "run" else find_run_files(path)
    here = Path.cwd()

    def read_one(i: int) -> RunFacts:
        return read_run_file(here / files[i]), not files[i].name.endswith(JSONL_GZ)

    return numbered(path, kind, len(files), lambda i: str(files[i]), read_one)


def write(flow: Conversion) -> None:
    """Write a file for each run of a conversion, or the file of a single run."""

    def encode(found: SourceRun) -> bytes:
        run = found.checked()
        return b"".join(a2run.run_bytes(run)) if flow.kind == "a2run" else RunV2.from_run(run).to_bytes()

    if flow.is_one_file:
        for _, _, data in flow.each(encode):
            with new_file(flow.target) as fd:
                write_all(fd, data)
        return
    taken: set[str] = set()
    with storage_errors(flow.target, "writing it"), Draft(flow.target) as draft:
        for place, (name, number, data) in enumerate(flow.each(encode)):
            stem = Path(name).stem if flow.source.kind == "runs" else f"{number:06d}"
            while stem in taken:
                stem = f"{stem}-{place:06d}"
            taken.add(stem)
            write_file(draft.path / f"{stem}{FORMATS[flow.kind].suffix}", data)
        draft.publish()
