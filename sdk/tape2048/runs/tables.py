"""Runs in a table, and their steps in rows of 32 bytes: what a data set and a pack.dat have in common.

Both formats hold the metadata of a run (:class:`tape2048.runs.run.RunMeta`) and the range of its rows. Branch
values in rows are within [0, 1]: a step with a value outside is normalised. The value of the chosen move
becomes 1.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import shutil
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.corpus import Corpus
from tape2048.errors import BookkeepingError, EmptyCorpusError, FieldError
from tape2048.files.durable import fsync_path
from tape2048.files.row_source import run_ordinal
from tape2048.loader.buffers import load_rows
from tape2048.loader.duplicates import distinct_runs
from tape2048.loader.phases import ALL
from tape2048.loader.row_map import NO_TAPE
from tape2048.loader.run_columns import RunColumns
from tape2048.runs.a2run2 import VALUE_MAX, legal_bits, normalize
from tape2048.runs.engine_text import facts_of_engine, identity_of, join_seed
from tape2048.runs.run import Run, RunMeta, RunSource, Tables, check_step_count, numbered
from tape2048.session.layout import RUN_DTYPE, FileEntry
from tape2048.session.metadata import Metadata
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.run_table import check_tiles, ordinals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    from tape2048.files.npy import Load
    from tape2048.loader.gatherer import Gatherer
    from tape2048.runs.run import SkippedRun
    from tape2048.session.foreign import ForeignRows
    from tape2048.session.session import Session

ROW_BYTES = 32
_U32_MAX = 2**32 - 1
_HALF = np.float32(0.5)

#: A run. ``engine`` is an index into :attr:`RunTable.engines`, -1 for no engine. ``final_board``, the board
#: after the last move, is valid if ``has_final`` is true, and ``seed`` if ``has_seed`` is true.
RUN_TABLE_DTYPE = np.dtype(
    [("run_id", "<u8"), ("first_row", "<u8"), ("steps", "<u4"), ("score", "<u8"), ("highest_tile", "<u4"),
     ("start_unix_s", "<u8"), ("elapsed_s", "<f4"), ("engine", "<i4"), ("final_board", "<u8"),
     ("seed", "<u8"), ("has_final", "?"), ("has_seed", "?")]
)  # fmt: skip
_FACTS = ["steps", "score", "highest_tile", "start_unix_s", "elapsed_s"]
_META = ["steps", "max_score", *_FACTS[2:]]  # their names in a RunMeta


class Identities(NamedTuple):
    """The facts of each player; and of each run the player's index, the seed, and whether both are known."""

    facts: list[Mapping[str, Any]]
    player: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    known: NDArray[np.bool_]


class RunTable:
    """Runs, ``RUN_TABLE_DTYPE[R]`` (``rows``), and the names of their ``engines``, which many runs share."""

    def __init__(self, rows: NDArray[np.void], engines: Sequence[str] = ()) -> None:
        self.rows, self.engines = rows, tuple(engines)
        self.rows.flags.writeable = False

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any], engines: Iterable[str | None]) -> RunTable:
        """Make a table from a mapping of columns, without ``engine``, and from each run's engine."""
        names: dict[str, int] = {}
        found = [-1 if name is None else names.setdefault(name, len(names)) for name in engines]
        rows = np.zeros(len(found), RUN_TABLE_DTYPE)
        for name, values in (*columns.items(), ("engine", found)):
            rows[name] = values
        return cls(rows, tuple(names))

    @classmethod
    def of_metas(cls, metas: Sequence[RunMeta], **columns: Any) -> RunTable:
        """Make a table of runs stored one after the other, with ids from 0; ``columns`` are other fields."""
        columns |= {
            name: [getattr(meta, its) for meta in metas] for name, its in zip(_FACTS, _META, strict=True)
        }
        return cls.of_columns(columns, [meta.engine for meta in metas]).renumbered()

    @classmethod
    def joined(cls, tables: Sequence[RunTable]) -> RunTable:
        """Join several tables. Ids and first rows do not change."""
        names: dict[str, int] = {}
        rows = np.concatenate([np.zeros(0, RUN_TABLE_DTYPE), *(table.rows for table in tables)])
        index = [[*(names.setdefault(name, len(names)) for name in each.engines), -1] for each in tables]
        if tables:
            engines = [np.array(own)[each.rows["engine"]] for own, each in zip(index, tables, strict=True)]
            rows["engine"] = np.concatenate(engines)
        return cls(rows, tuple(names))

    def renumbered(self, first_id: int = 0, first_row: int = 0) -> RunTable:
        """Return the table with consecutive ids, and with runs stored one after the other."""
        rows = self.rows.copy()
        rows["run_id"] = np.arange(first_id, first_id + len(rows))
        rows["first_row"] = first_row + np.cumsum(rows["steps"], dtype=np.uint64) - rows["steps"]
        return RunTable(rows, self.engines)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<RunTable: {len(self):,} runs, engines {', '.join(self.engines) or 'unknown'}>"

    def engine_names(self) -> list[str | None]:
        names = (*self.engines, None)  # the index -1 is the last one
        return [names[index] for index in self.rows["engine"].tolist()]

    def meta(self, ordinal: int) -> RunMeta:
        row, names = self.rows[ordinal], (*self.engines, None)
        return RunMeta(**dict(zip(_META, row[_FACTS].item(), strict=True)), engine=names[row["engine"]])

    @cached_property
    def identities(self) -> Identities:
        """The players and the seeds of the runs, read from the names of their engines."""
        engines = (*self.engines, None)
        facts = [facts_of_engine(engine) for engine in engines]
        names = [tuple(each.values()) for each in facts]
        ordinals = {name: i for i, name in enumerate(dict.fromkeys(names))}
        whole = [identity_of(engine) for engine in engines]
        of_run = self.rows["engine"]
        seeds = np.array([0 if each is None else each.seed for each in whole], np.uint64)[of_run]
        has_seed = np.array([each is not None for each in whole])[of_run]
        is_player = np.array(["player_sha256" in each for each in facts])[of_run]
        return Identities(
            [*dict(zip(names, facts, strict=True)).values()],
            np.array([ordinals[name] for name in names])[of_run],
            np.where(has_seed, seeds, self.rows["seed"]),
            has_seed | (self.rows["has_seed"] & is_player),
        )

    def hash_numbers(self) -> NDArray[np.uint64]:
        """Return the numbers that splits hash, ``u64[R]``: seeds, or for unknown games a metadata digest."""
        numbers = np.where(self.identities.known, self.identities.seeds, np.uint64(0))
        facts, names = self.rows[_FACTS].tolist(), self.engine_names()
        for i in np.flatnonzero(~self.identities.known).tolist():
            digest = hashlib.sha256(repr((names[i], facts[i])).encode()).digest()
            numbers[i] = int.from_bytes(digest[:8], "little")
        return numbers

    def starts(self) -> NDArray[np.float64]:
        """Return the start of each run, in seconds since 1970; NaN if it is unknown."""
        start = self.rows["start_unix_s"].astype(np.float64)
        return np.where(start > 0, start, np.nan)

    def ordinals(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of runs in the table by their ids, ``i64[n]``; -1 for unknown ids."""
        return ordinals_of(self.rows["run_id"], ids)

    def check(self, rows: int, path: str | os.PathLike[str]) -> None:
        """Check that the runs cover each row once, and that their ids are different and fit ``run_id``."""
        check_tiles(self.rows, self.rows["steps"], rows, path)
        check_step_count(int(self.rows["steps"].max(initial=0)), path)
        ids = np.sort(self.rows["run_id"])
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if twice.size:
            raise BookkeepingError(f"found the run id {ids[twice[0]]} more than once", path=path)
        if ids.size and int(ids[-1]) > _U32_MAX:
            raise FieldError(f"found the run id {ids[-1]}, expected at most {_U32_MAX}", path=path)

    def to_metadata(self) -> Metadata:
        """Return the table as the metadata of a session. A score above 2**32 - 1 becomes that number."""
        runs = np.zeros(len(self), RUN_DTYPE)
        for name in ("run_id", "first_row", "steps", "highest_tile"):
            runs[name] = self.rows[name]
        runs["rows"], runs["score"] = self.rows["steps"], np.minimum(self.rows["score"], _U32_MAX)
        runs["seed"] = self.identities.seeds
        return Metadata(runs, None, {}, has_rows=True)


class OpenTable(NamedTuple):
    """An open data set or pack.dat: its rows, its runs with all their facts, and facts of the file."""

    rows: ForeignRows
    table: RunTable
    manifest: Any = None  #: of a data set, if it has one
    padded: int = 0  #: steps of a pack.dat whose padding is not zero
    is_pack: bool = False  #: whether this is a pack.dat

    @property
    def metadata(self) -> Metadata:
        """The run table as the metadata of a session."""
        return self.table.to_metadata()

    def shifted(self, shift: int) -> OpenTable:
        """Return the same with ``shift`` added to the run ids in the tables, but not in the rows."""
        rows, table = copy.copy(self.rows), self.table.rows.copy()
        rows.runs = rows.runs.copy()
        rows.runs["run_id"] += np.uint64(shift)
        table["run_id"] += np.uint64(shift)
        return self._replace(rows=rows, table=RunTable(table, self.table.engines))


class ShardWriter:
    """Rows in one file, or in files of ``shard_rows``, whose names have their numbers in place of ``{}``.

    ``rows`` counts the rows so far, and ``files`` maps each finished file to its size and checksum.
    """

    def __init__(
        self, directory: Path, name: str, dtype: np.dtype[Any], header_bytes: int, shard_rows: int | None
    ) -> None:
        self._directory, self._name, self._shard_rows = directory, name, shard_rows
        self._how = dtype, header_bytes
        self._file: NpyWriter | None = None
        self.rows = 0
        self.files: dict[str, FileEntry] = {}

    def _begin(self) -> NpyWriter:
        self._file = NpyWriter(self._directory / self._name.format(len(self.files)), *self._how)
        return self._file

    def _end(self, file: NpyWriter) -> None:
        self.files[self._name.format(len(self.files))] = file.finish()
        self._file = None

    def write(self, rows: NDArray[Any]) -> None:
        """Append rows, or their bytes, ``u8[n]``."""
        size = self._how[0].itemsize // rows.itemsize  # elements of a row
        while len(rows):
            file = self._file or self._begin()
            left = len(rows) if self._shard_rows is None else (self._shard_rows - file.rows) * size
            file.append(rows[:left])
            self.rows += len(rows[:left]) // size
            rows = rows[left:]
            if file.rows == self._shard_rows:
                self._end(file)

    def link(self, shard: Path, rows: int, entry: FileEntry) -> None:
        """Add a finished shard of another directory, by a link if the file system can, else by a copy."""
        name = self._name.format(len(self.files))
        try:
            os.link(shard, self._directory / name)
        except OSError:
            shutil.copyfile(shard, self._directory / name)
            fsync_path(self._directory / name)
        self.files[name] = entry
        self.rows += rows

    def finish(self) -> dict[str, FileEntry]:
        """Finish the last file and return all files. There is at least one, even without rows."""
        if self._file is not None or not self.files:
            self._end(self._file or self._begin())
        return self.files

    def close(self) -> None:
        """Close an unfinished file."""
        if self._file is not None:
            self._file.close()


def values_within_one(
    run: Run, masks: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.uint8], int]:
    """Return values in [0, 1] of the legal moves, ``masks``; the moves with one; the normalised steps."""
    if run.has_branches is None or run.branch_values is None or run.branch_legal is None:
        return np.zeros((len(run), 4), np.float32), np.zeros(len(run), np.uint8), 0
    legal = np.where(run.has_branches, masks & run.branch_legal, 0).astype(np.uint8)
    values = np.where(legal_bits(legal), run.branch_values, np.float32(0))
    outside = np.any(~((values >= 0) & (values <= 1)), axis=1)
    if outside.any():
        values[outside] = normalize(np.where(outside[:, None], values, 0), legal)[outside]
    return values, legal, int(outside.sum())


def restore_values(
    values: NDArray[np.float32],
    legal: NDArray[np.uint8],
    moves: NDArray[np.uint8],
    has: NDArray[np.bool_] | None = None,
    half: np.float32 = _HALF,
) -> tuple[NDArray[np.bool_], int]:
    """Restore, in place, the values of the chosen moves, which rows replace by 1.0.

    The normalised values of a step contain a 0 and a ``1 - 2**-23``, or are all 0.5: the values of the other
    moves determine the chosen value. It is lost, and becomes ``1 - 2**-23``, if both ends are among the other
    moves, and in a run with values in another form. ``legal`` are the moves with values, and ``has`` the
    steps with values; None: where the chosen value is not 0. Return ``has`` and the number of lost values.
    """
    chosen = values[np.arange(len(moves)), moves]
    if has is None:
        has = chosen != 0
        legal[~has] = 0
    steps = np.flatnonzero(has & (chosen >= VALUE_MAX))
    kept, chosen_move = values[steps], moves[steps]
    others = legal_bits(legal[steps]) & (chosen_move[:, None] != np.arange(4))
    lowest = (others & (kept == 0)).any(axis=1)
    highest = (others & (kept == VALUE_MAX)).any(axis=1)
    halves = (others <= (kept == half)).all(axis=1)  # all of them
    some = others.any(axis=1)
    values[steps, chosen_move] = np.where(
        some & halves, half, np.where(some & highest & ~lowest, np.float32(0), VALUE_MAX)
    )
    normal = (others <= (kept <= VALUE_MAX)).all() and (lowest | highest | halves).all()
    # With both ends among the others, the chosen value may have been anything.
    return has, int((highest & lowest & ~(some & halves)).sum()) if normal else len(steps)


def refuse_empty(skipped: Sequence[SkippedRun], path: str | os.PathLike[str]) -> None:
    """Raise EmptyCorpusError if a target has no run because all were skipped."""
    if skipped:
        run, error, message = msgspec.structs.astuple(skipped[0])
        text = f"0 of {counted(len(skipped), 'run')} can be written here. Nothing was written. The first: "
        hint = "repair the runs, or choose other runs"
        raise EmptyCorpusError(f"{text}{run}: {error}: {message}", path=path, hint=hint)


class TableCorpus(Corpus):
    """A corpus of data sets, with the records of the files: 32 bytes, with the branch values.

    It has all views, fields and batches of a corpus. Selections by ``filter_by_...`` may be empty.
    """

    #: The type of the records of :meth:`get_batch`.
    row_dtype: ClassVar[np.dtype[Any]]
    _half: ClassVar[np.float32] = _HALF  # 0.5 as the rows hold it
    _mask_tells: ClassVar[bool] = False  # whether ev_legal of a record is 0 at steps without values

    def _become(
        self,
        sessions: Sequence[Session],
        load: Load,
        progress: Callable[[int, int], object] | None = None,
        *,
        copies: bool = False,
    ) -> None:
        runs = RunColumns.of(tuple(sessions))
        chosen = np.ones(len(runs), np.bool_) if copies else np.concatenate(distinct_runs(sessions))
        runs = runs if chosen.all() else runs.take(chosen)
        self._set_view(load_rows(tuple(sessions), runs, load, progress=progress))

    @property
    def is_view(self) -> bool:
        """Whether a filter, a phase or a selection made this."""
        tables = self._tables
        return tables.chosen is not None or self.game_phase != ALL or tables.selected is not None

    @cached_property
    def run_table(self) -> RunTable:
        """The runs with all facts of the files, in the order of :attr:`runs`."""
        tables = []
        for ordinal, session in enumerate(self.sessions):
            table = session.dataset.table
            mine = table.ordinals(self.runs["run_id"][self.runs["session"] == ordinal])
            tables.append(RunTable(table.rows[mine], table.engines))
        return RunTable.joined(tables)

    @cached_property
    def _raw(self) -> Gatherer:
        from tape2048.loader.gatherer import Gatherer

        raw, rows = copy.copy(self._tables), self._tables.rowmap
        none = rows.address[:0]
        vars(raw)["rowmap"] = rows._replace(row_bytes=ROW_BYTES, strides=none, board=none, tape=NO_TAPE)
        return Gatherer(raw, (), np.empty(0, np.int64))

    def get_batch(self, indices: ArrayLike, out: NDArray[np.void] | None = None) -> NDArray[np.void]:
        """Return the records with these numbers, or of a mask, as ``row_dtype[n]``; errors: as of a corpus.

        ``out`` is a contiguous ``row_dtype[n]`` to write into; ValueError if it has another type or shape.
        """
        numbers = self._row_numbers(indices)
        if out is None:
            out = np.empty(len(numbers), self.row_dtype)
        elif out.dtype != self.row_dtype or not out.flags.c_contiguous or out.shape != numbers.shape:
            expected = f"{self.row_dtype}[{len(numbers)}]"
            raise ValueError(f"out is {out.dtype}{list(out.shape)}; expected {expected}")
        self._gather(numbers, out)
        return out

    def _gather(self, numbers: NDArray[np.int64], out: NDArray[np.void]) -> None:
        self._raw.gather_records(numbers, out)

    def _range(self, first: int, end: int, step: int) -> NDArray[np.void]:
        return self.get_batch(np.arange(first, end, step, dtype=np.int64))

    def run(self, ordinal: int, final_board: int | None = None) -> Run:
        """Return one run of :attr:`runs` as a :class:`Run`; IndexError for an unknown one.

        ``final_board`` is the board after its last move; None: the stored one, or the candidate of
        :func:`tape2048.game.moves.last_boards`.
        """
        return self.run_and_losses(ordinal, final_board)[0]

    def run_and_losses(self, ordinal: int, final_board: int | None = None) -> tuple[Run, bool, int]:
        """Return a run as :meth:`run`, whether its final board is certain, and the number of lost values.

        A value is lost if :func:`tape2048.runs.tables.restore_values` cannot restore it.
        """
        from tape2048.game.moves import last_boards

        place = run_ordinal(ordinal, len(self.runs))
        record, row = self.run_table.rows[place], self.runs[place]
        rows = self._records_of(self.sessions[row["session"]], int(row["first_row"]), int(row["rows"]))
        boards, moves, values, legal = (
            np.ascontiguousarray(rows[name]) for name in ("board", "move", "ev_values", "ev_legal")
        )
        if moves.max(initial=0) > 3:
            found = f"run {row['run_id']} has a move {moves.max()}; expected 0 to 3"
            raise FieldError(found, path=self.sessions[row["session"]].path)
        has, lost = restore_values(values, legal, moves, legal != 0 if self._mask_tells else None, self._half)
        certain = final_board is not None or bool(record["has_final"]) or not len(boards)
        if final_board is None and record["has_final"]:
            final_board = int(record["final_board"])
        elif final_board is None and len(boards):
            finals, sure = last_boards(boards[-1:], moves[-1:])
            final_board, certain = int(finals[0]), bool(sure[0])
        meta = self.run_table.meta(ordinal)
        if record["has_seed"]:
            meta = msgspec.structs.replace(meta, engine=join_seed(meta.engine, int(record["seed"])))
        branches = {"branch_values": values, "branch_legal": legal, "has_branches": has} if has.any() else {}
        return Run.from_boards(boards, moves, final_board or 0, meta, **branches), certain, lost

    def _records_of(self, session: Session, first: int, count: int) -> NDArray[np.void]:
        assert session.foreign is not None
        return session.foreign.take(session.foreign.index_of(np.arange(first, first + count)))

    def refuse_parts(self) -> None:
        """Raise ValueError for a view of parts of games, which no file holds."""
        if (self.row_counts != self.runs["rows"]).any():
            text = f"{self!r} has parts of games; expected whole games"
            raise ValueError(f"{text}: write it without phase() and select()")

    def filter_by_score(self, min_score: int | None = None, max_score: int | None = None) -> Self:
        """Make a view of the runs with a final score between two bounds, both included."""
        return self._between("score", min_score, max_score)

    def filter_by_length(self, min_steps: int | None = None, max_steps: int | None = None) -> Self:
        """Make a view of the runs with a number of steps between two bounds, both included."""
        return self._between("steps", min_steps, max_steps)

    def filter_by_highest_tile(self, min_tile: int | None = None, max_tile: int | None = None) -> Self:
        """Make a view of the runs with a highest tile (8192, not 13) between two bounds, both included."""
        return self._between("highest_tile", min_tile, max_tile)

    def _between(self, name: str, low: int | None, high: int | None) -> Self:
        values = self.run_table.rows[name]
        mask: NDArray[np.bool_] = np.ones(len(values), np.bool_)
        return self._of_runs(mask & (low is None or values >= low) & (high is None or values <= high))

    def filter_by_engine(self, *engines: str | None) -> Self:
        """Make a view of the runs of these engines; None selects the runs without an engine."""
        known = np.array([name in engines for name in (*self.run_table.engines, None)], np.bool_)
        return self._of_runs(known[self.run_table.rows["engine"]])

    def _source(self) -> tuple[Callable[..., TableCorpus], tuple[Any, ...]]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        selected, chosen = self._tables.selected, self._tables.chosen
        packed = None if selected is None else zlib.compress(selected.tobytes(), 1)
        return _restore, (*self._source(), chosen, self.game_phase, packed)


def _restore(
    make: Callable[..., TableCorpus], args: tuple[Any, ...], chosen: Any, phase: Any, packed: bytes | None
) -> TableCorpus:
    selected = None if packed is None else np.frombuffer(bytearray(zlib.decompress(packed)), np.uint64)
    return make(*args)._view(chosen, phase, selected)  # noqa: SLF001 - of this module


def run_source(rows: TableCorpus, path: Path, kind: str) -> Tables:
    """Make the source of runs of an open data set or pack.dat."""

    def serve(served: list[NDArray[np.int64]]) -> RunSource:
        (session,), (mine,) = rows.sessions, served
        ids = rows.runs["run_id"]  # without copies
        chosen = ordinals_of(ids, session.runs["run_id"][mine])
        of_runs = {"ev_legal", "ev_mask", "ev_q", "ev_values"}  # become branch values
        names = {*session.columns} - of_runs
        source = numbered(
            path, kind, len(chosen),
            lambda i: f"{path}: run {ids[chosen[i]]}", lambda i: rows.run_and_losses(int(chosen[i])),
        )  # fmt: skip
        return dataclasses.replace(source, columns=tuple(sorted(names)))

    return Tables(rows.sessions, serve)
