from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numba import njit
from tests import reference as ref

from tape2048.errors import BookkeepingError, FieldError
from tape2048.game.spawning import start_faults
from tape2048.session import tape_codec as codec
from tape2048.session.layout import RUN_DTYPE
from tape2048.session.tape_codec import decode, step_checked, step_forward
from tape2048.session.tape_layout import GAME_STEPS_MAX
from tape2048.session.tape_reader import anchors_of, check_games, check_runs, check_two_tiles, game_pieces
from tape2048.session.tape_writer import encode

from ..tapes import TapeGames, games_on_tape

FILL = np.uint64(0xDEAD)


@njit
def _one_step(board: Any, byte: Any) -> Any:
    after, wrong = step_checked(board, byte)
    return step_forward(board, byte), after, wrong


def one_step(board: int, byte: int) -> Any:
    """The board after a step, unchecked and checked, and the mark of a wrong step."""
    return _one_step(np.uint64(board), np.uint64(byte))


def decoded(games: TapeGames, *, lead: int = 0) -> tuple[Any, Any, Any]:
    """Boards, finals and marks of games that begin ``lead`` bytes into a longer array."""
    tape = np.concatenate([np.full(lead, 255, np.uint8), games.tape, np.full(3, 255, np.uint8)])
    boards, finals = np.full(len(tape), FILL), np.full(len(games.runs), FILL)
    wrong = np.full(len(games.runs), 9, np.uint8)
    first = games.runs["first_row"].astype(np.int64) + lead
    decode(tape, first, games.runs["rows"].astype(np.int64), games.starts, boards, finals, wrong)
    return boards, finals, wrong


class TestStep:
    @given(st.lists(st.sampled_from([0, 0, 1, 2, 3, 14, 15]), min_size=16, max_size=16), st.integers(0, 255))
    def test_a_step_is_that_of_the_rules(self, cells: list[int], byte: int) -> None:
        after, _ = ref.slide(cells, byte & 3, 15)
        cell = byte >> 2 & 15
        allowed = after != cells and after[cell] == 0 and byte < 128
        plain, checked, wrong = one_step(ref.pack(cells), byte)
        assert (wrong == 0) == allowed
        assert plain == checked
        if allowed:
            after[cell] = 2 if byte & 64 else 1
            assert plain == ref.pack(after)

    def test_a_step_without_bit_7_leaves_32768s_apart(self) -> None:
        board = ref.pack([15, 15, 1] + [0] * 13)
        assert one_step(board, 2 | 15 << 2)[2] != 0  # left changes nothing
        assert one_step(board, 3)[0] == ref.pack([1, 15, 15, 1] + [0] * 12)


@given(st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_both_forms_of_a_move_are_the_rules(board: int, byte: int) -> None:
    """Whatever the board: wrong bytes may lead to any."""
    due = ref.pack(ref.slide(ref.unpack(board), byte & 3, 15)[0])
    assert _both_forms(np.uint64(board), np.uint64(byte)) == (due, due)


@njit
def _both_forms(board: Any, byte: Any) -> Any:
    return codec._slid(board, byte), codec.slid_by_turning(board, byte)


class TestDecode:
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 9, 23])
    def test_games_are_those_of_the_reference(self, count: int) -> None:
        games = games_on_tape(*range(count))
        boards, finals, wrong = decoded(games, lead=5)
        assert (boards[5:-3] == games.boards).all()
        assert (boards[:5] == FILL).all()
        assert (boards[-3:] == FILL).all()
        assert (finals == games.finals).all()
        assert not wrong.any()

    @given(st.data())
    def test_any_stretches_in_any_order(self, data: st.DataObject) -> None:
        games = games_on_tape(1, 2, 3)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(games.tape)), max_size=12)))
        edges = np.unique([0, *cuts, *games.runs["first_row"].tolist(), len(games.tape)])
        order = data.draw(st.permutations(range(len(edges) - 1)))
        first, steps = edges[:-1][order], np.diff(edges)[order]
        boards, finals = np.empty(len(games.tape), np.uint64), np.empty(len(first), np.uint64)
        wrong = np.empty(len(first), np.uint8)
        decode(games.tape, first, steps, games.boards[first], boards, finals, wrong)
        assert (boards == games.boards).all()
        assert not wrong.any()

    def test_stretches_without_steps_keep_their_board(self) -> None:
        games = games_on_tape(1)
        first, steps = np.array([0, 4, 4, 4, 4, 4]), np.array([0, 0, 3, 0, 0, 0])
        boards, finals, wrong = games.boards.copy(), np.zeros(6, np.uint64), np.ones(6, np.uint8)
        decode(games.tape, first, steps, games.boards[first], boards, finals, wrong)
        assert finals.tolist() == games.boards[[0, 4, 7, 4, 4, 4]].tolist()
        assert not wrong.any()

    @given(st.binary(min_size=1, max_size=300), st.integers(0, 2**64 - 1))
    def test_any_bytes_stay_within_the_arrays(self, content: bytes, start: int) -> None:
        tape = np.frombuffer(content, np.uint8)
        boards, finals, wrong = np.zeros(len(tape), np.uint64), np.zeros(1, np.uint64), np.zeros(1, np.uint8)
        decode(
            tape, np.array([0]), np.array([len(tape)]), np.array([start], np.uint64), boards, finals, wrong
        )
        for board, byte in zip(boards.tolist(), content, strict=True):
            after, cell = ref.slide(ref.unpack(board), byte & 3, 15)[0], byte >> 2 & 15
            if byte > 127 or after[cell] or after == ref.unpack(board):
                assert wrong[0]
                return
        assert not wrong[0]


class TestEncode:
    def test_boards_and_moves_give_the_tape(self) -> None:
        games = games_on_tape(*range(9))
        tape = np.zeros_like(games.tape)
        first, steps = games.runs["first_row"].astype(np.int64), games.runs["rows"].astype(np.int64)
        assert encode(games.boards, games.moves, first, steps, games.finals, tape) == -1
        assert (tape == games.tape).all()

    def test_a_step_that_nothing_explains_is_found(self) -> None:
        games = games_on_tape(3, 4)
        first, steps = games.runs["first_row"].astype(np.int64), games.runs["rows"].astype(np.int64)
        at = int(first[1]) + 2
        for move in {0, 1, 2, 3, 4, 7, 255} - {int(games.moves[at])}:
            moves = games.moves.copy()
            moves[at] = move
            assert encode(games.boards, moves, first, steps, games.finals, np.zeros_like(games.tape)) == at

    @pytest.mark.parametrize("change", [1 << 60, 3 << 60, 1 << 30])
    def test_a_board_that_does_not_follow_is_found(self, change: int) -> None:
        games = games_on_tape(3)
        boards = games.boards.copy()
        boards[5] ^= np.uint64(change)
        bad = encode(
            boards, games.moves, np.array([0]), np.array([len(boards)]), games.finals, games.tape.copy()
        )
        assert bad in {4, 5}


class TestCheckGames:
    def test_sound_games_have_no_defects(self) -> None:
        games = games_on_tape(*range(30))
        checked = check_games(games.tape, games.runs, games.starts)
        assert checked.defects == []
        assert (checked.boards == games.boards).all()
        assert (checked.finals == games.finals).all()

    def test_a_piece_of_a_longer_tape(self) -> None:
        games = games_on_tape(*range(5))
        begin = int(games.runs["first_row"][2])
        scratch = np.zeros(len(games.tape), np.uint64)
        checked = check_games(games.tape[begin:], games.runs[2:], games.starts[2:], scratch)
        assert checked.defects == []
        anchors = anchors_of(checked.boards, begin)
        assert (anchors == games.boards[-(-begin // 16) * 16 :: 16]).all()

    def test_games_that_do_not_tile_the_bytes_are_refused(self) -> None:
        games = games_on_tape(1, 2)
        for tape in (games.tape[:-1], np.append(games.tape, np.uint8(0))):
            with pytest.raises(ValueError, match="do not cover"):
                check_games(tape, games.runs, games.starts)

    @pytest.mark.parametrize("name", ["score", "highest_tile", "steps"])
    def test_numbers_of_the_run_table_are_compared(self, name: str) -> None:
        games = games_on_tape(*range(6))
        runs = games.runs.copy()
        runs[name][[2, 4]] += 1
        (defect,) = check_games(games.tape, runs, games.starts).defects
        assert (defect.game, defect.games, defect.kind) == (2, 2, BookkeepingError)
        value = games.runs[name][2]
        assert defect.text == f"{name} is {value}. The run table says {value + 1}"
        assert "2 runs like it" not in defect.text
        assert "(2 runs like it)" in str(defect.error(runs[2], "t"))


def test_runs_that_no_game_can_be() -> None:
    runs = games_on_tape(1, 2).runs
    check_runs(runs, "m")
    for rows, steps in ((9, 8), (0, 0), (GAME_STEPS_MAX + 1, GAME_STEPS_MAX + 1)):
        runs["rows"][1], runs["steps"][1] = rows, steps
        with pytest.raises(BookkeepingError, match="run 8"):
            check_runs(runs, "m")


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_pieces_are_whole_games_of_bounded_length(counts: list[int], rows_max: int) -> None:
    runs = np.zeros(len(counts), RUN_DTYPE)
    runs["rows"] = counts
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    game = row = 0
    for games, rows in game_pieces(runs, rows_max):
        assert (games.start, rows.start) == (game, row)
        assert rows.stop - rows.start == sum(counts[games])
        assert rows.stop - rows.start <= rows_max or games.stop == games.start + 1
        assert games.stop == len(counts) or sum(counts[games.start : games.stop + 1]) > rows_max
        game, row = games.stop, rows.stop
    assert (game, row) == (len(counts), sum(counts))


@given(st.lists(st.integers(0, 3) | st.integers(0, 15), min_size=16, max_size=16), st.integers(0, 16))
def test_start_checks_agree_with_the_kernel(cells: list[int], empty: int) -> None:
    board = ref.pack([0] * empty + cells[empty:])
    runs = games_on_tape(1).runs
    tiles = sorted(cells[empty:])[-3:]
    is_start = len([tile for tile in cells[empty:] if tile]) == 2 and max(tiles) < 3
    boards = np.array([board], np.uint64)
    (defect,) = check_games(games_on_tape(1).tape, runs, boards).defects or (None,)
    assert (defect is None or "start_board" not in defect.text) == (start_faults(boards)[0] == 0)
    if is_start:
        assert not start_faults(boards)[0]
        check_two_tiles(runs, boards, "m")
    else:
        with pytest.raises(FieldError, match="run 7, step 0: start_board"):
            check_two_tiles(runs, boards, "m")
