import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.errors import (
    BookkeepingError,
    ChecksumError,
    FieldError,
    FormatError,
    MagicError,
    NameTakenError,
    NotASessionError,
    ReplayError,
    TapeError,
    TruncatedError,
    VersionError,
    reader_hint,
)
from tape2048.runs import DataPack, packdat as module
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.run import ROW_DTYPE

from ..run_builders import a2run2_bytes, game, ref
from .set_builders import ALMOST_ONE, GAMES, MORE, packdat_bytes, seal, write_runs


def runs_of(games: Any = GAMES) -> list[RunV2]:
    return [RunV2.from_bytes(a2run2_bytes(run)) for run in games]


def load(path: Path, data: bytes, **how: Any) -> DataPack:
    path.write_bytes(data)
    return DataPack.load(path, **how)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pack.dat"


class TestBytes:
    def test_writes_the_described_bytes(self, path: Path) -> None:
        DataPack.build(runs_of()).save(path)
        assert path.read_bytes() == packdat_bytes()

    @pytest.mark.parametrize("how", ["ram", "mmap"])
    def test_load_and_save_give_the_same_bytes(self, path: Path, how: Any) -> None:
        pack = load(path, packdat_bytes(), load=how)
        again = path.with_name("again.dat")
        pack.save(again)
        assert again.read_bytes() == path.read_bytes()

    def test_no_runs(self, path: Path) -> None:
        DataPack.build([]).save(path)
        assert path.read_bytes() == packdat_bytes([])
        assert len(DataPack.load(path)) == 0

    def test_a_run_of_no_steps(self, path: Path) -> None:
        games = (GAMES[0], game(5, steps_max=0), GAMES[1])
        pack = load(path, packdat_bytes(games))
        assert pack.runs["steps"].tolist() == [30, 0, 12]
        assert pack.run_index([29, 30, 41]).tolist() == [0, 2, 2]
        np.testing.assert_array_equal(pack.get_batch([30])["board"], games[2].states[0])

    def test_nothing_is_replaced(self, path: Path) -> None:
        path.write_bytes(b"mine")
        with pytest.raises(NameTakenError):
            DataPack.build(runs_of()).save(path)
        assert path.read_bytes() == b"mine"


class TestRows:
    def test_values_are_level_by_65535_and_never_one(self, path: Path) -> None:
        pack = load(path, packdat_bytes())
        records, rows = pack.records(np.arange(len(pack))), pack.get_batch(np.arange(len(pack)))
        for record, row in zip(records, rows, strict=True):
            for move in range(4):
                has = bool(record["ev_mask"] >> move & 1)
                level = np.float32(record["ev_q"][move]) / np.float32(65535)
                expected = min(float(level), ALMOST_ONE) if has else 0.0
                assert float(row["ev_values"][move]) == expected

    def test_out_is_written_into(self) -> None:
        pack = DataPack.build(runs_of())
        out = np.zeros(5, ROW_DTYPE)
        assert pack.get_batch(np.arange(5), out) is out
        assert out["board"].tolist() == GAMES[0].states[:5]
        with pytest.raises(ValueError, match="out is"):
            pack.get_batch(np.arange(4), out)


class TestConversion:
    def test_runs_come_back_as_they_went_in(self) -> None:
        pack = DataPack.build(runs_of())
        for number, run in enumerate(runs_of()):
            back = pack.run(number, run.final_board)
            assert back.meta == run.meta
            np.testing.assert_array_equal(back.states, run.states)
            np.testing.assert_array_equal(back.moves, run.moves)
            has = run.has_branches
            if not has.any():
                assert back.has_branches is None
                continue
            np.testing.assert_array_equal(back.has_branches, has)
            np.testing.assert_array_equal(back.branch_legal, run.branch_legal)
            others = np.arange(4) != run.moves[:, None]
            np.testing.assert_allclose(
                back.branch_values[others], run.branch_values[others], atol=0.5 / 65535 + 1e-7
            )

    def test_an_illegal_move_is_refused(self) -> None:
        run = runs_of()[0]
        boards = [ref.unpack(board) for board in run.states[:-1].tolist()]
        step, illegal = next(
            (i, m) for i, cells in enumerate(boards) for m in range(4) if m not in ref.legal_moves(cells)
        )
        run.moves[step] = illegal
        with pytest.raises(ReplayError, match=f"step {step}"):
            DataPack.build([run])

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_values_that_are_not_finite_are_refused(self, value: float) -> None:
        run = runs_of()[0]
        step = int(np.flatnonzero(run.has_branches)[0])
        run.branch_values[step] = value
        with pytest.raises(FieldError, match=f"step {step}"):
            DataPack.build([run])

    def test_limits_of_the_fields_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "U32_MAX", 40)
        with pytest.raises(FieldError, match="first_step_idx would be 42"):
            DataPack.build(runs_of())


def test_filter_by_player() -> None:
    """Runs of a recorder have its player, others what their engine says."""
    engines = [f"tape2048 0.1.0 toy player_sha256={'a' * 64} seed=7", "theirs 2", None]
    pack = DataPack.build(runs_of([game(i, steps_max=9, engine=engine) for i, engine in enumerate(engines)]))
    for number, player in enumerate(["toy", "theirs 2", ""]):
        assert pack.where(player=player).runs["run_id"].tolist() == [number]
    assert pack.where("player = 'toy@aaaaaaaaaaaa'").runs["run_id"].tolist() == [0]


class TestAppend:
    def test_what_is_no_run(self, tmp_path: Path) -> None:
        pack = DataPack.build(runs_of())
        before = pack.to_bytes()
        runs: Any
        for runs in (runs_of()[0], [*runs_of(), str(tmp_path)], [5]):  # a run is a sequence of its rows
            with pytest.raises(TypeError, match="expected a Run, as read_run"):
                pack.append(runs)
        assert pack.to_bytes() == before

    def test_ids_and_rows_go_on(self, tmp_path: Path) -> None:
        pack = DataPack.build(runs_of())
        before = pack.records(np.arange(len(pack)))
        view = pack.filter_by_engine("toy")
        pack.append_from_directory(write_runs(tmp_path / "runs", MORE))
        assert pack.runs["run_id"].tolist() == list(range(6))
        np.testing.assert_array_equal(pack.records(np.arange(len(before))), before)
        assert len(view) == 30, "a view stays what it was"
        both = DataPack.build([*runs_of(), *runs_of(MORE)])
        np.testing.assert_array_equal(pack.records(np.arange(len(pack))), both.records(np.arange(len(both))))
        np.testing.assert_array_equal(pack.runs, both.runs)

    def test_a_bad_file_costs_itself_or_everything(self, tmp_path: Path) -> None:
        directory = write_runs(tmp_path / "runs")
        (directory / "bad.a2run").write_bytes(b"A2T1")
        pack = DataPack.build(runs_of())
        with pytest.raises(TruncatedError):
            pack.append_from_directory(directory)
        assert len(pack.runs) == 3
        said: list[str] = []
        pack.append_from_directory(directory, on_skip=lambda name, error: said.append(f"{name}: {error}"))
        assert len(pack.runs) == 3, "it holds the others"
        assert len(said) == 1
        assert "bad.a2run" in said[0]

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        with pytest.raises(NotASessionError):
            DataPack.build([]).append_from_directory(tmp_path)

    def test_not_to_a_view(self) -> None:
        with pytest.raises(ValueError, match="view"):
            DataPack.build(runs_of()).filter_by_score(0).append(runs_of())


class TestMerge:
    def test_the_rows_of_all_with_ids_from_0(self) -> None:
        """A game that several packs, or one pack, hold comes once."""
        pack = DataPack.build(runs_of())
        pack.append(runs_of(GAMES[:1]))
        part = DataPack.build(runs_of(MORE)).filter_by_engine("toy")
        merged = DataPack.merge([part, pack, pack])
        expected = DataPack.build(runs_of([MORE[0], *GAMES]))
        assert merged.to_bytes() == expected.to_bytes()
        assert DataPack.merge([]).to_bytes() == packdat_bytes([])

    def test_not_parts_of_games(self) -> None:
        late = DataPack.build(runs_of()).phase(steps=(3, None))
        for use in (lambda: DataPack.merge([late]), late.to_bytes):
            with pytest.raises(ValueError, match="parts of games"):
                use()


class TestFilters:
    @pytest.mark.parametrize(
        ("name", "arguments", "expected"),
        [
            ("filter_by_score", {"min_score": 164}, [0, 2]),
            ("filter_by_score", {"max_score": 164}, [0, 1]),
            ("filter_by_score", {"min_score": 57, "max_score": 163}, []),
            ("filter_by_length", {"min_steps": 30, "max_steps": 45}, [0, 2]),
            ("filter_by_highest_tile", {"min_tile": 32}, [0, 2]),
            ("where", {"min_score": 164, "model": "other é"}, [2]),
        ],
    )
    def test_bounds(self, name: str, arguments: dict[str, int], expected: list[int]) -> None:
        view = getattr(DataPack.build(runs_of()), name)(**arguments)
        assert view.runs["run_id"].tolist() == expected
        states = [state for i in expected for state in GAMES[i].states[:-1]]
        assert view.get_batch(np.arange(len(view)))["board"].tolist() == states

    def test_engines(self) -> None:
        pack = DataPack.build(runs_of())
        assert pack.filter_by_engine("toy").runs["run_id"].tolist() == [0]
        assert pack.filter_by_engine(None, "other é").runs["run_id"].tolist() == [1, 2]
        assert pack.filter_by_engine("unknown").runs["run_id"].tolist() == []

    def test_games_stay_on_their_side(self) -> None:
        games = [game(seed, steps_max=5, engine=f"e{seed % 3}") for seed in range(20)]
        whole, part = (DataPack.from_bytes(packdat_bytes(some)) for some in (games, games[::-2]))
        sides = [
            {name: set(side[:]["board"].tolist()) for name, side in pack.split(a=0.5, b=0.5).items()}
            for pack in (whole, part)
        ]
        for name in "ab":
            assert sides[0][name]
            assert sides[1][name] <= sides[0][name]

    def test_a_view_is_saved_with_ids_of_its_own(self, path: Path) -> None:
        DataPack.build(runs_of()).filter_by_score(164).save(path)
        assert path.read_bytes() == packdat_bytes(GAMES[::2])


SMALL = packdat_bytes((game(1, steps_max=2, engine="é"), game(2, steps_max=1, engine=None)))


class TestBadInput:
    def test_bytes_at_the_end(self, path: Path) -> None:
        with pytest.raises(ChecksumError):
            load(path, SMALL + b"\0")
        with pytest.raises(FormatError):
            load(path, packdat_bytes(extra=b"\0"))

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"version": 2}, VersionError),
            ({"runs": 4}, FormatError),
            ({"runs": 2}, FormatError),
            ({"runs": 2**32 - 1}, TruncatedError),
            ({"steps": 2**63}, FieldError),
            ({"steps": 2**58, "offset": 28 + 2**63}, TruncatedError),
            ({"steps": 86}, FieldError),
            ({"offset": 0}, FieldError),
            ({"run_changes": {"id": 1}}, BookkeepingError),
            ({"run_changes": {"first": 5}}, BookkeepingError),
            ({"run_changes": {"steps": 2**32 - 1}}, BookkeepingError),
            ({"run_changes": {"engine_len": 2**16 - 1}}, FieldError),
            ({"run_changes": {"engine_len": 0}}, FormatError),
        ],
    )
    def test_fields_of_header_and_runs(
        self, path: Path, changes: dict[str, Any], error: type[TapeError]
    ) -> None:
        with pytest.raises(error) as caught:
            load(path, packdat_bytes(**changes))
        assert error is not VersionError or caught.value.hint == reader_hint()

    @pytest.mark.parametrize(
        ("offset", "value", "error"),
        [
            (8, struct.pack("<I", 2), BookkeepingError),
            (12, struct.pack("<I", 7), BookkeepingError),
            (16, b"\x04", FieldError),
            (17, b"\x10", FieldError),
        ],
    )
    def test_step_fields(self, path: Path, offset: int, value: bytes, error: type[TapeError]) -> None:
        def change(body: bytearray) -> None:
            at = 28 + 32 * 33 + offset
            body[at : at + len(value)] = value

        with pytest.raises(error) as caught:
            load(path, packdat_bytes(change=change))
        assert caught.value.offset == 28 + 32 * 33 + offset

    @pytest.mark.parametrize("how", ["ram", "mmap"])
    def test_padding_may_hold_anything(self, path: Path, how: Any) -> None:
        """A C compiler leaves what was there."""

        def change(body: bytearray) -> None:
            body[28 + 26 : 28 + 32] = b"\xcd" * 6
            body[28 + 32 * 40 + 31] = 1

        pack = load(path, packdat_bytes(change=change), load=how)
        assert pack.padded == 2
        np.testing.assert_array_equal(pack[:], load(path, packdat_bytes())[:])
        merged = DataPack.merge([pack, pack])
        assert merged.padded == merged.records(np.arange(87))["padding"].any(axis=1).sum()

    def test_an_engine_that_is_not_utf_8(self, path: Path) -> None:
        data = packdat_bytes().replace("other é".encode(), b"other \xc3\x28")
        with pytest.raises(FieldError, match="UTF-8"):
            load(path, seal(data[:-4]))

    def test_something_else(self, path: Path) -> None:
        for data in (b"", b"A2T1", b"\x93NUMPY", b"2047" + SMALL[4:]):
            with pytest.raises(MagicError):
                load(path, data)
