r"""The look-ahead of ``ntuple``: the expectation of the best answer, some spawns deep.

With :math:`E_0(s) = V(s)`, the network's value of an afterstate, the value ``d`` spawns ahead is

.. math::

    E_d(s) = \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e \max_m \left( r_m + E_{d-1}(s_m) \right)

with :math:`p_1 = 0.9`, :math:`p_2 = 0.1`, and 0 where there is no answer. Three means make it fast, and none
changes a bit of a value:

* Several spawns and moves lead to the same leaf: a tile that slides stops at the same cell from several
  cells. :func:`expected_once` lists the different leaves of a node, and then values them one after another,
  so that the processor requests the entries of some at once.
* Several lines of spawns and moves lead to the same afterstate. A table holds their values from two spawns
  on, by afterstate, depth and remaining budget. An entry is checked against its whole key, and a value
  follows from the key alone, so it does not matter what the table held before.
* Lines that are improbable together are not followed to the end: a spawn is paid for with its improbability,
  :math:`\log_2 (n / p_e)`, in half bits. Where the budget does not suffice, the answers to it are valued
  without further look-ahead. The budget is part of the key.

A player has the fields of :class:`tape2048_recorder.players.ntuple.NTuple`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.game.rules import MERGE_SCORE, SLIDE, empty_mask, rows_merge_score, slide_rows, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import (
    keep,
    load_f32,
    popcount,
    stack_words,
    store_f32_at,
    word,
)
from tape2048.ntuple.lookup import value_of

U64 = np.uint64
F32 = np.float32

_P_TWO = F32(0.9)
_P_FOUR = F32(0.1)
_NOTHING = F32(-np.inf)
_ROW = U64(0xFFFF)
_RIGHT = U64(1 << 16)  # where the right moves of rows begin in SLIDE

#: Entries of the table, for each depth.
_TABLE_BITS = 12
_HASH = U64(0x9E3779B97F4A7C15)

#: Units of a bit in budgets.
_UNITS = 2

#: Empty cells from which on a node's leaves are listed: below, too few are alike.
_LISTED_FROM = U64(3)


def costs_of(chance: float) -> tuple[npt.NDArray[np.int64], np.int64]:
    """Return the costs of spawns, ``i64[2, 17]`` by tile (2, 4) and empty cells, and the budget of a line.

    All are 0 for a chance of 0, which follows each line to the end.
    """
    costs = np.zeros((2, 17), dtype=np.int64)
    if chance == 0:
        return costs, np.int64(0)
    for row, p in enumerate((0.9, 0.1)):
        costs[row, 1:] = [round(_UNITS * math.log2(empty / p)) for empty in range(1, 17)]
    return costs, np.int64(_UNITS * -math.log2(chance))


def empty_table(spawns: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    """Return the keys and values of a search this many spawns deep; without entries below two spawns.

    No afterstate is 0, the key of a free entry.
    """
    entries = max(spawns - 1, 0) << _TABLE_BITS
    return np.zeros((entries, 2), dtype=U64), np.zeros(entries, dtype=F32)


def expectation(best_answer: Any) -> Any:
    """Return a function for the mean of ``best_answer(player, board, *rest)`` over an afterstate's spawns."""

    @register_jitable
    def expect(player: Any, after: Any, *rest: Any) -> Any:
        empty = empty_mask(after)
        count = F32(popcount(empty))
        total = F32(0)
        while empty != U64(0):
            two = empty & (~empty + U64(1))
            empty ^= two
            total += _P_TWO * best_answer(player, after | two, *rest)
            total += _P_FOUR * best_answer(player, after | two << U64(1), *rest)
        return total / count

    return expect


def maximum(expect: Any) -> Any:
    """Return a function for the best of ``expect`` over a board's moves; 0 without moves."""

    @register_jitable
    def best_answer(player: Any, board: Any, *rest: Any) -> Any:
        best = F32(0)
        columns = transpose(board)
        for m in range(4):
            source = columns if m < 2 else board
            after = slide_rows(source, U64(m & 1))
            if after != source:
                # A transposed board has the same value: no need to transpose back.
                best = max(best, expect(player, after, *rest))
        return best

    return best_answer


@register_jitable(forceinline=True)
def afterstate_value(player: Any, after: Any) -> Any:
    """Return the network's value of an afterstate."""
    return value_of(player.places, player.table, player.scales, after)


@register_jitable(forceinline=True)
def afterstates(board: Any) -> Any:
    """Return the four afterstates (up and down as columns), the legal mask, and the merge scores.

    A board's value is that of its transpose, so only the chosen move is transposed back.
    """
    columns = transpose(board)
    up, down = slide_rows(columns, U64(0)), slide_rows(columns, U64(1))
    left, right = slide_rows(board, U64(0)), slide_rows(board, U64(1))
    legal = (
        U64(up != columns)
        | U64(down != columns) << U64(1)
        | U64(left != board) << U64(2)
        | U64(right != board) << U64(3)
    )
    return up, down, left, right, legal, F32(rows_merge_score(columns)), F32(rows_merge_score(board))


@register_jitable(forceinline=True)
def after_move(bit: Any, options: Any) -> Any:
    """Select the afterstate of a move's bit, without a branch; ``options`` are from :func:`afterstates`."""
    up, down, left, right = options[0], options[1], options[2], options[3]
    vertical = up if bit == U64(1) else down
    horizontal = left if bit == U64(4) else right
    return vertical if bit < U64(4) else horizontal


@register_jitable(forceinline=True)
def value_now(player: Any, bit: Any, options: Any) -> Any:
    """Return reward plus value of a legal move; ``options`` are from :func:`afterstates`."""
    score = options[5] if bit < U64(4) else options[6]
    return score + afterstate_value(player, after_move(bit, options))


@register_jitable(forceinline=True)
def best_answer(player: Any, board: Any) -> Any:
    """Return the best of reward plus value over the moves of a board; 0 without moves."""
    options = afterstates(board)
    best = _NOTHING
    moves = options[4]
    # Legal moves only, and no branch on a value: it would wait for its look-ups, and delay the next move's.
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        value = value_now(player, bit, options)
        best = max(best, value)
    return F32(0) if best == _NOTHING else best


@kernel
def _fill_answers(player: Any, boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[i] = best_answer(player, boards[i])


def best_answers(player: Any, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return :func:`best_answer` of boards before a move, ``u64[n]`` to ``f32[n]``."""
    out = np.empty(len(boards), dtype=F32)
    _fill_answers(player, boards, out)
    return out


@kernel
def worth_a_look(player: Any, options: Any) -> Any:
    """Return the mask of the legal moves within ``look_margin``."""
    moves = options[4]
    if player.look_margin == F32(0):
        return moves
    v0 = v1 = v2 = v3 = _NOTHING
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        value = value_now(player, bit, options)
        v0 = value if bit == U64(1) else v0
        v1 = value if bit == U64(2) else v1
        v2 = value if bit == U64(4) else v2
        v3 = value if bit == U64(8) else v3
    least = max(v0, v1, v2, v3) - player.look_margin
    return (
        U64(v0 >= least)
        | U64(v1 >= least) << U64(1)
        | U64(v2 >= least) << U64(2)
        | U64(v3 >= least) << U64(3)
    )


@register_jitable(forceinline=True)
def _each_answer(player: Any, after: Any, count: Any) -> Any:
    """Return the expectation of the best answer, each leaf valued where it occurs."""
    spawns = empty_mask(after)
    total = F32(0)
    weight = _P_TWO
    while spawns != U64(0):
        # Twos into all empty cells, then fours: one call site of the answer, so that it is inlined.
        spawned = spawns & (~spawns + U64(1))
        spawns ^= spawned
        total += weight * best_answer(player, after | spawned)
        if spawns == U64(0) and weight == _P_TWO:
            spawns = empty_mask(after) << U64(1)
            weight = _P_FOUR
    return total / F32(count)


#: On the stack: different leaves (8 for each empty cell, of which there are at most 15), their values (the
#: first is that of no move), and by cell and axis the numbers of its four leaves, and its two rewards.
_leaf_words = stack_words(120)
_value_words = stack_words(61)
_number_words = stack_words(32)
_reward_words = stack_words(32)


@register_jitable(forceinline=True)
def _listed(  # noqa: PLR0917 - compiled, and called in one place
    board: Any, rest: Any, shift: Any, side: Any, leaves: Any, count: Any, last: Any
) -> Any:
    """List the leaf of moving the rows of a board with a spawn to one side, unless it is the last one listed.

    ``rest``: the rows slid without the spawn, and 0 in its row, whose lowest bit is ``shift``. ``side``: 0
    (left) or ``_RIGHT``. ``leaves``, ``count``: address and length of the list. ``last``: the last legal leaf
    on this side, and its number. Returns the number of the leaf (0: illegal), the new length, and the new
    ``last``.
    """
    leaf = rest | U64(SLIDE[side + (board >> shift & _ROW)]) << shift
    legal = leaf != board
    new = legal and leaf != last[0]
    keep(leaves, count, leaf)
    count += U64(new)
    number = count if new else last[1]
    return number if legal else U64(0), count, (leaf if legal else U64(0), number)


@register_jitable(forceinline=True)
def _listed_answers(player: Any, after: Any, empty: Any) -> Any:
    """As :func:`_each_answer`, each different leaf valued once; no branch depends on a leaf."""
    leaves, values, numbers, rewards = _leaf_words(), _value_words(), _number_words(), _reward_words()
    count = U64(0)
    source = after
    for axis in range(2):
        reward = rows_merge_score(source)
        left, right = slide_rows(source, U64(0)), slide_rows(source, U64(1))
        holes = empty_mask(source)
        # A leaf is never 0: nothing is listed yet.
        left_two = right_two = left_four = right_four = (U64(0), U64(0))
        while holes != U64(0):
            two = holes & (~holes + U64(1))
            holes ^= two
            at = popcount(two - U64(1))
            shift = at & U64(48)
            others = ~(_ROW << shift)
            for_two, for_four = source | two, source | two << U64(1)
            n0, count, left_two = _listed(for_two, left & others, shift, U64(0), leaves, count, left_two)
            n1, count, right_two = _listed(for_two, right & others, shift, _RIGHT, leaves, count, right_two)
            n2, count, left_four = _listed(for_four, left & others, shift, U64(0), leaves, count, left_four)
            n3, count, right_four = _listed(
                for_four, right & others, shift, _RIGHT, leaves, count, right_four
            )
            cell = at >> U64(2)
            turned = (cell & U64(3)) << U64(2) | cell >> U64(2)
            place = (turned if axis else cell) << U64(1) | U64(axis)
            keep(numbers, place, n0 | n1 << U64(8) | n2 << U64(16) | n3 << U64(24))
            before = reward - U64(MERGE_SCORE[source >> shift & _ROW])
            store_f32_at(rewards, place << U64(1), F32(before + U64(MERGE_SCORE[for_two >> shift & _ROW])))
            store_f32_at(
                rewards,
                place << U64(1) | U64(1),
                F32(before + U64(MERGE_SCORE[for_four >> shift & _ROW])),
            )
        source = transpose(after)
    store_f32_at(values, U64(0), _NOTHING)
    for i in range(count):
        store_f32_at(values, U64(i) + U64(1), afterstate_value(player, word(leaves, U64(i))))
    total = F32(0)
    for four in range(2):
        weight = _P_FOUR if four else _P_TWO
        holes = empty_mask(after)
        while holes != U64(0):
            hole = holes & (~holes + U64(1))
            holes ^= hole
            best = _NOTHING
            for axis in range(2):
                place = popcount(hole - U64(1)) >> U64(1) | U64(axis)
                pair = word(numbers, place) >> U64(16 * four)
                reward = load_f32(rewards, place << U64(1) | U64(four))
                value = max(load_f32(values, pair & U64(255)), load_f32(values, pair >> U64(8) & U64(255)))
                best = max(best, reward + value)
            total += weight * (F32(0) if best == _NOTHING else best)
    return total / F32(empty)


@kernel
def expected_once(player: Any, after: Any) -> Any:
    """Return the expectation of the best answer, one spawn ahead."""
    empty = popcount(empty_mask(after))
    if empty < _LISTED_FROM:
        return _each_answer(player, after, empty)
    return _listed_answers(player, after, empty)


@kernel
def expected(player: Any, after: Any, spawns: Any, budget: Any) -> Any:
    """Return the expectation of the best answer, ``spawns`` (from 1) ahead; the player's table changes.

    ``budget`` (``i64``) is what is left for improbable spawns.
    """
    if spawns == 1:
        return expected_once(player, after)
    holes = empty_mask(after)
    empty = popcount(holes)
    depth = spawns - 1
    total = F32(0)
    while holes != U64(0):
        two = holes & (~holes + U64(1))
        holes ^= two
        for four in range(2):
            board = after | two << U64(four)
            weight = _P_FOUR if four else _P_TWO
            left = budget - player.chance_costs[four, empty]
            if left < 0:
                total += weight * best_answer(player, board)
                continue
            if depth == 1:
                left = np.int64(0)  # it decides nothing any more, and keys become equal
            options = afterstates(board)
            if options[4] == U64(0):
                continue
            best = _NOTHING
            moves = worth_a_look(player, options)
            while moves != U64(0):
                bit = moves & (~moves + U64(1))
                moves ^= bit
                leads_to = after_move(bit, options)
                # One function calls itself: numba keeps no machine code of functions that call each other.
                if player.cache_values.shape[0] == 0:
                    value = expected(player, leads_to, depth, left)
                else:
                    hashed = (leads_to + U64(left)) * _HASH >> U64(64 - _TABLE_BITS)
                    entry = U64(depth - 1) << U64(_TABLE_BITS) | hashed
                    key = player.cache_keys[entry]
                    if key[0] == leads_to and key[1] == U64(left):
                        value = player.cache_values[entry]
                    else:
                        value = expected(player, leads_to, depth, left)
                        key[0], key[1] = leads_to, U64(left)
                        player.cache_values[entry] = value
                value += options[5] if bit < U64(4) else options[6]
                best = max(best, value)
            total += weight * best
    return total / F32(empty)
