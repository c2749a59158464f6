"""The generator: published values, unbiased draws, seeds of games."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, strategies as st
from scipy import stats
from tests import reference

from tape2048.jit.compiler import kernel
from tape2048_recorder.game import rng

words = st.integers(0, 2**64 - 1)

#: SplitMix64 from the state 1234567, as its authors' code (and everybody's copy of it) gives them.
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


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
def _count_draws(state: Any, gamma: Any, draws: Any, counts: Any) -> Any:
    """Count ``draws`` bounded draws below the length of ``counts``; the state after them."""
    n = np.uint64(counts.shape[0])
    for _ in range(draws):
        draw, state = rng.bounded(state, gamma, n)
        counts[draw] += 1
    return state


@kernel
def _fill_uniform(state: Any, gamma: Any, out: Any) -> Any:
    for i in range(out.shape[0]):
        out[i], state = rng.uniform(state, gamma)
    return state


def u64(value: int) -> np.uint64:
    return np.uint64(value % 2**64)


# --- the sequence


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


# --- bounded draws


class Word8(int):
    """A machine word of 8 bits."""

    def __new__(cls, value: int) -> Self:
        return super().__new__(cls, int(value) % 256)

    def __mul__(self, other: int) -> Word8:
        return Word8(int(self) * int(other))

    def __sub__(self, other: int) -> Word8:
        return Word8(int(self) - int(other))

    def __mod__(self, other: int) -> Word8:
        return Word8(int(self) % int(other))


class RejectedError(Exception):
    """A second word was asked for."""


def test_every_word_of_eight_bits_and_every_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very source of ``bounded``, run on 8-bit words: each result comes from equally many words."""

    def next_word(state: int | None, gamma: int) -> tuple[Word8, None]:
        if state is None:
            raise RejectedError
        return Word8(state), None

    monkeypatch.setattr(rng, "U64", Word8)
    monkeypatch.setattr(rng, "next_u64", next_word)
    monkeypatch.setattr(rng, "high64", lambda a, b: int(a) * int(b) >> 8)
    for n in range(1, 256):
        counts = [0] * n
        rejected = 0
        for word in range(256):
            try:
                draw, _ = rng.bounded(word, 1, Word8(n))
            except RejectedError:
                rejected += 1
            else:
                counts[draw] += 1
        assert counts == [256 // n] * n, n
        assert rejected == 256 % n


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


@given(words)
def test_unmix_is_the_way_back(z: int) -> None:
    assert reference.mix64(unmix64(z)) == z


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


@pytest.mark.parametrize("n", [2, 3, 10, 24, 140, 160])
def test_bounded_draws_are_uniform(n: int) -> None:
    counts: npt.NDArray[np.int64] = np.zeros(n, dtype=np.int64)
    _count_draws(*(u64(int(word)) for word in _start(u64(n))), 1_000_000, counts)
    assert stats.chisquare(counts).pvalue > 1e-3


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


# --- games


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


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_games_have_seeds_of_their_own(seed: int) -> None:
    ids = np.arange(1_000_000, dtype=np.uint64)
    assert len(np.unique(rng.game_seeds(seed, ids))) == len(ids)


def test_neighbouring_seeds_play_other_games() -> None:
    ids = np.arange(100_000, dtype=np.uint64)
    seeds = np.concatenate([rng.game_seeds(seed, ids) for seed in range(8)])
    assert len(np.unique(seeds)) == len(seeds)


def test_no_games_have_no_seeds() -> None:
    assert rng.game_seeds(5, np.empty(0, dtype=np.uint64)).tolist() == []
