"""A training that SIGKILL ends in the middle, and that goes on as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tape2048.corpus import Corpus

torch = pytest.importorskip("torch")

from .. import training  # noqa: E402 - after the skip

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``tape2048 record`` leaves: some sessions of random play."""
    root = tmp_path_factory.mktemp("recorded") / "selfplay"
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", "random", "--seed", "3"]
    settings = ["--max-games", "60", "--workers", "1", "--rotate-steps", "3000", "--out-dir", str(root)]
    subprocess.run([*command, *settings], check=True, capture_output=True, timeout=120)
    return root


def killed_after(batches: int, root: Path, directory: Path) -> None:
    """Start the training, and end it with SIGKILL after so many batches."""
    command = [sys.executable, "-m", "tests.sdk.training", str(root), str(directory), "--paced"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=pipe, stdout=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(batches):
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"batch\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL


@pytest.mark.slow
def test_killed_training_goes_on_with_the_same_rows(recorded: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    training.train(recorded, whole, threads=2, paced=False)
    corpus = Corpus.open(recorded).where(min_steps=50)
    assert len(corpus.sessions) > 1
    batches = len(corpus.batches(training.BATCH))
    expected = (whole / "rows.log").read_text().splitlines()
    assert len(expected) == 2 * batches
    first = [int(row) for line in expected[:batches] for row in line.split()]
    assert sorted(first) == list(range(len(corpus)))

    # Once in the first epoch, and once in the second; each time some batches after the last checkpoint.
    killed_after(6, recorded, broken)
    assert torch.load(broken / "checkpoint.pt")["loader"]["position"] == 4
    killed_after(batches, recorded, broken)
    state = torch.load(broken / "checkpoint.pt")["loader"]
    assert state["epoch"] == 1
    training.train(recorded, broken, threads=0, paced=False)

    assert (broken / "rows.log").read_text().splitlines() == expected
    models = [torch.load(directory / "done.pt") for directory in (whole, broken)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
