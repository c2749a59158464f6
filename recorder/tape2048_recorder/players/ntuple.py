r"""``ntuple``: the move with the best reward plus afterstate value of a trained n-tuple network.

Without look-ahead the value of a move is :math:`r + V(s)`, its merge score and the network's value of the
afterstate (see :mod:`tape2048.ntuple.lookup`). Look-ahead replaces :math:`V(s)` by the expectation over the
next spawns of the best answer (:mod:`tape2048_recorder.players.search`). It applies to boards with fewer
empty cells than ``look_below`` (0: none; 16: all, since a board has two tiles at least). With fewer empty
cells than ``look_twice_below``, it goes ``look_spawns`` deep, one more on boards with ``look_deeper_from``
different tiles from 1024 on, along spawns that are together about as probable as ``look_chance`` at least. It
applies to moves whose :math:`r + V(s)` is within ``look_margin`` points of the best, if there are two of them
(0, or a full board, where it costs little: to all moves). A move that looks far worse is seldom better.

From a highest tile of ``downgrade`` on, the player chooses on a smaller board with the same moves
(:func:`downgraded`). The default is the tile in the network's file.

For diverse data: ``epsilon`` is the probability of a uniformly random legal move; ``temperature`` (in points
of score) draws moves with :math:`P(m) \propto e^{value_m / temperature}`, by the maximum of values with
Gumbel noise (Gumbel 1954; Maddison et al., "A* sampling", 2014). All draws, including ties, come from the
game's generator.

``mix`` plays each game with one of several ``look_below``: ``"0:2+3:1"`` is 1-ply in two games of three.
The choice follows from the game's seed (:func:`mix_choices`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.game.rules import count_empty, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import float_bits, mix, popcount, select_bit
from tape2048.ntuple.lookup import downgraded, highest_at_least
from tape2048.ntuple.network import place
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses
from tape2048_recorder.players.registry import OF_NETWORK, own, parse_mix, sha256_of
from tape2048_recorder.players.search import (
    after_move,
    afterstate_value,
    afterstates,
    costs_of,
    empty_table,
    expected,
    expected_once,
    value_now,
    worth_a_look,
)

if TYPE_CHECKING:
    from tape2048.ntuple.network import Network, NetworkLayout, Places

U64 = np.uint64
F32 = np.float32

_NOTHING = F32(-np.inf)
_LEAST = np.int64(-(2**62))

#: Settings that are hashed in any case. Table and scales join them in the order of the file.
_HASHED = (
    "mix_looks",
    "mix_ends",
    "look_twice_below",
    "look_margin",
    "downgrade_exponent",
    "epsilon",
    "temperature",
)

#: Separates the mixture from other uses of a game's increment.
_MIX_SALT = U64(0x6D69786D69786D69)


class NTuple(NamedTuple):
    """A network and the settings of its use.

    ``mix_looks`` and ``mix_ends`` (both ``u64[n]``) give the ``look_below`` of a game whose hashed
    increment lies below the ``i``-th end; the last end is not read. ``downgrade_exponent`` 0 means never.
    ``identity`` (``u8[32]``) is the SHA-256 of settings and network in the order of the file.
    """

    mix_looks: npt.NDArray[np.uint64]
    mix_ends: npt.NDArray[np.uint64]
    look_twice_below: np.uint64
    look_spawns: np.int64
    look_deeper_from: np.uint64
    look_margin: np.float32
    downgrade_exponent: np.uint64
    epsilon: np.float64
    temperature: np.float64
    places: Places
    scales: npt.NDArray[np.float32]
    table: npt.NDArray[np.float32] | npt.NDArray[np.int16]
    chance_costs: npt.NDArray[np.int64]
    chance_budget: np.int64
    cache_keys: npt.NDArray[np.uint64]
    cache_values: npt.NDArray[np.float32]
    identity: npt.NDArray[np.uint8]


def make(*, weights: str, downgrade: int, **settings: Any) -> NTuple:
    """Return the player with the network of this name or file; ``settings`` as for :func:`of_network`."""
    from tape2048.ntuple.network import load_network

    network = load_network(weights)
    downgrade = network.downgrade if downgrade == OF_NETWORK else downgrade
    return of_network(network, downgrade=downgrade, **settings)


def of_network(
    network: Network,
    *,
    look_below: int = 0,
    look_twice_below: int = 0,
    look_spawns: int = 2,
    look_chance: float = 0.0,
    look_deeper_from: int = 0,
    look_margin: float = 0.0,
    downgrade: int = 0,
    mix: str = "",
    epsilon: float = 0.0,
    temperature: float = 0.0,
) -> NTuple:
    """Return the player with this network; ConfigError for an invalid mixture."""
    looks, ends = parse_mix(mix) if mix else ([look_below], [0])
    places, table, scales = place(network.layout, network.table, network.scales)
    player = NTuple(
        np.array(looks, dtype=U64),
        np.array(ends, dtype=U64),
        U64(look_twice_below),
        np.int64(look_spawns),
        U64(look_deeper_from),
        np.float32(look_margin),
        U64(max(downgrade.bit_length() - 1, 0)),
        np.float64(epsilon),
        np.float64(temperature),
        places,
        scales,
        table,
        *costs_of(look_chance),
        *empty_table(look_spawns + (look_deeper_from > 0) if look_twice_below else 0),
        np.empty(0, dtype=np.uint8),
    )
    layout = network.layout
    fields = {name: getattr(player, name) for name in _HASHED}
    fields |= {
        "masks": layout.masks,
        "offsets": layout.offsets,
        **_stages(layout),
        "stage_size": U64(layout.stage_size),
        "scales": network.scales,
        "table": network.table,
    }
    if (look_spawns, look_chance, look_deeper_from) != (2, 0.0, 0):  # else the hash of sessions before them
        fields |= {
            "look_spawns": np.int64(look_spawns),
            "look_chance": np.float64(look_chance),
            "look_deeper_from": U64(look_deeper_from),
        }
    digest = bytes.fromhex(sha256_of("ntuple", fields))
    return player._replace(identity=np.frombuffer(digest, np.uint8))


def _stages(layout: NetworkLayout) -> dict[str, npt.NDArray[np.uint64]]:
    """Return the stages as they are hashed: by exponents where tiles begin them all, as in older sessions."""
    stages = np.array(layout.stages, dtype=U64)
    if (stages & (stages - U64(1))).any():
        return {"stages": stages}
    return {"stage_exponents": np.array([tile.bit_length() - 1 for tile in layout.stages], dtype=U64)}


@register_jitable
def _look_of(player: Any, gamma: Any) -> Any:
    if player.mix_looks.shape[0] == 1:
        return player.mix_looks[0]
    draw = mix(gamma ^ _MIX_SALT)
    i = 0
    while i + 1 < player.mix_looks.shape[0] and draw >= player.mix_ends[i]:
        i += 1
    return player.mix_looks[i]


@kernel
def _fill_looks(player: Any, seeds: Any, out: Any) -> None:
    for i in range(seeds.shape[0]):
        _, gamma = rng.start(seeds[i])
        out[i] = _look_of(player, gamma)


def mix_choices(player: NTuple, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the ``look_below`` of the games of these seeds, ``u64[n]`` to ``u64[n]``."""
    out = np.empty(len(seeds), dtype=U64)
    _fill_looks(player, seeds, out)
    return out


@register_jitable(forceinline=True)
def _move_value_ahead(player: Any, bit: Any, options: Any, spawns: Any) -> Any:
    """As :func:`value_now`, some spawns ahead."""
    if spawns == 0:
        return value_now(player, bit, options)
    after = after_move(bit, options)
    score = options[5] if bit < U64(4) else options[6]
    if spawns == 1:
        return score + expected_once(player, after)
    return score + expected(player, after, spawns, player.chance_budget)


@register_jitable
def _ordered(value: Any) -> Any:
    """Map ``f32`` to ``i64`` in the same order: IEEE 754 is sign and magnitude."""
    bits = float_bits(value + F32(0))  # -0 and 0 are one value
    return bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFF))


@register_jitable
def _big_tiles(board: Any) -> Any:
    """Count the different tiles from 1024 on."""
    present = U64(0)
    for i in range(16):
        present |= U64(1) << (board >> U64(4 * i) & U64(15))
    return popcount(present >> U64(10))


@register_jitable
def _spawns_ahead(player: Any, board: Any, look_below: Any) -> Any:
    """Return how many spawns to look ahead."""
    empty = count_empty(board)
    if empty >= look_below:
        return 0
    if empty >= player.look_twice_below:
        return 1
    deeper = player.look_deeper_from != U64(0) and _big_tiles(board) >= player.look_deeper_from
    return player.look_spawns + np.int64(deeper)


@register_jitable(forceinline=True)
def _better(best: Any, value: Any, bit: Any) -> Any:
    """Update ``(best, tied)`` by one move, without a branch.

    Keys are integers in the order of the values, with the move in the low bits, so the maximum holds both.
    """
    key, tied = best
    new = _ordered(value) << np.int64(4) | np.int64(bit)
    same = U64((new ^ key) >> np.int64(4) == np.int64(0))
    return max(key, new), same | (tied & U64(new < key))


@register_jitable(forceinline=True)
def _best_of(player: Any, options: Any, moves: Any, spawns: Any) -> Any:
    """Return ``(bit, tied)`` of the best of some legal moves, ``spawns`` ahead."""
    best = _LEAST, U64(0)
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        best = _better(best, _move_value_ahead(player, bit, options, spawns), bit)
    return U64(best[0]) & U64(15), best[1] != U64(0)


@register_jitable(forceinline=True)
def _key(player: Any, score: Any, after: Any, bit: Any, legal: Any) -> Any:
    """Return a move's key (see :func:`_better`); the least if it is illegal."""
    key = _ordered(score + afterstate_value(player, after)) << np.int64(4) | np.int64(bit)
    return key if legal & bit else _LEAST


@register_jitable(forceinline=True)
def _best_move_now(player: Any, options: Any) -> Any:
    """Return ``(bit, tied)`` of the best legal move without look-ahead.

    It values all four, since a value costs less than a mispredicted branch.
    """
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


@kernel
def _best_move_ahead(player: Any, options: Any, empty: Any, spawns: Any) -> Any:
    moves = options[4] if empty == U64(0) else worth_a_look(player, options)
    if moves & (moves - U64(1)) == U64(0):
        return moves, False
    return _best_of(player, options, moves, spawns)


@kernel
def _drawn_move(player: Any, options: Any, spawns: Any, empty: Any, state: Any, gamma: Any) -> Any:
    """Draw a move with ``epsilon``, ``temperature`` or among ties: ``(bit, state)``."""
    moves = options[4]
    if player.epsilon > 0.0:
        draw, state = rng.uniform(state, gamma)
        if draw < player.epsilon:
            pick, state = rng.bounded(state, gamma, popcount(moves))
            return select_bit(moves, pick), state
    if spawns > 0 and empty > U64(0) and player.temperature == 0.0:
        moves = worth_a_look(player, options)
    best = _NOTHING
    equal = U64(0)
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        value = _move_value_ahead(player, bit, options, spawns)
        if player.temperature > 0.0:
            draw, state = rng.uniform(state, gamma)
            value -= F32(player.temperature * math.log(-math.log(draw + 2.0**-54)))
        if value > best:
            best = value
            equal = bit
        elif value == best:
            equal |= bit
    if equal & (equal - U64(1)):
        pick, state = rng.bounded(state, gamma, popcount(equal))
        equal = select_bit(equal, pick)
    return equal, state


@chooses(NTuple, forceinline=True)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    seen = board
    if player.downgrade_exponent and highest_at_least(board, player.downgrade_exponent):
        seen = downgraded(board)
    options = afterstates(seen)
    if options[4] == U64(0):
        return NO_MOVE, board, state
    empty = count_empty(board)
    spawns = _spawns_ahead(player, board, _look_of(player, gamma))
    draws = player.epsilon > 0.0 or player.temperature > 0.0
    bit = U64(0)
    if not draws:
        if spawns > 0:
            bit, draws = _best_move_ahead(player, options, empty, spawns)
        else:
            bit, draws = _best_move_now(player, options)
    if draws:
        bit, state = _drawn_move(player, options, spawns, empty, state, gamma)
    if seen != board:
        options = afterstates(board)
    after = after_move(bit, options)
    if bit < U64(4):
        after = transpose(after)
    return popcount(bit - U64(1)), after, state


@kernel
def _fill_move_values(player: Any, boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        options = afterstates(boards[i])
        spawns = _spawns_ahead(player, boards[i], player.mix_looks[0])
        for m in range(4):
            bit = U64(1) << U64(m)
            out[i, m] = F32(np.nan)
            if options[4] & bit:
                out[i, m] = _move_value_ahead(player, bit, options, spawns)


def move_values(player: NTuple, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the values of all four moves, ``u64[n]`` to ``f32[n, 4]`` (up, down, left, right).

    In points of score, NaN for illegal moves. A mixture counts as its first part; ``look_margin`` and
    ``downgrade`` are ignored, so that all values are comparable.
    """
    out = np.empty((len(boards), 4), dtype=np.float32)
    _fill_move_values(own(player), np.ascontiguousarray(boards, dtype=U64), out)
    return out
