"""The generator, spawns and first boards against the reference; draws and seeds, and random play."""

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, strategies as st
from scipy import stats
from tests import reference

from tape2048.jit.compiler import kernel
from tape2048_recorder.game import rng

words = st.integers(0, 2**64 - 1)
BOARDS_WITH_ROOM = st.lists(st.integers(0, 15), min_size=16, max_size=16).filter(lambda cells: 0 in cells)

#: SplitMix64 from the state 1234567, as its authors' code (and everybody's copy of it) gives them.
PUBLISHED = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
    16408922859458223821,
]  # fmt: skip


@kernel
def _start(seed: Any) -> Any:
    return rng.start(seed)


@kernel
def _next_u64(state: Any, gamma: Any) -> Any:
    return rng.next_u64(state, gamma)


@kernel
def _bounded(state: Any, gamma: Any, n: Any) -> Any:
    return rng.bounded(state, gamma, n)


def u64(value: int) -> np.uint64:
    return np.uint64(value % 2**64)


def test_the_published_values() -> None:
    state = 1234567
    for expected in PUBLISHED:
        bits, state = map(int, _next_u64(u64(state), rng.GOLDEN_GAMMA))
        assert bits == expected
    assert state == (1234567 + 5 * 0x9E3779B97F4A7C15) % 2**64
    generator = reference.Generator(1234567, reference.GOLDEN_GAMMA)
    assert [generator.next() for _ in PUBLISHED] == PUBLISHED


@given(words, words.map(lambda gamma: gamma | 1))
def test_any_sequence(state: int, gamma: int) -> None:
    generator = reference.Generator(state, gamma)
    for _ in range(3):
        bits, state = map(int, _next_u64(u64(state), u64(gamma)))
        assert bits == generator.next()
        assert state == generator.state


@given(words)
@example(0)
@example(2**64 - 1)
def test_a_games_generator(seed: int) -> None:
    state, gamma = map(int, _start(u64(seed)))
    generator = reference.Generator.of_game(seed)
    assert (state, gamma) == (generator.state, generator.gamma)
    assert gamma % 2 == 1
    assert (gamma ^ gamma >> 1).bit_count() >= 24, "an increment with few changes mixes poorly"


UNMIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def unmix64(z: int) -> int:
    """The word that ``mix64`` makes ``z`` of."""

    def unshift(value: int, shift: int) -> int:
        result = value
        for _ in range(64 // shift):
            result = value ^ result >> shift
        return result

    z = unshift(z, 31) * pow(UNMIX[1], -1, 2**64) % 2**64
    z = unshift(z, 27) * pow(UNMIX[0], -1, 2**64) % 2**64
    return unshift(z, 30)


def draw_from(bits: int, n: int) -> tuple[int, int]:
    """The compiled draw when the generator's first word is ``bits``: the result, and the words used."""
    before = (unmix64(bits) - 1) % 2**64
    draw, state = map(int, _bounded(u64(before), u64(1), u64(n)))
    return draw, (state - before) % 2**64


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 10, 16, 24, 30, 90, 140, 150, 160, 999, 1024])
def test_compiled_draws_are_exactly_uniform(n: int) -> None:
    """The words of each result are an interval, of which only the first word can be too many."""
    ends = [-(-k * 2**64 // n) for k in range(n + 1)]
    for k in range(n):
        first, after = ends[k], ends[k + 1]
        used = draw_from(first, n)[1]
        assert after - first - (used > 1) == 2**64 // n
        if used == 1:
            assert draw_from(first, n) == (k, 1)
        for word in (first + 1, (first + after) // 2, after - 1):
            assert draw_from(word, n) == (k, 1)


@given(words, words.map(lambda gamma: gamma | 1), st.integers(1, 2**32 - 1))
@example(unmix64(0) - 1, 1, 10)
def test_any_bounded_draw(state: int, gamma: int, n: int) -> None:
    generator = reference.Generator(state % 2**64, gamma)
    draw = generator.below(n)
    assert tuple(map(int, _bounded(u64(state), u64(gamma), u64(n)))) == (draw, generator.state)
    assert 0 <= draw < n


@given(words, st.integers(0, 2**62))
@example(0, 0)
@example(2**64 - 1, 0)
def test_the_seed_of_a_game(seed: int, first: int) -> None:
    ids = np.arange(first, first + 3, dtype=np.uint64)
    seeds = rng.game_seeds(seed, ids)
    assert seeds.dtype == np.uint64
    assert seeds.tolist() == [
        reference.mix64((seed + (int(i) + 1) * reference.GOLDEN_GAMMA) % 2**64) for i in ids
    ]


@kernel
def _count_spawns(board: Any, state: Any, gamma: Any, spawns: Any, counts: Any) -> None:
    """Count, in ``counts[cell, is_four]``, what ``spawns`` spawns on this board put where."""
    for _ in range(spawns):
        after, is_four, state = rng.spawn(board, state, gamma)
        added = after ^ board
        cell = 0
        while (added >> np.uint64(60 - 4 * cell)) == np.uint64(0):
            cell += 1
        counts[cell, is_four] += 1


@given(BOARDS_WITH_ROOM, words, words.map(lambda gamma: gamma | 1))
@example([0] * 16, 0, 1)
@example([0] + [15] * 15, 0, 1)
@example([15] * 15 + [0], 0, 1)
def test_a_spawn_is_the_references(cells: list[int], state: int, gamma: int) -> None:
    generator = reference.Generator(state, gamma)
    expected, is_four = reference.spawn(cells, generator)
    board, four, after = rng.spawn(u64(reference.pack(cells)), u64(state), u64(gamma))
    assert reference.unpack(int(board)) == expected
    assert (int(four), int(after)) == (is_four, generator.state)
    changed = [cell for cell in range(16) if expected[cell] != cells[cell]]
    assert [cells[cell] for cell in changed] == [0]
    assert [expected[cell] for cell in changed] == [1 + is_four]


def some_boards() -> list[list[int]]:
    draw = random.Random(11)
    boards = [[0] * 16, [0] + [3] * 15, [3] * 15 + [0], [0, 0] + [15] * 14]
    for tiles in (2, 5, 9, 12, 14):
        cells = [draw.randint(1, 15) for _ in range(tiles)] + [0] * (16 - tiles)
        draw.shuffle(cells)
        boards.append(cells)
    return boards


@pytest.mark.parametrize("cells", some_boards(), ids=lambda cells: f"{16 - cells.count(0)} tiles")
def test_spawns_are_uniform_and_a_tenth_are_fours(cells: list[int]) -> None:
    counts: npt.NDArray[np.int64] = np.zeros((16, 2), dtype=np.int64)
    spawns = 200_000
    _count_spawns(u64(reference.pack(cells)), u64(5), u64(0x9E3779B97F4A7C15), spawns, counts)
    empty = reference.empty_cells(cells)
    assert not np.delete(counts, empty, axis=0).any()
    expected = np.outer(np.ones(len(empty)), [0.9, 0.1]) * spawns / len(empty)
    assert stats.chisquare(counts[empty].ravel(), expected.ravel()).pvalue > 1e-3


@given(words)
@example(0)
@example(2**64 - 1)
def test_a_game_starts_as_the_references(seed: int) -> None:
    cells, fours, generator = reference.new_game(seed)
    board, four_count, state, gamma = map(int, rng.new_game(u64(seed), u64(0)))
    assert reference.unpack(board) == cells
    assert (four_count, state, gamma) == (fours, generator.state, generator.gamma)
    assert len(reference.empty_cells(cells)) == 14
