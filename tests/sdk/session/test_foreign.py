"""Directories that others wrote: the seed's columns alone, shards, runs that take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape2048 import Session, errors
from tape2048.formats.session import ACTION_STEP_DTYPE, RUN_DTYPE, STEP_DTYPE
from tape2048.session.row_owners import from_scan

from ..builders import GAMES, NAME, Game, Spec, npy_bytes, rows_of, write_foreign, write_ours

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HIGHEST = {game.id: game.highest_tile for game in GAMES}


def check_against_rows(session: Session, rows: NDArray[np.void]) -> None:
    """Everything the session says of its rows, against the rows themselves."""
    assert session.steps.tobytes() == rows.tobytes()
    ids = session.runs["id"]
    np.testing.assert_array_equal(ids[session.run_index(slice(None))], rows["run_id"].astype(np.uint64))
    some = np.array([0, len(rows) - 1, len(rows) // 2, 0])
    np.testing.assert_array_equal(ids[session.run_index(some)], rows["run_id"][some].astype(np.uint64))
    np.testing.assert_array_equal(session.run_index(slice(2, 9)), session.run_index(np.arange(2, 9)))
    for ordinal, run in enumerate(session.runs):
        mine = np.flatnonzero(rows["run_id"].astype(np.uint64) == run["id"])
        np.testing.assert_array_equal(np.arange(len(rows))[session.rows_of(ordinal)], mine)
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
    assert session.load == ("mmap" if shard_rows is None else "ram")
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
    assert session.runs["id"].tolist() == [11, 12, 13, 15, 14, 1, 99]
    assert session.runs["first_row"].tolist()[-2:] == [20, 20]
    assert session.rows_of(5) == slice(20, 20)
    assert session.run_labels()[5].all()
    assert session.labels().shape == (20, 3)
    assert session.contiguous


def test_run_without_rows_among_runs_that_take_turns(tmp_path: Path) -> None:
    sql = "INSERT INTO runs VALUES (1, 0, 9, 9, 32768)"
    session = Session.open(write_foreign(tmp_path / "theirs", Spec(sql=sql, interleaved=True)))
    rows = session.rows_of(5)
    assert isinstance(rows, np.ndarray)
    assert rows.tolist() == []


@pytest.mark.parametrize("game", GAMES, ids=lambda game: str(game.id))
def test_row_of_a_run_that_the_table_lacks(tmp_path: Path, game: Game) -> None:
    path = write_foreign(tmp_path / "theirs", Spec(sql=f"DELETE FROM runs WHERE id = {game.id}"))
    row = int(np.flatnonzero(rows_of(Spec())["run_id"] == game.id)[0])
    with pytest.raises(errors.BookkeepingError, match=f"row {row} belongs to run {game.id}, which"):
        Session.open(path)


def test_no_runs_at_all(tmp_path: Path) -> None:
    assert len(Session.open(write_foreign(tmp_path / "empty", Spec(games=[])))) == 0
    with pytest.raises(errors.BookkeepingError, match="row 0 belongs to run 11"):
        Session.open(write_foreign(tmp_path / "theirs", Spec(sql="DELETE FROM runs")))


def test_one_of_the_row_columns_alone_is_not_enough_to_go_by(tmp_path: Path) -> None:
    spec = Spec(sql="ALTER TABLE runs ADD COLUMN first_row INT DEFAULT 0")
    check_against_rows(Session.open(write_foreign(tmp_path / "theirs", spec)), rows_of(spec))


class TestShards:
    @pytest.mark.parametrize("missing", [1, 2, 3])
    def test_gap(self, tmp_path: Path, missing: int) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=5)
        (path / f"steps-{missing:06d}.npy").unlink()
        with pytest.raises(errors.NotASessionError, match=f"steps-{missing:06d}.npy is missing"):
            Session.open(path)

    def test_last_one_missing_shows_in_the_rows_of_our_own_table(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME, Spec(manifest=False))
        (path / "steps.npy").unlink()
        (path / "steps-000001.npy").write_bytes(npy_bytes(rows_of(Spec())[:13]))
        with pytest.raises(errors.BookkeepingError, match="20 rows together; the steps have 13"):
            Session.open(path)

    def test_other_row_type(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=10)
        (path / "steps-000002.npy").write_bytes(npy_bytes(rows_of(Spec(action=True))[10:]))
        with pytest.raises(errors.NpyDtypeError) as caught:
            Session.open(path)
        assert caught.value.path == str(path / "steps-000002.npy")

    def test_truncated(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=10)
        part = path / "steps-000002.npy"
        part.write_bytes(part.read_bytes()[:-1])
        with pytest.raises(errors.TruncatedError):
            Session.open(path)

    def test_other_names_are_no_shards(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=20)
        for name in ("steps-1.npy", "steps-0000002.npy", "steps-000002.npy.tmp", "xsteps-000002.npy"):
            (path / name).write_bytes(b"")
        assert len(Session.open(path)) == 20


@given(st.lists(st.integers(0, 6), max_size=80), st.integers(1, 9))
def test_scan_in_chunks_of_any_size(owners: list[int], chunk: int) -> None:
    """Against the plain definition, for any order of rows and wherever a chunk ends."""
    runs = np.zeros(7, RUN_DTYPE)
    runs["id"] = np.array([5, 3, 2**63, 0, 9, 2**64 - 1, 4], np.uint64)
    ids = runs["id"][np.array(owners, np.int64)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tape2048.session.row_owners._SCAN_ROWS", chunk)
        table, found = from_scan(runs, ids, "x")
    np.testing.assert_array_equal(table["id"][found.between(0, len(ids))], ids)
    np.testing.assert_array_equal(table["id"][found.of(np.arange(len(ids)))], ids)
    for ordinal, run in enumerate(table):
        mine = np.flatnonzero(ids == run["id"])
        assert (run["rows"], run["first_row"]) == (len(mine), mine[0] if len(mine) else len(ids))
        np.testing.assert_array_equal(found.rows_of(ordinal), mine)
    stretches = 1 + np.count_nonzero(ids[1:] != ids[:-1]) if len(ids) else 0
    assert found.contiguous == (stretches == len(set(owners)))
