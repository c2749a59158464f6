"""Moves recovered from boards, against every move and spawn that could be."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
from tests import reference

from tape2048.game.moves import AMBIGUOUS, UNKNOWN, recover_move
from tape2048.jit.compiler import kernel

from ..corpora import boards, move_between


@kernel
def _recover(board: Any, following: Any) -> Any:
    return recover_move(board, following)


def recovered(before: list[int], after: list[int]) -> int:
    return int(_recover(np.uint64(reference.pack(before)), np.uint64(reference.pack(after))))


def test_whole_games() -> None:
    for seed in range(6):
        cells, made = boards(seed)
        found = [recovered(*pair) for pair in itertools.pairwise(cells)]
        assert found == [move_between(*pair) for pair in itertools.pairwise(cells)]
        certain = [(a, b) for a, b in zip(found, made, strict=False) if a < 4]
        assert all(a == b for a, b in certain)
        assert len(certain) > 0.9 * len(found)


def test_any_two_boards() -> None:
    """Boards of few tiles, where two moves can lead to the same one, and boards that do not follow."""
    rng = random.Random(1)
    seen = set()
    for _ in range(1500):
        before = rng.choices(rng.choice([[0, 0, 0, 0, 1, 2, 15], [0] * 12 + [1, 2]]), k=16)
        after = rng.choices([0, 1, 2], k=16)
        legal = reference.legal_moves(before)
        if legal and rng.random() < 0.9:
            after = reference.slide(before, rng.choice(legal))[0]
            if empty := reference.empty_cells(after):
                after[rng.choice(empty)] = rng.choice([1, 1, 2, 3, 4, 8])
        expected = move_between(before, after)
        assert recovered(before, after) == expected, (before, after)
        seen.add(expected)
    assert seen == {0, 1, 2, 3, AMBIGUOUS, UNKNOWN}


def test_two_moves_for_one_pair() -> None:
    """A lone 2 slides to either end of its row, and the spawn takes the other end."""
    before = [0, 1, 0, 0] + [0] * 12
    assert recovered(before, [1, 0, 0, 1] + [0] * 12) == AMBIGUOUS
    assert recovered(before, [1, 0, 0, 2] + [0] * 12) == 2
    assert recovered(before, [2, 0, 0, 1] + [0] * 12) == 3


def test_boards_that_do_not_follow() -> None:
    full = [1, 2, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2, 2, 1, 2, 1]
    assert recovered(full, full) == UNKNOWN
    one = [1] + [0] * 15
    assert recovered(one, one) == UNKNOWN
    assert recovered(one, [0, 0, 0, 1] + [0] * 12) == UNKNOWN  # slid, and nothing spawned
    for exponent in range(3, 16):
        assert recovered(one, [0, 0, 0, 1, exponent] + [0] * 11) == UNKNOWN  # no 8 ever spawns
    for exponent in range(2, 16):
        for other in {exponent ^ 1, exponent ^ 2}:
            wrong = [exponent, *[0] * 15], [0, 0, 0, other, *[0] * 12]
            assert recovered(*wrong) == UNKNOWN  # slid, and became another one
