r"""``ntuple``: the move with the best reward plus afterstate value of a trained n-tuple network.

Without look-ahead (1-ply), the value of a move is :math:`r + V(s)`: its merge score plus the network's value
of the afterstate (see :mod:`tape2048.ntuple.lookup`). Look-ahead replaces :math:`V(s)` by the expectation,
over the next spawns, of the value of the best next move. Looking ``d`` spawns ahead is (d + 1)-ply search.

**Depth.** ``look`` gives the number of spawns by the number of empty cells, and by the number of different
large tiles (:mod:`tape2048.search_depth`). Sequences of spawns that are less probable than about
``look_chance`` are cut off in a search of two or more spawns.

With ``look_unsure`` above 0, the search continues by single spawns while the last one changed the best value
by more than ``look_unsure`` points: a value that changes is often wrong.

**Moves.** Look-ahead applies to the moves whose :math:`r + V(s)` is within ``look_margin`` points of the
best, because a move that looks far worse is seldom better. If only one move is left, it is played without
search. With 0, and on a full board, where it costs little, look-ahead applies to all moves.

If the highest tile is at least ``downgrade``, the player chooses on a board with smaller tiles and the same
moves (:func:`downgraded`). The default is the tile in the network's file.

**Diverse games.** ``epsilon`` is the probability of a uniformly random legal move. ``temperature`` (in points
of score) draws moves with :math:`P(m) \propto e^{value_m / temperature}`, by the maximum of values with
Gumbel noise (Gumbel 1954; Maddison et al., "A* sampling", 2014). All draws, including ties, come from the
game's generator. ``mix`` draws the first number of each phase of ``look`` by the game's seed
(:func:`mix_choices`): with ``"0:2+3:1"``, two games of three are 1-ply.

**Values.** With :math:`E_0(s) = V(s)`, the network's value of an afterstate, the value ``d`` spawns ahead is

.. math::

    E_d(s) = \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e \max_m \left( r_m + E_{d-1}(s_m) \right)

with :math:`p_1 = 0.9`, :math:`p_2 = 0.1`, and a maximum of 0 without legal moves. The search is fast for
three reasons. The first two do not change a bit of a value:

* Different spawns and moves can lead to the same leaf, because a tile slides to the same cell from several
  cells. :func:`expected_once` lists the distinct leaves of a node before it values them, so that the
  processor requests several table entries at once.
* Different sequences of spawns and moves can lead to the same afterstate. A search of two or more spawns
  keeps values, the network's included, in a table by afterstate, depth and remaining budget. Entries are
  compared by their whole key, which determines the value, so earlier contents of the table do not matter.
* With ``look_chance``, improbable sequences are cut off. A spawn costs its improbability,
  :math:`\log_2 (n / p_e)`, in half bits. If it exceeds the remaining budget, the moves after it are valued
  without look-ahead. The budget is part of the table's key.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048.game.rules import (
    MERGE_SCORE,
    SLIDE,
    count_empty,
    empty_mask,
    rows_merge_score,
    slide_rows,
    transpose,
)
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import float_bits, mix, popcount, select_bit
from tape2048.jit.memory import keep, load_f32, stack_words, store_f32_at, word
from tape2048.ntuple.lookup import downgraded, highest_at_least, value_of
from tape2048.ntuple.network import (
    Network,
    NetworkLayout,
    Places,
    StoredNetwork,
    map_network,
    places_for,
)
from tape2048.ntuple.placed import PlacedNetwork, load_placed
from tape2048.search_depth import FORMER, SearchPhase
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses, values_moves
from tape2048_recorder.players.options import own, sha256_of
from tape2048_recorder.players.parameters import OF_NETWORK, parse_mix, phases_of

U64 = np.uint64
F32 = np.float32

_NOTHING = F32(-np.inf)
_LEAST = np.int64(-(2**62))

#: Settings that are hashed as they are. Table and scales are hashed in the order of the file.
_HASHED = ("look_margin", "downgrade_exponent", "epsilon", "temperature")

_MIX_SALT = U64(0x6D69786D69786D69)  # separates the mixture from other uses of a game's increment


class NTuple(NamedTuple):
    """A network and the settings of its search.

    A row of ``phases`` (``u64[P, 1 + D]``) has the fewest large tiles of a phase, and the numbers of empty
    cells below which it looks 1, 2, ... ``D`` spawns ahead. A mixture replaces the first number by the first
    of ``mix_looks`` whose end in ``mix_ends`` (both ``u64[n]``) is above a hash of the game's increment; the
    last end is not read. ``downgrade_exponent`` 0 means never. ``identity`` (``u8[32]``) is the SHA-256 of
    the settings, and of the network in the order of its file.
    """

    mix_looks: npt.NDArray[np.uint64]
    mix_ends: npt.NDArray[np.uint64]
    phases: npt.NDArray[np.uint64]
    look_unsure: np.float32
    unsure_spawns: np.int64
    look_margin: np.float32
    downgrade_exponent: np.uint64
    epsilon: np.float64
    temperature: np.float64
    places: Places
    scales: npt.NDArray[np.float32]
    table: npt.NDArray[np.float32] | npt.NDArray[np.int16]
    chance_costs: npt.NDArray[np.int64]
    chance_budget: np.int64
    cache_table: npt.NDArray[np.void]
    identity: npt.NDArray[np.uint8]


def make(*, weights: str, downgrade: int, **settings: Any) -> NTuple:
    network = load_placed(weights)
    downgrade = network.downgrade if downgrade == OF_NETWORK else downgrade
    return of_network(network, downgrade=downgrade, **settings)


def stand_in(*, weights: str, downgrade: int, **settings: Any) -> NTuple:
    """Return a player of the type that :func:`make` returns, whose network is 0.

    It compiles the game loop while the network is expanded.
    """
    stored = StoredNetwork.of(map_network(weights), weights)
    table = np.zeros(stored.layout.entries, stored.dtype)  # memory that is never touched
    table.flags.writeable = False
    network = PlacedNetwork(stored.layout, table, stored.scales, {})
    return of_network(network, downgrade=downgrade, identity=bytes(32), **settings)


def of_network(
    network: Network | PlacedNetwork,
    *,
    look: str | int = 0,
    look_chance: float = 0.0,
    look_unsure: float = 0.0,
    look_margin: float = 0.0,
    downgrade: int = 0,
    mix: str = "",
    epsilon: float = 0.0,
    temperature: float = 0.0,
    identity: bytes = b"",
) -> NTuple:
    """Return the player with this network; ConfigError for an invalid depth or mixture."""
    phases = phases_of(str(look))
    deepest = max(len(phase.below) for phase in phases)
    looks, ends = parse_mix(mix) if mix else ([], [])
    placed = PlacedNetwork.of(network) if isinstance(network, Network) else network
    places, columns = places_for(placed.layout, placed.table)
    player = NTuple(
        np.array(looks, dtype=U64),
        np.array(ends, dtype=U64),
        np.array([[one.tiles, *one.below, *(0,) * (deepest - len(one.below))] for one in phases], U64),
        np.float32(look_unsure),
        np.int64(len(phases[0].below)),
        np.float32(look_margin),
        U64(max(downgrade.bit_length() - 1, 0)),
        np.float64(epsilon),
        np.float64(temperature),
        places,
        np.ascontiguousarray(placed.scales[:, columns]),
        placed.table,
        *costs_of(look_chance),
        empty_table(deepest),
        np.frombuffer(identity, np.uint8),
    )
    if identity:
        return player
    layout = placed.layout
    former = _former_depth(phases)  # keeps the hash of older sessions
    below, twice, spawns, tiles = (former or FORMER | {"look_below": 0}).values()
    fields: dict[str, Any] = {
        "mix_looks": player.mix_looks if mix else np.array([below], U64),
        "mix_ends": player.mix_ends if mix else np.zeros(1, U64),
        "look_twice_below": U64(twice),
        **{name: getattr(player, name) for name in _HASHED},
        "masks": layout.masks,
        "offsets": layout.offsets,
        **_stages(layout),
        "stage_size": U64(layout.stage_size),
        "scales": placed.scales,
    }
    last: dict[str, Any] = {}
    if (spawns, look_chance, tiles) != (2, 0.0, 0):
        last = {
            "look_spawns": np.int64(spawns),
            "look_chance": np.float64(look_chance),
            "look_deeper_from": U64(tiles),
        }
    if look_unsure:
        last["look_unsure"] = np.float32(look_unsure)
    if former is None:
        last["phases"] = player.phases
    found = placed.remember(
        sha256_of("ntuple", fields | last),
        lambda: sha256_of("ntuple", {**fields, "table": placed.tables(), **last}),
    )
    return player._replace(identity=np.frombuffer(bytes.fromhex(found), np.uint8))


def _former_depth(phases: list[SearchPhase]) -> dict[str, int] | None:
    """Return the parameters of earlier versions with which a player searches like this; None if none do."""
    first, *later = phases
    below, *deeper = first.below
    twice, spawns = (deeper or [0])[0], max(len(first.below), 2)
    tiles = later[0].tiles if later else 0
    if len(set(deeper)) > 1 or later not in ([], [SearchPhase(tiles, (below, *(twice,) * spawns))]):
        return None
    return dict(zip(FORMER, (below, twice, spawns, tiles), strict=True))


def _stages(layout: NetworkLayout) -> dict[str, npt.NDArray[np.uint64]]:
    """Return the stages as they are hashed: as exponents, like older sessions, if each starts at a tile."""
    stages = np.array(layout.stages, dtype=U64)
    if (stages & (stages - U64(1))).any():
        return {"stages": stages}
    return {"stage_exponents": np.array([tile.bit_length() - 1 for tile in layout.stages], dtype=U64)}


_P_TWO = F32(0.9)
_P_FOUR = F32(0.1)
_ROW = U64(0xFFFF)
_RIGHT = U64(1 << 16)  # first entry of SLIDE for moves to the right

#: log2 of the table's entries for each depth: 64 KB. With 20, 3-ply finds 0.1% more values, and 4-ply 1%.
_TABLE_BITS = 12
_ENTRY = np.dtype([("after", np.uint64), ("budget", np.int32), ("value", np.float32)])
_HASH = U64(0x9E3779B97F4A7C15)

_UNITS = 2  # budgets count half bits

#: Fewest empty cells with which a node's leaves are listed. With fewer cells, too few leaves are equal.
_LISTED_FROM = U64(3)


def costs_of(chance: float) -> tuple[npt.NDArray[np.int64], np.int64]:
    """Return costs ``i64[2, 17]`` by tile and empty cells, and the budget; all 0 if nothing is cut off."""
    costs = np.zeros((2, 17), dtype=np.int64)
    if chance == 0:
        return costs, np.int64(0)
    for row, p in enumerate((0.9, 0.1)):
        costs[row, 1:] = [round(_UNITS * math.log2(empty / p)) for empty in range(1, 17)]
    return costs, np.int64(_UNITS * -math.log2(chance))


def empty_table(spawns: int) -> npt.NDArray[np.void]:
    """Return a table, without entries below two spawns. A free key is 0, which is no afterstate."""
    return np.zeros(spawns << _TABLE_BITS if spawns > 1 else 0, dtype=_ENTRY)


@helper(forceinline=True)
def _entry_of(player: Any, after: Any, spawns: Any, budget: Any) -> Any:
    """Return the entry for the value of an afterstate, ``spawns`` ahead (0: a leaf); check its key."""
    hashed = (after + U64(budget)) * _HASH >> U64(64 - _TABLE_BITS)
    return player.cache_table[U64(spawns) << U64(_TABLE_BITS) | hashed]


@helper(forceinline=True)
def afterstate_value(player: Any, after: Any) -> Any:
    return value_of(player.places, player.table, player.scales, after)


@helper(forceinline=True)
def afterstates(board: Any) -> Any:
    """Return four afterstates (up and down as columns, whose value is equal), legal mask and scores."""
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


@helper(forceinline=True)
def after_move(bit: Any, options: Any) -> Any:
    """Return the afterstate of a move, given as a bit; ``options`` are from :func:`afterstates`."""
    vertical = options[0] if bit == U64(1) else options[1]
    horizontal = options[2] if bit == U64(4) else options[3]
    return vertical if bit < U64(4) else horizontal


@helper(forceinline=True)
def value_now(player: Any, bit: Any, options: Any) -> Any:
    """Return reward plus value of a legal move; ``options`` are from :func:`afterstates`."""
    score = options[5] if bit < U64(4) else options[6]
    return score + afterstate_value(player, after_move(bit, options))


@helper(forceinline=True)
def best_answer(player: Any, board: Any) -> Any:
    """Return the best of reward plus value over the moves of a board; 0 without moves."""
    options = afterstates(board)
    best = _NOTHING
    moves = options[4]
    # No branch depends on a value: it would wait for the value's look-ups, and delay those of the next move.
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        best = max(best, value_now(player, bit, options))
    return F32(0) if best == _NOTHING else best


@kernel
def _fill_answers(player: Any, boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[i] = best_answer(player, boards[i])


def best_answers(player: Any, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the :func:`best_answer` of each board, ``u64[n]`` to ``f32[n]``."""
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


@helper(forceinline=True)
def _each_answer(player: Any, after: Any, count: Any) -> Any:
    """Return the expectation of the best answer. Equal leaves are valued repeatedly."""
    spawns = empty_mask(after)
    total, weight = F32(0), _P_TWO
    while spawns != U64(0):
        # First a 2 in each empty cell, then a 4: best_answer has one call site, so that it is inlined.
        spawned = spawns & (~spawns + U64(1))
        spawns ^= spawned
        total += weight * best_answer(player, after | spawned)
        if spawns == U64(0) and weight == _P_TWO:
            spawns = empty_mask(after) << U64(1)
            weight = _P_FOUR
    return total / F32(count)


#: On the stack: the distinct leaves (8 for each of at most 15 empty cells), the indices of leaves that the
#: table lacks, the leaves' values (the first value is that of no move), and by cell and axis the numbers of
#: four leaves, and two rewards.
_leaf_words = stack_words(120)
_unknown_words = stack_words(120)
_value_words = stack_words(61)
_number_words = stack_words(32)
_reward_words = stack_words(32)


@helper(forceinline=True)
def _listed(board: Any, rest: Any, shift: Any, side: Any, leaves: Any, count: Any, last: Any) -> Any:
    """Append a leaf, unless it is illegal or its side's last; return its number, the count and the last.

    The leaf is the board after a spawn and a move to the left (``side`` 0) or to the right. ``rest`` has the
    three rows without the spawn, after the move, and ``shift`` the lowest bit of the row with the spawn.
    ``last`` is the side's last leaf (0: none, or illegal), and the number of its last legal leaf.
    """
    leaf = rest | U64(SLIDE[side + (board >> shift & _ROW)]) << shift
    legal = leaf != board
    new = legal and leaf != last[0]
    keep(leaves, count, leaf)
    count += U64(new)
    number = count if new else last[1]
    return number if legal else U64(0), count, (leaf if legal else U64(0), number)


@helper(forceinline=True)
def _value_leaves(player: Any, leaves: Any, count: Any, values: Any) -> Any:
    """Write the values of leaves from the second of ``values`` on; in 3-ply, the table has a quarter."""
    if player.cache_table.shape[0] == 0:
        for i in range(count):
            store_f32_at(values, U64(i) + U64(1), afterstate_value(player, word(leaves, U64(i))))
        return
    unknown, unknowns = _unknown_words(), U64(0)
    for i in range(count):
        leaf = word(leaves, U64(i))
        entry = _entry_of(player, leaf, 0, 0)
        store_f32_at(values, U64(i) + U64(1), entry.value)
        keep(unknown, unknowns, U64(i))
        unknowns += U64(entry.after != leaf)
    for i in range(unknowns):
        at = word(unknown, U64(i))
        leaf = word(leaves, at)
        value = afterstate_value(player, leaf)
        store_f32_at(values, at + U64(1), value)
        entry = _entry_of(player, leaf, 0, 0)
        entry.after, entry.value = leaf, value


@helper(forceinline=True)
def _listed_answers(player: Any, after: Any, empty: Any) -> Any:
    """Return the value of :func:`_each_answer`, but value equal leaves once. No branch depends on a leaf."""
    leaves, values, numbers, rewards = _leaf_words(), _value_words(), _number_words(), _reward_words()
    count, source = U64(0), after
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
            first, second = place << U64(1), place << U64(1) | U64(1)
            store_f32_at(rewards, first, F32(before + U64(MERGE_SCORE[for_two >> shift & _ROW])))
            store_f32_at(rewards, second, F32(before + U64(MERGE_SCORE[for_four >> shift & _ROW])))
        source = transpose(after)
    store_f32_at(values, U64(0), _NOTHING)
    _value_leaves(player, leaves, count, values)
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
                value = max(load_f32(values, pair & U64(255)), load_f32(values, pair >> U64(8) & U64(255)))
                best = max(best, load_f32(rewards, place << U64(1) | U64(four)) + value)
            total += weight * (F32(0) if best == _NOTHING else best)
    return total / F32(empty)


@kernel
def expected_once(player: Any, after: Any) -> Any:
    """Return the expectation of the best answer, one spawn ahead."""
    empty = popcount(empty_mask(after))
    listed = empty >= _LISTED_FROM
    return _listed_answers(player, after, empty) if listed else _each_answer(player, after, empty)


@kernel
def expected(player: Any, after: Any, spawns: Any, budget: Any) -> Any:
    """Return the expectation, ``spawns`` (at least 2) ahead; ``budget`` is left for improbable spawns."""
    holes = empty_mask(after)
    empty, depth, total = popcount(holes), spawns - 1, F32(0)
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
                left = np.int64(0)  # no longer needed, and equal keys are found more often
            options = afterstates(board)
            if options[4] == U64(0):
                continue
            best = _NOTHING
            moves = worth_a_look(player, options)
            while moves != U64(0):
                bit = moves & (~moves + U64(1))
                moves ^= bit
                leads_to = after_move(bit, options)
                found = False
                if player.cache_table.shape[0] != 0:
                    entry = _entry_of(player, leads_to, depth, left)
                    found = entry.after == leads_to and entry.budget == left
                # A call takes as long as several leaves, so the table is read before it. The function is
                # recursive, because numba does not cache functions that call each other.
                if found:
                    value = entry.value
                elif depth == 1:
                    value = expected_once(player, leads_to)
                else:
                    value = expected(player, leads_to, depth, left)
                if player.cache_table.shape[0] != 0 and not found:
                    entry.after, entry.budget, entry.value = leads_to, left, value
                value += options[5] if bit < U64(4) else options[6]
                best = max(best, value)
            total += weight * best
    return total / F32(empty)


@helper
def _look_of(player: Any, gamma: Any) -> Any:
    """Return the number of empty cells that a mixture draws for a game; 0 if the player is no mixture."""
    draw = mix(gamma ^ _MIX_SALT)
    for i in range(player.mix_looks.shape[0]):
        if draw < player.mix_ends[i] or i + 1 == player.mix_looks.shape[0]:
            return player.mix_looks[i]
    return U64(0)


@kernel
def _fill_looks(player: Any, seeds: Any, out: Any) -> None:
    for i in range(seeds.shape[0]):
        _, gamma = rng.start(seeds[i])
        out[i] = _look_of(player, gamma)


def mix_choices(player: NTuple, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the number of empty cells that a mixture draws for the games of these seeds, both ``u64[n]``."""
    out = np.empty(len(seeds), dtype=U64)
    _fill_looks(player, seeds, out)
    return out


@helper(forceinline=True)
def _move_value_ahead(player: Any, bit: Any, options: Any, spawns: Any) -> Any:
    if spawns == 0:
        return value_now(player, bit, options)
    after = after_move(bit, options)
    score = options[5] if bit < U64(4) else options[6]
    if spawns == 1:
        return score + expected_once(player, after)
    return score + expected(player, after, spawns, player.chance_budget)


@helper
def _ordered(value: Any) -> Any:
    """Map ``f32`` to ``i64`` in the same order: IEEE 754 is sign and magnitude."""
    bits = float_bits(value + F32(0))  # turns -0 into 0
    return bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFF))


@helper
def _big_tiles(board: Any) -> Any:
    present = U64(0)
    for i in range(16):
        present |= U64(1) << (board >> U64(4 * i) & U64(15))
    return popcount(present >> U64(10))


@helper
def _spawns_ahead(player: Any, board: Any, empty: Any, mixed: Any) -> Any:
    """Return the number of spawns to look ahead; ``mixed`` is the first number of cells of a mixture."""
    phase = player.phases.shape[0] - 1
    if phase > 0:
        tiles = _big_tiles(board)
        while tiles < player.phases[phase, 0]:
            phase -= 1
    if empty >= (mixed if player.mix_looks.shape[0] else player.phases[phase, 1]):
        return 0
    spawns = 1
    while spawns + 1 < player.phases.shape[1] and empty < player.phases[phase, spawns + 1]:
        spawns += 1
    return spawns


@helper(forceinline=True)
def _better(best: Any, value: Any, bit: Any) -> Any:
    """Update ``(best, tied)`` without a branch; ``best`` has the values' order, the move in low bits."""
    key, tied = best
    new = _ordered(value) << np.int64(4) | np.int64(bit)
    same = U64((new ^ key) >> np.int64(4) == np.int64(0))
    return max(key, new), same | (tied & U64(new < key))


@helper(forceinline=True)
def _best_of(player: Any, options: Any, moves: Any, spawns: Any) -> Any:
    """Return ``(bit, tied, value)`` of the best move."""
    best, highest = (_LEAST, U64(0)), _NOTHING
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        value = _move_value_ahead(player, bit, options, spawns)
        best, highest = _better(best, value, bit), max(highest, value)
    return U64(best[0]) & U64(15), best[1] != U64(0), highest


@helper(forceinline=True)
def _key(player: Any, score: Any, after: Any, bit: Any, legal: Any) -> Any:
    key = _ordered(score + afterstate_value(player, after)) << np.int64(4) | np.int64(bit)
    return key if legal & bit else _LEAST


@helper(forceinline=True)
def _best_move_now(player: Any, options: Any) -> Any:
    """Return ``(bit, tied)`` of the best move. Valuing all four costs less than a mispredicted branch."""
    up, down, left, right, legal, column_score, row_score = options
    key0 = _key(player, column_score, up, U64(1), legal)
    key1 = _key(player, column_score, down, U64(2), legal)
    key2 = _key(player, row_score, left, U64(4), legal)
    key3 = _key(player, row_score, right, U64(8), legal)
    vertical, horizontal = max(key0, key1), max(key2, key3)
    best = max(vertical, horizontal)
    other = min(key0, key1) if vertical > horizontal else min(key2, key3)
    second = max(min(vertical, horizontal), other)
    return U64(best) & U64(15), (best ^ second) >> np.int64(4) == np.int64(0)


@helper(forceinline=True)
def _in_question(player: Any, options: Any, spawns: Any, empty: Any) -> Any:
    """Return the mask of the moves to search and to choose from."""
    if spawns == 0 or empty == U64(0) or player.temperature > 0.0:
        return options[4]
    return worth_a_look(player, options)


@helper(forceinline=True)
def _fill_values(player: Any, options: Any, spawns: Any, values: Any) -> None:
    for m in range(4):
        bit = U64(1) << U64(m)
        legal = options[4] & bit != U64(0)
        values[m] = _move_value_ahead(player, bit, options, spawns) if legal else F32(np.nan)


@kernel
def _best_move_ahead(player: Any, options: Any, empty: Any, spawns: Any) -> Any:
    """Return ``(bit, tied, spawns)`` of the best move, from a search at least ``spawns`` deep."""
    moves = _in_question(player, options, spawns, empty)
    if moves & (moves - U64(1)) == U64(0):
        return moves, False, spawns
    bit, tied, value = _best_of(player, options, moves, spawns)
    if player.look_unsure == F32(0) or spawns >= player.unsure_spawns:
        return bit, tied, spawns
    before = _best_of(player, options, moves, spawns - 1)[2]
    while abs(value - before) > player.look_unsure and spawns < player.unsure_spawns:
        before, spawns = value, spawns + 1
        bit, tied, value = _best_of(player, options, moves, spawns)
    return bit, tied, spawns


@kernel
def _drawn_move(
    player: Any, options: Any, moves: Any, spawns: Any, state: Any, gamma: Any, values: Any
) -> Any:
    """Draw a move of the mask ``moves``; return ``(bit, state)``. ``values`` is None if unknown."""
    if player.epsilon > 0.0:
        draw, state = rng.uniform(state, gamma)
        if draw < player.epsilon:
            pick, state = rng.bounded(state, gamma, popcount(options[4]))
            return select_bit(options[4], pick), state
    best, equal = _NOTHING, U64(0)
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        if values is None:
            value = _move_value_ahead(player, bit, options, spawns)
        else:
            value = values[popcount(bit - U64(1))]
        if player.temperature > 0.0:
            draw, state = rng.uniform(state, gamma)
            value -= F32(player.temperature * math.log(-math.log(draw + 2.0**-54)))
        if value > best:
            best, equal = value, bit
        elif value == best:
            equal |= bit
    if equal & (equal - U64(1)):
        pick, state = rng.bounded(state, gamma, popcount(equal))
        equal = select_bit(equal, pick)
    return equal, state


@helper(forceinline=True)
def _chosen(player: Any, board: Any, state: Any, gamma: Any, values: Any) -> Any:
    """Choose a move; fill ``values`` unless it is None, which numba knows at compile time."""
    seen = board
    if player.downgrade_exponent and highest_at_least(board, player.downgrade_exponent):
        seen = downgraded(board)
    options = afterstates(seen)
    if options[4] == U64(0):
        return NO_MOVE, board, state
    empty = count_empty(board)
    spawns = _spawns_ahead(player, board, empty, _look_of(player, gamma))
    draws = player.epsilon > 0.0 or player.temperature > 0.0
    bit, tied = U64(0), draws
    if spawns > 0 and (player.look_unsure != F32(0) or (values is None and not draws)):
        bit, tied, spawns = _best_move_ahead(player, options, empty, spawns)
    elif values is None and not draws:
        bit, tied = _best_move_now(player, options)
    if values is not None or draws or tied:
        moves = _in_question(player, options, spawns, empty)
        if values is not None:
            _fill_values(player, options, spawns, values)
        bit, state = _drawn_move(player, options, moves, spawns, state, gamma, values)
    if seen != board:
        options = afterstates(board)
    after = after_move(bit, options)
    return popcount(bit - U64(1)), transpose(after) if bit < U64(4) else after, state


@chooses(NTuple, forceinline=True)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    return _chosen(player, board, state, gamma, None)


@values_moves(NTuple)
def _choose_valued(player: Any, board: Any, state: Any, gamma: Any, values: Any) -> Any:
    return _chosen(player, board, state, gamma, values)


@kernel
def _fill_move_values(player: Any, boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        options, empty = afterstates(boards[i]), count_empty(boards[i])
        mixed = player.mix_looks[0] if player.mix_looks.shape[0] else U64(0)
        spawns = _spawns_ahead(player, boards[i], empty, mixed)
        if spawns > 0 and player.look_unsure != F32(0):
            spawns = _best_move_ahead(player, options, empty, spawns)[2]
        _fill_values(player, options, spawns, out[i])


def move_values(player: NTuple, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the values of all four moves, ``u64[n]`` to ``f32[n, 4]`` (up, down, left, right).

    Values are in points of score, and NaN for illegal moves. Of a mixture, the first part applies.
    ``look_margin`` and ``downgrade`` are ignored, so that all values are comparable.
    """
    out = np.empty((len(boards), 4), dtype=np.float32)
    _fill_move_values(own(player), np.ascontiguousarray(boards, dtype=U64), out)
    return out
