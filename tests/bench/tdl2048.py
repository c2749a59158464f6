"""Compare a network of TDL2048 here and in TDL2048: values, moves and mean score.

::

    git clone https://github.com/moporgic/TDL2048 .peers/engines/moporgic-TDL2048
    make -C .peers/engines/moporgic-TDL2048
    tests/bench/engines/build.sh
    python -m tests.bench.tdl2048 4x6patt.w -n 4x6patt
    python -m tests.bench.tdl2048 4x6patt@2.w -n 4x6patt@2 -@ 0,16384

Half of the boards are from games of the network, half are random. Both programs add up f32 values, in
different orders: values are equal within rounding, and so are moves unless two are that close. Moves of
boards that a move takes to another stage are left out: TDL2048 enters it with the next move.
"""

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.bench.peers import CACHE

from tape2048.game.rules import boards_to_exps, slide
from tape2048.ntuple.lookup import downgraded
from tape2048.ntuple.network import load_network
from tape2048_recorder.evaluation.evaluated_games import play_games
from tape2048_recorder.game.game_loop import play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.ntuple import move_values
from tape2048_recorder.players.options import make_player

U64 = np.uint64
ANSWER = np.dtype([("value", "<f4"), ("moves", "<f4", 4), ("best", "<i4"), ("shifted", "<i4")])
#: TDL2048's up, right, down and left.
MOVES = np.array([0, 3, 1, 2])
GAMES_AT_ONCE = 100
ROUNDING = 2.0**-20  # of a sum of 64 values of f32


def their_boards(boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Boards with the first cell in the lowest bits."""
    swapped = boards.byteswap()
    low = U64(0x0F0F0F0F0F0F0F0F)
    return (swapped & low) << U64(4) | swapped >> U64(4) & low


def sample(weights: str, count: int) -> npt.NDArray[np.uint64]:
    """Boards before a move: of games, and random ones with one 32768, since a game ends when two merge."""
    player = make_player("ntuple", {"weights": weights, "look_below": 0})
    rng, found = np.random.default_rng(1), np.empty(0, U64)
    while len(found) < count // 2:
        seeds = game_seeds(int(rng.integers(1 << 32)), np.arange(GAMES_AT_ONCE, dtype=U64))
        found = np.concatenate([found, play_games(player, seeds, stride=1, threads=1).boards])
    some = rng.choice(found, count // 2, replace=False)
    cells = rng.integers(15, size=(count - len(some), 16), dtype=np.uint8)
    cells[np.arange(len(cells)), rng.integers(16, size=len(cells))] = 15
    packed = (cells[:, ::2] << 4 | cells[:, 1::2]).view(">u8")[:, 0]
    return np.concatenate([some, packed.astype(U64)])


def staying(boards: npt.NDArray[np.uint64], sums: list[int]) -> Any:
    """Whether no move leads a board to another stage."""

    def stages(boards: npt.NDArray[np.uint64]) -> Any:
        tiles = np.bitwise_or.reduce(1 << boards_to_exps(boards).astype(np.int64), axis=1)
        return np.searchsorted(sums, tiles, side="right")

    after = [np.array([slide(board, move) for board in boards], U64) for move in range(4)]
    return np.all([stages(each) == stages(boards) for each in after], axis=0)


def moves_apart(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.int32]) -> tuple[int, int]:
    """Different moves, and those of them whose values are further apart than rounding."""
    legal = ~np.isnan(ours).all(axis=1)
    assert (theirs[~legal] == -1).all()
    ours, moves = np.nan_to_num(ours[legal], nan=-np.inf), MOVES[theirs[legal]]
    best = ours.max(axis=1)
    behind = best - ours[np.arange(len(ours)), moves]
    return int((behind > 0).sum()), int((behind > ROUNDING * np.maximum(np.abs(best), 1)).sum())


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("-n", dest="network", required=True, help="as TDL2048's -n")
    parser.add_argument("-@", dest="stages", help="as TDL2048's -@")
    parser.add_argument("--boards", type=int, default=100_000)
    parser.add_argument("--games", type=int, default=1000)
    args = parser.parse_args()
    sums = args.stages.split(",")[1:] if args.stages else []
    weights = f"tdl2048{'@' + '+'.join(sums) if sums else ''}:{args.file}"
    options = ["-n", args.network, "-i", str(args.file), "-s", "tape2048"]
    options += ["-@", args.stages] if args.stages else []

    network, boards = load_network(weights), sample(weights, args.boards)
    command = [str(CACHE / "engines/moporgic_values"), *options, "-e", "1"]
    answers = subprocess.run(command, input=their_boards(boards).tobytes(), stdout=-1, check=True).stdout
    theirs = np.frombuffer(answers, ANSWER)
    values = network.values(boards)
    apart = np.abs(values - theirs["value"])
    print(f"values: {len(boards):,} boards, {(apart == 0).mean():.1%} equal in all bits, the others at most "
          f"{apart.max():.3g} points apart, where values reach {values.max():,.0f}")  # fmt: skip
    player = make_player("ntuple", {"weights": weights, "look_below": 0})
    halved = np.array([downgraded(board) for board in boards], U64)
    for name, seen, moves in (("moves", boards, "best"), ("downgraded moves", halved, "shifted")):
        used = staying(seen, [int(each) for each in sums])
        different, far = moves_apart(move_values(player, seen[used]), theirs[moves][used])
        print(f"{name} of {used.sum():,} boards: {different} different, {far} of them beyond rounding")

    seeds = game_seeds(1, np.arange(args.games, dtype=U64))
    ours, highest = np.empty(args.games, U64), np.empty(args.games, np.uint8)
    play_unrecorded(player, np.empty(0, U64), seeds, ours, highest)
    command = [str(CACHE / "engines/moporgic-TDL2048/2048"), *options, "-e", f"{args.games}x1"]
    text = subprocess.run(command, stdout=-1, text=True, check=True).stdout
    scores = np.array([int(score) for score in re.findall(r"^local: +avg=(\d+)", text, re.MULTILINE)])
    assert len(scores) == args.games
    error = [each.std(ddof=1) / len(each) ** 0.5 for each in (ours, scores)]
    z = (ours.mean() - scores.mean()) / np.hypot(*error)
    print(f"mean score of {args.games:,} games, 1-ply: {ours.mean():,.0f} ± {error[0]:,.0f} here, "
          f"{scores.mean():,.0f} ± {error[1]:,.0f} in TDL2048 (z = {z:+.1f})")  # fmt: skip


if __name__ == "__main__":
    main()
