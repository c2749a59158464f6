import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tape2048.errors import (
    BookkeepingError,
    ChecksumError,
    DiskFullError,
    NameTakenError,
    SchemaError,
    StorageError,
)
from tape2048.files import sqlite, sqlite_writer
from tape2048.files.sqlite import WorkLimit
from tape2048.session import metadata as module, metadata_writer
from tape2048.session.layout import PACKED_SCHEMA, RUN_DTYPE
from tape2048.session.metadata import packed_defect, read_facts, read_metadata
from tape2048.session.metadata_writer import write_metadata

from ..builders import OUR_SCHEMA, SEED_SCHEMA, change_database, names, open_files
from ..run_tables import pack, some_blocks, some_runs

ONE_RUN = "INSERT INTO runs VALUES (1, 2, 3, 4, 8, 0, 3);"
FACTS = {"rows": 6, "config": {"sample_rate": 1, "name": "é \" '"}, "recovered": False, "none": None}


def make(path: Path, sql: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)
        database.commit()
    return path


def end_at_size(path: Path, sql: str) -> None:
    """Have a process killed that runs this, once it makes the file longer by three pages."""
    script = (
        "import resource, signal, sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "database.execute('SELECT count(*) FROM runs').fetchone()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))\n"
        "database.executescript(sys.argv[3])\n"
    )
    size = path.stat().st_size
    done = subprocess.run([sys.executable, "-c", script, path, str(size + 3 * 4096), sql], check=False)
    assert done.returncode == -signal.SIGXFSZ
    assert path.stat().st_size < size + 4 * 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


class TestWrite:
    def test_read_back(self, tmp_path: Path) -> None:
        for count in (0, 1, 127, 128, 129, 1000):
            path, runs, blocks = tmp_path / str(count), some_runs(count), some_blocks(count)
            write_metadata(path, runs=runs, blocks=blocks, session=FACTS)
            read = read_metadata(path)
            np.testing.assert_array_equal(read.runs, runs)
            np.testing.assert_array_equal(read.blocks, blocks)
            assert (read.session, read.has_rows) == (FACTS, True)
            assert path.read_bytes()[18:20] == b"\x01\x01"  # rollback journal, not WAL
        assert names(tmp_path) == ["0", "1", "1000", "127", "128", "129"]

    def test_plain_sql_reads_what_the_format_says(self, path: Path) -> None:
        runs = some_runs(1)
        runs["seed"] = 2**64 - 1
        write_metadata(path, runs=runs, blocks=some_blocks(1), session={"engine": "toy", "n": [1]})
        with closing(sqlite3.connect(path)) as database:
            row = database.execute(
                "SELECT id, seed, steps, max_score, highest_tile, first_row, rows FROM runs"
            )
            assert row.fetchall() == [(5, -1, 1, 2**32 - 1, 32768, 0, 1)]
            assert database.execute("SELECT * FROM blocks").fetchall() == [(0, 100, 2**32 - 1)]
            facts = database.execute("SELECT meta_key, meta_value FROM session ORDER BY 1").fetchall()
            assert facts == [("engine", '"toy"'), ("n", "[1]")]
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA journal_mode").fetchall() == [("delete",)]

    def test_any_order_comes_back_by_key(self, path: Path) -> None:
        runs, blocks = some_runs(3000), some_blocks(3000)
        order = np.random.default_rng(1).permutation(3000)
        write_metadata(path, runs=runs[order], blocks=blocks[order], session={})
        read = read_metadata(path)
        np.testing.assert_array_equal(read.runs, runs)
        np.testing.assert_array_equal(read.blocks, blocks)
        again = path.with_name("sorted.db")
        write_metadata(again, runs=runs, blocks=blocks, session={})
        assert path.stat().st_size == again.stat().st_size  # no page is left half full

    @given(
        st.lists(
            st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), unique_by=lambda pair: pair[0]
        )
    )
    def test_all_64_bits_of_ids_and_seeds(
        self, tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]]
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "bits.db"
        path.unlink(missing_ok=True)
        runs = np.zeros(len(pairs), RUN_DTYPE)
        runs["run_id"] = [pair[0] for pair in pairs]
        runs["seed"] = [pair[1] for pair in pairs]
        write_metadata(path, runs=runs, blocks=some_blocks(0), session={})
        read = read_metadata(path).runs
        assert dict(zip(read["run_id"].tolist(), read["seed"].tolist(), strict=True)) == dict(pairs)

    def test_what_cannot_be_written(self, path: Path) -> None:
        """An existing file, keys twice, counts and arrays that do not fit, values that JSON cannot hold."""
        huge = some_runs(1)
        huge["first_row"] = 2**63
        twice: dict[str, Any] = {"runs": some_runs(2), "blocks": some_blocks(2)}
        for table in twice.values():
            table[1] = table[0]
        cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (BookkeepingError, "one key", {"runs": twice["runs"]}),
            (BookkeepingError, "one key", {"blocks": twice["blocks"]}),
            (BookkeepingError, "first_row is 9223372036854775808", {"runs": huge}),
            (ValueError, "one-dimensional", {"runs": some_blocks(1)}),
            (ValueError, "one-dimensional", {"runs": some_runs(2).reshape(1, 2)}),
            (TypeError, "object", {"session": {"x": object()}}),
        ]
        given = {"runs": some_runs(1), "blocks": some_blocks(1), "session": {}}
        for error, message, change in cases:
            with pytest.raises(error, match=message):
                write_metadata(path, **given | change)
            assert not path.exists()
        path.write_bytes(b"precious")
        for target, error in ((path, NameTakenError), (path / "x", StorageError)):
            with pytest.raises(error):
                write_metadata(target, **given)
        assert path.read_bytes() == b"precious"

    def test_no_room(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        connect = sqlite.connect

        def small(*args: Any) -> sqlite3.Connection:
            database = connect(*args)
            database.execute("PRAGMA max_page_count = 10")
            return database

        monkeypatch.setattr(sqlite_writer, "connect", small)
        with pytest.raises(DiskFullError):
            write_metadata(path, runs=some_runs(5000), blocks=some_blocks(1), session={})
        assert not path.exists()

    def test_write_that_fails(self, path: Path) -> None:
        """SQLite reports an I/O error, and not its cause."""
        code = (
            "import resource, signal, numpy as np, sys\n"
            "from tape2048.session.metadata_writer import write_metadata\n"
            "from tape2048.session.layout import *\n"
            "from tape2048.errors import *\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
            "runs = np.zeros(5000, RUN_DTYPE); runs['run_id'] = np.arange(5000)\n"
            "try:\n"
            "    write_metadata(sys.argv[1], runs=runs, blocks=np.zeros(0, BLOCK_DTYPE), session={})\n"
            "except StorageError as error:\n"
            "    sys.exit(f'{type(error).__name__} {error.message} -- {error.hint}')\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith("StorageError writing it failed (File too large) -- raise the limit")
        assert "ulimit -f" in done.stderr
        assert not path.exists()

    @pytest.mark.root
    def test_full_file_system(self, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("mounting takes root")
        mount = tmp_path / "small"
        mount.mkdir()
        command: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", mount]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("this machine does not let root mount")
        try:
            with pytest.raises(DiskFullError):
                write_metadata(mount / "m.db", runs=some_runs(5000), blocks=some_blocks(1), session={})
            assert names(mount) == []
        finally:
            subprocess.run(["umount", mount], check=True)


class TestRead:
    def test_odd_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("a b", "q?mode=rwc", "h#x", "p%20", "file:x", ":memory:", "ü\udcff"):
            path = tmp_path / f"in {name}" / name
            path.parent.mkdir()
            write_metadata(path, runs=some_runs(3), blocks=some_blocks(1), session={})
            assert len(read_metadata(path).runs) == 3
            assert names(path.parent) == [name]
        write_metadata("file:m.db", runs=some_runs(3), blocks=some_blocks(1), session={})
        assert len(read_metadata("file:m.db").runs) == 3

    def test_seed_columns_alone(self, path: Path) -> None:
        make(path, SEED_SCHEMA + "INSERT INTO runs VALUES (1, -2, 3, 4, 8), (9, 2, 3, 4, 8);")
        read = read_metadata(path)
        assert not read.has_rows
        assert read.blocks is None
        assert read.runs.tolist() == [(1, 2**64 - 2, 0, 0, 3, 4, 8), (9, 2, 0, 0, 3, 4, 8)]

    def test_blocks_of_others_in_any_order(self, path: Path) -> None:
        make(path, SEED_SCHEMA + "CREATE TABLE blocks(first_row INT, rows INT, crc32c INT);")
        change_database(path, "INSERT INTO blocks VALUES (5, 1, 2), (0, 5, 3);")
        blocks = read_metadata(path).blocks
        assert blocks.tolist() == [(0, 5, 3), (5, 1, 2)]

    def test_no_session_table(self, path: Path) -> None:
        make(path, SEED_SCHEMA.split(";")[0])
        assert read_metadata(path).session == {}

    def test_names_in_any_case(self, path: Path) -> None:
        make(path, OUR_SCHEMA.upper() + ONE_RUN)
        assert read_metadata(path).has_rows

    def test_not_sqlite(self, path: Path) -> None:
        with pytest.raises(StorageError, match="No such file"):
            read_metadata(path)
        assert not path.exists()
        magic = b"SQLite format 3"
        for content in (b"", magic, magic + b"\0", b"\x93NUMPY", b"SQLite format 4\0" + bytes(90)):
            path.write_bytes(content)
            with pytest.raises(SchemaError, match="not a SQLite file") as caught:
                read_metadata(path)
            assert caught.value.offset == 0

    def test_other_schemas(self, path: Path) -> None:
        """Missing tables and columns; views, virtual tables and generated columns, which may never end."""
        columns = ("id", "seed", "steps", "max_score", "highest_tile")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n"
        generated = SEED_SCHEMA.replace("steps INT", "steps INT AS (length(zeroblob(1000000000)))")
        cases = {
            "PRAGMA user_version = 1;": "no table runs",
            "CREATE TABLE other(x)": "no table runs",
            **{SEED_SCHEMA.replace(c, "other", 1): f"runs has no column {c}" for c in columns},
            OUR_SCHEMA.replace("crc32c", "crc"): "blocks has no column crc32c",
            OUR_SCHEMA.replace("meta_value", "value"): "session has no column meta_value",
            **{
                OUR_SCHEMA + f"DROP TABLE {table}; CREATE VIEW {table} AS {endless};": f"{table} is a view"
                for table in ("runs", "session", "blocks", "RUNS")
            },
            f"CREATE VIRTUAL TABLE runs USING fts4({', '.join(columns)});": "runs is a virtual table",
            generated: r"runs\.steps is generated",
        }
        for sql, message in cases.items():
            make(path, sql)
            with pytest.raises(SchemaError, match=message):
                read_metadata(path)
            path.unlink()

    def test_values_that_cannot_be(self, path: Path) -> None:
        """Of another type, out of range, not JSON, or an id twice."""
        other_types = ("NULL", "'x'", "1.5", "1e300", "9e999", "x'00'", "CAST(x'ff' AS TEXT)")
        counts = ("steps", "max_score", "highest_tile", "rows")
        keyless = SEED_SCHEMA.replace(" PRIMARY KEY", "")
        of_type = r"runs\.{} is \w+ where id is 1; expected an integer"
        cases = [
            *(
                (f"UPDATE runs SET {column} = {value};", SchemaError, of_type.format(column))
                for column in ("seed", "steps", "rows")
                for value in other_types
            ),
            *(
                (
                    f"UPDATE runs SET {column} = {value};",
                    BookkeepingError,
                    f"{column} is {value} where id is 1",
                )
                for column in counts
                for value in (-1, 2**32, 2**63 - 1, -(2**63))
            ),
            ("UPDATE runs SET first_row = -1;", BookkeepingError, "first_row is -1"),
            (
                "INSERT INTO blocks VALUES (0, 1, 4294967296);",
                BookkeepingError,
                r"blocks\.crc32c is 4294967296 where first_row is 0",
            ),
            *(
                (f"INSERT INTO session VALUES ('k', {value});", SchemaError, "k")
                for value in ("'{'", "NULL", "x'00'", "'" + "[" * 50_000 + "'")
            ),
        ]
        for sql, error, message in cases:
            path.unlink(missing_ok=True)
            make(path, OUR_SCHEMA + ONE_RUN + sql)
            before = open_files()
            with pytest.raises(error, match=message):
                read_metadata(path)
            assert open_files() == before
        path.unlink()
        make(path, keyless + "INSERT INTO runs VALUES (7,1,1,1,2), (7,1,1,1,2);")
        with pytest.raises(BookkeepingError, match="run id 7 occurs more than once"):
            read_metadata(path)

    def test_fact_of_others_may_be_plain(self, path: Path) -> None:
        make(path, SEED_SCHEMA.replace("meta_value TEXT", "meta_value"))
        change_database(
            path, "INSERT INTO session VALUES ('a', 'text'), ('b', NULL), ('c', 5), ('d', '[1]');"
        )
        assert read_metadata(path).session == {"a": "text", "b": None, "c": 5, "d": [1]}
        change_database(path, "INSERT INTO session VALUES ('e', x'00');")
        with pytest.raises(SchemaError, match="'e' with a value of type bytes; expected text"):
            read_metadata(path)

    def test_one_file_of_our_own(self, path: Path) -> None:
        write_metadata(path, runs=some_runs(3), blocks=some_blocks(1), session={})
        before = path.read_bytes()
        path.chmod(0o444)
        read_metadata(path)
        assert path.read_bytes() == before
        assert names(path.parent) == ["metadata.db"]


class TestDamage:
    def test_truncated_anywhere_is_an_error_or_still_whole(self, path: Path) -> None:
        write_metadata(path, runs=some_runs(400), blocks=some_blocks(3), session=FACTS)
        whole, expected = path.read_bytes(), read_metadata(path)
        for length in (*range(0, 4096, 37), *range(4096, len(whole), 301)):
            path.write_bytes(whole[:length])
            with pytest.raises(SchemaError):
                read_metadata(path)
        path.write_bytes(whole)
        np.testing.assert_array_equal(read_metadata(path).runs, expected.runs)

    @given(st.integers(0, 4 * 4096), st.binary(min_size=1, max_size=40))
    def test_overwritten_bytes_raise_only_our_errors(
        self, tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
    ) -> None:
        """No checksum guards a page, so that a changed value may pass. The manifest's guards the file."""
        path = tmp_path_factory.getbasetemp() / "noise.db"
        path.unlink(missing_ok=True)
        write_metadata(path, runs=some_runs(200), blocks=some_blocks(3), session=FACTS)
        content = bytearray(path.read_bytes())
        content[at : at + len(noise)] = noise
        path.write_bytes(content)
        with contextlib.suppress(SchemaError, SchemaError, BookkeepingError, ChecksumError):
            read_metadata(path)

    def test_schema_that_is_no_text(self, path: Path) -> None:
        """SQLite quotes it in its message, which Python then cannot decode."""
        make(path, OUR_SCHEMA)
        path.write_bytes(path.read_bytes().replace(b"CREATE TABLE blocks", b"CREATE \xffABLE blocks"))
        with pytest.raises(SchemaError, match="schema is damaged"):
            read_metadata(path)

    def test_pages_that_never_end(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What stops a walk through a damaged tree is the limit on operations, not its end."""
        write_metadata(path, runs=some_runs(20_000), blocks=some_blocks(1), session={})
        change_database(path, "DELETE FROM runs_packed")
        monkeypatch.setattr(module, "READ_LIMIT", WorkLimit(10_000, 0))
        with pytest.raises(SchemaError, match="damaged"):
            read_metadata(path)

    def test_sound_files_stay_far_below_the_limit(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        runs = some_runs(20_000)
        for name in ("first_row", "rows", "steps", "score", "highest_tile", "seed"):
            runs[name] = 0  # the fewest bytes a row can take
        runs["run_id"] = np.arange(20_000)
        write_metadata(path, runs=runs, blocks=some_blocks(0), session={})
        change_database(path, "DELETE FROM runs_packed")
        monkeypatch.setattr(module, "READ_LIMIT", WorkLimit(0, module.READ_LIMIT.per_byte // 4))
        assert len(read_metadata(path).runs) == 20_000


class TestJournals:
    @pytest.fixture
    def writer(self, path: Path) -> Iterator[sqlite3.Connection]:
        write_metadata(path, runs=some_runs(5000), blocks=some_blocks(1), session={})
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            yield database

    def spill(self, writer: sqlite3.Connection) -> None:
        """Begin a transaction so large that part of it is in the file before it is committed."""
        writer.execute("PRAGMA cache_size = 5")
        writer.execute("BEGIN")
        writer.execute("UPDATE runs SET steps = steps + 1000")

    def test_being_written(self, path: Path, writer: sqlite3.Connection) -> None:
        self.spill(writer)
        before = time.monotonic()
        with pytest.raises(SchemaError, match="locked") as caught:
            read_metadata(path)
        assert time.monotonic() - before < 2  # it does not wait for the writer
        assert caught.value.hint == "let its writer finish, then open it again"

    def test_hot_journal(self, path: Path, tmp_path: Path, writer: sqlite3.Connection) -> None:
        self.spill(writer)
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("metadata.db", "metadata.db-journal"):
            shutil.copy(tmp_path / name, copy / name)
        with pytest.raises(SchemaError, match="ROLLBACK") as caught:
            read_metadata(copy / "metadata.db")
        assert "rolls its journal back" in caught.value.hint
        assert names(copy) == ["metadata.db", "metadata.db-journal"]

    def test_writer_that_died_while_the_file_grew(self, path: Path) -> None:
        write_metadata(path, runs=some_runs(2000), blocks=some_blocks(1), session={})
        end_at_size(path, "PRAGMA cache_size = 10000; BEGIN; CREATE TABLE big AS SELECT * FROM runs; COMMIT")
        assert names(path.parent) == ["metadata.db", "metadata.db-journal"]
        with pytest.raises(SchemaError, match="ROLLBACK") as caught:
            read_metadata(path)
        assert "rolls its journal back" in str(caught.value.hint)
        change_database(path, "PRAGMA user_version")  # whoever opens it mends it
        assert len(read_metadata(path).runs) == 2000

    def test_wal_whose_merging_was_cut(self, path: Path, writer: sqlite3.Connection) -> None:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE big AS SELECT * FROM runs")
        end_at_size(path, "PRAGMA wal_checkpoint(FULL)")
        with pytest.raises(SchemaError, match=r"still in metadata\.db-wal") as caught:
            read_metadata(path)
        assert "let its writer finish" in str(caught.value.hint)

    def test_wal_that_was_merged(self, path: Path, writer: sqlite3.Connection) -> None:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE runs SET steps = 77")
        writer.close()
        assert path.read_bytes()[18:20] == b"\x02\x02"
        assert set(read_metadata(path).runs["steps"].tolist()) == {77}
        assert names(path.parent) == ["metadata.db"]

    def test_wal_that_was_not(self, path: Path, tmp_path: Path, writer: sqlite3.Connection) -> None:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE runs SET steps = 77")
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("metadata.db", "metadata.db-wal"):
            shutil.copy(tmp_path / name, copy / name)
        with pytest.raises(SchemaError, match=r"still in metadata\.db-wal") as caught:
            read_metadata(copy / "metadata.db")
        assert caught.value.hint is not None
        assert names(copy) == ["metadata.db", "metadata.db-wal"]


def test_nobody_writes_between_two_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_metadata(path, runs=some_runs(3), blocks=some_blocks(2), session=FACTS)
    refused = []
    real = module._read_table

    def read_table(database: Any, table: str, *rest: Any) -> Any:
        if table == "blocks":
            with closing(sqlite3.connect(path, timeout=0)) as other:
                other.execute("UPDATE runs SET steps = 1")
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    other.commit()
                refused.append(table)
        return real(database, table, *rest)

    monkeypatch.setattr(module, "_read_table", read_table)
    assert len(read_metadata(path).runs) == 3
    assert refused


class TestPackedRuns:
    """The copy of the run table: it is what readers go by, and only while it is the table."""

    @pytest.fixture
    def written(self, path: Path) -> Path:
        write_metadata(path, runs=some_runs(50), blocks=some_blocks(1), session={})
        return path

    def test_it_is_the_bytes_of_the_table(self, path: Path) -> None:
        runs = some_runs(50)
        runs["run_id"][3:] += np.uint64(2**63)  # negative in SQLite, and so first in its order
        write_metadata(path, runs=runs[::-1], blocks=some_blocks(1), session={})
        with closing(sqlite3.connect(path)) as database:
            (data,) = database.execute("SELECT data FROM runs_packed").fetchone()
        assert data == np.concatenate((runs[3:], runs[:3])).tobytes()
        packed = read_metadata(path).runs
        change_database(path, "DELETE FROM runs_packed")
        np.testing.assert_array_equal(read_metadata(path).runs, packed)

    def test_it_is_what_is_read(self, written: Path) -> None:
        runs = some_runs(50)
        runs["score"][7] = 4
        pack(written, runs)
        assert read_metadata(written).runs["score"][7] == 4

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
            assert read_metadata(path).runs[["run_id", "score"]].tolist() == expected

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
        assert set(read_metadata(written).runs["score"]) == {9}
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
        runs["score"] = max_score
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
        assert read_metadata(path).runs["score"][7] == 2**32 - 1, "kept by VACUUM"

    def test_validation_compares_the_two(self, written: Path) -> None:
        assert packed_defect(written) is None
        runs = some_runs(50)
        runs["score"][7:9] = 4
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
        monkeypatch.setattr(metadata_writer, "PACKED_BYTES_MAX", 49 * RUN_DTYPE.itemsize)
        write_metadata(path, runs=some_runs(50), blocks=some_blocks(1), session={})
        with closing(sqlite3.connect(path)) as database:
            assert (
                database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'runs_%'").fetchall() == []
            )
        np.testing.assert_array_equal(read_metadata(path).runs, some_runs(50))

    def test_a_copy_too_large_to_hold_is_not_read(
        self, written: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change_database(written, "UPDATE runs_packed SET data = zeroblob(3000)")
        with pytest.raises(ChecksumError):
            read_metadata(written)
        monkeypatch.setattr(module, "PACKED_BYTES_MAX", 2999)
        np.testing.assert_array_equal(read_metadata(written).runs, some_runs(50))

    @pytest.mark.parametrize(
        ("count", "size", "said"), [(1, 9000, "string or blob too big"), (3, 400, "more than 1000 bytes")]
    )
    def test_facts_too_large_to_hold(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, count: int, size: int, said: str
    ) -> None:
        facts = {f"fact {number}": "x" * size for number in range(count)}
        write_metadata(path, runs=some_runs(1), blocks=some_blocks(1), session=facts)
        assert read_metadata(path).session == facts
        monkeypatch.setattr(module, "FACTS_BYTES_MAX", 1000)
        for read in (read_metadata, read_facts):
            with pytest.raises(SchemaError, match=said):
                read(path)

    def test_every_statement_is_kept_as_it_was_written(self, written: Path) -> None:
        with closing(sqlite3.connect(written)) as database:
            kept = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master")}
        assert kept.issuperset(PACKED_SCHEMA)
