"""The run table of a pack.dat or a data set, in memory and in ``metadata.db`` (SQLite).

Both formats hold the metadata of a run (:class:`tape2048.runs.run.RunMeta`) and the range of its rows. In
memory, the name of the engine, which thousands of runs share, is an index into a list of names.

In ``metadata.db`` of a data set, the table ``runs`` and its indexes follow the original design. A second
table, ``tape2048_runs``, holds the board after the last move, and the seed of a recorded game. Readers may
ignore it. The reader does not trust the file (:mod:`tape2048.files.sqlite`).
"""

from __future__ import annotations

import hashlib
import sqlite3
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from tape2048.errors import BookkeepingError, FieldError, SchemaError
from tape2048.files.sqlite import WorkLimit, columns_of, open_untrusted
from tape2048.files.sqlite_writer import fresh_database, insert_rows
from tape2048.players import facts_of_engine, identity_of
from tape2048.runs.run import RunMeta
from tape2048.session.layout import RUN_DTYPE
from tape2048.session.run_table import check_tiles, ordinals_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray


#: A run. ``engine`` is an index into :attr:`RunTable.engines`, or :data:`NO_ENGINE`. ``final_board``, the
#: board after the last move, is valid if ``has_final`` is true, and ``seed`` if ``has_seed`` is true.
RUN_TABLE_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("first_row", "<u8"),
        ("steps", "<u4"),
        ("max_score", "<u8"),
        ("highest_tile", "<u4"),
        ("start_unix_s", "<u8"),
        ("elapsed_s", "<f4"),
        ("engine", "<i4"),
        ("final_board", "<u8"),
        ("seed", "<u8"),
        ("has_final", "?"),
        ("has_seed", "?"),
    ]
)

NO_ENGINE = -1
_U32_MAX = 2**32 - 1
_FACTS = ["steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s"]


class Identities(NamedTuple):
    """The players and the seeds of a table's runs, ``[R]`` each; ``player`` is an index in ``facts``."""

    facts: list[Mapping[str, Any]]
    player: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    known: NDArray[np.bool_]


class RunTable:
    """Runs, ``RUN_TABLE_DTYPE[R]``, and the names of their engines, which ``rows["engine"]`` refers to."""

    def __init__(self, rows: NDArray[np.void], engines: Sequence[str] = ()) -> None:
        self.rows = rows
        self.rows.flags.writeable = False
        self.engines = tuple(engines)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<RunTable: {len(self):,} runs, engines {', '.join(self.engines) or 'unknown'}>"

    def meta(self, ordinal: int) -> RunMeta:
        row = self.rows[ordinal]
        return RunMeta(
            steps=int(row["steps"]),
            start_unix_s=int(row["start_unix_s"]),
            elapsed_s=float(row["elapsed_s"]),
            max_score=int(row["max_score"]),
            highest_tile=int(row["highest_tile"]),
            engine=None if row["engine"] == NO_ENGINE else self.engines[row["engine"]],
        )

    def engine_names(self) -> list[str | None]:
        return [None if index == NO_ENGINE else self.engines[index] for index in self.rows["engine"].tolist()]

    @cached_property
    def identities(self) -> Identities:
        """The players and the seeds of the runs, read from the names of their engines."""
        engines = (*self.engines, None)  # NO_ENGINE, -1, is the last one
        facts = [facts_of_engine(engine) for engine in engines]
        names = [tuple(each.values()) for each in facts]
        ordinals = {name: i for i, name in enumerate(dict.fromkeys(names))}
        whole = [identity_of(engine) for engine in engines]
        seeds = np.array([0 if each is None else each.seed for each in whole], np.uint64)
        has_seed = np.array([each is not None for each in whole])
        is_player = np.array(["player_sha256" in each for each in facts])
        of_run = self.rows["engine"]
        return Identities(
            facts=[*dict(zip(names, facts, strict=True)).values()],
            player=np.array([ordinals[name] for name in names])[of_run],
            seeds=np.where(has_seed[of_run], seeds[of_run], self.rows["seed"]),
            known=has_seed[of_run] | (self.rows["has_seed"] & is_player[of_run]),
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
        """Return the indices of runs in the table by their ids, ``i64[n]``; -1 for unknown ids."""
        return ordinals_of(self.rows["id"], ids)

    def to_runs(self) -> NDArray[np.void]:
        """Return the table as ``RUN_DTYPE[R]``. A score above 2**32 - 1 becomes that number."""
        runs = np.zeros(len(self), RUN_DTYPE)
        for name in ("id", "first_row", "steps", "highest_tile"):
            runs[name] = self.rows[name]
        runs["rows"], runs["max_score"] = self.rows["steps"], np.minimum(self.rows["max_score"], _U32_MAX)
        runs["seed"] = self.identities.seeds
        return runs

    def choose(self, chosen: NDArray[Any]) -> RunTable:
        return RunTable(self.rows[chosen], self.engines)

    @classmethod
    def of_metas(cls, metas: Sequence[RunMeta], **columns: Any) -> RunTable:
        """Make a table of runs stored one after the other, with ids from 0; ``columns`` are other fields."""
        for name in ("steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s"):
            columns[name] = [getattr(meta, name) for meta in metas]
        return cls.of_columns(columns, [meta.engine for meta in metas]).renumbered()

    @classmethod
    def of_columns(cls, columns: dict[str, Any], engines: Iterable[str | None]) -> RunTable:
        """Make a table from a mapping of columns, without ``engine``, and from each run's engine."""
        names: dict[str, int] = {}
        found = [NO_ENGINE if name is None else names.setdefault(name, len(names)) for name in engines]
        rows = np.zeros(len(found), RUN_TABLE_DTYPE)
        for name, values in columns.items():
            rows[name] = values
        rows["engine"] = found
        return cls(rows, tuple(names))

    @classmethod
    def joined(cls, tables: Sequence[RunTable]) -> RunTable:
        """Join several tables. Ids and first rows do not change."""
        if len(tables) == 1:
            return tables[0]
        names: dict[str, int] = {}
        parts = [np.zeros(0, RUN_TABLE_DTYPE)]
        for table in tables:
            index = np.array([names.setdefault(name, len(names)) for name in table.engines] + [NO_ENGINE])
            part = table.rows.copy()
            part["engine"] = index[table.rows["engine"]]  # NO_ENGINE, -1, is the last one
            parts.append(part)
        return cls(np.concatenate(parts), tuple(names))

    def renumbered(self, first_id: int = 0, first_row: int = 0) -> RunTable:
        """Return the table with consecutive ids, and with runs stored one after the other."""
        rows = self.rows.copy()
        rows["id"] = np.arange(first_id, first_id + len(rows))
        rows["first_row"] = first_row + np.cumsum(rows["steps"], dtype=np.uint64) - rows["steps"]
        return RunTable(rows, self.engines)

    def check(self, rows: int, id_max: int, path: str | os.PathLike[str]) -> None:
        """Raise BookkeepingError or FieldError for rows not covered once, duplicate ids, or ids too high."""
        check_tiles(self.rows, self.rows["steps"], rows, path)
        ids = np.sort(self.rows["id"])
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if twice.size:
            raise BookkeepingError(f"found the run id {ids[twice[0]]} more than once", path=path)
        if ids.size and int(ids[-1]) > id_max:
            raise FieldError(f"found the run id {ids[-1]}, expected at most {id_max}", path=path)


SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    first_step_idx INTEGER NOT NULL,
    num_steps INTEGER NOT NULL,
    max_score INTEGER NOT NULL,
    highest_tile INTEGER NOT NULL,
    engine TEXT,
    start_time INTEGER,
    elapsed_s REAL
);
CREATE TABLE tape2048_runs (id INTEGER PRIMARY KEY, final_board BIGINT, seed BIGINT);
CREATE INDEX idx_score ON runs(max_score);
CREATE INDEX idx_steps ON runs(num_steps)
"""

#: A run takes about 60 operations to read and at least 20 bytes; see :mod:`tape2048.session.metadata`.
READ_LIMIT = WorkLimit(1_000_000, 16)

_COUNTS = ("id", "first_step_idx", "num_steps", "max_score", "highest_tile")
_REQUIRED = (*_COUNTS, "engine", "start_time", "elapsed_s")
_COLUMN_OF: Final = {
    "id": "id",
    "first_step_idx": "first_row",
    "num_steps": "steps",
    "max_score": "max_score",
    "highest_tile": "highest_tile",
    "start_time": "start_unix_s",
}
#: The largest number of each field. SQLite's integers have 63 bits and a sign.
_HIGHEST = {field: min(2**63 - 1, int(np.iinfo(RUN_TABLE_DTYPE[field]).max)) for field in _COLUMN_OF.values()}
_EXTRA = "tape2048_runs"
_EXTRA_COLUMNS = ("id", "final_board", "seed")
_TABLES = frozenset({"runs", _EXTRA})


def write_runs_db(path: str | os.PathLike[str], table: RunTable) -> None:
    """Write the table to a new file, as ``fresh_database`` does; no number may be above 2**63 - 1."""
    columns = {name: table.rows[name].tolist() for name in RUN_TABLE_DTYPE.names or ()}
    columns["engine"] = table.engine_names()
    records = zip(*(columns[_COLUMN_OF.get(name, name)] for name in _REQUIRED), strict=True)
    pairs = (("final_board", "has_final"), ("seed", "has_seed"))
    finals, seeds = (
        [value if has else None for value, has in zip(values.tolist(), columns[known], strict=True)]
        for values, known in ((table.rows[name].astype(np.int64), known) for name, known in pairs)
    )
    facts = zip(columns["id"], finals, seeds, strict=True)
    with fresh_database(path) as database:
        tables, *indexes = SCHEMA.split("CREATE INDEX")
        for statement in tables.split(";")[:2]:
            database.execute(statement)
        insert_rows(database, "runs", _REQUIRED, records)
        known_facts = (fact for fact in facts if fact[1:] != (None, None))
        insert_rows(database, _EXTRA, _EXTRA_COLUMNS, known_facts)
        for statement in indexes:  # after the rows: sorting once is faster than keeping them sorted
            database.execute(f"CREATE INDEX{statement.rstrip().rstrip(';')}")


def read_runs_db(path: str | os.PathLike[str]) -> RunTable:
    """Read the runs, sorted by first row, without writing to the disk or waiting for locks."""
    with open_untrusted(path, _TABLES, READ_LIMIT) as (database, tables):
        if "runs" not in tables:
            found = ", ".join(sorted(tables)) or "no tables"
            raise SchemaError(f"found {found}, expected the table runs", path=path)
        columns_of(database, "runs", _REQUIRED, (), path)
        columns: dict[str, Any] = {name: list[int] for name in _COLUMN_OF if name != "start_time"}
        columns |= {"ifnull(start_time, 0)": list[int], "ifnull(elapsed_s, 0)": list[float]}
        columns |= {"engine": list[str | None]}
        *counts, elapsed, engines = _read_columns(database, "runs", columns, path)
        table = table_of_columns(counts, elapsed, engines, path)
        if _EXTRA in tables:
            columns_of(database, _EXTRA, _EXTRA_COLUMNS, (), path)
            table = _read_extras(database, table, path)
    return table


def _read_columns(
    database: sqlite3.Connection, table: str, columns: dict[str, Any], path: str | os.PathLike[str]
) -> list[list[Any]]:
    """Read expressions as lists of these types; raise SchemaError for a value of another type."""
    try:
        rows = database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()  # noqa: S608  (our own names)
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        # SQLite has one error code for all of these errors: only the message tells a bad text.
        if isinstance(error, sqlite3.OperationalError) and "UTF-8" not in str(error):
            raise
        raise SchemaError(f"a text in the table {table} is not UTF-8: {error}", path=path) from error
    found = []
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    for column, (expression, kind) in zip(values, columns.items(), strict=True):
        try:
            found.append(msgspec.convert(column, kind))
        except msgspec.ValidationError as error:
            raise SchemaError(f"{table}.{expression}: {error}", path=path) from error
    return found


def table_of_columns(
    counts: list[list[int]], elapsed: list[float], engines: list[str | None], path: str | os.PathLike[str]
) -> RunTable:
    """Make the run table by first row; ``counts`` are the columns of ``_COLUMN_OF``, in this order."""
    columns: dict[str, Any] = {}
    for (name, field), column in zip(_COLUMN_OF.items(), counts, strict=True):
        highest = _HIGHEST[field]
        if column and not 0 <= min(column) <= max(column) <= highest:
            at, value = next((i, value) for i, value in enumerate(column) if not 0 <= value <= highest)
            raise BookkeepingError(
                f"runs.{name} is {value} where id is {counts[0][at]}; expected 0 to {highest}", path=path
            )
        columns[field] = column
    with np.errstate(over="ignore"):
        columns["elapsed_s"] = np.array(elapsed, np.float64).astype(np.float32)
    if not np.isfinite(columns["elapsed_s"]).all():
        raise SchemaError("runs.elapsed_s has a value that is not finite as float32", path=path)
    table = RunTable.of_columns(columns, engines)
    # A run without steps comes before the run that starts at its row.
    return table.choose(np.lexsort([table.rows[name] for name in ("id", "steps", "first_row")]))


def _read_extras(database: sqlite3.Connection, table: RunTable, path: str | os.PathLike[str]) -> RunTable:
    numbers, finals, seeds = _read_columns(
        database, _EXTRA, {"id": list[int], "final_board": list[int | None], "seed": list[int | None]}, path
    )
    rows = table.rows.copy()
    ordinal_of = {run_id: ordinal for ordinal, run_id in enumerate(rows["id"].tolist())}
    unknown = [run_id for run_id in numbers if run_id not in ordinal_of]
    if unknown:
        raise BookkeepingError(f"{_EXTRA} has run {unknown[0]}, which is not in the table runs", path=path)
    ordinals = [ordinal_of[run_id] for run_id in numbers]
    for name, known, found in (("final_board", "has_final", finals), ("seed", "has_seed", seeds)):
        rows[known][ordinals] = [value is not None for value in found]
        rows[name][ordinals] = np.array([value or 0 for value in found], np.int64).astype(np.uint64)
    return RunTable(rows, table.engines)
