"""Whatever holds runs, opened alike: run files, directories of them, packs, pack.dat, data sets, sessions.

:func:`open_source` finds out what stands at a path, by its content; :meth:`Source.runs` gives its runs in
a stable order, decoded on several threads. A run that cannot be read comes with its error, and costs
nothing but itself.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.datasets import packdat
from tape2048.errors import MagicError, NoRunsError, TapeError
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, METADATA_DB, SHARDS, STEPS_NPY
from tape2048.formats.npy import HEADER_TEXT_BYTES_MAX, parse_header
from tape2048.io.reading import open_regular, reading
from tape2048.runs import jsonl, parquet
from tape2048.runs.files import find_run_files, read_run_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tape2048.runs.run import Run
    from tape2048.session.session import Session

__all__ = ["KINDS", "Endings", "Source", "SourceRun", "kind_of", "open_source"]

#: Runs that are decoded together on one thread.
JOB_RUNS = 16

#: What a path can be.
KINDS = ("run", "runs", "pack", "packdat", "dataset", "session", "sessions", "jsonl", "parquet")

_PACK_MAGIC = b"A2PACK\0\0"
_PARQUET_MAGIC = b"PAR1"


class SourceRun(NamedTuple):
    """One run of a source, or why it has none.

    Attributes:
        name: which one, for people: a file's path, an entry's number, a run's id.
        run: the run; None where it could not be read.
        error: what is wrong; None where nothing is.
        ending_known: whether the board after the last move is what the source says, and no candidate.
        values_lost: steps of which the source does not hold the chosen move's value.
    """

    name: str
    run: Run | None
    error: TapeError | None = None
    ending_known: bool = True
    values_lost: int = 0

    @property
    def failure(self) -> TapeError:
        """The error of a run that could not be read."""
        assert self.error is not None
        return self.error


class Source:
    """Something that holds runs.

    Attributes:
        path: where it stands.
        kind: one of :data:`KINDS`.
        count: number of runs, bad ones included; of a file of lines, the number of pieces that it is read in.
    """

    def __init__(
        self, path: Path, kind: str, count: int, jobs: Iterable[Any], decode: Callable[[Any], list[SourceRun]]
    ) -> None:
        self.path = path
        self.kind = kind
        self.count = count
        self._jobs = jobs
        self._decode = decode

    def __repr__(self) -> str:
        what = "pieces" if self.kind in {"jsonl", "parquet"} else "runs"
        return f"<Source {self.path}: {self.kind}, {self.count:,} {what}>"

    def runs(self, workers: int | None = None) -> Iterator[SourceRun]:
        """Every run, in order, decoded on several threads.

        Args:
            workers: threads; None: one for each core.
        """
        for found in self.map(lambda runs: runs, workers):
            yield from found

    def changed(self, change: Callable[[Run], Run]) -> Source:
        """The same source with every run changed, on the threads that decode."""

        def decode(job: Any) -> list[SourceRun]:
            return [_changed(found, change) for found in self._decode(job)]

        return Source(self.path, self.kind, self.count, self._jobs, decode)

    def map(self, work: Callable[[list[SourceRun]], Any], workers: int | None = None) -> Iterator[Any]:
        """What ``work`` makes of each few runs, in order; it is done on the threads that decode."""
        decode = self._decode
        yield from map_ordered(lambda job: work(decode(job)), self._jobs, workers)


class Endings(NamedTuple):
    """How to learn the final boards of a session's runs, of which it has no rows: by playing again.

    Attributes:
        of: from a session to ``u64[R]``, or None where that cannot be done.
    """

    of: Callable[[Session], Any]


def open_source(path: str | os.PathLike[str], endings: Endings | None = None) -> Source:
    """Find out what stands at a path, and open it.

    Args:
        path: a run file, a directory with run files below it, a pack, a pack.dat, a data set, a session,
            a directory of sessions, or JSONL or Parquet with one run a row.
        endings: for sessions; None: final boards are taken from the rules alone.

    Raises:
        MagicError: nothing that is known.
        NoRunsError: a directory without any run file.
        FormatError: what stands there is damaged as a whole.
        StorageError: it cannot be read.
    """
    where = Path(path)
    kind = kind_of(where)
    opener = {
        "run": _run_files,
        "runs": _run_files,
        "pack": _pack,
        "packdat": _packdat,
        "dataset": _dataset,
        "jsonl": _jsonl,
        "parquet": _parquet,
    }.get(kind)
    if opener is not None:
        return opener(where, kind)
    return _sessions(where, kind, endings)


def kind_of(path: Path) -> str:
    """Which of :data:`KINDS` stands at a path; errors as for :func:`open_source`."""
    with reading(path):
        is_directory = path.is_dir()
        if not is_directory and not path.exists():
            raise MagicError("nothing stands at this path", path=path)
    if is_directory:
        return _directory_kind(path)
    with open_regular(path) as fd, reading(path):
        head = os.pread(fd, 8, 0)
    for magic, kind in ((_PACK_MAGIC, "pack"), (packdat.MAGIC, "packdat"), (_PARQUET_MAGIC, "parquet")):
        if head.startswith(magic):
            return kind
    if head.startswith(b"A2T1") or path.suffix == ".a2run2":
        return "run"
    if path.suffix in {".jsonl", ".ndjson"}:
        return "jsonl"
    raise MagicError(
        f"begins with {head!r} and is named {path.suffix or 'without an extension'}; that is no kind of file "
        "with runs in it that is known here",
        path=path,
        hint="a2run2 files have no mark of their own: name them *.a2run2, and lines of JSON *.jsonl",
    )


def _directory_kind(path: Path) -> str:
    from tape2048.session.session import sessions

    with reading(path):
        names = {entry.name for entry in path.iterdir()}
    if SHARDS in names and METADATA_DB in names:
        return "dataset"
    if STEPS_NPY in names:
        with open_regular(path / STEPS_NPY) as fd, reading(path / STEPS_NPY):
            head = os.pread(fd, 12 + HEADER_TEXT_BYTES_MAX, 0)
        return "dataset" if parse_header(head, path / STEPS_NPY).dtype == DATASET_ROW_DTYPE else "session"
    if METADATA_DB in names or any(name.startswith("steps-") for name in names):
        return "session"
    return "sessions" if sessions(path) else "runs"


def _attempt(name: str, action: Callable[[], SourceRun]) -> SourceRun:
    try:
        return action()
    except TapeError as error:
        return SourceRun(name, None, error)


def _changed(found: SourceRun, change: Callable[[Run], Run]) -> SourceRun:
    if found.run is None:
        return found
    run = found.run
    return _attempt(found.name, lambda: found._replace(run=change(run)))


def _slices(count: int) -> list[range]:
    return [range(first, min(first + JOB_RUNS, count)) for first in range(0, count, JOB_RUNS)]


def _run_files(path: Path, kind: str) -> Source:
    files = [path] if kind == "run" else find_run_files(path)

    def decode(numbers: range) -> list[SourceRun]:
        return [
            _attempt(str(files[i]), lambda i=i: SourceRun(str(files[i]), read_run_file(files[i])))  # type: ignore[misc]
            for i in numbers
        ]

    return Source(path, kind, len(files), _slices(len(files)), decode)


def _pack(path: Path, kind: str) -> Source:
    from tape2048.packs.reader import PackReader

    reader = PackReader.open(path)

    def decode(numbers: range) -> list[SourceRun]:
        return [
            _attempt(f"{path}: entry {i}", lambda i=i: SourceRun(f"{path}: entry {i}", reader.decode(i)))  # type: ignore[misc]
            for i in numbers
        ]

    return Source(path, kind, len(reader), _slices(len(reader)), decode)


def _packdat(path: Path, kind: str) -> Source:
    from tape2048.game.moves import last_boards

    pack = packdat.DataPack.load(path)
    runs = pack.runs

    def one(i: int, name: str) -> SourceRun:
        final, certain = 0, not runs["steps"][i]
        if runs["steps"][i]:
            last = pack.records(np.array([pack.rows_of(i).stop - 1]))
            finals, sure = last_boards(last["board"], last["move_dir"])
            final, certain = int(finals[0]), bool(sure[0])
        return SourceRun(name, pack.run(i, final), ending_known=certain)

    def decode(numbers: range) -> list[SourceRun]:
        names = {i: f"{path}: run {runs['id'][i]}" for i in numbers}
        return [_attempt(name, lambda i=i, name=name: one(i, name)) for i, name in names.items()]  # type: ignore[misc]

    return Source(path, kind, len(runs), _slices(len(runs)), decode)


def _dataset(path: Path, kind: str) -> Source:
    from tape2048.datasets.dataset import Dataset

    dataset = Dataset.open(path, load="mmap")
    runs = dataset.runs

    def one(i: int, name: str) -> SourceRun:
        run, (certain, lost) = dataset.run_and_losses(i)
        return SourceRun(name, run, ending_known=certain, values_lost=lost)

    def decode(numbers: range) -> list[SourceRun]:
        names = {i: f"{path}: run {runs['id'][i]}" for i in numbers}
        return [_attempt(name, lambda i=i, name=name: one(i, name)) for i, name in names.items()]  # type: ignore[misc]

    return Source(path, kind, len(runs), _slices(len(runs)), decode)


def _sessions(path: Path, kind: str, endings: Endings | None) -> Source:
    from tape2048.conversion.session_runs import session_run
    from tape2048.session.session import Session, sessions

    opened = [Session.open(one) for one in ([path] if kind == "session" else sessions(path))]
    if not opened:
        raise NoRunsError("no sessions", path=path)
    jobs = [(number, part) for number, one in enumerate(opened) for part in _slices(len(one.runs))]
    finals: dict[int, Any] = {}
    lock = threading.Lock()

    def decode(job: tuple[int, range]) -> list[SourceRun]:
        number, numbers = job
        session = opened[number]
        with lock:
            if endings is not None and number not in finals:
                finals[number] = endings.of(session)
        known = finals.get(number)
        names = {i: f"{session.path}: run {session.runs['id'][i]}" for i in numbers}

        def one(i: int, name: str) -> SourceRun:
            run, certain = session_run(session, i, None if known is None else int(known[i]))
            return SourceRun(name, run, ending_known=certain)

        return [_attempt(name, lambda i=i, name=name: one(i, name)) for i, name in names.items()]  # type: ignore[misc]

    return Source(path, kind, sum(len(one.runs) for one in opened), jobs, decode)


def _jsonl(path: Path, kind: str) -> Source:
    def decode(piece: jsonl.Piece) -> list[SourceRun]:
        return [SourceRun(name, run, error) for name, run, error in jsonl.read_piece(path, piece)]

    pieces = jsonl.pieces_of(path)
    return Source(path, kind, len(pieces), pieces, decode)


def _parquet(path: Path, kind: str) -> Source:
    def decode(group: int) -> list[SourceRun]:
        return [SourceRun(name, run, error) for name, run, error in parquet.read_group(path, group)]

    groups = parquet.groups_of(path)
    return Source(path, kind, len(groups), groups, decode)
