"""The rows and runs of many sessions: where the rows are held, and one table of all runs.

A store is what all views of a corpus share. It holds segments (see ``row_map``), so it grows with the runs:
the rows stay in their files' mappings, or in one array that was read from the files. Rows in shards were
read by their session already, and stay there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.base.text import as_int
from tape2048.errors import CorpusError, MixedRowsError, RowsGoneError, StorageError
from tape2048.formats.npy import read_header
from tape2048.formats.session import RUN_DTYPE, STEP_DTYPES, STEPS_NPY
from tape2048.io.bulk_read import Stretch, read_rows
from tape2048.io.reading import open_regular
from tape2048.store.row_map import BOARD_BYTES, Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session

__all__ = [
    "CORPUS_RUN_DTYPE",
    "CorpusLoad",
    "HeldLoad",
    "PackedBoards",
    "Store",
    "check_corpus_load",
    "gather_runs",
    "open_store",
]

_U64 = np.uint64

#: How a corpus holds its rows: mapped, mapped with their boards packed in memory, read into memory, or
#: whichever fits.
CorpusLoad: TypeAlias = Literal["mmap", "packed", "ram", "auto"]

#: How it holds them once it is open.
HeldLoad: TypeAlias = Literal["mmap", "packed", "ram"]

#: One run of a corpus: the ordinal of its session, and the run as the session has it.
CORPUS_RUN_DTYPE = np.dtype([("session", "<u4"), *RUN_DTYPE.descr])
assert CORPUS_RUN_DTYPE.itemsize == 44


class _FileState(NamedTuple):
    """By what a file is known again."""

    path: Path
    device: int
    inode: int
    size: int


class PackedBoards(NamedTuple):
    """The boards of a store's rows, packed.

    Attributes:
        memory: arrays of boards, which the addresses lie in.
        addresses: of the board of the first row of each of the store's segments, ``u64[S]``.
    """

    memory: tuple[NDArray[np.uint64], ...]
    addresses: NDArray[np.uint64]


class Store:
    """Sessions, runs and rows that views share.

    Attributes:
        sessions: as they were opened.
        runs: ``CORPUS_RUN_DTYPE[R]``, by session and then as the session has them; read-only.
        segments: the stretches of rows of these runs, by run.
        row_dtype: the type of a row.
        load: ``"mmap"``, ``"packed"`` or ``"ram"``.
        memory: what keeps the rows alive; with ``"ram"``, first what was read from the files.
        boards: the packed boards, with ``"packed"``.
    """

    def __init__(
        self,
        sessions: tuple[Session, ...],
        runs: NDArray[np.void],
        segments: Segments,
        memory: tuple[NDArray[Any], ...],
        load: HeldLoad,
        *,
        boards: PackedBoards | None = None,
    ) -> None:
        self.sessions = sessions
        self.runs = runs
        self.runs.flags.writeable = False
        self.segments = segments
        self.row_dtype = sessions[0].steps.dtype
        self.memory = tuple(array for array in memory if array.size)
        self.load = load
        self.boards = boards
        begins = np.array([_address(array) for array in self.memory], _U64)
        self._memory_order = np.argsort(begins)
        self._begins = begins[self._memory_order]
        self._files = [_file_state(session) for session in sessions] if load != "ram" else []

    def bytes_at(self, address: int, count: int) -> NDArray[np.uint8]:
        """A read-only view of ``count`` bytes that begin at the address of a row."""
        at = int(np.searchsorted(self._begins, _U64(address), "right")) - 1
        memory = self.memory[self._memory_order[at]]
        first = address - int(self._begins[at])
        found: NDArray[np.uint8] = memory.view(np.uint8).reshape(-1)[first : first + count]
        assert len(found) == count, "rows beyond the memory that they lie in"
        return found

    def rows_of(self, owner: int) -> NDArray[np.void]:
        """The rows among which those of a session stand: what was read into memory, or else the session's."""
        session = self.sessions[owner]
        if self.load == "ram" and session.load == "mmap":
            return self.memory[0].view(self.row_dtype)
        return session.steps

    def board_addresses(self, segments: Segments) -> NDArray[np.uint64] | None:
        """Where the packed boards of some segments begin, ``u64[n]``; None where none are packed.

        Args:
            segments: of these rows, whole ones or parts.
        """
        if self.boards is None:
            return None
        mine = _places(self.segments)
        order = np.argsort(mine)
        whole = order[np.searchsorted(mine[order], _places(segments), "right") - 1]
        within = (segments.place - self.segments.place[whole]).astype(_U64)
        return self.boards.addresses[whole] + within * _U64(BOARD_BYTES)

    def check_files(self) -> None:
        """Make sure that mapped files are as long as they were: a lost page ends the process when touched.

        A file whose name is gone, or names another file now, is still mapped and still whole.

        Raises:
            RowsGoneError: a mapped file was truncated.
        """
        for before in filter(None, self._files):
            try:
                found = before.path.stat()
            except OSError:
                continue
            same = (found.st_dev, found.st_ino) == (before.device, before.inode)
            if same and found.st_size < before.size:
                raise RowsGoneError(
                    f"has {found.st_size} bytes; {before.size} when the corpus was opened",
                    path=before.path,
                    offset=found.st_size,
                    hint='restore it from a copy; load="ram" would not have noticed',
                )


def check_corpus_load(load: str) -> None:
    """Raise ValueError unless ``load`` is one of :data:`CorpusLoad`."""
    if load not in get_args(CorpusLoad):
        raise ValueError(f"load={load!r}; expected one of {get_args(CorpusLoad)}")


def gather_runs(sessions: Sequence[Session]) -> NDArray[np.void]:
    """The run tables of all sessions as one, ``CORPUS_RUN_DTYPE[R]``."""
    counts = [len(session.runs) for session in sessions]
    runs = np.empty(sum(counts), CORPUS_RUN_DTYPE)
    runs["session"] = np.repeat(np.arange(len(sessions), dtype=np.uint32), counts)
    # As bytes: joining structured arrays goes field by field, 0.3 s for 800,000 runs.
    own = [session.runs.view(np.uint8).reshape(-1, RUN_DTYPE.itemsize) for session in sessions]
    runs.view(np.uint8).reshape(-1, runs.dtype.itemsize)[:, 4:] = np.concatenate(own)
    return runs


def open_store(
    sessions: tuple[Session, ...],
    runs: NDArray[np.void],
    chosen: NDArray[np.bool_] | None,
    load: CorpusLoad,
    *,
    ram_budget: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Store:
    """Put the rows of some sessions where they are to be read from.

    Args:
        sessions: opened with ``load="mmap"``, at least one.
        runs: of all of them, from :func:`gather_runs`.
        chosen: the runs that count, ``bool[R]``; None for all. Rows of other runs are not read.
        load: where to.
        ram_budget: bytes that ``"auto"`` may take; None for half of what is free, or this process's share of
            it. Rows that do not fit may as packed boards.
        progress: called with bytes read and bytes in all.

    Raises:
        MixedRowsError: rows of different types.
        TruncatedError: a file became shorter since it was opened.
        StorageError: a file cannot be read, or memory does not suffice.
        CorpusError: with ``"packed"``, a board that 4 bits a cell do not hold.
        ValueError: a budget below 0, or that is no whole number.
    """
    if ram_budget is not None and as_int("ram_budget", ram_budget) < 0:
        raise ValueError(f"ram_budget={ram_budget}; expected at least 0")
    _check_types(sessions)
    segments = _segments(sessions, runs)
    if chosen is not None:
        kept = chosen[segments.run]
        renumbered = np.cumsum(chosen) - 1
        segments = segments.take(kept)._replace(run=renumbered[segments.run[kept]])
        runs = runs[chosen]
    memory = tuple(session.steps for session in sessions)
    item = sessions[0].steps.dtype.itemsize
    asked = load
    if load == "auto":
        budget = ram_available() // 2 // _local_ranks() if ram_budget is None else ram_budget
        rows_count = int(segments.rows.sum())
        fits = [rows_count * item <= budget, rows_count * BOARD_BYTES <= budget]
        load = "ram" if fits[0] else "packed" if fits[1] else "mmap"
    if load == "packed":
        try:
            boards = _pack(sessions, segments, progress)
            return Store(sessions, runs, segments, memory, "packed", boards=boards)
        except CorpusError:
            if asked == "packed":
                raise
            load = "mmap"
    if load == "mmap":
        return Store(sessions, runs, segments, memory, "mmap")
    in_files = _in_files(sessions, segments)
    array, addresses = _read(sessions, segments.take(in_files), progress)
    segments.address[in_files] = addresses
    segments.end[in_files] = array.__array_interface__["data"][0] + array.size
    held = tuple(session.steps for session in sessions if session.load == "ram")
    return Store(sessions, runs, segments, (array, *held), "ram")


def _local_ranks() -> int:
    """The processes of this machine that ``torchrun`` started: all see the same memory free, at once."""
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "")))
    except ValueError:
        return 1


def _check_types(sessions: Sequence[Session]) -> None:
    first = sessions[0]
    for session in sessions:
        if session.steps.dtype != first.steps.dtype:
            raise MixedRowsError(
                f"rows of {session.steps.dtype.itemsize} bytes; {first.path} has rows of "
                f"{first.steps.dtype.itemsize} (29 with the action, 28 without)",
                path=session.path,
                hint="open those recorded with record_action and those without as two corpora",
            )


def _segments(sessions: Sequence[Session], runs: NDArray[np.void]) -> Segments:
    """The segments of all sessions, by run; addresses in the sessions' own arrays."""
    parts = [session.segments() for session in sessions]
    counts = [len(part[0]) for part in parts]
    owner = np.repeat(np.arange(len(sessions)), counts)
    place, rows, run = (np.concatenate([part[i] for part in parts]) for i in range(3))
    run = run + np.searchsorted(runs["session"], np.arange(len(sessions)))[owner]
    item = sessions[0].steps.dtype.itemsize
    begin = np.array([_address(session.steps) for session in sessions], _U64)
    end = begin + np.array([len(session) * item for session in sessions], _U64)
    segments = Segments(
        address=begin[owner] + place.astype(_U64) * _U64(item),
        rows=rows, run=run, end=end[owner], place=place, session=owner,
    )  # fmt: skip
    if not all(session.contiguous for session in sessions):
        segments = segments.take(np.argsort(run, kind="stable"))
    return segments


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _places(segments: Segments) -> NDArray[np.int64]:
    """A number for each segment, in the order of the sessions and of their rows."""
    places: NDArray[np.int64] = (segments.session << 40) + segments.place
    return places


def _in_files(sessions: Sequence[Session], segments: Segments) -> NDArray[np.bool_]:
    """Which segments are still to be read: rows in shards were, by their session."""
    found: NDArray[np.bool_] = np.array([session.load == "mmap" for session in sessions])[segments.session]
    return found


class _Stretches(NamedTuple):
    """Segments as stretches of files, in the order of the files.

    Attributes:
        parts: what to read.
        firsts: where each segment's first row comes among all that are read, ``i64[S]``.
        bytes: of all.
    """

    parts: list[Stretch]
    firsts: NDArray[np.int64]
    bytes: int


def _stretches(sessions: Sequence[Session], segments: Segments) -> _Stretches:
    item = sessions[0].steps.dtype.itemsize
    order = np.argsort(_places(segments), kind="stable")
    sorted_ = segments.take(order)
    rows = np.zeros(len(order) + 1, np.int64)
    np.cumsum(sorted_.rows, out=rows[1:])
    # Segments that follow one another in a file are one stretch of it.
    new = np.ones(len(order), np.bool_)
    new[1:] = (sorted_.session[1:] != sorted_.session[:-1]) | (
        sorted_.place[1:] != sorted_.place[:-1] + sorted_.rows[:-1]
    )
    begins = np.flatnonzero(new)
    lengths = np.diff(rows[:-1][begins], append=rows[-1]) * item
    data_offsets: dict[int, int] = {}
    parts = []
    for at, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        owner = int(sorted_.session[at])
        path = sessions[owner].path / STEPS_NPY
        if owner not in data_offsets:
            with open_regular(path) as fd:
                data_offsets[owner] = read_header(fd, path, STEP_DTYPES).data_offset
        parts.append(Stretch(path, data_offsets[owner] + int(sorted_.place[at]) * item, length))
    firsts = np.empty(len(order), np.int64)
    firsts[order] = rows[:-1]
    return _Stretches(parts, firsts, int(rows[-1]) * item)


def _counter(progress: Callable[[int, int], object] | None, total: int) -> Callable[[int], None]:
    """A function of the bytes done since its last call, for ``progress`` of bytes done and in all."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return advance


def _read(
    sessions: Sequence[Session], segments: Segments, progress: Callable[[int, int], object] | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Read segments into one array: the array, and each one's address."""
    wanted = _stretches(sessions, segments)
    array = read_rows(wanted.parts, progress=_counter(progress, wanted.bytes))
    item = sessions[0].steps.dtype.itemsize
    return array, _U64(_address(array)) + wanted.firsts.astype(_U64) * _U64(item)


def _pack(
    sessions: Sequence[Session], segments: Segments, progress: Callable[[int, int], object] | None
) -> PackedBoards:
    """Read the boards of segments, or pack them where the rows are in memory already."""
    from tape2048.store.packed_boards import pack_rows, read_boards  # loads the compiler

    item = sessions[0].steps.dtype.itemsize
    addresses = np.empty(len(segments.rows), _U64)
    in_files = _in_files(sessions, segments)
    wanted = _stretches(sessions, segments.take(in_files))
    boards = read_boards(wanted.parts, item, progress=_counter(progress, wanted.bytes))
    addresses[in_files] = _U64(_address(boards)) + wanted.firsts.astype(_U64) * _U64(BOARD_BYTES)
    memory = [boards]
    for owner in np.unique(segments.session[~in_files]).tolist():
        session = sessions[owner]
        boards = np.empty(len(session), _U64)
        pack_rows(session.steps.view(np.uint8).reshape(-1, item), boards, session.path)
        mine = segments.session == owner
        addresses[mine] = _U64(_address(boards)) + segments.place[mine].astype(_U64) * _U64(BOARD_BYTES)
        memory.append(boards)
    return PackedBoards(tuple(memory), addresses)


def _file_state(session: Session) -> _FileState | None:
    if session.load == "ram":
        return None
    path = session.path / STEPS_NPY
    try:
        found = path.stat()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror or error}", path=path) from error
    return _FileState(path, found.st_dev, found.st_ino, found.st_size)
