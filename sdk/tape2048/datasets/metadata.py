"""``metadata.db`` of a data set directory: the run table in SQLite.

The table ``runs`` and its indexes are those of the original design. A second table, ``tape2048_runs``, holds
the board after the last move, and the seed of a recorded game; readers may ignore it. The reader does not
trust the file (:mod:`tape2048.io.sqlite`).
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from tape2048.datasets.run_table import RUN_TABLE_DTYPE, RunTable
from tape2048.errors import BookkeepingError, SchemaError
from tape2048.io.sqlite import WorkLimit, columns_of, fresh_database, insert_rows, open_untrusted

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

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


class Extras(NamedTuple):
    """Facts of runs that the table ``runs`` does not hold, run by run.

    Attributes:
        final_board: ``u64[R]``: the board after the last move.
        has_final: ``bool[R]``: whether it is known.
        seed: ``u64[R]``: the game's seed.
        has_seed: ``bool[R]``: whether it is known.
    """

    final_board: NDArray[np.uint64]
    has_final: NDArray[np.bool_]
    seed: NDArray[np.uint64]
    has_seed: NDArray[np.bool_]

    @classmethod
    def unknown(cls, runs: int) -> Extras:
        """Make the extras of runs with nothing known."""
        values, known = np.zeros((2, runs), np.uint64), np.zeros((2, runs), np.bool_)
        return cls(values[0], known[0], values[1], known[1])

    def choose(self, ordinals: NDArray[Any]) -> Extras:
        """Return those of some runs."""
        return Extras(*(column[ordinals] for column in self))

    @classmethod
    def joined(cls, parts: list[Extras]) -> Extras:
        """Join several."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def write_runs_db(path: str | os.PathLike[str], table: RunTable, extras: Extras) -> None:
    """Write a new file, as :func:`tape2048.io.sqlite.fresh_database`.

    Args:
        path: the file.
        table: the runs, in the order of their rows, with no number above 2**63 - 1.
        extras: of the same runs.
    """
    rows = table.rows
    columns = {name: rows[name].tolist() for name in RUN_TABLE_DTYPE.names or ()}
    columns["engine"] = table.engine_names()
    records = zip(*(columns[_COLUMN_OF.get(name, name)] for name in _REQUIRED), strict=True)
    finals = _nullable(extras.final_board, extras.has_final)
    seeds = _nullable(extras.seed, extras.has_seed)
    known = (
        (run_id, final, seed)
        for run_id, final, seed in zip(columns["id"], finals, seeds, strict=True)
        if final is not None or seed is not None
    )
    with fresh_database(path) as database:
        tables, *indexes = SCHEMA.split("CREATE INDEX")
        for statement in tables.split(";")[:2]:
            database.execute(statement)
        insert_rows(database, "runs", _REQUIRED, itertools.chain.from_iterable(records))
        insert_rows(database, _EXTRA, _EXTRA_COLUMNS, itertools.chain.from_iterable(known))
        for statement in indexes:  # last: sorting once is faster than keeping sorted
            database.execute(f"CREATE INDEX{statement.rstrip().rstrip(';')}")


def read_runs_db(path: str | os.PathLike[str]) -> tuple[RunTable, Extras]:
    """Read a whole ``metadata.db``, without writes to the disk and without waiting for locks.

    Returns:
        The runs by first row, and their extras.

    Raises:
        SchemaError: not SQLite, damaged, being written, or with a journal that is not yet merged.
        SchemaError: no table ``runs``, a column missing, a view or virtual table in a table's place,
            or a value of the wrong type.
        BookkeepingError: a count out of range, or extras of an unknown run.
        StorageError: the operating system could not read it.
    """
    with open_untrusted(path, _TABLES, READ_LIMIT) as (database, tables):
        if "runs" not in tables:
            raise SchemaError(f"no table runs; it has {', '.join(sorted(tables)) or 'none'}", path=path)
        columns_of(database, "runs", _REQUIRED, (), path)
        table = _read_table(database, path)
        extras = Extras.unknown(len(table))
        if _EXTRA in tables:
            columns_of(database, _EXTRA, _EXTRA_COLUMNS, (), path)
            _read_extras(database, table, extras, path)
    return table, extras


def _nullable(values: NDArray[np.uint64], known: NDArray[np.bool_]) -> list[int | None]:
    signed = values.astype(np.int64).tolist()
    return [value if has else None for value, has in zip(signed, known.tolist(), strict=True)]


def _read_columns(
    database: sqlite3.Connection, table: str, columns: dict[str, Any], path: str | os.PathLike[str]
) -> list[list[Any]]:
    """Read columns as lists by one statement, so that all have the same order.

    ``columns`` holds the type of each expression's list, which is strict, unlike SQLite's columns.
    """
    arrays = ", ".join(f"json_group_array({expression})" for expression in columns)
    try:
        texts = database.execute(f"SELECT {arrays} FROM {table}").fetchone()  # noqa: S608  (our own names)
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        # SQLite has one error code for all of these; only the message tells a value from the file.
        if isinstance(error, sqlite3.OperationalError) and not re.search("BLOB|UTF-8", str(error)):
            raise
        raise SchemaError(
            f"a value in the table {table} is neither a number nor text: {error}", path=path
        ) from error
    found = []
    for text, (expression, kind) in zip(texts, columns.items(), strict=True):
        try:
            found.append(msgspec.json.decode(text, type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
    """Make the run table, sorted by first row, of the table ``runs``; ``counts`` as ``_COLUMN_OF``.

    Raises:
        BookkeepingError: a count out of its field's range.
        SchemaError: ``elapsed_s`` does not fit a float32.
    """
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


def _read_extras(
    database: sqlite3.Connection, table: RunTable, extras: Extras, path: str | os.PathLike[str]
) -> None:
    numbers, *values_of = _read_columns(
        database, _EXTRA, {"id": list[int], "final_board": list[int | None], "seed": list[int | None]}, path
    )
    ordinal_of = {run_id: ordinal for ordinal, run_id in enumerate(table.rows["id"].tolist())}
    unknown = [run_id for run_id in numbers if run_id not in ordinal_of]
    if unknown:
        raise BookkeepingError(f"{_EXTRA} has run {unknown[0]}, which the table runs lacks", path=path)
    ordinals = np.array([ordinal_of[run_id] for run_id in numbers], np.int64)
    targets = ((extras.final_board, extras.has_final), (extras.seed, extras.has_seed))
    for (values, known), found in zip(targets, values_of, strict=True):
        known[ordinals] = [value is not None for value in found]
        values[ordinals] = np.array([value or 0 for value in found], np.int64).astype(np.uint64)
