"""Engines: other programs that choose moves, which may end, hang, or answer anything."""

import contextlib
import gc
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.recorder.lanes import batched

from tape2048.errors import ConfigError, PlayerError, StartError
from tape2048.players import player_label, player_name, player_text, split_text
from tape2048_recorder.evaluation.evaluated_games import make_contestant
from tape2048_recorder.evaluation.paired_games import Results, play
from tape2048_recorder.players import engine
from tape2048_recorder.players.engine import EnginePlayer
from tape2048_recorder.players.options import check_player, make_player
from tape2048_recorder.record_options import load_config, split_player

FAKE = str(Path(__file__).with_name("fake_engine.py"))
EXAMPLES = Path(__file__).parents[3] / "examples"
GAMES = 24


def command(*args: object) -> str:
    """The command of a fake engine: a mode, boards before it misbehaves, boards in a request."""
    return " ".join(map(str, [sys.executable, "-I", "-S", FAKE, *args]))


def played(*args: object, threads: int = 1, **limits: float) -> Results:
    player = make_contestant("exec", {"command": command(*args), **limits})
    return play(player, games=GAMES, seed=3, threads=threads)


@pytest.fixture(scope="module")
def expected() -> Results:
    """The same moves by a callable."""
    return play(make_contestant(f"python:{batched.__file__}:lowest", {}), games=GAMES, seed=3, threads=1)


def same_but_forfeited(found: Results, expected: Results) -> bool:
    kept = np.array([number not in found.forfeits for number in range(GAMES)])
    assert (found.scores[~kept] == 0).all()
    return bool((found.scores[kept] == expected.scores[kept]).all() and found.played.all())


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (5, 1), (64, 2)])
def test_an_engine_plays_the_games_of_its_moves(expected: Results, batch: int, threads: int) -> None:
    found = played("well", 0, batch, threads=threads)
    assert (found.scores == expected.scores).all()
    assert (found.highest == expected.highest).all()
    assert (found.moves, found.forfeits) == (expected.moves, {})
    assert found.cpu_s > 0
    assert found.peak_bytes > 1_000_000


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("die", "it ended (exit status 3); the end of its standard error: 'no more of this'"),
        ("abort", "it ended (killed by SIGABRT)"),
        ("hang", "it did not answer within 0.5 s"),
        ("illegal", "it answered "),
        ("rubbish", "it answered 'hello\\x1b[0m'; expected a letter of UDLR"),
        ("short", "it answered ''; expected a letter of UDLR"),
        ("chatty", "it answered more than one line"),
        ("early", "it "),
        ("endless", "more than 65536 bytes without a line end"),
    ],
)
def test_a_fault_costs_its_game_and_names_the_engine(expected: Results, mode: str, says: str) -> None:
    limits = {"move_timeout_s": 0.5} if mode == "hang" else {}
    found = played(mode, 700, **limits)
    assert 1 <= len(found.forfeits) < GAMES / 2
    assert same_but_forfeited(found, expected)
    for number, why in found.forfeits.items():
        assert why.startswith(f"fake 1.0 ({command(mode, 700)}) forfeits game {number} at step ")
        assert ", 0x" in why
        assert says in why


def test_an_interrupt_does_not_wait_for_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_CLOSE_S", 0.1)
    calls = iter([False, False, False, True])

    def interrupt(*_: int) -> None:
        if next(calls):
            raise KeyboardInterrupt

    player = make_contestant("exec", {"command": command("hang", 40), "move_timeout_s": 60})
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        play(player, games=GAMES, seed=3, threads=1, progress=interrupt)
    assert time.monotonic() - begin < 30


def test_only_the_games_of_bad_boards_are_lost_in_a_batch(expected: Results) -> None:
    """Boards of a request without an answer are asked one by one."""
    alone, together = played("poison", 0, 1), played("poison", 0, 16)
    assert same_but_forfeited(together, expected)
    assert 0 < len(alone.forfeits) < GAMES
    assert set(together.forfeits) == set(alone.forfeits)
    assert "a 128 on the board" in next(iter(together.forfeits.values()))


def test_an_engine_that_only_fails_is_given_up() -> None:
    with pytest.raises(PlayerError, match="10 games in a row were forfeited") as caught:
        played("die", 0)
    assert "exit status 3" in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("mute", "it did not answer within 0.5 s"),
        ("strange", "found the hello line 'hello there'; expected `engine NAME VERSION`"),
        ("huge", "found batch=99999 in its hello line; expected 1 to 4096"),
        ("quit", r"it ended \(exit status 1\); the end of its standard error: 'cannot find my weights'"),
    ],
)
def test_an_engine_without_a_hello_does_not_start(mode: str, says: str) -> None:
    with pytest.raises(StartError, match=says) as caught:
        played(mode, start_timeout_s=0.5 if mode == "mute" else 60)
    assert FAKE in str(caught.value)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"command": "./no-such-engine --fast"}, "'./no-such-engine', which is no file and not on PATH"),
        ({"command": __file__}, "which is not executable; expected a program"),
        ({"command": "'open"}, "expected closed quotes"),
        ({"command": " "}, "found an empty command"),
        ({}, "command"),
        ({"command": "true", "move_timeout_s": 0}, "move_timeout_s"),
        ({"command": "true", "depth": 3}, "depth"),
    ],
)
def test_what_cannot_be_an_engine_is_refused_first(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_player("exec", args)


def test_the_game_loop_and_sessions_start_no_program() -> None:
    """A session may name any command."""
    with pytest.raises(ConfigError, match="found the batched player exec"):
        make_player("exec", {"command": command()})


def children() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [each] if FAKE in each.cmdline() else []
    return found


#: For an engine: a board, its legal moves and its exponents.
QUESTION = np.array([0x1200], np.uint64), np.array([7], np.uint8), np.uint8([[0] * 12 + [1, 2, 0, 0]])


def test_its_processes_end_with_it() -> None:
    player = EnginePlayer(command(), 60.0, 10.0)
    (child,) = children()
    player.close()
    assert not child.is_running()
    player = EnginePlayer(command("hang", 0), 60.0, 0.1)
    player(*QUESTION)
    assert player.faults
    assert not children(), "an engine that hangs is killed"
    player = EnginePlayer(command(), 60.0, 10.0)
    (child,) = children()
    del player
    gc.collect()
    until = time.monotonic() + 10
    while child.is_running() and time.monotonic() < until:
        time.sleep(0.01)
    assert not child.is_running(), "a forgotten engine is killed"


def test_a_closed_engine_starts_again() -> None:
    player = EnginePlayer(command(), 60.0, 10.0)
    assert player(*QUESTION).tolist() == [0]
    player.close()
    assert player(*QUESTION).tolist() == [0]
    assert (player.faults, player.restarts) == ({}, 1)
    player.close()


def test_its_identity_follows_its_command_and_files(tmp_path: Path) -> None:
    script = shutil.copy(FAKE, tmp_path / "mine.py")

    def sha256(*args: object) -> str:
        words = [sys.executable, "-I", "-S", str(script), *map(str, args)]
        player = EnginePlayer(" ".join(words), 60.0, 10.0)
        player.close()
        return player.sha256

    first = sha256()
    assert sha256() == first != sha256("well")
    script.write_text(f"{script.read_text()}\n# changed\n")
    assert sha256() != first


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("exec:./engine --depth=3,4 a:b=c", {"command": "./engine --depth=3,4 a:b=c"}),
        ("exec:move_timeout_s=2,./engine", {"move_timeout_s": 2, "command": "./engine"}),
        (
            "exec:start_timeout_s=9,move_timeout_s=0.5,command=7",
            {"start_timeout_s": 9, "move_timeout_s": 0.5, "command": "7"},
        ),
    ],
)
def test_a_player_is_written_with_its_command_last(text: str, args: dict[str, Any]) -> None:
    assert split_player(text) == ("exec", args)
    again = player_text({"player": "exec", "player_args": {"command": args["command"], **args}})
    assert split_text(again) == split_text(text)
    with pytest.raises(ValueError, match="move_timeout_s=2"):
        split_text("exec:move_timeout_s=1,move_timeout_s=2,./engine")


def test_an_engine_has_a_name_for_people_and_for_directories() -> None:
    facts = {
        "player": "exec",
        "player_args": check_player("exec", {"command": f"{sys.executable} 'my engine.py' --depth 3"}),
        "player_sha256": "ab" * 32,
    }
    assert player_name(facts) == f"exec {Path(sys.executable).name} 'my engine.py' --depth 3 @ababab"
    assert player_label(facts) == "exec@abababababab"
    config = load_config({"player": "exec:./bin/engine --net big.bin"}, {}).config
    assert config.tag == "exec-engine"
    assert (config.player, config.player_args) == ("exec", {"command": "./bin/engine --net big.bin"})


def test_its_limits_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "recorder.toml"
    path.write_text("player = 'exec:./engine --fast'\n[player_args]\nmove_timeout_s = 60\n")
    config = load_config({}, {}, path).config
    assert config.player_args == {"command": "./engine --fast", "move_timeout_s": 60}
    other = load_config({"player": "exec:./other"}, {}, path).config
    assert other.player_args == {"command": "./other"}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model_dir = 'models'", "which loads its files itself"),
        ("sampling = { method = 'softmax' }", "expected argmax: an engine returns moves, not scores"),
    ],
)
def test_settings_that_do_not_suit_an_engine_are_refused(tmp_path: Path, setting: str, says: str) -> None:
    path = tmp_path / "recorder.toml"
    path.write_text(f"player = 'exec:true'\n{setting}\n")
    with pytest.raises(ConfigError, match=says):
        load_config({}, {}, path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++, c++ or clang++) is installed")
    target = tmp_path_factory.mktemp("engine") / "engine"
    source = str(EXAMPLES / "engine.cpp")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", str(target), source], check=True, timeout=120)
    return str(target)


def test_the_examples_play_the_same_games(compiled: str) -> None:
    """Once in C++ and once in Python, and well enough."""
    texts = (compiled, f"{sys.executable} {EXAMPLES / 'engine.py'}")
    players = [make_contestant("exec", {"command": text}) for text in texts]
    one, other = (play(player, games=8, seed=1, threads=1) for player in players)
    assert one.scores.tolist() == other.scores.tolist()
    assert one.forfeits == other.forfeits == {}
    assert one.scores.mean() > 2_000
