"""Reader of ``metadata.db``: run table, session facts and block checksums in one SQLite file.

:data:`tape2048.session.layout.SCHEMA` defines the tables. SQLite's integers are signed, of 64 bits:
``id`` and ``seed`` keep their bit pattern (a seed >= 2**63 is negative in SQLite). All other columns are
counts >= 0.

Files of other programs may lack the columns ``first_row`` and ``rows`` and the tables ``blocks`` and
``session``, which the original design did not have. They are untrusted: see :mod:`tape2048.files.sqlite`.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import BookkeepingError, ChecksumError, SchemaError
from tape2048.files.sqlite import WorkLimit, columns_of, open_untrusted
from tape2048.session.layout import (
    BLOCK_DTYPE,
    PACKED_SCHEMA,
    RUN_DTYPE,
    SCHEMA,
    TAPE_SCHEMA,
    TIMES_DTYPE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Operations of SQLite's virtual machine to read a file: a base, and more for each byte. A run takes about 30
#: operations and at least 12 bytes, so an intact file stays below 3 a byte. A damaged tree of pages could
#: otherwise be walked for ever.
READ_LIMIT = WorkLimit(base=1_000_000, per_byte=16)

_SEED_COLUMNS = ("id", "seed", "steps", "max_score", "highest_tile")
_ROW_COLUMNS = ("first_row", "rows")
_RUN_COLUMNS = (*_SEED_COLUMNS, *_ROW_COLUMNS)
_START = "start_board"
#: A run by the columns of the file, with the bytes of ``RUN_DTYPE``.
_COLUMN_DTYPE = np.dtype(
    [({"run_id": "id", "score": "max_score"}.get(name, name), kind) for name, kind, *_ in RUN_DTYPE.descr]
)
_START_DTYPE = np.dtype([*_COLUMN_DTYPE.descr, (_START, "<u8")])
_BLOCK_COLUMNS = ("first_row", "rows", "crc32c")
_FACT_COLUMNS = ("meta_key", "meta_value")
# Tables in the order of the schema: required and optional columns.
_TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "runs": (_SEED_COLUMNS, (*_ROW_COLUMNS, _START)),
    "session": (_FACT_COLUMNS, ()),
    "blocks": (_BLOCK_COLUMNS, ()),
}
# The columns of this package's tables, by their CREATE statements.
_OWN_COLUMNS = {
    statement.strip(): {*required, *optional} - ({_START} if schema is SCHEMA else set())
    for schema in (TAPE_SCHEMA, SCHEMA)
    for statement, (required, optional) in zip(schema.split(";")[:-1], _TABLES.values(), strict=True)
}
_PACKED_TABLE, *_PACKED_TRIGGERS = PACKED_SCHEMA
# Kept as bit patterns; every other column is a count.
_BIT_PATTERNS = frozenset({"id", "seed", _START})

#: Most bytes of the packed copy of the run table: 10 million runs. Reading it takes twice as much memory.
PACKED_BYTES_MAX = 400_000_000

#: Rows that are fetched at a time: as Python objects, they take ten times their size.
_FETCHED_ROWS = 1 << 16

#: Most bytes of the values in the table ``session``. A recorder writes some kilobytes.
FACTS_BYTES_MAX = 16 << 20


def _packed_hint(path: str | os.PathLike[str]) -> str:
    by_the_table = f"sqlite3 {os.fspath(path)} 'DELETE FROM runs_packed'"  # noqa: S608  (for a user's shell)
    return (
        "restore the file from a copy. If the table runs is correct, you can delete its packed copy instead "
        f"(the checksum in the manifest then no longer matches): {by_the_table}"
    )


class Metadata(NamedTuple):
    """The content of a ``metadata.db``.

    ``runs`` (``RUN_DTYPE[R]``) are in the file's order; ``first_row`` and ``rows`` are 0 unless ``has_rows``.
    ``blocks`` are by ``first_row``; None without the table. ``start_boards`` (``u64[R]``) is None without the
    column.
    """

    runs: NDArray[np.void]
    blocks: NDArray[np.void] | None
    session: dict[str, Any]
    has_rows: bool
    start_boards: NDArray[np.uint64] | None = None


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    """Read a ``metadata.db``, without changing the disk or waiting for locks.

    Raises:
        SchemaError: the file is not SQLite, damaged, being written, or has an unmerged journal; or the table
            ``runs`` or a column is missing, a view or virtual table replaces a table, or a value has the
            wrong type.
        BookkeepingError: a count is out of range, or an id is repeated.
        ChecksumError: the packed copy of the run table is damaged.
        StorageError: the operating system could not read it.

    Example:
        >>> from pathlib import Path
        >>> found = read_metadata(next(Path("selfplay").glob("2*/metadata.db")))
        >>> len(found.runs), found.has_rows
        (200, True)
    """
    with open_untrusted(path, _TABLES, READ_LIMIT) as (database, tables):
        if "runs" not in tables:
            found = ", ".join(sorted(tables)) or "none"
            raise SchemaError(f"no table runs: found {found}, expected at least runs", path=path)
        columns = _columns(database, tables, "runs", path)
        has_rows = columns.issuperset(_ROW_COLUMNS)
        runs, starts = _read_packed(database, tables, path) or _read_runs(database, columns, path)
        blocks = None
        if "blocks" in tables:
            _columns(database, tables, "blocks", path)
            blocks = _read_table(database, "blocks", _BLOCK_COLUMNS, BLOCK_DTYPE, path)
            blocks = blocks[np.argsort(blocks["first_row"], kind="stable")]
        session = {}
        if "session" in tables:
            _columns(database, tables, "session", path)
            session = _read_facts(database, path, lenient=not has_rows)
    ids = runs["run_id"]
    if not (ids[1:] > ids[:-1]).all():  # tables of other programs may lack the primary key
        ids = np.sort(ids)
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if twice.size:
            raise BookkeepingError(
                f"run id {ids[twice[0]]} occurs more than once in the table runs", path=path
            )
    return Metadata(runs, blocks, session, has_rows, starts)


def read_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the table ``session`` alone; values that are not JSON stay text. See :func:`read_metadata`."""
    with open_untrusted(path, _TABLES, READ_LIMIT) as (database, tables):
        if "session" not in tables:
            return {}
        _columns(database, tables, "session", path)
        return _read_facts(database, path, lenient=True)


def read_run_times(path: str | os.PathLike[str]) -> NDArray[np.void]:
    """Read the optional table ``run_times``, ``TIMES_DTYPE[n]`` by ``id``; empty without the table."""
    name, columns = "run_times", TIMES_DTYPE.names or ()
    with open_untrusted(path, [name], READ_LIMIT) as (database, tables):
        if name not in tables:
            return np.zeros(0, TIMES_DTYPE)
        columns_of(database, name, columns, (), path)
        _check_types(database, name, columns[:2], path)
        rows = database.execute("SELECT id, start_unix_s, CAST(elapsed_s AS REAL) FROM run_times ORDER BY id")
        times = [(key % 2**64, start % 2**64, elapsed or 0.0) for key, start, elapsed in rows]
        return np.array(times, TIMES_DTYPE)


def packed_defect(path: str | os.PathLike[str]) -> BookkeepingError | None:
    """Compare the packed run table, which readers prefer, with ``runs``; None if equal or no valid copy."""
    with open_untrusted(path, _TABLES, READ_LIMIT) as (database, tables):
        packed = _read_packed(database, tables, path)
        if packed is None:
            return None
        table = _read_runs(database, _columns(database, tables, "runs", path), path)
    if len(packed[0]) != len(table[0]):
        what = f"runs_packed has {len(packed[0])} runs, the table runs {len(table[0])}"
        return BookkeepingError(what, path=path, hint=_packed_hint(path))
    for copied, runs in zip(packed, table, strict=True):
        if copied is None or runs is None:  # no start boards, in both
            continue
        wrong = np.flatnonzero(copied != runs)
        if wrong.size:
            return BookkeepingError(
                f"runs_packed has {copied[wrong[0]]} where the table runs has {runs[wrong[0]]}; "
                f"{wrong.size} of {counted(len(runs), 'run')} differ",
                path=path,
                hint=_packed_hint(path),
            )
    return None


def _read_runs(
    database: sqlite3.Connection, found: set[str], path: str | os.PathLike[str]
) -> tuple[NDArray[np.void], NDArray[np.uint64] | None]:
    if not found.issuperset(_ROW_COLUMNS):
        return _read_table(database, "runs", _SEED_COLUMNS, _COLUMN_DTYPE, path).view(RUN_DTYPE), None
    if _START not in found:
        return _read_table(database, "runs", _RUN_COLUMNS, _COLUMN_DTYPE, path).view(RUN_DTYPE), None
    table = _read_table(database, "runs", (*_RUN_COLUMNS, _START), _START_DTYPE, path)
    runs = np.empty(len(table), _COLUMN_DTYPE)
    for name in _RUN_COLUMNS:
        runs[name] = table[name]
    return runs.view(RUN_DTYPE), np.ascontiguousarray(table[_START])


def _read_packed(
    database: sqlite3.Connection, tables: Mapping[str, str], path: str | os.PathLike[str]
) -> tuple[NDArray[np.void], NDArray[np.uint64] | None] | None:
    if tables.get("runs_packed") != _PACKED_TABLE or tables["runs"] not in _OWN_COLUMNS:
        return None
    triggers = database.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'runs'")
    if not {sql for (sql,) in triggers.fetchall()}.issuperset(_PACKED_TRIGGERS):
        return None
    lengths = database.execute("SELECT length(data) FROM runs_packed").fetchall()
    if not lengths or (lengths[0][0] or 0) > PACKED_BYTES_MAX:
        return None
    crc, data = database.execute("SELECT crc32, data FROM runs_packed").fetchone()
    has_starts = _START in _OWN_COLUMNS[tables["runs"]]
    run_bytes = (_START_DTYPE if has_starts else RUN_DTYPE).itemsize
    if not isinstance(data, bytes) or len(data) % run_bytes or crc != zlib.crc32(data):
        is_bytes = isinstance(data, bytes)
        what = f"{len(data)} bytes, CRC-32 {zlib.crc32(data)}" if is_bytes else type(data).__name__
        raise ChecksumError(
            f"runs_packed has {what}; expected {run_bytes} bytes for each run, CRC-32 {crc}",
            path=path,
            hint=_packed_hint(path),
        )
    if database.execute("PRAGMA user_version").fetchone()[0] % 2**32 != crc:
        return None
    count = len(data) // run_bytes
    starts = np.frombuffer(data, "<u8", offset=count * RUN_DTYPE.itemsize) if has_starts else None
    return np.frombuffer(data, RUN_DTYPE, count), starts


def _columns(
    database: sqlite3.Connection, tables: Mapping[str, str], table: str, path: str | os.PathLike[str]
) -> set[str]:
    return _OWN_COLUMNS.get(tables[table]) or columns_of(database, table, *_TABLES[table], path)


def _read_table(
    database: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    dtype: np.dtype[Any],
    path: str | os.PathLike[str],
) -> NDArray[np.void]:
    _check_types(database, table, columns, path)
    found = database.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608  (our own names)
    groups = iter(lambda: found.fetchmany(_FETCHED_ROWS), [])
    values = np.concatenate([np.empty((0, len(columns)), np.int64), *map(np.array, groups)])
    rows = np.zeros(len(values), dtype)
    if not len(values):
        return rows
    lows, highs = values.min(axis=0).tolist(), values.max(axis=0).tolist()
    for index, name in enumerate(columns):
        largest = min(2 ** (8 * dtype[name].itemsize), 2**63) - 1
        if name not in _BIT_PATTERNS and not 0 <= lows[index] <= highs[index] <= largest:
            column = values[:, index]
            row = int(np.flatnonzero((column < 0) | (column > largest))[0])
            raise BookkeepingError(
                f"{table}.{name} is {column[row]} where {columns[0]} is {values[row, 0]}; "
                f"expected 0 to {largest}",
                path=path,
            )
        rows[name] = values[:, index].astype(dtype[name])
    return rows


def _check_types(
    database: sqlite3.Connection, table: str, columns: tuple[str, ...], path: str | os.PathLike[str]
) -> None:
    """Raise SchemaError for a value that is not an integer: SQLite's columns hold any type."""
    odd = " OR ".join(f"typeof({name}) <> 'integer'" for name in columns)
    kinds = ", ".join(f"typeof({name})" for name in columns)
    query = f"SELECT {columns[0]}, {kinds} FROM {table} WHERE {odd} LIMIT 1"  # noqa: S608
    if (found := database.execute(query).fetchone()) is not None:
        name, kind = next(pair for pair in zip(columns, found[1:], strict=True) if pair[1] != "integer")
        raise SchemaError(
            f"{table}.{name} is {kind} where {columns[0]} is {found[0]!r}; expected an integer", path=path
        )


def _read_facts(
    database: sqlite3.Connection, path: str | os.PathLike[str], *, lenient: bool
) -> dict[str, Any]:
    """Read the table ``session``; with ``lenient`` (a third-party file), text that is not JSON stays text."""
    facts: dict[str, Any] = {}
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, FACTS_BYTES_MAX)
    held = 0
    for key, value in database.execute("SELECT meta_key, meta_value FROM session"):
        held += len(key if isinstance(key, str) else "") + len(value if isinstance(value, str) else "")
        if held > FACTS_BYTES_MAX:
            found = f"the table session has more than {FACTS_BYTES_MAX} bytes of text"
            raise SchemaError(f"{found}; expected no more", path=path)
        if not isinstance(key, str) or not isinstance(value, str):
            if lenient and isinstance(key, str) and not isinstance(value, bytes):
                facts[key] = value
                continue
            raise SchemaError(
                f"the table session has {key!r} with a value of type {type(value).__name__}; expected text",
                path=path,
            )
        try:
            facts[key] = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            if not lenient:
                raise SchemaError(
                    f"the value of {key!r} in session is not JSON: {error}", path=path
                ) from error
            facts[key] = value
    return facts
