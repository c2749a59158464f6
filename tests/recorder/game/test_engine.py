"""Random spawns, the start of a game, and the known statistics of random play."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, strategies as st
from scipy import stats
from tests import reference
from tests.recorder.choosing import outcomes

from tape2048.jit.compiler import kernel
from tape2048_recorder.game import engine, rng
from tape2048_recorder.players import registry

words = st.integers(0, 2**64 - 1)
boards_with_room = st.lists(st.integers(0, 15), min_size=16, max_size=16).filter(lambda cells: 0 in cells)


@kernel
def _count_spawns(board: Any, state: Any, gamma: Any, spawns: Any, counts: Any) -> None:
    """Count, in ``counts[cell, is_four]``, what ``spawns`` spawns on this board put where."""
    for _ in range(spawns):
        after, is_four, state = engine.spawn(board, state, gamma)
        added = after ^ board
        cell = 0
        while (added >> np.uint64(60 - 4 * cell)) == np.uint64(0):
            cell += 1
        counts[cell, is_four] += 1


@kernel
def _count_starts(seeds: Any, counts: Any) -> None:
    """Count the first boards' tiles in ``counts[cell, exponent]``."""
    for i in range(seeds.shape[0]):
        board, _, _, _ = engine.new_game(seeds[i])
        for cell in range(16):
            counts[cell, (board >> np.uint64(60 - 4 * cell)) & np.uint64(15)] += 1


def u64(value: int) -> np.uint64:
    return np.uint64(value)


# --- spawns


@given(boards_with_room, words, words.map(lambda gamma: gamma | 1))
@example([0] * 16, 0, 1)
@example([0] + [15] * 15, 0, 1)
@example([15] * 15 + [0], 0, 1)
def test_a_spawn_is_the_references(cells: list[int], state: int, gamma: int) -> None:
    generator = reference.Generator(state, gamma)
    expected, is_four = reference.spawn(cells, generator)
    board, four, after = engine.spawn(u64(reference.pack(cells)), u64(state), u64(gamma))
    assert reference.unpack(int(board)) == expected
    assert (int(four), int(after)) == (is_four, generator.state)
    changed = [cell for cell in range(16) if expected[cell] != cells[cell]]
    assert [cells[cell] for cell in changed] == [0]
    assert [expected[cell] for cell in changed] == [1 + is_four]


def some_boards() -> list[list[int]]:
    rng = random.Random(11)
    boards = [[0] * 16, [0] + [3] * 15, [3] * 15 + [0], [0, 0] + [15] * 14]
    for tiles in (2, 5, 9, 12, 14):
        cells = [rng.randint(1, 15) for _ in range(tiles)] + [0] * (16 - tiles)
        rng.shuffle(cells)
        boards.append(cells)
    return boards


@pytest.mark.parametrize("cells", some_boards(), ids=lambda cells: f"{16 - cells.count(0)} tiles")
def test_spawns_are_uniform_and_a_tenth_are_fours(cells: list[int]) -> None:
    counts: npt.NDArray[np.int64] = np.zeros((16, 2), dtype=np.int64)
    spawns = 500_000
    _count_spawns(u64(reference.pack(cells)), u64(5), u64(0x9E3779B97F4A7C15), spawns, counts)
    empty = reference.empty_cells(cells)
    assert not np.delete(counts, empty, axis=0).any()
    expected = np.outer(np.ones(len(empty)), [0.9, 0.1]) * spawns / len(empty)
    assert stats.chisquare(counts[empty].ravel(), expected.ravel()).pvalue > 1e-3


# --- starts


@given(words)
@example(0)
@example(2**64 - 1)
def test_a_game_starts_as_the_references(seed: int) -> None:
    cells, fours, generator = reference.new_game(seed)
    board, four_count, state, gamma = map(int, engine.new_game(u64(seed)))
    assert reference.unpack(board) == cells
    assert (four_count, state, gamma) == (fours, generator.state, generator.gamma)
    assert len(reference.empty_cells(cells)) == 14


def test_games_start_anywhere() -> None:
    games = 400_000
    counts: npt.NDArray[np.int64] = np.zeros((16, 16), dtype=np.int64)
    _count_starts(rng.game_seeds(3, np.arange(games, dtype=np.uint64)), counts)
    assert counts[:, 1:3].sum() == 2 * games
    assert not counts[:, 3:].any()
    # Two tiles in different cells: each cell has one in an eighth of the games, independently of which.
    expected = np.full(16, games / 8)
    # Two cells drawn without replacement: their counts vary by 14/15 of what a multinomial's do.
    statistic = ((counts[:, 1:3].sum(axis=1) - expected) ** 2 / expected).sum() * 15 / 14
    assert 1e-3 < stats.chi2.sf(statistic, 15) < 1 - 1e-3
    assert stats.binomtest(int(counts[:, 2].sum()), 2 * games, 0.1).pvalue > 1e-3


# --- random play


@pytest.mark.slow
def test_random_play_comes_to_what_is_published() -> None:
    games = 200_000
    seeds = rng.game_seeds(1, np.arange(games, dtype=np.uint64))
    scores, highest, steps = outcomes(registry.make_player("random", {}), seeds)
    assert scores.mean() == pytest.approx(1_094, rel=0.01)
    assert steps / games == pytest.approx(118, rel=0.01)
    assert highest.max() <= 1024
    assert np.isin(highest, 2 ** np.arange(2, 11)).all()
