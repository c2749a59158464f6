r"""Players without a trained network: ``random``, ``greedy`` and ``expectimax``.

``random`` plays a uniformly random legal move. ``greedy`` plays the move with the highest merge score, and
draws among equal moves. ``expectimax`` plays the move with the best expected value ``depth`` spawns ahead:
the expectation, over all spawns (each empty cell, 2 with p = 0.9 and 4 with p = 0.1), of the value of the
best next move. See Russell and Norvig, "Artificial Intelligence", 4th ed., section 5.5 (expectiminimax
without the opponent). A board without legal moves has the value 0. The leaves are afterstates, valued by the
sum over their 4 rows and 4 columns of

.. math::

    h = w_0 + w_e \cdot empties + w_m \cdot merges + w_c \cdot \max(e_0^p, e_3^p)
        - w_s \sum_i |e_i - e_{i+1}| - w_o \cdot \min(rise, fall) - w_t \sum_i e_i^q

with :math:`e_i` the line's exponents, *merges* the number of equal neighbours, and *rise* (*fall*) the sum of
:math:`|e_i^q - e_{i+1}^q|` over the neighbours between which the line rises (falls). One of the two is 0 for
a monotonic line. The sum at :math:`w_s` is over pairs of neighbours without an empty cell. The corner term
applies only to outer lines, so there are two tables of lines. The features (empties, monotonicity,
smoothness, corner) come from players' advice.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048.game.rules import empty_mask, row, rows_merge_score, slide_rows, transpose
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import popcount
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses, values_moves

U64 = np.uint64

_ONE = U64(1)

#: log2 of the transposition table's entries for each depth: 2**15 x 12 bytes fit into the second-level cache.
#: The table makes depth 2 1.3 times and depth 3 2.4 times as fast. 14 and 16 were no better, 19 worse.
_CACHE_BITS = 15
_HASH = U64(0x9E3779B97F4A7C15)


class LineWeights(NamedTuple):
    """Parameters of the formula, in its order.

    CMA-ES found them by the mean log score of depth 1 (about 900 evaluations of 250 games); then they were
    rounded. The mean score over 2,500 games is 52,000, against 37,000 with the hand-picked initial values.
    """

    base: float = 250_000.0
    empty: float = 150.0
    merge: float = 500.0
    corner: float = 6.0
    corner_power: float = 0.6
    smooth: float = 12.0
    monotone: float = 50.0
    total: float = 20.0
    power: float = 2.3


WEIGHTS = LineWeights()


class Expectimax(NamedTuple):
    """Expectimax over line tables.

    ``outer`` and ``inner``, both ``f32[65536]``, are the values of lines at the board's edge and of inner
    lines. The transposition table (direct-mapped, by depth and afterstate) holds exact values, so it does not
    change moves. Each thread needs a separate player because of it.
    """

    depth: np.uint64
    outer: npt.NDArray[np.float32]
    inner: npt.NDArray[np.float32]
    cache_keys: npt.NDArray[np.uint64]
    cache_values: npt.NDArray[np.float32]


@functools.lru_cache(maxsize=8)
def line_tables(weights: LineWeights = WEIGHTS) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the values of all lines: ``(outer, inner)``, both ``f32[65536]``."""
    lines = np.arange(1 << 16)
    e = np.stack([lines >> shift & 15 for shift in (12, 8, 4, 0)]).astype(np.float64)
    steep = e**weights.power
    differences = steep[:-1] - steep[1:]
    fall = np.maximum(differences, 0).sum(axis=0)
    rise = np.maximum(-differences, 0).sum(axis=0)
    merges = ((e[:-1] == e[1:]) & (e[1:] > 0)).sum(axis=0)
    rough = (np.abs(e[:-1] - e[1:]) * ((e[:-1] > 0) & (e[1:] > 0))).sum(axis=0)
    inner = (
        weights.base
        + weights.empty * (e == 0).sum(axis=0)
        + weights.merge * merges
        - weights.smooth * rough
        - weights.monotone * np.minimum(rise, fall)
        - weights.total * steep.sum(axis=0)
    )
    outer = inner + weights.corner * np.maximum(e[0], e[3]) ** weights.corner_power
    # Always above a lost position, which is worth 0.
    return np.maximum(outer, 1).astype(np.float32), np.maximum(inner, 1).astype(np.float32)


def make_expectimax(*, depth: int) -> Expectimax:
    size = (depth - 1) << _CACHE_BITS  # one part per inner depth. The key 0, no afterstate, is a free slot
    return Expectimax(
        U64(depth), *line_tables(), np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.float32)
    )


def expectation(best_answer: Any) -> Any:
    """Return a function for the mean of ``best_answer(player, board, *rest)`` over an afterstate's spawns."""

    @helper
    def expect(player: Any, after: Any, *rest: Any) -> Any:
        empty = empty_mask(after)
        count = np.float32(popcount(empty))
        total = np.float32(0)
        while empty != U64(0):
            two = empty & (~empty + U64(1))
            empty ^= two
            total += np.float32(0.9) * best_answer(player, after | two, *rest)
            total += np.float32(0.1) * best_answer(player, after | two << U64(1), *rest)
        return total / count

    return expect


def maximum(expect: Any) -> Any:
    """Return a function for the best of ``expect`` over a board's moves; 0 without moves."""

    @helper
    def best_answer(player: Any, board: Any, *rest: Any) -> Any:
        best = np.float32(0)
        columns = transpose(board)
        for m in range(4):
            source = columns if m < 2 else board
            after = slide_rows(source, U64(m & 1))
            if after != source:
                # A transposed board has the same value: no need to transpose back.
                best = max(best, expect(player, after, *rest))
        return best

    return best_answer


@helper(forceinline=True)
def _lines(player: Any, board: Any) -> Any:
    return (
        player.outer[row(board, 0)]
        + player.inner[row(board, 1)]
        + player.inner[row(board, 2)]
        + player.outer[row(board, 3)]
    )


@helper(forceinline=True)
def _leaf_after(player: Any, source: Any) -> Any:
    """Return the best leaf value of sliding the rows of ``source``; 0 if neither direction is legal."""
    best = np.float32(0)
    for direction in range(2):
        after = slide_rows(source, U64(direction))
        if after != source:
            best = max(best, _lines(player, after) + _lines(player, transpose(after)))
    return best


@helper(forceinline=True)
def _best_leaf(player: Any, board: Any) -> Any:
    return max(_leaf_after(player, board), _leaf_after(player, transpose(board)))


def _remembered(expect: Any, part: int) -> Any:
    """Return ``expect``, cached in a part of the transposition table."""
    base = U64(part << _CACHE_BITS)

    @helper
    def recall(player: Any, after: Any) -> Any:
        slot = base + ((after * _HASH) >> U64(64 - _CACHE_BITS))
        if player.cache_keys[slot] == after:
            return player.cache_values[slot]
        value = expect(player, after)
        player.cache_keys[slot] = after
        player.cache_values[slot] = value
        return value

    return recall


# One function per depth instead of recursion, because numba can inline them and does not cache mutual
# recursion.
_expect_1 = expectation(_best_leaf)
_expect_2 = expectation(maximum(_remembered(_expect_1, 0)))
_expect_3 = expectation(maximum(_remembered(_expect_2, 1)))


@kernel
def _value(player: Any, after: Any) -> Any:
    if player.depth == _ONE:
        return _expect_1(player, after)
    if player.depth == U64(2):
        return _expect_2(player, after)
    return _expect_3(player, after)


@helper
def _best_of_expectimax(player: Any, board: Any, state: Any, values: Any) -> Any:
    """Choose a move; fill ``values`` unless it is None, which numba knows at compile time."""
    columns = transpose(board)
    best, best_move, best_after = np.float32(-1), NO_MOVE, board
    for m in range(4):
        move = U64(m)
        vertical = move < U64(2)
        source = columns if vertical else board
        after = slide_rows(source, move & _ONE)
        if values is not None:
            values[m] = np.float32(np.nan)
        if after == source:
            continue
        after = transpose(after) if vertical else after
        value = _value(player, after)
        if values is not None:
            values[m] = value
        if value > best:
            best, best_move, best_after = value, move, after
    return best_move, best_after, state


@chooses(Expectimax)
def _choose_expectimax(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    return _best_of_expectimax(player, board, state, None)


@values_moves(Expectimax)
def _value_expectimax(player: Any, board: Any, state: Any, gamma: Any, values: Any) -> Any:
    return _best_of_expectimax(player, board, state, values)


# The 24 orders of the four moves, two bits per move, the first move in the lowest bits.
_ORDERS = np.array(
    [sum(move << (2 * i) for i, move in enumerate(order)) for order in itertools.permutations(range(4))],
    dtype=np.uint8,
)
_ORDER_COUNT = U64(len(_ORDERS))


class Random(NamedTuple):
    unused: np.uint64 = U64(0)  # numba knows no empty NamedTuple


class Greedy(NamedTuple):
    unused: np.uint64 = U64(0)


@chooses(Random)
def _choose_random(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    # The first legal move in a random order is a uniformly random legal move. Usually the first move is
    # legal, so this is cheaper than computing all four.
    draw, state = rng.bounded(state, gamma, _ORDER_COUNT)
    order = U64(_ORDERS[draw])
    columns = transpose(board)
    for _ in range(4):
        move = order & U64(3)
        order >>= U64(2)
        vertical = move < U64(2)
        source = columns if vertical else board
        after = slide_rows(source, move & U64(1))
        if after != source:
            return move, transpose(after) if vertical else after, state
    return NO_MOVE, board, state


@chooses(Greedy)
def _choose_greedy(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    columns = transpose(board)
    scores = rows_merge_score(columns), rows_merge_score(board)
    best_score, best_move, best_after = U64(0), NO_MOVE, board
    ties = U64(0)
    for m in range(4):
        move = U64(m)
        vertical = move < U64(2)
        source = columns if vertical else board
        after = slide_rows(source, move & U64(1))
        score = scores[0] if vertical else scores[1]
        if after == source or (ties != U64(0) and score < best_score):
            continue
        if ties == U64(0) or score > best_score:
            ties = U64(1)
        else:
            # Reservoir sampling: the k-th of k equal moves replaces the chosen one with probability 1/k.
            ties += U64(1)
            draw, state = rng.bounded(state, gamma, ties)
            if draw != U64(0):
                continue
        best_score, best_move, best_after = score, move, transpose(after) if vertical else after
    return best_move, best_after, state
