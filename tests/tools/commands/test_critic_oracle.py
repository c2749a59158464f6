"""Examining a critic against rollouts, by the command, on games that it recorded."""

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tape2048 import Corpus
from tape2048.critic import Estimate
from tape2048.critic.facts import SplitInfo
from tape2048.critic.results import estimate_text
from tape2048.errors import CorpusError, ReplayError
from tape2048.torch.heads import CriticHead, HeadInfo
from tape2048.torch.torch_critic import CriticInfo, TowerInfo, save_critic
from tape2048.torch.tower import Tower, TowerConfig, tower_sha256
from tape2048_recorder.evaluation.evaluated_games import play_rollouts
from tape2048_recorder.players.options import make_player
from tape2048_tools.critic_report import rollouts_of

from ..conftest import Tape

TILES = (128, 256, 4096)
COMMAND = (sys.executable, "-m", "tape2048_tools.cli")
CONFIG = TowerConfig(dim=8, layers=1, heads=1, ffn=8)
QUICK = ("--bootstrap", "50", "--player", "none", "--device", "cpu", "--per-run", "8")
ORACLE = (*QUICK, "--oracle", "6", "--positions", "300")


class Made:
    """Sessions of the players ``random`` and ``greedy``, and a critic."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "random"
        for player in ("random", "greedy"):
            flags = f"--player {player} --max-games 400 --seed 11 --out {directory / player}".split()
            subprocess.run(
                [*COMMAND, "record", "--workers", "1", *flags], check=True, capture_output=True, timeout=120
            )
        self.both = directory / "both"
        self.both.mkdir()
        for number, player in enumerate(("random", "greedy")):
            (session,) = Corpus.open(directory / player).sessions
            shutil.copytree(session.path, self.both / f"2026010{number + 1}T000000Z_model={player}")
        torch.manual_seed(3)
        tower, head = Tower(CONFIG), CriticHead(8, TILES)
        facts: dict[str, Any] = {
            "thresholds": list(TILES), "head": HeadInfo(in_dim=8),
            "split": SplitInfo(fractions={"train": 0.5, "val": 0.25, "test": 0.25}),
            "corpus_hash": Corpus.open(self.root).identity, "step": 40, "training": {"per_run": 8},
        }  # fmt: skip
        self.critic = directory / "critic"
        own = TowerInfo(sha256=tower_sha256(tower), config=CONFIG)
        save_critic(self.critic, CriticInfo(kind="tokens", tower=own, **facts), head, tower)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("critic-oracle"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of a test in its own directory; kernels stay where they are."""
    monkeypatch.setattr("tape2048.critic.oracle._default_directory", lambda: tmp_path / "oracle")


def test_every_predictor_is_measured_against_rollouts(tape: Tape, made: Made, tmp_path: Path) -> None:
    done = tape("critic", "eval", made.critic, made.root, *ORACLE, "--json")
    assert done.code == 0, done.err
    document = done.json
    found = document["evaluation"]
    truth = found["truth"]
    assert (truth["positions"], truth["rollouts"], truth["known"]) == (300, 6, 0)
    (session,) = Corpus.open(made.root).sessions
    assert truth["player_sha256"] == session.meta["player_sha256"]
    for cell in found["cells"]:
        if cell["stage"] not in {"all", "undecided"}:
            continue
        for name in ("critic", "prevalence", "highest tile"):
            oracle = cell["scores"][name]["oracle"]
            if cell["threshold"] == 128 and cell["stage"] == "all":
                assert oracle["r2"]["low"] <= oracle["r2"]["value"] <= oracle["r2"]["high"] <= 1
            elif cell["threshold"] > 128:
                assert oracle["r2"] is None
                assert "games reached the tile; expected at least 30" in oracle["note"]
            if cell["threshold"] < 4096:  # nobody gets there
                assert 0 <= oracle["ece"]["value"] < 1
                assert 0 < oracle["ece_noise"] < 0.2
    tile = found["cells"][0]["scores"]["highest tile"]["oracle"]
    critic = found["cells"][0]["scores"]["critic"]["oracle"]
    assert tile["r2"]["value"] > critic["r2"]["value"]  # it was not trained
    assert "NaN" not in done.out
    again = tape("critic", "eval", made.critic, made.root, *ORACLE, "--json")
    assert again.json["evaluation"]["truth"]["known"] == 300
    truth["known"] = 300
    assert again.json == document


def test_tables_csv_and_the_report_show_them(tape: Tape, made: Made, browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = tape("critic", "eval", made.critic, made.root, *ORACLE, "--out", out)
    assert done.code == 0, done.err
    player = Corpus.open(made.root).players[0].player
    assert f"rollouts   6 from each of 300 positions, by {player}, seed" in done.out
    assert "128: against rollouts (AUROC: against outcomes)" in done.out
    assert "128: means over the positions" in done.out
    assert "not measurable" in done.out
    lines = list(
        csv.DictReader(io.StringIO(tape("critic", "eval", made.critic, made.root, *ORACLE, "--csv").out))
    )
    one = next(line for line in lines if (line["stage"], line["predictor"]) == ("all", "highest tile"))
    value, low, high = (float(one[f"oracle_r2{end}"]) for end in ("", "_low", "_high"))
    between = " to " if low < 0 else "-"
    assert f"{value:.3f} ({low:.3f}{between}{high:.3f})" in done.out
    assert (one["oracle_positions"], one["oracle_note"]) == ("300", "")
    page = browser.new_page(offline=True)
    page.goto(out.as_uri())
    page.locator("#main[data-ready=yes]").wait_for()
    # Not of the highest tile, which no game reached.
    assert page.locator("figcaption:text('Predicted and true probability of')").count() == len(TILES) - 1
    assert page.locator("caption:text('Against rollouts for 128')").count() == 1
    assert page.locator("caption:text('Means over the positions for 256')").count() == 1
    assert page.get_by_text("4096 is not measured").count() > 0
    plain = tape("critic", "eval", made.critic, made.root, *QUICK, "--out", out, "--force")
    assert "rollouts" not in plain.out
    page.goto(out.as_uri())
    page.locator("#main[data-ready=yes]").wait_for()
    assert "rollouts" not in page.locator("#main").text_content()
    page.close()


def test_an_interval_below_zero_is_not_two_hyphens() -> None:
    assert estimate_text(Estimate(-0.1, -0.25, -0.05)) == "-0.100 (-0.250 to -0.050)"
    assert estimate_text(Estimate(0.1, 0.05, 0.25)) == "0.100 (0.050-0.250)"


def test_rollouts_are_of_the_recorded_player(made: Made) -> None:
    corpus = Corpus.open(made.root)
    boards = np.array([0x1000000000000001, 0x1234123412341230], np.uint64)
    found = rollouts_of(corpus, 6, 9).ask(boards)
    expected = play_rollouts(make_player("random", {}), boards, rollouts=6, seed=9, threads=1)
    assert (found.counts == expected).all()


def alter(session: Path, **facts: Any) -> None:
    with closing(sqlite3.connect(session / "metadata.db")) as database, database:
        for key, value in facts.items():
            if value is None:
                database.execute("DELETE FROM session WHERE meta_key = ?", (key,))
            else:
                change = "UPDATE session SET meta_value = ? WHERE meta_key = ?"
                database.execute(change, (json.dumps(value), key))
    (session / "manifest.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"player_sha256": "0" * 64}, "found games by random with SHA-256 000000000000, expected"),
        ({"player_sha256": None}, "facts do not identify its player"),
        ({"player": "python:mine:make"}, "python:mine:make, expected a built-in player"),
        (
            {"player": "ntuple", "player_args": {"weights": "gone.ntuple"}},
            "its player is not available: found no network at 'gone.ntuple'",
        ),
    ],
)
def test_other_players_are_refused_by_name(
    tape: Tape, made: Made, tmp_path: Path, facts: dict[str, Any], said: str
) -> None:
    (session,) = Corpus.open(made.root).sessions
    changed = Path(shutil.copytree(session.path, tmp_path / "changed" / session.path.name))
    alter(changed, **facts)
    done = tape("critic", "eval", made.critic, changed.parent, *ORACLE, "--split", "all")
    assert (done.code, said in done.err) == (ReplayError.exit_code, True), done.err
    assert "hint:" in done.err
    assert tape("critic", "eval", made.critic, changed.parent, *QUICK, "--split", "all").code == 0


def test_games_of_two_players_are_refused_by_name(tape: Tape, made: Made) -> None:
    done = tape("critic", "eval", made.critic, made.both, *ORACLE, "--split", "all")
    assert done.code == CorpusError.exit_code
    hashes = [str(one.meta["player_sha256"])[:6] for one in Corpus.open(made.both).sessions]
    assert "found games of 2 players: random @" in done.err
    assert all(part in done.err for part in ("random @", "greedy @", *hashes))
    assert "hint:" in done.err


@pytest.mark.parametrize("wrong", [("--oracle", "1"), ("--oracle", "65536"), ("--positions", "0")])
def test_numbers_out_of_range_are_refused(tape: Tape, made: Made, wrong: tuple[str, str]) -> None:
    assert tape("critic", "eval", made.critic, made.root, *QUICK, *wrong).code == 2
