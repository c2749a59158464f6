"""The positions at which games are lost, against plain lists."""

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
)
from tape2048_recorder.evaluation import positions
from tape2048_recorder.evaluation.evaluated_games import play_games
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players import options


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
    return (
        len(boards),
        drop,
        drop / max(value(boards[at]), 1),
        len(boards) - at,
        boards[-1].count(0),
        boards[at].count(0),
    )


def test_falls_are_the_largest_drops() -> None:
    seeds = game_seeds(3, np.arange(40, dtype=np.uint64))
    games = play_games(options.make_player("random", {}), seeds, stride=1, threads=2)
    expected: dict[int, list[tuple[float, ...]]] = {}
    for run in range(len(games)):
        boards = [reference.unpack(int(board)) for board in games.between(run, run + 1).boards]
        expected.setdefault(2 ** int(games.highest[run]), []).append(slow_fall(boards))
    found = positions.analyse(games, values, calibrated=True)
    assert list(found) == sorted(expected)
    assert len(found) > 2
    for tile, facts in expected.items():
        moves, points, shares, left, last, empty = (list(column) for column in zip(*facts, strict=True))
        falls = found[tile]
        assert falls.games == len(facts)
        assert (falls.moves, falls.points) == pytest.approx((np.mean(moves), np.mean(points)))
        assert falls.share == pytest.approx(np.mean(shares))
        assert (falls.moves_left, falls.last_empty) == pytest.approx((np.median(left), np.mean(last)))
        assert falls.at_empty == {n: empty.count(n) for n in range(int(max(empty)) + 1)}


def test_recorded_games_are_those_of_the_sessions(tmp_path: Path) -> None:
    session = Session.open(write_ours(tmp_path / NAME))
    games, facts = positions.recorded_games(tmp_path, 4)
    assert facts == session.meta
    assert len(games) == 4
    assert np.diff(games.starts).tolist() == session.runs["rows"][:4].tolist()
    assert (1 << games.highest.astype(int)).tolist() == session.runs["highest_tile"][:4].tolist()
    boards = [reference.pack(row) for row in session.tokens(session.numbers_of(3)).tolist()]
    assert games.between(3, 4).boards.tolist() == boards
    assert len(positions.recorded_games(tmp_path, 99)[0]) == len(session.runs)


def test_sessions_without_all_boards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyCorpusError):
        positions.recorded_games(tmp_path, 5)
    write_ours(tmp_path / NAME, Spec(sample_rate=4))
    with pytest.raises(ConfigError, match="found sample_rate = 4, expected 1"):
        positions.recorded_games(tmp_path, 5)
