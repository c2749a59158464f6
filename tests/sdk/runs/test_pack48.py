"""Packs of 48-byte rows: written from runs, merged with every field, and read with annotations."""

import json
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus, Session
from tape2048.errors import ColumnError, FieldError, MaintenanceError, TapeError
from tape2048.game import boards_to_exps
from tape2048.maintenance.validation import validate_session
from tape2048.runs import convert, merge_pack48, open_source, pack48
from tape2048.session.column_draft import write_column

from ..session.packs import KINDS, STEP_ROW, Played, games, rows_of, write_pack
from ..tapes import games_on_tape
from ..test_tape_corpus import write

PLAYED = games(12)
ANNOTATION = np.dtype(
    [
        ("run_id", "<u4"), ("step_index", "<u4"), ("teacher_move", "u1"), ("legal_mask", "u1"),
        ("policy_kind_mask", "u1"), ("argmax_head", "u1"), ("argmax_prob", "<f4"),
        ("policy_p1", "<f4", (4,)), ("policy_logp", "<f4", (4,)), ("policy_hard", "<f4", (4,)),
    ]
)  # fmt: skip


def load_as_2048former(directory: Path) -> tuple[NDArray[np.void], list[tuple[int, ...]]]:
    """All shards in the order of their names, and the run table."""
    shards = [np.load(path) for path in sorted(directory.glob("steps-*.npy"))]
    assert {shard.dtype for shard in shards} == {STEP_ROW}
    rows = np.concatenate(shards)
    with closing(sqlite3.connect(directory / "metadata.db")) as database:
        return rows, database.execute(
            "SELECT id, seed, steps, max_score, highest_tile FROM runs ORDER BY id"
        ).fetchall()


def packs(directory: Path, *, second: tuple[str, ...] = KINDS[::-1]) -> tuple[Path, Path]:
    """Two packs, one in shards, which number their kinds otherwise."""
    first = write_pack(directory / "d5", PLAYED[:6], shard_rows=300)
    rows = rows_of(PLAYED[6:])
    rows["valuation_type"] = [second.index(KINDS[kind]) for kind in rows["valuation_type"]]
    other = write_pack(directory / "d6", PLAYED[6:], rows=rows)
    (other / "valuation_types.json").write_text(json.dumps({kind: i for i, kind in enumerate(second)}))
    return first, other


def table_of(played: list[Played]) -> list[tuple[int, ...]]:
    return [(i, game.seed, len(game.steps), game.score, game.highest) for i, game in enumerate(played)]


@pytest.mark.parametrize("shard_rows", [128, 10**7])
def test_merged_packs_keep_every_field(
    tmp_path: Path, shard_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also rows after a 65536, which a reader leaves out."""
    monkeypatch.setattr(pack48, "SHARD_ROWS", shard_rows)
    monkeypatch.setattr(pack48, "_PIECE_ROWS", 100)
    found: list[tuple[int, int]] = []
    paths = packs(tmp_path)
    merged = merge_pack48(paths, tmp_path / "merged", progress=lambda *done: found.append(done))
    expected = rows_of(PLAYED)
    assert (merged.path, merged.sessions, merged.rows, merged.runs) == (
        tmp_path / "merged/d5", 2, len(expected), 12,
    )  # fmt: skip
    assert found[-1] == (len(expected), len(expected))
    rows, runs = load_as_2048former(merged.path)
    parts = rows_of(PLAYED[:6]), rows_of(PLAYED[6:])
    expected["board_eval"] = np.concatenate([part["board_eval"] for part in parts])
    for name in STEP_ROW.names or ():
        np.testing.assert_array_equal(rows[name], expected[name], name)
    assert runs == table_of(PLAYED)
    assert len(list(merged.path.glob("steps-*.npy"))) == -(-len(rows) // shard_rows)
    assert json.loads((merged.path / "valuation_types.json").read_text()) == {
        kind: i for i, kind in enumerate(KINDS)
    }
    assert validate_session(merged.path).findings == ()
    fields = ("tokens", "labels", "move", "branch_evs", "valuation_type", "board_eval")
    apart, together = Corpus.open(paths), Corpus.open(merged.path)
    assert len(apart) == len(together) < len(rows)
    for name, values in apart.fetch(slice(None), fields).items():
        np.testing.assert_array_equal(together.fetch(slice(None), fields)[name], values, name)
    again = merge_pack48(paths, tmp_path / "merged")
    assert again.path.parent == merged.path.parent
    assert again.path != merged.path
    third = merge_pack48([merged.path, write_pack(tmp_path / "d7", games(14)[12:])], tmp_path / "more")
    assert Session.open(third.path).meta["merged_from"][0]["merged_from"][1]["name"] == "d6"


def test_columns_beside_packs_are_joined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = packs(tmp_path)
    for number, path in enumerate(paths):
        session = Session.open(path)
        write_column(session, "mine", [np.arange(len(session), dtype=np.float32) + number], dtype="f32")
    write_column(session, "alone", [np.zeros(len(session), np.uint8)], dtype="u8")
    with pytest.raises(MaintenanceError, match=r"columns would be lost: alone: .*no column 'alone'"):
        merge_pack48(paths, tmp_path / "merged", all_columns=True)
    assert not (tmp_path / "merged").exists()
    with caplog.at_level(logging.WARNING, "tape2048"):
        merged = Session.open(merge_pack48(paths, tmp_path / "merged").path)
    assert [record.getMessage().partition(": ")[2][:6] for record in caplog.records] == ["alone:"]
    own = [Session.open(path).column("mine").values for path in paths]
    np.testing.assert_array_equal(merged.column("mine").values, np.concatenate(own))
    assert "alone" not in merged.columns


def test_rows_of_unknown_runs_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = packs(tmp_path)
    with closing(sqlite3.connect(paths[0] / "metadata.db")) as database, database:
        database.execute("DELETE FROM runs WHERE id = 2")
    with caplog.at_level(logging.WARNING, "tape2048"):
        merged = merge_pack48(paths, tmp_path / "merged")
    assert f"left out {len(PLAYED[2].steps)} rows of runs that are not in the run table" in caplog.text
    rows, runs = load_as_2048former(merged.path)
    kept = [game for game in PLAYED if game is not PLAYED[2]]
    assert runs == table_of(kept)
    np.testing.assert_array_equal(rows["board"], rows_of(kept)["board"])


def test_packs_that_cannot_be_merged(tmp_path: Path) -> None:
    first, second = packs(tmp_path)
    packed = np.dtype([(name, STEP_ROW[name]) for name in STEP_ROW.names or ()])  # rows of 46 bytes
    wide = write_pack(tmp_path / "wide", PLAYED[:1], rows=rows_of(PLAYED[:1], packed))
    (tmp_path / "own").mkdir()
    write(tmp_path / "own/20250101T030405Z_model=a", games_on_tape(1), "rows", action=True)
    copy = shutil.copytree(second, tmp_path / "copy")
    refusals: list[tuple[list[Path], str]] = [
        ([first], "found 1 pack, expected at least two"),
        ([first, second, tmp_path / "../" / tmp_path.name / "d5"], "this pack is given twice"),
        ([first, tmp_path / "own/20250101T030405Z_model=a"], "a session of a recorder; expected a pack"),
        ([first, wide], r"rows of type .*; expected .*V2.*, as in d5"),
        ([second, copy], r"2 runs have seed \d+ and \d+ steps; expected each run once"),
    ]
    for paths, message in refusals:
        with pytest.raises(MaintenanceError, match=message):
            merge_pack48(paths, tmp_path / "merged")
    for text in ('["search", "search"]', '{"search": 300}', '{"search": 0, "tuple11": 0}', "7"):
        (second / "valuation_types.json").write_text(text)
        with pytest.raises(MaintenanceError, match="expected another u8 number for each name") as caught:
            merge_pack48([first, second], tmp_path / "merged")
        assert str(caught.value.path).endswith("d6/valuation_types.json")
    (second / "valuation_types.json").write_text(json.dumps([f"name {i}" for i in range(254)]))
    with pytest.raises(MaintenanceError, match="found 257 names; expected at most 256 for u8 numbers"):
        merge_pack48([first, second], tmp_path / "merged")
    (second / "valuation_types.json").write_text('{"search": 0}')
    with pytest.raises(TapeError, match="is not among its names"):
        merge_pack48([first, second], tmp_path / "merged")
    assert not [path for path in (tmp_path / "merged").glob("*") if not path.name.startswith(".")]


def test_runs_become_rows_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack48, "SHARD_ROWS", 100)
    source = write_pack(tmp_path / "d5", [game for game in PLAYED if game.highest < 65536])
    convert(source, tmp_path / "first.a2pack", lossy=True)
    done = convert(tmp_path / "first.a2pack", tmp_path / "pack", "pack48")
    assert (done.kind, done.lost) == ("pack48", {})  # the final boards follow from the last moves
    rows, runs = load_as_2048former(tmp_path / "pack")
    theirs = np.load(source / "steps.npy")[: len(rows)]
    own = [run.run for run in open_source(tmp_path / "first.a2pack").runs() if run.run]
    assert [run[2:] for run in runs] == [(len(run), run.meta.max_score, run.meta.highest_tile) for run in own]
    np.testing.assert_array_equal(rows["board"], np.concatenate([run.boards for run in own]))
    np.testing.assert_array_equal(rows["move_dir"], np.concatenate([run.moves for run in own]))
    at = 0
    for run, game in zip(own, [game for game in PLAYED if game.highest < 65536], strict=True):
        mine, his = rows[at : at + len(run)], rows_of([game])[: len(run)]
        at += len(run)
        for name in ("step_index", "board", "ev_legal", "max_rank", "branch_evs", "move_dir"):
            np.testing.assert_array_equal(mine[name], his[name], name)
    assert len(theirs) == len(rows)
    assert validate_session(tmp_path / "pack").findings == ()
    convert(tmp_path / "pack", tmp_path / "back.a2pack", lossy=True)
    for one, other in zip(open_source(tmp_path / "back.a2pack").runs(), own, strict=True):
        assert one.run is not None
        np.testing.assert_array_equal(one.run.boards[: len(other)], other.boards[: len(one.run)])
        np.testing.assert_array_equal(one.run.branch_values, other.branch_values[: len(one.run)])


@pytest.mark.parametrize("both", [False, True], ids=["pack", "packs"])
def test_a_pack_of_a_pack_keeps_every_field(
    tmp_path: Path, both: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of several packs, which number their kinds otherwise; rows after a 65536 end with the game."""
    first, _ = packs(tmp_path / "given")
    assert convert(tmp_path / "given" if both else first, tmp_path / "out", "pack48").lost == {}
    assert caplog.messages == []
    rows, runs = load_as_2048former(tmp_path / "out")
    given = rows_of(PLAYED[: 12 if both else 6])
    given["board_eval"] = np.concatenate([rows_of(PLAYED[:6]), rows_of(PLAYED[6:])])["board_eval"][
        : len(given)
    ]
    kept = given[np.isin(given[["run_id", "step_index"]], rows[["run_id", "step_index"]])]
    for name in STEP_ROW.names or ():
        np.testing.assert_array_equal(rows[name], kept[name], name)
    assert [run[1] for run in runs] == [game.seed for game in PLAYED[: len(runs)]]
    names = Session.open(tmp_path / "out").columns["valuation_type"].facts["names"]
    assert names == {kind: i for i, kind in enumerate(KINDS)}


def test_a_field_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    wide = np.dtype(
        [(name, "<i8" if name == "board_eval" else STEP_ROW[name]) for name in STEP_ROW.names or ()]
    )
    rows = rows_of(PLAYED[:1], wide)
    rows["board_eval"][3] = 1 << 40
    path = write_pack(tmp_path / "pack", PLAYED[:1], rows=rows)
    with pytest.raises(
        FieldError, match=r"pack: run 0: its field board_eval is int64 .* that int32 can hold"
    ):
        convert(path, tmp_path / "out", "pack48")
    assert not (tmp_path / "out").exists()


def test_a_recorders_games_become_a_pack(tmp_path: Path) -> None:
    """Without values; the player and the seeds stay, so that a game is in the same part of a split."""
    write(tmp_path / "20250101T030405Z_model=a", games_on_tape(*range(5)), "tape", action=True)
    session = Session.open(tmp_path / "20250101T030405Z_model=a")
    convert(session.path, tmp_path / "pack", "pack48", lossy=True)
    rows, runs = load_as_2048former(tmp_path / "pack")
    assert not rows["ev_legal"].any()
    assert not rows["branch_evs"].any()
    tokens = Corpus.open(session.path).fetch(slice(None), ("tokens",))["tokens"]
    np.testing.assert_array_equal(boards_to_exps(rows["board"]), tokens)
    assert [run[2] for run in runs] == session.runs["steps"].tolist()


# ------------------------------------------------------------------------------------- annotations


def annotations_of(rows: NDArray[np.void]) -> NDArray[np.void]:
    rng, found = np.random.default_rng(5), np.zeros(len(rows), ANNOTATION)
    found["run_id"], found["step_index"] = rows["run_id"], rows["step_index"]
    found["teacher_move"], found["legal_mask"] = rows["move_dir"], rows["ev_legal"]
    found["policy_p1"] = rng.random((len(rows), 4))
    found["policy_logp"] = np.log(found["policy_p1"])
    found["argmax_head"] = found["policy_p1"].argmax(axis=1)
    found["argmax_prob"] = found["policy_p1"].max(axis=1)
    return found


def write_shards(directory: Path, rows: NDArray[np.void], shard_rows: int | None) -> None:
    directory.mkdir(exist_ok=True, parents=True)
    for old in directory.glob("annotations*.npy"):
        old.unlink()
    if shard_rows is None:
        np.save(directory / "annotations.npy", rows)
    for number, first in enumerate(range(0, len(rows), shard_rows) if shard_rows else ()):
        np.save(directory / f"annotations-{number:05d}.npy", rows[first : first + (shard_rows or 0)])


@pytest.mark.parametrize("shard_rows", [None, 300, 77])
@pytest.mark.parametrize("beside", [True, False])
def test_annotations_are_columns(tmp_path: Path, shard_rows: int | None, beside: bool) -> None:
    """Beside the rows, or in an overlay; the shards need not match those of the rows."""
    path, _ = packs(tmp_path)
    rows = annotations_of(rows_of(PLAYED[:6]))
    write_shards(path if beside else tmp_path / "annotations/d5", rows, shard_rows)
    (path / "annotation_manifest.json").write_text("{}")
    corpus = Corpus.open(path, columns=None if beside else tmp_path / "annotations")
    (session,) = corpus.sessions
    assert {"policy_p1", "policy_logp", "argmax_head", "teacher_move", "branch_evs"} <= {*session.columns}
    assert session.columns["policy_p1"].shape == (len(rows), 4)
    fields = ("policy_p1", "argmax_prob", "teacher_move", "move", "branch_evs", "step", "run")
    found = corpus.fetch(slice(None), fields)
    place = {(int(row["run_id"]), int(row["step_index"])): i for i, row in enumerate(rows)}
    ids = corpus.runs["run_id"][found["run"]]
    at = [place[pair] for pair in zip(ids.tolist(), found["step"].tolist(), strict=True)]
    for name in ("policy_p1", "argmax_prob", "teacher_move"):
        np.testing.assert_array_equal(found[name], rows[name][at], name)
    np.testing.assert_array_equal(found["teacher_move"], found["move"])
    assert validate_session(path).findings == ()
    served = next(
        iter(corpus.batches(64, seed=1, augment="d4", fields=("policy_p1", "branch_evs", "tokens")))
    )
    assert served["policy_p1"].shape == (64, 4)


def test_annotations_of_other_rows_are_refused(tmp_path: Path) -> None:
    path, _ = packs(tmp_path)
    rows = annotations_of(rows_of(PLAYED[:6]))
    changed = rows.copy()
    changed["step_index"][7] += 1
    cases: list[tuple[Any, str]] = [
        (changed, r"row 7 has step_index 8\. The session's row has 7"),
        (rows[:-1], rf"{len(rows) - 1} rows in \d files, expected {len(rows)}"),
        (np.zeros(len(rows), [("run_id", "<u4"), ("policy_p1", "<f4", (4,))]), "no column 'policy_p1'"),
        (np.zeros((len(rows), 4, 3), "f4"), "no column 'policy_p1'"),
    ]
    for content, message in cases:
        write_shards(path, content, 300)
        with pytest.raises(ColumnError, match=message):
            Session.open(path).column("policy_p1")
    write_shards(path, rows, 300)
    (path / "annotations-00001.npy").write_bytes(b"\x93NUMPY damaged")
    with pytest.raises(TapeError, match=r"annotations-00001\.npy"):
        Session.open(path).column("policy_p1")
    (path / "annotations-00000.npy").write_bytes(b"")
    assert "policy_p1" not in Session.open(path).columns
    write(tmp_path / "20250101T030405Z_model=a", games_on_tape(1), "rows", action=True)
    own = tmp_path / "20250101T030405Z_model=a"
    write_shards(own, rows[: len(Session.open(own))], None)
    with pytest.raises(ColumnError, match="found annotations of another program in a session of a recorder"):
        Session.open(own).column("policy_p1")
