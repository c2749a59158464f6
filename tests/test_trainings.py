"""The contract of all trainings: one that was killed at any point, or stopped, resumes to the last bit."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .sdk.critics import make_games
from .trainings import KINDS, POINTS, result

CHECKOUT = Path(__file__).resolve().parents[1]
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=NEEDS_TORCH if kind == "transformer" else ()) for kind in KINDS]
)
def test_interrupted_anywhere_it_resumes_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    games = make_games(tmp_path / "games")
    command = [sys.executable, "-m", "tests.trainings", kind, str(games), str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    expected = result(kind, tmp_path / "whole")
    for number, point in enumerate(POINTS):
        found = result(kind, tmp_path / str(number))
        assert found["names"] == expected["names"], point
        for part, value in expected.items():
            assert found[part] == value, (point, part)
