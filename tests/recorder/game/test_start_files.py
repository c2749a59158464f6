"""Start files: the boards that are read, and those that are rejected."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tape2048.errors import (
    FieldError,
    FormatError,
    NameTakenError,
    NpyError,
    TapeError,
)
from tape2048_recorder.game import start_files
from tape2048_recorder.game.kept_starts import with_games

BOARDS = np.array([0x1100000000000000, 0xFE00000000000002, 0x1234123412341230], np.uint64)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    start_files.write_starts(path, with_games(BOARDS))
    assert start_files.read_starts(path)["board"].tolist() == BOARDS.tolist()
    assert np.load(path)["exps"].shape == (3, 16)
    with pytest.raises(NameTakenError, match="Nothing was replaced"):
        start_files.write_starts(path, with_games(BOARDS))
    start_files.write_starts(path, with_games(BOARDS[:1]), replace=True)
    assert len(start_files.read_starts(path)) == 1


def test_text_has_a_board_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(
        "# late ones\n\n0x1100000000000000  # two\n32768 16384 . . / 0 0 0 0 / 0 0 0 0 / 0 0 0 4\n"
    )
    assert start_files.read_starts(path)["board"].tolist() == BOARDS[:2].tolist()


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf0x1100000000000000\r\n")
    assert start_files.read_starts(tmp_path / "a.txt")["board"].tolist() == BOARDS[:1].tolist()


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    os.truncate(os.open(tmp_path / "a.txt", os.O_RDWR | os.O_CREAT), 1 << 40)
    with pytest.raises(FieldError, match="has 1099511627776 bytes; expected at most 67108864"):
        start_files.read_starts(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no board"),
        ("# nothing\n", "found no board"),
        ("0x1100000000000000\n110000000000000\n", "line 2: found '110000000000000'"),
        ("0x1100000000000000 0x1100000000000000", "expected 16 hexadecimal digits"),
        ("1100000000000000\n0000000000000000", "line 2, 0x0000000000000000, has fewer than two tiles"),
        ("0000000000000001", "fewer than two tiles"),
        ("3300000000000000", "has no 2 and no 4"),
        ("1212212112122121", "has no legal move"),
    ],
)
def test_boards_that_no_game_has_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(FieldError, match=said) as caught:
        start_files.read_starts(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("array", "error", "said"),
    [
        (np.full((2, 16), 16, np.uint8), FieldError, "board 0 has an exponent above 15"),
        (np.zeros((0, 16), np.uint8), FieldError, "found no board"),
        (np.ones((2, 16), np.int64), NpyError, r"rows of type .*i8.* expected .*u1.*16"),
        (np.ones((2, 15), np.uint8), NpyError, r"rows of type .*15.* expected .*16"),
        (np.array([None, 1]), NpyError, "hold pickled Python objects"),
    ],
)
def test_arrays_that_hold_no_boards_are_refused(
    tmp_path: Path, array: np.ndarray, error: type[TapeError], said: str
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, array)
    with pytest.raises(error, match=said):
        start_files.read_starts(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    start_files.write_starts(path, with_games(BOARDS))
    whole = path.read_bytes()
    for size in range(6, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            start_files.read_starts(path)


@pytest.mark.parametrize(
    ("version", "descr", "shape"),
    [(2, "|u1", (2, 16)), (1, "|u1", (10**12, 16)), (1, "|S2147483647", (1, 16)), (1, "|u1", (3, 16))],
)
def test_headers_that_claim_too_much(
    tmp_path: Path, version: int, descr: str, shape: tuple[int, int]
) -> None:
    """Of a header of 500 MB, and of others of more than follows, nothing is read or allocated."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = len(text) if version == 1 else 500_000_000
    path = tmp_path / "a.npy"
    path.write_bytes(header_start(version, length) + text + bytes(32))
    if version == 2:
        os.truncate(path, 12 + length + 32)
    tracemalloc.start()
    with pytest.raises(FormatError):
        start_files.read_starts(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def header_start(version: int, length: int) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(2 * version, "little")
