"""``tape2048 player`` and ``bench-player``, and sessions that an ``ntuple`` player recorded."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.recorder.models.test_onnx_player import save as save_onnx
from tests.reference import unpack
from tests.sdk.run_builders import game as plain_run

from tape2048 import Session, errors, sessions
from tape2048.ntuple.network import Network, NetworkLayout, load_network, save_network
from tape2048.runs import Run, RunMeta, write_session
from tape2048_recorder.evaluation import paired_games as arena
from tape2048_recorder.game.start_files import read_starts
from tape2048_recorder.players.options import check_player

from ..conftest import Cli


@pytest.fixture
def network() -> Network:
    """A network of random values, as if it had been trained."""
    layout = NetworkLayout.of(["0123", "0145"], [8192])
    table = np.random.default_rng(1).integers(-99, 99, layout.entries).astype(np.float32)
    facts = {"moves": 1_234_567, "games": 89, "elapsed_s": 75.0, "training": {"seed": 7, "decay": 0.5}}
    return Network(layout, table, np.ones((2, 2), dtype=np.float32), facts)


@pytest.fixture
def exact(network: Network, tmp_path: Path) -> Path:
    path = tmp_path / "exact.safetensors"
    save_network(network, path, compress=False)
    return path


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """Random values, and the shape of the network ``fast``: it runs the same compiled code."""
    layout = NetworkLayout.of(["0123", "0145", "1256", "4567", "569a"])
    table = np.random.default_rng(1).integers(-99, 99, layout.entries).astype(np.float32)
    path = tmp_path / "quantised.ntuple"
    save_network(
        Network(layout, table, np.ones((1, 5), dtype=np.float32)).quantised(0.5), path, compress=False
    )
    return path


def test_info_says_what_a_file_holds(cli: Cli, exact: Path, network: Network) -> None:
    done = cli("player info", exact)
    assert done.err == ""
    found = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert found["network"] == str(exact)
    assert found["file"].startswith("1.0 MB, SHA-256 ")
    assert found["tuples"] == "0123 0145"
    assert found["stages"] == "from the start, from 8192"
    assert found["tables"] == "262,144 entries of float32, 1.0 MB in memory, 99% of them used"
    assert found["trained"] == "1,234,567 moves, 89 games, 1:15"
    assert found["settings"] == "seed=7, decay=0.5"
    assert cli("player info", exact, "--json").json == {
        "weights": str(exact),
        "sha256": hashlib.sha256(exact.read_bytes()).hexdigest(),
        "bytes": exact.stat().st_size,
        "tuples": ["0123", "0145"],
        "stages": [8192],
        "entries": 262_144,
        "entries_used": np.count_nonzero(network.table),
        "dtype": "float32",
        "scales": [[1, 1], [1, 1]],
        "calibrations": [],
        "facts": network.facts,
    }


@pytest.mark.parametrize("facts", [{}, {"moves": "many", "training": 5}, {"training": None}])
def test_info_takes_a_file_without_our_facts(cli: Cli, tmp_path: Path, facts: dict[str, object]) -> None:
    layout = NetworkLayout.of(["0123"])
    network = Network(layout, np.zeros(65536, np.float32), np.ones((1, 1), np.float32), facts)
    save_network(network, tmp_path / "plain")
    done = cli("player info", tmp_path / "plain")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["trained", "-"] in lines
    assert ["settings", "-"] in lines


def test_what_is_no_network_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello, this is no network")
    cli("player info", tmp_path / "text", expect=errors.TruncatedError)
    done = cli("player info", tmp_path / "none", expect=errors.MissingPathError)
    assert "a shipped network (strong, small, fast)" in done.err


def test_eval_is_a_table_of_players(cli: Cli) -> None:
    done = cli("player eval random greedy --games 30")
    heading, random, greedy = done.out.splitlines()
    assert heading.split()[:3] == ["player", "games", "mean"]
    assert random.startswith("random")
    assert greedy.startswith("greedy")
    assert " 30 " in random
    assert "±" in random
    assert "0 (0.0-11.4)" in random, "no game of 30: at most 11.4% reach it"
    again = cli("player eval random --games 30 --threads 3").out.splitlines()[1]
    assert again.split()[:4] == random.split()[:4]
    one = ("player", "eval", "random", "--games", "1")
    assert cli(*one, "--json").json["players"]["random"]["mean_score_error"] is None
    assert "nan" not in cli(*one).out


def test_a_player_that_is_named_twice_plays_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[object] = []
    play = arena.play
    monkeypatch.setattr(arena, "play", lambda player, **how: played.append(player) or play(player, **how))
    done = cli("player eval random greedy random --games 5")
    assert [line.split()[0] for line in done.out.splitlines()] == ["player", "random", "greedy"]
    assert len(played) == 2


def test_eval_as_json(cli: Cli, quantised: Path) -> None:
    player = f"ntuple:weights={quantised},look=1"
    document = cli("player eval", player, "--games", "10", "--seed", "3", "--json").json
    assert (document["games"], document["seed"]) == (10, 3)
    result = document["players"][player]
    assert result["games"] == 10
    assert result["score_max"] >= result["mean_score"] > 0
    assert result["reach"]["2048"] == [0, 0, pytest.approx(0.2775, abs=1e-3)]
    assert list(map(int, result["reach"])) == [32 << i for i in range(12)]
    assert result["moves_per_cpu_s"] > 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["randm"], 78, "did you mean 'random'"),
        (["expectimax:depth=9"], 78, "from 1 to 3"),
        (["ntuple:weights=nowhere"], 78, "found no network at 'nowhere'"),
        (["random:a=1,b"], 78, "expected NAME:key=value"),
        (["random", "--games", "0"], 2, "--games"),
        (["random", "--games", "1000000000000"], 78, "at least 64,000.0 GB for 1,000,000,000,000 games"),
        (["random", "--games", str(10**26)], 78, "fewer games"),
        (["random", "--threads", "-1"], 2, "--threads"),
        ([], 2, "PLAYERS"),
    ],
)
def test_eval_refuses_what_cannot_be_before_it_plays(cli: Cli, args: list[str], code: int, said: str) -> None:
    done = cli("player eval", *args, expect=code)
    assert done.out == ""
    assert said in done.err


def test_games_begin_at_the_boards_of_a_file(cli: Cli, tmp_path: Path) -> None:
    starts = tmp_path / "starts.txt"
    starts.write_text("0xB100000000000000\n0xA510000000000001\n0xB000000000000001\n")
    document = cli("player eval greedy --from", starts, "--json").json
    assert (document["games"], document["from"]) == (3, str(starts))
    assert document["players"]["greedy"]["reach"]["2048"][0] == pytest.approx(2 / 3)
    assert document["players"]["greedy"]["score_max"] < 20_000, "points made since"
    assert cli("player eval greedy --from", starts, "--games", "6", "--json").json["games"] == 6
    starts.write_text("0xB100000000000000\n0xB300000000000000\n")
    for command in (["eval", "greedy"], ["match", "greedy", "random"]):
        done = cli("player", *command, "--from", starts, expect=errors.FieldError)
        assert "line 2, 0xb300000000000000, has no 2 and no 4" in done.err
    cli("player eval greedy --from nowhere", expect=errors.MissingPathError)


def test_a_match_shows_the_difference(cli: Cli) -> None:
    document = cli("player match greedy random --games 100 --json").json
    assert document["players"] == ["greedy", "random"]
    assert document["difference"] > document["difference_error"] > 0
    difference = document["a"]["mean_score"] - document["b"]["mean_score"]
    assert document["difference"] == pytest.approx(difference)
    low, high = document["a_ahead"][1:]
    assert 0.5 < low < high < 1
    alone = cli("player eval random --games 100 --json").json["players"]["random"]
    assert document["b"]["mean_score"] == alone["mean_score"]
    lines = cli("player match greedy greedy --games 5").out.splitlines()
    assert [line.split()[0] for line in lines] == ["player", "greedy", "greedy", "difference", "ahead"]
    assert "+0 ±0 points" in lines[3]
    cli("player match greedy randm", expect=errors.ConfigError)


LINEAR = """
import numpy as np

WEIGHTS = np.random.default_rng(3).integers(-9, 9, (16, 4)).astype(np.float32)

def batched():
    return lambda boards, legal, exps: exps.astype(np.float32) @ WEIGHTS

def one_board():
    return lambda board: board.reshape(16) @ WEIGHTS

def module():
    import torch

    class Policy(torch.nn.Module):
        def forward(self, tokens):
            return tokens.float() @ torch.from_numpy(WEIGHTS)

    return Policy()
"""


def test_players_of_every_kind_play_the_same_games(cli: Cli, tmp_path: Path) -> None:
    """One policy as a callable for boards, for one board, as a PyTorch and as an ONNX model; in integers."""
    source = tmp_path / "linear.py"
    source.write_text(LINEAR)
    names: dict[str, Any] = {}
    exec(LINEAR, names)  # noqa: S102 - it is ours
    tokens = torch.zeros((8, 16), dtype=torch.int64)
    torch.export.save(torch.export.export(names["module"](), (tokens,)), tmp_path / "p.pt2")
    save_onnx(tmp_path / "p.onnx", weights=names["WEIGHTS"])
    models = "python:tape2048_recorder.models"
    players = [
        f"python:{source}:batched",
        f"python:{source}:one_board",
        f"{models}.torch_player:make:model={tmp_path}/p.pt2,device=cpu,batch=8",
        f"{models}.onnx_player:make:model={tmp_path}/p.onnx",
    ]
    games = ("--games", "30", "--seed", "2", "--json")
    found = cli("player eval", *players, "greedy", *games).json["players"]
    facts = ("mean_score", "moves", "score_max")
    results = [{fact: found[player][fact] for fact in facts} for player in players]
    assert results == results[:1] * 4
    assert found["greedy"]["mean_score"] != results[0]["mean_score"]
    match = cli("player match", players[1], "greedy", *games).json
    assert match["a"]["mean_score"] == results[0]["mean_score"]
    assert match["difference"] == pytest.approx(results[0]["mean_score"] - found["greedy"]["mean_score"])
    falls = cli("player analyse", players[0], "--games", "30", "--weights", "fast", "--json").json
    assert sum(one["games"] for one in falls["by_highest"].values()) == 30


def test_a_match_with_a_player_that_fails_names_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def make():\n    return lambda board: 1 / 0\n")
    player = f"python:{tmp_path}/bad.py:make"
    done = cli("player match greedy", player, "--games", "5", expect=errors.PlayerError)
    assert "bad.py:make: the player raised ZeroDivisionError" in done.err
    assert "bad.py:2" in done.err
    assert done.out == ""


def test_starts_are_collected_from_sessions(cli: Cli, session: Path, tmp_path: Path) -> None:
    """The first board of each game for which a condition holds; a board that no game has is an error."""
    games = [plain_run(seed) for seed in range(8)]
    meta = [RunMeta(len(game.moves), 0, 0.0, game.max_score, game.highest_tile) for game in games]
    boards = [np.array(game.states, np.uint64) for game in games]
    moves = [np.array(game.moves, np.uint8) for game in games]
    runs = [*map(Run, boards, moves, meta)]
    source, target = tmp_path / "20260101T000000Z_model=toy", tmp_path / "starts.npy"
    write_session(source, runs)
    firsts = [next((b for b in game.states[:-1] if max(unpack(b)) >= 6), None) for game in games]
    of_game = {seed: board for seed, board in enumerate(firsts) if board is not None}
    assert len(of_game) > 1
    how = ("player starts", source, "--out", target)
    document = cli(*how, "--tile", "64", "--json").json
    assert (document["boards"], document["tile"]) == (len(of_game), 64)
    assert read_starts(target)["board"].tolist() == [*of_game.values()]
    cli(*how, "--tile", "64", expect=errors.NameTakenError)
    late = ("--rows-where", "board_highest_tile >= 64 AND step > 2", "--where", "score >= 0", "--force")
    assert f"{len(of_game)} boards" in cli(*how, *late).out
    for wrong, expect in (
        (("--tile", "64", "--rows-where", "step > 2"), 2),
        (("--tile", "65"), errors.ConfigError),
        (("--tile", "32768"), errors.EmptyCorpusError),
        (("--rows-where", "step > "), errors.ConfigError),
        (("--rows-where", "step >= 0", "--where", "score < 0"), errors.EmptyCorpusError),
    ):
        cli(*how, *wrong, "--force", expect=expect)
    how = ("player starts", session, "--out", target, "--force", "--tile", "8192")
    assert "the board of run " in cli(*how, expect=errors.FieldError).err


def test_record_refuses_boards_before_it_starts(cli: Cli, session: Path, tmp_path: Path) -> None:
    starts = tmp_path / "starts.txt"
    for text, said in (
        ("0xB100000000000000\n\n0x0000000000000000\n", "line 3, 0x0000000000000000, has fewer than two"),
        ("0x1000000000000001\n0x1234123412341230 0x12\n", "line 2: found '0x1234123412341230 0x12'"),
        ("0x1212212112122121\n", "line 1, 0x1212212112122121, has no legal move"),
        ("0x0300005010000000\n", "line 1, 0x0300005010000000, cannot result from a move and a new 2 or 4"),
        ("# none\n", "found no board, expected at least one"),
    ):
        starts.write_text(text)
        done = cli("record --player random --max-games 1 --out out --from", starts, expect=errors.FieldError)
        assert f"{starts}: {said}" in done.err
        assert "hint: " in done.err
    starts.write_text("0xB100000000000000\n")
    for args, said in (
        (("--where", "score > 5"), "--where: found without start_from"),
        (("--from", starts, "--rows-where", "step > 5"), "found a file with a condition"),
        (("--from", session), "found no condition on rows"),
        (("--from", session, "--rows-where", "stp > 5"), "no column stp"),
    ):
        done = cli("record --player random --max-games 1 --out out", *args, expect=errors.ConfigError)
        assert said in done.err
    assert not (tmp_path / "out").exists()


def test_prune_writes_a_file_that_is_small_enough(
    cli: Cli, quantised: Path, exact: Path, tmp_path: Path
) -> None:
    target = tmp_path / "pruned.ntuple"
    how = ("player", "prune", quantised, "--out", target, "--max-mb", "0.05", "--games", "10")
    before = np.count_nonzero(load_network(str(quantised)).table)
    document = cli(*how, "--json").json
    assert document["bytes"] == target.stat().st_size
    assert 5_000 < document["bytes"] <= 50_000
    assert document["entries_used_before"] == before
    pruned = load_network(str(target))
    assert document["entries_used"] == np.count_nonzero(pruned.table) < before
    assert pruned.layout == load_network(str(quantised)).layout
    again = cli(*how, expect=errors.NameTakenError)
    assert "(--force)" in again.err
    assert f"entries used, of {before:,}; uses counted in games" in cli(*how, "--force").out
    plain = cli("player prune", exact, "--out", tmp_path / "x", "--max-mb", "1", expect=78)
    assert "player quantise" in plain.err


def test_games_are_analysed(cli: Cli, quantised: Path, session: Path) -> None:
    how = ("--weights", quantised)
    document = cli("player analyse greedy --games 20", *how, "--json").json
    found = document["by_highest"]
    assert sum(falls["games"] for falls in found.values()) == 20
    assert all(sum(falls["at_empty"].values()) == falls["games"] for falls in found.values())
    lines = cli("player analyse greedy --games 20", *how).out.splitlines()
    assert lines[0].split()[:3] == ["highest", "tile", "games"]
    assert len(lines) == 2 * len(found) + 2
    recorded = cli("player analyse", session, *how, "--json").json["by_highest"]
    assert {falls["points"] for falls in (*found.values(), *recorded.values())} == {None}
    assert list(recorded) == ["2048", "4096", "8192", "16384"]
    assert recorded["8192"]["moves"] == 60
    cli("player analyse gredy", *how, expect=errors.ConfigError)


def test_eval_makes_all_players_before_any_plays(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[object] = []
    monkeypatch.setattr(arena, "play", lambda player, **_: played.append(player))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"damaged")
    cli("player eval random", f"ntuple:weights={damaged}", expect=errors.TruncatedError)
    cli("player eval random python:a.b:c", expect=errors.StartError)
    assert not played


def test_quantise_writes_int16(cli: Cli, exact: Path, tmp_path: Path, network: Network) -> None:
    target = tmp_path / "small.ntuple"
    done = cli("player quantise", exact, "--out", target, "--step", "0.5")
    assert str(target) in done.out
    assert "int16 in steps of 0.5" in done.out
    written = load_network(str(target))
    assert written.table.dtype == np.int16
    assert np.array_equal(written.table * np.float32(0.5), network.table)
    assert target.stat().st_size < exact.stat().st_size
    assert written.facts == {**network.facts, "quantised_step": 0.5}
    done = cli("player quantise", exact, "--out", target, "--step", "0.5", "--force", "--json")
    bytes_ = target.stat().st_size
    assert done.json == {"path": str(target), "bytes": bytes_, "step": 0.5, "step_max": 0.5}


def test_quantise_says_where_steps_are_coarser(cli: Cli, tmp_path: Path, network: Network) -> None:
    network.table[5] = 1e6
    save_network(network, tmp_path / "wide", compress=False)
    done = cli("player quantise", tmp_path / "wide", "--out", tmp_path / "out", "--step", "1")
    assert "up to 30.5 for tables with a wide range" in done.out
    save_network(dataclasses.replace(network, table=network.table.clip(-99, 99)), tmp_path / "plain")
    done = cli("player quantise", tmp_path / "plain", "--out", tmp_path / "other", "--step", "0.6")
    assert "up to" not in done.out


def test_quantise_replaces_nothing_unasked(cli: Cli, exact: Path, tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.write_text("mine")
    cli("player quantise", exact, "--out", target, expect=errors.NameTakenError)
    assert target.read_text() == "mine"
    cli("player quantise", exact, "--out", target, "--force")
    assert load_network(str(target)).table.dtype == np.int16


def test_quantise_refuses_what_cannot_be(cli: Cli, exact: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    cli("player quantise", exact, "--out", small, "--step", "0", expect=78)
    cli("player quantise", exact, "--out", small, "--step", "nan", expect=78)
    cli("player quantise", exact, "--out", small, "--step", "1e39", expect=78)
    assert not small.exists()
    cli("player quantise", exact, "--out", tmp_path / "no/dir", expect=errors.StorageError)
    cli("player quantise", exact, "--out", tmp_path, "--force", expect=errors.NameTakenError)
    cli("player quantise", exact, "--out", small)
    cli("player quantise", small, "--out", tmp_path / "twice", expect=78)


@pytest.mark.slow
def test_a_networks_games_replay(cli: Cli, quantised: Path, tmp_path: Path) -> None:
    player = f"ntuple:weights={quantised},mix=0:1+2:1"
    cli(
        "record --player", player, "--max-games", "40", "--seed", "6", cwd=tmp_path, timeout=240, process=True
    )
    (path,) = sessions(tmp_path / "selfplay")
    meta = Session.open(path).meta
    digits = hashlib.sha256(quantised.read_bytes()).hexdigest()[:12]
    named = {"weights": f"{quantised.name}@{digits}", "mix": "0:1+2:1"}
    assert meta["player_args"] == {**check_player("ntuple", {}), **named}, "with all defaults"
    assert meta["config"]["player"] == "ntuple"
    cli("validate", str(path), "--replay", "--json", cwd=tmp_path, timeout=240, process=True)
    quantised.rename(tmp_path / "elsewhere")
    gone = cli("validate", str(path), "--replay", cwd=tmp_path, timeout=240, process=True)
    assert "not replayed: its player is not available: found no network" in gone.out


@pytest.mark.parametrize(
    ("player", "said"),
    [
        ("ntuple:weights=nowhere", "--player: found no network at 'nowhere' (No such file or directory)"),
        ("ntuple:weights=.", "(not a file)"),
        ("ntuple:weights=exact.safetensors,mix=0:x", "--player: found mix = '0:x'"),
    ],
)
def test_an_unusable_player_is_refused_first(
    cli: Cli, exact: Path, tmp_path: Path, player: str, said: str
) -> None:
    done = cli("record --player", player, expect=78)
    assert said in done.err
    assert "hint: " in done.err
    assert [path.name for path in tmp_path.iterdir()] == [exact.name], "no directory is made"


def test_a_damaged_network_is_told_by_the_worker(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    done = cli(
        "record --player ntuple:weights=damaged --max-games 1",
        cwd=tmp_path,
        timeout=240,
        expect=errors.StartError,
        process=True,
    )
    assert "damaged: found the format None" in done.err
    assert "Traceback" not in done.err
    assert json.dumps(sessions(tmp_path / "selfplay")) == "[]"


BATCHED = f"python:{Path(__file__).parents[2] / 'recorder/lanes/batched.py'}:hashed"


@pytest.mark.parametrize("player", ["null", BATCHED])
def test_the_shares_of_the_time_add_up(cli: Cli, player: str) -> None:
    done = cli("bench-player", player, "--lanes", "8,64", "--seconds", "0.1", "--json")
    measurements = done.json["measurements"]
    assert [one["lanes"] for one in measurements] == [8, 64]
    for one in measurements:
        shares = [one[name] for name in ("model", "rules", "record", "rest")]
        assert all(share >= 0 for share in shares)
        assert sum(shares) == pytest.approx(1, abs=0.05)
        assert one["moves"] > 0
        assert one["calls_per_s"] > 0
        assert one["model"] > 0


def test_bench_shows_a_table(cli: Cli) -> None:
    done = cli("bench-player", f"{BATCHED}:key=3", "--lanes", "8", "--seconds", "0.05")
    assert "moves/s" in done.out


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["null", "--lanes", "many"], 2),
        (["null", "--lanes", "0"], 2),
        (["null", "--lanes", "64,1048577"], 2),
        (["null", "--seconds", "0"], 2),
        (["null", "--seconds", "nan"], 2),
        (["null", "--seconds", "inf"], 2),
        (["python:no.such:make"], errors.StartError.exit_code),
        ([f"{BATCHED}:kee=1"], errors.PlayerError.exit_code),
    ],
)
def test_bench_refuses_what_cannot_be(cli: Cli, args: list[str], code: int) -> None:
    done = cli("bench-player", *args, expect=code)
    assert done.out == ""
