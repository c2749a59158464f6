r"""``critic``: the move after which a critic finds a tile likeliest to be reached.

The value of a move is the expectation over the next spawns of the critic's probability,

.. math::

    \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e\, P(b_{c,e}), \qquad p_1 = 0.9,\ p_2 = 0.1

where :math:`P` is 0 on a board without a legal move, and as the critic gives it: at most that of a lower
tile. The critic judges games of the player that it learned from, so this is one step of policy iteration
(Sutton and Barto, 2nd ed., section 4.3): if its probabilities were exact, no player that looks one move ahead
and then hands over to that player would do better. With fewer empty cells than ``look_below``, :math:`P` is
replaced by the value of the best answer: two spawns ahead.

Games of the player that a critic learned from have few of the boards that bad moves lead to, and
probabilities of boards that no game visited mean nothing. Therefore a move is eligible only if its reward and
value, by the n-tuple network ``weights``, are within ``margin`` points of score of the best move (0: all
moves).

On a board that has the tile, the critic's next higher tile is the goal; after the last tile all moves are
equal.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.errors import ConfigError
from tape2048.game.rules import count_empty, empty_mask, max_exponent, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048.ntuple.lookup import SYMMETRIES, downgraded, highest_at_least, indices_of, stage_of
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses
from tape2048_recorder.players import ntuple
from tape2048_recorder.players.ntuple import after_move, afterstates, worth_a_look
from tape2048_recorder.players.options import OF_NETWORK
from tape2048_recorder.players.simple import expectation, maximum

U64 = np.uint64
F32 = np.float32

_NOTHING = F32(-1)
_MOST = np.int64(1 << 62)


class CriticPlayer(NamedTuple):
    """A critic's weights and tiles, and the first goal. ``identity`` is the SHA-256 of all of them."""

    columns: npt.NDArray[np.int16]  # `i16[entries, T]`
    exponents: npt.NDArray[np.uint64]  # `u64[T]`
    first: np.int64
    step: np.float32
    masks: tuple[np.uint64, ...]
    offsets: tuple[np.uint64, ...]
    stage_begins: tuple[np.uint64, ...]
    stage_size: np.uint64
    look_below: np.uint64
    guide: ntuple.NTuple
    cache_places: npt.NDArray[np.uint64]
    identity: npt.NDArray[np.uint8]


def make(*, critic: str, tile: int, look_below: int, weights: str, margin: float) -> CriticPlayer:
    """Return the player; ConfigError where the critic has no such tile, ModelError without the critic."""
    from tape2048.critic.ntuple.critic import NTupleCritic

    found = NTupleCritic.load(critic)
    if tile not in found.thresholds:
        raise ConfigError(
            f"found tile = {tile}, and the critic {critic} predicts {', '.join(map(str, found.thresholds))}",
            hint="for example --player critic:tile=" + str(found.thresholds[-1]),
        )
    first = found.thresholds.index(tile)
    exponents = np.array([goal.bit_length() - 1 for goal in found.thresholds], U64)
    columns = np.ascontiguousarray(found.weights[:, : len(found.thresholds)])
    # A margin of 0 takes all moves here as there.
    guide = ntuple.make(weights=weights, downgrade=OF_NETWORK, look_margin=margin)
    layout = str(found.layout).removeprefix("Network")  # as older sessions hash it
    digest = hashlib.sha256(f"critic:2:{tile}:{look_below}:{found.step}:{layout}\n".encode())
    digest.update(columns.tobytes())
    digest.update(guide.identity.tobytes() if margin else b"")
    return CriticPlayer(
        columns,
        exponents,
        np.int64(first),
        F32(found.step),
        found.layout.masks,
        found.layout.offsets,
        found.tables.stage_begins,
        U64(found.layout.stage_size),
        U64(look_below),
        guide,
        np.empty(SYMMETRIES * len(found.layout.tuples), U64),
        np.frombuffer(digest.digest(), np.uint8),
    )


@kernel
def _probability(player: Any, board: Any, goal: Any) -> Any:
    reached = max_exponent(board)
    if reached >= player.exponents[goal]:
        return F32(1)
    if empty_mask(board) == U64(0) and afterstates(board)[4] == U64(0):
        return F32(0)
    places = player.cache_places
    base = stage_of(player.stage_begins, board) * player.stage_size
    indices_of(player.masks, player.offsets, base, board, places)
    least: Any = _MOST
    for tile in range(goal + 1):
        if reached < player.exponents[tile]:
            total = 0
            for k in range(places.shape[0]):
                total += player.columns[places[k], tile]
            least = min(least, total)
    return F32(1) / (F32(1) + math.exp(-player.step * F32(least)))


_expected = expectation(_probability)
_best_move_value = maximum(_expected)


@register_jitable
def _best_answer(player: Any, board: Any, goal: Any) -> Any:
    """Return the value of a board's best move; 0 without moves, 1 with the goal."""
    if max_exponent(board) >= player.exponents[goal]:
        return F32(1)
    return _best_move_value(player, board, goal)


_expected_twice = expectation(_best_answer)


@chooses(CriticPlayer)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    goal = player.first
    reached = max_exponent(board)
    while goal + 1 < player.exponents.shape[0] and reached >= player.exponents[goal]:
        goal += 1
    seen = board
    if player.guide.downgrade_exponent and highest_at_least(board, player.guide.downgrade_exponent):
        seen = downgraded(board)
    moves = worth_a_look(player.guide, afterstates(seen))
    options = afterstates(board)
    twice = count_empty(board) < player.look_below
    best, equal = _NOTHING, U64(0)
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        after = after_move(bit, options)
        value = _expected_twice(player, after, goal) if twice else _expected(player, after, goal)
        if value > best:
            best, equal = value, bit
        elif value == best:
            equal |= bit
    if equal == U64(0):
        return NO_MOVE, board, state
    if equal & (equal - U64(1)):
        pick, state = rng.bounded(state, gamma, popcount(equal))
        equal = select_bit(equal, pick)
    after = after_move(equal, options)
    return popcount(equal - U64(1)), transpose(after) if equal < U64(4) else after, state
