"""``tape2048 bench-player``: figures that add up, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tape2048 import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Outcome

    Tape = Callable[..., Outcome]

PLAYER = f"python:{Path(__file__).parents[2] / 'recorder/lanes/batched.py'}:hashed"


@pytest.mark.parametrize("player", ["null", PLAYER])
def test_the_shares_of_the_time_add_up(tape: Tape, player: str) -> None:
    done = tape("bench-player", player, "--lanes", "8,64", "--seconds", "0.1", "--json")
    measurements = done.json["measurements"]
    assert [one["lanes"] for one in measurements] == [8, 64]
    for one in measurements:
        shares = [one[name] for name in ("model", "rules", "record", "rest")]
        assert all(share >= 0 for share in shares)
        assert sum(shares) == pytest.approx(1, abs=0.05)
        assert one["moves"] > 0
        assert one["calls_per_s"] > 0
        assert one["model"] > 0


def test_a_table_for_people(tape: Tape) -> None:
    done = tape("bench-player", f"{PLAYER}:key=3", "--lanes", "8", "--seconds", "0.05", "--method", "softmax")
    assert done.code == 0
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
        (["null", "--method", "beam"], errors.ConfigError.exit_code),
        (["python:no.such:make"], errors.StartError.exit_code),
        ([f"{PLAYER}:kee=1"], errors.PlayerError.exit_code),
    ],
)
def test_what_cannot_be_is_refused(tape: Tape, args: list[str], code: int) -> None:
    done = tape("bench-player", *args)
    assert done.code == code
    assert done.out == ""
