"""Whether values are the score that comes, and losses what moves cost: the tables of "What the numbers mean".

    python -m tests.bench.points values     # values and outcomes, by highest tile and class of value
    python -m tests.bench.points losses     # losses, and the difference of both moves played on
    python -m tests.bench.points games      # score = expectation + luck - loss + error; shares of grades
    python -m tests.bench.points choices    # games by network's values, calibrated values, probabilities
    python -m tests.bench.points targets    # R2 of critics that learn from outcomes, or from probabilities

``values``, ``losses`` and ``targets`` record games in --directory, with another seed than the shipped
calibrations have, and keep them there. ± is twice the standard error, over games and over positions.
"""

import argparse
import functools
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tape2048 import Corpus
from tape2048.base.threads import map_ordered
from tape2048.game.moves import find_fault
from tape2048.game.rules import boards_to_exps, exps_to_boards, merge_score, slide
from tape2048.jit.compiler import kernel
from tape2048_recorder.evaluation.calibrating import compare_moves, player_of, positions_of, sample_of
from tape2048_recorder.game.rng import game_seeds, spawn, start
from tape2048_recorder.players.options import check_player, make_player, player_sha256
from tape2048_recorder.replay.judging import GRADE_NAMES, Judge
from tape2048_recorder.replay.replay import replayer
from tape2048_tools.options.recorder_options import parse_player

PLAYERS = (
    "ntuple:look=0",
    "ntuple",
    "ntuple:look=16,look_margin=0",
    "ntuple:weights=small",
    "ntuple:weights=fast,look=0",
)
OTHERS = "greedy", "expectimax"
JUDGED = "ntuple:look=0", "ntuple", "ntuple:weights=small"
PARTS = "until 4096", "with an 8192", "with a 16384"
CLASSES = (0, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 1)
SIZES = (50, 170, 300, 550, 1_700, 5_500, 17_000, np.inf)
STEPS_MAX = 1 << 18
NONE = np.uint64(0)


def recorded(text: str, games: int, directory: Path) -> Corpus:
    """Record games of a player, unless the directory has them."""
    out = directory / f"{text.translate(str.maketrans(':=,', '---'))}-{games}"
    if not out.exists():
        command = [
            Path(sys.executable).with_name("tape2048"),
            "record",
            "--player",
            text,
            "--out",
            f"{out}.new",
        ]
        more = ["--max-games", str(games), "--max-steps", "off", "--seed", "63", "--storage", "tape"]
        subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
        Path(f"{out}.new").rename(out)
    return Corpus.open(out)


def over_games(values: Any, games: Any) -> tuple[float, float]:
    """Return a mean over rows, and twice its standard error over games."""
    sums = np.bincount(games, values - values.mean(), games.max() + 1)
    return float(values.mean()), 2 * float(np.sqrt((sums**2).sum())) / len(values)


def difference(best: Any, came: Any, owners: Any, rows: Any) -> str:
    """Return how much higher values are than the score that came, in percent."""
    mean, error = over_games(best[rows] - came[rows], owners[rows])
    scale = 100 / came[rows].mean()
    return f"{mean * scale:+.1f} ± {error * scale:.1f}%"


def values(texts: list[str], games: int, directory: Path) -> None:
    print("| player | highest tile | came | value | difference | by class of value, lowest to highest 1% |")
    print("|---|---|---|---|---|---|")
    for text in texts:
        corpus = recorded(text, games, directory)
        judge, sample = Judge.of_recorded(player_of(corpus))[0], sample_of(corpus, 7)
        some = np.sort(
            np.random.default_rng(0).permutation(len(sample.rows))[: 400_000 if judge.ahead == 1 else 40_000]
        )
        boards, owners, came = sample.boards[some], sample.games[some], sample.scores[some].astype(float)
        best = np.nanmax(judge.judged(judge._values(boards), boards)[0], axis=1)
        highest = boards_to_exps(boards).max(axis=1)
        for tile in range(8, 16):
            here = (highest == tile) & ~np.isnan(best)
            if len(np.unique(owners[here])) < 100:
                continue

            cell = functools.partial(difference, best, came, owners)
            edges = np.quantile(best[here], CLASSES)
            parts = [cell(here & (best >= a) & (best <= b)) for a, b in itertools.pairwise(edges)]
            means = f"{came[here].mean():,.0f} | {best[here].mean():,.0f}"
            print(f"| `{text}` | {1 << tile} | {means} | {cell(here)} | {', '.join(parts)} |", flush=True)


def losses(texts: list[str], games: int, directory: Path, positions: int, rollouts: int) -> None:
    print("| judge of | part | positions | network's loss | loss | played on | ratio |")
    print("|---|---|---|---|---|---|---|")
    for text in texts:
        corpus = recorded(text, games, directory)
        facts = player_of(corpus)
        judge, player = (
            Judge.of_recorded(facts)[0],
            make_player("ntuple", check_player("ntuple", facts["player_args"])),
        )
        chosen, _, _ = positions_of(judge, corpus, sample_of(corpus, 8), positions, 9)
        measured = compare_moves(judge, player, chosen, rollouts, 10)
        values, at = judge.judged(judge._values(chosen.boards), chosen.boards)[0], np.arange(len(measured))
        printed, raw = values[at, chosen.best] - values[at, chosen.played], chosen.differences
        size = np.searchsorted(SIZES, raw, "right") - 1
        for part, name in enumerate(PARTS):
            for number in range(len(SIZES) - 1):
                here = (chosen.part == part) & (size == number)
                if (count := int(here.sum())) < 10:
                    continue
                mean, error = measured[here].mean(), 2 * measured[here].std(ddof=1) / count**0.5
                loss = printed[here].mean()
                ratio = f"{mean / loss:.2f} ± {error / loss:.2f}" if loss > error else "not distinguishable"
                print(f"| `{text}` | {name} | {count} | {raw[here].mean():,.0f} | {loss:,.0f} |"
                      f" {mean:,.0f} ± {error:,.0f} | {ratio} |", flush=True)  # fmt: skip


@kernel
def _start(seeds: Any, states: Any, gammas: Any) -> None:
    for i in range(seeds.shape[0]):
        states[i], gammas[i] = start(seeds[i])


@kernel
def _step(boards: Any, moves: Any, states: Any, gammas: Any, gained: Any, alive: Any) -> None:
    for i in range(boards.shape[0]):
        alive[i] = moves[i] < 4
        if alive[i]:
            gained[i] += merge_score(boards[i], np.uint64(moves[i]))
            after = slide(boards[i], np.uint64(moves[i]))
            boards[i], _, states[i] = spawn(after, states[i], gammas[i])


def chosen_games(judge: Judge, boards: Any, seeds: Any, by: int) -> tuple[Any, Any]:
    """Play on by the best values (0), probabilities of the next tile (1) or network's values (2)."""
    boards, gained, highest = boards.copy(), np.zeros(len(boards)), np.zeros(len(boards), np.uint8)
    states, gammas = np.empty((2, len(seeds)), np.uint64)
    _start(seeds, states, gammas)
    left = np.arange(len(boards))
    while len(left):
        here = boards[left]
        values = judge._values(here)
        wanted = np.where(np.isnan(values[by]), -np.inf, values[by] + (1e-9 * values[0] if by == 1 else 0))
        moves = np.where(np.isnan(values[2]).all(axis=1), 255, wanted.argmax(axis=1)).astype(np.uint8)
        state, more, alive = states[left], gained[left], np.empty(len(left), np.bool_)
        _step(here, moves, state, gammas[left], more, alive)
        boards[left], states[left], gained[left] = here, state, more
        highest[left] = np.maximum(highest[left], boards_to_exps(here).max(axis=1))
        left = left[alive]
    return gained, highest


def choices(games: int, directory: Path) -> None:
    corpus = recorded("ntuple", 3000, directory)
    late = corpus.rows_where("board_highest_tile >= 16384")
    first = late.row_starts[np.flatnonzero(late.row_counts)][:games]
    boards = exps_to_boards(late.tokens(first))
    judge = Judge.of_recorded(player_of(corpus))[0]
    seeds = game_seeds(4, np.arange(len(boards), dtype=np.uint64))
    print(f"2-ply, {len(boards)} games from the first board with a 16384\n")
    print("| move by | score that came | difference | reached 32768 | difference |\n|---|---|---|---|---|")
    base = None
    for by, name in (
        (2, "value of the network"),
        (0, "calibrated value"),
        (1, "probability of the next tile"),
    ):
        scores, highest = chosen_games(judge, boards, seeds, by)
        won = 100.0 * (highest >= 15)
        base = (scores, won) if base is None else base
        cells = [f"`{name}`"]
        for found, before in zip((scores, won), base, strict=True):
            change = found - before
            error = 2 * change.std(ddof=1) / len(change) ** 0.5
            cells += [f"{found.mean():,.1f}", f"{change.mean():+,.1f} ± {error:,.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def targets(games: int, directory: Path) -> None:
    import torch
    from examples.train_on_columns import TILES, Net, predictor
    from torch.nn.functional import binary_cross_entropy_with_logits

    from tape2048.critic import evaluate
    from tape2048.torch import CriticLoader
    from tape2048_tools.critic_report import rollouts_of

    parts = recorded("ntuple:weights=small,look=0", 2000 + games, directory).split(
        test=2000 / (2000 + games), train=games / (2000 + games)
    )
    corpus, test = parts["train"], parts["test"]
    sample, oracle = corpus.capped(per_run=512), rollouts_of(test, 24, 5)
    rows = corpus.fetch(slice(None), ("tokens", "labels"), thresholds=TILES, label_dtype="float32")
    reach = Judge.of_recorded(player_of(corpus))[0].outcomes(exps_to_boards(rows["tokens"]))[1]
    kinds = {"outcomes": rows["labels"], "probability of the next tile": rows["labels"].copy()}
    for column, tile in enumerate(TILES):
        next_tile = rows["tokens"].max(axis=1) + 1 == tile.bit_length() - 1
        kinds["probability of the next tile"][next_tile, column] = reach[next_tile]
    print("| targets | seed | 8192 | 16384 | 8192, not reached yet | 16384, not reached yet |")
    print("|---|---|---|---|---|---|")
    for seed, (kind, wanted) in itertools.product((1, 2, 3), kinds.items()):
        torch.manual_seed(seed)
        net = Net()
        options = {"fields": ("tokens", "weight", "wanted"), "augment": "d4", "extra": {"wanted": wanted}}
        loader = CriticLoader(sample, 1024, seed=seed, **options)
        optimizer = torch.optim.AdamW(net.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=2500)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for batch in itertools.islice(batches, 2500):
            weight = batch["weight"][:, None] / (len(corpus) / len(sample))
            loss = binary_cross_entropy_with_logits(net(batch["tokens"])[0], batch["wanted"], weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        found = evaluate(
            predictor(net), test, thresholds=TILES, oracle=oracle, positions=1500, per_run=64, replicates=0
        )
        cells = [found.cell(stage, tile).scores["critic"] for stage in ("all", "undecided") for tile in TILES]
        shares = [f"{cell.oracle.r2.value:.2f}" for cell in cells]
        print(f"| {kind} | {seed} | {' | '.join(shares)} |", flush=True)


def facts_of(text: str) -> dict[str, Any]:
    """Return what a session says of its player."""
    name, given = parse_player(text)
    args = check_player(name, given)
    facts = {
        "player": name,
        "player_args": args,
        "player_sha256": player_sha256(name, make_player(name, args)),
    }
    return facts | {"sample_rate": 1, "record_action": True}


def games_of(texts: list[str], games: int) -> None:
    print(
        "| player | games | score | expectation | luck | loss | error | inaccuracies / mistakes / blunders |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for text in texts:
        facts = facts_of(text)
        judge, play = Judge.of_recorded(facts)[0], replayer(Path(), facts)
        lost = 0 if judge.calibration is None else judge.calibration.lost
        lines, grades, moves_made = [], np.zeros(len(GRADE_NAMES)), 0
        seeds = game_seeds(1, np.arange(games, dtype=np.uint64))
        for states, moves in map_ordered(lambda seed, play=play: play(seed, STEPS_MAX), seeds.tolist()):
            judged = judge.game(states, moves)
            _, score = find_fault(states, moves, NONE, NONE)
            start, error = judged.state[0] + lost, float(judged.error.sum()) - lost
            lines.append((int(score), start, judged.sums["luck"], judged.sums["loss"], error))
            assert abs(start + lines[-1][2] - lines[-1][3] + error - int(score)) < 1
            grades += np.bincount(judged.grade, minlength=len(grades))
            moves_made += len(moves)
        table = np.array(lines)
        means, errors = table.mean(axis=0), 2 * table.std(axis=0, ddof=1) / len(table) ** 0.5
        cells = [f"{mean:,.0f} ± {error:,.0f}" for mean, error in zip(means, errors, strict=True)]
        shares = " / ".join(f"{share:.2%}" for share in grades[1:] / moves_made)
        cells += [shares if judge.calibration else "uncalibrated"]
        print(f"| `{text}` | {games} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=["values", "losses", "games", "choices", "targets"])
    parser.add_argument("players", nargs="*")
    parser.add_argument(
        "--games", type=int, help="games of each player  [default: 3000, 100 for games, 800 for targets]"
    )
    parser.add_argument("--directory", type=Path, default=Path("points"))
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--rollouts", type=int, default=64)
    args = parser.parse_intermixed_args()
    if args.table == "values":
        values(args.players or [*PLAYERS], args.games or 3000, args.directory)
    elif args.table == "losses":
        losses(args.players or [*JUDGED], args.games or 3000, args.directory, args.positions, args.rollouts)
    elif args.table == "choices":
        choices(args.games or 3000, args.directory)
    elif args.table == "targets":
        targets(args.games or 800, args.directory)
    else:
        games_of(args.players or [*PLAYERS, *OTHERS], args.games or 100)


if __name__ == "__main__":
    main()
