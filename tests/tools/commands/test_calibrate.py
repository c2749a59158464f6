"""``tape2048 player calibrate`` and ``play-on``, and the judge of a calibrated network."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, errors
from tape2048.game.rules import exps_to_boards
from tape2048.ntuple.calibrated_network import calibrations_of
from tape2048.ntuple.network import network_path
from tape2048_recorder.evaluation.calibrating import play_moves_on
from tape2048_recorder.players.options import check_player, make_player, player_sha256
from tape2048_recorder.replay.judging import Judge

from ..conftest import Cli

GAMES = 400
BOARD = 0x1000001200353469


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Recorded games of a network, the network with their calibration, and the command's document."""
    root = tmp_path_factory.mktemp("calibrate")
    weights = shutil.copy(network_path("fast"), root / "plain.ntuple")
    player = f"ntuple:weights={weights},look=0"

    def command(*args: object) -> str:
        words = [sys.executable, "-m", "tape2048_tools.cli", *map(str, args)]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout

    how = "--max-games", GAMES, "--workers", 2, "--seed", 5, "--storage", "tape", "--max-steps", "off"
    command("record", "--player", player, "--out", root / "games", *how)
    out = root / "calibrated.ntuple"
    how = "--positions", 360, "--rollouts", 8, "--json"
    return root / "games", out, json.loads(command("player", "calibrate", root / "games", "--out", out, *how))


def judge_of(weights: Path, games: Path) -> Judge:
    meta = dict(Corpus.open(games).sessions[0].meta)
    meta["player_args"] = {**meta["player_args"], "weights": str(weights)}
    return Judge.of_recorded(meta)[0]


def test_values_are_the_score_that_comes(made: Any) -> None:
    games, weights, document = made
    judge = judge_of(weights, games)
    assert judge.calibration is not None
    assert "uncalibrated" not in judge.name
    corpus = Corpus.open(games)
    rows = np.arange(0, len(corpus), 97)
    found = corpus.fetch(rows, ("tokens", "score_to_go", "move"))
    found = {name: each[found["move"] < 4] for name, each in found.items()}  # the last of a game is unknown
    boards = exps_to_boards(found["tokens"])
    values = judge.moves(boards, found["move"], np.zeros_like(boards)).values
    chosen = values[np.arange(len(boards)), found["move"] & 3]
    came = found["score_to_go"].astype(float)
    late = found["tokens"].max(axis=1) >= 11
    for part in (late, ~late):
        assert abs(chosen[part].mean() / came[part].mean() - 1) < 0.05
    assert document["calibrations"][0]["games"] == GAMES


def test_the_player_is_the_same_and_other_calibrations_stay(made: Any) -> None:
    games, weights, _ = made
    facts = Corpus.open(games).sessions[0].meta
    args = check_player("ntuple", {**facts["player_args"], "weights": str(weights)})
    assert player_sha256("ntuple", make_player("ntuple", args)) == facts["player_sha256"]
    players = {(one.values_of, one.player_sha256) for one in calibrations_of("fast")}
    assert players | {(facts["player_sha256"],) * 2} == {
        (one.values_of, one.player_sha256) for one in calibrations_of(str(weights))
    }


def test_a_judge_of_another_player_is_uncalibrated(made: Any) -> None:
    _, weights, _ = made
    args = check_player("ntuple", {"weights": str(weights), "look": 2})
    judge, _ = Judge.of_recorded({"player": "ntuple", "player_args": args, "player_sha256": "a" * 64})
    assert judge.calibration is None
    assert judge.name.endswith("uncalibrated")


def test_annotate_writes_calibrated_points(made: Any, cli: Cli, tmp_path: Path) -> None:
    games, weights, _ = made
    shutil.copytree(games, tmp_path / "games")
    network = games.parent / "plain.ntuple"
    plain = network.read_bytes()
    try:
        network.write_bytes(weights.read_bytes())
        cli("annotate", tmp_path / "games")
    finally:
        network.write_bytes(plain)
    session = Corpus.open(tmp_path / "games").sessions[0]
    facts = session.column("loss").info.facts
    assert facts["calibrated"].startswith("ntuple:weights=")
    values, own = session.column("values").values, session.column("network_values").values
    assert np.isnan(values).tolist() == np.isnan(own).tolist()
    assert not np.array_equal(values, own, equal_nan=True)
    assert set(np.unique(session.column("grade").values)) <= {0, 1, 2, 3}


def test_games_of_two_players_are_refused(made: Any, cli: Cli, tmp_path: Path) -> None:
    games, *_ = made
    shutil.copytree(games, tmp_path / "games")
    player = "ntuple:weights=fast,look=2"
    cli("record --max-games 1 --out games --player", player, process=True)
    found = cli("player calibrate games --out x.ntuple", expect=errors.ConfigError)
    assert "found games of 2 players" in found.err


def test_games_without_a_network_are_refused(root: Path, cli: Cli, tmp_path: Path) -> None:
    found = cli("player calibrate --out x.ntuple", root, expect=errors.ConfigError)
    assert "expected games of an n-tuple network" in found.err
    assert "tape2048 record --player ntuple" in found.err
    assert not (tmp_path / "x.ntuple").exists()


def test_moves_played_on_are_those_of_the_seed(cli: Cli) -> None:
    """The mean of whole games from each legal move, by any number of threads."""
    player = make_player("ntuple", check_player("ntuple", {"weights": "fast", "look": 0}))
    one, two = (play_moves_on(BOARD, player, games=20, seed=3, threads=threads) for threads in (1, 2))
    assert one == two
    assert [found.move for found in one] == [0, 1, 2, 3]
    assert all(found.score > 1000 and found.error > 0 and 0 <= found.reached <= 20 for found in one)
    how = "--player", "ntuple:weights=fast,look=0", "--games", 20, "--seed", 3, "--json"
    document = cli("player play-on", hex(BOARD), *how).json
    assert [found["score"] for found in document["moves"]] == [found.score for found in one]
    assert document["tile"] == 1024


def test_a_board_that_cannot_be_read_is_refused(cli: Cli) -> None:
    assert "expected 16 hexadecimal digits" in cli("player play-on 123", expect=2).err
