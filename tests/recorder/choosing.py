"""A player's choices, called from tests."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from scipy import stats
from tests import reference

from tape2048.jit.compiler import kernel
from tape2048_recorder.game.game_loop import play_unrecorded
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


def u64(cells: Sequence[int]) -> np.uint64:
    """Pack a board."""
    return np.uint64(reference.pack(list(cells)))


def choice(player: Any, cells: Sequence[int], state: int = 0) -> tuple[int, list[int], int]:
    """The move, the afterstate, and the generator's state after it."""
    move, after, state = map(int, choose_once(player, u64(cells), np.uint64(state), GAMMA))
    return move, reference.unpack(after), state


def counts_of(player: Any, cells: Sequence[int], choices: int = 100_000) -> npt.NDArray[np.int64]:
    """How often each move (the fifth: none) is chosen on a board."""
    counts: npt.NDArray[np.int64] = np.zeros(5, dtype=np.int64)
    count_choices(player, u64(cells), choices, counts)
    return counts


def evenly(counts: npt.NDArray[np.int64], moves: list[int]) -> bool:
    """Whether these moves, and no others, are chosen equally often."""
    drawn = counts[moves]
    return drawn.sum() == counts.sum() and (len(moves) == 1 or stats.chisquare(drawn).pvalue > 1e-3)


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
