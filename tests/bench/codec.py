"""Games on tape: decoding in sequence, the checks of publication, and encoding; one core.

::

    python -m tests.bench.codec [--rounds 7] [--part 1]
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tape2048.session import check_games, decode, encode

from .figures import Benchmark, Figure, cpu_rate, in_turns, median_of
from .games import play

#: Games of each player, four million rows.
GAMES = {"random": 35_000, "ntuple:look_below=0": 500}
#: Rows per second of one core.
TARGET = 150e6


def player_figures(player: str, *, games: int, rounds: int) -> list[Figure]:
    """Each direction, in turns."""
    boards, moves, finals, runs = play(player, games)
    first, steps = runs["first_row"].astype(np.int64), runs["rows"].astype(np.int64)
    tape = np.empty(len(boards), np.uint8)
    out, ends, wrong = np.empty_like(boards), np.empty_like(finals), np.empty(len(runs), np.uint8)
    # Where a 2 and a 4 end a game, either is a game of the same score.
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(boards, moves, first, steps, finals, tape),
        "decode": lambda: decode(tape, first, steps, boards[first], out, ends, wrong),
        "decode and check": lambda: check_games(tape, runs, boards[first], out).defects,
    }

    def rate(run: Callable[[], object]) -> float:
        def rows() -> int:
            run()
            return len(boards)

        return cpu_rate(rows)

    turns = {name: functools.partial(rate, run) for name, run in work.items()}
    in_turns(turns, 1)  # compiles
    assert (out == boards).all()
    assert not wrong.any()
    return [
        median_of(
            rates, group="tape", name=f"{name} games of `{player}`", unit="rows/s",
            target=TARGET if name == "decode" else None,
        )
        for name, rates in in_turns(turns, rounds).items()
    ]  # fmt: skip


def measure(_directory: Path, *, rounds: int, part: int) -> list[Figure]:
    """Games of each player, or a part of them."""
    found = (
        player_figures(player, games=max(1, count // part), rounds=rounds) for player, count in GAMES.items()
    )
    return [figure for figures in found for figure in figures]


BENCHMARK = Benchmark(measure, sizes={"rounds": 7, "part": 1}, smallest={"rounds": 1, "part": 500})

if __name__ == "__main__":
    BENCHMARK.main("codec", __doc__)
