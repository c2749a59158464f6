"""Make the reference corpus: games of five players with annotations, splits by game, and baselines.

    python examples/reference_corpus.py reference --rows 10M

``--rows`` and ``--seed`` determine the games, their annotations and the splits, on any number of cores.
``checksums.txt`` has the SHA-256 of each player's games and of ``splits.csv``. If the command is interrupted,
run it again to continue. ``reference_corpus_20k.txt`` has the checksums of ``--rows 20k``.

    DIR/<start>_model=<player>/   sessions on tape, with the columns values, best, loss and luck
    DIR/splits.csv                the part of each game: train, val or test
    DIR/baselines.csv             AUROC, log loss and more of the shipped critic and networks on test games
    DIR/checksums.txt
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tape2048 import Corpus, Session, sessions


class Strength(NamedTuple):
    """A player, and the mean number of rows of its games."""

    player: str
    game_rows: int


#: The players, from the weakest to the strongest.
STRENGTHS = {
    "greedy": Strength("greedy", 180),
    "fast": Strength("ntuple:weights=fast,look=0", 2_300),
    "small": Strength("ntuple:weights=small,look=0", 6_900),
    "strong": Strength("ntuple:look=0", 13_500),
    "search": Strength("ntuple:look=16,look_margin=0", 16_500),
}
JUDGE = "ntuple"  # the same judge for all players, so that their losses can be compared
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}
NETWORKS = ("fast", "small", "strong")


def main() -> None:
    """Make the corpus."""
    parser = argparse.ArgumentParser(description="Make the reference corpus.")
    parser.add_argument("out", type=Path, help="directory of the corpus")
    parser.add_argument(
        "--rows", default="10M", help="rows of each player, such as 100k or 10M (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the games (%(default)s)")
    args = parser.parse_args()
    rows = count(args.rows)
    args.out.mkdir(parents=True, exist_ok=True)
    made = {
        name: recorded(args.out, name, max(1, round(rows / one.game_rows)), args.seed)
        for name, one in STRENGTHS.items()
    }
    tape2048("annotate", *made.values(), "--judge", JUDGE)
    parts = Corpus.open(made.values()).split(**SHARES)
    write_splits(args.out / "splits.csv", parts)
    write_baselines(args.out / "baselines.csv", parts)
    lines = [f"{digest(Session.open(path))}  {name}\n" for name, path in made.items()]
    lines.append(f"{hashlib.sha256((args.out / 'splits.csv').read_bytes()).hexdigest()}  splits.csv\n")
    (args.out / "checksums.txt").write_text("".join(lines))
    print("".join(lines), end="")


def count(text: str) -> int:
    """Read a number such as 20000, 100k or 10M."""
    unit = {"k": 1_000, "M": 1_000_000}.get(text[-1:], 1)
    if not (digits := text.rstrip("kM")).isdecimal() or not int(digits):
        raise SystemExit(f"--rows: found {text!r}, expected a number of rows, such as 100k or 10M")
    return int(digits) * unit


def tape2048(*args: object) -> None:
    """Run a command of tape2048."""
    subprocess.run([sys.executable, "-m", "tape2048", *map(str, args)], check=True, stdout=subprocess.DEVNULL)


def recorded(out: Path, name: str, games: int, seed: int) -> Path:
    """Record the first games of a seed, unless they are recorded already; return the session."""
    found = [path for path in sessions(out) if path.name.endswith(f"_model={name}")]
    if not found:
        limits = ("--max-games", games, "--rotate-steps", "100G")
        how = ("--seed", seed, "--storage", "tape", "--model-tag", name)
        with tempfile.TemporaryDirectory(prefix=".", dir=out) as place:
            tape2048("record", "--player", STRENGTHS[name].player, *how, *limits, "--out", place)
            (made,) = sessions(place)
            found = [made.rename(out / made.name)]
    session = Session.open(found[0])
    if session.meta["seed"] != seed or sorted(session.runs["run_id"].tolist()) != [*range(games)]:
        expected = f"the first {games} games of seed {seed}"
        raise SystemExit(f"{found[0]}: found other games, expected {expected}. Choose another directory.")
    return found[0]


def digest(session: Session) -> str:
    """Return the SHA-256 of a session's games in the order of their ids: outcomes, rows and columns."""
    found = hashlib.sha256()
    columns = [session.column(name).values for name in sorted(session.columns)]
    for run in np.argsort(session.runs["run_id"]).tolist():
        game = session.runs[run]
        outcome = [int(game[key]) for key in ("run_id", "seed", "steps", "score", "highest_tile")]
        found.update(repr(outcome).encode())
        found.update(session.rows_of(run).tobytes())
        for values in columns:
            found.update(values[session.numbers_of(run)].tobytes())
    return found.hexdigest()


def players_of(corpus: Corpus) -> list[str]:
    """Return the name of each run's player."""
    names = [session.name.rpartition("=")[2] for session in corpus.sessions]
    return [names[number] for number in corpus.runs["session"]]


def write_splits(path: Path, parts: dict[str, Corpus]) -> None:
    """Write the part of each game (train, val or test)."""
    names = list(STRENGTHS)
    games = sorted(
        (names.index(player), int(run["run_id"]), part)
        for part, corpus in parts.items()
        for player, run in zip(players_of(corpus), corpus.runs, strict=True)
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["player", "id", "part"])
        writer.writerows([names[number], game, part] for number, game, part in games)


def write_baselines(path: Path, parts: dict[str, Corpus]) -> None:
    """Evaluate the shipped critic and networks on the test games."""
    from tape2048.critic import NTupleCritic, evaluate
    from tape2048_tools.critic_report import csv_text, expected_score

    critic = NTupleCritic.load("default")
    networks = {name: expected_score(f"ntuple:weights={name}") for name in NETWORKS}
    test, lines = parts["test"], []
    for name in ("all", *STRENGTHS):
        mine = np.array([name in {"all", player} for player in players_of(test)])
        if mine.any():
            of = test.where(mine)
            found = evaluate(critic, of, train=parts["train"], baselines=networks, per_run=16)
            head, *rest = csv_text(found).splitlines()
            lines += [f"player,{head}"] * (not lines) + [f"{name},{line}" for line in rest]
    path.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
