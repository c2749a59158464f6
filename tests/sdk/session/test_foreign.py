"""Directories that others wrote: the seed's columns alone, shards, runs that take turns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from tape2048 import Corpus, Session, errors, validate_session
from tape2048.runs.exports import export
from tape2048.session.layout import ACTION_STEP_DTYPE, RUN_DTYPE, STEP_DTYPE
from tape2048.session.run_table import find_owners, keep_owned

from ..builders import GAMES, NAME, Game, Spec, npy_bytes, rows_of, write_foreign, write_manifest, write_ours

HIGHEST = {game.id: game.highest_tile for game in GAMES}


def check_against_rows(session: Session, rows: NDArray[np.void]) -> None:
    """Everything the session says of its rows, against the rows themselves."""
    assert session.steps.tobytes() == rows.tobytes()
    ids = session.runs["run_id"]
    np.testing.assert_array_equal(ids[session.run_index(slice(None))], rows["run_id"].astype(np.uint64))
    some = np.array([0, len(rows) - 1, len(rows) // 2, 0])
    np.testing.assert_array_equal(ids[session.run_index(some)], rows["run_id"][some].astype(np.uint64))
    np.testing.assert_array_equal(session.run_index(slice(2, 9)), session.run_index(np.arange(2, 9)))
    for ordinal, run in enumerate(session.runs):
        mine = np.flatnonzero(rows["run_id"].astype(np.uint64) == run["run_id"])
        np.testing.assert_array_equal(np.arange(len(rows))[session.numbers_of(ordinal)], mine)
        assert run["rows"] == len(mine)
        assert run["first_row"] == (mine[0] if len(mine) else len(rows))
    assert (np.diff(session.runs["first_row"].astype(np.int64)) >= 0).all()
    expected = np.array(
        [[HIGHEST[i] >= tile for tile in (8192, 16384, 32768)] for i in rows["run_id"].tolist()]
    )
    np.testing.assert_array_equal(session.labels(), expected)


@pytest.mark.parametrize("action", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shard_rows", [None, 20, 6, 1])
def test_seed_columns_alone(
    tmp_path: Path, action: bool, signed: bool, interleaved: bool, shard_rows: int | None
) -> None:
    spec = Spec(action=action, signed_ids=signed, interleaved=interleaved)
    session = Session.open(write_foreign(tmp_path / "theirs", spec, shard_rows=shard_rows))
    assert session.steps.dtype == (ACTION_STEP_DTYPE if action else STEP_DTYPE)
    assert session.load == "mmap"
    assert session.contiguous is not interleaved
    assert session.blocks is None
    assert session.manifest is None
    check_against_rows(session, rows_of(spec))


def test_negative_ids(tmp_path: Path) -> None:
    def change(rows: NDArray[np.void]) -> None:
        rows["run_id"] = -3

    games = [Game(2**64 - 3, 4)]
    rows = Spec(games=[Game(1, 4)], signed_ids=True, change_rows=change)
    path = write_foreign(tmp_path / "theirs", Spec(games=games))
    made = rows_of(rows)
    change(made)
    (path / "steps.npy").write_bytes(npy_bytes(made))
    assert Session.open(path).runs["rows"].tolist() == [4]


def test_run_without_rows_is_kept_at_the_end(tmp_path: Path) -> None:
    sql = "INSERT INTO runs VALUES (1, 0, 9, 9, 32768), (99, 0, 9, 9, 8192)"
    session = Session.open(write_foreign(tmp_path / "theirs", Spec(sql=sql)))
    assert session.runs["run_id"].tolist() == [11, 12, 13, 15, 14, 1, 99]
    assert session.runs["first_row"].tolist()[-2:] == [20, 20]
    assert session.numbers_of(5) == slice(20, 20)
    assert session.run_labels()[5].all()
    assert session.labels().shape == (20, 3)
    assert session.contiguous


def test_run_without_rows_among_runs_that_take_turns(tmp_path: Path) -> None:
    sql = "INSERT INTO runs VALUES (1, 0, 9, 9, 32768)"
    session = Session.open(write_foreign(tmp_path / "theirs", Spec(sql=sql, interleaved=True)))
    rows = session.numbers_of(5)
    assert isinstance(rows, np.ndarray)
    assert rows.tolist() == []


class TestRowsWithoutRun:
    """What a recorder leaves that was killed before some games reached the run table."""

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("shard_rows", [None, 7])
    @pytest.mark.parametrize("load", ["mmap", "ram"])
    @pytest.mark.parametrize("lacks", [*([game.id] for game in GAMES), [11, 14], [12, 13, 15]], ids=str)
    def test_as_if_they_had_never_been(
        self, tmp_path: Path, lacks: list[int], interleaved: bool, shard_rows: int | None, load: Any
    ) -> None:
        sql = f"DELETE FROM runs WHERE id IN ({', '.join(map(str, lacks))})"
        spec = Spec(interleaved=interleaved, sql=sql)
        path = write_foreign(tmp_path / "20250102T030405Z_model=a", spec, shard_rows=shard_rows)
        rows = rows_of(spec)
        left = rows[~np.isin(rows["run_id"], lacks)]
        session = Session.open(path, load)
        check_against_rows(session, left)
        assert session.rows_without_run == len(rows) - len(left)
        assert len(session) == len(left)
        np.testing.assert_array_equal(session.tokens(slice(None)), left["exps"])
        assert session.load == load
        assert not session.steps.flags.writeable

        other = Spec(games=[game for game in GAMES if game.id not in lacks], interleaved=interleaved)
        clean = write_foreign(tmp_path / "clean" / path.name, other)
        for held in ("mmap", "packed", "ram"):
            corpus, expected = Corpus.open(path, load=held), Corpus.open(clean, load=held)
            np.testing.assert_array_equal(corpus[:], expected[:])
            fields = ("tokens", "labels", "row", "run", "step", "move")
            for name, found in corpus.fetch(slice(None), fields).items():
                np.testing.assert_array_equal(found, expected.fetch(slice(None), fields)[name])
        for number, name in enumerate((path, clean)):
            export(Corpus.open(name), tmp_path / f"{number}.jsonl", format="jsonl")
        assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()

    def test_beside_other_sessions(self, tmp_path: Path) -> None:
        write_ours(tmp_path / NAME)
        write_foreign(tmp_path / "theirs", Spec(sql="DELETE FROM runs WHERE id = 13"))
        assert len(Corpus.open(tmp_path)) == 20 + 13

    def test_killed_before_the_first_run(self, tmp_path: Path) -> None:
        assert len(Session.open(write_foreign(tmp_path / "empty", Spec(games=[])))) == 0
        session = Session.open(write_foreign(tmp_path / "theirs", Spec(sql="DELETE FROM runs")))
        assert (len(session), len(session.runs), session.rows_without_run) == (0, 0, 20)
        assert session.tokens(slice(None)).shape == (0, 16)

    def test_not_one_row_of_the_table(self, tmp_path: Path) -> None:
        sql = "UPDATE runs SET id = id + 100"
        path = write_foreign(tmp_path / "theirs", Spec(sql=sql))
        with pytest.raises(errors.BookkeepingError, match="row 0 belongs to run 11, which"):
            Session.open(path)
        assert [found.error for found in validate_session(path).findings][:1] == ["BookkeepingError"]

    def test_a_manifest_counts_each_row(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", Spec(sql="DELETE FROM runs WHERE id = 13"))
        write_manifest(path, rows=20, runs=4)
        with pytest.raises(errors.BookkeepingError, match="row 6 belongs to run 13, which"):
            Session.open(path)
        assert not validate_session(path).ok

    def test_validation_notes_them(self, tmp_path: Path) -> None:
        def change(rows: NDArray[np.void]) -> None:
            rows["exps"][6:13] = 0  # half written

        spec = Spec(sql="DELETE FROM runs WHERE id = 13", change_rows=change)
        report = validate_session(write_foreign(tmp_path / "theirs", spec))
        assert report.findings == ()
        assert report.notes == ("7 rows of games that are not in the table runs: left out",)
        assert validate_session(write_ours(tmp_path / NAME)).notes == ()


def test_one_row_column_alone_is_ignored(tmp_path: Path) -> None:
    spec = Spec(sql="ALTER TABLE runs ADD COLUMN first_row INT DEFAULT 0")
    check_against_rows(Session.open(write_foreign(tmp_path / "theirs", spec)), rows_of(spec))


class TestShards:
    def test_missing(self, tmp_path: Path) -> None:
        for missing in (1, 2, 3):
            path = write_foreign(tmp_path / str(missing), shard_rows=5)
            (path / f"steps-{missing:06d}.npy").unlink()
            with pytest.raises(errors.NotASessionError, match=f"steps-{missing:06d}.npy is missing"):
                Session.open(path)
        path = write_ours(tmp_path / NAME, Spec(manifest=False))
        (path / "steps.npy").unlink()
        (path / "steps-000001.npy").write_bytes(npy_bytes(rows_of(Spec())[:13]))
        with pytest.raises(errors.BookkeepingError, match=r"20 rows together\. The steps have 13"):
            Session.open(path)

    def test_damaged(self, tmp_path: Path) -> None:
        part = write_foreign(tmp_path / "theirs", shard_rows=10) / "steps-000002.npy"
        truncated, other = part.read_bytes()[:-1], npy_bytes(rows_of(Spec(action=True))[10:])
        for content, kind in ((truncated, errors.TruncatedError), (other, errors.NpyError)):
            part.write_bytes(content)
            with pytest.raises(kind) as caught:
                Session.open(part.parent)
            assert caught.value.path == str(part)

    def test_other_names_are_no_shards(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=20)
        for name in ("steps-1.npy", "steps-0000002.npy", "steps-000002.npy.tmp", "xsteps-000002.npy"):
            (path / name).write_bytes(b"")
        assert len(Session.open(path)) == 20


@given(st.lists(st.integers(0, 6), max_size=80), st.integers(1, 9))
def test_scan_in_chunks_of_any_size(owners: list[int], chunk: int) -> None:
    """Against the plain definition, for any order of rows and wherever a chunk ends."""
    runs = np.zeros(7, RUN_DTYPE)
    runs["run_id"] = np.array([5, 3, 2**63, 0, 9, 2**64 - 1, 4], np.uint64)
    ids = runs["run_id"][np.array(owners, np.int64)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tape2048.session.run_table._SCAN_ROWS", chunk)
        starts, owner = find_owners(runs, len(ids), ids.__getitem__, "x")
    table, found, _ = keep_owned(runs, starts, owner, len(ids))
    np.testing.assert_array_equal(table["run_id"][found.between(0, len(ids))], ids)
    np.testing.assert_array_equal(table["run_id"][found.of(np.arange(len(ids)))], ids)
    for ordinal, run in enumerate(table):
        mine = np.flatnonzero(ids == run["run_id"])
        assert (run["rows"], run["first_row"]) == (len(mine), mine[0] if len(mine) else len(ids))
        np.testing.assert_array_equal(found.rows_of(ordinal), mine)
    stretches = 1 + np.count_nonzero(ids[1:] != ids[:-1]) if len(ids) else 0
    assert found.contiguous == (stretches == len(set(owners)))


@given(st.lists(st.integers(0, 6), max_size=60), st.sets(st.integers(0, 6)), st.integers(1, 9))
def test_rows_of_no_run_in_any_order(owners: list[int], lacking: set[int], chunk: int) -> None:
    """As a scan of the other rows alone."""
    runs = np.zeros(7, RUN_DTYPE)
    runs["run_id"] = np.array([5, 3, 2**63, 0, 9, 2**64 - 1, 4], np.uint64)
    ids = runs["run_id"][np.array(owners, np.int64)]
    table = np.delete(runs, sorted(lacking))
    mask = np.isin(ids, table["run_id"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tape2048.session.run_table._SCAN_ROWS", chunk)
        if len(table) and len(ids) and not mask.any():
            with pytest.raises(errors.BookkeepingError, match="row 0 belongs to run"):
                find_owners(table, len(ids), ids.__getitem__, "x", whole=False)
            return
        starts, owner = find_owners(table, len(ids), ids.__getitem__, "x", whole=False)
        found_table, found, kept = keep_owned(table, starts, owner, len(ids))
        expected_table, expected, _ = keep_owned(
            table, *find_owners(table, mask.sum(), ids[mask].__getitem__, "x"), mask.sum()
        )
    np.testing.assert_array_equal(
        np.repeat(np.isin(np.arange(len(starts)), kept), np.diff([*starts, len(ids)])), mask
    )
    np.testing.assert_array_equal(found_table, expected_table)
    assert found.contiguous == expected.contiguous
    count = int(mask.sum())
    np.testing.assert_array_equal(found.between(0, count), expected.between(0, count))
