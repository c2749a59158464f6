"""Writer of metadata.db, and of the manifest that completes a session."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048._version import __version__
from tape2048.base.text import json_bytes, pretty_json
from tape2048.errors import BookkeepingError
from tape2048.files.durable import fsync_dir, write_file
from tape2048.files.opening import open_fd
from tape2048.files.reading import crc32c_file
from tape2048.files.sqlite_writer import fresh_database, insert_rows
from tape2048.session.layout import (
    BLOCK_DTYPE,
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    PACKED_SCHEMA,
    RUN_DTYPE,
    SCHEMA,
    TAPE_SCHEMA,
    TIMES_DTYPE,
    TIMES_SCHEMA,
    FileEntry,
    Manifest,
)
from tape2048.session.metadata import (
    _BIT_PATTERNS,
    _BLOCK_COLUMNS,
    _COLUMN_DTYPE,
    _FACT_COLUMNS,
    _RUN_COLUMNS,
    _START,
    PACKED_BYTES_MAX,
)
from tape2048.session.public_facts import public_facts

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

#: Rows in one statement of SQL: 50 take 40% of the time of one after the other.
_ROWS_AT_ONCE = 50


def write_metadata(
    path: str | os.PathLike[str],
    *,
    runs: NDArray[np.void],
    blocks: NDArray[np.void],
    session: Mapping[str, object],
    start_boards: NDArray[np.uint64] | None = None,
    run_times: NDArray[np.void] | None = None,
) -> None:
    """Write a new ``metadata.db``, as :func:`tape2048.files.sqlite_writer.fresh_database`.

    Args:
        path: the file, which must not exist.
        runs: ``RUN_DTYPE[R]``, in any order.
        blocks: ``BLOCK_DTYPE[B]``, in any order.
        session: JSON-serialisable values by key.
        start_boards: ``u64[R]`` of ``runs``, for the column ``start_board``.
        run_times: ``TIMES_DTYPE[n]``, for the optional table of this name.

    Raises:
        NameTakenError: ``path`` exists.
        DiskFullError: no space is left.
        StorageError: SQLite or the operating system could not write.
        BookkeepingError: a run id or a first row is repeated, or a count is above 2**63 - 1.
        ValueError: an array has another dtype.
        TypeError: JSON cannot hold a value of ``session``.

    Example:
        >>> from pathlib import Path
        >>> from tape2048.session import read_metadata
        >>> found = read_metadata(next(Path("selfplay").glob("2*/metadata.db")))
        >>> write_metadata("copy.db", runs=found.runs, blocks=found.blocks, session=found.session)
        >>> (read_metadata("copy.db").runs == found.runs).all().item()
        True
    """
    _check_table(runs, RUN_DTYPE)
    _check_table(blocks, BLOCK_DTYPE)
    by_column, schema = runs.view(_COLUMN_DTYPE), SCHEMA
    run_columns = {name: by_column[name] for name in _RUN_COLUMNS}
    if start_boards is not None:
        run_columns, schema = {**run_columns, _START: start_boards}, TAPE_SCHEMA
    facts = [(key, json_bytes(value).decode()) for key, value in session.items()]
    with fresh_database(path) as database:
        for statement in schema.split(";"):
            database.execute(statement)
        _insert(database, "runs", run_columns, path)
        _insert_packed(database, runs, start_boards)
        _insert(database, "blocks", {name: blocks[name] for name in _BLOCK_COLUMNS}, path)
        insert_rows(database, "session", _FACT_COLUMNS, facts)
        if run_times is not None and len(run_times):
            database.execute(TIMES_SCHEMA)
            keys = run_times[["id", "start_unix_s"]].astype("<i8,<i8").tolist()
            rows = (
                (*key, elapsed) for key, elapsed in zip(keys, run_times["elapsed_s"].tolist(), strict=True)
            )
            insert_rows(database, "run_times", TIMES_DTYPE.names or (), rows)


def _check_table(rows: NDArray[np.void], dtype: np.dtype[Any]) -> None:
    if rows.dtype != dtype or rows.ndim != 1:
        raise ValueError(
            f"found {rows.dtype} of shape {rows.shape}; expected a one-dimensional array of {dtype.descr}"
        )


def _insert(
    database: sqlite3.Connection,
    table: str,
    columns: Mapping[str, NDArray[Any]],
    path: str | os.PathLike[str],
) -> None:
    """Insert columns in the order of the first, the key: SQLite then only appends, and fills every page."""
    for name, column in columns.items():
        if name not in _BIT_PATTERNS and column.size and int(column.max()) >= 2**63:
            raise BookkeepingError(f"{name} is {column.max()}; SQLite holds at most 2**63 - 1", path=path)
    # Modulo 2**64, which keeps the bit pattern.
    values = np.stack([column.astype(np.int64) for column in columns.values()], axis=1)
    values = values[np.argsort(values[:, 0], kind="stable")]
    whole = values[: len(values) // _ROWS_AT_ONCE * _ROWS_AT_ONCE].reshape(-1, _ROWS_AT_ONCE * len(columns))
    insert_rows(database, table, [*columns], (row.tolist() for row in whole), at_once=_ROWS_AT_ONCE)
    insert_rows(database, table, [*columns], values[len(whole) * _ROWS_AT_ONCE :].tolist())


def _insert_packed(
    database: sqlite3.Connection, runs: NDArray[np.void], starts: NDArray[np.uint64] | None
) -> None:
    if runs.nbytes + (0 if starts is None else starts.nbytes) > PACKED_BYTES_MAX:
        return
    for statement in PACKED_SCHEMA:
        database.execute(statement)
    order = np.argsort(runs["run_id"].view(np.int64), kind="stable")
    data = runs[order].tobytes() + (b"" if starts is None else starts[order].tobytes())
    crc = zlib.crc32(data)
    database.execute("INSERT INTO runs_packed(crc32, data) VALUES (?, ?)", (crc, data))
    # An edited dump creates the tables before the triggers, so it restores a stale copy, but not this number.
    database.execute(f"PRAGMA user_version = {crc - ((crc & 1 << 31) << 1)}")  # SQLite's is signed


def finish_session(
    directory: Path,
    rows_files: Mapping[str, FileEntry],
    runs: NDArray[np.void],
    blocks: NDArray[np.void],
    facts: dict[str, Any],
    *,
    start_boards: NDArray[np.uint64] | None = None,
    run_times: NDArray[np.void] | None = None,
    anchor_rows: int | None = None,
) -> int:
    """Write and flush ``metadata.db``, the manifest and the directory; return the bytes of all files.

    The session keeps the facts that :func:`public_facts` returns.
    """
    database = directory / METADATA_DB
    facts = public_facts(facts)
    how: dict[str, Any] = {"start_boards": start_boards, "run_times": run_times}
    write_metadata(database, runs=runs, blocks=blocks, session=facts, **how)
    files = {**rows_files, METADATA_DB: flush_entry(database)}
    text = pretty_json(Manifest(FORMAT_VERSION, facts["rows"], len(runs), files, anchor_rows, __version__))
    write_file(directory / MANIFEST, text)
    fsync_dir(directory)
    return sum(entry.bytes for entry in files.values()) + len(text)


def flush_entry(path: Path) -> FileEntry:
    """Flush a file, and return its size and checksum; OSError of the operating system."""
    with open_fd(path, os.O_RDONLY) as fd:
        os.fsync(fd)
        size = os.fstat(fd).st_size
        return FileEntry(size, crc32c_file(fd, size, path))
