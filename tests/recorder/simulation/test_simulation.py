"""Recorders in a simulated world: a sample of lives (`make simulate`: all), and defects that they find."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants import planted

from .history import Failure, live, live_seeds, make_plan
from .mutants import MUTANTS
from .shrink import as_test, shrink

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


def test_a_failure_is_shortened_and_becomes_a_test() -> None:
    def fails(short: Failure) -> Failure | None:
        made: dict[str, object] = {"Plan": type(short.plan), "Event": type(short.plan.events[0])}
        found: list[Failure | None] = []
        made["live"] = lambda plan: found.append(live(plan))
        exec(as_test(short), made)  # noqa: S102
        made[f"test_history_{short.plan.seed}"]()  # type: ignore[operator]
        return found[0]

    with planted(MUTANTS["a missed death"]):
        _, failure = live_seeds(0, 100)
        short = shrink(failure)
        assert fails(short) is not None
    assert fails(short) is None
    assert len(short.plan.settings) <= 2
    assert 1 <= len(short.plan.events) <= 2
    assert len(make_plan(short.plan.seed).events) > len(short.plan.events)
