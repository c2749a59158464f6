"""``metadata.db`` of a data set directory: the run table in SQLite.

The table ``runs`` and its indexes are those of the original design. A second table, ``tape2048_runs``, holds
the board after the last move, and the seed of a recorded game; readers may ignore it. The reader does not
trust the file (:mod:`tape2048.io.sqlite`).
"""

from __future__ import annotations

import itertools
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tape2048.datasets.run_table import RUN_TABLE_DTYPE, RunTable
from tape2048.errors import BookkeepingError, SchemaError
from tape2048.io.sqlite import WorkLimit, columns_of, fresh_database, insert_rows, open_untrusted

if TYPE_CHECKING:
    import os

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

#: A run takes about 60 operations to read and at least 20 bytes; see :mod:`tape2048.formats.metadata`.
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
#: The largest number of a field: SQLite has integers of 63 bits and a sign.
_HIGHEST = {field: min(2**63 - 1, int(np.iinfo(RUN_TABLE_DTYPE[field]).max)) for field in _COLUMN_OF.values()}
_EXTRA = "tape2048_runs"
_EXTRA_COLUMNS = ("id", "final_board", "seed")
_TABLES = frozenset({"runs", _EXTRA})


def write_runs_db(path: str | os.PathLike[str], table: RunTable) -> None:
    """Write a new file, as :func:`tape2048.io.sqlite.fresh_database`; no number may be above 2**63 - 1."""
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
        insert_rows(database, "runs", _REQUIRED, itertools.chain.from_iterable(records))
        known_facts = (fact for fact in facts if fact[1:] != (None, None))
        insert_rows(database, _EXTRA, _EXTRA_COLUMNS, itertools.chain.from_iterable(known_facts))
        for statement in indexes:  # last: sorting once is faster than keeping sorted
            database.execute(f"CREATE INDEX{statement.rstrip().rstrip(';')}")


def read_runs_db(path: str | os.PathLike[str]) -> RunTable:
    """Read the runs, by first row, without writes to the disk and without waiting for locks."""
    with open_untrusted(path, _TABLES, READ_LIMIT) as (database, tables):
        if "runs" not in tables:
            raise SchemaError(f"no table runs; it has {', '.join(sorted(tables)) or 'none'}", path=path)
        columns_of(database, "runs", _REQUIRED, (), path)
        table = _read_table(database, path)
        if _EXTRA in tables:
            columns_of(database, _EXTRA, _EXTRA_COLUMNS, (), path)
            table = _read_extras(database, table, path)
    return table


def _read_columns(
    database: sqlite3.Connection, table: str, columns: dict[str, Any], path: str | os.PathLike[str]
) -> list[list[Any]]:
    """Read expressions as lists of these types, which are strict, unlike SQLite's columns."""
    try:
        rows = database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()  # noqa: S608  (our own names)
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        # SQLite has one error code for all of these; only the message tells a value from the file.
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


def _read_table(database: sqlite3.Connection, path: str | os.PathLike[str]) -> RunTable:
    """Read the runs, sorted by first row."""
    expressions: dict[str, Any] = {name: list[int] for name in _COLUMN_OF if name != "start_time"}
    *counts, start, elapsed, engines = _read_columns(
        database,
        "runs",
        {
            **expressions,
            "ifnull(start_time, 0)": list[int],
            "ifnull(elapsed_s, 0)": list[float],
            "engine": list[str | None],
        },
        path,
    )
    return table_of_columns([*counts, start], elapsed, engines, path)


def table_of_columns(
    counts: list[list[int]], elapsed: list[float], engines: list[str | None], path: str | os.PathLike[str]
) -> RunTable:
    """Make the run table, sorted by first row, of the table ``runs``; ``counts`` as ``_COLUMN_OF``."""
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
        raise SchemaError("runs.elapsed_s holds a number that is not a finite float32", path=path)
    return RunTable.of_columns(columns, engines).ordered()


def _read_extras(database: sqlite3.Connection, table: RunTable, path: str | os.PathLike[str]) -> RunTable:
    numbers, finals, seeds = _read_columns(
        database, _EXTRA, {"id": list[int], "final_board": list[int | None], "seed": list[int | None]}, path
    )
    rows = table.rows.copy()
    ordinal_of = {run_id: ordinal for ordinal, run_id in enumerate(rows["id"].tolist())}
    unknown = [run_id for run_id in numbers if run_id not in ordinal_of]
    if unknown:
        raise BookkeepingError(f"{_EXTRA} has run {unknown[0]}, which the table runs lacks", path=path)
    ordinals = [ordinal_of[run_id] for run_id in numbers]
    for name, known, found in (("final_board", "has_final", finals), ("seed", "has_seed", seeds)):
        rows[known][ordinals] = [value is not None for value in found]
        rows[name][ordinals] = np.array([value or 0 for value in found], np.int64).astype(np.uint64)
    return RunTable(rows, table.engines)
