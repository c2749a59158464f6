"""Rows after a tile per CPU hour: of ordinary games, and of games from boards that have just made it.

::

    python -m tests.bench.late_games [--player ntuple:weights=small,look_below=0] [--tile 16384] [--cpu-s 20]

One thread plays whole games with the recorder's loop, in turn: ordinary games, then games from the first
boards with the tile of all ordinary games so far. The clock runs while games are played. The gain is at most
1 / (the share of ordinary rows that come after the tile): a player that always gets there gains little.
"""

import argparse
import time

import numpy as np
import numpy.typing as npt

from tape2048.game.rules import boards_to_exps
from tape2048_recorder.game.game_loop import Buffer, play_all
from tape2048_recorder.game.rng import game_seeds, start_boards

from .games import Games

#: Games between two looks at the clock.
GAMES = 20


def measure(
    games: Games, exponent: int, cpu_s: float, starts: npt.NDArray[np.uint64] | None = None
) -> tuple[int, int, float, list[int]]:
    """Play for at least so long: rows, rows after the tile, CPU seconds, and the first boards with it."""
    rows = after = 0
    used, firsts = 0.0, list[int]()
    while used < cpu_s:
        buffer = Buffer(rows_max=1 << 20, runs_max=GAMES, record_action=False, sample_rate=1)
        ids = games.next_ids(GAMES)
        seeds = game_seeds(1, ids)
        buffer.give(ids, seeds, None if starts is None else start_boards(seeds, starts))
        begin = time.thread_time()
        play_all(buffer, games.player)
        used += time.thread_time() - begin
        has = (boards_to_exps(buffer.boards) >= exponent).any(axis=1)
        rows, after = rows + len(has), after + int(has.sum())
        for run in buffer.runs:
            mine = slice(int(run["first_row"]), int(run["first_row"] + run["rows"]))
            firsts += buffer.boards[mine][has[mine]][:1].tolist()
    return rows, after, used, firsts


def main() -> None:
    """Print a line for each turn, and the gain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--player", default="ntuple:weights=small,look_below=0")
    parser.add_argument("--tile", type=int, default=16384)
    parser.add_argument("--cpu-s", type=float, default=20)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    games, exponent = Games(args.player, GAMES), args.tile.bit_length() - 1
    measure(games, exponent, 1e-9)  # compiles
    found = np.zeros((2, args.turns))
    boards: list[int] = []
    for turn in range(args.turns):
        for late in range(2):
            starts = np.array(boards, np.uint64) if late else None
            rows, after, used, firsts = measure(games, exponent, args.cpu_s, starts)
            found[late, turn] = after / used
            if not late:
                boards += firsts
            name = f"from {len(boards)} boards" if late else "ordinary"
            print(f"{name:18} {rows / used:12,.0f} rows/s {after / rows:7.1%} after {args.tile}", flush=True)
    medians = np.median(found, axis=1)
    per_hour = " and ".join(f"{3600 * each:,.3g}" for each in medians)
    print(f"rows after {args.tile} per CPU hour: {per_hour}, {medians[1] / medians[0]:.1f} times as many")


if __name__ == "__main__":
    main()
