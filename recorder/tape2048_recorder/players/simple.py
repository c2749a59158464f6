"""``random``: a uniformly random legal move; ``greedy``: the best merge score, ties drawn at random."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from tape2048.game.rules import rows_merge_score, slide_rows, transpose
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses

U64 = np.uint64

# The 24 orders of the four moves, two bits a move, the first move lowest.
_ORDERS = np.array(
    [sum(move << (2 * i) for i, move in enumerate(order)) for order in itertools.permutations(range(4))],
    dtype=np.uint8,
)
_ORDER_COUNT = U64(len(_ORDERS))


class Random(NamedTuple):
    """Uniformly random legal play."""

    unused: np.uint64 = U64(0)  # numba knows no empty NamedTuple


class Greedy(NamedTuple):
    """Greedy over the immediate merge score."""

    unused: np.uint64 = U64(0)


@chooses(Random)
def _choose_random(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    # The first legal move in a random order is a uniformly random legal move. Mostly the first move is
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
    best_score = U64(0)
    best_move = NO_MOVE
    best_after = board
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
        best_score = score
        best_move = move
        best_after = transpose(after) if vertical else after
    return best_move, best_after, state
