"""The game loop: its rows are the games, for all slices and buffer sizes."""

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings, strategies as st
from tests import reference
from tests.recorder.choosing import outcomes

from tape2048.game import rules
from tape2048.game.moves import recover
from tape2048.session.layout import ACTION_STEP_DTYPE, STEP_DTYPE
from tape2048_recorder.game import game_loop as loop, rng
from tape2048_recorder.game.game_loop import BUFFER_FULL, GAMES_PLAYED, STEPS_PLAYED, Buffer, play_into
from tape2048_recorder.players import options

ENDLESS = 1 << 40


class Played(NamedTuple):
    """The blocks of a buffer."""

    rows: bytes
    runs: npt.NDArray[np.void]
    blocks: int


def ids_of(games: int, *, first: int = 1000) -> npt.NDArray[np.uint64]:
    return np.arange(first, first + games, dtype=np.uint64)


def seeds_of(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return rng.game_seeds(2048, ids)


@functools.cache
def player(name: str) -> Any:
    return options.make_player(name, {})


def make_buffer(games: int = 0, *, rows: int = 1 << 16, runs: int = 64, **how: Any) -> Buffer:
    """A buffer with so many games to play."""
    buffer = Buffer(rows_max=rows, runs_max=runs, **{"record_action": False, "sample_rate": 1, **how})
    buffer.give(ids_of(games), seeds_of(ids_of(games)))
    return buffer


def play(
    buffer: Buffer, *, games: int, slices: list[int] | None = None, name: str = "random", give: int = 64
) -> Played:
    """Play games the way that a worker does: a block is taken when the buffer is full, and at the end."""
    chosen = player(name)
    ids = ids_of(games)
    given_count = 0
    rows = b""
    runs: list[npt.NDArray[np.void]] = []
    blocks = 0
    budgets = iter(slices or [])

    def take_block() -> None:
        nonlocal rows, blocks
        assert buffer.rows.tobytes() == b"".join(map(bytes, buffer.pieces()))
        block_runs = buffer.runs.copy()
        assert buffer.rows_finished == block_runs["rows"].sum()
        ends = np.cumsum(block_runs["rows"], dtype=np.uint64)
        assert np.array_equal(block_runs["first_row"], ends - block_runs["rows"]), "one after another"
        block_runs["first_row"] += len(rows) // buffer.dtype.itemsize
        data = buffer.rows.tobytes()
        half = len(block_runs) // 2  # a block can be written in two parts
        first = int(block_runs["rows"][:half].sum())
        parts = list(map(bytes, buffer.pieces(first)))
        buffer.drop_block(half)
        assert np.array_equal(buffer.runs["run_id"], block_runs["run_id"][half:])
        assert b"".join([*parts, *map(bytes, buffer.pieces())]) == data
        rows += data
        runs.append(block_runs)
        blocks += 1
        buffer.drop_block()

    while True:
        if not buffer.in_play and not buffer.games_waiting:
            if given_count == games:
                break
            if len(buffer.runs) == buffer.runs_max:
                take_block()
            count = min(give, games - given_count, buffer.runs_max - len(buffer.runs))
            chunk = ids[given_count : given_count + count]
            buffer.give(chunk, seeds_of(chunk))
            given_count += count
        status = play_into(buffer, chosen, steps_max=next(budgets, ENDLESS))
        if status == BUFFER_FULL and len(buffer.runs) == 0:
            buffer.grow()
        elif status == BUFFER_FULL:
            take_block()
    take_block()
    return Played(rows, np.concatenate(runs), blocks)


@functools.cache
def whole(*, games: int, name: str = "random", **how: Any) -> Played:
    """The same games in one go, with room for everything."""
    buffer = make_buffer(runs=games, **how)
    return play(buffer, games=games, name=name, give=games)


def same(one: Played, other: Played) -> bool:
    return one.rows == other.rows and one.runs.tobytes() == other.runs.tobytes()


def test_a_row_is_laid_out_to_the_byte() -> None:
    """And a run sums its game up."""
    games = 12
    played = whole(games=games, record_action=True)
    offset = 0
    for run, run_id, seed in zip(played.runs, ids_of(games), seeds_of(ids_of(games)), strict=True):
        game = reference.play_random(int(seed))
        steps = len(game.moves)
        highest = 2 ** max(game.final)
        assert run.tolist() == (run_id, seed, offset // 29, steps, steps, game.score, highest)
        for step, move in enumerate(game.moves):
            row = int(run_id).to_bytes(8, "little") + step.to_bytes(4, "little")
            row += bytes(move.cells) + bytes([move.move])
            assert played.rows[offset : offset + 29] == row
            offset += 29
    assert offset == len(played.rows)


#: The ways to keep a game: records of all or some boards with or without moves, and on tape.
HOW = [
    {"record_action": record_action, "sample_rate": rate}
    for record_action, rate in itertools.product([False, True], [1, 2, 5, 1000])
] + [{"storage": "tape"}]


@pytest.mark.parametrize("record_action", [False, True])
def test_a_tape_has_moves_and_new_tiles(record_action: bool) -> None:
    games = 40
    played = whole(games=games, record_action=record_action, storage="tape")
    expected = bytearray()
    for seed in seeds_of(ids_of(games)):
        game = reference.play_random(int(seed))
        cells = [*(move.cells for move in game.moves), game.final]
        for move, following in zip(game.moves, cells[1:], strict=True):
            slid, _ = reference.slide(list(move.cells), move.move)
            (cell,) = (cell for cell in range(16) if slid[cell] != following[cell])
            expected.append(move.move | cell << 2 | (following[cell] - 1) << 6)
    assert played.rows == expected
    assert played.runs.tobytes() == whole(games=games).runs.tobytes()


@pytest.mark.parametrize("name", ["greedy", "expectimax"])
def test_a_tape_leads_through_the_boards_of_its_rows(name: str) -> None:
    tape = np.frombuffer(whole(games=2, name=name, storage="tape").rows, np.uint8)
    played = whole(games=2, name=name, record_action=True)
    rows = np.frombuffer(played.rows, ACTION_STEP_DTYPE)
    assert (tape & 3).tolist() == rows["action"].tolist()
    found = outcomes(player(name), seeds_of(ids_of(2)))
    assert found.steps == len(rows) == played.runs["steps"].sum()
    assert played.runs["score"].tolist() == found.scores.tolist()
    assert played.runs["highest_tile"].tolist() == found.highest.tolist()
    for run in played.runs:
        assert rows["exps"][run["first_row"]].tolist() == reference.new_game(int(run["seed"]))[0]
        mine = range(int(run["first_row"]), int(run["first_row"] + run["rows"]))
        for row in mine[:-1]:
            board = rules.exps_to_boards(rows["exps"][row])[()]
            after = rules.boards_to_exps(rules.slide(board, tape[row] & 3))
            assert after[tape[row] >> 2 & 15] == 0
            after[tape[row] >> 2 & 15] = 1 + (tape[row] >> 6)
            assert after.tolist() == rows["exps"][row + 1].tolist()


@given(st.lists(st.integers(0, 300), max_size=60), st.sampled_from(HOW))
@example([0] * 5 + [1] * 400, HOW[0])
@example([1] * 900, {"record_action": True, "sample_rate": 3})
@example([1] * 900, {"storage": "tape"})
@settings(max_examples=60)
def test_any_slices_give_the_same_bytes(slices: list[int], how: dict[str, Any]) -> None:
    expected = whole(games=6, **how)
    buffer = make_buffer(**how)
    assert same(play(buffer, games=6, slices=slices, give=2), expected)
    assert buffer.steps_played == expected.runs["steps"].sum()


@given(
    rows=st.integers(1, 700), runs=st.integers(1, 5), give=st.integers(1, 5),
    slices=st.lists(st.integers(1, 500), max_size=20), how=st.sampled_from(HOW),
)  # fmt: skip
@settings(max_examples=100)
def test_any_buffer_gives_the_same_bytes(
    rows: int, runs: int, give: int, slices: list[int], how: dict[str, Any]
) -> None:
    played = play(make_buffer(rows=rows, runs=runs, **how), games=6, slices=slices, give=give)
    assert same(played, whole(games=6, **how))


@pytest.mark.parametrize("sample_rate", [1, 2, 3, 10, 117, 10_000, 2**32 - 1])
def test_each_nth_row_is_kept(sample_rate: int) -> None:
    every = whole(games=20)
    sampled = whole(games=20, sample_rate=sample_rate)
    rows = np.frombuffer(every.rows, STEP_DTYPE)
    kept = rows[rows["step_idx"] % sample_rate == 0]
    assert sampled.rows == kept.tobytes()
    for field in ("run_id", "seed", "steps", "score", "highest_tile"):
        assert np.array_equal(sampled.runs[field], every.runs[field])
    assert sampled.runs["rows"].tolist() == [-(-int(steps) // sample_rate) for steps in every.runs["steps"]]


@pytest.mark.parametrize("at", [0, 1, 40])
def test_a_game_goes_on_from_a_board_as_it_went_on(at: int) -> None:
    """Legal moves to the end, as far as an unrecorded game comes, whatever was in the buffer."""
    buffer = make_buffer(1, record_action=True, runs=1)
    play_into(buffer, player("greedy"), steps_max=ENDLESS)
    board = buffer.boards_and_moves()[0][at]
    for steps_max in (7, ENDLESS):
        buffer.begin_at(int(board), 2**64 - 1)
        while play_into(buffer, player("greedy"), steps_max=steps_max) == STEPS_PLAYED:
            pass
        boards, moves = buffer.boards_and_moves()
        assert boards[0] == board
        assert len(boards) == len(moves) + 1 > 1
        assert not (recover(boards, moves).moves > 3).any()
        assert not rules.legal_masks(boards[-1:])[0]
        scores, highest, steps = outcomes(player("greedy"), np.array([2**64 - 1], np.uint64), boards[:1])
        assert (steps, highest[0]) == (len(moves), 2 ** rules.boards_to_exps(boards[-1:]).max())
        points = [rules.merge_score(*each) for each in zip(boards[:-1], moves, strict=True)]
        assert scores[0] == sum(points)


@pytest.mark.parametrize("begun", [0, 5, 130, 10_000])
def test_games_that_have_not_begun_can_be_taken_back(begun: int) -> None:
    buffer = make_buffer(3)
    play_into(buffer, player("random"), steps_max=begun)
    started = len(buffer.runs) + buffer.in_play
    buffer.forget_waiting()
    assert buffer.games_waiting == 0
    assert play_into(buffer, player("random"), steps_max=ENDLESS) == GAMES_PLAYED
    assert len(buffer.runs) == started
    assert buffer.rows.tobytes() == whole(games=3).rows[: buffer.runs["rows"].sum() * 28]
    more = ids_of(3)[started:]
    buffer.give(more, seeds_of(more))
    play_into(buffer, player("random"), steps_max=ENDLESS)
    assert buffer.rows.tobytes() == whole(games=3).rows


def test_as_many_ids_as_seeds() -> None:
    buffer = make_buffer()
    with pytest.raises(ValueError, match="2 ids and 3 seeds"):
        buffer.give(ids_of(2), seeds_of(ids_of(3)))


def test_more_games_than_runs_fit_are_refused() -> None:
    buffer, ids = make_buffer(4, runs=3), ids_of(4)
    with pytest.raises(ValueError, match="found 4 waiting games, expected at most 3"):
        play_into(buffer, player("random"), steps_max=1)
    buffer = make_buffer(3, runs=3)
    assert play_into(buffer, player("random"), steps_max=ENDLESS) == GAMES_PLAYED
    buffer.give(ids[3:], seeds_of(ids[3:]))
    with pytest.raises(ValueError, match="found 1 waiting games, expected at most 0"):
        play_into(buffer, player("random"), steps_max=1)
    buffer.drop_block()
    assert play_into(buffer, player("random"), steps_max=ENDLESS) == GAMES_PLAYED


def test_a_game_with_the_highest_tiles_is_scored() -> None:
    """Two 32768 apart, and a score past what 16 bits hold; set up by hand, few games get here."""
    cells = [15, 14, 15, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]  # lost
    assert reference.legal_moves(cells) == []
    buffer = make_buffer(1)
    play_into(buffer, player("random"), steps_max=1)
    buffer._game[loop._BOARD] = reference.pack(cells)
    buffer._game[loop._FOURS] = 1000
    assert play_into(buffer, player("random"), steps_max=ENDLESS) == GAMES_PLAYED
    assert buffer.runs["score"].tolist() == [reference.board_score(cells) - 4000]
    assert buffer.runs["highest_tile"].tolist() == [32768]
    assert buffer.runs["steps"].tolist() == [1]


#: Left and right merge the 32768s; up and down are illegal.
BEFORE_A_WIN = [15, 15, 14, 13, 1, 2, 3, 4, 2, 1, 4, 3, 1, 2, 1, 2]


@pytest.mark.parametrize("name", ["random", "greedy", "expectimax", "ntuple"])
def test_a_65536_ends_a_game(name: str) -> None:
    board, second = reference.pack(BEFORE_A_WIN), seeds_of(ids_of(2))
    for storage in ("rows", "tape"):
        buffer = make_buffer(rows=1 << 18, record_action=True, storage=storage)
        buffer.begin_at(board, 1)
        assert play_into(buffer, player(name), steps_max=1) in {GAMES_PLAYED, STEPS_PLAYED}
        states, moves = buffer.boards_and_moves()
        if storage == "rows":
            assert (states.tolist(), moves.tolist()[0] in {2, 3}) == ([board, 0], True)
        else:
            assert buffer.rows.tolist()[0] in {0x82, 0x83}
        (run,) = buffer.runs
        assert [run[field] for field in ("steps", "rows", "score", "highest_tile")] == [
            1,
            1,
            65536,
            65536,
        ]
    buffer.give(ids_of(1), second[:1])
    play_into(buffer, player("random"), steps_max=ENDLESS)
    assert buffer.runs["highest_tile"][1] < 4096, "the next game begins anew"
    scores, highest = np.zeros(2, np.uint64), np.zeros(2, np.uint8)
    starts = np.full(2, board, np.uint64)
    assert loop.play_unrecorded(player(name), starts, second, scores, highest) == 2
    assert (scores.tolist(), highest.tolist()) == ([65536] * 2, [16] * 2)
