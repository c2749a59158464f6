"""The compiled rules against the slow reference: every row, boards of every kind, the symmetries."""

import random

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from tests import reference

from tape2048.game import rules

MOVES = range(4)
CORNERED = [15, 15, 15, 15, 15, 14, 15, 15, 15, 15, 15, 0, 15, 15, 15, 15]


def fills() -> st.SearchStrategy[list[int]]:
    """Boards of every fill level; few kinds of tiles make many merges, and 15 has a rule of its own."""
    any_tile = st.integers(0, 15)
    alphabets = st.lists(any_tile, min_size=1, max_size=3).flatmap(lambda few: st.sampled_from([*few, 15]))
    full = st.integers(1, 15)
    sparse = st.sampled_from([0, 0, 0, 1, 2, 15])
    return st.one_of(
        *(st.lists(tile, min_size=16, max_size=16) for tile in (any_tile, alphabets, full, sparse))
    )


def random_boards(count: int) -> list[list[int]]:
    """Boards with 0 to 16 tiles in turn, of few kinds or many."""
    rng = random.Random(2048)
    boards = []
    for i in range(count):
        kinds = rng.choices(range(1, 16), k=rng.choice([1, 2, 3, 15])) + [15] * rng.choice([0, 0, 3])
        tiles = rng.choices(kinds, k=i % 17)
        cells = tiles + [0] * (16 - len(tiles))
        rng.shuffle(cells)
        boards.append(cells)
    return boards


def u64(cells: list[int]) -> np.uint64:
    return np.uint64(reference.pack(cells))


def image(board: np.uint64, k: int) -> np.uint64:
    return np.uint64(rules.symmetry(board, k))


def check_rules(cells: list[int]) -> None:
    board = u64(cells)
    legal = 0
    for move in MOVES:
        after, score = reference.slide(cells, move)
        assert int(rules.slide(board, move)) == reference.pack([min(tile, 15) for tile in after]), move
        assert rules.wins(board, move) == (16 in after), move
        assert rules.exps_after(reference.pack(cells), move).tolist() == after
        assert int(rules.merge_score(board, move)) == score, move
        legal |= (after != cells) << move
    assert int(rules.legal_mask(board)) == legal
    assert int(rules.legal_masks(board)) == legal


@given(fills())
@example([0] * 16)
@example([15] * 16)
@example(CORNERED)
def test_moves_legality_and_score_of_any_board(cells: list[int]) -> None:
    check_rules(cells)


@pytest.mark.slow
def test_moves_legality_and_score_of_many_boards() -> None:
    for cells in random_boards(17 * 300):
        check_rules(cells)


@pytest.mark.slow
def test_every_row_in_every_direction() -> None:
    lines = [[row >> 12, row >> 8 & 15, row >> 4 & 15, row & 15] for row in range(1 << 16)]
    to_left = [(np.minimum(after, 15).tolist(), score) for after, score in map(reference.slide_line, lines)]
    to_right = [
        (np.minimum(after, 15).tolist(), score)
        for after, score in (reference.slide_line(line[::-1]) for line in lines)
    ]
    # Four rows to a board, so that each board holds four different ones; the same boards on their side
    # take the rows through the columns.
    for first in range(0, 1 << 16, 4):
        four = range(first, first + 4)
        board = u64([cell for row in four for cell in lines[row]])
        columns = u64([lines[row][i] for i in range(4) for row in four])
        score = sum(to_left[row][1] for row in four)
        assert score == sum(to_right[row][1] for row in four)
        for horizontal, vertical, moved in (
            (reference.LEFT, reference.UP, [to_left[row][0] for row in four]),
            (reference.RIGHT, reference.DOWN, [to_right[row][0][::-1] for row in four]),
        ):
            rows_after = u64([cell for line in moved for cell in line])
            columns_after = u64([line[i] for i in range(4) for line in moved])
            assert rules.slide(board, horizontal) == rows_after
            assert rules.slide(columns, vertical) == columns_after
            assert int(rules.merge_score(board, horizontal)) == score
            assert int(rules.merge_score(columns, vertical)) == score
            legal = int(rules.legal_mask(board)) >> horizontal & 1
            assert legal == int(rules.legal_mask(columns)) >> vertical & 1 == (rows_after != board)


def test_two_32768_merge() -> None:
    pair = [15, 15] + [0] * 14
    assert rules.exps_after(reference.pack(pair), rules.RIGHT).tolist() == [0, 0, 0, 16] + [0] * 12
    assert int(rules.merge_score(u64(pair), rules.RIGHT)) == 65536
    assert int(rules.final_exponent(rules.WON)) == 16
    assert int(rules.legal_mask(rules.WON)) == 0


def test_moves_of_rules_1_leave_them_apart() -> None:
    for row, slid in enumerate(rules.SLIDE_APART[: 1 << 16].tolist()):
        line = [row >> shift & 15 for shift in (12, 8, 4, 0)]
        assert slid == reference.pack(reference.slide_line(line, 15)[0]) >> 48


def test_two_16384_still_merge() -> None:
    row = [14, 14, 15, 14] + [0] * 12
    assert int(rules.slide(u64(row), rules.LEFT)) == reference.pack([15, 15, 14, 0] + [0] * 12)
    assert int(rules.merge_score(u64(row), rules.LEFT)) == 32768


@given(fills())
@example([0] * 16)
@example([15] * 16)
def test_what_is_counted_on_a_board(cells: list[int]) -> None:
    board = u64(cells)
    assert int(rules.count_empty(board)) == len(reference.empty_cells(cells))
    assert int(rules.empty_mask(board)) == reference.pack([int(cell == 0) for cell in cells])
    assert int(rules.max_exponent(board)) == max(cells)
    assert int(rules.final_exponent(board)) == (max(cells) or 16)  # the empty board is WON
    assert int(rules.board_score(board)) == reference.board_score(cells)
    assert int(rules.transpose(board)) == reference.pack(
        [cells[4 * i + j] for j in range(4) for i in range(4)]
    )


@given(st.integers(0, 2**64 - 1))
def test_score_and_board_score(seed: int) -> None:
    game = reference.play_random(seed)
    assert game.score == int(rules.board_score(u64(game.final))) - 4 * game.fours


CELLS = list(range(16))


def test_the_eight_symmetries_are_the_squares() -> None:
    images = [reference.unpack(int(rules.symmetry(u64(CELLS), k))) for k in range(8)]
    assert images[0] == CELLS
    assert sorted(images) == sorted(reference.symmetries(CELLS))
    assert len({tuple(image) for image in images}) == 8


@given(fills())
@example([0] * 6 + [1] + [0] * 9)
def test_a_move_on_the_image_is_the_image_of_the_move(cells: list[int]) -> None:
    board = u64(cells)
    for k in range(8):
        for move in MOVES:
            mirrored = int(rules.SYMMETRY_MOVES[k, move])
            assert rules.slide(image(board, k), mirrored) == image(np.uint64(rules.slide(board, move)), k)


@given(fills(), st.integers(0, 7))
def test_symmetry_of_cell_numbers(cells: list[int], k: int) -> None:
    order = reference.unpack(int(rules.symmetry(u64(CELLS), k)))
    assert reference.unpack(int(rules.symmetry(u64(cells), k))) == [cells[cell] for cell in order]


@given(st.lists(fills(), max_size=5))
def test_boards_and_exponents_are_the_same(boards: list[list[int]]) -> None:
    exps = np.array(boards, dtype=np.uint8).reshape(-1, 16)
    packed = rules.exps_to_boards(exps)
    assert packed.dtype == np.uint64
    assert packed.tolist() == [reference.pack(cells) for cells in boards]
    back = rules.boards_to_exps(packed)
    assert back.dtype == np.uint8
    assert back.tolist() == boards
    masks = rules.legal_masks(packed)
    assert masks.dtype == np.uint8
    assert masks.tolist() == [sum(1 << move for move in reference.legal_moves(cells)) for cells in boards]


NO_BOARDS_IN_LISTS = [[1.5], 2**64, [5, -(2**63) - 1], ["5"], [[1, 2], [3]]]
NO_BOARDS_IN_ARRAYS = [np.float64(1), np.ones(2), np.array(["5"]), np.zeros(3, dtype=bool)]


@pytest.mark.parametrize("function", [rules.boards_to_exps, rules.legal_masks])
@pytest.mark.parametrize("boards", NO_BOARDS_IN_LISTS + NO_BOARDS_IN_ARRAYS)
def test_boards_that_cannot_be_are_refused(function: object, boards: object) -> None:
    with pytest.raises(ValueError, match="expected integers"):
        function(boards)  # type: ignore[operator]


def test_lists_hold_boards_of_all_64_bits() -> None:
    """NumPy makes floats of such a list, which hold 53."""
    boards = [2**64 - 1, 1, -1, np.uint64(2**63 + 1)]
    packed = [2**64 - 1, 1, 2**64 - 1, 2**63 + 1]
    assert rules.exps_to_boards(rules.boards_to_exps(boards)).tolist() == packed
    assert rules.boards_to_exps([boards, boards]).shape == (2, 4, 16)


def test_boards_of_signed_integers_are_their_bits() -> None:
    signed = np.array([-1, -(2**63), 5], dtype=np.int64)  # as SQLite gives them back
    assert rules.exps_to_boards(rules.boards_to_exps(signed)).tolist() == [2**64 - 1, 2**63, 5]


@pytest.mark.parametrize(
    ("exps", "said"),
    [
        ([0] * 15, "shape"),
        ([[0] * 17], "shape"),
        (3, "shape"),
        (np.zeros((16, 2), dtype=np.uint8), "shape"),
        ([0] * 15 + [16], "from 0 to 16"),
        ([0] * 15 + [-1], "from -1 to 0"),
        ([0] * 15 + [256], "from 0 to 256"),
        ([0.5] * 16, "float64"),
        ([float("nan")] * 16, "float64"),
        (["1"] * 16, "<U1"),
    ],
)
def test_exponents_that_cannot_be_are_refused(exps: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rules.exps_to_boards(exps)  # type: ignore[arg-type]
