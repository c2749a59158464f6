"""The game loop alone: steps per CPU-second of each player, and what writing rows costs.

::

    python -m tests.bench.engine [--rounds 7] [--part 1]
"""

from pathlib import Path

from .figures import Benchmark, Figure, alternate, cpu_rate, median_of
from .games import Games, make_buffer

#: Games in a round: about a second of play.
GAMES = {
    "random": 400_000, "greedy": 100_000, "expectimax:depth=1": 500, "expectimax:depth=2": 20,
    "expectimax:depth=3": 2, "ntuple:look_below=0": 400, "ntuple": 120,
    "ntuple:look_below=16,look_margin=0": 25,
}  # fmt: skip
TARGETS = {
    "random": 28e6, "ntuple:look_below=0": 5.0e6, "ntuple": 1.1e6,
    "ntuple:look_below=16,look_margin=0": 0.2e6,
}  # fmt: skip
RECORDED = ("random", "greedy", "expectimax:depth=1")


def _games(player: str, part: int) -> Games:
    found = Games(player, max(1, GAMES[player] // part))
    found.play_unrecorded()  # compiles
    return found


def recorded_figures(player: str, *, rounds: int, part: int) -> list[Figure]:
    """Play through a worker's buffer, and unrecorded, in turns."""
    play, buffer = _games(player, part), make_buffer()
    play.play_recorded(buffer)  # compiles, and touches the buffer's memory
    recorded, unrecorded, ratios = alternate(
        lambda: cpu_rate(lambda: play.play_recorded(buffer)), lambda: cpu_rate(play.play_unrecorded), rounds
    )
    pairs = zip(recorded, unrecorded, strict=True)
    group = "rows into the buffer"
    return [
        median_of(recorded, group=group, name=f"`{player}`", unit="steps/CPU-s"),
        median_of(ratios, group=group, name=f"`{player}`, of unrecorded", unit="ratio"),
        median_of([1e9 / a - 1e9 / b for a, b in pairs], group=group, name=f"`{player}`, a row", unit="ns"),
    ]


def measure(_directory: Path, *, rounds: int, part: int, depth: int) -> list[Figure]:
    """All of them, with a part of the games; ``expectimax`` up to a depth."""
    figures = []
    for player in GAMES:
        if player.startswith("expectimax") and int(player[-1]) > depth:
            continue
        play = _games(player, part)
        rates = [cpu_rate(play.play_unrecorded) for _ in range(rounds)]
        name, target = f"`{player}`, unrecorded", TARGETS.get(player)
        figures.append(median_of(rates, group="engine", name=name, unit="steps/CPU-s", target=target))
    for player in RECORDED:
        figures += recorded_figures(player, rounds=rounds, part=part)
    return figures


BENCHMARK = Benchmark(
    measure,
    sizes={"rounds": 7, "part": 1, "depth": 3},
    smallest={"rounds": 1, "part": 20_000, "depth": 2},
)

if __name__ == "__main__":
    BENCHMARK.main("engine", __doc__)
