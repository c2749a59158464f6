"""Compiled choice of moves from a player's scores: legality, argmax, softmax, cuts, random moves.

The draws come from the games' generators; :mod:`tape2048_recorder.players.sampling` documents their number.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048_recorder.game import rng
from tape2048_recorder.players.random import _ORDERS
from tape2048_recorder.players.sampling import METHODS, Sampling

if TYPE_CHECKING:
    import numpy.typing as npt

U64 = np.uint64
_NEVER = U64(0xFFFFFFFFFFFFFFFF)
_ARGMAX, _SOFTMAX, _TOP_K, _TOP_P = range(len(METHODS))


class Policy(NamedTuple):
    """:class:`~tape2048_recorder.players.sampling.Sampling` for the kernel."""

    method: np.uint64
    temperature: np.float64
    top_k: np.uint64
    top_p: np.float64
    start: np.uint64
    stop: np.uint64
    epsilon: np.float64
    epsilon_start: np.uint64
    epsilon_stop: np.uint64


def policy_of(sampling: Sampling) -> Policy:
    """Convert settings for the kernel."""
    return Policy(
        method=U64(METHODS.index(sampling.method)),
        temperature=np.float64(sampling.temperature),
        top_k=U64(sampling.top_k),
        top_p=np.float64(sampling.top_p),
        start=U64(sampling.start_gate),
        stop=U64(sampling.stop_gate) or _NEVER,
        epsilon=np.float64(sampling.epsilon),
        epsilon_start=U64(sampling.epsilon_start_gate),
        epsilon_stop=U64(sampling.epsilon_stop_gate) or _NEVER,
    )


def _random_moves() -> npt.NDArray[np.uint8]:
    """Return ``u8[24 * 16]``: the first legal move for each order of the moves and legal mask."""
    table = np.zeros((len(_ORDERS), 16), dtype=np.uint8)
    for index, order in enumerate(_ORDERS):
        for legal in range(1, 16):
            moves = [int(order) >> (2 * i) & 3 for i in range(4)]
            table[index, legal] = next(move for move in moves if legal >> move & 1)
    return table.reshape(-1)


_RANDOM_MOVES = _random_moves()
_RANDOM_MOVES.flags.writeable = False
_ORDER_COUNT = U64(len(_ORDERS))


@kernel
def choose_random(lanes: Any, moves: Any) -> None:
    """Draw uniformly random legal moves, the same as the player ``random`` for the same games."""
    for i in range(moves.shape[0]):
        draw, state = rng.bounded(lanes.states[i], lanes.gammas[i], _ORDER_COUNT)
        lanes.states[i] = state
        moves[i] = _RANDOM_MOVES[(draw << U64(4)) + U64(lanes.legal[i])]


@register_jitable
def _random_legal(legal: Any, state: Any, gamma: Any) -> Any:
    """Draw a uniformly random legal move: ``(move, state)``."""
    draw, state = rng.bounded(state, gamma, popcount(legal))
    return popcount(select_bit(legal, draw) - U64(1)), state


@register_jitable
def _stir(policy: Any, move: Any, legal: Any, step: Any, state: Any, gamma: Any) -> Any:
    """Replace the move by a random one with probability epsilon: ``(move, state)``."""
    if policy.epsilon > 0.0 and policy.epsilon_start <= step < policy.epsilon_stop:
        draw, state = rng.uniform(state, gamma)
        if draw < policy.epsilon:
            move, state = _random_legal(legal, state, gamma)
    return move, state


@register_jitable
def _rank(scores: Any, i: Any, legal: Any, move: Any) -> int:
    """Return the rank of a move among the legal ones: higher scores first, then lower numbers."""
    before = 0
    mine = scores[i, move]
    for other in range(4):
        theirs = scores[i, other]
        if (legal >> U64(other)) & U64(1) and (theirs > mine or (theirs == mine and other < move)):
            before += 1
    return before


@register_jitable
def _weight(policy: Any, score: Any, best: Any) -> Any:
    return math.exp((np.float64(score) - best) / policy.temperature)


@register_jitable
def _draw(policy: Any, scores: Any, i: Any, legal: Any, best: Any, state: Any, gamma: Any) -> Any:
    """Draw a legal move by softmax within the cuts: ``(move, state)``."""
    total = 0.0
    for move in range(4):
        if (legal >> U64(move)) & U64(1):
            total += _weight(policy, scores[i, move], best)
    keep = 4
    if policy.method == U64(_TOP_K):
        keep = int(policy.top_k)
    elif policy.method == U64(_TOP_P):
        sum_so_far = 0.0
        keep = 0
        for rank in range(4):
            for move in range(4):
                if (
                    (legal >> U64(move)) & U64(1)
                    and sum_so_far < policy.top_p * total
                    and _rank(scores, i, legal, move) == rank
                ):
                    sum_so_far += _weight(policy, scores[i, move], best)
                    keep += 1
    kept = 0.0
    for move in range(4):
        if (legal >> U64(move)) & U64(1) and _rank(scores, i, legal, move) < keep:
            kept += _weight(policy, scores[i, move], best)
    draw, state = rng.uniform(state, gamma)
    left = draw * kept
    chosen = U64(4)
    for move in range(4):
        if (legal >> U64(move)) & U64(1) and _rank(scores, i, legal, move) < keep:
            weight = _weight(policy, scores[i, move], best)
            # Rounding may leave a remainder: it counts for the last move with a weight.
            if weight > 0.0 and left >= 0.0:
                chosen = U64(move)
            left -= weight
    return chosen, state


@kernel
def choose_moves(lanes: Any, scores: Any, policy: Any, moves: Any) -> int:
    """Choose moves from scores.

    Args:
        lanes: a group.
        scores: ``f32[n, 4]``, one row for each lane that plays; scores of illegal moves are ignored.
        policy: a :class:`Policy`.
        moves: ``u8[n]``, filled.

    Returns:
        -1; or the first lane with a legal move whose score is NaN or +inf, or without a finite score. Moves
        and generators are then invalid.
    """
    one = U64(1)
    for i in range(moves.shape[0]):
        legal = U64(lanes.legal[i])
        best = -np.inf
        choice = U64(4)
        for move in range(4):
            score = np.float64(scores[i, move])
            if (legal >> U64(move)) & one:
                if not score < np.inf:
                    return i
                if score > best:
                    best = score
                    choice = U64(move)
        if choice == U64(4):
            return i
        step = lanes.steps[i]
        state = lanes.states[i]
        if policy.method != U64(_ARGMAX) and policy.start <= step < policy.stop:
            choice, state = _draw(policy, scores, i, legal, best, state, lanes.gammas[i])
        choice, state = _stir(policy, choice, legal, step, state, lanes.gammas[i])
        lanes.states[i] = state
        moves[i] = np.uint8(choice)
    return -1


@kernel
def stir_moves(lanes: Any, policy: Any, moves: Any) -> None:
    """Replace legal moves by random ones with probability epsilon."""
    for i in range(moves.shape[0]):
        move, state = _stir(
            policy, U64(moves[i]), U64(lanes.legal[i]), lanes.steps[i], lanes.states[i], lanes.gammas[i]
        )
        lanes.states[i] = state
        moves[i] = np.uint8(move)
