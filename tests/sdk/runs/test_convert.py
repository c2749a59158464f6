import codecs
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.errors import (
    EmptyCorpusError,
    FieldError,
    FormatError,
    MagicError,
    MaintenanceError,
    MissingPathError,
    NameTakenError,
    NotASessionError,
    ReplayError,
)
from tape2048.files.durable import lock_directory
from tape2048.game.rules import legal_masks
from tape2048.maintenance.validation import validate_session
from tape2048.runs import jsonl, parquet
from tape2048.runs.a2run import write_run
from tape2048.runs.a2run2 import RunV2, normalize
from tape2048.runs.conversion import convert, open_source
from tape2048.runs.dataset import Dataset, append_dataset, build_dataset
from tape2048.runs.jsonl import run_line
from tape2048.runs.registry import FORMATS, UNCERTAIN, VALUES_16_BITS, kind_of
from tape2048.runs.repack import repack_session
from tape2048.runs.run import Run
from tape2048.runs.sessions import NO_CHOICE, NO_LAST_MOVE, session_run, write_session
from tape2048.session.column_draft import write_column
from tape2048.session.layout import STEP_DTYPE, STEPS_HEADER_BYTES
from tape2048.session.session import Session
from tape2048_recorder.game.game_loop import Buffer, play_into
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.replay.replay import replayer

from ..builders import change_database, raising, write_ours
from ..naming import Naming
from ..run_builders import a2run2_bytes, a2t1_bytes, game
from ..runs.set_builders import GAMES, packdat_bytes, tree, write_dataset, write_runs

#: What holds a whole run, branch values included.
WHOLE = {"a2run2": "runs2", "a2pack": "x.a2pack", "parquet": "x.parquet"}
NAMES = {
    **WHOLE,
    "a2run": "runs1",
    "packdat": "pack.dat",
    "dataset": "ds",
    "session": "s",
    "jsonl": "x.jsonl",
}


def runs_in(path: Path, player: Any = None) -> list[Run]:
    found = list(open_source(path, player).runs())
    assert [one.error for one in found] == [None] * len(found)
    return [one.run for one in found if one.run is not None]


def assert_same(one: Sequence[Run], other: Sequence[Run], *, values: bool = True) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.meta == b.meta
        np.testing.assert_array_equal(a.states, b.states)
        np.testing.assert_array_equal(a.moves, b.moves)
        if values:
            assert RunV2.from_run(a).equals(RunV2.from_run(b))


def convert_to(root: Path, source: str, target: str) -> Path:
    convert(root / source, root / target)
    return root / target


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs")


@pytest.fixture(scope="module")
def every_source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same runs in every format."""
    root = tmp_path_factory.mktemp("sources")
    runs = write_runs(root / "runs")
    made = {kind: root / name for kind, name in NAMES.items()}
    for kind, path in made.items():
        convert(runs, path, kind, lossy=True)
    return made


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A session that the recorder's own loop played, with moves."""
    return record(tmp_path / "recorded", "greedy", 6)


def record(path: Path, player: str, count: int) -> Path:
    from tape2048.game import exps_to_boards, last_boards
    from tape2048.runs.engine_text import engine_text
    from tape2048.runs.run import Run as OneRun, RunMeta

    buffer = Buffer(rows_max=1 << 16, runs_max=100, record_action=True, sample_rate=1)
    ids = np.arange(count, dtype=np.uint64)
    buffer.give(ids, game_seeds(3, ids))
    made: Any = make_player(player, {})
    play_into(buffer, made, steps_max=1 << 40)
    games = []
    for row in buffer.runs:
        rows = buffer.rows[int(row["first_row"]) :][: int(row["rows"])]
        meta = RunMeta(
            int(row["steps"]), 0, 0.0, int(row["score"]), int(row["highest_tile"]),
            engine_text("toy", player_sha256(player, made), int(row["seed"])),
        )  # fmt: skip
        boards, moves = exps_to_boards(rows["exps"]), rows["action"].copy()
        final = int(last_boards(boards[-1:], moves[-1:])[0][0])
        games.append(OneRun.from_boards(boards, moves, final, meta))
    facts = {
        "player": player,
        "player_args": {},
        "player_sha256": player_sha256(player, made),
        "started_at": "2026-01-02T03:04:05Z",
    }
    write_session(path, games, facts)
    return path


class TestMatrix:
    def test_whole_formats_lose_nothing(self, runs: Path, tmp_path: Path) -> None:
        for first, name in WHOLE.items():
            convert(runs, tmp_path / name, first)
            for second, other in WHOLE.items():
                done = convert(tmp_path / name, tmp_path / f"{first}-{other}", second)
                assert (done.runs, done.lost, done.skipped) == (3, {}, ())
                assert_same(runs_in(tmp_path / f"{first}-{other}"), runs_in(runs))

    @pytest.mark.parametrize("kind", NAMES)
    def test_every_target_from_every_source(
        self, every_source: dict[str, Path], tmp_path: Path, kind: str
    ) -> None:
        originals = runs_in(every_source["a2run2"])
        for source, path in every_source.items():
            target = tmp_path / f"{source}-{NAMES[kind]}"
            done = convert(path, target, kind, lossy=True)
            assert (done.runs, done.skipped) == (3, ()), source
            # A session does not know how these games ended, which were cut off: each loses its last move.
            lost = int(source == "session" and kind not in {"packdat", "dataset", "session"})
            for one, original in zip(runs_in(target), originals, strict=True):
                assert len(one) == len(original) - lost
                np.testing.assert_array_equal(one.boards, original.boards[: len(one)])
                np.testing.assert_array_equal(one.moves, original.moves[: len(one)])
                assert one.meta.max_score == original.meta.max_score
                assert one.meta.highest_tile == original.meta.highest_tile

    def test_losses_are_said_and_nothing_is_written(self, runs: Path, tmp_path: Path) -> None:
        """In the words of the registry."""
        before = tree(tmp_path)
        for kind in ("a2run", "jsonl", "session", "packdat", "dataset"):
            with pytest.raises(MaintenanceError, match=f"{kind} cannot hold ") as caught:
                convert(runs, tmp_path / NAMES[kind], kind)
            assert any(f"cannot hold {fact} (" in caught.value.message for fact in FORMATS[kind].lacks)
            assert tree(tmp_path) == before
            lost = convert(runs, tmp_path / kind, kind, lossy=True).lost
            assert {*lost} <= {*FORMATS[kind].lacks}
            assert lost
            assert all(count <= 3 for count in lost.values())
            before = tree(tmp_path)

    def test_a_data_set_holds_what_is_normalised(self, tmp_path: Path) -> None:
        """Values of a player that takes a best move are all found again; others are said to be lost."""
        greedy = [game(i) for i in range(3)]
        runs = write_runs(tmp_path / "runs", [_best_first(run) for run in greedy])
        normalised = tmp_path / "normalised"
        normalised.mkdir()
        for number, run in enumerate(runs_in(runs)):
            RunV2.from_run(run).normalize_branches().save(normalised / f"{number}.a2run2")
        done = convert(normalised, tmp_path / "ds", "dataset")
        assert done.lost == {}
        convert(tmp_path / "ds", tmp_path / "back", "a2run2")
        assert_same(runs_in(tmp_path / "back"), runs_in(normalised))
        with pytest.raises(MaintenanceError, match="normalised"):
            convert(write_runs(tmp_path / "raw"), tmp_path / "ds2", "dataset")

    def test_values_in_16_bits(self, tmp_path: Path) -> None:
        (tmp_path / "pack.dat").write_bytes(packdat_bytes())
        convert(tmp_path / "pack.dat", tmp_path / "one.a2pack", lossy=True)
        done = convert(tmp_path / "one.a2pack", tmp_path / "again.dat", lossy=True)
        assert VALUES_16_BITS not in done.lost
        assert (tmp_path / "again.dat").read_bytes() == (tmp_path / "pack.dat").read_bytes()


def _best_first(run: Any) -> Any:
    """The same game, each step's chosen move the one with the greatest value."""
    branches = [
        None if values is None else tuple(
            None if value is None else (2.0 if m == move else value) for m, value in enumerate(values)
        )
        for values, move in zip(run.branches, run.moves, strict=True)
    ]  # fmt: skip
    return dataclasses.replace(run, branches=branches)


class TestSessions:
    def test_recorded_games_go_round_with_everything(self, recorded: Path, tmp_path: Path) -> None:
        originals = runs_in(recorded, replayer)
        for kind, name in (
            ("a2run", "v1"),
            ("a2run2", "v2"),
            ("a2pack", "x.a2pack"),
            ("dataset", "ds"),
            ("jsonl", "x.jsonl"),
        ):
            source = recorded if kind == "a2run" else tmp_path / "v1"
            done = convert(source, tmp_path / name, kind, replayer=replayer)
            assert done.lost == {}
            assert_same(runs_in(tmp_path / name), originals, values=False)
        session = Session.open(recorded)
        for name in ("v1", "v2", "ds"):
            convert(tmp_path / name, tmp_path / f"back-{name}", "session", lossy=True)
            back = Session.open(tmp_path / f"back-{name}")
            np.testing.assert_array_equal(back.steps, session.steps)
            np.testing.assert_array_equal(back.runs, session.runs)
            assert back.meta["player_sha256"] == session.meta["player_sha256"], "the games' identity"
            assert validate_session(tmp_path / f"back-{name}").ok

    def test_final_boards_are_those_that_were_played(self, recorded: Path) -> None:
        """Nobody recorded them: on each, no move is left, and it follows from the last row."""
        from ..run_builders import ref

        session = Session.open(recorded)
        play = replayer(recorded, session.meta)
        for run, row in zip(runs_in(recorded, replayer), session.runs, strict=True):
            final = run.final_board
            assert final == play(int(row["seed"]), len(run))[0][-1]
            assert ref.legal_moves(ref.unpack(final)) == []
            after, _ = ref.slide(ref.unpack(int(run.boards[-1])), int(run.moves[-1]))
            assert sum(a != b for a, b in zip(after, ref.unpack(final), strict=True)) == 1

    def test_rows_that_are_lost_while_a_game_is_played(self, tmp_path: Path) -> None:
        """Reading mapped rows of a file that has become shorter would kill the process."""
        session = Session.open(record(tmp_path / "s", "random", 40))
        play = replayer(session.path, session.meta)
        last = max(run for run in range(40) if not session_run(session, run)[1])

        def slowly(*given: int) -> Any:
            os.truncate(session.path / "steps.npy", STEPS_HEADER_BYTES)
            return play(*given)

        run, certain, _ = session_run(session, last, slowly)
        assert certain
        assert len(run) == session.runs["steps"][last]

    def test_without_playing_again_some_are_not_known(self, tmp_path: Path) -> None:
        path = record(tmp_path / "s", "random", 40)
        with pytest.raises(MaintenanceError, match="uncertain"):
            convert(path, tmp_path / "x.a2pack")
        done = convert(path, tmp_path / "x.a2pack", lossy=True)
        assert 0 < done.lost[UNCERTAIN] < 40
        short = 0
        for run, whole in zip(runs_in(tmp_path / "x.a2pack"), runs_in(path, replayer), strict=True):
            short += len(run) == len(whole) - 1
            np.testing.assert_array_equal(run.states, whole.states[: len(run) + 1])
            np.testing.assert_array_equal(run.moves, whole.moves[: len(run)])
        assert short == done.lost[UNCERTAIN], "these end at their last known board"
        assert convert(path, tmp_path / "pack.dat").lost == {}, "which holds no final boards"

    def test_another_player_of_that_name(self, recorded: Path) -> None:
        session = Session.open(recorded)
        for change in (
            {"player_sha256": "0" * 64},
            {"player": "unknown"},
            {"player": None},
            {"player": "ntuple", "player_args": {"weights": "/no/such/network"}},
            {"player": "ntuple", "player_args": {"weights": str(recorded / "steps.npy")}},
            {"player_args": {"depth": "two"}},
            {"player_args": [1]},
        ):
            with pytest.raises(ReplayError):
                replayer(recorded, {**session.meta, **change})

    def test_without_moves(self, tmp_path: Path) -> None:
        session = Session.open(write_ours(tmp_path / "s"))
        with pytest.raises(ReplayError, match="record_action"):
            session_run(session, 0)

    def test_a_tile_that_no_board_holds(self, recorded: Path) -> None:
        with (recorded / "steps.npy").open("r+b") as file:
            file.seek(STEPS_HEADER_BYTES + 12)  # the first row's first cell
            file.write(b"\x10")
        first, *others = open_source(recorded).runs()
        assert isinstance(first.error, FieldError)
        assert "exponents [16," in first.error.message
        assert [one.error for one in others] == [None] * 5

    def test_a_start_without_offset_is_utc(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cases = {
            "2026-01-02T03:04:05Z": 1_767_323_045,
            "2026-01-02T03:04:05": 1_767_323_045,
            "2026-01-02T03:04:05+02:00": 1_767_323_045 - 7200,
            "soon": 0,
        }
        given = runs_in(runs)
        for number, (started_at, expected) in enumerate(cases.items()):
            write_session(tmp_path / str(number), given, {"started_at": started_at})
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("TZ", "XYZ+7")
                time.tzset()
                found = runs_in(tmp_path / str(number))
            time.tzset()
            assert [run.meta.start_unix_s for run in found] == [expected] * 3

    def test_a_directory_of_sessions(self, tmp_path: Path) -> None:
        (tmp_path / "root").mkdir()
        for name, player in (("20250102T030405Z_model=a", "random"), ("20250102T030406Z_model=a", "greedy")):
            record(tmp_path / "root" / name, player, 3)
        assert kind_of(tmp_path / "root") == "sessions"
        assert len(runs_in(tmp_path / "root", replayer)) == 6


def without_moves(session: Path) -> Path:
    """The session as it is recorded without ``record_action``."""
    rows = np.load(session / "steps.npy")
    (session / "manifest.json").unlink()
    np.save(session / "steps.npy", rows[list(STEP_DTYPE.names or ())].astype(STEP_DTYPE))
    return session


class Counting:
    """A replayer that notes which seeds are played."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(self, path: Path, facts: Any) -> Any:
        play = replayer(path, facts)

        def counted(seed: int, *given: int) -> Any:
            self.seeds.append(seed)
            return play(seed, *given)

        return counted


class TestReplay:
    """What a session does not hold is played again, or refused before any row is read."""

    def test_games_without_moves_are_played_again(self, recorded: Path, tmp_path: Path) -> None:
        whole = runs_in(recorded, replayer)
        bare = without_moves(recorded)
        for kind in ("a2run", "a2pack", "packdat", "session"):
            done = convert(bare, tmp_path / NAMES[kind], kind, replayer=replayer)
            assert (done.runs, done.lost, done.skipped) == (6, {}, ())
            assert validate_session(tmp_path / "s").ok or kind != "session"
        assert_same(runs_in(tmp_path / NAMES["a2pack"]), whole, values=False)
        assert build_dataset(tmp_path / "ds", [bare], replayer=replayer).lost == {}
        assert append_dataset(tmp_path / "ds", [bare], replayer=replayer).copies == len(whole)
        assert_same(runs_in(tmp_path / "ds"), whole, values=False)

    def test_only_what_is_needed_is_played(self, tmp_path: Path) -> None:
        path = record(tmp_path / "s", "random", 40)
        uncertain = convert(path, tmp_path / "lossy.a2pack", lossy=True).lost
        for target, plays in (("pack.dat", 0), ("x.a2pack", uncertain[UNCERTAIN])):
            counting = Counting()
            assert convert(path, tmp_path / target, replayer=counting).lost == {}
            assert len(counting.seeds) == plays

    def test_a_game_that_replays_differently(self, recorded: Path, tmp_path: Path) -> None:
        """A game that comes out differently is left out by name."""
        bare = without_moves(recorded)
        rows = np.load(bare / "steps.npy")
        third = np.flatnonzero(rows["run_id"] == 2)
        rows["exps"][third[5], 0] ^= 1
        np.save(bare / "steps.npy", rows)
        change_database(bare / "metadata.db", "UPDATE runs SET seed = seed + 1 WHERE id = 4")
        done = convert(bare, tmp_path / "x.a2pack", replayer=replayer)
        assert done.runs == 4
        assert [one.run for one in done.skipped] == [f"{bare}: run {i}" for i in (2, 4)]
        assert {one.error for one in done.skipped} == {"ReplayError"}

    def test_a_claim_of_more_steps_than_a_game_can_have(self, recorded: Path, tmp_path: Path) -> None:
        change_database(recorded / "metadata.db", f"UPDATE runs SET steps = {2**31} WHERE id = 1")
        (recorded / "manifest.json").unlink()
        done = convert(recorded, tmp_path / "x.a2pack", replayer=replayer)
        assert (done.runs, [one.error for one in done.skipped]) == (5, ["FieldError"])

    def test_unplayable_sessions_are_refused_early(
        self, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A session that cannot be replayed is rejected before rows are read."""
        bare = without_moves(recorded)
        build_dataset(tmp_path / "ds", [write_runs(tmp_path / "runs")])
        before = tree(tmp_path)

        def stranger(path: Path, facts: Any) -> Any:
            raise ReplayError(f"it was played by {facts['player']} of another kind")

        monkeypatch.setattr(Session, "open", raising(AssertionError("the session was opened")))
        for act in (
            lambda: convert(bare, tmp_path / "x.a2pack", replayer=stranger),
            lambda: build_dataset(tmp_path / "ds2", [bare], replayer=stranger),
            lambda: append_dataset(tmp_path / "ds", [bare], replayer=stranger),
        ):
            with pytest.raises(MaintenanceError, match="played by greedy of another kind") as caught:
                act()
            assert "--lossy" in str(caught.value.hint)
            assert "--record-action" in str(caught.value.hint)
        with pytest.raises(MaintenanceError, match="no player was given"):
            open_source(bare)
        change_database(
            bare / "metadata.db", "UPDATE session SET meta_value='7' WHERE meta_key='sample_rate'"
        )
        with pytest.raises(ReplayError, match="one step in 7"):
            convert(bare, tmp_path / "x.a2pack", replayer=stranger, lossy=True)
        assert {name for name in tree(tmp_path) if name not in before} == set()

    def test_lossy_games_end_at_their_last_board(self, tmp_path: Path) -> None:
        from tape2048.game.moves import UNKNOWN, recover

        whole = runs_in(record(tmp_path / "s", "greedy", 40), replayer)
        bare = without_moves(tmp_path / "s")
        done = convert(bare, tmp_path / "x.a2pack", lossy=True)
        built = build_dataset(tmp_path / "ds", [bare], lossy=True)
        assert done.lost == built.lost
        assert done.lost[NO_LAST_MOVE] == 40
        assert 0 < done.lost[NO_CHOICE] < 40
        for found in (runs_in(tmp_path / "x.a2pack"), runs_in(tmp_path / "ds")):
            for run, other in zip(found, whole, strict=True):
                assert len(run) == len(other) - 1
                assert run.meta.max_score == other.meta.max_score, "of the whole game"
                np.testing.assert_array_equal(run.states, other.boards)
                assert (recover(run.states, run.moves).moves != UNKNOWN).all()
        assert Dataset(tmp_path / "ds").run(0).final_board == whole[0].boards[-1]

    def test_boards_that_do_not_follow_each_other(self, recorded: Path) -> None:
        bare = without_moves(recorded)
        rows = np.load(bare / "steps.npy")
        rows["exps"][5] = 1
        np.save(bare / "steps.npy", rows)
        first, *others = open_source(bare, lossy=True).runs()
        assert isinstance(first.error, ReplayError)
        assert "no move leads from step 4 to step 5" in first.error.message
        assert [one.error for one in others] == [None] * 5


class TestShape:
    """A target is a file or a directory by its name and format, however many runs come out."""

    def test_a_run_s_name_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()
        (tmp_path / "one/x.a2run2").write_bytes(a2run2_bytes(GAMES[1]))
        for name in ("one.a2pack", "one.jsonl", "one.parquet", "one.dat"):
            convert(tmp_path / "one", tmp_path / name, lossy=True)
        for number, name in enumerate(("one", "one.a2pack", "one.jsonl", "one.parquet", "one/x.a2run2")):
            for kind in ("a2run", "a2run2"):
                convert(tmp_path / name, tmp_path / f"{number}.{kind}", lossy=True)
                assert (tmp_path / f"{number}.{kind}").is_file()
                convert(tmp_path / name, tmp_path / f"{number}-{kind}", kind, lossy=True)
                assert len(os.listdir(tmp_path / f"{number}-{kind}")) == 1  # noqa: PTH208
        assert (tmp_path / "1.a2run2").read_bytes() == a2run2_bytes(GAMES[1])

    def test_several_runs_need_a_directory(self, every_source: dict[str, Path], tmp_path: Path) -> None:
        for kind in ("a2pack", "jsonl", "parquet", "dataset", "a2run2"):
            with pytest.raises(FormatError, match="several runs") as caught:
                convert(every_source[kind], tmp_path / "x.a2run2", lossy=True)
            assert f"--to a2run2 {tmp_path}/x" in str(caught.value.hint)
        assert os.listdir(tmp_path) == []  # noqa: PTH208
        assert convert(every_source["a2pack"], tmp_path / "x", "a2run2", lossy=True).runs == 3

    def test_no_run_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "none.jsonl").write_bytes(b"")
        with pytest.raises(FormatError, match="no run"):
            convert(tmp_path / "none.jsonl", tmp_path / "x.a2run2")


class TestFiles:
    def test_names_stay(self, runs: Path, tmp_path: Path) -> None:
        convert(runs, tmp_path / "out", "a2run2")
        assert sorted(tree(tmp_path / "out")) == ["000.a2run2", "001.a2run2", "002.a2run2"]
        assert tree(tmp_path / "out")["000.a2run2"] == tree(runs)["000.a2run2"]

    def test_repeated_names_get_a_free_number(self, tmp_path: Path) -> None:
        # The third, "a" again, would be called what the first one is.
        names = ("d1/a-000002", "d1/a", "d2/a")
        for name in names:
            (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
            start = names.index(name)
            data = a2t1_bytes(game(len(name), steps_max=9, start_unix_s=start))
            (tmp_path / "runs" / f"{name}.a2run").write_bytes(data)
        assert convert(tmp_path / "runs", tmp_path / "out", "a2run2").runs == 3
        assert sorted(tree(tmp_path / "out")) == [
            "a-000002-000002.a2run2", "a-000002.a2run2", "a.a2run2",
        ]  # fmt: skip

    @pytest.mark.parametrize("kind", NAMES)
    def test_files_are_flushed_before_the_rename(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        naming = Naming(tmp_path, monkeypatch)
        convert(runs, tmp_path / "out", kind, lossy=True)
        naming.assert_flushed("out")

    def test_bad_runs_are_named(self, runs: Path, tmp_path: Path) -> None:
        (runs / "bad.a2run2").write_bytes(b"\x80" * 30)
        done = convert(runs, tmp_path / "x.a2pack")
        assert (done.runs, [skipped.run for skipped in done.skipped]) == (3, [str(runs / "bad.a2run2")])

    def test_where_every_run_is_bad_nothing_is_written(self, tmp_path: Path) -> None:
        """But a source without a run stays one."""
        (tmp_path / "runs").mkdir()
        for name in ("a.a2run", "b.a2run"):
            (tmp_path / "runs" / name).write_bytes(b"A2T1")
        for kind, name in NAMES.items():
            for source in (tmp_path / "runs", tmp_path / "runs/a.a2run"):
                with pytest.raises(EmptyCorpusError, match=r"0 of (1 run|2 runs) .*a\.a2run: TruncatedError"):
                    convert(source, tmp_path / name, kind)
        assert os.listdir(tmp_path) == ["runs"]  # noqa: PTH208 - dots too
        (tmp_path / "none.jsonl").write_bytes(b"")
        done = convert(tmp_path / "none.jsonl", tmp_path / "x.a2pack")
        assert (done.runs, done.skipped) == (0, ())

    def test_bad_lines_are_named(self, runs: Path, tmp_path: Path) -> None:
        convert(runs, tmp_path / "x.jsonl", lossy=True)
        lines = (tmp_path / "x.jsonl").read_bytes().splitlines()
        short, wide = (
            b'{"steps": 1, "states": [1], "moves": []}',
            b'{"steps":0,"states":[18446744073709551616],"moves":[]}',
        )
        bad = [b"{", b"[]", short, wide, lines[0].replace(b'"UP"', b'"up"'), b"\xff", lines[0][:-20]]
        (tmp_path / "y.jsonl").write_bytes(b"\n".join([lines[0], *bad, b"", lines[2]]) + b"\n")
        found = list(open_source(tmp_path / "y.jsonl").runs())
        assert [one.run is not None for one in found] == [True, *[False] * len(bad), True]
        assert all(isinstance(one.error, FormatError) for one in found[1:-1])
        assert f"line {len(bad) + 3}" in found[-1].name

    def test_parquet_that_others_have_rewritten(self, runs: Path, tmp_path: Path) -> None:
        """As DuckDB, Polars and pandas write it: columns by name, of wider types, lists of any kind."""
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet as pq

        path = tmp_path / "x.parquet"
        convert(runs, path)
        table = pq.read_table(path)
        wide = {"steps": pa.int64(), "elapsed_s": pa.float64(), "engine": pa.large_string()}
        wide |= {"states": pa.large_list(pa.uint64()), "moves": pa.list_(pa.int64())}
        wide |= {"branch_values": pa.large_list(pa.float64()), "has_branches": pa.large_list(pa.int32())}
        fields = [
            pa.field(name, wide.get(name, table.schema.field(name).type)) for name in table.schema.names
        ]
        changed = table.cast(pa.schema(fields)).select(table.schema.names[::-1])
        changed = changed.append_column("__index_level_0__", [[0, 1, 2]])
        changed = changed.set_column(
            changed.schema.get_field_index("engine"), "engine", changed["engine"].dictionary_encode()
        )
        pq.write_table(changed, tmp_path / "y.parquet")
        assert_same(runs_in(tmp_path / "y.parquet"), runs_in(path))
        without = table.slice(1, 1)
        for name in ("branch_values", "branch_legal", "has_branches"):
            without = without.set_column(without.schema.get_field_index(name), name, pa.nulls(1))
        pq.write_table(without, tmp_path / "z.parquet")
        assert_same(runs_in(tmp_path / "z.parquet"), runs_in(path)[1:2])

    def test_parquet_that_would_change(self, runs: Path, tmp_path: Path) -> None:
        """Columns of other types, and values that no run's field holds."""
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet as pq

        convert(runs, tmp_path / "x.parquet")
        table = pq.read_table(tmp_path / "x.parquet")
        pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
        (tmp_path / "cut.parquet").write_bytes(b"PAR1xxxxPAR1")
        cases: list[tuple[str, list[Any], str]] = [
            ("states", [[1.0, 2.0]] * 3, r"column states is list<.*: double>; expected list<.*: uint64>"),
            ("steps", ["1"] * 3, "column steps is string; expected uint32"),
            ("engine", [1] * 3, "column engine is int64; expected string"),
            ("moves", [[-1]] * 3, "moves has -1, which a uint8 cannot hold"),
            ("moves", [[256]] * 3, "moves has 256"),
            ("branch_values", [[0.1]] * 3, "branch_values has 0.1, which a float32 cannot hold"),
            ("branch_values", [[1e300]] * 3, "branch_values has 1e"),
            ("other", [], "found the columns a; expected a board"),
            ("cut", [], "not readable as Parquet"),
        ]
        for name, values, words in cases:
            if values:
                changed = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
                pq.write_table(changed, tmp_path / f"{name}.parquet")
            with pytest.raises(FormatError, match=words):
                next(open_source(tmp_path / f"{name}.parquet").runs()).checked()

    @pytest.mark.slow
    def test_a_damaged_byte_of_parquet_costs_a_row_group(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("pyarrow")
        monkeypatch.setattr(parquet, "GROUP_RUNS", 1)
        path = tmp_path / "x.parquet"
        for seed in (1, 2):
            short = game(seed, with_branches=False, steps_max=3)
            (tmp_path / f"{seed}.a2run").write_bytes(a2t1_bytes(short))
        convert(tmp_path, path)
        whole = path.read_bytes()
        footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        lost, step = 0, 1 if os.environ.get("FULL_SWEEP") == "1" else 7
        for at in (*range(0, footer, step), *range(footer, len(whole), 17 * step)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            try:
                read = list(open_source(path).runs(1))
            except FormatError:  # of the file as a whole
                assert not 4 <= at < footer
                continue
            assert len(read) == 2
            damaged = [one for one in read if one.error is not None]
            assert all(one.name.startswith(f"{path}: row group ") for one in damaged)
            assert len(damaged) <= 1 or at >= footer
            lost += len(damaged)
        assert lost * step > 100

    @pytest.mark.parametrize("rows", [1, 2000], ids=["by-the-metadata", "by-its-lists"])
    def test_parquet_of_a_game_that_never_ends(self, rows: int, tmp_path: Path) -> None:
        """A file of 4 kB with 10 million states of one game; the other games of the file are empty."""
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet as pq

        ends = pa.array([0] + [10_000_000] * rows, pa.int32())
        columns: dict[str, Any] = {name: pa.array([0] * rows, "u4") for name in parquet._META}
        columns["engine"] = pa.nulls(rows, pa.string())
        columns |= {name: pa.nulls(rows, pa.list_(pa.uint8())) for name, _ in parquet._BRANCHES}
        for name, dtype in parquet._LISTS:
            columns[name] = pa.ListArray.from_arrays(ends, np.zeros(10_000_000, dtype))
        pq.write_table(pa.table(columns), tmp_path / "x.parquet", compression="zstd")
        found = list(open_source(tmp_path / "x.parquet").runs())
        message = f"values for {rows} rows; expected at most" if rows == 1 else "no game is longer"
        assert message in str(found[0].error)
        assert isinstance(found[0].error, FieldError)
        assert len(found) == rows

    def test_parquet_that_expands_too_far(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet as pq

        convert(write_runs(tmp_path / "runs"), tmp_path / "x.parquet")
        table = pq.read_table(tmp_path / "x.parquet")
        engine = pa.array(["e" * 300_000_000] + [None] * (len(table) - 1), pa.string())
        changed = table.set_column(table.column_names.index("engine"), "engine", engine)
        pq.write_table(changed, tmp_path / "y.parquet", compression="zstd")
        (found,) = open_source(tmp_path / "y.parquet").runs()
        assert "bytes of a row group expand to 300" in str(found.error)

    def test_a_line_too_long_for_a_run(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        convert(runs, tmp_path / "x.jsonl", lossy=True)
        longest = max(map(len, (tmp_path / "x.jsonl").read_bytes().splitlines(keepends=True)))
        monkeypatch.setattr(jsonl, "LINE_BYTES_MAX", longest)
        assert_same(runs_in(tmp_path / "x.jsonl"), runs_in(runs), values=False)
        os.truncate(tmp_path / "x.jsonl", 1 << 40)
        with pytest.raises(FormatError, match="line 4 has more than") as caught:
            open_source(tmp_path / "x.jsonl")
        assert caught.value.offset is not None

    def test_lines_with_a_bom_and_the_longest_time(self, runs: Path, tmp_path: Path) -> None:
        longest = float(np.finfo(np.float32).max)
        two = [
            dataclasses.replace(run, meta=msgspec.structs.replace(run.meta, elapsed_s=longest))
            for run in runs_in(runs)[:2]
        ]
        (tmp_path / "x.jsonl").write_bytes(
            codecs.BOM_UTF8 + run_line(two[0], 0) + b"\n" + run_line(two[1], 1)
        )
        for found in runs_in(tmp_path / "x.jsonl"):
            assert np.float32(found.meta.elapsed_s) == np.float32(longest)
        assert_same(runs_in(convert_to(tmp_path, "x.jsonl", "x.a2pack")), two, values=False)

    def test_a_game_without_its_start_is_not_for_tape(self, recorded: Path, tmp_path: Path) -> None:
        run = runs_in(recorded)[0]
        meta = msgspec.structs.replace(run.meta, steps=len(run) - 9)
        parquet.write_parquet(tmp_path / "x.parquet", [Run(run.states[9:], run.moves[9:], meta)])
        with pytest.raises(FormatError, match=r"row group 0, row 0: .*\. Nothing was written") as caught:
            convert(tmp_path / "x.parquet", tmp_path / "on-tape", "tape")
        assert str(caught.value.path) == str(tmp_path / "on-tape")
        assert "--to session" in str(caught.value.hint)

    def test_parquet_with_values_that_cannot_be(self, runs: Path, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet as pq

        convert(runs, tmp_path / "x.parquet")
        table = pq.read_table(tmp_path / "x.parquet")
        for column, at, value, words in (
            ("states", 3, None, "states is null at index 3"),
            ("moves", 0, None, "moves is null at index 0"),
            ("branch_values", 5, None, "branch_values is null at index 5"),
            ("branch_legal", 0, 16, "branch_legal is 16"),
            ("has_branches", 1, None, "has_branches is null at index 1"),
        ):
            rows = table.to_pylist()
            rows[0][column][at] = value
            path = tmp_path / f"{column}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
            first, *others = open_source(path).runs()
            assert isinstance(first.error, FieldError)
            assert words in first.error.message
            assert [one.error for one in others] == [None, None]

    def test_nothing_is_replaced(self, runs: Path, tmp_path: Path) -> None:
        for kind, name in NAMES.items():
            (tmp_path / name).write_bytes(b"mine")
            with pytest.raises(NameTakenError):
                convert(runs, tmp_path / name, kind, lossy=True)
            assert (tmp_path / name).read_bytes() == b"mine"

    def test_unknown_kinds(self, tmp_path: Path, runs: Path) -> None:
        (tmp_path / "x.txt").write_bytes(b"text")
        (tmp_path / "empty").mkdir()
        for name, error in (("x.txt", MagicError), ("none", MissingPathError), ("empty", NotASessionError)):
            with pytest.raises(error):
                convert(tmp_path / name, tmp_path / "x.a2pack")
        for to in (None, "unknown", "csv"):
            with pytest.raises(FormatError, match=r"no format|unknown format"):
                convert(runs, tmp_path / "x.unknown", to)
        kinds = {kind_of(write_dataset(tmp_path / f"{n}", shard_rows=n)) for n in (None, 9)}
        assert kinds == {"dataset"}

    @pytest.mark.parametrize("engine", ["A v1", "", "tape2048 0.1.0 greedy player_sha256=" + "ab" * 32])
    def test_a_player_stays_through_packs_and_sessions(self, tmp_path: Path, engine: str) -> None:
        first = game(1, steps_max=30, engine=engine + " seed=5" * ("sha256" in engine))
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs/a.a2run2").write_bytes(a2run2_bytes(first))
        source, found = tmp_path / "runs", set[str]()
        for number in range(2):
            convert(source, tmp_path / f"{number}.a2pack", lossy=True)
            convert(tmp_path / f"{number}.a2pack", source := tmp_path / f"s{number}", "session", lossy=True)
            found |= {player.player for player in Corpus.open(source).players}
        assert found == {{"": "converted", "A v1": "A v1"}.get(engine, "greedy @ababab")}

    def test_an_engine_that_is_too_long(self, tmp_path: Path) -> None:
        runs = tmp_path / "runs"
        runs.mkdir()
        for seed, (name, length) in enumerate((("a", 1), ("b", 2**16), ("c", 1))):
            run = game(seed, steps_max=3, engine="e" * length)
            (runs / f"{name}.a2run2").write_bytes(a2run2_bytes(run))
        done = convert(runs, tmp_path / "out", "a2run2")
        ((name, error, message),) = map(msgspec.structs.astuple, done.skipped)
        assert (done.runs, name, error) == (2, str(runs / "b.a2run2"), "FieldError")
        assert message == "engine has 65536 bytes; expected at most 65535"

    @pytest.mark.parametrize("kind", ["a2run", "a2run2", "dataset", "session"])
    def test_drafts_of_killed_conversions_go(self, runs: Path, tmp_path: Path, kind: str) -> None:
        left = [tmp_path / f".out.{digit * 16}.tmp" for digit in "ab"]
        for path in left:
            path.mkdir()
            (path / "steps.npy").write_bytes(b"half")
        other = tmp_path / ".other.0123456789abcdef.tmp"
        other.mkdir()
        fd = lock_directory(left[1])  # another one is at work
        convert(runs, tmp_path / "out", kind, lossy=True)
        os.close(fd)
        assert sorted(os.listdir(tmp_path)) == [left[1].name, "out", "runs"]  # noqa: PTH208

    def test_an_elapsed_time_alone_is_a_loss(self, recorded: Path, tmp_path: Path) -> None:
        run = runs_in(recorded)[0]
        for elapsed_s in (0.0, 1.5):
            path = tmp_path / f"{elapsed_s}.a2run"
            meta = msgspec.structs.replace(run.meta, elapsed_s=elapsed_s)
            write_run(path, dataclasses.replace(run, meta=meta))
            lost = convert(path, tmp_path / f"s{elapsed_s}", "pack48", lossy=True).lost
            assert any("elapsed time" in loss for loss in lost) == bool(elapsed_s)


class TestMoveValues:
    @pytest.mark.parametrize("kind", ["session", "tape"])
    def test_a_column_of_values_becomes_branch_values(self, tmp_path: Path, kind: str) -> None:
        made = runs_in(record(tmp_path / "recorded", "greedy", 3), replayer)
        convert(tmp_path / "recorded", tmp_path / "x.a2pack", replayer=replayer)
        convert(tmp_path / "x.a2pack", tmp_path / "s", kind, lossy=kind == "session")
        session = Session.open(tmp_path / "s")
        values = np.random.default_rng(1).normal(0, 1e5, (len(session), 4)).astype(np.float32)
        write_column(session, "values", values)
        assert runs_in(session.path)[0].has_branches is None, "a user's column of this name"
        write_column(session, "values", values, facts={"moves": True}, replace=True)
        runs = runs_in(session.path)
        if kind == "tape":
            assert [run.states.tolist() for run in runs] == [run.states.tolist() for run in made]
        for run, first in zip(runs, session.runs["first_row"].tolist(), strict=True):
            legal = legal_masks(run.boards)
            np.testing.assert_array_equal(run.branch_legal, legal)
            np.testing.assert_array_equal(
                run.branch_values, normalize(values[first : first + len(run)], legal)
            )
            assert run.has_branches.all()
        assert next(open_source(session.path, values=False).runs()).run.has_branches is None

    def test_a_tape_holds_whole_games(self, runs: Path, tmp_path: Path) -> None:
        with pytest.raises(MaintenanceError, match=r"000.a2run2 breaks off"):
            convert(runs, tmp_path / "t", "tape", lossy=True)
        assert not (tmp_path / "t").exists()

    def test_a_shortened_game_keeps_its_values(self, tmp_path: Path) -> None:
        session = Session.open(without_moves(record(tmp_path / "s", "greedy", 2)))
        values = np.arange(4 * len(session), dtype=np.float32).reshape(-1, 4)
        write_column(session, "values", values, facts={"moves": True})
        second = list(open_source(session.path, lossy=True).runs())[1].run
        mine = values[int(session.runs["first_row"][1]) :][: len(second)]
        assert len(second) == session.runs["steps"][1] - 1
        np.testing.assert_array_equal(second.branch_values, normalize(mine, second.branch_legal))


def test_a_session_has_the_engine_of_its_runs(tmp_path: Path) -> None:
    """Games of two engines are of two players; in one session, only if that is permitted."""
    made: dict[str, Any] = {}
    (tmp_path / "s").mkdir()
    for name, engine in (("a", "bot a"), ("b", "bot b"), ("none", None)):
        made[name] = game(len(made), with_branches=False, engine=engine, start_unix_s=0, elapsed_s=0.0)
        for place in (tmp_path / name, tmp_path / "all"):
            place.mkdir(exist_ok=True)
            (place / f"{name}.a2run2").write_bytes(a2run2_bytes(made[name]))
        convert(tmp_path / name, tmp_path / "s" / name, "tape")
    corpus = Corpus.open(tmp_path / "s")
    assert corpus.runs_frame().player.tolist() == ["bot a", "bot b", "converted"]
    with pytest.raises(
        MaintenanceError, match=r"tape cannot hold the engine of each run, .* \(.*b.a2run2\)"
    ) as caught:
        convert(tmp_path / "all", tmp_path / "x", "tape")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("pass --player NAME")
    done = convert(tmp_path / "all", tmp_path / "x", "tape", lossy=True)
    assert list(done.lost.values()) == [2]
    convert(tmp_path / "all", tmp_path / "y", "tape", player="mine")
    found = [Session.open(tmp_path / name).meta["player"] for name in ("x", "y")]
    assert found == ["bot a + bot b", "mine"]
    with pytest.raises(
        MaintenanceError, match="found the player 'mine'; expected none, since runs of the format a2pack"
    ):
        convert(tmp_path / "all", tmp_path / "x.a2pack", player="mine")


class TestStarts:
    """A session has the start of its runs, if all have the same, or else the times of each run."""

    def write(self, path: Path, *starts: int, elapsed_s: float = 0.0) -> Path:
        path.mkdir()
        for number, start in enumerate(starts):
            one = game(number, with_branches=False, start_unix_s=start, elapsed_s=elapsed_s)
            (path / f"{number}.a2run2").write_bytes(a2run2_bytes(one))
        return path

    @pytest.mark.parametrize("kind", ["session", "tape"])
    def test_the_start_of_all_runs_is_kept(self, tmp_path: Path, kind: str) -> None:
        runs = self.write(tmp_path / "runs", 1_767_323_045, 1_767_323_045)
        assert convert(runs, tmp_path / "s", kind, lossy=True).lost.keys() <= {"the final board"}
        assert Session.open(tmp_path / "s").meta["started_at"] == "2026-01-02T03:04:05Z"
        assert len(Corpus.open(tmp_path / "s").where(since="2026-01-02", until="2026-01-03").runs) == 2

    def test_a_recorded_session_keeps_its_start_through_a_pack(self, tmp_path: Path) -> None:
        recorded = record(tmp_path / "s", "greedy", 2)
        convert(recorded, tmp_path / "s.a2pack", replayer=replayer)
        convert(tmp_path / "s.a2pack", tmp_path / "back", "tape")
        metas = [Session.open(path).meta["started_at"] for path in (recorded, tmp_path / "back")]
        assert metas[0] == metas[1]

    @pytest.mark.parametrize(
        "starts", [(1_767_323_045, 1_767_323_046), (0, 1_767_323_045), (2**60, 2**64 - 1)]
    )
    @pytest.mark.parametrize("kind", ["session", "tape"])
    def test_the_times_of_each_run_come_back(
        self, tmp_path: Path, starts: tuple[int, int], kind: str
    ) -> None:
        """Also when the session changes its storage."""
        runs = self.write(tmp_path / "runs", *starts, elapsed_s=1.5)
        name = "20260101T000000Z_model=x"
        assert not convert(runs, tmp_path / name, kind, lossy=True).lost.keys() - {"the final board"}
        repack_session(tmp_path / name, tmp_path / "other", "rows" if kind == "tape" else "tape", lossy=True)
        for path in (tmp_path / name, tmp_path / "other" / name):
            assert "started_at" not in Session.open(path).meta
            found = [(run.meta.start_unix_s, run.meta.elapsed_s) for run in runs_in(path)]
            assert found == [(start, 1.5) for start in starts]

    def test_starts_that_a_pack_cannot_hold_are_named(self, tmp_path: Path) -> None:
        runs = self.write(tmp_path / "runs", 1_767_323_045, 1_767_323_046)
        with pytest.raises(MaintenanceError, match="pack48 cannot hold start and elapsed time"):
            convert(runs, tmp_path / "s", "pack48")

    def test_each_run_counts_once(self, tmp_path: Path) -> None:
        runs = self.write(tmp_path / "runs", 1, 2, elapsed_s=3.0)
        lost = convert(runs, tmp_path / "s", "pack48", lossy=True).lost
        assert lost["start and elapsed time"] == 2
