"""``tape2048 arena``: players of any kind in the same games, with results that a killed arena resumes."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.recorder.players.test_engines import command

from tape2048 import errors

from ..conftest import Cli

HOW = ("--games", "40", "--seed", "3")


def engine(*args: object) -> str:
    return f"exec:{command(*args)}"


def test_it_compares_all_players_in_the_same_games(cli: Cli) -> None:
    players = ("greedy", engine(), "random")
    document = cli("arena", *players, *HOW, "--json").json
    assert (document["games"], document["seed"]) == (40, 3)
    alone = cli("player eval", *players, *HOW, "--json").json["players"]
    for player in players:
        found = document["players"][player]
        for name in ("games", "moves", "mean_score", "mean_score_error", "score_max", "reach"):
            assert found[name] == alone[player][name], name
        speed = found["speed_class"]
        assert speed <= found["moves_per_cpu_s"] < 10 * speed
        assert (found["forfeits"], found["forfeited"], found["error"]) == (0, {}, None)
    assert document["players"][engine()]["peak_bytes"] > 1_000_000
    match = cli("player match greedy random", *HOW, "--json").json
    pairs = {(each["a"], each["b"]): each for each in document["differences"]}
    assert list(pairs) == [("greedy", engine()), ("greedy", "random"), (engine(), "random")]
    for name in ("difference", "difference_error", "a_ahead"):
        assert pairs["greedy", "random"][name] == match[name]


def test_its_table_has_shares_speeds_and_differences(cli: Cli) -> None:
    heading, *rows = cli("arena greedy random", *HOW).out.splitlines()
    assert heading.split() == [
        "speed",
        "class",
        "player",
        "games",
        "mean",
        "score",
        "64",
        "128",
        "256",
        "moves/CPU",
        "s",
        "difference",
    ]
    assert {row.split()[2] for row in rows} == {"greedy", "random"}
    (best,) = [row for row in rows if row.endswith(" -")]
    (other,) = [row for row in rows if row is not best]
    assert best.split()[2] == "greedy"
    assert "±" in other.rpartition("-")[2]
    assert "92% (80.1-97.4)" in best
    (row,) = cli("arena greedy --games 1").out.splitlines()[1:]
    assert "nan" not in row


def test_a_killed_arena_goes_on(cli: Cli, tmp_path: Path) -> None:
    whole = cli("arena greedy random", *HOW, "--json").json
    out = tmp_path / "arena.jsonl"
    words = ["arena", "greedy", "random", *HOW, "--out", str(out), "--json"]
    cli(*words[:2], *words[3:], "--games", "17")
    kept = out.read_bytes()
    out.write_bytes(kept + b'{"player": "random", "sha256": "torn')
    found = cli(*words).json
    for player in ("greedy", "random"):
        for name in ("games", "moves", "mean_score", "score_max", "reach"):
            assert found["players"][player][name] == whole["players"][player][name], (player, name)
    assert found["differences"] == whole["differences"]
    assert out.read_bytes().startswith(kept)
    before = out.read_bytes()
    assert cli(*words).json["players"] == found["players"]
    assert out.read_bytes() == before, "nothing is played twice"
    fewer = cli(*words, "--games", "9").json
    assert {each["games"] for each in fewer["players"].values()} == {9}


@pytest.mark.slow
def test_an_arena_that_is_killed_in_a_game_keeps_the_others(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "arena.jsonl"
    words = ["arena", engine(), "--games", "3000", "--threads", "1", "--out", str(out)]
    child = subprocess.Popen([sys.executable, "-m", "tape2048_tools.cli", *words], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while time.monotonic() < until and (not out.exists() or out.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    played = sum(len(json.loads(line)["numbers"]) for line in out.read_text().splitlines()[1:])
    assert 0 < played < 3000
    games = ("--games", str(played + 5), "--json")
    found = cli(*words[:2], *games, "--out", out).json["players"][engine()]
    alone = cli("player eval", engine(), *games).json["players"][engine()]
    for name in ("games", "mean_score", "mean_score_error", "score_max"):
        assert found[name] == alone[name]


def test_a_player_that_fails_costs_its_own_games_only(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def make():\n    return lambda board: 1 / 0\n")
    bad, poison, out = f"python:{tmp_path}/bad.py:make", engine("poison"), ("--out", tmp_path / "x", "--json")
    done = cli("arena", bad, engine("illegal"), "greedy", poison, *HOW, *out, expect=errors.PlayerError)
    document = json.loads(done.out)
    assert document["players"][bad]["games"] == 0
    assert "ZeroDivisionError" in document["players"][bad]["error"]
    assert "10 games in a row were forfeited" in document["players"][engine("illegal")]["error"]
    assert document["players"]["greedy"]["error"] is None
    alone = cli("player eval greedy", *HOW, "--json").json["players"]["greedy"]
    assert document["players"]["greedy"]["mean_score"] == alone["mean_score"]
    found = document["players"][poison]
    assert found["games"] == 40
    assert 0 < found["forfeits"] == len(found["forfeited"]) < 40
    assert all("a 128 on the board" in why for why in found["forfeited"].values())
    assert done.err.count("ZeroDivisionError") == 1
    assert "10 games in a row were forfeited" in done.err
    assert "a 128 on the board" in done.err
    assert cli("arena", poison, *HOW, *out).json["players"][poison] == found, "the file has all of it"
    fewer = cli("arena", poison, *HOW, *out, "--games", "20").json["players"][poison]["forfeited"]
    assert fewer == {game: why for game, why in found["forfeited"].items() if int(game) < 20}
    table = cli("arena greedy", poison, *HOW, *out[:2]).out
    assert "forfeited" in table.splitlines()[0]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ("greedy exec:./no-such-engine", 78, "found './no-such-engine', which is no file"),
        ("greedy gredy", 78, "did you mean 'greedy'"),
        (f"greedy '{engine('strange')}'", errors.StartError.exit_code, "found the hello line 'hello there'"),
        ("greedy --games 0", 2, "--games"),
        ("", 2, "PLAYERS"),
    ],
)
def test_what_cannot_play_is_refused_before_any_game(
    cli: Cli, tmp_path: Path, args: str, code: int, said: str
) -> None:
    out = tmp_path / "arena.jsonl"
    done = cli("arena", *shlex.split(args), "--out", out, expect=code)
    assert said in done.err
    assert done.out == ""
    assert not out.exists()


def test_boards_that_no_game_reaches_are_refused(cli: Cli, tmp_path: Path) -> None:
    starts = tmp_path / "starts.txt"
    starts.write_text("0xB300000000000000\n")
    done = cli("arena greedy --from", starts, expect=errors.FieldError)
    assert "line 1, 0xb300000000000000, has no 2 and no 4" in done.err
    starts.write_text("0xB100000000000000\n0xA510000000000001\n")
    found = cli("arena greedy", engine(), "--from", starts, "--json").json
    assert found["games"] == 2
    assert found["from"] == str(starts)


def test_results_of_other_games_are_not_mixed(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "arena.jsonl"
    cli("arena greedy --games 5 --out", out)
    kept = out.read_bytes()
    done = cli("arena greedy --games 5 --seed 2 --out", out, expect=errors.ConfigError)
    assert f"{out}: found results with seed = 1, expected 2" in done.err
    starts = tmp_path / "starts.txt"
    starts.write_text("0xB100000000000000\n")
    cli("arena greedy --from", starts, "--out", out, expect=errors.ConfigError)
    (tmp_path / "one.py").write_text("def make():\n    return lambda board: [3, 0, 2, 1]\n")
    player = f"python:{tmp_path}/one.py:make"
    cli("arena", player, "--games", "5", "--out", out)
    (tmp_path / "one.py").write_text("def make():\n    return lambda board: [0, 3, 2, 1]\n")
    done = cli("arena", player, "--games", "5", "--out", out, expect=errors.ConfigError)
    assert "the player has changed" in done.err
    assert out.read_bytes().startswith(kept)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("my notes\n", errors.NotASessionError),
        ("my notes", errors.NotASessionError),
        ('{"arena":1,"seed":1,"starts":null}\n{"player":"greedy"}\n', errors.FieldError),
        ('{"arena":1,"seed":1,"starts":null}\nx\n', errors.FieldError),
        ('{"arena":9,"seed":1,"starts":null}\n', errors.ConfigError),
    ],
)
def test_a_file_of_another_kind_is_left_alone(
    cli: Cli, tmp_path: Path, text: str, error: type[errors.TapeError]
) -> None:
    out = tmp_path / "notes"
    out.write_text(text)
    done = cli("arena greedy --games 5 --out", out, expect=error)
    assert str(out) in done.err
    assert out.read_text() == text
