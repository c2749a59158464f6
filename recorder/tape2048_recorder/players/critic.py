r"""``critic``: the move after which a critic finds a tile likeliest to be reached.

The value of a move is the expectation over the next spawns of the critic's probability,

.. math::

    \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e\, P(b_{c,e}), \qquad p_1 = 0.9,\ p_2 = 0.1

where :math:`P` is 0 on a board without a legal move. The critic judges games of the player that it learned
from, so this is one step of policy iteration (Sutton and Barto, 2nd ed., section 4.3): if its probabilities
were exact, no player that looks one move ahead and then hands over to that player would do better. With fewer
empty cells than ``look_below``, :math:`P` is replaced by the value of the best answer: two spawns ahead.

On a board that has the tile, the critic's next higher tile is the goal; after the last one all moves are
alike.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.errors import ConfigError
from tape2048.game.rules import count_empty, empty_mask, max_exponent, slide_rows, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048.ntuple.images import stage_of
from tape2048.ntuple.lookup import SYMMETRIES, indices_of
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses

U64 = np.uint64
F32 = np.float32

_P_TWO, _P_FOUR = F32(0.9), F32(0.1)
_NOTHING = F32(-1)


class CriticPlayer(NamedTuple):
    """A critic's weights, and the tiles from the goal on. ``identity`` is the SHA-256 of both."""

    weights: npt.NDArray[np.int16]  # `i16[entries, T']`, of these tiles alone
    exponents: npt.NDArray[np.uint64]  # `u64[T']`
    step: np.float32
    masks: tuple[np.uint64, ...]
    offsets: tuple[np.uint64, ...]
    stage_reaches: tuple[np.uint64, ...]
    stage_size: np.uint64
    look_below: np.uint64
    cache_places: npt.NDArray[np.uint64]
    identity: npt.NDArray[np.uint8]


def make(*, critic: str, tile: int, look_below: int) -> CriticPlayer:
    """Return the player.

    Raises:
        ConfigError: the critic has no such tile.
        CriticError: there is no such critic.
    """
    from tape2048.critic.ntuple.critic import Critic

    found = Critic.load(critic)
    if tile not in found.thresholds:
        raise ConfigError(
            f"found tile = {tile}, and the critic {critic} predicts {', '.join(map(str, found.thresholds))}",
            hint="one of these: --player critic:tile=" + str(found.thresholds[-1]),
        )
    first = found.thresholds.index(tile)
    exponents = np.array([goal.bit_length() - 1 for goal in found.thresholds[first:]], U64)
    weights = np.ascontiguousarray(found.weights[:, first : len(found.thresholds)])
    digest = hashlib.sha256(f"critic:1:{tile}:{look_below}:{found.step}:{found.layout}\n".encode())
    digest.update(weights.tobytes())
    return CriticPlayer(
        weights,
        exponents,
        F32(found.step),
        found.layout.masks,
        found.layout.offsets,
        found.tables.stage_reaches,
        U64(found.layout.stage_size),
        U64(look_below),
        np.empty(SYMMETRIES * len(found.layout.tuples), U64),
        np.frombuffer(digest.digest(), np.uint8),
    )


@register_jitable
def _afterstate(board: Any, columns: Any, m: Any) -> Any:
    """Return the board after move ``m``, itself if that is illegal; ``columns`` is its transpose."""
    if m < 2:
        return transpose(slide_rows(columns, U64(m & 1)))
    return slide_rows(board, U64(m & 1))


@register_jitable
def _is_over(board: Any) -> Any:
    columns = transpose(board)
    return (
        slide_rows(columns, U64(0)) == columns
        and slide_rows(columns, U64(1)) == columns
        and slide_rows(board, U64(0)) == board
        and slide_rows(board, U64(1)) == board
    )


@kernel
def _probability(player: Any, board: Any, goal: Any) -> Any:
    """Return P(the game reaches the goal) of a board before a move."""
    if max_exponent(board) >= player.exponents[goal]:
        return F32(1)
    if empty_mask(board) == U64(0) and _is_over(board):
        return F32(0)
    places = player.cache_places
    base = stage_of(player.stage_reaches, board) * player.stage_size
    indices_of(player.masks, player.offsets, base, board, places)
    total = 0
    for k in range(places.shape[0]):
        total += player.weights[places[k], goal]
    return F32(1) / (F32(1) + math.exp(-player.step * F32(total)))


@kernel
def _expected(player: Any, after: Any, goal: Any) -> Any:
    """Return the expectation of the probability over the next spawns."""
    spawns = empty_mask(after)
    count = F32(popcount(spawns))
    total = F32(0)
    while spawns != U64(0):
        two = spawns & (~spawns + U64(1))
        spawns ^= two
        total += _P_TWO * _probability(player, after | two, goal)
        total += _P_FOUR * _probability(player, after | two << U64(1), goal)
    return total / count


@kernel
def _best_answer(player: Any, board: Any, goal: Any) -> Any:
    """Return the value of a board's best move; 0 without moves, 1 with the goal."""
    if max_exponent(board) >= player.exponents[goal]:
        return F32(1)
    columns = transpose(board)
    best = F32(0)
    for m in range(4):
        after = _afterstate(board, columns, m)
        if after != board:
            best = max(best, _expected(player, after, goal))
    return best


@kernel
def _expected_twice(player: Any, after: Any, goal: Any) -> Any:
    spawns = empty_mask(after)
    count = F32(popcount(spawns))
    total = F32(0)
    while spawns != U64(0):
        two = spawns & (~spawns + U64(1))
        spawns ^= two
        total += _P_TWO * _best_answer(player, after | two, goal)
        total += _P_FOUR * _best_answer(player, after | two << U64(1), goal)
    return total / count


@chooses(CriticPlayer)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    goal = 0
    reached = max_exponent(board)
    while goal + 1 < player.exponents.shape[0] and reached >= player.exponents[goal]:
        goal += 1
    columns = transpose(board)
    twice = count_empty(board) < player.look_below
    best, equal = _NOTHING, U64(0)
    for m in range(4):
        after = _afterstate(board, columns, m)
        if after == board:
            continue
        value = _expected_twice(player, after, goal) if twice else _expected(player, after, goal)
        if value > best:
            best, equal = value, U64(1) << U64(m)
        elif value == best:
            equal |= U64(1) << U64(m)
    if equal == U64(0):
        return NO_MOVE, board, state
    if equal & (equal - U64(1)):
        pick, state = rng.bounded(state, gamma, popcount(equal))
        equal = select_bit(equal, pick)
    move = popcount(equal - U64(1))
    return move, _afterstate(board, columns, move), state
