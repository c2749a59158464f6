"""``greedy``: the move with the best immediate merge score, ties drawn from the game's generator."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tape2048.game.rules import rows_merge_score, slide_rows, transpose
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, chooses

U64 = np.uint64


class Greedy(NamedTuple):
    """Greedy over the immediate merge score."""

    unused: np.uint64  # numba knows no empty NamedTuple


def make() -> Greedy:
    """Return the player."""
    return Greedy(U64(0))


@chooses(Greedy)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    columns = transpose(board)
    column_score = rows_merge_score(columns)
    row_score = rows_merge_score(board)
    best_score = U64(0)
    best_move = NO_MOVE
    best_after = board
    ties = U64(0)
    for m in range(4):
        move = U64(m)
        vertical = move < U64(2)
        source = columns if vertical else board
        after = slide_rows(source, move & U64(1))
        score = column_score if vertical else row_score
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
