"""Writer of SQLite files, in one transaction and without a journal."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tape2048.errors import BookkeepingError, NameTakenError, StorageError
from tape2048.files.opening import DEVICE_HINT, NEW_FILE_MODE, open_fd, storage_error
from tape2048.files.sqlite import _code_name, _is_long, _primary_code, connect

#: More than SQLite writes at once, so that a full quota and the largest size of a file reject it, too.
_PROBE_BYTES = 1 << 20


@contextlib.contextmanager
def fresh_database(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    """Write a new database in one transaction, without a journal and without syncs.

    The caller flushes the file and publishes it by a rename. Until then, no process reads the file, and a
    crash discards it: SQLite's journal and syncs would be wasted. The file is in rollback-journal mode, not
    WAL, and is removed after an error. A duplicate key raises BookkeepingError.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, NEW_FILE_MODE))
    except FileExistsError:
        raise NameTakenError("exists already. A database is never overwritten", path=path) from None
    except OSError as error:
        raise storage_error(error, path, "creating it") from error
    try:
        with contextlib.closing(connect(path, "rw")) as database:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA auto_vacuum = NONE")
            database.execute("BEGIN")
            yield database
            database.execute("COMMIT")
            if _is_long(path):
                Path(path).write_bytes(database.serialize())
    except BaseException as error:
        refused = _refusal(path) if isinstance(error, sqlite3.OperationalError) else None
        with contextlib.suppress(OSError):
            Path(path).unlink()
        if isinstance(error, sqlite3.IntegrityError):
            raise BookkeepingError(f"two rows have one key: {error}", path=path) from error
        if not isinstance(error, sqlite3.Error):
            raise
        code = _primary_code(error)
        if code == sqlite3.SQLITE_FULL:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise storage_error(full, path, "writing it") from error
        if code == sqlite3.SQLITE_CANTOPEN:  # the file that was made just now
            raise storage_error(OSError(errno.EMFILE, f"SQLite: {error}"), path, "opening it") from error
        if refused is not None:
            raise storage_error(refused, path, "writing it") from error
        message = f"SQLite could not write it: {error} ({_code_name(error)})"
        raise StorageError(message, path=path, hint=DEVICE_HINT) from error


def _refusal(path: str | os.PathLike[str]) -> OSError | None:
    """Append to a database that SQLite could not write; return the error, which SQLite does not report."""
    try:
        with open_fd(path, os.O_WRONLY | os.O_APPEND) as fd:
            for _ in range(2):  # the first can be cut short at the limit
                os.write(fd, bytes(_PROBE_BYTES))
    except OSError as error:
        return error
    return None


def insert_rows(
    database: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    at_once: int = 1,
) -> None:
    """Insert rows into a table. Each item of ``rows`` has ``at_once`` rows in it. All names are trusted."""
    marks = ", ".join([f"({', '.join('?' * len(columns))})"] * at_once)
    database.executemany(f"INSERT INTO {table}({', '.join(columns)}) VALUES {marks}", rows)  # noqa: S608
