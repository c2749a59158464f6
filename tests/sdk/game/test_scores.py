"""The score between any two boards of a game follows from the boards and the number of moves."""

import numpy as np
import pytest
from tests import reference

from tape2048.game.scores import SPAWN, TWO_TILES, potentials


@pytest.mark.parametrize("seed", range(6))
def test_each_score_follows_from_two_boards(seed: int) -> None:
    cells, _, generator = reference.new_game(seed)
    boards, scores = [cells], [0]
    while (move := reference.random_move(cells, generator)) is not None:
        cells, gained = reference.slide(cells, move)
        cells, _ = reference.spawn(cells, generator)
        boards.append(cells)
        scores.append(scores[-1] + gained)
    found, score, step = potentials(np.array(boards, np.uint8)), np.array(scores), np.arange(len(boards))
    assert found[0] == TWO_TILES
    for before in (0, 1, len(boards) // 2):
        gained = found[before:] - found[before] + SPAWN * (step[before:] - before)
        assert gained.tolist() == (score[before:] - score[before]).tolist()
