"""Loss, luck and the judge's error of whole games, for players of any strength.

    python -m tests.bench.luck                    # the table of docs/explanation/numbers.md
    python -m tests.bench.luck --games 50 random ntuple:weights=small

Each player's games are judged as ``tape2048 annotate`` does. The mean of luck is 0: z, its mean over its
standard error, is within -2 and 2 for 19 players of 20. Score = start + luck - loss + error for each game.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.game.moves import find_fault
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import check_player, make_player, player_sha256
from tape2048_recorder.replay.judging import OWN_JUDGE, Judge
from tape2048_recorder.replay.replay import replayer
from tape2048_tools.options.recorder_options import parse_player

#: Players, and the number of their games.
PLAYERS = {
    "random": 1000,
    "greedy": 1000,
    "ntuple:weights=small,look_below=0": 300,
    "ntuple:weights=small": 300,
    "ntuple": 100,
}
STEPS_MAX = 1 << 18
NONE = np.uint64(0)


def facts_of(text: str) -> dict[str, Any]:
    """Return what a session says of its player."""
    name, given = parse_player(text)
    args = check_player(name, given)
    sha256 = player_sha256(name, make_player(name, args))
    facts = {"player": name, "player_args": args, "player_sha256": sha256}
    return facts | {"sample_rate": 1, "record_action": True}


def main() -> None:
    """Print a line for each player."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("players", nargs="*", default=list(PLAYERS))
    parser.add_argument("--games", type=int, help="games of each player (by default as many as in the table)")
    parser.add_argument("--judge", default=OWN_JUDGE)
    args = parser.parse_args()
    print("| player | games | score | start | luck | z | loss | error | blunders |")
    print("|---|---|---|---|---|---|---|---|---|")
    for text in args.players:
        facts, named = facts_of(text), parse_player(args.judge)
        judge = Judge.of_recorded(facts)[0] if args.judge == OWN_JUDGE else Judge.of_player(*named)
        play, lines, begin = replayer(Path(), facts), [], time.monotonic()
        seeds = game_seeds(1, np.arange(args.games or PLAYERS.get(text, 100), dtype=np.uint64))
        for states, moves in map_ordered(lambda seed, play=play: play(seed, STEPS_MAX), seeds.tolist()):
            judged = judge.game(states, moves)
            _, score = find_fault(states, moves, NONE, NONE)
            sums, start, error = judged.sums, judged.state[0], float(judged.error.sum())
            assert abs(start + sums["luck"] - sums["loss"] + error - int(score)) < 0.01
            lines.append((int(score), start, sums["luck"], sums["loss"], error, sums["blunders"]))
        table = np.array(lines)
        score, start, luck, loss, error, blunders = table.mean(axis=0)
        _, _, spread, _, noise, _ = table.std(axis=0, ddof=1) / len(table) ** 0.5
        cells = [
            f"`{text}`",
            f"{len(table):,}",
            f"{score:,.0f}",
            f"{start:,.0f}",
            f"{luck:+,.0f} ± {spread:,.0f}",
        ]
        cells += [
            f"{luck / spread:+.1f}",
            f"{loss:,.0f}",
            f"{error:+,.0f} ± {noise:,.0f}",
            f"{blunders:,.1f}",
        ]
        print(f"| {' | '.join(cells)} |  {judge.name}, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
