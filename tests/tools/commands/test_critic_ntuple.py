"""Commands with n-tuple critics: trained, asked, examined and applied; without PyTorch."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tape2048 import Corpus, errors
from tape2048.base.settings import settings_of
from tape2048.critic import NTupleCritic
from tape2048.critic.critic_config import PRESETS, CriticConfig
from tape2048.critic.ntuple import NTupleCriticConfig
from tape2048.critic.shipped import SHIPPED
from tape2048.game.rules import exps_to_boards
from tape2048_tools.cli import run
from tape2048_tools.options.critic_options import example_toml

from ..conftest import Tape

COMMAND = (sys.executable, "-m", "tape2048_tools.cli")
TRAIN = ("critic", "train", "--kind", "ntuple")
#: The layout of the tests of the SDK, whose kernels are compiled already.
SMALL = (
    "--tuples", "0123 0145", "--stages", "", "--thresholds", "128 256", "--stride", "4", "--epochs", "2",
    "--threads", "1", "--decay", "0.9",
)  # fmt: skip
QUICK = ("--bootstrap", "50", "--player", "none", "--split", "all", "--per-run", "8")


class Made:
    """Sessions of the players ``random`` and ``greedy``, and a critic of the second."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "greedy"
        self.random = directory / "random"
        for player, games in (("random", 20), ("greedy", 300)):
            flags = f"--player {player} --max-games {games} --seed 11 --out {directory / player}".split()
            subprocess.run(
                [*COMMAND, "record", "--workers", "1", *flags], check=True, capture_output=True, timeout=120
            )
        self.both = directory / "both"
        for player in (self.random, self.root):
            shutil.copytree(player, self.both, dirs_exist_ok=True)
        assert run([*TRAIN, *SMALL, str(self.root), "--out", str(directory / "critic")]) == 0
        self.critic = directory / "critic/best.critic"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("critic-ntuple"))


def test_from_sessions_to_a_critic(tape: Tape, made: Made, tmp_path: Path) -> None:
    (tmp_path / "selfplay").symlink_to(made.root)
    done = tape(*TRAIN, *SMALL)
    assert done.code == 0, done.err
    found = dict(line.split(maxsplit=1) for line in done.out.split("\n\n")[0].splitlines())
    assert found["ended"] == "all epochs are complete"
    assert re.fullmatch(r"2 epochs of 2\d\d games, [\d,]+ boards, 0:\d\d, \S+ boards/s", found["learned"])
    assert re.fullmatch(r"critic/best\.critic, [\d,]+ bytes", found["best"])
    validation = r"log loss 0\.\d{5}, base rate 0\.\d{5}, means over boards and tiles"
    assert re.fullmatch(validation, found["validation"])
    assert "tape2048 critic eval critic/best.critic selfplay --oracle 48" in done.out
    assert "info compressing the critic" in done.err
    assert "\x1b" not in done.out + done.err
    lines = [json.loads(line) for line in Path("critic/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines[0]["base_loss"] == lines[1]["base_loss"] > 0
    again = tape(*TRAIN, *SMALL, "--json")
    assert re.search(r"info continuing from 4\d\d games \(\S*/critic/checkpoint", again.err)
    facts = json.loads(again.out)
    assert (facts["done"], facts["early"], facts["best"]) == (True, False, "critic/best.critic")
    assert (facts["loss"], facts["best_loss"]) == (lines[-1]["loss"], min(line["loss"] for line in lines))
    changed = tape(*TRAIN, *SMALL, "--decay", "0.5")
    assert changed.code == errors.StateError.exit_code
    assert "decay = 0.9, not 0.5" in changed.err


def test_from_a_player_to_a_critic(tape: Tape, tmp_path: Path) -> None:
    done = tape(*TRAIN, *SMALL, "--player", "greedy", "--games", "200", "--json")
    assert done.code == 0, done.err
    (player,) = NTupleCritic.load("critic/best.critic").info.players
    assert (player.name, player.games) == ("greedy", 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["critic"], "nothing is recorded"
    other = tape(*TRAIN, *SMALL, "--player", "greedy", "--games", "201")
    assert other.code == errors.StateError.exit_code
    assert re.search(r"has games = 200, not 201; corpus = '[0-9a-f]{64}', not '[0-9a-f]{64}'", other.err)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--player", "greedy"), errors.ConfigError.exit_code, "found 'greedy' beside games = None"),
        (("--games", "5"), errors.ConfigError.exit_code, "found '' beside games = 5"),
        (("--games", "0"), errors.ConfigError.exit_code, "--games"),
        (("--preset", "other"), errors.ConfigError.exit_code, "one of: default"),
        (("--preset", "default", "--config", "a.toml"), 2, "not both"),
        (("--player", "gredy", "--games", "5"), errors.ConfigError.exit_code, "gredy"),
        (("--player", "greedy", "--games", "1"), errors.EmptyCorpusError.exit_code, "more games"),
        (("--player", "greedy", "--games", str(10**13)), errors.ConfigError.exit_code, "of free memory"),
        (("--tower-dim", "8"), 2, "--tower-dim"),
        (("--kind", "forest"), 2, "forest"),
        (("nowhere",), errors.MissingPathError.exit_code, "nowhere"),
        (("--tuples", "012"), errors.ConfigError.exit_code, "groups of 4 to 6 digits"),
        (("--thresholds", "128 131072"), errors.ConfigError.exit_code, "expected tiles up to 65536"),
        (("--learning-rate", "1e9"), errors.ConfigError.exit_code, "--learning-rate"),
        (
            ("--config", "no.toml"),
            errors.ConfigError.exit_code,
            "--kind ntuple --print-config` prints a sample",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    tape: Tape, tmp_path: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    done = tape(*TRAIN, *SMALL, *flags)
    assert done.code == code, done.err
    assert said in done.err
    assert not (tmp_path / "critic").exists()


def test_options_are_those_of_the_kind(tape: Tape) -> None:
    text = tape(*TRAIN, "--help").out
    for setting in settings_of(NTupleCriticConfig).values():
        assert setting.flag in text
    assert "--games" in text
    assert "--tower-dim" not in text
    assert tape("critic", "train", "--kind=ntuple", "--help").out == text
    other = tape("critic", "train", "--help").out
    assert all(setting.flag in other for setting in settings_of(CriticConfig).values())
    assert "--kind ntuple --help" in re.sub(r"\s+", " ", other)
    assert "--tuples" not in other
    assert tape("critic", "train", "--tuples", "0123").code == 2


def test_print_config_is_a_configuration(tape: Tape, tmp_path: Path) -> None:
    assert tape(*TRAIN, "--print-config").out == example_toml(NTupleCriticConfig)
    (tmp_path / "wrong.toml").write_text("tuple = 3")
    wrong = tape(*TRAIN, "--config", "wrong.toml")
    assert (wrong.code, "nearest is 'tuples'" in wrong.err) == (errors.ConfigError.exit_code, True)
    assert "tape2048 critic train --kind ntuple --print-config" in wrong.err


def test_the_shipped_preset_is_valid(tape: Tape) -> None:
    assert set(PRESETS) == set(SHIPPED)
    for name in PRESETS:
        done = tape(*TRAIN, "--preset", name, "--out", "made", "--print-config")
        assert done.code == 0, done.err
        values = tomllib.loads(done.out)
        assert (values["player"], values["out"]) == ("ntuple", "made")
        assert values["games"] >= 15_000


def test_games_of_several_players_need_a_flag(tape: Tape, made: Made) -> None:
    done = tape(*TRAIN, *SMALL, made.both)
    assert done.code == errors.ConfigError.exit_code
    assert re.search(r"found games of 2 players: greedy @\w{6} \(300 games\); random @\w{6} \(20 ", done.err)
    assert '--player-name "greedy @' in done.err
    assert "--mixed-players" in done.err
    one = tape(*TRAIN, *SMALL, made.both, "--player-name", "greedy", "--epochs", "1", "--out", "one")
    assert one.code == 0, one.err
    assert [one.games for one in NTupleCritic.load("one/best.critic").info.players] == [300]
    mixed = tape(*TRAIN, *SMALL, made.both, "--mixed-players", "--epochs", "1")
    assert mixed.code == 0, mixed.err
    assert [one.games for one in NTupleCritic.load("critic/best.critic").info.players] == [300, 20]


def test_tiles_that_nobody_reached_are_said_or_refused(tape: Tape, made: Made) -> None:
    done = tape(*TRAIN, *SMALL, made.root, "--thresholds", "8192 32768", "--out", "none")
    assert done.code == errors.TrainingError.exit_code
    assert re.search(
        r"8,192 was reached by none of \d+ games; 32,768 was reached by none of \d+ games", done.err
    )
    assert not Path("none").exists()
    said = tape(*TRAIN, *SMALL, made.root, "--thresholds", "128 32768", "--epochs", "1")
    assert said.code == 0
    assert re.search(r"info 32,768 was reached by none of \d+ games: its probability says no more", said.err)


BOARD = [0, 2, 0, 0, 0, 4, 2, 0, 8, 16, 4, 2, 64, 32, 16, 128]
PACKED = sum(max(tile.bit_length() - 1, 0) << (60 - 4 * cell) for cell, tile in enumerate(BOARD))
ROWS = " / ".join(" ".join(map(str, BOARD[row : row + 4])) for row in range(0, 16, 4))


def test_a_board_is_asked_in_any_spelling(tape: Tape, made: Made) -> None:
    critic = NTupleCritic.load(made.critic)
    p = critic(np.array([PACKED], np.uint64))[0].tolist()
    spellings = [
        f"0x{PACKED:016x}",
        str(PACKED),
        f"{PACKED:016x}",
        ROWS,
        ROWS.replace(" / ", ","),
        ROWS.replace(" / ", "\n"),
    ]
    done = tape("critic", "ask", "--critic", made.critic, *spellings, "--json")
    assert done.code == 0, done.err
    assert done.json["critic_sha256"] == critic.sha256
    assert [name.split(" @")[0] for name in done.json["players"]] == ["greedy"]
    for found in done.json["boards"]:
        assert found["board"] == PACKED
        assert [2**exp if exp else 0 for exp in found["exps"]] == BOARD
        assert list(found["probabilities"].values()) == pytest.approx(p)
    text = tape("critic", "ask", "--critic", made.critic, spellings[0]).out
    assert [line.split() for line in text.splitlines()] == [
        ["board", spellings[0]],
        ["P(128)", f"{p[0]:.4f}"],
        ["P(256)", f"{p[1]:.4f}"],
    ]
    assert p[0] == 1


def test_what_is_no_board_is_refused(tape: Tape, made: Made) -> None:
    for board in (
        "", "x", "0x", "0x1ffffffffffffffff", str(2**64), "1.5", "0 " * 15 + "-2",
        "24 " + "0 " * 15, "65536 " + "0 " * 15, "0 " * 15, "0 " * 17, "2 4",
    ):  # fmt: skip
        done = tape("critic", "ask", "--critic", made.critic, board)
        assert (done.code, done.out) == (2, "")
        assert "Invalid value for BOARD: found" in done.err, board


def test_what_is_no_critic_is_refused(tape: Tape, made: Made) -> None:
    for critic, said in (
        ("nowhere", "nowhere: no such file or directory\nhint: Give the path of a critic"),
        (made.root / "x", "no such file or directory"),
        (made.critic.parent / "metrics.jsonl", "claims"),
        (
            made.critic.parent / "checkpoint.safetensors",
            "found the format 'tape2048 n-tuple critic checkpoint",
        ),
    ):
        done = tape("critic", "ask", "--critic", critic, "0x1")
        kinds = (errors.MissingPathError, errors.ModelError, errors.TruncatedError)
        assert done.code in {kind.exit_code for kind in kinds}
        assert said in done.err
        assert "hint:" in done.err


def test_it_is_examined_like_any_critic(tape: Tape, made: Made, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = tape("critic", "eval", made.critic, made.root, *QUICK, "--json", "--out", report)
    assert done.code == 0, done.err
    found = done.json
    assert (found["kind"], found["critic_sha256"]) == ("ntuple", NTupleCritic.load(made.critic).sha256)
    everything = {
        cell["threshold"]: cell["scores"] for cell in found["evaluation"]["cells"] if cell["stage"] == "all"
    }
    assert everything.keys() == {128, 256}
    for scores in everything.values():
        assert scores["critic"]["brier"]["value"] < scores["prevalence"]["brier"]["value"]
    assert "The critic judges" not in done.out
    assert b'"examination"' in report.read_bytes()
    held_out = tape("critic", "eval", made.critic, made.root, *QUICK[:4])
    assert held_out.code == 0, held_out.err


def test_games_of_another_player_are_said(tape: Tape, made: Made) -> None:
    done = tape("critic", "eval", made.critic, made.random, *QUICK)
    assert done.code == 0, done.err
    said = re.sub(r"\s+", " ", done.out)
    assert "The critic judges greedy. These are games of random." in said
    scored = tape("critic", "score", made.critic, made.random, "--out", "scores")
    assert "The critic judges greedy. These are games of random." in scored.err
    assert scored.code == 0


def test_every_row_is_scored(tape: Tape, made: Made) -> None:
    done = tape("critic", "score", made.critic, made.root, "--out", "scores", "--name", "mine", "--json")
    assert done.code == 0, done.err
    assert "The critic judges" not in done.err
    critic = NTupleCritic.load(made.critic)
    assert (done.json["critic_sha256"], done.json["thresholds"]) == (critic.sha256, [128, 256])
    for session in Corpus.open(made.root, columns="scores").sessions:
        values, info, _ = session.column("mine")
        assert (info.facts["critic_sha256"], info.facts["thresholds"]) == (critic.sha256, [128, 256])
        assert (values == critic(exps_to_boards(session.tokens(slice(None))))).all()


def test_all_of_it_works_without_torch(made: Made, tmp_path: Path, environment: dict[str, str]) -> None:
    commands = [
        [*TRAIN, *SMALL, str(made.root), "--epochs", "1"],
        ["critic", "ask", "--critic", "critic/best.critic", "0x1"],
        ["critic", "eval", "critic/best.critic", str(made.root), *QUICK],
        ["critic", "score", "critic/best.critic", str(made.root), "--out", "scores"],
        ["critic", "ask", "--critic", "nowhere", "0x1"],
        ["critic", "ask", "--critic", "critic", "0x1"],
    ]
    code = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
hidden = ("torch", "safetensors")
PathFinder.find_spec = lambda name, *more: None if name in hidden else find(name, *more)
from tape2048_tools.cli import run
print([run(command) for command in {commands!r}])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    missing, without = errors.MissingPathError.exit_code, errors.MissingPackageError.exit_code
    expected = [0, 0, 0, 0, missing, without]
    assert done.stdout.splitlines()[-1] == str(expected), done.stderr
