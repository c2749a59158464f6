"""Rows onto tape and back are the same bytes; what a tape cannot hold is refused."""

import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.errors import FormatError, MaintenanceError, ReplayError
from tape2048.game import last_boards
from tape2048.maintenance import validate_session
from tape2048.runs import (
    Run,
    RunMeta,
    audit,
    open_source,
    repack as repack_module,
    repack_session,
    session_run,
    write_session,
)
from tape2048.session.metadata import read_metadata
from tape2048.session.session import Session

from ..builders import NAME, Spec, write_foreign, write_ours
from ..run_builders import ref
from ..tapes import TapeGames, games_on_tape, play, write_rows, write_tape

#: Both a 2 and a 4 would have ended the games of seeds 8 and 68; that of 68 ended with a 4.
GAMES = games_on_tape(3, 1, 8, 15, 68, 2, 1039)
ENDS = np.cumsum(GAMES.runs["rows"]).astype(int)
#: Games whose last board follows from the one before.
CERTAIN = np.array([True, True, False, True, False, True, True])


def replayer(_path: Path, facts: Mapping[str, Any]) -> Any:
    """Make the player of these sessions; a session without one cannot be played again."""
    if "player" not in facts:
        raise ReplayError("the session does not name its player")
    return play


@pytest.fixture(params=[1, 300, 1 << 18], ids=["game by game", "small pieces", "one piece"])
def piece_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack_module, "_PIECE_ROWS", request.param)


@pytest.mark.usefixtures("piece_rows")
@pytest.mark.parametrize("record_action", [True, False])
def test_rows_onto_tape_and_back_are_the_same(tmp_path: Path, record_action: bool) -> None:
    rows = write_rows(tmp_path / NAME, GAMES, record_action=record_action, player="toy")
    seen: list[tuple[int, int]] = []
    found = repack_session(
        rows, tmp_path / "a", "tape", replayer=replayer, progress=lambda *now: seen.append(now)
    )
    assert seen[-1] == (len(GAMES.tape), len(GAMES.tape))
    assert (found.path, found.rows, found.runs) == (tmp_path / "a" / NAME, len(GAMES.tape), len(GAMES.runs))
    assert found.bytes_before == sum(path.stat().st_size for path in rows.iterdir())
    assert found.bytes == sum(path.stat().st_size for path in found.path.iterdir())
    assert (np.load(found.path / "tape.npy") == GAMES.tape).all()
    assert (np.load(found.path / "anchors.npy") == GAMES.boards[::16]).all()
    assert validate_session(found.path).ok
    back = repack_session(found.path, tmp_path / "b", "rows").path
    assert (np.load(back / "steps.npy") == np.load(rows / "steps.npy")).all()
    assert np.load(back / "steps.npy").dtype == np.load(rows / "steps.npy").dtype
    assert validate_session(back).ok
    one, other = (read_metadata(path / "metadata.db") for path in (rows, back))
    assert (one.runs == other.runs).all()
    assert {**one.session, "storage": "rows"} == other.session
    assert Session.open(found.path).meta == {**one.session, "storage": "tape"}


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    tape = write_tape(tmp_path / NAME, GAMES)
    assert repack_session(tape, tmp_path, "rows").path == tmp_path / f"{NAME}-2"


def test_games_that_a_directory_holds_twice_are_served_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {"player": "toy", "player_sha256": "a" * 64}
    rows = write_rows(tmp_path / NAME, GAMES, **facts)
    tape = repack_session(rows, tmp_path, "tape", lossy=True).path
    other = write_rows(tmp_path / "20250203T040506Z_model=toy", games_on_tape(4, 3), **facts)
    its = f"also in {tape}, which is on tape"
    corpus = Corpus.open(tmp_path)
    assert caplog.messages == [f"left out: 7 games of {rows}, {its}; 1 game of {other}, {its}"]
    assert sorted(corpus.runs["seed"].tolist()) == sorted([*GAMES.runs["seed"].tolist(), 4])
    assert [one.name for one in corpus.sessions] == [tape.name, "20250203T040506Z_model=toy"]
    assert len(corpus.where("seed = 3")) == GAMES.runs["rows"][0]
    for again in (pickle.loads(pickle.dumps(corpus)), corpus.refresh()):  # noqa: S301 - our own
        assert again.identity == corpus.identity
    assert len(Corpus.open(tmp_path, f"session = '{NAME}'").runs) == len(GAMES.runs)
    assert len(Corpus.open(tmp_path, duplicates="keep").runs) == 2 * len(GAMES.runs) + 2
    assert open_source(tmp_path).count == len(GAMES.runs) + 1
    assert audit(tmp_path).games == len(GAMES.runs) + 1


def test_other_games_of_one_seed_are_all_served(tmp_path: Path) -> None:
    """Of another player, and of sessions without a player's hash that are no copies."""
    names = [f"2025020{number}T040506Z_model=toy" for number in range(1, 6)]
    write_rows(tmp_path / names[0], games_on_tape(3, 1), player_sha256="a" * 64)
    write_rows(tmp_path / names[1], games_on_tape(3, 1), player_sha256="b" * 64)
    write_rows(tmp_path / names[2], games_on_tape(3, 1))
    write_rows(tmp_path / names[3], games_on_tape(3, 1, 2))
    assert len(Corpus.open(tmp_path).runs) == 9
    shutil.copytree(tmp_path / names[3], tmp_path / names[4])
    assert len(Corpus.open(tmp_path).runs) == 9


class TestLastSpawns:
    def test_games_that_only_one_tile_ends_need_no_player(self, tmp_path: Path) -> None:
        games = games_on_tape(*GAMES.runs["seed"][CERTAIN].tolist())
        rows = write_rows(tmp_path / NAME, games)
        assert (np.load(repack_session(rows, tmp_path, "tape").path / "tape.npy") == games.tape).all()

    def test_others_are_refused_by_name_or_end_with_a_2(self, tmp_path: Path) -> None:
        certain = last_boards(GAMES.boards[ENDS - 1], GAMES.moves[ENDS - 1])[1]
        assert certain.tolist() == CERTAIN.tolist()
        rows = write_rows(tmp_path / NAME, GAMES)
        first = GAMES.runs["run_id"][~CERTAIN][0]
        with pytest.raises(MaintenanceError, match=f"run {first}: both a 2 and a 4"):
            repack_session(rows, tmp_path, "tape")
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
        tape = np.load(repack_session(rows, tmp_path, "tape", lossy=True).path / "tape.npy")
        other = np.flatnonzero(tape != GAMES.tape)
        assert other.tolist() == [ENDS[4] - 1]
        assert tape[other] == GAMES.tape[other] & ~np.uint8(64)

    def test_without_moves_a_player_is_needed(self, tmp_path: Path) -> None:
        rows = write_rows(tmp_path / NAME, GAMES, record_action=False)
        with pytest.raises(MaintenanceError, match=r"its moves were not recorded .*: no player was given"):
            repack_session(rows, tmp_path, "tape", lossy=True)
        with pytest.raises(MaintenanceError, match="replayed: the session does not name its player"):
            repack_session(rows, tmp_path, "tape", replayer=replayer)

    def test_a_player_that_plays_otherwise_is_named(self, tmp_path: Path) -> None:
        rows = write_rows(tmp_path / NAME, GAMES)
        with pytest.raises(ReplayError, match=r"the replay of run .* differs"):
            repack_session(
                rows, tmp_path, "tape", replayer=lambda *_: lambda seed, *given: play(seed + 1, *given)
            )
        assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_other_rows_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is sound and holds another game costs the original where it is removed afterwards."""
    tape = write_tape(tmp_path / NAME, games_on_tape(1, 2))
    other = write_tape(tmp_path / "other" / NAME, games_on_tape(2, 1))

    def write_other(draft: Path, *_: object) -> int:
        return repacking_write(draft, Session.open(other), lambda *_: None)

    repacking_write = repack_module._tape_as_rows
    monkeypatch.setattr(repack_module, "_tape_as_rows", write_other)
    with pytest.raises(MaintenanceError, match="does not hold the same rows"):
        repack_session(tape, tmp_path / "out", "rows")
    assert not any((tmp_path / "out").iterdir())


class TestRefused:
    def test_the_same_storage(self, tmp_path: Path) -> None:
        for path, storage in (
            (write_rows(tmp_path / "r" / NAME, GAMES), "rows"),
            (write_tape(tmp_path / "t" / NAME, GAMES), "tape"),
        ):
            with pytest.raises(MaintenanceError, match=f"in this storage already: {storage}"):
                repack_session(path, tmp_path / "out", storage)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="storage='zip'"):
            repack_session(path, tmp_path / "out", "zip")  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    def test_foreign_and_sampled_sessions(self, tmp_path: Path) -> None:
        for path, text in (
            (write_foreign(tmp_path / "theirs"), "foreign"),
            (write_foreign(tmp_path / "shards", shard_rows=5), "foreign"),
            (write_ours(tmp_path / NAME, Spec(sample_rate=3)), "one step in 3"),
        ):
            with pytest.raises(MaintenanceError, match=text):
                repack_session(path, tmp_path / "out", "tape")
        assert not (tmp_path / "out").exists()

    def test_rows_that_are_no_games(self, tmp_path: Path) -> None:
        """Rows that were made up, though every number fits."""
        path = write_ours(tmp_path / NAME, Spec(action=True))
        with pytest.raises(FormatError, match=r"run \d+"):
            repack_session(path, tmp_path / "out", "tape", lossy=True)
        assert not any((tmp_path / "out").iterdir())

    def test_damage(self, tmp_path: Path) -> None:
        path = write_tape(tmp_path / NAME, GAMES)
        data = bytearray((path / "tape.npy").read_bytes())
        data[200] ^= 64
        (path / "tape.npy").write_bytes(data)
        with pytest.raises(MaintenanceError, match="does not pass its validation"):
            repack_session(path, tmp_path / "out", "rows")


class TestRunsOntoTape:
    def runs(self, games: TapeGames) -> list[Run]:
        ends = np.cumsum(games.runs["rows"]).astype(int).tolist()
        made = []
        for end, row, final in zip(ends, games.runs.tolist(), games.finals.tolist(), strict=True):
            facts = dict(zip(games.runs.dtype.names, row, strict=True))
            span = slice(end - facts["rows"], end)
            meta = RunMeta(facts["rows"], max_score=facts["score"], highest_tile=facts["highest_tile"])
            made.append(Run.from_boards(games.boards[span], games.moves[span], final, meta))
        return made

    def test_they_come_back_whole(self, tmp_path: Path) -> None:
        given = self.runs(GAMES)
        assert write_session(tmp_path / NAME, given, {"note": "x"}, storage="tape") == len(given)
        session = Session.open(tmp_path / NAME)
        assert (session.tape.data == GAMES.tape).all()
        assert session.meta["note"] == "x"
        assert validate_session(tmp_path / NAME).ok
        for ordinal, run in enumerate(given):
            found, certain, lost = session_run(session, ordinal)
            assert (certain, lost) == (True, ())
            assert (found.states == run.states).all()
            assert (found.moves == run.moves).all()

    def test_those_that_are_no_whole_games_are_refused(self, tmp_path: Path) -> None:
        (whole,) = self.runs(games_on_tape(1039))
        boards = [ref.unpack(board) for board in whole.states[:5].tolist()]
        gained = [ref.slide(boards[i], int(whole.moves[i]))[1] for i in range(4)]
        meta = RunMeta(4, max_score=sum(gained), highest_tile=1 << max(boards[4]))
        part = Run(whole.states[:5], whole.moves[:4], meta)
        empty = Run(whole.states[:1], whole.moves[:0], RunMeta(0))
        score = sum((e - 1) << e for e in ref.unpack(whole.final_board) if e)
        board_score = Run(whole.states, whole.moves, msgspec.structs.replace(whole.meta, max_score=score))
        for run, text in (
            (part, "run 1, step 4: the game stops on board"),
            (empty, "run 1 has no steps"),
            (board_score, "run 1, step 28: score is"),
        ):
            with pytest.raises(FormatError, match=text):
                write_session(tmp_path / NAME, [whole, run], storage="tape")
            assert not any(tmp_path.iterdir())
