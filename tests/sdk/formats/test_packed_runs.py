"""The copy of the run table in ``metadata.db``."""

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tape2048.errors import BookkeepingError, ChecksumError
from tape2048.formats import metadata as module
from tape2048.formats.metadata import packed_defect, read_metadata, write_metadata
from tape2048.formats.session import PACKED_SCHEMA, RUN_DTYPE

from ..builders import OUR_SCHEMA, change_database
from ..run_tables import pack, some_blocks, some_runs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


class TestPackedRuns:
    """The copy of the run table: it is what readers go by, and only while it is the table."""

    @pytest.fixture
    def written(self, path: Path) -> Path:
        write_metadata(path, runs=some_runs(50), blocks=some_blocks(1), session={})
        return path

    def test_it_is_the_bytes_of_the_table(self, path: Path) -> None:
        runs = some_runs(50)
        runs["id"][3:] += np.uint64(2**63)  # negative in SQLite, and so first in its order
        write_metadata(path, runs=runs[::-1], blocks=some_blocks(1), session={})
        with closing(sqlite3.connect(path)) as database:
            (data,) = database.execute("SELECT data FROM runs_packed").fetchone()
        assert data == np.concatenate((runs[3:], runs[:3])).tobytes()
        packed = read_metadata(path).runs
        change_database(path, "DELETE FROM runs_packed")
        np.testing.assert_array_equal(read_metadata(path).runs, packed)

    def test_it_is_what_is_read(self, written: Path) -> None:
        runs = some_runs(50)
        runs["max_score"][7] = 4
        pack(written, runs)
        assert read_metadata(written).runs["max_score"][7] == 4

    def test_whoever_changes_the_table_is_believed(self, tmp_path: Path) -> None:
        changes = (
            "UPDATE runs SET max_score = 9 WHERE id = 5",
            "INSERT INTO runs VALUES (1, 2, 3, 9, 8, 0, 3)",
            "REPLACE INTO runs VALUES (5, 2, 3, 9, 8, 0, 3)",
            "INSERT INTO runs VALUES (5, 2, 3, 4, 8, 0, 3) ON CONFLICT DO UPDATE SET max_score = 9",
            "DELETE FROM runs WHERE id = 5",
            "DELETE FROM runs",
            "CREATE TABLE old AS SELECT * FROM runs; DELETE FROM runs; INSERT INTO runs SELECT * FROM old",
        )
        for number, sql in enumerate(changes):
            path = tmp_path / str(number)
            write_metadata(path, runs=some_runs(50), blocks=some_blocks(1), session={})
            change_database(path, sql)
            with closing(sqlite3.connect(path)) as database:
                assert database.execute("SELECT count(*) FROM runs_packed").fetchone() == (0,)
                expected = database.execute("SELECT id, max_score FROM runs ORDER BY id").fetchall()
            assert read_metadata(path).runs[["id", "max_score"]].tolist() == expected

    @pytest.mark.parametrize(
        "sql",
        [
            "DROP TRIGGER runs_update; UPDATE runs SET max_score = 9",
            (
                "DROP TRIGGER runs_update; UPDATE runs SET max_score = 9;"
                "CREATE TRIGGER runs_update AFTER UPDATE ON runs BEGIN SELECT 1; END"
            ),
            (
                f"ALTER TABLE runs RENAME TO old; {OUR_SCHEMA.strip().partition(';')[0]};"
                "INSERT INTO runs SELECT id, seed, steps, 9, highest_tile, first_row, rows FROM old"
            ),
            "DROP TABLE runs_packed; CREATE TABLE runs_packed(crc32, data); UPDATE runs SET max_score = 9",
        ],
    )
    def test_an_unguarded_copy_is_passed_over(self, written: Path, sql: str) -> None:
        with closing(sqlite3.connect(written)) as database:
            (data,) = database.execute("SELECT data FROM runs_packed").fetchone()
        change_database(written, sql)
        change_database(written, "DELETE FROM runs_packed")
        change_database(written, f"INSERT INTO runs_packed VALUES ({zlib.crc32(data)}, x'{data.hex()}')")
        assert set(read_metadata(written).runs["max_score"]) == {9}
        assert packed_defect(written) is None

    def test_a_damaged_copy_is_refused(self, written: Path) -> None:
        whole = written.read_bytes()
        for change, message in {
            "data = zeroblob(1999)": "1999 bytes, CRC-32 .*; expected 40 bytes for each run",
            "data = zeroblob(2000)": "2000 bytes, CRC-32 .*; expected 40 bytes for each run",
            f"data = zeroblob(1999), crc32 = {zlib.crc32(bytes(1999))}": "1999 bytes",
            "data = x''": "0 bytes, CRC-32 0; expected",
            "data = NULL": "NoneType; expected 40 bytes",
            "data = 'text'": "str; expected 40 bytes",
            "crc32 = crc32 + 1": "expected 40 bytes for each run, CRC-32",
            "crc32 = NULL": "CRC-32 None",
        }.items():
            written.write_bytes(whole)
            change_database(written, f"UPDATE runs_packed SET {change}")
            with pytest.raises(ChecksumError, match=message) as caught:
                read_metadata(written)
            assert "DELETE FROM runs_packed" in str(caught.value.hint)
            change_database(written, "DELETE FROM runs_packed")
            np.testing.assert_array_equal(read_metadata(written).runs, some_runs(50))

    @pytest.mark.parametrize("max_score", range(4))  # CRC-32s with and without their highest bit
    def test_it_is_bound_to_its_file(self, path: Path, max_score: int) -> None:
        runs = some_runs(50)
        runs["max_score"] = max_score
        write_metadata(path, runs=runs, blocks=some_blocks(1), session={})
        change_database(path, "VACUUM")
        with closing(sqlite3.connect(path)) as database:
            dump = "\n".join(database.iterdump())
            data = database.execute("SELECT data FROM runs_packed").fetchone()[0]
        with closing(sqlite3.connect(again := path.with_name("again.db"))) as database:
            database.executescript(dump.replace(",32768,", ",4,"))
            assert database.execute("SELECT data FROM runs_packed").fetchone()[0] == data
        assert set(read_metadata(again).runs["highest_tile"]) == {4}
        assert packed_defect(again) is None
        pack(path, some_runs(50))
        assert read_metadata(path).runs["max_score"][7] == 2**32 - 1, "kept by VACUUM"

    def test_validation_compares_the_two(self, written: Path) -> None:
        assert packed_defect(written) is None
        runs = some_runs(50)
        runs["max_score"][7:9] = 4
        pack(written, runs)
        defect = packed_defect(written)
        assert isinstance(defect, BookkeepingError)
        assert "2 of 50 runs differ" in str(defect)
        pack(written, runs[:49])
        assert "49 runs, the table runs 50" in str(packed_defect(written))
        change_database(written, "UPDATE runs SET seed = seed")  # which empties the copy
        assert packed_defect(written) is None

    def test_a_table_too_large_for_one_value_has_no_copy(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PACKED_BYTES_MAX", 49 * RUN_DTYPE.itemsize)
        write_metadata(path, runs=some_runs(50), blocks=some_blocks(1), session={})
        with closing(sqlite3.connect(path)) as database:
            assert (
                database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'runs_%'").fetchall() == []
            )
        np.testing.assert_array_equal(read_metadata(path).runs, some_runs(50))

    def test_every_statement_is_kept_as_it_was_written(self, written: Path) -> None:
        with closing(sqlite3.connect(written)) as database:
            kept = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")}
        assert kept.issuperset(PACKED_SCHEMA)
