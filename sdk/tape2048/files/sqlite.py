"""SQLite files: new files are written atomically, untrusted files are read with bounds.

An untrusted file is opened read-only, and its schema is checked first. Only real tables and stored columns
are read: a view or a virtual table runs code, which may never end. A locked file is an error without a wait,
and the file's size bounds the work.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from tape2048.errors import SchemaError, StorageError
from tape2048.files.opening import DEVICE_HINT
from tape2048.files.reading import open_regular

_OPERATIONS_PER_CALLBACK = 10_000

_PATH_BYTES_MAX = 504  # the longest path that SQLite opens, with links resolved

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_WAL_VERSION = 2
_PAGE_BYTES_MAX = 1 << 16
# SQLite normalises statements: real tables start like this, virtual tables do not.
_CREATE_TABLE = re.compile(r"CREATE TABLE\b", re.IGNORECASE)

_LOCKED_HINT = "let its writer finish, then open it again"
_JOURNAL_HINT = (
    "a writer died in mid-transaction; open the file once with the sqlite3 shell, with write access, "
    "so that SQLite rolls its journal back"
)
_READ_HINTS = {
    sqlite3.SQLITE_BUSY: _LOCKED_HINT,
    sqlite3.SQLITE_LOCKED: _LOCKED_HINT,
    sqlite3.SQLITE_READONLY: _JOURNAL_HINT,
    sqlite3.SQLITE_CANTOPEN: _JOURNAL_HINT,
    sqlite3.SQLITE_TOOBIG: "no recorder writes so large a value: restore the file from a copy",
}


class WorkLimit(NamedTuple):
    """The most operations of SQLite's virtual machine: a base, and more for each byte of the file."""

    base: int
    per_byte: int


@contextlib.contextmanager
def open_untrusted(
    path: str | os.PathLike[str], names: Collection[str], limit: WorkLimit
) -> Iterator[tuple[sqlite3.Connection, dict[str, str]]]:
    """Open an untrusted file read-only; yield the database and its real tables.

    ``names`` are the tables to read, in lower case. The dictionary maps each table's name, in lower case, to
    its ``CREATE`` statement. A damaged or busy file raises SchemaError, also within the block.
    """
    size, expected, wal = _inspect(path)
    # Even a read-only connection to a file in WAL mode leaves -shm and -wal files beside it, unless the file
    # is immutable. The WAL is empty, so the file is complete.
    mode = "ro&immutable=1" if wal else "ro"
    try:
        with (
            contextlib.closing(connect(path, mode)) as database,
            limited_work(database, limit.base + limit.per_byte * size),
        ):
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA query_only = ON")
            # One transaction: one state of the file, and one lock request instead of a request for each
            # query.
            database.execute("BEGIN")
            if size < expected:
                _refuse_a_part(database, path)
            tables = {}
            for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
                if kind == "table" and isinstance(sql, str) and _CREATE_TABLE.match(sql):
                    tables[str(name).lower()] = sql
                elif kind in {"table", "view"} and str(name).lower() in names:
                    raise SchemaError(
                        f"{name} is a {'view' if kind == 'view' else 'virtual table'}; expected a table",
                        path=path,
                        hint="copy its rows into a table: views and virtual tables run code and are not read",
                    )
            yield database, tables
    except UnicodeDecodeError as error:  # damaged names in SQLite's message
        raise SchemaError(f"its schema is damaged: {error}", path=path) from error
    except sqlite3.Error as error:
        code, message = _primary_code(error), f"{error} ({_code_name(error)})"
        if code == sqlite3.SQLITE_IOERR:
            raise StorageError(f"SQLite could not read it: {message}", path=path, hint=DEVICE_HINT) from error
        if code == sqlite3.SQLITE_INTERRUPT:
            message = "its pages are damaged: reading takes more work than any intact file of its size"
            raise SchemaError(message, path=path) from error
        raise SchemaError(
            f"SQLite cannot read it: {message}", path=path, hint=_READ_HINTS.get(code)
        ) from error


def _inspect(path: str | os.PathLike[str]) -> tuple[int, int, bool]:
    """Return the file's size, its size by its header (0: unknown), and whether it is in WAL mode."""
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        head = os.pread(fd, _HEADER_BYTES, 0)
    if not head.startswith(_MAGIC) or len(head) < 20:
        raise SchemaError(f"not a SQLite file: the magic {_MAGIC!r} is missing", path=path, offset=0)
    wal = _WAL_VERSION in {head[18], head[19]}
    beside = Path(f"{os.fspath(path)}-wal")
    if wal and beside.exists() and beside.stat().st_size:
        raise SchemaError(
            f"part of its content is still in {beside.name}; expected one complete file",
            path=path,
            hint=f"let its writer finish, or run: sqlite3 {os.fspath(path)} 'PRAGMA journal_mode = DELETE'",
        )
    # SQLite pads a truncated last page with zeros. The header's number of pages is valid if the two change
    # counters are equal ("The Database Header" in SQLite's file format).
    if len(head) < _HEADER_BYTES or head[24:28] != head[92:96]:
        return size, 0, wal
    page_bytes = int.from_bytes(head[16:18], "big")
    return (
        size,
        int.from_bytes(head[28:32], "big") * (_PAGE_BYTES_MAX if page_bytes == 1 else page_bytes),
        wal,
    )


def _refuse_a_part(database: sqlite3.Connection, path: str | os.PathLike[str]) -> None:
    """Raise SchemaError for a file that is shorter than its header says."""
    database.execute("PRAGMA schema_version").fetchone()
    size, expected, _ = _inspect(path)
    if size < expected:
        raise SchemaError(
            f"found {size} bytes, expected {expected} by its header",
            path=path,
            offset=size,
            hint="the file was cut off: restore it from a copy",
        )


def connect(path: str | os.PathLike[str], mode: str) -> sqlite3.Connection:
    """Open a file without waiting for locks; above SQLite's 504 bytes of path, it is read into memory."""
    if _is_long(path):
        database = sqlite3.connect(":memory:", isolation_level=None)
        if data := Path(path).read_bytes():
            database.deserialize(data)
        return database
    # Always a URI: many builds take a name that starts with "file:" for a URI, and only the mode of a URI
    # prevents SQLite from creating the file. Special bytes are escaped.
    uri = f"file://{quote_from_bytes(os.fsencode(os.path.abspath(path)))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=0.0, isolation_level=None)


def _is_long(path: str | os.PathLike[str]) -> bool:
    return len(os.fsencode(os.path.realpath(path))) > _PATH_BYTES_MAX


@contextlib.contextmanager
def limited_work(
    database: sqlite3.Connection, operations: int, stop: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Raise OperationalError in the block after this many operations, or once ``stop`` is true."""
    calls_left = 1 + operations // _OPERATIONS_PER_CALLBACK

    def too_long() -> bool:
        nonlocal calls_left
        calls_left = -1 if stop() else calls_left - 1
        return calls_left < 0

    database.set_progress_handler(too_long, _OPERATIONS_PER_CALLBACK)
    try:
        yield
    except sqlite3.OperationalError as error:
        if _primary_code(error) == sqlite3.SQLITE_INTERRUPT and calls_left >= 0:
            raise KeyboardInterrupt from error
        raise


def columns_of(
    database: sqlite3.Connection,
    table: str,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    path: str | os.PathLike[str],
) -> set[str]:
    """Return the names of a table's columns, in lower case; raise SchemaError for a missing column."""
    # `hidden` is not 0 for a generated column, whose value is an expression in the file.
    found = {
        str(name).lower(): hidden
        for _, name, _, _, _, _, hidden in database.execute(f"PRAGMA table_xinfo({table})")
    }
    for name in required:
        if name not in found:
            raise SchemaError(f"table {table} has no column {name}; found {', '.join(found)}", path=path)
    for name in (*required, *optional):
        if found.get(name):
            raise SchemaError(f"column {table}.{name} is generated; expected a stored one", path=path)
    return set(found)


def _primary_code(error: sqlite3.Error) -> int:
    # Errors of the Python module itself have no code. The low byte is the primary one.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _code_name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
