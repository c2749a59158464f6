"""Recorders in a simulated world: a sample of lives (`make simulate`: all), and defects that they find."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants import planted

from .history import live, live_seeds
from .mutants import MUTANTS

CHECKOUT = Path(__file__).resolve().parents[3]
LIVES = 600
#: Histories in which a defect has to show; each has almost three lives.
HISTORIES = 500
#: The history to start with, for defects that show in few of them: it saves most of their time.
FIRST = {
    "a rotation that is done too early": 220,
    "a lost reload": 130,
    "rows given out twice": 75,
    "a hung worker stays": 75,
}


def test_a_sample_of_lives() -> None:
    command = [sys.executable, "-m", "tests.recorder.simulation", "--lives", str(LIVES)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_is_found(name: str) -> None:
    with planted(MUTANTS[name]):
        lives, failure = live_seeds(FIRST.get(name, 0), HISTORIES)
    assert failure is not None, f"not found in {lives} lives"
    assert live(failure.plan) is None, "and not without the defect"


def test_a_seed_decides_a_history() -> None:
    with planted(MUTANTS["a missed death"]):
        once, again = (live_seeds(0, 100)[1] for _ in range(2))
    assert once is not None
    assert once == again
