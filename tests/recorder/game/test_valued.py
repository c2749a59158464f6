"""Recorded values and losses: those of each row's board, whatever the buffer; and they change no game."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference
from tests.mutants import Mutant, planted
from tests.recorder.ntuple_training import slow
from tests.recorder.players.test_players import afterstate_value

from tape2048.game.rules import exps_to_boards
from tape2048.ntuple.calibration import PHASES, VALUES
from tape2048.ntuple.network import save_network
from tape2048.ntuple.outcomes import outcomes
from tape2048_recorder.game import rng
from tape2048_recorder.game.game_loop import BUFFER_FULL, Buffer, play_into
from tape2048_recorder.players import options
from tape2048_recorder.players.ntuple import mix_choices, move_values, of_network
from tape2048_recorder.replay.judging import Judge, downgrade_boards

NETWORK = slow.random_network(*slow.FAST, dtype=np.int16, spread=500)
GAMES = 6

#: Players of all depths, that leave moves out, draw them, and choose on smaller boards.
NTUPLES: dict[str, dict[str, Any]] = {
    "1-ply": {},
    "2-ply": {"look": 16},
    "2-ply, few moves": {"look": 5, "look_margin": 20.0},
    "3-ply": {"look": "16/3", "look_margin": 100.0},
    "random": {"look": 4, "epsilon": 0.3},
    "soft": {"look": 4, "temperature": 50.0},
    "mixed": {"mix": "0:1+16:1"},
    "downgraded": {"look": 8, "downgrade": 64},
}


@functools.cache
def player(name: str) -> Any:
    if name.startswith("expectimax"):
        return options.make_player("expectimax", {"depth": int(name[-1])})
    return of_network(NETWORK, **NTUPLES[name])


def play(name: str, columns: tuple[str, ...] = ("values", "loss"), **how: Any) -> dict[str, Any]:
    """Play games in slices and blocks; returns the rows, runs and columns, one block after another."""
    how = {"rows_max": 64, "record_action": True, "sample_rate": 1, **how}
    buffer = Buffer(runs_max=GAMES, columns=columns, **how)
    ids = np.arange(GAMES, dtype=np.uint64)
    buffer.give(ids, rng.game_seeds(7, ids))
    found: dict[str, list[Any]] = {name: [] for name in ("rows", "runs", *columns)}
    while True:
        status = play_into(buffer, player(name), steps_max=100)
        if status == BUFFER_FULL and not len(buffer.runs):
            buffer.grow()
        elif len(buffer.runs) or not (buffer.games_waiting or buffer.in_play):
            parts = buffer.rows, buffer.runs, *(values for _, values in buffer.columns)
            for part, kept in zip(parts, found.values(), strict=True):
                kept.append(part.copy())
            buffer.drop_block()
            if not buffer.games_waiting and not buffer.in_play:
                return {name: np.concatenate(kept) for name, kept in found.items()}


def expected_values(name: str, played: dict[str, Any]) -> npt.NDArray[np.float32]:
    """The values of each row's moves: of its board alone, by the player's public or slow definition."""
    boards = exps_to_boards(played["rows"]["exps"])
    if name.startswith("expectimax"):
        found = np.full((len(boards), 4), np.nan, np.float32)
        for row, cells in enumerate(played["rows"]["exps"].tolist()):
            for move in reference.legal_moves(cells) if row % 97 == 0 else ():
                after = reference.seen_slide(cells, move)[0]
                found[row, move] = afterstate_value(tuple(after), int(name[-1]))
        return found
    if name == "downgraded":
        downgrade_boards(boards, np.uint64(6))
    if name != "mixed":
        return move_values(player(name), boards)
    looks = mix_choices(player(name), played["runs"]["seed"]).repeat(played["runs"]["rows"])
    assert {*looks.tolist()} == {0, 16}
    deep, now = (move_values(of_network(NETWORK, look=look), boards) for look in (16, 0))
    return np.where((looks == 16)[:, None], deep, now)


ALL = [*NTUPLES, "expectimax 1", "expectimax 2"]


@pytest.mark.parametrize("name", ALL)
def test_a_row_has_the_values_and_the_loss_of_its_board(name: str) -> None:
    played = play(name)
    values, moves = played["values"], played["rows"]["action"]
    expected = expected_values(name, played)
    if name.startswith("expectimax"):
        rows = slice(0, 97 * (4 if name[-1] == "2" else 20), 97)
        np.testing.assert_allclose(values[rows], expected[rows], rtol=3e-6)
    else:
        np.testing.assert_array_equal(values, expected)
    for cells, row in zip(played["rows"]["exps"][:200].tolist(), values, strict=False):
        assert [m for m in range(4) if not np.isnan(row[m])] == reference.legal_moves(cells)
    chosen = values[np.arange(len(values)), moves]
    np.testing.assert_array_equal(played["loss"], np.nanmax(values, axis=1) - chosen)
    if name in {"random", "soft", "2-ply, few moves"}:
        assert (played["loss"] > 0).any()
    elif name != "3-ply":
        assert not played["loss"].any()


@pytest.mark.parametrize("name", ALL)
def test_recording_them_changes_no_game(name: str) -> None:
    valued, plain = play(name), play(name, ())
    for part in ("rows", "runs"):
        assert valued[part].tobytes() == plain[part].tobytes()


def test_the_values_are_those_of_a_judge_of_this_depth(tmp_path: Any) -> None:
    save_network(NETWORK, tmp_path / "network.ntuple", compress=False)
    judge = Judge.of_player("ntuple", {"weights": str(tmp_path / "network.ntuple"), "downgrade": 0})
    played = play("2-ply")
    boards, moves = exps_to_boards(played["rows"]["exps"]), played["rows"]["action"]
    found = judge.moves(boards, moves, np.zeros_like(boards))
    np.testing.assert_allclose(played["values"], found.values, rtol=1e-5, atol=0.05)
    np.testing.assert_allclose(played["loss"], found.loss, atol=0.1)


def assert_kept(name: str, how: dict[str, Any]) -> None:
    whole, kept = play(name), play(name, **how)
    rate = how.get("sample_rate", 1)
    for column in ("values", "loss"):
        np.testing.assert_array_equal(kept[column], whole[column][whole["rows"]["step_idx"] % rate == 0])


@pytest.mark.parametrize(
    "how",
    [{"storage": "tape"}, {"sample_rate": 3}, {"sample_rate": 1000, "record_action": False}, {"rows_max": 9}],
    ids=str,
)
def test_they_follow_the_rows_that_are_kept(how: dict[str, Any]) -> None:
    assert_kept("random", how)


def test_columns_that_stay_where_they_were_are_noticed() -> None:
    loop = "tape2048_recorder.game.game_loop"
    mutant = Mutant(f"{loop}:Buffer.drop_block", "self._actions, *self._values", "self._actions")
    with planted(mutant), pytest.raises(AssertionError):
        test_a_row_has_the_values_and_the_loss_of_its_board("2-ply")


def test_one_column_alone() -> None:
    both, loss = play("random"), play("random", ("loss",))
    np.testing.assert_array_equal(loss["loss"], both["loss"])


def test_a_calibration_turns_values_into_outcomes() -> None:
    table = np.sort(np.random.default_rng(1).uniform(-500, 5000, (3, PHASES, VALUES)).astype(np.float32))
    plain, mapped = play("2-ply"), play("2-ply", calibration=table)
    assert mapped["rows"].tobytes() == plain["rows"].tobytes()
    boards = exps_to_boards(plain["rows"]["exps"])
    for move in range(4):
        known = ~np.isnan(plain["values"][:, move])
        expected = outcomes(table, boards[known], plain["values"][known, move])[0]
        np.testing.assert_allclose(mapped["values"][known, move], expected, rtol=1e-5)
    chosen = mapped["values"][np.arange(len(boards)), plain["rows"]["action"]]
    np.testing.assert_allclose(mapped["loss"], np.nanmax(mapped["values"], axis=1) - chosen)
