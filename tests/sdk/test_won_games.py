"""A game that ends with a 65536: on tape, as rows, in every format; and sessions of rules 1."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference as ref

from tape2048 import Corpus, Session
from tape2048.errors import FieldError, ReplayError
from tape2048.game import last_boards, recover
from tape2048.game.spawning import NO_CELL
from tape2048.maintenance import validate_session
from tape2048.runs import (
    Run,
    RunMeta,
    audit,
    check_rules,
    convert,
    open_source,
    repack_session,
    session_run,
    write_run,
)
from tape2048.session.tape_reader import check_games

from .tapes import WON_SEED, TapeGames, games_on_tape, write_rows, write_tape

GAMES = games_on_tape(5, WON_SEED, 6)
RUN = Run.from_boards(
    games_on_tape(WON_SEED).boards, games_on_tape(WON_SEED).moves, 0,
    RunMeta(int(GAMES.runs["steps"][1]), 1, 1.0, int(GAMES.runs["score"][1]), 65536, "other"),
)  # fmt: skip


@pytest.fixture(params=["tape", "rows"])
def session(request: Any, tmp_path: Path) -> Session:
    write = write_tape if request.param == "tape" else write_rows
    return Session.open(write(tmp_path / "20250101T000000Z_model=won", GAMES))


def test_its_rows_are_read(session: Session) -> None:
    assert validate_session(session.path).findings == ()
    corpus = Corpus.open(session.path)
    end = int(GAMES.runs["first_row"][2])
    for first, last in ((0, len(GAMES.boards)), (end - 1, end), (end - 20, end + 3)):
        found = [ref.pack(cells) for cells in session.steps[first:last]["exps"].tolist()]
        assert found == GAMES.boards[first:last].tolist()
    assert (
        session.labels([65536])[:, 0].tolist()
        == (GAMES.runs["seed"] == WON_SEED).repeat(GAMES.runs["rows"]).tolist()
    )
    few = corpus.phase(empties=(0, 3))
    empty = [ref.unpack(board).count(0) for board in GAMES.boards.tolist()]
    assert len(few) == sum(count < 3 for count in empty)


def test_its_end_is_no_spawn(session: Session) -> None:
    run, certain, lost = session_run(session, 1)
    assert certain
    assert not lost
    assert run.states.tolist() == RUN.states.tolist()
    check_rules(run)
    found = recover(run.states, run.moves)
    assert found.moves.tolist() == RUN.moves.tolist()
    assert (found.cells[:-1] < 16).all()
    assert found.cells[-1] == NO_CELL
    assert [part.tolist() for part in last_boards(RUN.boards[-1:], RUN.moves[-1:])] == [[0], [True]]


def test_storages_hold_the_same(session: Session, tmp_path: Path) -> None:
    repacked = repack_session(session.path, tmp_path / "out", "rows" if session.tape is not None else "tape")
    again = repack_session(repacked.path, tmp_path / "back", "tape" if session.tape is not None else "rows")
    for name in ("tape.npy", "anchors.npy") if session.tape is not None else ("steps.npy",):
        assert (again.path / name).read_bytes() == (session.path / name).read_bytes()


@pytest.mark.parametrize(
    "kind", ["a2run", "a2run2", "a2pack", "packdat", "dataset", "jsonl", "parquet", "tape"]
)
def test_every_format_holds_it(kind: str, tmp_path: Path) -> None:
    source = write_tape(tmp_path / "20250101T000000Z_model=won", GAMES)
    target = tmp_path / ("out" if kind.startswith("a2run") else f"out.{kind}")
    convert(source, target, kind, lossy=True)
    (run,) = (
        found.checked() for found in open_source(target).runs() if found.checked().meta.highest_tile == 65536
    )
    assert run.states.tolist() == RUN.states.tolist()
    assert run.meta.max_score == RUN.meta.max_score


def test_a_notebook_draws_it() -> None:
    assert "Board: 65536 4 empty empty;" in RUN._repr_html_()


def test_an_audit_finds_no_fault(session: Session) -> None:
    found = {check.name: check.text for check in audit(session.path).checks[:4]}
    assert [text.split()[0] for text in found.values()] == ["0", "0", "0", "3"]


class TestRules1:
    """The same game as rules 1 had it: the 32768s stay apart, and it goes on."""

    BYTES = (3, 1 | 64)  # right and a 2, down and a 4, both at the top left

    @pytest.fixture
    def games(self) -> TapeGames:
        games = games_on_tape(WON_SEED)
        boards, cells = games.boards[:-1].tolist(), ref.unpack(int(games.boards[-1]))
        for byte in self.BYTES:
            boards.append(ref.pack(cells))
            before, (cells, _) = cells, ref.slide(cells, byte & 3, 15)
            assert before != cells
            assert not cells[byte >> 2 & 15]
            cells[byte >> 2 & 15] = 2 if byte & 64 else 1
        tape = np.append(games.tape[:-1], np.array(self.BYTES, np.uint8))
        runs = games.runs.copy()
        runs["rows"] = runs["steps"] = len(tape)
        runs["highest_tile"], runs["score"] = 32768, runs["score"] - 65536 + 4
        ends = np.array([ref.pack(cells)], np.uint64)
        return TapeGames(tape, np.array(boards, np.uint64), runs, games.starts, ends)

    @pytest.mark.parametrize("write", [write_tape, write_rows])
    def test_rows_stay_and_the_game_is_explained(self, tmp_path: Path, games: TapeGames, write: Any) -> None:
        path = write(tmp_path / "20250101T000000Z_model=old", games, engine="tape2048 0.1.0")
        session = Session.open(path)
        found = [ref.pack(cells) for cells in session.steps[-40:]["exps"].tolist()]
        assert found == games.boards[-40:].tolist()
        with pytest.raises((ReplayError, FieldError), match=r"step 16395.*except under rules 1"):
            session_run(session, 0)
        assert "except under rules 1" in str(audit(path))

    def test_a_tape_does_not_pass_its_validation(self, games: TapeGames) -> None:
        (defect,) = check_games(games.tape, games.runs, games.starts).defects
        assert defect.text.startswith(
            "byte 0x03; expected 0x83 on board 0xff20350030000000: two tiles of 32768"
        )

    def test_other_programs_are_read_up_to_the_merge(self, tmp_path: Path, games: TapeGames) -> None:
        states, steps = np.append(games.boards, games.finals), len(games.tape)
        for engine in ("other", "tape2048 0.1.0 ntuple"):
            run = Run(states, games.moves, RunMeta(steps, 1, 1.0, 4, 32768, engine))
            write_run(path := tmp_path / f"{engine[:5]}.a2run", run)
            (found,) = open_source(path).runs()
            if engine == "other":
                assert found.checked().states.tolist() == RUN.states.tolist()
                assert found.checked().meta == RUN.meta
            else:
                with pytest.raises(ReplayError, match=r"step 16395.*except under rules 1"):
                    found.checked()


@pytest.mark.parametrize("byte", [0x02, 0x83, 0x86, 0xC2])
def test_wrong_last_bytes(byte: int) -> None:
    games = games_on_tape(WON_SEED)
    games.tape[-1] = byte
    check = check_games(games.tape, games.runs, games.starts)
    assert [defect.step for defect in check.defects] == [len(games.tape) - 1] * (byte != 0x83)


def test_bit_7_before_the_end() -> None:
    games = games_on_tape(5)
    games.tape[3] |= 128
    (defect,) = check_games(games.tape, games.runs, games.starts).defects
    assert (defect.step, defect.text) == (3, f"byte {games.tape[3]:#04x} has bit 7 set; expected 0")
