"""``tape2048 train-player`` as a person runs it, and what it shows."""

import json
import re
import signal
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tape2048 import errors
from tape2048.files.training_directory import TrainingProgress
from tape2048.ntuple.network import load_network
from tape2048_recorder.ntuple_training.training_config import TrainingConfig
from tape2048_tools.commands.players.train_player import draw_curve, player_panel, player_summary
from tape2048_tools.terminal import stopping

from ..conftest import Tape
from ..on_terminal import stopped_on_terminal

CONFIG = """\
tuples = "0123 4567 0145 4589"
stages = "128"
split_moves = 20_000
moves = 60_000
threads = 2
"""
#: Both threads can take all moves that are left, once before and once after the stages split, and complete a
#: game: of such a network, none has 5,000 moves.
MOVES_MAX = 20_000 + 2 * 40_000 + 4 * 5_000


def moves_in(text: str, pattern: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "player.toml"
    path.write_text(CONFIG)
    return path


def test_a_training_names_its_files_and_next_steps(tape: Tape, config: Path) -> None:
    pytest.importorskip("matplotlib")
    done = tape("train-player", "--config", config, "--out", "runs/mine")
    assert done.code == 0
    found = dict(line.split(maxsplit=1) for line in done.out.split("\n\n")[0].splitlines())
    assert found["ended"] == "all moves are complete"
    assert found["network"] == "runs/mine/network.ntuple"
    assert found["curve"] == "runs/mine/curve.svg"
    assert 60_000 <= moves_in(found["moves"], r"^([\d,]+) in 0:\d\d$") < MOVES_MAX
    assert found["score"].startswith("mean ")
    assert "tape2048 player eval ntuple:weights=runs/mine/network.ntuple" in done.out
    assert "tape2048 record --player ntuple:weights=runs/mine/network.ntuple" in done.out
    again = tape("train-player", "--config", config, "--out", "runs/mine", "--json").json
    assert (again["done"], again["network"]) == (True, "runs/mine/network.ntuple")
    assert (again["curve"], again["moves"] >= 60_000) == ("runs/mine/curve.svg", True)
    assert "all moves are complete" in tape("train-player", "--config", config, "--out", "runs/mine").out
    told = moves_in(done.err, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ info checkpoint at ([\d,]+) moves$")
    assert 60_000 <= told < MOVES_MAX
    assert "\x1b" not in done.out + done.err
    facts = load_network("runs/mine/network.ntuple").facts
    assert facts["training"]["tuples"] == "0123 4567 0145 4589"
    # The commands that are suggested work.
    assert tape("player", "eval", "ntuple:weights=runs/mine/network.ntuple", "--games", "5").code == 0
    assert tape("player", "info", "runs/mine/network.ntuple").code == 0
    for games, counted_in in (((), "training"), (("--games", "2"), "games")):
        prune = "player", "prune", "runs/mine/network.ntuple", "--out", counted_in, "--max-mb", "0.05"
        assert f"uses counted in {counted_in}" in tape(*prune, *games).out


def test_print_config_is_a_configuration(tape: Tape, config: Path, tmp_path: Path) -> None:
    done = tape("train-player", "--config", config, "--seed", "99", "--moves", "60k", "--print-config")
    assert done.code == 0
    values = tomllib.loads(done.out)
    assert set(values) == set(TrainingConfig.__struct_fields__)
    assert (values["tuples"], values["moves"], values["seed"]) == ("0123 4567 0145 4589", 60_000, 99)
    assert "# Learning rate of a value" in done.out
    (tmp_path / "again.toml").write_text(done.out)
    assert tape("train-player", "--config", "again.toml", "--print-config").out == done.out
    assert not (tmp_path / "out").exists()


def test_a_preset_differs_from_the_default(tape: Tape) -> None:
    lines = tape("train-player", "--preset", "fast", "--print-config").checked(0).out.splitlines()
    above = {line.partition(" = ")[0]: lines[i - 1] for i, line in enumerate(lines) if " = " in line}
    default = TrainingConfig()
    assert above["moves"].startswith(f"# Default ({default.moves:_}): ")
    assert above["beta"].startswith("# Default: ")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], 2, "either --config FILE or --preset NAME"),
        (["--config", "player.toml", "--preset", "small"], 2, "either --config FILE or --preset NAME"),
        (["--config", "player.toml"], 2, "--out DIR"),
        (["--preset", "huge", "--out", "out"], 78, "Use one of: small, fast"),
        (["--config", "none.toml", "--out", "out"], 78, "none.toml"),
        (["--config", "none.toml", "--out", "out"], 78, "--preset small --print-config` prints a sample"),
        (["--config", "player.toml", "--out", "out", "--moves", "many"], 78, "--moves: found 'many'"),
        (["--config", "player.toml", "--out", "out", "--moves", "5x"], 78, "the number: k, M or G"),
        (["--config", "player.toml", "--out", "out", "--threads", "1000"], 78, "--threads"),
        (["--config", "player.toml", "--out", "player.toml"], 8, "player.toml"),
    ],
)
def test_what_cannot_be_is_refused(tape: Tape, config: Path, args: list[str], code: int, said: str) -> None:
    done = tape("train-player", *args)
    assert done.code == code
    assert done.out == ""
    assert said in done.err
    assert not Path("out").exists()


def test_a_training_starts_from_a_network(tape: Tape, config: Path) -> None:
    tape("train-player", "--config", config, "--out", "one", "--moves", "1000")
    config.write_text(CONFIG.replace("0145", "0145 01245"))
    command = ["train-player", "--config", config, "--moves", "1k", "--from"]
    for said in ("starting from the network one/network.ntuple", "continuing from "):
        assert said in tape(*command, "one/network.ntuple", "--out", "two").err
    config.write_text(CONFIG.replace("0145", "0146"))
    done = tape(*command, "one/network.ntuple", "--out", "three")
    assert done.code == errors.ConfigError.exit_code
    assert "one/network.ntuple: found the tuples '0123 4567 0145 4589'" in done.err
    assert "Add the network's tuples and stages to the configuration" in done.err
    assert "found no network at 'none'" in tape(*command, "none", "--out", "three").err
    assert not Path("three").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_ends_well(
    config: Path, tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "tape2048_tools.cli", "train-player", "--config", "player.toml"]
    text = stopped_on_terminal(
        [*command, "--out", "out", "--moves", "1e12"], tmp_path, number, after=(b"mean ",), env=environment
    )
    assert "tape2048 train-player: out" in text
    assert "2 threads" in text
    assert "moves/s" in text
    assert "checkpoint at" in text
    assert "stopped. The same command resumes it" in text
    assert "Traceback" not in text
    assert (tmp_path / "out/checkpoint.safetensors").exists()


def progress(moves: int = 4_000_000, **changes: Any) -> TrainingProgress:
    reach = {2048: 0.9, 4096: 0.5, 8192: 0.25, 16384: 0.001, 32768: 0.0}
    found = {"games": 900, "moves_per_s": 2e6, "mean_score": 12_345.0, "reach": reach, **changes}
    return TrainingProgress("moves", moves, 6_000_000_000, found["moves_per_s"], 65.0, found)


def test_a_second_signal_is_one_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 10.1, 11.0])
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: next(now)))
    ended: list[int] = []
    raise_signal = signal.raise_signal
    before = signal.getsignal(signal.SIGINT)
    with stopping.stopped_by_signals() as stop:
        assert not stop.is_set()
        for number in (signal.SIGINT, signal.SIGTERM):
            raise_signal(number)
            assert stop.is_set()
        monkeypatch.setattr(signal, "raise_signal", ended.append)
        raise_signal(signal.SIGINT)
        assert (ended, signal.getsignal(signal.SIGINT)) == ([signal.SIGINT], signal.SIG_DFL)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_line_tells_how_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with player_panel(TrainingConfig(), "out") as view:
        view._next = 0
        view.progress(progress())
        view.progress(progress())
        view.event("checkpoint\x1b at")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "the next one comes half a minute later"
    said = lines[0].split(" info ")[1]
    assert said.startswith("training: learned 4M of 6G moves, 2M moves/s, 1 thread, 1:05, 49:58 left")
    assert "games 900, score mean 12,345, reach 2048 90%, 4096 50%, 8192 25%" in said
    assert lines[1].endswith("checkpoint\\x1b at")


def test_before_the_first_game_there_are_no_means(capsys: pytest.CaptureFixture[str]) -> None:
    view = player_panel(TrainingConfig(), "out")
    for changes in ({"games": 0, "moves_per_s": 0.0}, {"games": 800}):  # ..., just gone on from a checkpoint
        view._next = 0
        view.progress(progress(mean_score=float("nan"), **changes))
    first, second = capsys.readouterr().err.splitlines()
    assert " info getting ready: learned 4M of 6G moves, compiling kernels" in first
    assert " info training: " in second
    assert "nan" not in first + second


def test_the_summary_of_a_training_without_a_game(capsys: pytest.CaptureFixture[str]) -> None:
    from tape2048_tools.terminal.output import print_human

    empty = progress(
        games=0, moves=0, mean_score=float("nan"), reach=dict.fromkeys(progress().figures["reach"], 0.0)
    )
    print_human(*player_summary(empty, done=False, network=Path("a/network.ntuple"), curve=None))
    out = capsys.readouterr().out
    assert "stopped. The same command resumes it" in out
    assert "nan" not in out
    assert "curve" not in out
    print_human(*player_summary(empty, done=False, network=None, curve=None))
    out = capsys.readouterr().out
    assert "stopped. The same command resumes it" in out
    assert "network" not in out
    assert "Next" not in out


def metrics(directory: Path, *lines: dict[str, object]) -> Path:
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return directory


def line(moves: int, score: float | None) -> dict[str, object]:
    return {"moves": moves, "mean_score": score, "reach": {"2048": 0.5, "4096": 0.1}}


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = draw_curve(metrics(tmp_path, line(0, None), line(10**6, 100.0), line(2 * 10**6, 300.0)))
    assert path == tmp_path / "curve.svg"
    text = path.read_text()
    assert text.startswith("<?xml")
    for said in ("mean score, 1-ply", "moves of training", "2048", "4096"):
        assert f"<!-- {said}" in text
    assert "32768" not in text


def test_lines_that_somebody_has_spoilt_cost_no_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    fewer = {**line(3 * 10**6, 200.0), "reach": {"2048": 0.5}}
    spoilt = ({"moves": 5}, {**line(7, 1.0), "reach": 3})
    path = metrics(tmp_path, *spoilt, fewer, line(4 * 10**6, 300.0))
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff{\n\n")
    assert draw_curve(path) == tmp_path / "curve.svg"
    assert "omits 4 damaged lines" in capsys.readouterr().err
    (tmp_path / "curve.svg").unlink()
    (tmp_path / "curve.svg").mkdir()
    with pytest.raises(errors.StorageError, match="curve"):
        draw_curve(path)


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert draw_curve(tmp_path) is None
    assert draw_curve(metrics(tmp_path)) is None
    assert draw_curve(metrics(tmp_path, line(0, None))) is None
    assert not (tmp_path / "curve.svg").exists()


def test_without_matplotlib_a_line_says_what_brings_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw_curve(metrics(tmp_path, line(1, 100.0))) is None
    assert "tape2048[plot]" in capsys.readouterr().err
