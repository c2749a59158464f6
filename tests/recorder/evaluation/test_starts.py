"""Start files: what can be read, and what is refused with the board that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.sdk.builders import GAMES, NAME, Spec, write_ours

from tape2048 import Session
from tape2048.errors import ConfigError, FieldError, NameTakenError, NpyError, TapeError
from tape2048_recorder.evaluation.starts import first_boards, read_starts, write_starts

if TYPE_CHECKING:
    from pathlib import Path

BOARDS = np.array([0x1100000000000000, 0xFE00000000000002, 0x1234123412341230], np.uint64)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_starts(path, BOARDS)
    assert read_starts(path).tolist() == BOARDS.tolist()
    assert np.load(path).shape == (3, 16)
    with pytest.raises(NameTakenError, match="nothing was replaced"):
        write_starts(path, BOARDS)
    write_starts(path, BOARDS[:1], replace=True)
    assert len(read_starts(path)) == 1


def test_text_has_a_board_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("# late ones\n\n0x1100000000000000  # two\nfe00000000000002\n")
    assert read_starts(path).tolist() == BOARDS[:2].tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no board"),
        ("# nothing\n", "found no board"),
        ("0x1100000000000000\n110000000000000\n", "line 2 is '110000000000000'"),
        ("0x1100000000000000 0x1100000000000000", "expected the 16 hexadecimal digits"),
        ("1100000000000000\n0000000000000000", "board 1, 0x0000000000000000, has fewer than two tiles"),
        ("0000000000000001", "fewer than two tiles"),
        ("3300000000000000", "has no 2 and no 4"),
        ("1212212112122121", "has no legal move"),
    ],
)
def test_boards_that_no_game_has_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(FieldError, match=said) as caught:
        read_starts(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("array", "error", "said"),
    [
        (np.full((2, 16), 16, np.uint8), FieldError, "board 0 has an exponent above 15"),
        (np.zeros((0, 16), np.uint8), FieldError, "found no board"),
        (np.ones((2, 16), np.int64), NpyError, r"found int64\[2, 16\], expected exponents uint8"),
        (np.ones((2, 15), np.uint8), NpyError, r"found uint8\[2, 15\]"),
        (np.array([None, 1]), NpyError, "not a .npy file of boards"),
    ],
)
def test_arrays_that_hold_no_boards_are_refused(
    tmp_path: Path, array: np.ndarray, error: type[TapeError], said: str
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, array)
    with pytest.raises(error, match=said):
        read_starts(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_starts(path, BOARDS)
    whole = path.read_bytes()
    for size in range(6, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(NpyError):
            read_starts(path)


def test_first_boards_are_those_of_each_game(tmp_path: Path) -> None:
    session = Session.open(write_ours(tmp_path / NAME))
    expected = []
    for run in range(len(session.runs)):
        exps = session.tokens(session.numbers_of(run))
        first = [row for row in exps.tolist() if max(row) >= 13][:1]
        expected += [sum(e << (60 - 4 * cell) for cell, e in enumerate(row)) for row in first]
    assert len(expected) == 3
    assert first_boards(tmp_path, 8192).tolist() == expected
    (tmp_path / "other").mkdir()
    write_ours(tmp_path / "other" / NAME, Spec(games=GAMES[1:2]))
    with pytest.raises(ConfigError, match="found no board with a 16384"):
        first_boards(tmp_path / "other", 16384)
    with pytest.raises(ConfigError, match="found the tile 65"):
        first_boards(tmp_path, 65)
