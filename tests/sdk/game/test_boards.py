"""Boards for programs, against the slow reference; boards as tiles and text."""

from collections import Counter
from typing import Any

import numba
import numpy as np
import pytest
from tests import reference

from tape2048.game import (
    WON,
    board_to_text,
    boards_to_tiles,
    exps_to_boards,
    legal,
    merge_score,
    parse_board,
    slide,
    spawn,
    spawns,
    step,
    tiles_to_boards,
)

from .test_rules import CORNERED, random_boards

CELLS = [*random_boards(17 * 60), [0] * 16, [15] * 16, CORNERED, [15, 15] + [0] * 14]
BOARDS = exps_to_boards(CELLS)
FULL = 0x1212212112122121


def packed(cells: list[int]) -> int:
    return reference.pack([min(exp, 15) for exp in cells])


def test_moves_of_many_boards() -> None:
    made = [[reference.slide(cells, move) for move in range(4)] for cells in CELLS]
    moves = np.arange(4)
    assert legal(BOARDS).tolist() == [
        [after != cells for after, _ in each] for cells, each in zip(CELLS, made, strict=True)
    ]
    assert slide(BOARDS[:, None], moves).tolist() == [[packed(after) for after, _ in each] for each in made]
    assert merge_score(BOARDS[:, None], moves).tolist() == [[score for _, score in each] for each in made]
    assert slide(int(BOARDS[7]), 3) == slide(BOARDS, 3)[7]
    assert legal(BOARDS.reshape(4, -1)).shape == (4, len(BOARDS) // 4, 4)


def test_spawns_are_all_of_them_and_those_drawn_are_as_likely() -> None:
    found = spawns(BOARDS)
    for number, cells in enumerate(CELLS):
        empty = reference.empty_cells(cells)
        expected = [(cell, tile) for cell in empty for tile in (2, 4)]
        rows = found.parents == number
        assert [*zip(found.cells[rows].tolist(), found.tiles[rows].tolist(), strict=True)] == expected
        assert found.boards[rows].tolist() == [
            reference.pack([*cells[:cell], tile // 2, *cells[cell + 1 :]]) for cell, tile in expected
        ]
        chances = [(0.1 if tile == 4 else 0.9) / len(empty) for _, tile in expected]
        assert found.probabilities[rows] == pytest.approx(chances)
    for board in (0, 0x1000000000000000, 0x1111111111111101):
        every = spawns(board)
        count = 40_000
        drawn = Counter(spawn(np.full(count, board, np.uint64), rng=np.random.default_rng(5)).tolist())
        assert drawn.keys() == {*every.boards.tolist()}
        likely = every.probabilities * count
        seen = np.array([drawn[each] for each in every.boards.tolist()])
        assert (np.abs(seen - likely) < 5 * np.sqrt(likely)).all()


def test_a_step_is_a_move_and_a_spawn_and_a_game_that_ended_stays() -> None:
    rng = np.random.default_rng(3)
    boards = np.append(BOARDS, np.uint64(FULL))
    cells = [*CELLS, reference.unpack(FULL)]
    moves = np.argmax(legal(boards) * rng.random((len(boards), 4)), axis=1)
    afters = [reference.slide(each, move) for each, move in zip(cells, moves.tolist(), strict=True)]
    free = [(*reference.empty_cells(after), 0)[0] for after, _ in afters]
    given = step(boards, moves, cells=free, tiles=4)
    drawn = step(boards, moves, rng=rng)
    for number, (before, (after, score)) in enumerate(zip(cells, afters, strict=True)):
        won, ends = 16 in after, after == before
        following = list(after)
        following[free[number]] = 2
        expected = 0 if won else reference.pack(before) if ends else reference.pack(following)
        assert int(given.boards[number]) == expected
        assert given.rewards[number] == drawn.rewards[number] == score
        assert given.ended[number] == (won or not reference.legal_moves(before if ends else following))
        if won or ends:
            assert drawn.boards[number] == expected
        else:
            assert drawn.boards[number] in spawns(reference.pack(after)).boards
    again = step(boards, moves, rng=np.random.default_rng(8))
    assert again.boards.tolist() == step(boards, moves, rng=np.random.default_rng(8)).boards.tolist()
    assert step(0xFF00000000000000, 2, rng=rng) == (WON, 65536, True)


@numba.njit
def _best(board: Any) -> Any:
    return max([merge_score(board, move) + (slide(board, move) == board) for move in range(4)])


def test_a_compiled_player_calls_the_same_functions() -> None:
    assert _best(np.uint64(0x1122000000000000)) == 12


ONE = np.array([0x1000000000000000, 0x1200000000000000], np.uint64)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: slide(ONE, [0, 4]), r"moves\[1\] is 4; expected 0 up, 1 down, 2 left or 3 right"),
        (lambda: slide(ONE, [0.5, 1]), "moves have dtype float64; expected integers"),
        (lambda: slide(ONE.astype(float), 0), "boards have dtype float64; expected integers"),
        (
            lambda: step(ONE, [3, 2], 15, 2),
            r"moves\[1\] is 2 left, which changes nothing on the board 0x12000.*; expected 1 down or 3 right",
        ),
        (lambda: step(ONE, 3, [0, 2], 2), r"cells\[1\] is 2, which has a tile on the board 0x0012000"),
        (lambda: spawn(ONE, 16, 2), "cells is 16; expected 0 .top left. to 15"),
        (lambda: spawn(ONE, [1, 2], [2, 3]), r"tiles\[1\] is 3; expected 2 or 4"),
        (
            lambda: spawn([1, FULL], rng=np.random.default_rng(0)),
            r"boards\[1\] is 0x1212.*; expected an empty",
        ),
        (lambda: tiles_to_boards([[2, 6] * 8]), r"tiles\[0, 1\] is 6; expected 0 or a power of 2"),
        (lambda: tiles_to_boards([2] * 15), r"shape \(15,\); expected"),
    ],
)
def test_bad_arguments(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize(
    "spawned", [{}, {"cells": 1}, {"rng": 5}, {"tiles": 2, "rng": np.random.default_rng(0)}]
)
def test_a_spawn_is_given_or_drawn(spawned: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="expected cells and tiles, or rng=numpy"):
        spawn(ONE, **spawned)


def test_boards_are_tiles_and_text() -> None:
    tiles = boards_to_tiles(BOARDS)
    assert tiles.reshape(-1, 16).tolist() == [[2**exp if exp else 0 for exp in cells] for cells in CELLS]
    assert (
        tiles_to_boards(tiles).tolist() == tiles_to_boards(tiles.reshape(-1, 16)).tolist() == BOARDS.tolist()
    )
    assert [parse_board(board_to_text(board)) for board in BOARDS.tolist()] == BOARDS.tolist()
