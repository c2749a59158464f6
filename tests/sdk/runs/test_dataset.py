import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings, strategies as st

from tape2048 import Corpus, Session, sessions
from tape2048.errors import (
    BookkeepingError,
    ChecksumError,
    ColumnError,
    EmptyCorpusError,
    FieldError,
    FormatError,
    MaintenanceError,
    ManifestError,
    MissingPathError,
    NameTakenError,
    NotASessionError,
    NpyError,
    SchemaError,
    StorageError,
    TapeError,
    TruncatedError,
    VersionError,
)
from tape2048.files.durable import lock_directory
from tape2048.runs import Dataset, dataset as dataset_build, verify_dataset
from tape2048.runs.conversion import open_source
from tape2048.runs.dataset import append_dataset, build_dataset, write_view
from tape2048.session.column_draft import write_column
from tape2048.session.directory import DATASET_ROW_DTYPE
from tape2048_tools.cli import run

from ..builders import GAMES as MADE_UP, Spec, header_bytes, open_files, raising, write_ours
from ..naming import Naming
from ..run_builders import game
from .set_builders import (
    ALMOST_ONE,
    GAMES,
    MORE,
    ROW,
    STILL_MORE,
    dataset_rows,
    level,
    normalised,
    packdat_bytes,
    tree,
    write_dataset,
    write_npy,
    write_runs,
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs")


@pytest.fixture
def more(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "more", MORE)


@pytest.fixture
def built(tmp_path: Path, runs: Path) -> Path:
    build_dataset(tmp_path / "ds", [runs])
    return tmp_path / "ds"


def columns(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        return database.execute("SELECT * FROM runs ORDER BY id").fetchall()


def _break_rules(rows: np.ndarray) -> None:
    rows["exps"][:, 1:] = (np.arange(1, 16) + rows["step_idx"][:, None]) % 2


class TestBuild:
    def test_rows_are_those_of_the_description(self, built: Path) -> None:
        assert DATASET_ROW_DTYPE == ROW
        np.testing.assert_array_equal(np.load(built / "steps.npy"), dataset_rows())

    def test_the_table_is_the_seed_s(self, built: Path, tmp_path: Path) -> None:
        assert columns(built) == [
            (
                number, sum(len(run.moves) for run in GAMES[:number]), len(run.moves), run.max_score,
                run.highest_tile, run.engine, run.start_unix_s, run.elapsed_s,
            )
            for number, run in enumerate(GAMES)
        ]  # fmt: skip
        with closing(sqlite3.connect(built / "metadata.db")) as database:
            names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
            assert {"runs", "idx_score", "idx_steps"} <= names
            assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert not list(tmp_path.glob(".*")), "no draft is left"

    def test_the_manifest_says_what_is_there(self, built: Path, runs: Path) -> None:
        manifest = json.loads((built / "manifest.json").read_text())
        assert (manifest["version"], manifest["num_steps"], manifest["num_runs"]) == (1, 87, 3)
        steps = (built / "steps.npy").read_bytes()
        assert manifest["steps_crc32c"] == crc32c(steps)
        for name in ("steps.npy", "metadata.db"):
            content = (built / name).read_bytes()
            assert manifest["files"][name] == {"bytes": len(content), "crc32c": crc32c(content)}
        assert manifest["sources"] == [
            {"path": runs.name, "kind": "runs", "runs": 3, "steps": 87, "skipped": 0}
        ]
        assert manifest["skipped"] == []

    @pytest.mark.parametrize("workers", [1, 3])
    def test_the_same_on_any_number_of_threads(
        self, built: Path, runs: Path, tmp_path: Path, workers: int
    ) -> None:
        build_dataset(tmp_path / "again", [runs], workers=workers)
        assert (tmp_path / "again/steps.npy").read_bytes() == (built / "steps.npy").read_bytes()
        assert (tmp_path / "again/metadata.db").read_bytes() == (built / "metadata.db").read_bytes()

    def test_one_source_may_stand_alone(self, built: Path, runs: Path, tmp_path: Path) -> None:
        """Taken for many, the text of a path would begin with the source "/": all files that there are."""
        source = open_source(runs)
        for number, one in enumerate((runs, str(runs), source)):
            path = tmp_path / f"again-{number}"
            build_dataset(path, one)
            assert (path / "steps.npy").read_bytes() == (built / "steps.npy").read_bytes()
            assert append_dataset(path, one).copies == source.count

    def test_bad_runs_are_left_out_by_name(self, runs: Path, tmp_path: Path) -> None:
        (runs / "000x.a2run2").write_bytes(b"\xff" * 20)
        (runs / "zz.a2run").write_bytes(b"A2T1")
        result = build_dataset(tmp_path / "ds", [runs])
        np.testing.assert_array_equal(np.load(tmp_path / "ds/steps.npy"), dataset_rows())
        assert [one.run for one in result.skipped] == [
            str(runs / name) for name in ("000x.a2run2", "zz.a2run")
        ]
        manifest = json.loads((tmp_path / "ds/manifest.json").read_text())
        assert manifest["skipped"][1]["error"] == "TruncatedError"

    def test_the_number_of_steps_is_limited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """65,536 steps, the numbers of ``step_index``; a shorter limit here."""
        assert dataset_build.RUN_STEPS_MAX == 2**16
        monkeypatch.setattr(dataset_build, "RUN_STEPS_MAX", 30)
        write_runs(tmp_path / "runs", [game(1, steps_max=30), game(1, steps_max=31)])
        result = build_dataset(tmp_path / "ds", [tmp_path / "runs"])
        assert (result.runs, result.steps) == (1, 30)
        assert "001.a2run2" in result.skipped[0].run
        assert "steps is 31" in result.skipped[0].message

    def test_nothing_is_replaced(self, runs: Path, tmp_path: Path) -> None:
        (tmp_path / "ds").mkdir()
        with pytest.raises(NameTakenError):
            build_dataset(tmp_path / "ds", [runs])
        assert list((tmp_path / "ds").iterdir()) == []

    def test_sessions_without_moves(self, runs: Path, tmp_path: Path) -> None:
        """Sessions without moves are rejected, or their runs are left out by name."""
        sources = [write_ours(tmp_path / "s", Spec(change_rows=_break_rules)), runs]
        with pytest.raises(MaintenanceError):
            build_dataset(tmp_path / "ds", sources)
        result = build_dataset(tmp_path / "ds", sources, lossy=True)
        assert (result.runs, len(result.skipped)) == (4, 4), "no moves lead from board to board"
        assert result.skipped[0].error == "ReplayError"
        assert sum(result.lost.values()) == 1

    def test_no_run_left_writes_nothing(self, tmp_path: Path) -> None:
        made_up = write_ours(tmp_path / "s", Spec(MADE_UP[2:], change_rows=_break_rules))
        with pytest.raises(EmptyCorpusError, match=r"0 of 3 runs .*ReplayError"):
            build_dataset(tmp_path / "ds", [made_up], lossy=True)
        assert os.listdir(tmp_path) == ["s"]  # noqa: PTH208 - dots too


class TestBesideSessions:
    @pytest.mark.parametrize("shard_rows", [None, 9])
    def test_a_data_set_is_no_session(self, tmp_path: Path, shard_rows: int | None) -> None:
        session = write_ours(tmp_path / "s")
        path = build_dataset(tmp_path / "ds", [write_runs(tmp_path / "runs")], shard_rows=shard_rows).path
        assert sessions(tmp_path) == [session]
        assert run(["validate", str(tmp_path), "--quarantine", "--quiet"]) == 0
        assert Dataset.open(path).paths[0].is_dir()
        opened = Session.open(path)
        assert opened.columns.keys() == {"ev_legal", "ev_values"}
        with pytest.raises(ColumnError, match="overlay"):
            write_column(opened, "mine", np.arange(len(opened)))
        opened.use_overlay(tmp_path / "columns")
        write_column(opened, "mine", np.arange(len(opened)))
        assert Corpus.open(path, columns=tmp_path / "columns").fetch([5], ("mine",))["mine"] == 5

    def test_what_cannot_be_told_is_reported(self, built: Path) -> None:
        (built / "steps.npy").write_bytes(b"nonsense")
        assert sessions(built.parent) == [built]
        with pytest.raises(ManifestError):
            Session.open(built)


class TestShards:
    @pytest.mark.parametrize("shard_rows", [1, 13, 87, 1000])
    def test_rows_are_cut_anywhere(self, runs: Path, tmp_path: Path, shard_rows: int) -> None:
        build_dataset(tmp_path / "ds", [runs], shard_rows=shard_rows)
        parts = sorted((tmp_path / "ds/shards").iterdir())
        assert [part.name for part in parts] == [f"steps_{i:05d}.npy" for i in range(-(-87 // shard_rows))]
        np.testing.assert_array_equal(np.concatenate([np.load(part) for part in parts]), dataset_rows())
        np.testing.assert_array_equal(Dataset(tmp_path / "ds").steps, dataset_rows())
        assert verify_dataset(tmp_path / "ds").ok

    def test_appending_links_the_old_shards(self, runs: Path, more: Path, tmp_path: Path) -> None:
        build_dataset(tmp_path / "ds", [runs], shard_rows=50)
        before = {path.name: path.stat().st_ino for path in (tmp_path / "ds/shards").iterdir()}
        append_dataset(tmp_path / "ds", [more])
        after = {path.name: path.stat().st_ino for path in (tmp_path / "ds/shards").iterdir()}
        assert before.items() <= after.items()
        np.testing.assert_array_equal(Dataset(tmp_path / "ds").steps[87:], dataset_rows(MORE, 3))
        assert verify_dataset(tmp_path / "ds").ok

    def test_both_forms_or_a_gap(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "ds", shard_rows=20)
        write_npy(path / "steps.npy", dataset_rows())
        with pytest.raises(NotASessionError, match="both"):
            Dataset(path)
        (path / "steps.npy").unlink()
        (path / "shards/steps_00001.npy").unlink()
        with pytest.raises(NotASessionError, match=r"steps_00001\.npy is missing"):
            Dataset(path)


class TestAppend:
    def test_ids_go_on_and_match_the_table(self, built: Path, more: Path, tmp_path: Path) -> None:
        result = append_dataset(built, [more, write_runs(tmp_path / "still-more", STILL_MORE)])
        assert (result.runs, result.steps) == (6, 174)
        games = enumerate((GAMES, MORE, STILL_MORE))
        expected = np.concatenate([dataset_rows(some, 3 * place) for place, some in games])
        np.testing.assert_array_equal(np.load(built / "steps.npy"), expected)
        assert [row[:2] for row in columns(built)] == [
            (run_id, int(np.flatnonzero(expected["run_id"] == run_id)[0])) for run_id in range(9)
        ]
        assert verify_dataset(built).ok
        manifest = json.loads((built / "manifest.json").read_text())
        assert [source["runs"] for source in manifest["sources"]] == [3, 3, 3]
        assert manifest["steps_crc32c"] == crc32c((built / "steps.npy").read_bytes())

    def test_to_a_data_set_of_others(self, tmp_path: Path, more: Path) -> None:
        sql = "UPDATE runs SET id = id + 5;"
        rows = dataset_rows(first_id=5)
        path = write_dataset(tmp_path / "theirs", rows=rows, sql=sql)
        append_dataset(path, [more])
        np.testing.assert_array_equal(np.load(path / "steps.npy")[:87], rows)
        assert [row[0] for row in columns(path)] == [5, 6, 7, 8, 9, 10]
        assert verify_dataset(path).ok

    def test_rows_that_changed_are_not_carried_on(self, built: Path, runs: Path) -> None:
        data = bytearray((built / "steps.npy").read_bytes())
        data[-3] ^= 1  # step_index of no run's first or last row but the very last's run_id stays
        data[300] ^= 1
        data[-3] ^= 1
        (built / "steps.npy").write_bytes(data)
        before = tree(built)
        with pytest.raises(ChecksumError, match="Nothing was appended"):
            append_dataset(built, [runs])
        assert tree(built) == before
        assert not list(built.parent.glob(".*"))

    def test_whoever_has_it_open_keeps_it(self, built: Path, more: Path) -> None:
        mapped, in_memory = Dataset(built, "mmap"), Dataset(built)
        append_dataset(built, [more])
        for old in (mapped, in_memory):
            np.testing.assert_array_equal(old.get_batch(np.arange(87)), dataset_rows())
        assert len(Dataset(built)) == 174

    def test_nothing_there_or_two_at_a_time(self, tmp_path: Path, built: Path, more: Path) -> None:
        with pytest.raises(MissingPathError):
            append_dataset(tmp_path / "none", [more])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "more", "runs"]
        fd = lock_directory(built)
        with pytest.raises(StorageError, match="another process"):
            append_dataset(built, [more])
        os.close(fd)
        append_dataset(built, [more])
        assert len(Dataset(built).runs) == 6

    def test_where_names_cannot_be_exchanged(
        self, built: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tape2048.files import durable

        before = tree(built)
        monkeypatch.setattr(durable, "_RENAME_EXCHANGE", 1 << 20)  # a flag that no file system knows
        with pytest.raises(StorageError, match="cannot exchange"):
            append_dataset(built, [runs])
        assert tree(built) == before
        assert not list(built.parent.glob(".*"))


class TestOpen:
    def test_a_data_set_of_others(self, tmp_path: Path) -> None:
        manifest = {
            "version": 1,
            "num_steps": 87,
            "num_runs": 3,
            "created": "2025-01-01T00:00:00+00:00",
            "x": 1,
        }
        for load in ("ram", "mmap"):
            path = write_dataset(tmp_path / load, manifest=manifest)
            opened = Dataset.open(path, load)  # type: ignore[arg-type]
            np.testing.assert_array_equal(opened.steps, dataset_rows())
            assert opened.run_table.engine_names() == ["toy", None, "other é"]
            assert [opened.run_table.meta(i).start_unix_s for i in range(3)] == [1000, 0, 3000]

    def test_no_file_stays_open(self, built: Path) -> None:
        before = open_files()
        kept = [Dataset(built), Dataset(built, "mmap")]
        with pytest.raises(NotASessionError):
            Dataset(built.parent)
        assert open_files() == before
        assert [each.steps.ctypes.data % 32 for each in kept] == [0, 0], "a row is in one cache line"

    def test_nothing_or_a_file_or_an_empty_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        for path in (tmp_path / "file", tmp_path):
            with pytest.raises(NotASessionError):
                Dataset(path)
        with pytest.raises(MissingPathError):
            Dataset(tmp_path / "none")
        with pytest.raises(ValueError, match="no data set"):
            Dataset([])

    def test_several_have_ids_that_go_on(self, tmp_path: Path) -> None:
        paths = [write_dataset(tmp_path / name) for name in ("a", "b")]
        empty = write_dataset(tmp_path / "empty", [])
        for load in ("ram", "mmap"):
            both = Dataset([paths[0], empty, paths[1]], load)  # type: ignore[arg-type]
            assert both.runs["run_id"].tolist() == [0, 1, 2, 3, 4, 5]
            rows = both.get_batch(np.arange(174))
            expected = np.concatenate([dataset_rows(), dataset_rows(first_id=3)])
            np.testing.assert_array_equal(rows, expected)
            view = both.filter_by_engine("toy")
            assert view.get_batch(np.arange(60))["run_id"].tolist() == [0] * 30 + [3] * 30

    def test_progress_ends_at_all_bytes(self, built: Path) -> None:
        said: list[tuple[int, int]] = []
        Dataset(built, progress=lambda done, total: said.append((done, total)))
        assert said[-1] == (87 * 32, 87 * 32)

    @pytest.mark.parametrize("times", [1, 5])
    def test_exchanged_while_it_is_opened(
        self, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        """The reader has the old metadata when the directory is exchanged: it has to begin again."""
        from tape2048.runs import dataset as files

        read = files.read_runs_db
        left = times

        def read_and_append(path: Path) -> Any:
            nonlocal left
            result, left = read(path), left - 1
            monkeypatch.setattr(files, "read_runs_db", read)
            append_dataset(built, [write_runs(tmp_path / f"more-{left}", MORE)])
            monkeypatch.setattr(files, "read_runs_db", read_and_append if left else read)
            return result

        monkeypatch.setattr(files, "read_runs_db", read_and_append)
        if times == 5:
            with pytest.raises(StorageError, match="5 times"):
                Dataset(built)
        else:
            assert len(Dataset(built)) == 174
        assert left == 0


class TestRuns:
    def test_runs_come_back_as_they_went_in(self, built: Path, runs: Path) -> None:
        from tape2048.runs.files import read_run_file

        opened = Dataset(built)
        for number, file in enumerate(sorted(runs.iterdir())):
            run, certain, lost = opened.run_and_losses(number)
            original = read_run_file(file)
            assert certain
            assert run.meta == original.meta
            np.testing.assert_array_equal(run.states, original.states)
            np.testing.assert_array_equal(run.moves, original.moves)
            if original.has_branches is not None and not lost:
                expected = original.normalize_branches()  # type: ignore[attr-defined]
                np.testing.assert_array_equal(run.branch_values, expected.branch_values)

    @settings(max_examples=200)
    @given(
        st.lists(st.one_of(st.just(0.0), st.just(1.0), st.floats(-9, 9, width=32)), min_size=4, max_size=4),
        st.integers(1, 15),
        st.integers(0, 3),
    )
    def test_chosen_values_are_restored_or_lost(self, values: list[float], legal: int, chosen: int) -> None:
        """A chosen move's value is restored, or counted as lost."""
        from tape2048.runs.tables import restore_values

        if not legal >> chosen & 1:
            legal |= 1 << chosen
        whole = np.array(
            [normalised([v if legal >> m & 1 else None for m, v in enumerate(values)], legal)], np.float32
        )
        stored = whole.copy()
        stored[0, chosen] = 1
        has, lost = restore_values(stored, np.array([legal], np.uint8), np.array([chosen], np.uint8))
        assert has.all()
        others = [float(whole[0, m]) for m in range(4) if m != chosen and legal >> m & 1]
        ends = {0.0, float(np.float32(1 - 2**-23))}
        assert lost == (ends <= set(others))
        if not lost:
            np.testing.assert_array_equal(stored, whole)

    def test_third_party_final_boards(self, tmp_path: Path) -> None:
        """A data set without final boards gets those that the rules leave."""
        games = [game(i, with_branches=False) for i in range(20)]
        opened = Dataset(write_dataset(tmp_path / "ds", games))
        known = 0
        for number, played in enumerate(games):
            run, certain, _ = opened.run_and_losses(number)
            if certain:
                assert run.final_board == played.states[-1]
                known += 1
            assert run.final_board in {played.states[-1], played.states[-1] ^ 3 * _spawn(played)}
        assert 0 < known < 20

    def test_write_view(self, built: Path, tmp_path: Path) -> None:
        view = Dataset(built).filter_by_score(164)
        write_view(tmp_path / "part", view, shard_rows=20)
        np.testing.assert_array_equal(Dataset(tmp_path / "part").steps, dataset_rows(GAMES[::2]))
        assert verify_dataset(tmp_path / "part").ok
        assert Dataset(tmp_path / "part").run(1).equals(Dataset(built).run(2))

    @pytest.mark.parametrize("shard_rows", [None, 50])
    def test_files_are_flushed_before_the_rename(
        self, runs: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_rows: int | None
    ) -> None:
        naming = Naming(tmp_path, monkeypatch)
        build_dataset(tmp_path / "ds", [runs], shard_rows=shard_rows)
        naming.assert_flushed("ds")
        append_dataset(tmp_path / "ds", [more])
        naming.assert_flushed("ds", "ds")
        write_view(tmp_path / "part", Dataset(tmp_path / "ds"), shard_rows=shard_rows)
        naming.assert_flushed("ds", "ds", "part")

    def test_a_view_without_a_run_is_not_written(self, built: Path, tmp_path: Path) -> None:
        before = os.listdir(tmp_path)  # noqa: PTH208 - dots too
        with pytest.raises(EmptyCorpusError, match="the view has 0 runs"):
            write_view(tmp_path / "part", Dataset(built).filter_by_score(2**40))
        assert os.listdir(tmp_path) == before  # noqa: PTH208


def _spawn(played: Any) -> int:
    """The lowest bit of the cell of a game's last spawn."""
    from ..run_builders import ref

    after, _ = ref.slide(ref.unpack(played.states[-2]), played.moves[-1])
    difference = ref.pack(after) ^ played.states[-1]
    return difference if difference.bit_length() % 4 == 1 else difference >> 1


class TestBadRows:
    def test_bytes_beyond_or_before_the_end(self, built: Path) -> None:
        with (built / "steps.npy").open("ab") as file:
            file.write(b"\0")
        with pytest.raises(ManifestError):
            Dataset(built)
        (built / "manifest.json").unlink()
        with pytest.raises(FormatError):
            Dataset(built)
        for count in (2**63 - 1, 2**62, 88):
            text = f"{{'descr': {ROW.descr!r}, 'fortran_order': False, 'shape': ({count},), }}"
            head = header_bytes(text.encode(), pad=True)
            (built / "steps.npy").write_bytes(head + dataset_rows().tobytes())
            with pytest.raises(TruncatedError):
                Dataset(built)

    def test_rows_of_another_type(self, tmp_path: Path) -> None:
        for number, dtype in enumerate(
            (ROW.descr[:-1], [*ROW.descr[:-1], ("step_index", "<u4")], [*ROW.descr[1:], ROW.descr[0]], "<u8")
        ):
            path = write_dataset(tmp_path / str(number), rows=np.zeros(87, dtype))
            with pytest.raises(NpyError):
                Dataset(path)

    def test_rows_of_another_run_or_out_of_order(self, tmp_path: Path) -> None:
        for name, change in (
            ("run 1", lambda rows: rows["run_id"].__setitem__(slice(30, 42), 7)),
            ("step", lambda rows: rows.__setitem__(slice(30, 42), rows[30:42][::-1].copy())),
        ):
            rows = dataset_rows()
            change(rows)
            path = write_dataset(tmp_path / name, rows=rows)
            for load in ("ram", "mmap"):
                with pytest.raises(BookkeepingError, match=name):
                    Dataset(path, load)  # type: ignore[arg-type]

    def test_a_move_that_is_none(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "ds")
        rows = np.load(path / "steps.npy")
        rows["move"][3] = 200
        np.save(path / "steps.npy", rows)
        first, *others = open_source(path).runs()
        assert isinstance(first.error, FieldError)
        assert "has a move 200; expected 0 to 3" in first.error.message
        assert [one.error for one in others] == [None] * len(others)


EXTRAS = "CREATE TABLE tape2048_runs(id, final_board, seed);"
RENAME = "ALTER TABLE runs RENAME TO old;"
COLUMNS = "id INT, first_step_idx, num_steps, max_score, highest_tile, engine, start_time"


class TestBadMetadata:
    @pytest.mark.parametrize(
        ("sql", "error"),
        [
            ("DROP TABLE runs;", SchemaError),
            ("ALTER TABLE runs RENAME TO old; CREATE VIEW runs AS SELECT * FROM old;", SchemaError),
            ("ALTER TABLE runs DROP COLUMN engine;", SchemaError),
            ("UPDATE runs SET max_score = 'many' WHERE id = 1;", SchemaError),
            ("UPDATE runs SET max_score = x'00' WHERE id = 1;", SchemaError),
            ("UPDATE runs SET max_score = 1.5 WHERE id = 1;", SchemaError),
            ("UPDATE runs SET engine = x'ff' WHERE id = 1;", SchemaError),
            ("UPDATE runs SET engine = 17 WHERE id = 1;", None),  # the column's type makes it text
            ("UPDATE runs SET engine = CAST(x'ff' AS TEXT) WHERE id = 1;", SchemaError),
            ("UPDATE runs SET elapsed_s = 'long' WHERE id = 1;", SchemaError),
            ("UPDATE runs SET elapsed_s = 1e300 WHERE id = 1;", SchemaError),
            ("UPDATE runs SET elapsed_s = 9e999 WHERE id = 1;", SchemaError),
            ("UPDATE runs SET elapsed_s = NULL, start_time = NULL;", None),
            ("UPDATE runs SET max_score = -1 WHERE id = 1;", BookkeepingError),
            ("UPDATE runs SET id = -1 WHERE id = 1;", BookkeepingError),
            ("UPDATE runs SET id = 4294967296 WHERE id = 1;", FieldError),
            ("UPDATE runs SET num_steps = 4294967296 WHERE id = 1;", BookkeepingError),
            ("UPDATE runs SET num_steps = 13 WHERE id = 1;", BookkeepingError),
            ("UPDATE runs SET first_step_idx = 0 WHERE id = 1;", BookkeepingError),
            ("UPDATE runs SET first_step_idx = 9223372036854775807 WHERE id = 1;", BookkeepingError),
            ("DELETE FROM runs WHERE id = 2;", BookkeepingError),
            ("INSERT INTO runs VALUES (9, 87, 1, 1, 2, NULL, 0, 0);", BookkeepingError),
            (EXTRAS, None),
            ("CREATE TABLE tape2048_runs(id, seed);", SchemaError),
            (f"{EXTRAS} INSERT INTO tape2048_runs VALUES (8, 1, 1);", BookkeepingError),
            (f"{EXTRAS} INSERT INTO tape2048_runs VALUES (1, 'x', 1);", SchemaError),
            (f"{RENAME} CREATE TABLE runs({COLUMNS}, elapsed_s AS (1.0));", SchemaError),
            (f"{RENAME} CREATE TABLE runs AS SELECT * FROM old; UPDATE runs SET id = 0;", BookkeepingError),
        ],
    )
    def test_tables_and_values(self, tmp_path: Path, sql: str, error: type[TapeError] | None) -> None:
        path = write_dataset(tmp_path / "ds", sql=sql)
        if error is None:
            assert len(Dataset(path)) == 87
            return
        with pytest.raises(error) as caught:
            Dataset(path)
        assert str(path) in str(caught.value)

    def test_not_sqlite_damaged_or_locked(self, built: Path) -> None:
        (built / "manifest.json").unlink()
        data = (built / "metadata.db").read_bytes()
        for length in (0, 10, 100, 4096, len(data) - 4096):
            (built / "metadata.db").write_bytes(data[:length])
            with pytest.raises(SchemaError):
                Dataset(built)
        (built / "metadata.db").write_bytes(data)
        with closing(sqlite3.connect(built / "metadata.db")) as database:
            database.execute("BEGIN EXCLUSIVE")
            with pytest.raises(SchemaError):
                Dataset(built)


class TestBadManifest:
    @pytest.mark.parametrize(
        "content",
        [
            *[b"", b"\xff", b"[1]", b"[" * 10_000],
            *[{"num_steps": 86}, {"num_runs": 4}, {"num_steps": "87"}],
            *[{"files": {name: {"bytes": 1, "crc32c": 0}}} for name in ("x", "../x", "steps.npy")],
            {"files": {"steps.npy": {"bytes": 99999, "crc32c": 0}}},
        ],
    )
    def test_content(self, tmp_path: Path, content: bytes | dict[str, Any]) -> None:
        path = write_dataset(tmp_path / "ds")
        if not isinstance(content, bytes):
            content = json.dumps({"version": 1, "num_steps": 87, "num_runs": 3} | content).encode()
        (path / "manifest.json").write_bytes(content)
        with pytest.raises(TruncatedError if b"99999" in content else ManifestError):
            Dataset(path)

    def test_another_version(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "ds")
        (path / "manifest.json").write_text(json.dumps({"version": 2, "num_steps": 87, "num_runs": 3}))
        with pytest.raises(VersionError, match="data set version 2; expected 1"):
            Dataset(path)


class TestVerify:
    def test_sound_or_absent(self, built: Path) -> None:
        report = verify_dataset(built)
        assert (report.ok, report.rows, report.runs, report.checksums) == (True, 87, 3, 2)
        assert verify_dataset(built / "none").findings[0].error == "MissingPathError"

    @pytest.mark.parametrize(
        ("field", "value", "error", "words"),
        [
            ("run_id", 2, "BookkeepingError", "row 10 belongs to another run"),
            ("step_index", 9, "BookkeepingError", "row 10 has another step_index"),
            ("move", 4, "FieldError", "row 10 has a move"),
            ("ev_legal", 0, "FieldError", "row 10 has an ev_legal"),
            ("ev_values", [2, 2, 2, 2], "FieldError", "row 10 has ev_values"),
            ("ev_values", [np.nan, 0, 0, 0], "FieldError", "row 10 has ev_values"),
            ("board", 0x1234_1234_1234_1230, "FieldError", "row 9 does not lead"),
            (
                "board",
                0xFF34_1234_1234_1230,
                "FieldError",
                "row 10 breaks the rules: two tiles of 32768",
            ),
        ],
    )
    def test_rows(self, tmp_path: Path, field: str, value: Any, error: str, words: str) -> None:
        rows = dataset_rows()
        rows[field][10] = value
        report = verify_dataset(write_dataset(tmp_path / "ds", rows=rows))
        assert any(found.error == error and words in found.message for found in report.findings)

    def test_a_tile_that_the_table_does_not_have(self, tmp_path: Path) -> None:
        path = write_dataset(tmp_path / "ds", sql="UPDATE runs SET highest_tile = 4 WHERE id = 2;")
        assert ["its rows show a" in found.message for found in verify_dataset(path).findings] == [True]

    def test_every_flipped_byte_is_found(self, built: Path) -> None:
        rng = np.random.default_rng(1)
        for name in ("steps.npy", "metadata.db"):
            data = (built / name).read_bytes()
            for at in rng.integers(0, len(data), 12).tolist():
                changed = bytearray(data)
                changed[at] ^= 0x10
                (built / name).write_bytes(changed)
                assert not verify_dataset(built).ok, (name, at)
            (built / name).write_bytes(data)


def test_views_by_time(built: Path) -> None:
    opened = Dataset(built)
    assert opened.where(since="1970-01-01T00:30:00Z").runs["run_id"].tolist() == [2]
    assert opened.where(since="1970-01-01", until="1970-01-01T00:50:00Z").runs["run_id"].tolist() == [0]


class TestPhase:
    def test_a_run_of_a_phase_is_whole(self, built: Path) -> None:
        view = Dataset(built).phase(steps=(5, 7))
        assert view.run(1).states[:-1].tolist() == GAMES[1].states[:-1]
        assert "5 <= steps < 7" in repr(view)

    def test_no_file_holds_parts_of_games(self, built: Path, tmp_path: Path) -> None:
        whole = Dataset(built)
        for view in (whole.phase(steps=(2, None)), whole.select([1, 2])):
            with pytest.raises(ValueError, match="write it without phase"):
                write_view(tmp_path / "out", view)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("load", ["ram", "mmap"])
    def test_views_are_of_the_opened_set(self, built: Path, more: Path, load: Any) -> None:
        """Its rows were appended to, then its directory was replaced by another set of as many runs."""
        source = Dataset(built, load)
        append_dataset(built, [more])
        np.testing.assert_array_equal(source.filter_by_score(0)[:], dataset_rows())
        built.rename(built.with_name("old"))
        write_dataset(built, [game(seed, steps_max=20) for seed in (7, 8, 9)])
        np.testing.assert_array_equal(source.filter_by_score(0)[:], dataset_rows())


class TestSetOfAPack:
    """``Dataset("pack.dat")``."""

    @pytest.mark.parametrize("how", ["ram", "mmap"])
    def test_rows_are_those_of_a_data_set(self, tmp_path: Path, how: Any) -> None:
        (tmp_path / "pack.dat").write_bytes(packdat_bytes())
        steps: list[tuple[int, int]] = []
        found = Dataset(tmp_path / "pack.dat", how, progress=lambda *done: steps.append(done))
        rows = dataset_rows()
        assert found.steps.dtype == DATASET_ROW_DTYPE
        values = rows["ev_values"]
        for i in np.ndindex(values.shape):
            has = values[i] and values[i] < 1
            values[i] = (
                min(np.float32(level(values[i])) / np.float32(65535), ALMOST_ONE) if has else values[i]
            )
        np.testing.assert_array_equal(found.steps, rows)
        assert found.runs["score"].tolist() == [run.max_score for run in GAMES]
        assert found.manifests == [None]
        write_view(tmp_path / "ds", found)
        np.testing.assert_array_equal(Dataset(tmp_path / "ds").steps, found.steps)
        assert how == "mmap" or steps == [(len(rows) * 32,) * 2]

    def test_beside_directories(self, tmp_path: Path) -> None:
        (tmp_path / "a.dat").write_bytes(packdat_bytes())
        write_dataset(tmp_path / "ds")
        paths = [tmp_path / "a.dat", tmp_path / "ds", tmp_path / "a.dat"]
        for how in ("ram", "mmap"):
            found = Dataset(paths, how)
            assert found.runs["run_id"].tolist() == list(range(9))
            np.testing.assert_array_equal(found[:]["run_id"], np.repeat(np.arange(9), found.runs["steps"]))
            np.testing.assert_array_equal(found[:]["board"], np.tile(dataset_rows()["board"], 3))

    def test_a_run_that_no_row_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tape2048.runs.dataset.RUN_STEPS_MAX", 44)
        (tmp_path / "a.dat").write_bytes(packdat_bytes())
        with pytest.raises(FieldError, match="steps of a run is 45"):
            Dataset(tmp_path / "a.dat")

    def test_another_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"hunter2:secret")
        with pytest.raises(NotASessionError, match=r"neither a directory nor a pack\.dat") as caught:
            Dataset(tmp_path / "x")
        assert "hunter" not in str(caught.value)


def test_a_file_system_without_hard_links(
    tmp_path: Path, runs: Path, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_dataset(tmp_path / "ds", [runs], shard_rows=40)
    monkeypatch.setattr(os, "link", raising(PermissionError()))
    naming = Naming(tmp_path, monkeypatch)
    append_dataset(tmp_path / "ds", [more])
    naming.assert_flushed("ds")
    assert verify_dataset(tmp_path / "ds").ok
    assert len(Dataset(tmp_path / "ds")) == 174
