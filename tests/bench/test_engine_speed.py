"""The game loop alone: steps per CPU-second of each player, and what writing rows costs."""

import time
from typing import Any

import pytest

from .figures import Figure, alternate, cpu_rate, median_of
from .games import Games, make_buffer

#: Games in a round: about a second of play at full size, and 20 in the suite.
GAMES = {
    "random": 400_000, "greedy": 100_000, "expectimax:depth=1": 500, "expectimax:depth=2": 20,
    "expectimax:depth=3": 2, "ntuple:look_below=0": 400, "ntuple": 120,
    "ntuple:look_below=16,look_margin=0": 25,
}  # fmt: skip
TARGETS = {
    "random": 28e6, "ntuple:look_below=0": 5.0e6, "ntuple": 1.1e6,
    "ntuple:look_below=16,look_margin=0": 0.2e6,
}  # fmt: skip
TOY_PART = 20_000


def games(player: str, *, full: bool) -> Games:
    found = Games(player, GAMES[player] if full else max(1, GAMES[player] // TOY_PART))
    found.play_unrecorded()  # compiles
    return found


@pytest.mark.benchmark(group="engine", timer=time.process_time)
@pytest.mark.parametrize("player", GAMES)
def test_unrecorded_play(player: str, benchmark: Any, figures: list[Figure], rounds: int, full: bool) -> None:
    if player == "expectimax:depth=3" and not full:
        pytest.skip("seconds a game, of the code that depth 2 runs as well")
    play = games(player, full=full)
    rates: list[float] = []

    def measure() -> None:
        rates.append(cpu_rate(play.play_unrecorded))

    benchmark.pedantic(measure, rounds=rounds, warmup_rounds=int(full))
    target = TARGETS.get(player)
    name = f"`{player}`, unrecorded"
    figures.append(median_of(rates[-rounds:], group="engine", name=name, unit="steps/CPU-s", target=target))
    assert min(rates) > 0


@pytest.mark.benchmark(group="rows", timer=time.process_time)
@pytest.mark.parametrize("player", ["random", "greedy", "expectimax:depth=1"])
def test_rows_into_the_buffer(
    player: str, benchmark: Any, figures: list[Figure], rounds: int, full: bool
) -> None:
    play = games(player, full=full)
    buffer = make_buffer()
    play.play_recorded(buffer)  # compiles, and touches the buffer's memory
    found: list[tuple[list[float], list[float], list[float]]] = []
    benchmark.pedantic(
        lambda: found.append(
            alternate(
                lambda: cpu_rate(lambda: play.play_recorded(buffer)),
                lambda: cpu_rate(play.play_unrecorded),
                rounds,
            )
        ),
        rounds=1,
    )
    recorded, unrecorded, ratios = found[0]
    group = "rows into the buffer"
    figures += [
        median_of(recorded, group=group, name=f"`{player}`", unit="steps/CPU-s"),
        median_of(ratios, group=group, name=f"`{player}`, of unrecorded", unit="ratio"),
        median_of(
            [1e9 / a - 1e9 / b for a, b in zip(recorded, unrecorded, strict=True)],
            group=group, name=f"`{player}`, a row", unit="ns",
        ),
    ]  # fmt: skip
