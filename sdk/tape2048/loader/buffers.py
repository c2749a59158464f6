"""Row buffers: the run table and the rows of many sessions, which all views of a corpus share.

The rows are mapped from their files, or read from the files into memory: rows with the action, rows without
it, and tapes with their anchors are read into one array each.

The segments of the runs (see ``row_map``) take 64 bytes each. If a corpus maps the rows of very many games,
the segments are not kept, but made when they are needed, of some sessions at a time.
"""

from __future__ import annotations

import itertools
import logging
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np

from tape2048.base.lazy import load_named
from tape2048.base.resources import ram_available
from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered
from tape2048.errors import (
    CorpusError,
    EmptyCorpusError,
    MissingPathError,
    NotASessionError,
    ReplayError,
    Skipped,
    StorageError,
    TapeError,
)
from tape2048.files.bulk_read import FileRange, allocate, read_rows
from tape2048.files.npy import read_header
from tape2048.files.reading import advise, is_local, open_regular, read_exactly, reading
from tape2048.loader.row_map import BOARD_BYTES, RowMap, Segments, address_of
from tape2048.loader.run_columns import RunColumns, keep_runs
from tape2048.session.blocks import FileSums, file_blocks
from tape2048.session.directory import ROW_SOURCES, describe_path, is_packdat
from tape2048.session.layout import METADATA_DB, STEP_DTYPES, STEPS_NPY
from tape2048.session.session import Session
from tape2048.session.stored import CACHE_MAX_MB, Hold, is_url, open_stored, session_paths
from tape2048.session.tape_layout import ANCHOR_DTYPE, ANCHOR_ROWS, ANCHORS_NPY, TAPE_DTYPE, TAPE_NPY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray


#: Path or address of a session, its identity, and, if it is in a store, the open session or its error.
Found: TypeAlias = "tuple[Path | str, object, Session | TapeError | None]"


def open_sessions(
    found: list[Found],
    damaged: Literal["raise", "skip"] = "raise",
    columns: str | os.PathLike[str] | None = None,
) -> tuple[tuple[Session, ...], list[Skipped]]:
    """Open the found sessions; return also the skipped sessions. Arguments as for ``Corpus.open``."""
    if damaged not in {"raise", "skip"}:
        raise ValueError(f"damaged={damaged!r}; expected 'raise' or 'skip'")
    opened, skipped, games = [], [], 0
    for path, _, one in found:
        try:
            if isinstance(one, TapeError):
                raise one
            session = Session.open(path, "mmap") if one is None else one
            session.use_overlay(columns)
            opened.append(session)
            games = keep_runs(session, games)
        except TapeError as error:
            gone = isinstance(error, MissingPathError) and error.path == str(path)
            if damaged == "raise" and not gone:
                raise
            if gone:
                logging.getLogger("tape2048").warning("skipped %s, which was removed just now", path)
            skipped.append(Skipped(Path(path), error.detach()))
    if not opened:
        counts = counted(len(skipped), "session")
        raise EmptyCorpusError(f"found {counts}, none of which can be opened. The first: {skipped[0].error}")
    return tuple(opened), skipped


def find_sessions(
    root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    cache: str | os.PathLike[str] | None = None,
    cache_max_mb: int | None = CACHE_MAX_MB,
) -> list[Found]:
    """List every source of rows at paths and URLs, each once. Sessions in stores are opened, without rows."""
    roots = roots_of(root)
    found: list[Found] = []
    for each in roots:
        if cache is not None or is_url(each):
            # The name determines the content, so a session that is in two stores counts once.
            sessions = open_stored(os.fspath(each), cache, cache_max_mb).sessions()
            found += [(address, address.rpartition("/")[2], one) for address, one in sessions]
        else:
            paths = _session_paths(Path(os.path.abspath(each)))
            found += [(path, _identity(path), None) for path in paths]
    if not found:
        named = ", ".join(str(Path(each)) for each in roots) or "an empty list of paths"
        contents = "; ".join(describe_path(Path(each)) for each in roots) or "nothing"
        raise EmptyCorpusError(f"no rows here: found {contents}", path=named, hint=ROW_SOURCES)
    once: dict[object, Found] = {}
    for one in found:
        first = once.setdefault(one[1], one)
        if first is not one and Path(first[0]).is_symlink():  # the directory has the name of the session
            once[one[1]] = one
    return [*once.values()]


def roots_of(root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Any]:
    return [root] if isinstance(root, str | os.PathLike) else list(root)


def absolute_root(root: str | os.PathLike[str]) -> str:
    """Return the path from the root directory, or the address of a store."""
    text = os.fspath(root)
    return text if is_url(root) or text.startswith(("s3:", "gs:", "az:", "hf:")) else os.path.abspath(root)


def _identity(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return path  # opening it raises the error
    return status.st_dev, status.st_ino


def _session_paths(path: Path) -> list[Path]:
    with reading(path):
        is_one = (path / METADATA_DB).exists() or is_packdat(path)
        exists, is_file = path.exists(), path.is_file()
    if is_one:
        return [path]
    if not exists:
        raise MissingPathError("no such file or directory", path=path)
    if is_file and load_named("tape2048.runs.registry:is_foreign")(path):
        return [load_named("tape2048.runs.foreign_games:as_session")(path)]
    if is_file:
        raise NotASessionError(f"no rows here: found {describe_path(path)}", path=path, hint=ROW_SOURCES)
    return [*map(Path, session_paths(path))]


_U64 = np.uint64

#: Requested storage of a corpus: mapped rows, mapped rows with packed boards in memory, rows in memory, or
#: the largest that fits.
CorpusLoad: TypeAlias = Literal["mmap", "packed", "ram", "auto"]

#: Actual storage of an open corpus.
HeldLoad: TypeAlias = Literal["mmap", "packed", "ram"]


class PackedBoards(NamedTuple):
    """The packed boards of a store; ``addresses`` (``u64[S]``) are of each segment's first board."""

    memory: tuple[NDArray[np.uint64], ...]
    addresses: NDArray[np.uint64]


class ViewChunk(NamedTuple):
    """The runs and segments of some sessions of a store.

    Attributes:
        first: ordinal of the first run.
        rows: number of rows of the store before the rows of these sessions.
        runs: the runs, ``CORPUS_RUN_DTYPE[n]``.
        segments: their segments, by run; run 0 is the first of these runs.
        whole: all segments of these sessions, before any was cut or left out.
        boards: address of the first packed board of each segment of ``whole``, ``u64[W]``; None without
            packed boards.
    """

    first: int
    rows: int
    runs: NDArray[np.void]
    segments: Segments
    whole: Segments
    boards: NDArray[np.uint64] | None

    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each segment, the segment of ``whole`` that holds it, and the rows before it there."""
        mine = self.whole.keys
        order = np.argsort(mine, kind="stable")
        whole = order[np.searchsorted(mine[order], self.segments.keys, "right") - 1]
        return whole, self.segments.first_row - self.whole.first_row[whole]

    @property
    def board_addresses(self) -> NDArray[np.uint64] | None:
        """The address of each segment's first packed board, ``u64[n]``."""
        if self.boards is None:
            return None
        whole, within = self._places()
        return self.boards[whole] + within.astype(_U64) * _U64(BOARD_BYTES)

    @property
    def begins(self) -> NDArray[np.uint64]:
        """The number in the store of each segment's first row, ``u64[n]``."""
        whole, within = self._places()
        before = np.cumsum(self.whole.rows) - self.whole.rows
        return (self.rows + before[whole] + within).astype(_U64)

    @property
    def places_in_games(self) -> NDArray[np.int64]:
        """Rows of each segment's game before the segment: ``i64[n]``."""
        whole, within = self._places()
        before = np.cumsum(self.whole.rows) - self.whole.rows
        first = np.searchsorted(self.whole.run, self.whole.run[whole])
        found: NDArray[np.int64] = before[whole] + within - before[first]
        return found

    @property
    def cuts(self) -> NDArray[np.uint32]:
        """Rows of each segment's game before the segment, and rows of the whole game: ``u32[n, 2]``."""
        rows = self.runs["rows"][self.segments.run]
        return np.stack([self.places_in_games.astype(np.uint32), rows], axis=1)


class RowBuffers:
    """Sessions, runs and rows that views share.

    If ``remote``, rows are in stores, and only rows of held sessions may be read: see :meth:`hold`.
    ``boards`` is None unless ``load`` is ``"packed"``, and ``tapes`` is None without rows on tape.
    """

    def __init__(
        self,
        sessions: tuple[Session, ...],
        runs: RunColumns,
        segments: Segments | None,
        memory: tuple[NDArray[Any], ...],
        load: HeldLoad,
        *,
        boards: PackedBoards | None = None,
        tapes: Tapes | None = None,
    ) -> None:
        """Keep the arguments. ``segments`` are of all runs, by run; None: made when they are needed."""
        self.sessions = sessions
        self.runs = runs
        self._segments = segments
        self.load = load
        self.boards = boards
        self.tapes = tapes
        self.memory = tuple(sorted((array for array in memory if array.size), key=address_of))
        self.remote = load != "ram" and any(session.is_remote for session in sessions)
        self._begins = np.array([address_of(array) for array in self.memory], _U64)
        self._files = [state for session in sessions if load != "ram" for state in _file_states(session)]

    def hold(self, ordinals: Iterable[int]) -> Hold:
        """Keep sessions of stores in the cache while the result lives; errors as for ``Hold.of``."""
        return Hold.of([self.sessions[each] for each in ordinals] if self.remote else [])

    def bytes_at(self, address: int, count: int) -> NDArray[np.uint8]:
        at = int(np.searchsorted(self._begins, _U64(address), "right")) - 1
        first = address - int(self._begins[at])
        found: NDArray[np.uint8] = self.memory[at].view(np.uint8).reshape(-1)[first : first + count]
        assert len(found) == count, "the rows end behind their array"
        return found

    def rows_of(self, segments: Segments, dtype: np.dtype[Any]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Return the array that holds a session's segments, and the index of each segment in it."""
        at = int(np.searchsorted(self._begins, segments.address[0], "right")) - 1
        index = (segments.address - self._begins[at]) // _U64(dtype.itemsize)
        return self.memory[at].view(np.uint8).reshape(-1).view(dtype), index.astype(np.int64)

    @cached_property
    def rows(self) -> int:
        return sum(int(chunk.segments.rows.sum()) for chunk in self.chunks())

    def chunks(self) -> Iterator[ViewChunk]:
        """Yield the runs and segments of some sessions at a time, or of all if the run table is in memory."""
        rows = count = 0
        for where, runs, segments in _chunks(self.runs, self._segments):
            boards = None
            if self.boards is not None:
                boards = self.boards.addresses[count : count + len(segments.rows)]
            yield ViewChunk(where.start, rows, runs, segments, segments, boards)
            rows, count = rows + int(segments.rows.sum()), count + len(segments.rows)

    def raise_defect(self, rows: RowMap, number: int) -> NoReturn:
        """Raise the FormatError of the game that has row ``number`` of a map."""
        line = rows.line_at(number)
        session, row = self.sessions[rows.session[line]], int(rows.first_row[line]) + number
        run = session.runs[int(session.run_index([row])[0])]
        first = int(run["first_row"])
        session.read_rows(first, first + int(run["rows"]))
        raise ReplayError(f"run {run['run_id']} was damaged when it was read before", path=session.path)

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file was truncated: reading a missing page would kill the process."""
        for path, before in self._files:
            try:
                found = path.stat()
            except OSError:
                continue
            if os.path.samestat(found, before) and found.st_size < before.st_size:
                raise CorpusError(
                    f"found {found.st_size} bytes, expected {before.st_size}, as when the corpus was opened",
                    path=path,
                    offset=found.st_size,
                    hint="restore it from a copy, and open the corpus again",
                )


def load_rows(
    sessions: tuple[Session, ...],
    runs: RunColumns,
    load: CorpusLoad,
    *,
    ram_budget: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RowBuffers:
    """Return buffers with rows or boards as ``load`` says; TruncatedError for a file that was cut since."""
    if ram_budget is not None and as_int("ram_budget", ram_budget) < 0:
        raise ValueError(f"ram_budget={ram_budget}; expected at least 0")
    if load == "auto" and any(session.is_remote for session in sessions):
        load = "mmap"  # rows are fetched when they are needed
    used = np.flatnonzero(np.diff(runs.firsts)).tolist() if load != "mmap" else []
    with Hold.of([sessions[each] for each in used]):
        return _load(sessions, runs, load, ram_budget, progress)


def _load(
    sessions: tuple[Session, ...],
    runs: RunColumns,
    load: CorpusLoad,
    ram_budget: int | None,
    progress: Callable[[int, int], object] | None,
) -> RowBuffers:
    used = [sessions[each] for each in np.flatnonzero(np.diff(runs.firsts)).tolist()]
    tapes = map_tapes(sessions, runs) if any(map(_is_made, used)) else None
    memory = tuple(session.stored for session in sessions)
    if load == "auto":
        budget = ram_available() // 2 // _local_ranks() if ram_budget is None else ram_budget
        load = _best_load((segments for _, _, segments in _chunks(runs)), budget)
        if load == "mmap" and (away := next((one for one in used if not is_local(one.path)), None)):
            text = "%s is not on a local disk, and too large for memory: a file that shrinks ends the process"
            logging.getLogger("tape2048").warning(text, away.path)
    segments = _joined(runs) if load != "mmap" or runs.in_memory else None
    if load == "packed":
        assert segments is not None
        boards = _pack(sessions, segments, runs, tapes, progress)
        return RowBuffers(sessions, runs, segments, memory, "packed", boards=boards, tapes=tapes)
    if load == "mmap":
        held_load: HeldLoad = "ram" if all(session.load == "ram" for session in sessions) else "mmap"
        return RowBuffers(sessions, runs, segments, memory, held_load, tapes=tapes)
    assert segments is not None
    on_tape = segments.on_tape
    report = _counter(progress, _bytes_to_read(sessions, segments))
    held: list[NDArray[Any]] = [session.stored for session in sessions if session.load == "ram"]
    for owner, session in enumerate(sessions):
        mine = segments.session == owner
        if session.foreign is not None and session.load == "mmap" and mine.any():
            rows = session.foreign.in_memory()
            report(_foreign_bytes(session))
            at = (session.foreign.in_files(segments.first_row[mine]) * rows.itemsize).astype(_U64)
            segments.address[mine] = at + _U64(address_of(rows))
            segments.end[mine] = address_of(rows) + rows.nbytes
            held.append(rows)
    if tapes is not None and on_tape.any():
        taped = segments.take(on_tape)
        array, spans = read_tapes(sessions, taped, report)
        segments.address[on_tape], segments.end[on_tape] = taped.address, taped.end
        held, tapes = [*held, array], tapes._replace(spans=spans)
    for mine, ranges, firsts, row_bytes, sums in _of_files(sessions, segments):
        array = read_rows(ranges, progress=report, on_read=sums.add)
        sums.finish()
        segments.address[mine] = _U64(address_of(array)) + firsts * _U64(row_bytes)
        segments.end[mine] = address_of(array) + array.size
        held.append(array)
    return RowBuffers(sessions, runs, segments, tuple(held), "ram", tapes=tapes)


def _joined(runs: RunColumns) -> Segments:
    parts = [each._replace(run=each.run + where.start) for where, _, each in _chunks(runs)]
    return Segments(*map(np.concatenate, zip(*parts, strict=True)))


def _is_made(session: Session) -> bool:
    """Check whether rows of a session must be converted, from tape or from another program's layout."""
    foreign = session.foreign
    return session.tape is not None or (foreign is not None and not foreign.layout.is_native)


def _best_load(chunks: Iterable[Segments], budget: int) -> HeldLoad:
    sizes: dict[HeldLoad, int] = {"ram": 0, "packed": 0}
    taped = True
    for segments in chunks:
        anchors = int(segments.rows[segments.on_tape].sum()) * BOARD_BYTES // ANCHOR_ROWS
        sizes["ram"] += int((segments.rows * segments.stride).sum()) + anchors
        sizes["packed"] += int(segments.rows.sum()) * BOARD_BYTES
        taped = taped and bool(segments.on_tape.all())
    # Packed boards are larger than rows on tape, but need no decoding.
    preferred: list[HeldLoad] = ["packed", "ram"] if taped else ["ram", "packed"]
    return next((each for each in preferred if sizes[each] <= budget), "mmap")


def _local_ranks() -> int:
    """Return the number of processes of ``torchrun`` on this machine, which share its free memory."""
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "")))
    except ValueError:
        return 1


def _chunks(
    runs: RunColumns, kept: Segments | None = None
) -> Iterator[tuple[slice, NDArray[np.void], Segments]]:
    """Yield ranges of runs with their table and their segments; in a range, runs count from its first."""
    for where, table in runs.chunks():
        if kept is None:
            owners = range(len(runs.sessions)) if runs.in_memory else np.unique(table["session"]).tolist()
            segments = _segments(runs, owners)
            for owner in owners if not runs.in_memory else ():
                runs.sessions[owner].drop_runs()
        elif len(table) == len(runs):
            segments = kept
        else:
            segments = kept.take(np.arange(*np.searchsorted(kept.run, [where.start, where.stop])))
            segments = segments._replace(run=segments.run - where.start)
        yield where, table, segments


def _segments(runs: RunColumns, owners: Sequence[int]) -> Segments:
    """Make the segments of the runs of some sessions; runs count from the first run of these sessions."""
    sessions = [runs.sessions[each] for each in owners]
    tables = [session.segments() for session in sessions]
    owner = np.repeat(np.arange(len(sessions)), [len(table[0]) for table in tables])
    first_row, rows, run = (np.concatenate(column) for column in zip(*tables, strict=True))
    counts = [session.run_count for session in sessions]
    run = run + (np.cumsum(counts) - counts)[owner]
    stored = [session.stored for session in sessions]
    stride = np.array([array.itemsize for array in stored])[owner]
    begin = np.array([address_of(array) for array in stored], _U64)
    end = begin + np.array([array.nbytes for array in stored], _U64)
    foreign = [session.foreign for session in sessions]
    ends, at = end[owner], first_row.copy()
    for ordinal, each in enumerate(foreign):
        if each is not None:
            mine = owner == ordinal
            at[mine] = each.begins
            ends[mine] = begin[ordinal] + (each.ends * each.rows.itemsize).astype(_U64)
    layouts = [0 if each is None or each.layout.is_native else address_of(each.words) for each in foreign]
    segments = Segments(
        address=begin[owner] + (at * stride).astype(_U64), rows=rows, run=run, end=ends, first_row=first_row,
        session=np.array(owners)[owner], stride=stride, layout=np.array(layouts, _U64)[owner],
    )  # fmt: skip
    if (chosen := runs.chosen_of(owners)) is not None:
        ordinals = np.full(sum(counts), -1)
        ordinals[chosen] = np.arange(len(chosen))
        segments = segments.take(ordinals[run] >= 0)
        segments = segments._replace(run=ordinals[segments.run])
    if not all(session.contiguous for session in sessions):
        segments = segments.take(np.argsort(segments.run, kind="stable"))
    return segments


def _in_files(sessions: Sequence[Session], segments: Segments) -> NDArray[np.bool_]:
    mapped = [session.load == "mmap" and session.foreign is None for session in sessions]
    found: NDArray[np.bool_] = np.array(mapped)[segments.session]
    return found & ~segments.on_tape


def _bytes_to_read(sessions: Sequence[Session], segments: Segments) -> int:
    here = np.unique(segments.session).tolist()
    foreign = sum(_foreign_bytes(sessions[each]) for each in here)
    own = _in_files(sessions, segments) | segments.on_tape
    return foreign + int((segments.rows * segments.stride)[own].sum())


def _foreign_bytes(session: Session) -> int:
    rows = session.foreign
    return 0 if rows is None or session.load == "ram" else int(rows.counts.sum()) * rows.rows.itemsize


def _of_files(
    sessions: Sequence[Session], segments: Segments
) -> Iterator[tuple[NDArray[np.bool_], list[FileRange], NDArray[np.uint64], int, FileSums]]:
    """Yield segments in ``steps.npy`` by row size: a mask, ranges, each segment's first row, size, sums."""
    in_files = _in_files(sessions, segments)
    for row_bytes in np.unique(segments.stride[in_files]).tolist():
        mine = in_files & (segments.stride == row_bytes)
        chosen = segments.take(mine)
        order, begins = chosen.in_file_order()
        by_row = chosen.take(order)
        rows = np.append(0, np.cumsum(by_row.rows))
        lengths = np.diff(rows[:-1][begins], append=rows[-1]) * row_bytes
        paths = {each: sessions[each].path / STEPS_NPY for each in np.unique(chosen.session).tolist()}
        offsets = {each: _data_offset(path, STEP_DTYPES) for each, path in paths.items()}
        owners, first_rows = by_row.session[begins].tolist(), by_row.first_row[begins].tolist()
        ranges = [
            FileRange(paths[owner], offsets[owner] + first_row * row_bytes, length)
            for owner, first_row, length in zip(owners, first_rows, lengths.tolist(), strict=True)
        ]
        firsts = np.empty(len(order), _U64)
        firsts[order] = rows[:-1]
        sums = FileSums(
            (path, offsets[each], sessions[each].blocks, row_bytes) for each, path in paths.items()
        )
        yield mine, ranges, firsts, row_bytes, sums


def _counter(progress: Callable[[int, int], object] | None, total: int) -> Callable[[int], None]:
    """Return a function of a step's bytes, which calls ``progress``; anchors are not in the total."""
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
    runs: RunColumns,
    tapes: Tapes | None,
    progress: Callable[[int, int], object] | None,
) -> PackedBoards:
    from tape2048.loader.boards import pack_rows, read_boards  # loads the compiler

    report = _counter(progress, _bytes_to_read(sessions, segments))
    addresses = np.empty(len(segments.rows), _U64)
    memory = []
    on_tape = segments.on_tape
    if tapes is not None and on_tape.any():
        boards, addresses[on_tape] = decode_tapes(
            sessions, segments.take(on_tape), runs.table, tapes.starts, report
        )
        memory.append(boards)
    for chosen, ranges, firsts, row_bytes, sums in _of_files(sessions, segments):
        boards = read_boards(ranges, row_bytes, progress=report, on_read=sums.add)
        sums.finish()
        addresses[chosen] = _U64(address_of(boards)) + firsts * _U64(BOARD_BYTES)
        memory.append(boards)
    for owner in np.unique(segments.session[~_in_files(sessions, segments) & ~segments.on_tape]).tolist():
        session = sessions[owner]
        boards = np.empty(len(session), _U64)
        for first in range(0, len(session), _PACK_ROWS):
            rows = session.read_rows(first, min(first + _PACK_ROWS, len(session)))
            content = rows.view(np.uint8).reshape(len(rows), -1)
            pack_rows(content, boards[first : first + len(rows)], session.path)
        report(_foreign_bytes(session))
        mine = segments.session == owner
        addresses[mine] = _U64(address_of(boards)) + segments.first_row[mine].astype(_U64) * _U64(BOARD_BYTES)
        memory.append(boards)
    return PackedBoards(tuple(memory), addresses)


def _file_states(session: Session) -> Iterator[tuple[Path, os.stat_result]]:
    if session.load == "ram" or session.is_remote:  # only this project writes to the cache
        return
    names = (STEPS_NPY,) if session.tape is None else (TAPE_NPY, ANCHORS_NPY)
    own = [session.path / name for name in names]
    for path in own if session.foreign is None else session.foreign.paths:
        try:
            yield path, path.stat()
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror or error}", path=path) from error


#: Rows that are decoded together: about a hundred long games.
_JOB_ROWS = 1 << 21
#: Binary logarithm of the most rows of a file between the first and the last of these.
_JOB_SPAN_SHIFT = 24
#: Rows of other programs that are converted together: 28 MB.
_PACK_ROWS = 1 << 20


class Tapes(NamedTuple):
    """The tapes of a store: spans, and the first board of each run, ``u64[R]``; 0 if not on tape."""

    spans: NDArray[np.uint64]
    starts: NDArray[np.uint64]


def map_tapes(sessions: Sequence[Session], runs: RunColumns) -> Tapes:
    """Find the mapped tapes of sessions, and the first boards of the runs."""
    starts = np.zeros(len(runs), _U64)
    for ordinal, session in enumerate(sessions):
        mine = slice(*runs.firsts[[ordinal, ordinal + 1]].tolist())
        if session.tape is not None and mine.start < mine.stop:
            chosen = runs.chosen_of([ordinal])
            starts[mine] = session.tape.starts if chosen is None else session.tape.starts[chosen]
            if not runs.in_memory:
                session.drop_runs()
    tapes = [session.tape for session in sessions if session.tape is not None]
    spans = [(*(m.ctypes.data for m in t.memory), t.anchor_rows.bit_length() - 1) for t in tapes]
    return Tapes(np.array(sorted(spans), _U64).reshape(-1, 3), starts)


def read_tapes(
    sessions: Sequence[Session], segments: Segments, report: Callable[[int], object]
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Read segments on tape, and set their addresses; return the array, and spans that start at anchors."""
    order, begins = segments.in_file_order()
    first = segments.first_row[order[begins]]
    end = (segments.first_row + segments.rows)[order[np.append(begins[1:], len(order)) - 1]]
    owner = segments.session[order[begins]]
    tapes = [session.tape for session in sessions]
    shift = np.array([0 if t is None else t.anchor_rows.bit_length() - 1 for t in tapes])[owner]
    anchor = first >> shift
    first = anchor << shift
    sizes = end - first, BOARD_BYTES * (-(-end >> shift) - anchor)
    files = [
        (sessions[each], sessions[each].path / name, name, dtype)
        for each in np.unique(owner).tolist()
        for name, dtype in ((TAPE_NPY, TAPE_DTYPE), (ANCHORS_NPY, ANCHOR_DTYPE))
    ]
    offsets = {path: _data_offset(path, [dtype]) for _, path, _, dtype in files}
    sums = FileSums(
        (
            path,
            offsets[path],
            session.blocks if name == TAPE_NPY else file_blocks(path, session.files[name]),
            dtype.itemsize,
        )
        for session, path, name, dtype in files
    )
    columns = (TAPE_NPY, first, sizes[0]), (ANCHORS_NPY, anchor * BOARD_BYTES, sizes[1])
    array = read_rows(
        [
            FileRange(path := sessions[each].path / name, offsets[path] + offset, size)
            for name, *ranges in columns
            for each, offset, size in zip(owner.tolist(), *(p.tolist() for p in ranges), strict=True)
        ],
        progress=report,
        on_read=sums.add,
    )
    sums.finish()
    ends = np.cumsum(np.concatenate(sizes))
    address = array.ctypes.data + (ends - np.concatenate(sizes)).reshape(2, -1)
    # The span of each segment.
    which = np.empty(len(order), np.int64)
    which[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
    segments.address[:] = address[0][which] + segments.first_row - first[which]
    segments.end[:] = (address[0] + sizes[0])[which]
    return array, np.stack([*address, shift], axis=1).astype(_U64)


def _data_offset(path: Path, dtypes: Sequence[np.dtype[Any]]) -> int:
    with open_regular(path) as fd:
        return read_header(fd, path, dtypes).data_offset


def decode_tapes(
    sessions: Sequence[Session],
    segments: Segments,
    runs: NDArray[np.void],
    starts: NDArray[np.uint64],
    report: Callable[[int], object],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Decode whole runs, checked, on all cores; return the boards, and each segment's first address."""
    from tape2048.session.tape_reader import check_games  # loads the compiler

    order, _ = segments.in_file_order()
    first_row, rows, owner = (
        column[order] for column in (segments.first_row, segments.rows, segments.session)
    )
    ends = np.append(0, np.cumsum(rows))
    boards = allocate(int(ends[-1]) * BOARD_BYTES).view(_U64)
    jobs = np.stack([owner, first_row >> _JOB_SPAN_SHIFT, ends[:-1] // _JOB_ROWS])
    paths = {each: sessions[each].path / TAPE_NPY for each in np.unique(owner).tolist()}
    sums = FileSums((path, 0, sessions[each].blocks, 1) for each, path in paths.items())
    bounds = [0, *(np.flatnonzero((jobs[:, 1:] != jobs[:, :-1]).any(axis=0)) + 1).tolist(), len(order)]

    def decode(job: tuple[int, int]) -> int:
        mine = slice(*job)
        path, which = paths[int(owner[job[0]])], segments.run[order[mine]]
        begin, end = int(first_row[mine][0]), int(first_row[mine][-1] + rows[mine][-1])
        tape = np.empty(end - begin, np.uint8)
        with open_regular(path) as fd:
            offset = read_header(fd, path, [TAPE_DTYPE]).data_offset
            # The disk reads the bytes of the next jobs while this job decodes.
            advise(fd, offset + end, 2 * len(tape), "WILLNEED")
            read_exactly(fd, tape, offset + begin, path)
        sums.add(FileRange(path, begin, len(tape)), tape)
        if len(tape) > rows[mine].sum():  # there are other runs between them
            gaps = first_row[mine] - begin - np.append(0, first_row[mine][:-1] + rows[mine][:-1] - begin)
            lengths = np.stack([gaps, rows[mine]], axis=1).reshape(-1)
            tape = tape[np.repeat(np.tile([False, True], len(which)), lengths)]
        table = runs[which]
        table["first_row"] = ends[mine] - ends[job[0]]
        out = boards[ends[job[0]] : ends[job[1]]]
        for defect in check_games(tape, table, starts[which], out).defects:
            raise defect.error(runs[which[defect.game]], path, offset)
        return end - begin

    for done in map_ordered(decode, itertools.pairwise(bounds)):
        report(done)
    sums.finish()
    addresses = np.empty(len(order), _U64)
    addresses[order] = _U64(boards.ctypes.data) + ends[:-1].astype(_U64) * _U64(BOARD_BYTES)
    boards.flags.writeable = False
    return boards, addresses
