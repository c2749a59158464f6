"""A player's choices, called from tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from tests import reference

from tape2048.jit.compiler import kernel
from tape2048_recorder.game.loop import play_unrecorded
from tape2048_recorder.game.player_api import choose

GAMMA = np.uint64(reference.GOLDEN_GAMMA)
words = st.integers(0, 2**64 - 1)
boards = st.one_of(
    *(
        st.lists(tile, min_size=16, max_size=16)
        for tile in (st.integers(0, 15), st.sampled_from([0, 1, 2, 15]), st.sampled_from([0, 14, 15]))
    )
)


@kernel
def choose_once(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    return choose(player, board, state, gamma)


@kernel
def count_choices(player: Any, board: Any, choices: Any, counts: Any) -> None:
    """Count, in ``counts[move]``, the moves that so many choices on this board are."""
    state = np.uint64(9)
    for _ in range(choices):
        move, _after, state = choose(player, board, state, GAMMA)
        counts[move] += 1


class Outcomes(NamedTuple):
    """Results of games, in the order of their seeds."""

    scores: Any
    highest: Any  # tiles
    steps: int


def outcomes(player: Any, seeds: Any, boards: Any = ()) -> Outcomes:
    """Play the games of some seeds, new or from given boards."""
    scores, exponents = np.zeros(len(seeds), np.uint64), np.zeros(len(seeds), np.uint8)
    steps = play_unrecorded(player, np.asarray(boards, np.uint64), seeds, scores, exponents)
    return Outcomes(scores, 1 << exponents.astype(np.int64), steps)
