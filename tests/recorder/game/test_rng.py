"""The generator, spawns and first boards against the reference; draws and seeds, and random play."""

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
from tape2048_recorder.game import rng
from tape2048_recorder.players import options

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


@kernel
def _fill_uniform(state: Any, gamma: Any, out: Any) -> Any:
    for i in range(out.shape[0]):
        out[i], state = rng.uniform(state, gamma)
    return state


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


def test_some_games_have_their_increment_mended() -> None:
    # One in fifty or so: few enough that no other test need meet one.
    plain = [reference.mix64((seed + 2 * reference.GOLDEN_GAMMA) % 2**64) | 1 for seed in range(2000)]
    mended = [seed for seed in range(2000) if int(_start(u64(seed))[1]) != plain[seed]]
    assert mended
    for seed in mended:
        assert (plain[seed] ^ plain[seed] >> 1).bit_count() < 24
        assert int(_start(u64(seed))[1]) == plain[seed] ^ 0xAAAAAAAAAAAAAAAA


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


def test_uniform_draws_are_uniform() -> None:
    draws = np.empty(1_000_000)
    state, gamma = (u64(int(word)) for word in _start(u64(7)))
    _fill_uniform(state, gamma, draws)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    scaled = draws * 2.0**53
    assert np.array_equal(scaled, np.floor(scaled)), "53 bits and no more"
    assert np.count_nonzero(scaled % 2 == 1) > 490_000, "down to the last of them"
    generator = reference.Generator(int(state), int(gamma))
    assert draws[:5].tolist() == [(generator.next() >> 11) / 2**53 for _ in range(5)]


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


def test_games_have_seeds_of_their_own() -> None:
    """Also those of neighbouring seeds."""
    ids = np.arange(100_000, dtype=np.uint64)
    seeds = np.concatenate([rng.game_seeds(seed, ids) for seed in (*range(8), 2**63, 2**64 - 1)])
    assert len(np.unique(seeds)) == len(seeds)
    assert rng.game_seeds(5, ids[:0]).tolist() == []


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


@kernel
def _count_starts(seeds: Any, counts: Any) -> None:
    """Count the first boards' tiles in ``counts[cell, exponent]``."""
    for i in range(seeds.shape[0]):
        board, _, _, _ = rng.new_game(seeds[i])
        for cell in range(16):
            counts[cell, (board >> np.uint64(60 - 4 * cell)) & np.uint64(15)] += 1


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
    board, four_count, state, gamma = map(int, rng.new_game(u64(seed)))
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


@pytest.mark.slow
def test_random_play_comes_to_what_is_published() -> None:
    games = 200_000
    seeds = rng.game_seeds(1, np.arange(games, dtype=np.uint64))
    scores, highest, steps = outcomes(options.make_player("random", {}), seeds)
    assert scores.mean() == pytest.approx(1_094, rel=0.01)
    assert steps / games == pytest.approx(118, rel=0.01)
    assert highest.max() <= 1024
    assert np.isin(highest, 2 ** np.arange(2, 11)).all()
