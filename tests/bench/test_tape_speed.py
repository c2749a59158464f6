"""Games on tape: decoding in sequence, the checks of publication, and encoding; one core."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tape2048.tape import check_games, decode, encode

from .figures import Figure, median_of
from .games import play

GROUP = "tape"
#: Games of each player, four million rows at full size.
GAMES = {"random": 35_000, "ntuple:look_below=0": 500}
#: Rows per second of one core.
TARGET = 150e6


@pytest.mark.benchmark(group="tape", timer=time.process_time)
@pytest.mark.parametrize("player", GAMES)
def test_sequential_decoding(
    player: str, benchmark: Any, figures: list[Figure], rounds: int, full: bool
) -> None:
    boards, moves, finals, runs = play(player, GAMES[player] if full else 3)
    first, steps = runs["first_row"].astype(np.int64), runs["rows"].astype(np.int64)
    tape = np.empty(len(boards), np.uint8)
    out, ends, wrong = np.empty_like(boards), np.empty_like(finals), np.empty(len(runs), np.uint8)
    # Where a 2 and a 4 end a game, either is a game of the same score.
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(boards, moves, first, steps, finals, tape),
        "decode": lambda: decode(tape, first, steps, boards[first], out, ends, wrong),
        "decode and check": lambda: check_games(tape, runs, boards[first], out).defects,
    }
    rates: dict[str, list[float]] = {name: [] for name in work}

    def measure() -> None:
        for name, run in work.items():
            begin = time.process_time()
            run()
            rates[name].append(len(boards) / max(1e-9, time.process_time() - begin))

    measure()  # compiles
    assert (out == boards).all()
    assert not wrong.any()
    assert work["decode and check"]() == []
    for found in rates.values():
        found.clear()
    benchmark.pedantic(measure, rounds=rounds)
    figures += [
        median_of(
            values[-rounds:], group=GROUP, name=f"{name} games of `{player}`", unit="rows/s",
            target=TARGET if name == "decode" else None,
        )
        for name, values in rates.items()
    ]  # fmt: skip
