"""The example script runs as it stands, on sessions that ``tape2048 record`` left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples/train_critic.py"


@pytest.mark.slow
def test_from_sessions_to_a_critic(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    record = ["record", "--player", "greedy", "--max-games", "300", "--seed", "1", "--workers", "1"]
    subprocess.run(
        [sys.executable, "-m", "tape2048_tools.cli", *record],
        cwd=tmp_path, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = re.search(r"validation loss ([\d.]+); of a critic that knows nothing ([\d.]+)", done.stdout)
    assert losses is not None, done.stdout
    learned, chance = map(float, losses.groups())
    assert learned < 0.95 * chance
    assert re.search(r"to go on from: \{'seed': 1, 'epoch': \d+, 'position': \d+\}", done.stdout)
