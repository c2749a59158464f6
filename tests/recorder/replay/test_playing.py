"""Games of a session, played again one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tape2048.errors import ReplayError
from tape2048_recorder.game.loop import GAMES_PLAYED, Buffer, play_into
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.registry import make_player, player_sha256
from tape2048_recorder.replay.replay import replayer

PATH = Path("selfplay/20260101T000000Z_model=a")


def facts_of(player: str, **args: int) -> dict[str, object]:
    return {
        "player": player,
        "player_args": args,
        "player_sha256": player_sha256(player, make_player(player, args)),
        "sample_rate": 1,
        "record_action": False,
    }


def test_games_replay_on_any_thread() -> None:
    ids = np.arange(12, dtype=np.uint64)
    buffer = Buffer(rows_max=1 << 18, runs_max=12, record_action=True, sample_rate=1)
    buffer.give(ids, game_seeds(7, ids))
    assert play_into(buffer, make_player("expectimax", {}), steps_max=1 << 30) == GAMES_PLAYED
    rows = buffer.rows
    play = replayer(PATH, facts_of("expectimax"))
    with ThreadPoolExecutor(3) as pool:
        games = list(pool.map(lambda run: play(int(run["seed"]), int(run["steps"])), buffer.runs))
    from tape2048.game.rules import exps_to_boards, legal_masks

    for run, (states, moves) in zip(buffer.runs, games, strict=True):
        there = rows[int(run["first_row"]) :][: int(run["rows"])]
        np.testing.assert_array_equal(states[:-1], exps_to_boards(there["exps"]))
        np.testing.assert_array_equal(moves, there["action"])
        assert legal_masks(states[-1:])[0] == 0


def test_a_wrong_number_of_steps_shows() -> None:
    play = replayer(PATH, facts_of("greedy"))
    steps = len(play(3, 1 << 60)[1])
    assert 20 < steps < 2000
    assert [len(play(3, claim)[1]) for claim in (0, steps - 1, steps, steps + 1)] == [1, steps, steps, steps]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"player": "python:package.module:make"}, "which is code that the session names"),
        ({"player": "unknown"}, "its player cannot be made here"),
        ({"player_args": {"depth": 9}}, "its player cannot be made here"),
        ({"player_sha256": "0" * 64}, "it was played by greedy 000000000000; here greedy is "),
        ({"player": None}, "does not say what played it"),
    ],
)
def test_a_player_that_cannot_be_had(change: dict[str, object], said: str) -> None:
    with pytest.raises(ReplayError, match=said) as caught:
        replayer(PATH, {**facts_of("greedy"), **change})
    assert caught.value.path == str(PATH)
