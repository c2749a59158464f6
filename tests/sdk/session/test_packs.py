"""Packs and games of another project: shards, unknown fields, 65536, and what contradicts itself."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus, Mixture, Session, errors, validate_session
from tape2048.maintenance import validation
from tape2048.runs import build_dataset, convert, open_source, scan

from ..builders import Spec, memory_below, rows_of as own_rows, write_foreign
from .packs import KINDS, STEP_ROW, Played, games, rows_of, slide, write_pack, write_raw

LOADS = ("mmap", "packed", "ram")
OF_BOARDS = ("tokens", "labels", "run", "step", "move", "legal")
WIDE = np.dtype(
    [
        ("flag", "?"),
        *((name, STEP_ROW[name]) for name in STEP_ROW.names or ()),
        ("x", "<f8", (3,)),
        ("t", "S5"),
    ]
)


@cache
def played() -> list[Played]:
    return games(55)


@cache
def all_rows() -> NDArray[np.void]:
    return rows_of(played())


def kept(game: Played) -> int:
    """Steps up to the move that makes the first 65536."""
    return next((i for i, step in enumerate(game.steps) if max(step.board) > 15), len(game.steps))


@cache
def expected() -> dict[str, NDArray[Any]]:
    counts = np.array([kept(game) for game in played()])
    rows = all_rows()[all_rows()["step_index"] < counts[all_rows()["run_id"]]]
    boards = [step.board for game in played() for step in game.steps[: kept(game)]]
    highest = np.array([min(game.highest, 65536) for game in played()])[rows["run_id"]]
    return {name: rows[name] for name in STEP_ROW.names or ()} | {
        "tokens": np.array(boards, np.uint8), "labels": highest[:, None] >= [8192, 16384, 32768],
        "run": rows["run_id"], "step": rows["step_index"], "action": rows["move_dir"],
        "move": rows["move_dir"], "legal": rows["ev_legal"],
    }  # fmt: skip


def check(corpus: Corpus, fields: tuple[str, ...], rows: Any = slice(None)) -> None:
    found = corpus.fetch(rows, fields)
    for name in fields:
        np.testing.assert_array_equal(found[name], expected()[name][rows], name)


def changed(directory: Path, change: Callable[[NDArray[np.void]], object], **options: Any) -> Path:
    rows = all_rows().copy()
    change(rows)
    return write_pack(directory, played(), rows=rows, **options)


@pytest.mark.parametrize("shard_rows", [None, 1000, 64])
@pytest.mark.parametrize("dtype", [STEP_ROW, WIDE], ids=["documented", "more-fields"])
def test_every_field(tmp_path: Path, shard_rows: int | None, dtype: np.dtype[Any]) -> None:
    rows = rows_of(played(), dtype)
    path = write_pack(tmp_path / "pack", played(), shard_rows=shard_rows, rows=rows)
    session = Session.open(path)
    assert (len(session.runs), session.load, session.contiguous) == (55, "mmap", True)
    assert session.runs["steps"].tolist() == [kept(game) for game in played()]
    np.testing.assert_array_equal(session.tokens(slice(None)), expected()["tokens"])
    np.testing.assert_array_equal(session.moves(slice(3, 90)), expected()["action"][3:90])
    np.testing.assert_array_equal(session.get_batch([9, 2])["step_idx"], [9, 2])
    fields = (*OF_BOARDS, "action", "board_eval", "branch_evs", "max_rank", "valuation_type")
    order = np.random.default_rng(1).permutation(len(session))
    for load in LOADS:
        corpus = Corpus.open(path, load=load)
        check(corpus, fields)
        check(corpus, fields, order)
        np.testing.assert_array_equal(corpus[:], session.steps)
    beyond = len(rows) - len(session)
    assert beyond > 100
    report = validate_session(path)
    assert (report.findings, report.rows) == ((), len(rows))
    assert report.notes == (f"{beyond} rows after the first 65536 tile of a game: left out",)


@pytest.mark.parametrize("load", LOADS)
def test_selections(tmp_path: Path, load: Any) -> None:
    corpus = Corpus.open(write_pack(tmp_path / "pack", played(), shard_rows=700), load=load)
    of, rows = expected(), np.arange(len(corpus))
    high = [number for number, game in enumerate(played()) if game.highest > 32768]
    for view, chosen in (
        (corpus.phase(steps=(20, 50)), (of["step"] >= 20) & (of["step"] < 50)),
        (corpus.phase(empties=(0, 5)), (of["tokens"] == 0).sum(axis=1) < 5),
        (corpus.rows_where("branch_evs[0] > 2 AND board_eval < -9"),
         (of["branch_evs"][:, 0] > 2) & (of["board_eval"] < -9)),
        (corpus.where("highest_tile = 65536"), np.isin(of["run"], high)),
    ):  # fmt: skip
        found = view.fetch(slice(None), ("tokens", "branch_evs", "move"))
        for name, values in found.items():
            np.testing.assert_array_equal(values, of[name][rows[chosen]])
    batch = next(iter(corpus.batches(64, fields=("tokens", "branch_evs", "row"), seed=1, augment="d4")))
    values = np.sort(batch["branch_evs"], axis=1)  # they turn with the board
    np.testing.assert_array_equal(values, np.sort(of["branch_evs"][batch["row"]], axis=1))
    pooled = next(
        iter(corpus.batches(64, fields=("tokens", "action", "board_eval", "row"), seed=1, pool_rows=4000))
    )
    np.testing.assert_array_equal(pooled["tokens"], of["tokens"][pooled["row"]])
    np.testing.assert_array_equal(pooled["board_eval"], of["board_eval"][pooled["row"]])


LAYOUTS = {
    "exponents": np.dtype([("exps", "u1", (16,)), ("note", "<i2"), ("step_idx", "<u8"), ("run_id", "<i8")]),
    "same-size": np.dtype([("run_id", "<u4"), ("step_index", "<i4"), ("board", "<u8"), ("pad", "V12")]),
    "bare": np.dtype([("board", "<i8"), ("step_index", "<u4"), ("run_id", "<u4")]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_any_rows_with_run_step_and_board(tmp_path: Path, layout: str, interleaved: bool) -> None:
    low = [game for game in played() if game.highest < 65536][:20]
    given = rows_of(low)
    order = np.argsort(given["step_index"], kind="stable") if interleaved else np.arange(len(given))
    boards = np.array([step.board for game in low for step in game.steps], np.uint8)[order]
    rows = np.zeros(len(given), LAYOUTS[layout])
    names = rows.dtype.names or ()
    rows["run_id"], rows["step_idx" if "step_idx" in names else "step_index"] = (
        given[name][order] for name in ("run_id", "step_index")
    )
    rows["exps" if layout == "exponents" else "board"] = (
        boards if layout == "exponents" else given["board"][order].view(rows.dtype["board"])
    )
    path = write_pack(tmp_path / "pack", low, shard_rows=999, rows=rows)
    session = Session.open(path)
    assert session.contiguous is not interleaved
    np.testing.assert_array_equal(session.tokens(slice(None)), boards)
    for load in LOADS:
        found = Corpus.open(path, load=load).fetch(slice(None), OF_BOARDS)
        by_run = np.argsort(given["run_id"][order], kind="stable")
        np.testing.assert_array_equal(found["tokens"], boards[by_run])
        np.testing.assert_array_equal(found["step"], given["step_index"])
        last = np.append(np.diff(given["run_id"]) != 0, True)  # followed by no row
        recovered = found["move"] < 4
        assert not recovered[last].any()
        np.testing.assert_array_equal(found["move"][recovered], given["move_dir"][recovered])
        assert recovered[~last].mean() > 0.9
    assert validate_session(path).ok
    np.testing.assert_array_equal(session.moves(by_run), found["move"])


def test_names_of_valuations_are_facts(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "pack", played()[:3])
    assert Session.open(path).columns["valuation_type"].facts == {
        "names": {k: i for i, k in enumerate(KINDS)}
    }
    for document in ([*KINDS], {str(i): k for i, k in enumerate(KINDS)}):
        (path / "valuation_types.json").write_text(json.dumps(document))
        assert Session.open(path).columns["valuation_type"].facts["names"] == {
            k: i for i, k in enumerate(KINDS)
        }
    (path / "valuation_types.json").write_text("{")
    with pytest.raises(errors.ColumnError, match="malformed"):
        Session.open(path).column("valuation_type")


@pytest.mark.parametrize("load", LOADS)
def test_numbers_of_valuations_are_joined_by_name(tmp_path: Path, load: Any) -> None:
    """Two packs that number their names otherwise, and one with a further name."""
    kinds = {"d5": KINDS, "d6": (*KINDS[::-1], "book")}
    for at, (name, order) in enumerate(kinds.items()):
        given = played()[9 * at : 9 * at + 9]
        rows = rows_of(given)
        rows["valuation_type"] = [order.index(KINDS[kind]) for kind in rows["valuation_type"]]
        rows["valuation_type"][::5] = len(order) - 1
        path = write_pack(tmp_path / name, given, rows=rows)
        numbers = {kind: i for i, kind in enumerate(order)}
        (path / "valuation_types.json").write_text(json.dumps(numbers if at else [*order]))
    corpus = Corpus.open(tmp_path, load=load)
    batch = next(iter(corpus.batches(10**6, fields=("valuation_type", "run", "row"), shuffle=False)))
    (info,) = batch.layout.columns
    assert info.facts["names"] == {kind: i for i, kind in enumerate((*KINDS, "book"))}
    words = np.array([*info.facts["names"]])[batch.valuation_type]
    own = [
        np.array(order)[Session.open(tmp_path / name).column("valuation_type").values]
        for name, order in kinds.items()
    ]
    np.testing.assert_array_equal(words, np.concatenate(own))
    for kind in (*KINDS, "book"):
        number = info.facts["names"][kind]
        for condition in (f"valuation_type = {number}", f"valuation_type = '{kind}'"):
            assert len(corpus.rows_where(condition)) == (words == kind).sum()
    with pytest.raises(errors.ConfigError, match="valuation_type has no 'bok'; expected one of search, "):
        corpus.rows_where("valuation_type <> 'bok'")
    mixture = Mixture([(Corpus.open(tmp_path / name, load=load), 0.5) for name in kinds])
    with pytest.raises(errors.CorpusError, match=r"source 1 .*: found valuation_type: u8 \[N\], n"):
        mixture.batches(10, fields=("valuation_type",))
    (tmp_path / "d6" / "valuation_types.json").write_text('{"search": 0}')
    with pytest.raises(errors.CorpusError, match=r"found the number \d, which is not among its names"):
        Corpus.open(tmp_path).fetch([0], ("valuation_type",))
    (tmp_path / "d6" / "valuation_types.json").unlink()
    with pytest.raises(errors.CorpusError, match=r"found u8 \[N\]; expected u8 \[N\], names"):
        Corpus.open(tmp_path).fetch([0], ("valuation_type",))


def test_a_field_is_mapped_in_place(tmp_path: Path) -> None:
    low = [game for game in played() if game.highest < 65536]
    session = Session.open(write_pack(tmp_path / "pack", low))
    values = session.column("branch_evs").values
    assert np.shares_memory(values, session.stored)
    np.testing.assert_array_equal(values, rows_of(low)["branch_evs"])


def test_opening_copies_and_reads_no_rows(tmp_path: Path) -> None:
    """Three sparse shards of 2M rows: opening allocates less than 1 MB."""
    path = write_pack(tmp_path / "pack", played()[:2])
    rows = 2_000_000
    head = np.lib.format.header_data_from_array_1_0(all_rows()[:0]) | {"shape": (rows,)}
    for number in range(3):
        with (path / f"steps-{number:05d}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, head)
            begin = file.tell()
            for run in range(2):
                for at, step in ((0, 0), (rows // 2 - 1, rows // 2 - 1)):
                    row = all_rows()[:1].copy()
                    row["run_id"], row["step_index"] = 2 * number + run, step
                    file.seek(begin + (run * rows // 2 + at) * row.itemsize)
                    file.write(row.tobytes())
    (path / "steps.npy").unlink()
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        database.execute("DELETE FROM runs")
        database.executemany(
            "INSERT INTO runs VALUES (?, 0, ?, 9, 2048)", [(run, rows // 2) for run in range(6)]
        )
        database.commit()
    with memory_below(1_000_000):
        assert len(Corpus.open(path, load="mmap")) == 3 * rows


def test_rows_of_no_run_are_left_out(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "pack", played(), shard_rows=900)
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        database.execute("DELETE FROM runs WHERE id IN (0, 7, 8, 54)")
        database.commit()
    chosen = ~np.isin(expected()["run"], [0, 7, 8, 54])
    session = Session.open(path)
    assert session.rows_without_run == np.isin(all_rows()["run_id"], [0, 7, 8, 54]).sum()
    found = Corpus.open(path).fetch(slice(None), ("tokens", "board_eval"))
    np.testing.assert_array_equal(found["tokens"], expected()["tokens"][chosen])
    np.testing.assert_array_equal(found["board_eval"], expected()["board_eval"][chosen])


class TestEmbeddings:
    def values(self, rows: int) -> NDArray[np.float32]:
        return np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)

    @pytest.mark.parametrize("steps_shard", [None, 5])
    @pytest.mark.parametrize("shard", [20, 10, 5, 3])
    def test_shards_in_the_order_of_the_steps(
        self, tmp_path: Path, steps_shard: int | None, shard: int
    ) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=steps_shard)
        for number, first in enumerate(range(0, 20, shard), start=1):
            np.save(path / f"embeddings-{number:06d}.npy", self.values(20)[first : first + shard])
        session = Session.open(path)
        np.testing.assert_array_equal(session.column("embeddings").values, self.values(20))
        for load in LOADS:
            found = Corpus.open(path, load=load).fetch([19, 0, 7, 4, 5], ("embeddings", "tokens"))
            np.testing.assert_array_equal(found["embeddings"], self.values(20)[[19, 0, 7, 4, 5]])
        report = validate_session(path)
        assert (report.findings, report.notes) == ((), ())

    def test_beside_rows_that_are_left_out(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "pack", played(), shard_rows=1000)
        all_values = self.values(len(all_rows()))
        for number, first in enumerate(range(0, len(all_values), 1000)):
            np.save(path / f"embeddings-{number:06d}.npy", all_values[first : first + 1000])
        counts = np.array([kept(game) for game in played()])
        chosen = all_rows()["step_index"] < counts[all_rows()["run_id"]]
        np.testing.assert_array_equal(Session.open(path).column("embeddings").values, all_values[chosen])
        found = Corpus.open(path).fetch(slice(None), ("embeddings",))
        np.testing.assert_array_equal(found["embeddings"], all_values[chosen])

    def test_of_other_rows(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs")
        np.save(path / "embeddings-000001.npy", self.values(19))
        with pytest.raises(errors.ColumnError, match="19 rows in 1 files, expected 20"):
            Session.open(path).column("embeddings")
        np.save(path / "embeddings-000001.npy", self.values(20).astype(np.float64))
        assert [found.error for found in validate_session(path).findings] == ["ColumnError"]


class TestContradictions:
    def test_mask_on_another_tile(self, tmp_path: Path) -> None:
        def change(rows: NDArray[np.void]) -> None:
            rows["tile_65536_mask"][40] = 1 << 5

        path = changed(tmp_path / "pack", change)
        (found,) = validate_session(path).findings[:1]
        assert found.error == "BookkeepingError"
        assert "row 40 has tile_65536_mask 0x0020, which contradicts its board 0x" in found.message
        with pytest.raises(errors.BookkeepingError, match="run 0 has a tile of 65536 or more at step 40"):
            Session.open(path).tokens([40])
        for load in LOADS[:2]:
            with pytest.raises(errors.BookkeepingError, match="run 0 has a tile of 65536 or more at step 40"):
                Corpus.open(path, load=load).fetch(slice(None), ("tokens",))
        assert len(Corpus.open(path).where("run_id > 0").fetch(slice(None), ("tokens",))["tokens"]) > 0

    def test_mask_where_a_game_should_have_its_65536(self, tmp_path: Path) -> None:
        first = int(np.flatnonzero(all_rows()["tile_65536_mask"])[0])

        def change(rows: NDArray[np.void]) -> None:
            rows["tile_65536_mask"][first] = np.uint16(~rows["tile_65536_mask"][first])

        with pytest.raises(
            errors.BookkeepingError, match=f"row {first} has tile_65536_mask 0x.*, which contradicts"
        ):
            Session.open(changed(tmp_path / "pack", change))

    @pytest.mark.parametrize("chunk_rows", [5, 1 << 18])
    @pytest.mark.parametrize("layout", ["documented", "taking turns", "without moves"])
    def test_rows_against_the_rules(
        self, tmp_path: Path, layout: str, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(validation, "CHUNK_ROWS", chunk_rows)
        low = [game for game in played() if game.highest < 65536][:3]
        given = rows_of(low)
        order = np.argsort(given["step_index"], kind="stable")

        def found(name: str, field: str, at: int, value: int) -> list[str]:
            rows = given.copy()
            rows[field][at] = value
            rows = rows[order] if layout == "taking turns" else rows
            if layout == "without moves":
                rows = rows[[field for field in STEP_ROW.names or () if field != "move_dir"]]
                rows = rows.astype([(field, STEP_ROW[field]) for field in rows.dtype.names or ()])
            path = write_pack(tmp_path / name, low, rows=rows)
            return [each.message for each in validate_session(path).findings]

        assert found("whole", "board", 9, given["board"][9]) == []
        row = int(order.argsort()[9]) if layout == "taking turns" else 9
        lines = found("overwritten", "board", 9, given["board"][5])
        assert any(line.startswith(f"row {row} has board 0x") for line in lines)
        (line,) = found("rank", "max_rank", 9, 14)
        highest = max(low[0].steps[9].board)
        assert line == f"row {row} has max_rank 14; the highest exponent of its board is {highest}"
        (line,) = found("seed", "seed", 9, 77)
        assert line == f"row {row} has seed 77; the run table has {low[0].seed}"
        for value in (np.nan, -np.inf):
            values = np.where(given["ev_legal"][9] >> np.arange(4) & 1, value, 0)
            (line,) = found(f"value {value}", "branch_evs", 9, values)
            assert line.startswith(f"row {row} has branch_evs [")
            assert line.endswith("expected finite numbers")
        assert found("illegal value", "branch_evs", 9, np.where(values, 1, value)) == []
        (line,) = found("legal", "ev_legal", 9, int(given["ev_legal"][9]) ^ 1)
        assert line.startswith(f"row {row} has ev_legal 0b")
        if layout == "documented":
            last = len(low[0].steps) - 1  # which no row follows
            (illegal,) = [move for move in range(4) if not given["ev_legal"][last] >> move & 1][:1]
            (line,) = found("illegal", "move_dir", last, illegal)
            assert line.startswith(f"row {last} has move {illegal}, which is illegal on its board")

    @pytest.mark.parametrize("dtype", [WIDE, own_rows(Spec()).dtype])
    def test_shards_of_two_layouts(self, tmp_path: Path, dtype: np.dtype[Any]) -> None:
        path = write_pack(tmp_path / "pack", played(), shard_rows=3000)
        np.save(path / "steps-00001.npy", np.zeros(3000, dtype))
        with pytest.raises(errors.NpyError, match=r"rows of type .*; expected") as caught:
            Session.open(path)
        assert caught.value.path == str(path / "steps-00001.npy")
        assert "NpyError" in {found.error for found in validate_session(path).findings}

    @pytest.mark.parametrize("gap", ["run_id", "step_index", "board"])
    def test_rows_without_a_needed_field(self, tmp_path: Path, gap: str) -> None:
        names = [name for name in STEP_ROW.names or () if name != gap]
        rows = all_rows()[names].astype([(name, STEP_ROW[name]) for name in names])
        path = write_pack(tmp_path / "pack", played(), rows=rows)
        with pytest.raises(errors.NpyError, match="expected run_id and step_index"):
            Session.open(path)

    def test_two_files_of_one_number(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "pack", played(), shard_rows=3000)
        (path / "steps-000001.npy").write_bytes((path / "steps-00001.npy").read_bytes())
        with pytest.raises(errors.NotASessionError, match=r"shard steps-\d+\.npy is missing"):
            Session.open(path)


class TestGames:
    @staticmethod
    def low() -> list[Played]:
        return [game for game in played() if game.highest < 65536][:6]

    def test_steps_values_and_facts(self, tmp_path: Path) -> None:
        for number, game in enumerate(self.low()):
            write_raw(tmp_path / f"d{number % 2}", number, game)
        found = [each.checked() for each in open_source(tmp_path).runs()]
        in_order = sorted(range(6), key=lambda number: (number % 2, self.low()[number].seed))
        for number, run in zip(in_order, found, strict=True):
            game = self.low()[number]
            assert (run.meta.max_score, run.meta.highest_tile) == (game.score, game.highest)
            assert run.moves.tolist() == [step.move for step in game.steps]
            rows = rows_of([game])
            assert run.boards.tolist() == rows["board"].tolist()
            np.testing.assert_array_equal(run.branch_values, rows["branch_evs"])
            np.testing.assert_array_equal(run.branch_legal, rows["ev_legal"])

    @pytest.mark.parametrize("target", ["a2run2", "x.a2pack", "x.parquet", "x.dat", "dataset", "built"])
    def test_a_pack_keeps_the_values_of_its_games(
        self, tmp_path: Path, target: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The same runs come of a pack and of its games as JSON lines."""
        for number, game in enumerate(self.low()):
            write_raw(tmp_path / "raw", number, game)
        write_pack(tmp_path / "pack", self.low())
        found = {}
        for source in ("raw", "pack"):
            (tmp_path / f"of-{source}").mkdir()
            out, to = tmp_path / f"of-{source}" / target, None if "." in target else target
            if target == "built":
                build_dataset(out, tmp_path / source)
            else:
                convert(tmp_path / source, out, to, lossy=True)
            found[source] = [each.checked() for each in open_source(out).runs()]
        for one, other in zip(found["raw"], found["pack"], strict=True):
            assert one.has_branches is not None
            assert one.has_branches.any()
            for name in ("states", "moves", "branch_values", "branch_legal", "has_branches"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        others = "board_eval, max_rank, seed, valuation_type"
        assert caplog.messages == [f"{tmp_path / 'pack'}: columns left out: {others}"]

    @pytest.mark.parametrize("to", ["a2run", "jsonl", "session"])
    def test_values_that_a_target_cannot_hold_are_named(self, tmp_path: Path, to: str) -> None:
        path = write_pack(tmp_path / "pack", self.low())
        with pytest.raises(errors.MaintenanceError, match="cannot hold"):
            convert(path, tmp_path / "out", to)
        assert convert(path, tmp_path / "out", to, lossy=True).lost["branch values"] == 6

    def test_a_game_ends_with_its_65536(self, tmp_path: Path) -> None:
        high = [game for game in played() if game.highest > 32768]
        for number, game in enumerate(high):
            write_raw(tmp_path / "raw", number, game)
        pack = write_pack(tmp_path / "pack", high)
        for path in (tmp_path / "raw", pack):
            for game, each in zip(high, open_source(path).runs(), strict=True):
                run, steps = each.checked(), game.steps[: kept(game)]
                score = sum(slide(step.board, step.move)[1] for step in steps)
                assert (len(run), run.meta.max_score, run.meta.highest_tile) == (len(steps), score, 65536)

    def test_packed_facts_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = write_raw(tmp_path, 0, self.low()[0])
        facts = next(tmp_path.glob("*.meta.json"))
        content = b"\xef\xbb\xbf" + facts.read_bytes()
        facts.with_name(f"{facts.name}.gz").write_bytes(gzip.compress(content))
        facts.unlink()
        assert len(open_source(path).runs().__next__().checked()) == len(self.low()[0].steps)

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            ({"num_moves": 3}, "has num_moves 3 and max_tile"),
            ({"max_tile": 4096}, "and max_tile 4096. depth"),
            ({"score": 17}, "max_score is 17"),
            ({"seed": 5}, "expected 0 and 5"),
            ({"seed": "five"}, "malformed"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_facts_of_another_game(self, tmp_path: Path, facts: dict[str, Any], message: str) -> None:
        write_raw(tmp_path, 0, self.low()[0], **facts)
        write_raw(tmp_path, 1, self.low()[1])
        bad, good = open_source(tmp_path).runs()
        assert message in str(bad.error)
        assert good.error is None

    @pytest.mark.parametrize("left", [0.5, 0.99, 0])
    def test_truncated(self, tmp_path: Path, left: float) -> None:
        path = write_raw(tmp_path, 0, self.low()[0])
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * left)])
        (found,) = scan(tmp_path)
        assert isinstance(found.error, errors.TruncatedError if left else errors.BookkeepingError)
        assert found.error.path.endswith((".jsonl.gz", ".meta.json"))

    def test_lines_out_of_order(self, tmp_path: Path) -> None:
        path = write_raw(tmp_path, 0, self.low()[0])
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        path.write_bytes(gzip.compress(b"".join([lines[1], lines[0], *lines[2:]])))
        (found,) = scan(tmp_path)
        assert "line 1: step_index 1" in str(found.error)
