"""Sessions: recorded directories as sequences of rows and tables of runs."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np

from tape2048.base.lazy import load_named
from tape2048.base.text import facts_table
from tape2048.errors import BookkeepingError, MissingPathError, StorageError
from tape2048.files.locks import ReadLock, lock_for_reading
from tape2048.files.npy import Load, check_load
from tape2048.files.reading import is_local, is_mapped, reading
from tape2048.files.row_source import RowView, row_numbers, run_ordinal
from tape2048.session.blocks import board_error, check_blocks, impossible_row
from tape2048.session.columns import Column, Columns
from tape2048.session.directory import is_dataset, is_session, kind_of_table
from tape2048.session.foreign import ForeignRows
from tape2048.session.former_names import NamedRuns
from tape2048.session.layout import (
    ACTION_STEP_DTYPE,
    EXPS_OFFSET,
    METADATA_DB,
    SESSION_NAME,
    START_BOARDS,
    STEPS_NPY,
    Manifest,
    name_key,
    step_dtype,
)
from tape2048.session.metadata import read_metadata
from tape2048.session.run_table import (
    DEFAULT_THRESHOLDS,
    Owners,
    from_run_table,
    game_facts,
    run_labels,
)
from tape2048.session.session_files import SessionFiles
from tape2048.session.tape_reader import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.session.games import Game
    from tape2048.session.layout import FileEntry
    from tape2048.session.metadata import Metadata


#: A selection of rows: a slice, row numbers, or a mask of all rows.
Rows: TypeAlias = "slice | ArrayLike"

# Runs whose first and last rows are compared with the run table when a mapped session is opened. Each reads
# two pages.
_PROBED_RUNS = 8


class Session(RowView):
    """A finished session: its rows, its runs, and their labels; see :meth:`open`.

    A row is a position of a game. ``len(session)`` is the number of rows. ``session[7]``, ``session[10:20]``
    and :meth:`get_batch` return rows as records, and :meth:`tokens` returns their boards. A run is a game.
    :meth:`run_index` returns the run of a row, and :meth:`rows_of` the rows of a run. All numbers count from
    0.

    A session needs no closing: no file stays open, and the mapping ends with the last array that uses it.
    While the object lives, ``tape2048 prune`` does not remove the session. A pickled session holds its path,
    and is opened again when it is unpickled.

    Attributes:
        path: absolute path of the directory.
        is_remote: whether it is in a store. Then it also has its ``address`` there and ``bytes``, the size of
            its files.
        dtype: type of a row as a record: ``ACTION_STEP_DTYPE`` if it has the move, as always on tape;
            otherwise ``STEP_DTYPE``.
        tape: rows of a session on tape; None for a session of rows.
        foreign: rows of another program; None for a recorder's session.
        dataset: the data set or pack.dat that was opened (:class:`tape2048.runs.tables.OpenTable`), or None.
        runs: run table, ``RUN_DTYPE[R]`` by ``first_row``, read-only. In a session of another program, runs
            without rows come last, with ``first_row`` = N and ``rows`` = 0. A corpus of very many games drops
            the table, and the next access reads it again.
        run_count: number of runs, R.
        blocks: block checksums, ``BLOCK_DTYPE[B]``; None for a session of another program.
        meta: facts of the table ``session``, decoded.
        manifest: the manifest; None for a session of another program.
        contiguous: whether the rows of each run are adjacent; can be False only for another program.
        rows_without_run: number of rows that were left out, since their run is not in the table, as after
            another program was killed. All other numbers count the remaining rows.
        load: ``"mmap"`` or ``"ram"``.
        read_lock: lock that keeps the session from being removed as long as it is referenced.
        overlay: directory with more columns of this session, or None.

    Example:
        >>> from tape2048 import Session, sessions
        >>> session = Session.open(sessions("selfplay")[0])
        >>> len(session.runs), len(session) == int(session.runs["rows"].sum())
        (200, True)
        >>> session.tokens([0, 1]).shape, session.labels([256, 512]).shape == (len(session), 2)
        ((2, 16), True)
    """

    is_remote = False
    address: str
    bytes: int

    def __init__(
        self,
        path: Path,
        rows: NDArray[np.void] | Tape | ForeignRows,
        metadata: Metadata,
        manifest: Manifest | None,
        load: Load,
        *,
        probe: bool = True,
    ) -> None:
        """Make a session from the contents that :meth:`open` has read; without ``probe``, reads no row."""
        self.path = path
        self.tape: Tape | None = None
        self.foreign: ForeignRows | None = None
        self.dataset: Any = None
        self.rows_without_run = 0
        self._steps: NDArray[np.void] | None = None
        if isinstance(rows, Tape):
            self.tape = rows
            games = from_run_table(rows.runs, len(rows), path / METADATA_DB)
            self.dtype: np.dtype[Any] = ACTION_STEP_DTYPE
        elif isinstance(rows, ForeignRows):
            self.foreign, games = rows, (rows.runs, rows.owners)
            self.rows_without_run = rows.without_run
            self.dtype = step_dtype(record_action=bool(rows.layout.move))
            if rows.layout.is_native and (rows.begins == rows.owners.segments()[0]).all():
                self._steps = rows.rows[: len(rows)]
        else:
            games = _assign(metadata, rows, path / METADATA_DB, load, probe=probe)
            self._steps, self.dtype = rows, rows.dtype
        if manifest is not None:
            check_blocks(metadata.blocks, len(rows), path / METADATA_DB)
        games[0].flags.writeable = False
        self._games: tuple[NDArray[np.void], Owners] | None = games
        self._metadata: Callable[[], Metadata] = functools.partial(read_metadata, path / METADATA_DB)
        self.run_count, self._row_count, self.contiguous = len(games[0]), len(rows), games[1].contiguous
        self.blocks = metadata.blocks
        self.meta = metadata.session
        self.manifest = manifest
        self.load: Load = load
        self.read_lock: ReadLock | None = None
        self.overlay: Path | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        load: Load | None = None,
        columns: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Open a session of the recorder or of another program, a data set, or a pack.dat.

        See :mod:`tape2048.session.foreign` and :mod:`tape2048.runs` for the other formats.

        Opening checks sizes, types, and that the runs cover each row once, in time that grows with the runs.
        Mapped rows are not compared with their checksums: use :func:`tape2048.validate_session`. Boards that
        no game has are errors when they are read. Rows on tape are decoded
        on demand. In a session of another program, the ``run_id`` of every row is read, unless its run table
        has the rows of each run, or its runs are stored one after the other with a row for each step.

        Args:
            path: the directory, or the pack.dat.
            load: ``"mmap"`` maps the rows, ``"ram"`` reads them and compares the checksums of their blocks.
                By default ``"mmap"``; but ``"ram"`` for files that are not on a local disk (NFS, SMB, FUSE,
                Lustre, ...), if they fit into half of the free memory: if a mapped file shrinks, the process
                ends with SIGBUS.
            columns: overlay directory, for sessions that cannot be written to. Columns are written to
                ``columns/<name of the session>``, and searched there first. All columns in files of data sets
                and pack.dats are in an overlay, since appending replaces a data set.

        Raises:
            MissingPathError: no such file or directory.
            NotASessionError: the path is not a session, or the session is not finished.
            FormatError: the first defect; an incomplete session never opens.
            StorageError: the operating system could not read a file.
            ValueError: ``load`` is invalid.
        """
        place = Path(os.path.abspath(path))
        load = _default_load(place) if load is None else load
        check_load(load)
        if kind := kind_of_table(place):
            # By name: a session of a recorder needs none of these modules.
            opened = importlib.import_module(f"tape2048.runs.{kind}").open_rows(place, load)
            return cls.of_dataset(place, opened, load, columns)
        files = SessionFiles(path)
        lock = lock_for_reading(files.path)
        for defect in files.defects(files.parts):
            raise defect
        session = cls(files.path, files.open_rows(load), files.metadata, files.manifest, load)
        session.read_lock = lock
        session.use_overlay(columns)
        return session

    @classmethod
    def of_dataset(
        cls,
        path: Path,
        found: Any,
        load: Load = "mmap",
        columns: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Return an open data set or pack.dat as a session."""
        session = cls(path, found.rows, found.metadata, None, load)
        session.dataset = found
        session.use_overlay(columns)
        return session

    def use_overlay(self, columns: str | os.PathLike[str] | None) -> None:
        """Set the overlay directory, as ``columns`` of :meth:`open`."""
        self.overlay = None if columns is None else Path(os.path.abspath(columns), self.name)

    @property
    def runs(self) -> NDArray[np.void]:
        """The run table, see above."""
        return self._read_games()[0].view(NamedRuns)

    @property
    def _owners(self) -> Owners:
        return self._read_games()[1]

    def _read_games(self) -> tuple[NDArray[np.void], Owners]:
        games = self._games  # another thread may drop self._games
        if games is None:
            runs = self._metadata().runs if self.tape is None else self.tape.runs
            games = self._games = from_run_table(runs, self._row_count, self.path / METADATA_DB)
            games[0].flags.writeable = False
        return games

    def drop_runs(self) -> None:
        """Forget the run table of an immutable session, until :attr:`runs` is used again."""
        if self.manifest is not None and self.foreign is None and self.dataset is None:
            self._games = None
            if self.tape is not None:
                self.tape.drop_runs(self._metadata)

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def steps(self) -> NDArray[np.void]:
        """All rows as records, ``STEP_DTYPE[N]`` or ``ACTION_STEP_DTYPE[N]``, read-only.

        A session on tape decodes all rows at the first access, and keeps them in memory: 29 bytes for each
        row. To decode only some rows, use :meth:`read_rows`.
        """
        if self._steps is None:
            self._steps = self.read_rows(0, len(self))
            self._steps.flags.writeable = False
        return self._steps

    @property
    def stored(self) -> NDArray[Any]:
        """The array of the rows, or of their bytes on tape. For sessions in a store, only under a hold."""
        if self.foreign is not None:
            return self.foreign.rows
        if self.tape is not None:
            return self.tape.memory[0]
        assert self._steps is not None
        return self._steps

    def __len__(self) -> int:
        return self._row_count

    def __repr__(self) -> str:
        return f"<Session {self.name}: {len(self):,} rows, {self.run_count:,} runs, {self.load}>"

    def _repr_html_(self) -> str:
        facts, tiles = game_facts(self.runs)
        player = load_named("tape2048.players:player_name")(self.meta)  # only notebooks need it
        facts = {"player": player, "rows": len(self), **facts, "load": self.load}
        return facts_table(f"Session {self.name}", facts, tiles)

    def __reduce__(self) -> tuple[Callable[..., Session], tuple[Any, ...], dict[str, Any]]:
        return Session.open, (str(self.path), self.load), {"overlay": self.overlay}

    @property
    def column_places(self) -> tuple[Path, ...]:
        """The directories with columns, in the order of the search. Columns are written to the first."""
        own = () if self.dataset else (self.path,)
        return own if self.overlay is None else (self.overlay, *own)

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """Size and checksum of each file, by name, from the manifest; empty without a manifest."""
        manifest = self._any_manifest
        return manifest.files if manifest else {}

    @property
    def _any_manifest(self) -> Any:
        return self.dataset.manifest if self.dataset else self.manifest

    @property
    def columns(self) -> Columns:
        """The columns of the session, ``Mapping[str, ColumnInfo]``. Each access lists its directory.

        The mapping raises KeyError for an unknown name, and ColumnError for a half-written column.
        """
        return Columns(self.column_places, len(self), self._any_manifest, self.foreign)

    def column(self, name: str) -> Column:
        """Map a column. The first access of a process reads its file, and compares it with its checksum.

        Args:
            name: a name in :attr:`columns`.

        Returns:
            The values, ``[N]`` or ``[N, D]``, read-only, with their description and file. Values of type
            ``bf16`` are their bits, ``u16``.

        Raises:
            ColumnError: there is no such column, or it is damaged, half-written, or of other rows.
            StorageError: the operating system could not read a file.
        """
        return self.columns.read(name)

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return the rows with these numbers, in this order: ``STEP_DTYPE[n]`` or ``ACTION_STEP_DTYPE[n]``.

        Args:
            indices: row numbers or a mask, as for :meth:`tokens`, with the same errors.
        """
        numbers = self._row_numbers(indices)
        if self.tape is None:
            return self._take(numbers).view(self.dtype)
        return self._records(
            self.tape.boards_at(numbers), self.tape.moves(numbers), numbers, self._owners.of(numbers)
        )

    def read_rows(self, first: int, end: int) -> NDArray[np.void]:
        """Return the rows in [first, end) as records: a view of the rows, or decoded from the tape.

        Args:
            first: number of the first row, at least 0.
            end: number of the row after the last, from ``first`` to N.

        Raises:
            IndexError: the range is not within the rows of this session.
            FormatError: a board that no game has, or a step on tape that breaks the rules.
        """
        if not 0 <= first <= end <= len(self):
            raise IndexError(f"rows {first} to {end}; expected a range within 0 to {len(self)}")
        if self.tape is None:
            if self._steps is None:
                return self._take(np.arange(first, end))
            return self._checked(self.steps[first:end], range(first, end))
        moves = self.tape.moves(slice(first, end))
        numbers, owners = np.arange(first, end), self._owners.between(first, end)
        return self._records(self.tape.boards(first, end), moves, numbers, owners)

    def _records(
        self,
        boards: NDArray[np.uint64],
        moves: NDArray[np.uint8],
        numbers: NDArray[np.int64],
        owners: NDArray[np.int64],
    ) -> NDArray[np.void]:
        from tape2048.game.rules import boards_to_exps  # loads the compiler

        rows = np.empty(len(boards), self.dtype)
        rows["run_id"] = self.runs["run_id"][owners]
        rows["step_idx"] = numbers - self.runs["first_row"][owners].astype(np.int64)
        rows["exps"] = boards_to_exps(boards)
        rows["action"] = moves
        return rows

    def _take(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        if self._steps is None and self.foreign is not None:
            return self._checked(self.foreign.read(numbers), numbers)
        # An untyped view, since NumPy copies structured rows field by field. The numbers are checked: "clip"
        # avoids NumPy's slower check.
        taken = np.take(self.steps.view(f"V{self.steps.dtype.itemsize}"), numbers, mode="clip")
        return self._checked(taken, numbers)

    def _checked(self, rows: NDArray[np.void], numbers: range | NDArray[np.int64]) -> NDArray[np.void]:
        """Return rows; raise FieldError if a board is none of a game."""
        if (at := impossible_row(rows)) >= 0:
            row, number = rows[at : at + 1].view(self.dtype)[0], int(numbers[at])
            where = f"row {number} (run {self.runs['run_id'][self.run_index([number])[0]]})"
            path, offset = self.path, None
            if STEPS_NPY in self.files:
                path, end = self.path / STEPS_NPY, self.files[STEPS_NPY].bytes
                offset = end - (len(self) - number) * self.dtype.itemsize
            raise board_error(row["exps"].tolist(), where, path, offset)
        return rows

    def run_labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Compare each run's highest tile with each threshold.

        Args:
            thresholds: T different tiles, each a power of two >= 2.

        Returns:
            ``bool[R, T]``: ``highest_tile >= threshold``.

        Raises:
            ValueError: the thresholds are invalid or empty.
        """
        return run_labels(self.runs, thresholds)

    @property
    def start_boards(self) -> NDArray[np.uint64] | None:
        """The given boards that the games start from, ``u64[R]``.

        None if every game starts with two tiles, and for sessions of other programs. In a session of rows, a
        row of each run is read.

        Raises:
            FieldError: no game has such a board.

        Example:
            >>> from tape2048 import Session, sessions
            >>> Session.open(sessions("selfplay")[0]).start_boards is None
            True
        """
        if START_BOARDS not in self.meta or self.foreign is not None or self.dataset is not None:
            return None
        if self.tape is not None:
            return self.tape.starts
        from tape2048.game.rules import exps_to_boards  # loads the compiler

        boards, has_rows = np.zeros(len(self.runs), np.uint64), self.runs["rows"] > 0
        boards[has_rows] = exps_to_boards(self.tokens(self.runs["first_row"][has_rows].astype(np.int64)))
        return boards

    def labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Return the labels of each row's run, ``bool[N, T]``, as a new array; see :meth:`run_labels`."""
        return self._owners.spread(self.run_labels(thresholds))

    def tokens(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the boards of the given rows as exponents.

        Args:
            rows: a slice, by Python's rules; row numbers (a one-dimensional array of integers, in any order,
                which may repeat); or a mask ``bool[N]``. Negative row numbers are errors, so that a -1 for
                padding never means the last row.

        Returns:
            ``u8[n, 16]``, row-major cells, a new C-ordered array.

        Raises:
            IndexError: a row number is outside [0, N), or a mask has another length.
            TypeError: row numbers are not integers of one dimension.
        """
        if self.tape is not None:
            from tape2048.game.rules import boards_to_exps  # loads the compiler

            if isinstance(rows, slice) and rows.step in {None, 1}:
                return boards_to_exps(self.tape.boards(*rows.indices(len(self))[:2]))
            return boards_to_exps(self.tape.boards_at(self._row_numbers(rows)))
        if isinstance(rows, slice) and rows.step in {None, 1}:
            first, end, _ = rows.indices(len(self))
            exps: NDArray[np.uint8] = self.read_rows(first, max(first, end))["exps"].copy()
            return exps
        # Not taken from the strided field: NumPy would first copy the whole column.
        taken = self._take(self._row_numbers(rows))
        row_bytes = taken.view(np.uint8).reshape(len(taken), taken.dtype.itemsize)
        return np.ascontiguousarray(row_bytes[:, EXPS_OFFSET : EXPS_OFFSET + 16])

    def moves(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the moves of the given rows, ``u8[n]``: 0 up, 1 down, 2 left, 3 right. A new array.

        In a session without recorded moves (``record_action``), a move is recovered from its board and the
        next one, as for the field ``move``. It is ``tape2048.game.UNKNOWN`` if the next board was not
        recorded, as after a game's last row, and ``AMBIGUOUS`` if two moves explain the boards.

        Args:
            rows: as for :meth:`tokens`, with the same errors.
        """
        if self.tape is not None:
            return self.tape.moves(rows if isinstance(rows, slice) else self._row_numbers(rows))
        numbers = self._row_numbers(rows)
        if self.dtype != ACTION_STEP_DTYPE:
            recovered: NDArray[np.uint8] = load_named("tape2048.session.games:recover_moves")(self, numbers)
            return recovered
        moves: NDArray[np.uint8] = self._take(numbers).view(self.dtype)["action"].copy()
        return moves

    def run_index(self, rows: Rows) -> NDArray[np.int64]:
        """Return the run of each given row, as its ordinal in :attr:`runs`: ``i64[n]``.

        Args:
            rows: as for :meth:`tokens`, with the same errors.
        """
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step == 1:
                return self._owners.between(first, last)
        return self._owners.of(self._row_numbers(rows))

    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the segments of the rows, in row order: ranges of rows that belong to one run each.

        Returns:
            First row, number of rows, and ordinal in :attr:`runs`, ``i64[S]`` each, read-only. In a
            :attr:`contiguous` session, S is the number of runs that have rows.
        """
        return self._owners.segments()

    def numbers_of(self, run: SupportsIndex) -> slice | NDArray[np.int64]:
        """Return the row numbers of a run, in step order. Arguments and errors are as for :meth:`rows_of`.

        Returns:
            A slice if the session is :attr:`contiguous`; otherwise, ascending row numbers, ``i64[rows]``.
        """
        ordinal = run_ordinal(run, len(self.runs))
        if not self.contiguous:
            return self._owners.rows_of(ordinal)
        first = int(self.runs["first_row"][ordinal])
        return slice(first, first + int(self.runs["rows"][ordinal]))

    def rows_of(self, run: SupportsIndex) -> NDArray[np.void]:
        """Return the rows of a run, in step order: a view if they are adjacent in a mapped file.

        Args:
            run: ordinal in :attr:`runs`, 0 <= run < R.

        Raises:
            IndexError: there is no such run.
            TypeError: ``run`` is not an integer.
        """
        return self[self.numbers_of(run)]

    def game(self, run: SupportsIndex) -> Game:
        """Return a run as an object, with its boards, moves and scores; errors as for :meth:`rows_of`.

        Example:
            >>> from tape2048 import Session, sessions
            >>> game = Session.open(sessions("selfplay")[0]).game(0)
            >>> len(game.moves) == game.steps
            True
        """
        ordinal = run_ordinal(run, self.run_count)
        found: Game = load_named("tape2048.session.games:Game")(self, ordinal, ordinal)
        return found

    def games(self) -> Iterator[Game]:
        """Iterate over all runs as :meth:`game` returns them. Nothing of a game is read before it is used."""
        return map(self.game, range(self.run_count))

    def _range(self, first: int, end: int, step: int) -> NDArray[np.void]:
        if step == 1 and self.tape is not None:
            return self.read_rows(first, max(first, end))
        return super()._range(first, end, step)

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Number of rows of each run, ``i64[R]``."""
        return self.runs["rows"].astype(np.int64)

    def _row_numbers(self, rows: Rows) -> NDArray[np.int64]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        return row_numbers(rows, len(self))


def sessions(root: str | os.PathLike[str]) -> list[Path]:
    """List the finished sessions directly in a directory, by start, model tag and counter.

    A directory is listed if it has the name of a session, or holds ``metadata.db`` or rows. Damaged sessions
    are therefore listed, and opening them raises their error. Data sets, and names that start with ``.``
    (sessions that are being written), are skipped.

    Raises:
        MissingPathError: ``root`` does not exist.
        StorageError: ``root`` is not a directory, or cannot be listed.

    Example:
        >>> from tape2048 import sessions
        >>> [path.name.partition("_")[2] for path in sessions("selfplay")]
        ['model=ntuple']
    """
    return [Path(root, name) for name in session_names(root)]


def session_names(root: str | os.PathLike[str]) -> list[str]:
    try:
        with os.scandir(os.fspath(root)) as entries:  # scandir(None) would list the current directory
            found = [entry.name for entry in entries if _is_session(entry)]
    except OSError as error:
        kind = MissingPathError if isinstance(error, FileNotFoundError) else StorageError
        raise kind(f"cannot be listed: {error.strerror or error}", path=root) from error
    return sorted(found, key=name_key)


def _default_load(place: Path) -> Load:
    if is_local(place):
        return "mmap"
    with reading(place):
        files = [place] if place.is_file() else place.rglob("*.npy")
        return "mmap" if is_mapped(place, sum(file.stat().st_size for file in files)) else "ram"


def _is_session(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    try:
        if not entry.is_dir():
            return False
        if SESSION_NAME.fullmatch(entry.name):
            return True
        names = {inner.name for inner in Path(entry.path).iterdir()}
    except OSError:
        return False  # removed, or unreadable and without the name of a session
    return is_session(names) and not is_dataset(Path(entry.path), names)


def _assign(
    metadata: Metadata,
    steps: NDArray[np.void],
    path: Path,
    load: Load,
    *,
    probe: bool,
) -> tuple[NDArray[np.void], Owners]:
    runs, owners = from_run_table(metadata.runs, len(steps), path)
    if not probe:
        return runs, owners
    probed = np.flatnonzero(runs["rows"])
    if load == "mmap" and len(probed) > _PROBED_RUNS:
        probed = probed[np.arange(_PROBED_RUNS) * (len(probed) - 1) // (_PROBED_RUNS - 1)]
    first = runs["first_row"][probed].astype(np.int64)
    last = first + runs["rows"][probed].astype(np.int64) - 1
    ids = runs["run_id"][probed]
    wrong = (steps["run_id"][first] != ids) | (steps["run_id"][last] != ids) | (steps["step_idx"][first] != 0)
    if wrong.any():
        at = int(wrong.argmax())
        begin, end = steps[first[at]], steps[last[at]]
        msg = (
            f"rows {first[at]} to {last[at]} belong to run {begin['run_id']} (step {begin['step_idx']}) and "
            f"run {end['run_id']} (step {end['step_idx']}), expected run {ids[at]} from step 0"
        )
        hint = "restore both files from a copy: the rows and the run table do not belong together"
        raise BookkeepingError(msg, path=path, hint=hint)
    return runs, owners
