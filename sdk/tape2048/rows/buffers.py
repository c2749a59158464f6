"""Rows and runs of many sessions: one table of all runs, and the memory of the rows.

A store is the part that all views of a corpus share. It holds segments (see ``row_map``), so it grows with
the runs: the rows stay in the mappings of their files, or are read from the files into memory. Rows in
shards were read by their session already, and stay there. Rows with the action and rows without are read
into one array each, and so are tapes with their anchors (``tapes``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, get_args

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.base.text import as_int
from tape2048.errors import CorpusError, ReplayError, StorageError
from tape2048.formats.npy import read_header
from tape2048.formats.session import ANCHOR_ROWS, ANCHORS_NPY, RUN_DTYPE, STEP_DTYPES, STEPS_NPY, TAPE_NPY
from tape2048.io.bulk_read import Stretch, read_rows
from tape2048.io.reading import open_regular
from tape2048.rows.row_map import BOARD_BYTES, Segments
from tape2048.rows.tapes import Tapes, decode_tapes, map_tapes, read_tapes, stored_rows
from tape2048.session.remote_session import Hold, RemoteSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.rows.row_map import RowMap
    from tape2048.session.session import Session

_U64 = np.uint64

#: Requested storage of a corpus: mapped rows, mapped rows with packed boards in memory, rows in memory, or
#: the largest that fits.
CorpusLoad: TypeAlias = Literal["mmap", "packed", "ram", "auto"]

#: Actual storage of an open corpus.
HeldLoad: TypeAlias = Literal["mmap", "packed", "ram"]

#: One run of a corpus: the ordinal of its session, and the session's row for the run.
CORPUS_RUN_DTYPE = np.dtype([("session", "<u4"), *RUN_DTYPE.descr])
assert CORPUS_RUN_DTYPE.itemsize == 44


class PackedBoards(NamedTuple):
    """The packed boards of a store's rows.

    Attributes:
        memory: the arrays that hold the boards.
        addresses: address of the board of each segment's first row, ``u64[S]``.
    """

    memory: tuple[NDArray[np.uint64], ...]
    addresses: NDArray[np.uint64]


class RowBuffers:
    """Sessions, runs and rows that views share.

    Attributes:
        sessions: the open sessions.
        runs: ``CORPUS_RUN_DTYPE[R]``, by session and then in the session's order; read-only.
        segments: the segments of these runs, by run.
        load: ``"mmap"``, ``"packed"`` or ``"ram"``.
        remote: whether rows are in stores: only those of held sessions may be read, see :meth:`hold`.
        memory: the arrays that hold the rows, by address.
        boards: the packed boards, with ``"packed"``.
        tapes: what decodes rows on tape; None without.
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
        tapes: Tapes | None = None,
    ) -> None:
        self.sessions = sessions
        self.runs = runs
        self.runs.flags.writeable = False
        self.segments = segments
        self.load = load
        self.boards = boards
        self.tapes = tapes
        self.memory = tuple(sorted((array for array in memory if array.size), key=_address))
        self.remote = load != "ram" and any(isinstance(session, RemoteSession) for session in sessions)
        self._begins = np.array([_address(array) for array in self.memory], _U64)
        self._files = [state for session in sessions if load != "ram" for state in _file_states(session)]

    def hold(self, ordinals: Iterable[int]) -> Hold:
        """Fetch the rows of sessions that are in stores, and keep them as long as the result lives.

        Errors as for ``Hold.of``. With rows in memory, or without such sessions, there is nothing to do.
        """
        return Hold.of([self.sessions[each] for each in ordinals] if self.remote else [])

    def bytes_at(self, address: int, count: int) -> NDArray[np.uint8]:
        """Return a read-only view of ``count`` bytes from the address of a row on."""
        at = int(np.searchsorted(self._begins, _U64(address), "right")) - 1
        first = address - int(self._begins[at])
        found: NDArray[np.uint8] = self.memory[at].view(np.uint8).reshape(-1)[first : first + count]
        assert len(found) == count, "rows beyond the memory that they lie in"
        return found

    def rows_of(self, segments: Segments, dtype: np.dtype[Any]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return the array that holds a session's segments, and the place of each segment in it."""
        at = int(np.searchsorted(self._begins, segments.address[0], "right")) - 1
        places = (segments.address - self._begins[at]) // _U64(dtype.itemsize)
        return self.memory[at].view(np.uint8).reshape(-1).view(dtype), places.astype(np.int64)

    def board_addresses(self, segments: Segments, boards: PackedBoards) -> NDArray[np.uint64]:
        """Return the address of each segment's first packed board, ``u64[n]``."""
        mine = self.segments.places
        order = np.argsort(mine)
        whole = order[np.searchsorted(mine[order], segments.places, "right") - 1]
        within = (segments.place - self.segments.place[whole]).astype(_U64)
        return boards.addresses[whole] + within * _U64(BOARD_BYTES)

    def raise_defect(self, rows: RowMap, number: int) -> NoReturn:
        """Raise the FormatError of the game on tape that a row of a map is in."""
        segment = int(np.searchsorted(rows.guide.starts, _U64(number), "right")) - 1
        run = rows.tape.runs[rows.run[segment]]
        session = self.sessions[run["session"]]
        assert session.tape is not None
        first = int(run["first_row"])
        session.tape.boards(first, first + int(run["rows"]))
        raise ReplayError(f"run {run['id']} was not whole when it was read", path=session.path / TAPE_NPY)

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file was truncated: touching a lost page would kill the process.

        A file that was deleted or replaced remains mapped completely.
        """
        for path, before in self._files:
            try:
                found = path.stat()
            except OSError:
                continue
            if os.path.samestat(found, before) and found.st_size < before.st_size:
                raise CorpusError(
                    f"has {found.st_size} bytes; {before.st_size} when the corpus was opened",
                    path=path,
                    offset=found.st_size,
                    hint='restore it from a copy; load="ram" would not have noticed',
                )


def gather_runs(sessions: Sequence[Session]) -> NDArray[np.void]:
    """Concatenate the run tables of all sessions: ``CORPUS_RUN_DTYPE[R]``."""
    counts = [len(session.runs) for session in sessions]
    runs = np.empty(sum(counts), CORPUS_RUN_DTYPE)
    runs["session"] = np.repeat(np.arange(len(sessions), dtype=np.uint32), counts)
    # As bytes: joining structured arrays goes field by field, 0.3 s for 800,000 runs.
    own = [session.runs.view(np.uint8).reshape(-1, RUN_DTYPE.itemsize) for session in sessions]
    runs.view(np.uint8).reshape(-1, runs.dtype.itemsize)[:, 4:] = np.concatenate(own)
    return runs


# ---------------------------------------------------------------------------------- the memory of the rows


def check_corpus_load(load: str) -> None:
    """Raise ValueError unless ``load`` is one of :data:`CorpusLoad`."""
    if load not in get_args(CorpusLoad):
        raise ValueError(f"load={load!r}; expected one of {get_args(CorpusLoad)}")


def open_store(
    sessions: tuple[Session, ...],
    runs: NDArray[np.void],
    chosen: NDArray[np.bool_] | None,
    load: CorpusLoad,
    *,
    ram_budget: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RowBuffers:
    """Make a store of some sessions, and read their rows or boards into memory as requested.

    Errors as for ``Corpus.open``, and TruncatedError for a file that was truncated since it was opened.
    """
    if ram_budget is not None and as_int("ram_budget", ram_budget) < 0:
        raise ValueError(f"ram_budget={ram_budget}; expected at least 0")
    segments = _segments(sessions, runs)
    if chosen is not None:
        kept = chosen[segments.run]
        renumbered = np.cumsum(chosen) - 1
        segments = segments.take(kept)._replace(run=renumbered[segments.run[kept]])
        runs = runs[chosen]
    if load == "auto" and any(isinstance(session, RemoteSession) for session in sessions):
        load = "mmap"  # rows come when they are wanted
    used = np.unique(segments.session).tolist() if load != "mmap" else []
    with Hold.of([sessions[each] for each in used]):
        return _load(sessions, runs, segments, chosen, load, ram_budget, progress)


def _load(  # noqa: PLR0917
    sessions: tuple[Session, ...],
    runs: NDArray[np.void],
    segments: Segments,
    chosen: NDArray[np.bool_] | None,
    load: CorpusLoad,
    ram_budget: int | None,
    progress: Callable[[int, int], object] | None,
) -> RowBuffers:
    """Make a store of segments; what is read into memory is here."""
    on_tape = segments.on_tape
    tapes = map_tapes(sessions, chosen) if on_tape.any() else None
    memory = tuple(stored_rows(session) for session in sessions)
    requested = load
    if load == "auto":
        budget = ram_available() // 2 // _local_ranks() if ram_budget is None else ram_budget
        load = _best_load(segments, budget)
    if load == "packed":
        try:
            boards = _pack(sessions, segments, runs, tapes, progress)
            return RowBuffers(sessions, runs, segments, memory, "packed", boards=boards, tapes=tapes)
        except CorpusError:
            if requested == "packed":
                raise
            load = "mmap"
    if load == "mmap":
        return RowBuffers(sessions, runs, segments, memory, "mmap", tapes=tapes)
    report = _counter(progress, _bytes_to_read(sessions, segments))
    held: list[NDArray[Any]] = [session.steps for session in sessions if session.load == "ram"]
    if tapes is not None:
        taped = segments.take(on_tape)
        array, spans = read_tapes(sessions, taped, report)
        segments.address[on_tape], segments.end[on_tape] = taped.address, taped.end
        held, tapes = [*held, array], tapes._replace(spans=spans)
    for mine, files in _of_files(sessions, segments):
        array = read_rows(files.parts, progress=report)
        segments.address[mine] = _U64(_address(array)) + files.firsts.astype(_U64) * _U64(files.row_bytes)
        segments.end[mine] = _address(array) + array.size
        held.append(array)
    return RowBuffers(sessions, runs, segments, tuple(held), "ram", tapes=tapes)


def _best_load(segments: Segments, budget: int) -> HeldLoad:
    """Choose the storage by the bytes that it may take."""
    anchors = int(segments.rows[segments.on_tape].sum()) * BOARD_BYTES // ANCHOR_ROWS
    sizes: dict[HeldLoad, int] = {
        "ram": int((segments.rows * segments.stride).sum()) + anchors,
        "packed": int(segments.rows.sum()) * BOARD_BYTES,
    }
    # Boards are larger than rows on tape, and there is nothing to decode.
    preferred: list[HeldLoad] = ["packed", "ram"] if segments.on_tape.all() else ["ram", "packed"]
    return next((each for each in preferred if sizes[each] <= budget), "mmap")


def _local_ranks() -> int:
    """Return the number of ``torchrun``'s processes on this machine, which share its free memory."""
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "")))
    except ValueError:
        return 1


def _segments(sessions: Sequence[Session], runs: NDArray[np.void]) -> Segments:
    """Make the segments of all sessions, by run, with addresses in the sessions' own arrays."""
    parts = [session.segments() for session in sessions]
    owner = np.repeat(np.arange(len(sessions)), [len(part[0]) for part in parts])
    place, rows, run = (np.concatenate(column) for column in zip(*parts, strict=True))
    run = run + np.searchsorted(runs["session"], np.arange(len(sessions)))[owner]
    stored = [stored_rows(session) for session in sessions]
    stride = np.array([array.itemsize for array in stored])[owner]
    begin = np.array([_address(array) for array in stored], _U64)
    end = begin + np.array([array.nbytes for array in stored], _U64)
    segments = Segments(
        address=begin[owner] + (place * stride).astype(_U64),
        rows=rows, run=run, end=end[owner], place=place, session=owner, stride=stride,
    )  # fmt: skip
    if not all(session.contiguous for session in sessions):
        segments = segments.take(np.argsort(run, kind="stable"))
    return segments


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _in_files(sessions: Sequence[Session], segments: Segments) -> NDArray[np.bool_]:
    """Select the segments in mapped ``steps.npy``; sessions in shards are in memory already."""
    found: NDArray[np.bool_] = np.array([session.load == "mmap" for session in sessions])[segments.session]
    return found & ~segments.on_tape


def _bytes_to_read(sessions: Sequence[Session], segments: Segments) -> int:
    """Count the bytes of rows in files, without the anchors of tapes."""
    in_files = _in_files(sessions, segments) | segments.on_tape
    return int((segments.rows * segments.stride)[in_files].sum())


class _Stretches(NamedTuple):
    """Segments as stretches of files, in the order of the files, with rows of one size."""

    parts: list[Stretch]
    firsts: NDArray[np.int64]  #: number of each segment's first row among all rows to read
    row_bytes: int


def _of_files(
    sessions: Sequence[Session], segments: Segments
) -> Iterator[tuple[NDArray[np.bool_], _Stretches]]:
    """Yield the segments in ``steps.npy`` for each size of a row."""
    in_files = _in_files(sessions, segments)
    for row_bytes in np.unique(segments.stride[in_files]):
        chosen = in_files & (segments.stride == row_bytes)
        yield chosen, _stretches(sessions, segments.take(chosen))


def _stretches(sessions: Sequence[Session], segments: Segments) -> _Stretches:
    item = int(segments.stride[0])
    order, begins = segments.in_file_order()
    by_place = segments.take(order)
    rows = np.append(0, np.cumsum(by_place.rows))
    lengths = np.diff(rows[:-1][begins], append=rows[-1]) * item
    data_offsets: dict[int, int] = {}
    parts = []
    for at, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        owner = int(by_place.session[at])
        path = sessions[owner].path / STEPS_NPY
        if owner not in data_offsets:
            with open_regular(path) as fd:
                data_offsets[owner] = read_header(fd, path, STEP_DTYPES).data_offset
        parts.append(Stretch(path, data_offsets[owner] + int(by_place.place[at]) * item, length))
    firsts = np.empty(len(order), np.int64)
    firsts[order] = rows[:-1]
    return _Stretches(parts, firsts, item)


def _counter(progress: Callable[[int, int], object] | None, total: int) -> Callable[[int], None]:
    """Turn ``progress``, called with bytes done and total, into a function of the bytes of each step.

    The total lacks the anchors of tapes: what is beyond it does not count.
    """
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        if progress is not None:
            progress(done, total)

    return advance


def _pack(
    sessions: Sequence[Session],
    segments: Segments,
    runs: NDArray[np.void],
    tapes: Tapes | None,
    progress: Callable[[int, int], object] | None,
) -> PackedBoards:
    """Read the boards of segments, decode those on tape, or pack them if the rows are in memory already."""
    from tape2048.rows.packed_boards import pack_rows, read_boards  # loads the compiler

    report = _counter(progress, _bytes_to_read(sessions, segments))
    addresses = np.empty(len(segments.rows), _U64)
    memory = []
    if tapes is not None:
        on_tape = segments.on_tape
        boards, addresses[on_tape] = decode_tapes(
            sessions, segments.take(on_tape), runs, tapes.starts, report
        )
        memory.append(boards)
    for chosen, files in _of_files(sessions, segments):
        boards = read_boards(files.parts, files.row_bytes, progress=report)
        addresses[chosen] = _U64(_address(boards)) + files.firsts.astype(_U64) * _U64(BOARD_BYTES)
        memory.append(boards)
    for owner in np.unique(segments.session[~_in_files(sessions, segments) & ~segments.on_tape]).tolist():
        session = sessions[owner]
        boards = np.empty(len(session), _U64)
        rows = session.steps.view(np.uint8).reshape(-1, session.steps.dtype.itemsize)
        pack_rows(rows, boards, session.path)
        mine = segments.session == owner
        addresses[mine] = _U64(_address(boards)) + segments.place[mine].astype(_U64) * _U64(BOARD_BYTES)
        memory.append(boards)
    return PackedBoards(tuple(memory), addresses)


def _file_states(session: Session) -> Iterator[tuple[Path, os.stat_result]]:
    if session.load == "ram" or isinstance(session, RemoteSession):  # whose files nobody else writes
        return
    for name in (STEPS_NPY,) if session.tape is None else (TAPE_NPY, ANCHORS_NPY):
        path = session.path / name
        try:
            yield path, path.stat()
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror or error}", path=path) from error
