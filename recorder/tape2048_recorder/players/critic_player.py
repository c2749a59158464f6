r"""``critic``: the move that is likeliest to reach a tile, by an n-tuple critic.

The value of a move is the expectation of the critic's probability over the next spawns,

.. math::

    \sum_{c\ empty} \frac{1}{n} \sum_{e \in \{1, 2\}} p_e\, P(b_{c,e}), \qquad p_1 = 0.9,\ p_2 = 0.1

where :math:`P` is the critic's probability, which is at most that of any lower tile, and 0 on a board without
a legal move. With fewer empty cells than ``look``, :math:`P` is replaced by the value of the best next
move, which looks two spawns ahead.

The critic predicts games of the player that it learned from, so this is one step of policy iteration (Sutton
and Barto, 2nd ed., section 4.3). If its probabilities were exact, no other choice of one move, followed by
that player's moves, would reach the tile more often.

That player rarely reached the boards to which bad moves lead, and the probabilities of boards that no game
reached mean nothing. So a move is eligible only if its reward plus value, by the n-tuple network ``weights``,
is within ``margin`` points of score of the best move (0: all moves are eligible).

On a board that has the tile, the critic's next higher tile is the goal. After the highest tile all moves are
equally good.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048.errors import ConfigError
from tape2048.game.rules import count_empty, empty_mask, max_exponent, transpose
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048.ntuple.lookup import SYMMETRIES, downgraded, highest_at_least, indices_of, stage_of
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses
from tape2048_recorder.players import ntuple
from tape2048_recorder.players.ntuple import after_move, afterstates, worth_a_look
from tape2048_recorder.players.parameters import OF_NETWORK
from tape2048_recorder.players.simple import expectation, maximum

U64 = np.uint64
F32 = np.float32

_NOTHING = F32(-1)
_MOST = np.int64(1 << 62)


class CriticPlayer(NamedTuple):
    """A critic's weights and tiles, and the first goal. ``identity`` is the SHA-256 of these."""

    columns: npt.NDArray[np.int16]  # `i16[entries, T]`
    exponents: npt.NDArray[np.uint64]  # `u64[T]`
    first: np.int64
    step: np.float32
    masks: tuple[np.uint64, ...]
    offsets: tuple[np.uint64, ...]
    stage_begins: tuple[np.uint64, ...]
    stage_size: np.uint64
    look: np.uint64
    guide: ntuple.NTuple
    cache_places: npt.NDArray[np.uint64]
    identity: npt.NDArray[np.uint8]


def make(*, critic: str, tile: int, look: int, weights: str, margin: float) -> CriticPlayer:
    """Return the player; ConfigError if the critic lacks the tile, ModelError if the file is no critic."""
    from tape2048.critic.ntuple.ntuple_critic import NTupleCritic

    found = NTupleCritic.load(critic)
    if tile not in found.thresholds:
        raise ConfigError(
            f"found tile = {tile}, expected a tile of the critic {critic}: "
            f"{', '.join(map(str, found.thresholds))}",
            hint=f"Pass, for example, --player critic:tile={found.thresholds[-1]}.",
        )
    first = found.thresholds.index(tile)
    exponents = np.array([goal.bit_length() - 1 for goal in found.thresholds], U64)
    columns = np.ascontiguousarray(found.weights[:, : len(found.thresholds)])
    # A margin of 0 allows all moves, as look_margin does.
    guide = ntuple.make(weights=weights, downgrade=OF_NETWORK, look_margin=margin)
    layout = str(found.layout).removeprefix("Network")  # older sessions hash it in this form
    digest = hashlib.sha256(f"critic:2:{tile}:{look}:{found.step}:{layout}\n".encode())
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
        U64(look),
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


@helper
def _best_answer(player: Any, board: Any, goal: Any) -> Any:
    """Return the value of a board's best move; 0 without legal moves, 1 if the goal is reached."""
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
    twice = count_empty(board) < player.look
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
