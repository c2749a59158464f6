"""Moves and spawns found again from boards, against the reference rules."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tape2048.game.moves import AMBIGUOUS, UNKNOWN, recover, recover_move
from tape2048.jit.compiler import kernel

from .. import run_builders as build
from ..run_builders import ref


def explanations(board: int, following: int) -> list[tuple[int, int, int]]:
    """Every (move, cell, exponent) that leads from one board to the next, one after the other."""
    cells, after = ref.unpack(board), ref.unpack(following)
    found = []
    for move in ref.legal_moves(cells):
        slid, _ = ref.slide(cells, move)
        for cell in ref.empty_cells(slid):
            for exponent in (1, 2):
                if [*slid[:cell], exponent, *slid[cell + 1 :]] == after:
                    found.append((move, cell, exponent))  # noqa: PERF401 - three loops deep
    return found


@kernel
def _recover_move(board: Any, following: Any) -> Any:
    return recover_move(board, following)


def check(states: list[int]) -> None:
    found = recover(np.array(states, np.uint64))
    for i, (board, following) in enumerate(itertools.pairwise(states)):
        ways = explanations(board, following)
        if len(ways) == 1:
            assert (found.moves[i], found.cells[i], found.exponents[i]) == ways[0]
        else:
            assert found.moves[i] == (AMBIGUOUS if ways else UNKNOWN)
            assert found.cells[i] == found.exponents[i] == UNKNOWN
        assert _recover_move(np.uint64(board), np.uint64(following)) == found.moves[i]


@given(st.integers(0, 2**32))
def test_a_game_is_found_again(seed: int) -> None:
    game = build.game(seed, steps_max=15)
    check(game.states)
    found = recover(np.array(game.states, np.uint64))
    sure = found.moves < 4
    assert sure.sum() >= len(game.moves) - 5
    assert found.moves[sure].tolist() == np.array(game.moves)[sure].tolist()
    # With the moves known, no spawn is in doubt.
    known = recover(np.array(game.states, np.uint64), np.array(game.moves, np.uint8))
    assert known.moves.tolist() == game.moves
    for i, move in enumerate(game.moves):
        assert (move, known.cells[i], known.exponents[i]) in explanations(*game.states[i : i + 2])


boards = st.lists(st.integers(0, 3) | st.integers(0, 15), min_size=16, max_size=16).map(ref.pack)


@given(boards, boards, st.integers(0, 3), st.integers(0, 15), st.integers(0, 3))
def test_any_pair(board: int, other: int, move: int, cell: int, exponent: int) -> None:
    slid, _ = ref.slide(ref.unpack(board), move)
    slid[cell] = exponent
    check([board, other])
    check([board, ref.pack(slid)])


def test_two_moves_can_explain_a_pair() -> None:
    # A lone 2 in the middle of a row; then a 2 at either end: which of them slid, which was spawned?
    before, after = ref.pack([0, 1, *[0] * 14]), ref.pack([1, 0, 0, 1, *[0] * 12])
    check([before, after])
    check([before, ref.pack([1, 0, 0, 2, *[0] * 12])])
    found = recover(np.array([before, after], np.uint64))
    assert (found.moves[0], found.cells[0], found.exponents[0]) == (AMBIGUOUS, UNKNOWN, UNKNOWN)
    left = recover(np.array([before, after], np.uint64), np.array([2], np.uint8))
    right = recover(np.array([before, after], np.uint64), np.array([3], np.uint8))
    assert (left.cells[0], right.cells[0]) == (3, 0)


def test_boards_that_do_not_follow() -> None:
    full = [1, 2, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2, 2, 1, 2, 1]
    check([ref.pack(full)] * 2)
    for exponent in range(1, 16):
        before = ref.pack([exponent] + [0] * 15)
        check([before, before])
        check([before, ref.pack([0, 0, 0, exponent] + [0] * 12)])  # slid, and nothing spawned
        check([before, ref.pack([0, 0, 0, 1, exponent] + [0] * 11)])
        check([before, ref.pack([exponent, 1] + [0] * 14)])  # spawned, and nothing slid
        for other in {exponent ^ 1, exponent ^ 2}:
            check([before, ref.pack([0, 0, 0, other] + [0] * 12)])  # slid, and became another one


def test_moves_that_explain_nothing() -> None:
    game = build.game(3, steps_max=20)
    states, moves = np.array(game.states, np.uint64), np.array(game.moves, np.uint8)
    moves[7] = (moves[7] + 1) % 4
    states[13] ^= np.uint64(0xF)
    assert np.flatnonzero(recover(states, moves).moves == UNKNOWN).tolist() == [7, 12, 13]
    moves[7] = 200
    assert recover(states, moves).moves[7] == UNKNOWN


def test_moves_that_do_not_fit_a_byte_are_no_moves() -> None:
    """Taken by their lowest byte, 256 and -256 would be 0."""
    game = build.game(3, steps_max=20)
    states, moves = np.array(game.states, np.uint64), np.array(game.moves, np.int64)
    for wrong in (256, -256, 4, -1, 2**40):
        given = moves + wrong
        assert (recover(states, given).moves == UNKNOWN).all()  # type: ignore[arg-type]
        assert (recover(states, given.tolist()).moves == UNKNOWN).all()


def test_what_is_no_integer_is_refused() -> None:
    game = build.game(3, steps_max=20)
    states, moves = np.array(game.states, np.uint64), np.array(game.moves, np.uint8)
    halves: Any = moves + 0.5
    with pytest.raises(ValueError, match="moves have dtype float64; expected integers"):
        recover(states, halves)
    with pytest.raises(ValueError, match="boards have dtype float64; expected integers"):
        recover(states.astype(np.float64), moves)  # type: ignore[arg-type]


@pytest.mark.parametrize(("states", "moves"), [([], None), ([], []), ([1], [0]), ([1, 2], [])])
def test_lengths_that_do_not_fit(states: list[int], moves: list[int] | None) -> None:
    with pytest.raises(ValueError, match="boards"):
        recover(np.array(states, np.uint64), None if moves is None else np.array(moves, np.uint8))
