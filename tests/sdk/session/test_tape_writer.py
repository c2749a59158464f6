from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from tape2048.errors import ReplayError
from tape2048.session import TapeWriter, tape_writer as module
from tape2048.session.metadata import packed_defect, read_metadata
from tape2048.session.session_files import SessionFiles
from tape2048.session.tape_reader import check_games

from ..tapes import games_on_tape

GAMES = games_on_tape(*range(12))
DATA = Path(__file__).parents[2] / "data"


def write(directory: Path, *, at_once: int = 3) -> Path:
    directory.mkdir()
    with TapeWriter(directory) as writer:
        for begin in range(0, len(GAMES.runs), at_once):
            runs, starts = GAMES.runs[begin : begin + at_once], GAMES.starts[begin : begin + at_once]
            first = int(runs["first_row"][0])
            tape = GAMES.tape[first : first + int(runs["rows"].sum())]
            runs = runs.copy()
            runs["first_row"] = 5  # is set anew
            writer.add(tape, runs, starts)
        size = writer.finish({"engine": "toy"})
    assert size == sum(path.stat().st_size for path in directory.iterdir())
    return directory


def test_files_are_those_of_the_format(tmp_path: Path) -> None:
    session = write(tmp_path / "s")
    tape, anchors = np.load(session / "tape.npy"), np.load(session / "anchors.npy")
    assert (tape.dtype, anchors.dtype) == (np.dtype("u1"), np.dtype("<u8"))
    assert (tape == GAMES.tape).all()
    assert (anchors == GAMES.boards[::16]).all()
    metadata = read_metadata(session / "metadata.db")
    assert (metadata.runs == GAMES.runs).all()
    assert (metadata.start_boards == GAMES.starts).all()
    assert metadata.session == {"engine": "toy", "storage": "tape", "rows": len(tape), "runs": 12}
    assert packed_defect(session / "metadata.db") is None
    manifest = SessionFiles(session).manifest
    assert (manifest.rows, manifest.runs, manifest.anchor_rows) == (len(tape), 12, 16)
    assert {name: (entry.bytes, entry.crc32c) for name, entry in manifest.files.items()} == {
        path.name: (path.stat().st_size, crc32c(path.read_bytes()))
        for path in session.iterdir()
        if path.name != "manifest.json"
    }


def test_the_golden_bytes(tmp_path: Path) -> None:
    games = games_on_tape(1039, 3051)
    with TapeWriter(tmp_path) as writer:
        writer.add_boards(games.boards, games.moves, games.finals, games.runs)
        writer.finish({})
    for name in ("tape.npy", "anchors.npy"):
        assert (tmp_path / name).read_bytes() == (DATA / f"golden.{name}").read_bytes()
    content = (DATA / "golden.tape.npy").read_bytes()
    assert content[:128] == b"\x93NUMPY\x01\x00v\x00" + (
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (62,), }".ljust(117) + b"\n"
    )
    checked = check_games(np.frombuffer(content[128:], np.uint8), games.runs, games.starts)
    assert checked.defects == []
    assert (checked.boards[::16] == np.load(DATA / "golden.anchors.npy")).all()


@pytest.mark.parametrize("block_rows", [1, 100, 1024, 1 << 20])
def test_blocks_cover_the_tape(block_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAPE_BLOCK_ROWS", block_rows)
    session = write(tmp_path / "s", at_once=2)
    content = (session / "tape.npy").read_bytes()[128:]
    blocks = read_metadata(session / "metadata.db").blocks
    assert blocks["first_row"].tolist() == list(range(0, len(content), block_rows))
    for first, rows, checksum in blocks.tolist():
        assert rows == len(content[first : first + block_rows])
        assert checksum == crc32c(content[first : first + rows])


def test_boards_and_moves_are_taken_as_well(tmp_path: Path) -> None:
    write(tmp_path / "by-bytes", at_once=12)
    (tmp_path / "by-boards").mkdir()
    with TapeWriter(tmp_path / "by-boards") as writer:
        writer.add_boards(GAMES.boards, GAMES.moves, GAMES.finals, GAMES.runs)
        writer.finish({"engine": "toy"})
    for path in (tmp_path / "by-bytes").iterdir():
        if path.suffix != ".db":  # SQLite counts changes
            assert (
                tmp_path / "by-boards" / path.name
            ).read_bytes() == path.read_bytes() or path.suffix == ".json"


def test_games_that_the_rules_do_not_allow_are_refused(tmp_path: Path) -> None:
    boards = GAMES.boards.copy()
    at = int(GAMES.runs["first_row"][3]) + 4
    boards[at] = boards[at - 1]
    with TapeWriter(tmp_path) as writer:
        with pytest.raises(ReplayError, match="run 10, step 3: move"):
            writer.add_boards(boards, GAMES.moves, GAMES.finals, GAMES.runs)
        runs = GAMES.runs[:1].copy()
        runs["rows"] -= 1
        runs["steps"] -= 1
        with pytest.raises(ReplayError, match="the game stops on board"):
            writer.add(GAMES.tape[: int(runs["rows"][0])], runs, GAMES.starts[:1])
    assert writer.rows == 0


def test_a_session_of_no_games(tmp_path: Path) -> None:
    with TapeWriter(tmp_path) as writer:
        writer.finish({})
    assert len(np.load(tmp_path / "tape.npy")) == len(np.load(tmp_path / "anchors.npy")) == 0
