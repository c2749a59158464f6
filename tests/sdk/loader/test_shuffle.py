"""The shuffle is a permutation, and nothing tells it from a random one.

Every seed is fixed, so that each statistic is one number that holds or does not. Bounds are wide (p above
1e-4, or five standard errors): with fewer rounds these statistics are off by tens and hundreds.
"""

import hashlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray
from scipy import stats

from tape2048.loader.shuffle import (
    INDICES_MAX,
    SHORT_INDICES_MAX,
    SMALL_INDICES_MAX,
    Permutation,
    fill_permuted,
    permuted,
)

U64 = np.uint64
P_MIN = 1e-4
Z_MAX = 5.0

#: Where ``keys`` has the number of double rounds, and the bits of a lane.
DOUBLE_ROUNDS_AT, LANE_BITS_AT, ROUND_KEYS_AT = 3, 4, 5

GOLDEN_10 = [1, 7, 3, 4, 5, 6, 8, 0, 2, 9]
GOLDEN_BILLION = [33281075, 850540036, 243435790]
GOLDEN_TEN_BILLION = [1386461603, 6127757967, 365382234]

sizes = st.one_of(
    st.integers(1, 200),
    st.integers(1, SHORT_INDICES_MAX),
    st.integers(SHORT_INDICES_MAX - 5, SHORT_INDICES_MAX + 5),
    st.integers(1, INDICES_MAX),
    st.integers(0, 40).flatmap(lambda bits: st.sampled_from([max(1, (1 << bits) - 1), 1 << bits])),
    st.integers(1, 1 << 20).map(lambda root: root * root),
)
words = st.integers(0, 2**64 - 1)


def images(n: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    out = np.empty(n, U64)
    Permutation(n, seed=seed, epoch=epoch).fill(0, out)
    return out.astype(np.int64)


def many(
    n: int, count: int, first_seed: int = 0, *, double_rounds: int | None = None, lane_bits: int | None = None
) -> NDArray[np.int64]:
    """``[count, n]``: a permutation for each seed, with other rounds or lanes than are its own if need be."""
    out = np.empty((count, n), U64)
    scratch = np.empty(1024, U64)
    for i in range(count):
        keys = Permutation(n, seed=first_seed + i, epoch=0).keys.copy()
        if double_rounds is not None:
            keys[DOUBLE_ROUNDS_AT] = double_rounds
        if lane_bits is not None:
            keys[LANE_BITS_AT] = lane_bits
            keys[ROUND_KEYS_AT:] = long_keys(keys, first_seed + i)
        fill_permuted(U64(0), keys, scratch, out[i])
    return out.astype(np.int64)


def long_keys(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Keys of 32 bits, as many as these are."""
    drawn = np.random.default_rng(seed).integers(0, 1 << 32, len(keys) - ROUND_KEYS_AT, dtype=U64)
    drawn.reshape(-1, 3)[:, 1:] |= U64(1)
    return drawn


def p_uniform(counts: NDArray[Any], degrees: int) -> float:
    """How often counts of equally likely cells are at least this uneven."""
    expected = counts.sum() / counts.size
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), degrees))


def reference(n: int, seed: int, epoch: int) -> Callable[[int], int]:
    """The map as the module's description has it, in Python's integers."""
    k = max(1, math.ceil((n - 1).bit_length() / 2))
    b = math.ceil(n / 2**k)
    double_rounds = 12 if n <= 2**16 else 6
    w = 16 if n <= 2**31 else 32
    name = b"tape2048.shuffle 2" + b"".join(value.to_bytes(8, "little") for value in (n, seed, epoch))
    size = w // 8
    key_bytes = hashlib.shake_128(name).digest(6 * size * double_rounds)
    key_words = [int.from_bytes(key_bytes[i : i + size], "little") for i in range(0, len(key_bytes), size)]
    rounds = [key_words[i : i + 3] for i in range(0, len(key_words), 3)]

    def product(x: int, key: int, factor: int, second_factor: int) -> int:
        y = (x ^ key) * (factor | 1) % 2**w
        return (y ^ y >> w // 2) * (second_factor | 1) % 2**w

    def once(i: int) -> int:
        low, high = i % 2**k, i // 2**k
        for number, keys in enumerate(rounds):
            if number % 2 == 0:
                y = product(high, *keys)
                low = (low + (y ^ y >> w // 2)) % 2**k
            else:
                high = (high + (product(low, *keys) * b >> w)) % b
        return high * 2**k + low

    def walked(i: int) -> int:
        i = once(i)
        while i >= n:
            i = once(i)
        return i

    return walked


@given(n=sizes, seed=words, epoch=words, data=st.data())
def test_the_map_is_the_one_described(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    out = np.empty(min(20, n - start), U64)
    permutation = Permutation(n, seed=seed, epoch=epoch)
    permutation.fill(start, out)
    expected = reference(n, seed, epoch)
    assert out.tolist() == [expected(start + j) for j in range(len(out))]
    assert [int(permuted(U64(start + j), permutation.keys)) for j in range(len(out))] == out.tolist()


def test_every_small_size_is_a_permutation() -> None:
    for n in range(1, 4097):
        permutation = Permutation(n, seed=n % 7, epoch=n % 3)
        out = np.empty(n, U64)
        permutation.fill(0, out)
        seen = np.zeros(n, np.bool_)
        seen[out] = True
        assert seen.all(), n


@pytest.mark.parametrize("n", [SMALL_INDICES_MAX, SMALL_INDICES_MAX + 1, 999_999, 2**20, 2**20 + 1])
def test_larger_sizes_are_permutations(n: int) -> None:
    assert (np.bincount(images(n, 5), minlength=n) == 1).all()


@given(n=st.integers(1, 5000), cuts=st.lists(st.integers(0, 5000)), tile=st.integers(1, 200))
@example(n=5000, cuts=[1023, 1024, 1025, 2048], tile=128)
def test_pieces_make_the_whole(n: int, cuts: list[int], tile: int) -> None:
    permutation = Permutation(n, seed=1, epoch=2)
    edges = sorted({0, n, *(min(cut, n) for cut in cuts)})
    out = np.empty(n, U64)
    for first, last in itertools.pairwise(edges):
        permutation.fill(first, out[first:last])
    assert (out == images(n, 1, 2)).all()
    fill_permuted(U64(0), permutation.keys, np.empty(tile, U64), out)
    assert (out == images(n, 1, 2)).all()


def test_the_order_of_a_seed_never_changes() -> None:
    # A loader's state names the seed and not the order: with another map, it would resume to other rows.
    assert images(10, 0).tolist() == GOLDEN_10
    out = np.empty(3, U64)
    for n, golden in ((10**9, GOLDEN_BILLION), (10**10, GOLDEN_TEN_BILLION)):
        Permutation(n, seed=2**64 - 1, epoch=7).fill(n - 3, out)
        assert out.tolist() == golden


def test_the_largest_size_needs_no_memory() -> None:
    permutation = Permutation(INDICES_MAX, seed=1, epoch=0)
    assert permutation.keys.nbytes < 1024
    assert len(permutation) == INDICES_MAX
    assert repr(permutation) == f"Permutation({INDICES_MAX}, seed=1, epoch=0)"
    out = np.empty(1000, U64)
    permutation.fill(INDICES_MAX - 1000, out)
    assert len(np.unique(out)) == 1000
    assert out.max() > INDICES_MAX * 0.99
    assert out.max() < INDICES_MAX


@pytest.mark.parametrize(("n", "count"), [(2, 4000), (3, 8000), (4, 20_000), (5, 30_000), (6, 50_000)])
def test_all_permutations_are_equally_likely(n: int, count: int) -> None:
    codes = many(n, count) @ (n ** np.arange(n))
    _, counts = np.unique(codes, return_counts=True)
    counts = np.pad(counts, (0, math.factorial(n) - len(counts)))
    assert p_uniform(counts, math.factorial(n) - 1) > P_MIN


def test_that_statistic_tells_too_few_rounds() -> None:
    codes = many(5, 30_000, double_rounds=6) @ (5 ** np.arange(5))
    assert p_uniform(np.unique(codes, return_counts=True)[1], 119) < P_MIN


@pytest.mark.parametrize(("n", "count"), [(16, 20_000), (37, 20_000), (100, 20_000), (256, 20_000)])
def test_every_row_comes_at_every_position(n: int, count: int) -> None:
    cells = many(n, count) + np.arange(n) * n
    counts = np.bincount(cells.ravel(), minlength=n * n)
    assert p_uniform(counts, (n - 1) ** 2) > P_MIN


def kept_distances(permutations: NDArray[np.int64], low_bits: int) -> NDArray[np.int64]:
    """Pairs of each permutation that share the high half and keep their distance in the low one."""
    count, n = permutations.shape
    side = 1 << low_bits
    low = permutations.reshape(count, n // side, side) & (side - 1)
    distance = (low - np.arange(side)) % side
    equal = np.stack([(distance == value).sum(axis=2) for value in range(side)])
    kept: NDArray[np.int64] = (equal * (equal - 1) // 2).sum(axis=(0, 2))
    return kept


def kept_distances_z(
    n: int, count: int, *, double_rounds: int | None = None, lane_bits: int | None = None
) -> tuple[float, float]:
    """How far mean and variance are from those of random permutations, in standard errors."""
    low_bits = math.ceil((n - 1).bit_length() / 2)
    rng = np.random.default_rng(0)
    random = kept_distances(rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1), low_bits)
    ours = kept_distances(many(n, count, double_rounds=double_rounds, lane_bits=lane_bits), low_bits)
    mean = (ours.mean() - random.mean()) / math.sqrt((ours.var() + random.var()) / count)
    squares = [(sample - sample.mean()) ** 2 for sample in (ours, random)]
    variance = (squares[0].mean() - squares[1].mean()) / math.sqrt(sum(s.var() for s in squares) / count)
    return float(mean), float(variance)


@pytest.mark.parametrize(("n", "count"), [(64, 10_000), (256, 5_000), (1024, 2_000)])
def test_pairs_do_not_keep_their_distance(n: int, count: int) -> None:
    assert np.abs(kept_distances_z(n, count)).max() < Z_MAX


@pytest.mark.parametrize("lane_bits", [16, 32])
def test_lanes_of_either_width_mix_as_well(lane_bits: int) -> None:
    """Those of 32 bits belong to sizes that no statistic of all pairs can be made of."""
    assert np.abs(kept_distances_z(256, 5_000, double_rounds=6, lane_bits=lane_bits)).max() < Z_MAX
    codes = many(5, 30_000, lane_bits=lane_bits) @ (5 ** np.arange(5))
    assert p_uniform(np.unique(codes, return_counts=True)[1], 119) > P_MIN


@pytest.mark.slow
def test_rounds_of_large_sizes_suffice_for_small() -> None:
    # Sizes above 2**16 have 6 double rounds; already at 2**8 nothing shows with as many.
    assert np.abs(kept_distances_z(256, 10_000, double_rounds=3)).max() > Z_MAX
    assert np.abs(kept_distances_z(256, 10_000, double_rounds=6)).max() < Z_MAX
    assert np.abs(kept_distances_z(4096, 500, double_rounds=6)).max() < Z_MAX


def test_half_of_the_permutations_are_odd() -> None:
    for n in (9, 16, 25):
        order = many(n, 4000)
        inversions = sum((order[:, i : i + 1] > order[:, i + 1 :]).sum(axis=1) for i in range(n))
        odd = int((np.asarray(inversions) % 2).sum())
        assert abs(odd - 2000) < Z_MAX * math.sqrt(1000)
        # Mean and variance of the number of inversions: Knuth, TAOCP 3, 5.1.1.
        mean, variance = n * (n - 1) / 4, n * (n - 1) * (2 * n + 5) / 72
        assert abs(np.mean(inversions) - mean) < Z_MAX * math.sqrt(variance / 4000)
        assert abs(np.var(inversions) / variance - 1) < Z_MAX * math.sqrt(2 / 4000)


def grid(a: NDArray[np.int64], b: NDArray[np.int64], n: int, side: int = 128) -> float:
    """Whether two columns of a permutation are independent: p of their joint histogram."""
    cells = (a * side // n) * side + b * side // n
    return p_uniform(np.bincount(cells, minlength=side * side), (side - 1) ** 2)


@pytest.mark.parametrize("n", [2**20, 1_000_003])
def test_successive_rows_are_independent(n: int) -> None:
    low_size = 1 << math.ceil((n - 1).bit_length() / 2)
    order = images(n, 11)
    for lag in (1, 2, 3, low_size, low_size + 1, 2 * low_size, n // 2):
        assert grid(order[:-lag], order[lag:], n) > P_MIN, lag
        # ... and so are their lowest bits, which decide what stands next to each other in a file.
        low = order & 127
        assert grid(low[:-lag], low[lag:], 128) > P_MIN, lag
    assert grid(np.arange(n), order, n) > P_MIN


def test_epochs_and_seeds_are_independent() -> None:
    n = 2**20
    base = images(n, 3, 5)
    others = {
        "next epoch": (3, 6), "next seed": (4, 5), "swapped": (5, 3), "seed's top bit": (3 | 1 << 63, 5),
    }  # fmt: skip
    for name, (seed, epoch) in others.items():
        other = images(n, seed, epoch)
        assert grid(base, other, n) > P_MIN, name
        # Rows at the same position in both: one on average, Poisson.
        assert (base == other).sum() < 10, name


def test_fixed_points_are_rare_enough() -> None:
    # Sums of Poisson(1): in one permutation, and from one to the next.
    order = many(1000, 4000)
    fixed = int((order == np.arange(1000)).sum())
    kept = int((order[1:] == order[:-1]).sum())
    for found in (fixed, kept):
        assert abs(found - 4000) < Z_MAX * math.sqrt(4000)


@pytest.mark.parametrize("bits", [20, 40])
def test_each_input_bit_changes_each_output_bit(bits: int) -> None:
    permutation = Permutation(1 << bits, seed=2, epoch=0)
    rng = np.random.default_rng(1)
    positions = rng.integers(0, 1 << bits, 2000, dtype=U64)
    rows = np.array([permuted(i, permutation.keys) for i in positions], U64)
    for bit in range(bits):
        changed = rows ^ np.array([permuted(i ^ U64(1 << bit), permutation.keys) for i in positions], U64)
        flips = (changed[:, None] >> np.arange(bits, dtype=U64) & U64(1)).sum(axis=0)
        assert (np.abs(flips.astype(np.int64) - 1000) < Z_MAX * math.sqrt(500)).all(), bit


def test_each_bit_of_seed_and_epoch_changes_the_order() -> None:
    base = images(100_000, 0, 0)
    for bit in range(64):
        for other in (images(100_000, 1 << bit, 0), images(100_000, 0, 1 << bit)):
            assert (base == other).sum() < 12, bit


@pytest.mark.parametrize(
    ("n", "seed", "epoch"),
    [(0, 0, 0), (-1, 0, 0), (INDICES_MAX + 1, 0, 0), (5, -1, 0), (5, 2**64, 0), (5, 0, -1), (5, 0, 2**64)],
)
def test_arguments_out_of_range(n: int, seed: int, epoch: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Permutation(n, seed=seed, epoch=epoch)


def test_arguments_that_are_numbers_of_numpy() -> None:
    order = Permutation(np.int64(1000), seed=np.uint64(3), epoch=np.int32(2))  # type: ignore[arg-type]
    np.testing.assert_array_equal(order.keys, Permutation(1000, seed=3, epoch=2).keys)
    with pytest.raises(ValueError, match=r"n=1000\.0; expected a whole number"):
        Permutation(1e3, seed=3, epoch=2)  # type: ignore[arg-type]


def test_positions_out_of_range() -> None:
    permutation = Permutation(10, seed=0, epoch=0)
    out = np.empty(4, U64)
    for start in (-1, 7, 2**63):
        with pytest.raises(IndexError, match="expected 0 <= position < 10"):
            permutation.fill(start, out)
    permutation.fill(10, out[:0])


def test_positions_that_are_no_numbers() -> None:
    permutation, out = Permutation(10, seed=0, epoch=0), np.empty(4, U64)
    start: Any
    for start in (0.5, 1.0, "1", None):
        with pytest.raises(ValueError, match=f"start={start!r}; expected a whole number"):
            permutation.fill(start, out)
    no_array: Any = [0, 0]
    with pytest.raises(TypeError, match="out is a list"):
        permutation.fill(0, no_array)


def test_outputs_of_another_kind() -> None:
    permutation = Permutation(10, seed=0, epoch=0)
    read_only = np.empty(4, U64)
    read_only.flags.writeable = False
    for out in (np.empty(4, np.int64), np.empty((2, 2), U64), np.empty(8, U64)[::2], read_only):
        with pytest.raises(TypeError, match="u64"):
            permutation.fill(0, out)
    with pytest.raises(ValueError, match="read-only"):
        permutation.keys[0] = 1
