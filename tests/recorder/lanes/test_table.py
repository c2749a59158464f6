"""Games in lockstep: the same on any number of lanes."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests import reference
from tests.sdk.tapes import WON_SEED, as_rows, games_on_tape

from tape2048.errors import BookkeepingError, PlayerError
from tape2048.game.rules import exps_to_boards
from tape2048.session.layout import step_dtype
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.lanes import kernels
from tape2048_recorder.lanes.lane_table import Finished
from tape2048_recorder.players.ntuple import move_values
from tape2048_recorder.players.options import make_player

from .batched import Overlapping, failing, hashed, lowest, overlapping
from .tables import SEED, Games, Kept, make_table, play, play_out


@functools.cache
def reference_games(count: int, *, record_action: bool, sample_rate: int, storage: str) -> dict[int, Kept]:
    """The games of the lowest legal move, by the reference of the rules."""
    dtype = np.dtype("u1") if storage == "tape" else step_dtype(record_action=record_action)
    found = {}
    for number, seed in enumerate(game_seeds(SEED, np.arange(count, dtype=np.uint64)).tolist()):
        cells, _, generator = reference.new_game(seed)
        rows: list[Any] = []
        score = 0
        while legal := reference.legal_moves(cells):
            after, gained = reference.slide(cells, legal[0])
            following, four = reference.spawn(after, generator)
            (cell,) = (each for each in range(16) if after[each] != following[each])
            facts = (number, len(rows), cells, legal[0])[: 4 if record_action else 3]
            rows.append(legal[0] | cell << 2 | four << 6 if storage == "tape" else facts)
            cells, score = following, score + gained
        kept = np.array(rows, dtype)[::sample_rate]
        found[number] = Kept(seed, len(rows), score, 2 ** max(cells), kept.tobytes())
    return found


@pytest.mark.parametrize(
    ("record_action", "sample_rate", "storage"),
    [(False, 1, "rows"), (True, 1, "rows"), (True, 7, "rows"), (True, 1, "tape")],
)
@pytest.mark.parametrize("lanes", [1, 101])
def test_lanes_play_the_games_of_the_reference(
    lanes: int, record_action: bool, sample_rate: int, storage: str
) -> None:
    how = {"record_action": record_action, "sample_rate": sample_rate, "storage": storage}
    assert play(lowest(), 80, lanes=lanes, **how) == reference_games(80, **how)


@pytest.mark.parametrize("player", [lowest, hashed, overlapping])
def test_lanes_change_no_game(player: type) -> None:
    alone = play(player(), 40, lanes=1)
    for lanes in (3, 4096):
        made = player()
        assert play(made, 40, lanes=lanes) == alone
        if isinstance(made, Overlapping):
            assert made.most == (2 if lanes < 80 else 1), "one half holds all games"
            assert not made.under_way


@settings(max_examples=15, deadline=None)
@given(
    lanes=st.integers(1, 40), count=st.integers(1, 60), rows_max=st.integers(1, 600),
    runs_max=st.integers(1, 9), storage=st.sampled_from(["rows", "tape"]),
)  # fmt: skip
def test_small_blocks_change_no_game(
    lanes: int, count: int, rows_max: int, runs_max: int, storage: str
) -> None:
    expected = reference_games(60, record_action=True, sample_rate=1, storage=storage)
    found = play(lowest(), count, lanes=lanes, rows_max=rows_max, runs_max=runs_max, storage=storage)
    assert found == {key: expected[key] for key in range(count)}


def test_long_games_free_their_chunks() -> None:
    network = make_player("ntuple", {"weights": "fast", "look": 0})
    games = Games(6)
    table = make_table(lambda boards, *_: move_values(network, boards), games, lanes=3, rows_max=64)
    play_out(table)
    games.flush(table)
    assert max(kept.steps for kept in games.kept.values()) > 2 * kernels.CHUNK_STEPS
    assert len(table._log.links) > 6, "the log never grew"
    assert sorted(table._log.free.tolist()) == list(range(int(table._log.counts[0]))), "a chunk was lost"
    for kept in games.kept.values():
        rows = np.frombuffer(kept.rows, dtype=step_dtype(record_action=True))
        boards = exps_to_boards(rows["exps"])
        best = np.nan_to_num(move_values(network, boards), nan=-np.inf).argmax(axis=1)
        assert np.array_equal(rows["action"], best), "a row is not of the board that the player saw"


def test_a_log_that_leads_elsewhere_is_found() -> None:
    games = Games(4)
    table = make_table(lowest(), games, lanes=2)
    table.tick()
    table._log.steps[:] ^= 0b111100  # other cells than the tiles went to
    with pytest.raises(BookkeepingError):
        play_out(table)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("raise", PlayerError, ["ZeroDivisionError: no more", "python:here:player", "0x"]),
        ("nan", PlayerError, ["python:here:player", "board 3 of 4", "0x", "nan"]),
        ("illegal", PlayerError, ["python:here:player", "board 3 of 4", "0x", "found move 4"]),
        ("shape", PlayerError, ["uint8[5]", "expected moves uint8[4]", "0x"]),
        ("dtype", PlayerError, ["int64[4]", "float32[4, 4]", "0x"]),
    ],
)
def test_a_bad_answer_costs_no_finished_game(how: str, error: type[Exception], says: list[str]) -> None:
    good = play(lowest(), 200, lanes=8)
    games = Games(200)
    table = make_table(failing(after=9_000, how=how), games, lanes=8)
    with pytest.raises(error) as caught:
        play_out(table)
    for text in says:
        assert text in str(caught.value)
    games.flush(table)
    assert 50 < len(games.kept) < 200
    assert games.kept == {key: good[key] for key in games.kept}, "a row of a bad answer was kept"


def test_a_player_cannot_change_the_boards() -> None:
    def meddling(boards: np.ndarray, legal: np.ndarray, _exps: np.ndarray) -> np.ndarray:
        boards[0] = 0
        return legal

    with pytest.raises(PlayerError, match="read-only"):
        play(meddling, 1)


def test_moves_where_sampling_needs_scores_are_refused() -> None:
    with pytest.raises(PlayerError, match="expected scores"):
        play(lowest(), 1, method="softmax")


def test_a_retired_table_gives_back_waiting_games() -> None:
    games = Games(1_000)
    table = make_table(lowest(), games, lanes=8)
    for _ in range(60):
        table.tick()
    ids, seeds, _ = table.retire()
    in_play, given = table.playing, games.given
    assert in_play == 8
    play_out(table)
    games.flush(table)
    assert games.given == given, "it asked for more"
    assert sorted([*games.kept, *ids.tolist()]) == list(range(given))
    assert seeds.tolist() == game_seeds(SEED, ids).tolist()


@pytest.mark.parametrize("storage", ["tape", "rows"])
def test_a_65536_ends_a_game(storage: str) -> None:
    """The lane stands before the last move of a game, and has the log of the others."""
    games = games_on_tape(WON_SEED)
    steps = len(games.tape) - 1
    lanes, log = kernels.new_lanes(1), kernels.new_log(20)
    finished = Finished(rows_max=1 << 15, runs_max=4, record_action=True, sample_rate=1, storage=storage)
    zeros = np.zeros((2, 1), np.uint64)
    waiting = kernels.Waiting(np.full(1, 3, np.uint64), games.runs["seed"], *zeros)
    assert kernels.fill_free(lanes, waiting) == 1
    assert lanes.boards[0] == games.starts[0]
    used = -(-steps // kernels.CHUNK_STEPS)
    log.counts[0] -= used
    log.links[:used] = np.arange(1, used + 1)
    log.steps[:steps] = games.tape[:-1]
    lanes.tails[0], lanes.steps[0], lanes.boards[0] = used - 1, steps, games.boards[-1]
    assert kernels.advance(lanes, games.moves[-1:], log) == 1
    row_bytes = np.uint64(finished.dtype.itemsize)
    assert kernels.settle(lanes, log, finished.arrays, waiting, row_bytes, 1) == kernels.LANES_FREE
    names = ["seed", "rows", "steps", "score", "highest_tile"]
    assert finished.runs[names].tolist() == games.runs[names].tolist()
    due = games.tape if storage == "tape" else as_rows(games)
    if storage == "rows":
        due["run_id"] = 3
    assert finished.rows[: len(due)].tobytes() == due.tobytes()
