"""``random``: a uniformly random legal move."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from tape2048.game.rules import slide_rows, transpose
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

    unused: np.uint64  # numba knows no empty NamedTuple


def make() -> Random:
    """Return the player."""
    return Random(U64(0))


@chooses(Random)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
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
