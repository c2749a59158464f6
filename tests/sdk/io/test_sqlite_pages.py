"""Pages of a table, written past SQLite: SQLite finds in them what it would have written itself."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.errors import BookkeepingError
from tape2048.io import sqlite_pages
from tape2048.io.sqlite import fresh_database

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

BOUNDS = [0, *(sign * (1 << bits) + add for bits in range(5, 63) for sign in (-1, 1) for add in (-1, 0))]
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(BOUNDS) | st.integers(-200, 40_000)


def write(path: Path, table: NDArray[np.int64], page_bytes: int = 4096) -> None:
    path.unlink(missing_ok=True)
    columns = "".join(f", c{column} INT" for column in range(1, table.shape[1]))
    with fresh_database(path, {"t": table}) as database:
        database.execute("COMMIT")
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute("VACUUM")
        database.execute("BEGIN")
        database.execute("CREATE TABLE before(a INT)")
        database.execute(f"CREATE TABLE t(id INTEGER PRIMARY KEY{columns})")
        database.execute("CREATE TABLE after(a TEXT)")
        database.execute("INSERT INTO after VALUES (?)", ("x" * 9000,))


def assert_holds(path: Path, table: NDArray[np.int64]) -> None:
    """SQLite reads the rows, finds each by its key, and can go on with the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT * FROM t").fetchall() == list(map(tuple, table.tolist()))
        assert database.execute("SELECT length(a) FROM after").fetchall() == [(9000,)]
        for row in table[:: max(1, len(table) // 50)].tolist():
            assert database.execute("SELECT * FROM t WHERE id = ?", row[:1]).fetchall() == [tuple(row)]
        database.execute("DELETE FROM t WHERE id % 3 = 0")
        zeros = ", 0" * (table.shape[1] - 1)
        database.execute(f"INSERT OR IGNORE INTO t SELECT -id{zeros} FROM t WHERE id > -9e18")
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@given(
    keys=st.sets(INTEGERS, max_size=300),
    bits=st.lists(st.integers(0, 63), max_size=11),
    page_bytes=st.sampled_from([512, 1024, 4096, 65536]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_integers_are_read_back(
    keys: set[int],
    bits: list[int],
    page_bytes: int,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.db"
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-(2**bit), 2**bit - 1, len(keys), endpoint=True) for bit in bits]
    table = np.array([sorted(keys), *columns], np.int64).T
    write(path, table, page_bytes)
    assert_holds(path, table)


@pytest.mark.parametrize("page_bytes", [512, 4096])
@pytest.mark.parametrize("rows", [0, 1, 2, 55, 56, 57, 20_000, 150_000])
def test_tables_of_any_size(tmp_path: Path, rows: int, page_bytes: int) -> None:
    table = np.arange(8 * rows, dtype=np.int64).reshape(rows, 8)
    table[:, 0] -= rows
    write(tmp_path / "t.db", table, page_bytes)
    assert_holds(tmp_path / "t.db", table)


def test_the_page_that_sqlite_locks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, table = tmp_path / "t.db", np.arange(60_000, dtype=np.int64).reshape(-1, 3)
    for page in (8, 9, 10, 50, 51):
        monkeypatch.setattr(sqlite_pages, "LOCK_OFFSET", (page - 1) * 4096)
        write(path, table)
        content = path.read_bytes()
        assert content[(page - 1) * 4096 : page * 4096] == bytes(4096)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT * FROM t").fetchall() == list(map(tuple, table.tolist()))
            assert database.execute("PRAGMA page_count").fetchone() == (len(content) // 4096,)


def test_keys_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    table = np.array([[1, 0], [2, 0], [2, 0]], np.int64)
    with pytest.raises(BookkeepingError, match="two rows have one key: 2"):
        write(tmp_path / "t.db", table)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
