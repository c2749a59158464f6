"""Compare the moves of a network here and in TDL2048, on the boards of a few games.

::

    python -m tests.bench.tdl2048 .peers/engines/moporgic-TDL2048/4x6patt.w -n 4x6patt

In a search, TDL2048 adds a point for every move, and counts values below 0 as 0. The last two columns apply
this rule to our network, and compare all values of legal moves.
"""

import argparse
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.bench.peers import CACHE
from tests.pages import table

from tape2048.game.rules import count_empty, empty_mask, legal_masks
from tape2048.jit.compiler import kernel
from tape2048_recorder.evaluation.evaluated_games import play_games
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.ntuple import after_move, afterstate_value, afterstates, move_values
from tape2048_recorder.players.options import make_player, own

U64 = np.uint64
Values = npt.NDArray[np.float64]

ANSWER = np.dtype([("value", "<f4"), ("moves", "<f4", 4), ("best", "<i4"), ("shifted", "<i4")])
#: TDL2048's up, right, down and left.
MOVES = np.array([0, 3, 1, 2])
ROUNDING = 2.0**-20  # of a sum of f32
#: Our parameters and TDL2048's options of each search.
SEARCHES = {"1-ply": ({"look": 0}, []), "2-ply": ({"look": 16, "look_margin": 0}, ["-d", "2p"])}


@kernel
def _best_answer(player: Any, board: Any) -> Any:
    options, best = afterstates(board), 0.0
    for m in range(4):
        bit = U64(1) << U64(m)
        if options[4] & bit:
            score = options[5] if m < 2 else options[6]
            best = max(best, score + max(afterstate_value(player, after_move(bit, options)), 0.0) + 1.0)
    return best


@kernel
def _fill_by_their_rule(player: Any, boards: Any, out: Any) -> None:
    for i in range(len(boards)):
        options = afterstates(boards[i])
        for m in range(4):
            bit = U64(1) << U64(m)
            if options[4] & bit:
                after, total = after_move(bit, options), 0.0
                cells = empty_mask(after)
                while cells:
                    cell = cells & (~cells + U64(1))
                    cells ^= cell
                    total += 0.9 * _best_answer(player, after | cell)
                    total += 0.1 * _best_answer(player, after | cell << U64(1))
                out[i, m] = (options[5] if m < 2 else options[6]) + total / count_empty(after)


def their_answers(boards: npt.NDArray[np.uint64], options: list[str]) -> tuple[Values, Any]:
    """Return TDL2048's values of moves, ``f64[n, 4]`` in our order, and its moves."""
    swapped, low = boards.byteswap(), U64(0x0F0F0F0F0F0F0F0F)  # its first cell is in the lowest bits
    sent = (swapped & low) << U64(4) | swapped >> U64(4) & low
    command = [str(CACHE / "engines/moporgic_values"), *options]
    answers = subprocess.run(command, input=sent.tobytes(), stdout=subprocess.PIPE, check=True).stdout
    found = np.frombuffer(answers[-ANSWER.itemsize * len(boards) :], ANSWER)
    values = np.empty((len(boards), 4))
    values[:, MOVES] = found["moves"]
    return values, MOVES[found["best"]]


def apart(values: npt.NDArray[Any], moves: Any) -> Values:
    """Return how many points the moves are behind the best moves by these values."""
    best = np.nanmax(values, axis=1)
    return best - values[np.arange(len(values)), moves]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("-n", dest="network", required=True, help="as TDL2048's -n")
    parser.add_argument("--games", type=int, default=10)
    args = parser.parse_args()
    seeds, rows = game_seeds(1, np.arange(args.games, dtype=U64)), []
    for name, (settings, options) in SEARCHES.items():
        player = make_player("ntuple", {"weights": f"tdl2048:{args.file}", **settings})
        boards = play_games(player, seeds, stride=1, threads=1).boards
        boards = boards[legal_masks(boards) > 0]
        theirs, moves = their_answers(boards, ["-n", args.network, "-i", str(args.file), "-e", "1", *options])
        ours, ruled = move_values(player, boards).astype(float), np.full((len(boards), 4), np.nan)
        if settings["look"]:
            _fill_by_their_rule(own(player), boards, ruled)
        else:
            ruled = ours
        behind, ruled_behind = apart(ours, moves), apart(ruled, moves)
        bound = ROUNDING * np.nanmax(np.abs(ours), axis=1)
        counts = (len(boards), (behind > 0).sum(), (behind > bound).sum(), (ruled_behind > bound).sum())
        rows.append([name, *(f"{count:,}" for count in counts), f"{np.nanmax(np.abs(theirs - ruled)):.3f}"])
    heads = ["search", "boards", "other moves", "beyond rounding", "so by their rule", "most points apart"]
    print(table(heads, iter(rows)))


if __name__ == "__main__":
    main()
