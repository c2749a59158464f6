"""The example scripts run as they stand, on sessions that ``tape2048 record`` left."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus
from tape2048.session.column_draft import write_column

from ..critics import make_games

EXAMPLE = Path(__file__).parents[3] / "examples/train_critic.py"
COLUMNS = EXAMPLE.with_name("train_on_columns.py")


def test_help() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--help"], check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "directory of sessions" in done.stdout


@pytest.mark.slow
def test_from_sessions_to_a_critic(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    record = ["record", "--max-games", "200", "--seed", "1"]
    subprocess.run(
        [sys.executable, "-m", "tape2048_tools.cli", *record],
        cwd=tmp_path, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = re.search(r"validation loss ([\d.]+); without training ([\d.]+)", done.stdout)
    assert losses is not None, done.stdout
    learned, chance = map(float, losses.groups())
    assert learned < 0.95 * chance
    assert "constant labels" not in done.stderr
    assert re.search(r"state of the loader: \{'seed': 1, 'epoch': \d+, 'position': \d+\}", done.stdout)


def test_both_heads_learn_from_columns(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("train_on_columns", COLUMNS)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for session in Corpus.open(make_games(tmp_path)).sessions:
        values = np.tile(np.float32([20_000, np.nan, 30_000, 40_000]), (len(session), 1))
        write_column(session, "values", values)
        write_column(session, "loss", np.where(session.labels([8192])[:, 0], 1000, np.nan).astype(np.float32))
    games = Corpus.open(tmp_path)
    tokens = games.tokens(slice(0, 400))
    said = {mistakes: example.train(games, steps=60, mistakes=mistakes) for mistakes in (0.0, 99.0)}
    guessed = said[0.0](example.torch.from_numpy(tokens))[1].mean(dim=0).tolist()
    assert guessed[0] == pytest.approx(0.2, abs=0.05)
    assert guessed[2:] == pytest.approx([0.3, 0.4], abs=0.05)
    plain, emphatic = (example.predictor(net)(tokens)[:, 0].mean() for net in said.values())
    assert emphatic > plain + 0.1


@pytest.mark.slow
def test_from_annotated_sessions_to_a_network(tmp_path: Path) -> None:
    for line in ("record --player ntuple:look=0 --max-games 60 --seed 1", "annotate selfplay"):
        subprocess.run(
            [sys.executable, "-m", "tape2048_tools.cli", *line.split()],
            cwd=tmp_path, check=True, capture_output=True, timeout=300,
        )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", str(COLUMNS), "--steps", "300"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"16384: AUROC ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 0.6
