"""Start files: what is read and refused; the places at which games are lost, against plain lists."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference
from tests.sdk.builders import NAME, Spec, write_ours

from tape2048 import Session
from tape2048.errors import (
    ConfigError,
    EmptyCorpusError,
    FieldError,
    FormatError,
    NameTakenError,
    NpyError,
    TapeError,
)
from tape2048_recorder.evaluation import positions
from tape2048_recorder.evaluation.evaluated_games import play_games
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players import options

BOARDS = np.array([0x1100000000000000, 0xFE00000000000002, 0x1234123412341230], np.uint64)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    positions.write_starts(path, BOARDS)
    assert positions.read_starts(path).tolist() == BOARDS.tolist()
    assert np.load(path).shape == (3, 16)
    with pytest.raises(NameTakenError, match="Nothing was replaced"):
        positions.write_starts(path, BOARDS)
    positions.write_starts(path, BOARDS[:1], replace=True)
    assert len(positions.read_starts(path)) == 1


def test_text_has_a_board_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("# late ones\n\n0x1100000000000000  # two\nfe00000000000002\n")
    assert positions.read_starts(path).tolist() == BOARDS[:2].tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no board"),
        ("# nothing\n", "found no board"),
        ("0x1100000000000000\n110000000000000\n", "line 2 is '110000000000000'"),
        ("0x1100000000000000 0x1100000000000000", "expected the 16 hexadecimal digits"),
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
        positions.read_starts(path)
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
        positions.read_starts(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    positions.write_starts(path, BOARDS)
    whole = path.read_bytes()
    for size in range(6, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            positions.read_starts(path)


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
        positions.read_starts(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def header_start(version: int, length: int) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(2 * version, "little")


def value(cells: list[int]) -> float:
    """Of no meaning; falls and rises from board to board."""
    return float(sum(tile * weight for tile, weight in zip(cells, range(16), strict=True)) % 97)


def values(boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    return np.array([value(reference.unpack(int(board))) for board in boards], np.float32)


def slow_fall(boards: list[list[int]]) -> tuple[float, ...]:
    """Moves, points, moves left, last empty cells, and empty cells at the fall."""
    best = (-1.0, 0)
    for i, cells in enumerate(boards):
        drop = value(cells)
        if i + 1 < len(boards):
            after = boards[i + 1]
            # One of the four moves leads to the next board, but for its spawn.
            scores = {
                score
                for moved, score in (reference.slide(cells, m) for m in reference.legal_moves(cells))
                if [a for a, b in zip(moved, after, strict=True) if a != b] == [0]
            }
            assert len(scores) == 1
            drop -= scores.pop() + value(after)
        if max(cells) == max(boards[-1]) and drop > best[0]:
            best = (drop, i)
    drop, at = best
    return len(boards), drop, len(boards) - at, boards[-1].count(0), boards[at].count(0)


def test_falls_are_the_largest_drops() -> None:
    seeds = game_seeds(3, np.arange(40, dtype=np.uint64))
    games = play_games(options.make_player("random", {}), seeds, stride=1, threads=2)
    expected: dict[int, list[tuple[float, ...]]] = {}
    for run in range(len(games)):
        boards = [reference.unpack(int(board)) for board in games.between(run, run + 1).boards]
        expected.setdefault(2 ** int(games.highest[run]), []).append(slow_fall(boards))
    found = positions.analyse(games, values)
    assert list(found) == sorted(expected)
    assert len(found) > 2
    for tile, facts in expected.items():
        moves, points, left, last, empty = (list(column) for column in zip(*facts, strict=True))
        falls = found[tile]
        assert falls.games == len(facts)
        assert (falls.moves, falls.points) == pytest.approx((np.mean(moves), np.mean(points)))
        assert (falls.moves_left, falls.last_empty) == pytest.approx((np.median(left), np.mean(last)))
        assert falls.at_empty == {n: empty.count(n) for n in range(int(max(empty)) + 1)}


def test_recorded_games_are_those_of_the_sessions(tmp_path: Path) -> None:
    session = Session.open(write_ours(tmp_path / NAME))
    games = positions.recorded_games(tmp_path, 4)
    assert len(games) == 4
    assert np.diff(games.starts).tolist() == session.runs["rows"][:4].tolist()
    assert (1 << games.highest.astype(int)).tolist() == session.runs["highest_tile"][:4].tolist()
    boards = [reference.pack(row) for row in session.tokens(session.numbers_of(3)).tolist()]
    assert games.between(3, 4).boards.tolist() == boards
    assert len(positions.recorded_games(tmp_path, 99)) == len(session.runs)


def test_sessions_without_all_boards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyCorpusError):
        positions.recorded_games(tmp_path, 5)
    write_ours(tmp_path / NAME, Spec(sample_rate=4))
    with pytest.raises(ConfigError, match="found sample_rate = 4, expected 1"):
        positions.recorded_games(tmp_path, 5)
