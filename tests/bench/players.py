"""How strong the players are, and how fast: the table in the README.

``python tests/bench/players.py [GAMES]`` plays that many seeded games (default 2,000; a tenth of it for
expectimax depth 2, a hundredth for depth 3) with each player. One thread; moves per CPU-second.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from tape2048_recorder.game_loop import play_unrecorded
from tape2048_recorder.players import make_player
from tape2048_recorder.rng import game_seeds

PLAYERS = (
    ("random", {}, 1.0),
    ("greedy", {}, 1.0),
    ("expectimax", {"depth": 1}, 1.0),
    ("expectimax", {"depth": 2}, 0.1),
    ("expectimax", {"depth": 3}, 0.01),
)


def measure(name: str, args: dict[str, int], games: int) -> tuple[float, float, list[float], float]:
    """Mean score, half its 95% interval, shares reaching 2048 / 4096 / 8192, moves per CPU-second."""
    player = make_player(name, args)
    seeds = game_seeds(2048, np.arange(games, dtype=np.uint64))
    scores = np.zeros(games, dtype=np.uint64)
    highest = np.zeros(games, dtype=np.uint64)
    play_unrecorded(player, seeds[:1], scores, highest)  # compiles
    begin = time.process_time()
    moves = play_unrecorded(player, seeds, scores, highest)
    seconds = time.process_time() - begin
    half = 1.96 * scores.astype(np.float64).std(ddof=1) / np.sqrt(games)
    return (
        float(scores.mean()),
        float(half),
        [float((highest >= t).mean()) for t in (2048, 4096, 8192)],
        moves / seconds,
    )


def main() -> None:
    """Print the table's rows, with intervals."""
    games = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for name, args, part in PLAYERS:
        count = max(2, int(games * part))
        mean, half, reach, rate = measure(name, args, count)
        label = name + "".join(f":{key}={value}" for key, value in args.items())
        shares = " / ".join(f"{100 * share:.1f}%" for share in reach)
        sys.stdout.write(
            f"| `{label}` | {mean:,.0f} ± {half:,.0f} | {shares} | {rate / 1e6:.3g}M | {count} games |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
