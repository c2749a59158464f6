"""Recorders with an engine, as processes: its games, the games that its faults cost, and its end."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.recorder.players import test_engines as engines

from tape2048.errors import PlayerError, ReplayError, StartError
from tape2048.session.session import Session, sessions
from tape2048_recorder.replay.replay import replay_session

from ..checks import assert_all_published, assert_sessions_valid, meta_of, published_runs
from ..processes import Recorders, wait_until
from . import batched
from .tables import play

GAMES = 40


@pytest.fixture
def recorders(fast_dir: Path) -> Iterator[Recorders]:
    with Recorders(fast_dir) as started:
        yield started


def engine(*args: object, **limits: float) -> dict[str, Any]:
    return {"player": "exec", "player_args": {"command": engines.command(*args), **limits}}


def outcomes(root: Path) -> dict[int, bytes]:
    return {run.outcome[0]: run.data for run in published_runs(root)}


def test_it_records_the_games_of_an_engine(recorders: Recorders, fast_dir: Path) -> None:
    recorder = recorders.run(
        seed=7, max_games=GAMES, workers=2, lanes=64, record_action=True, **engine("well", 0, 8)
    )
    assert (recorder.summary["games"], recorder.summary["games_forfeited"]) == (GAMES, 0)
    assert not recorder.events("warning", "error")
    assert_sessions_valid(fast_dir)
    assert outcomes(fast_dir) == {key: kept.rows for key, kept in play(batched.lowest(), GAMES).items()}
    (path,) = sessions(fast_dir)
    words = [Path(word).name for word in engines.command("well", 0, 8).split()]
    assert meta_of(path)["player_args"]["command"] == " ".join(words)
    assert Session.open(path).name.endswith(f"_model=exec-{Path(sys.executable).name}")
    with pytest.raises(ReplayError, match="replay runs no other code"):
        replay_session(path)
    left = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
    assert not [words for words in left if engines.command("well", 0, 8).split() == words]


def test_a_fault_costs_its_game_and_another_one_is_recorded(recorders: Recorders, fast_dir: Path) -> None:
    recorder = recorders.run(seed=7, max_games=GAMES, workers=1, record_action=True, **engine("die", 900))
    warnings = recorder.events("warning", "error")
    forfeited = recorder.summary["games_forfeited"]
    assert recorder.summary["games"] == GAMES
    assert 1 <= forfeited == len(warnings)
    assert all("fake 1.0" in text and "exit status 3" in text for text in warnings)
    assert_sessions_valid(fast_dir)
    found = outcomes(fast_dir)
    lost = set(range(GAMES + forfeited)) - set(found)
    assert len(found) == GAMES
    assert len(lost) == forfeited
    assert all(any(f"game {game} " in text for text in warnings) for game in lost)
    expected = play(batched.lowest(), GAMES + forfeited)
    assert found == {key: expected[key].rows for key in found}


def test_an_engine_that_only_fails_ends_the_recorder(recorders: Recorders, fast_dir: Path) -> None:
    recorder = recorders.fail(PlayerError, seed=7, workers=1, max_games=GAMES, **engine("illegal"))
    assert "10 games in a row were forfeited" in recorder.error["message"]
    assert_all_published(fast_dir)


def test_an_engine_without_a_hello_does_not_start(recorders: Recorders, fast_dir: Path) -> None:
    recorder = recorders.fail(StartError, seed=7, workers=1, **engine("quit"))
    assert "cannot find my weights" in recorder.error["message"]
    assert not sessions(fast_dir)


def test_an_engine_ends_with_a_killed_recorder(recorders: Recorders, fast_dir: Path) -> None:
    """Also one that neither reads its input nor heeds SIGTERM."""
    settings = engine("deaf", 50, move_timeout_s=600)
    recorder = recorders.start(seed=7, workers=1, **settings)
    (worker,) = wait_until(lambda: recorder.workers)
    (child,) = wait_until(lambda: psutil.Process(worker).children())
    recorder.wait_for_status(lambda status: status["steps"] > 0)
    child.terminate()
    recorder.signal(signal.SIGKILL)
    recorder.end()
    wait_until(lambda: not child.is_running())
