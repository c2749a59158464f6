"""The whole idea of tape2048 in one file: play, record, load, label, learn.

A critic looks at a board of 2048 and predicts whether the game will reach a tile. It learns from recorded
games, whose outcomes are known. This program does all of it in ten seconds, with NumPy and the rules of
``tape2048.game``::

    python examples/whole_idea.py

docs/explanation/whole-idea.md shows where the product does the same for billions of rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.game import boards_to_exps, legal_mask, max_exponent, merge_score, slide, transpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    #: Arrays by name: ``tokens`` u8[B, 16], ``label`` bool[B], ``weight`` f64[B].
    Batch = dict[str, NDArray[Any]]

U64 = np.uint64

# %% Play
# A board is an integer of 64 bits: the exponents of 16 tiles, row after row, four bits each, 0 for an empty
# cell. A move slides the board. Then a 2 appears in a random empty cell, or once in ten times a 4.


def spawn(board: int, rng: np.random.Generator) -> tuple[int, int]:
    """Choose an empty cell, and whether it gets a 4."""
    empty = [cell for cell in range(16) if not board >> (60 - 4 * cell) & 15]
    return empty[rng.integers(len(empty))], int(rng.random() < 0.1)


def put(board: int, cell: int, is_four: int) -> int:
    """Put a 2 or a 4 into an empty cell."""
    return board | (1 + is_four) << (60 - 4 * cell)


def line_values() -> list[float]:
    """Value each line of four cells. This table is all that the player knows about the game.

    Empty cells and equal neighbours are worth something. Small tiles between large tiles cost something.
    """
    cells = (np.arange(1 << 16)[:, None] >> np.array([12, 8, 4, 0]) & 15).astype(float)
    one, other = cells[:, :-1], cells[:, 1:]
    falls, rises = np.maximum(one**4 - other**4, 0).sum(1), np.maximum(other**4 - one**4, 0).sum(1)
    pairs = ((one == other) & (one > 0)).sum(1)
    return (270 * (cells == 0).sum(1) + 700 * pairs - 47 * np.minimum(falls, rises)).tolist()


LINE_VALUES = line_values()


def value(board: int) -> float:
    """Add up the values of the four rows and the four columns."""
    return sum(
        LINE_VALUES[lines >> shift & 0xFFFF]
        for lines in (board, transpose(U64(board)))
        for shift in (0, 16, 32, 48)
    )


def best_move(board: int) -> int | None:
    """Return the legal move that leads to the best board; None if the game has ended."""
    mask = legal_mask(U64(board))
    legal = [move for move in range(4) if mask >> move & 1]
    return max(legal, key=lambda move: value(slide(U64(board), move)), default=None)


# %% Record
# The rest of a game follows from its start if the moves and the spawns are known: two bits for the move, four
# for the cell, one for the tile. So a row, one decision of a game, is a byte. This is the tape.


class Game(NamedTuple):
    """A game: its first board, a byte for each move, and its outcome."""

    seed: int
    start: int
    tape: bytes
    score: int
    highest: int  # the exponent of the highest tile


#: A session also has a run table, with a record for each game.
RUN = np.dtype([("seed", "u8"), ("start", "u8"), ("rows", "i8"), ("score", "i8"), ("highest", "u1")])


def play(seed: int) -> Game:
    """Play a game. The same seed gives the same game, on any machine."""
    rng = np.random.default_rng(seed)
    board = put(0, *spawn(0, rng))
    start = board = put(board, *spawn(board, rng))
    tape, score = bytearray(), 0
    while (move := best_move(board)) is not None:
        score += merge_score(U64(board), move)
        board = slide(U64(board), move)
        cell, is_four = spawn(board, rng)
        board = put(board, cell, is_four)
        tape.append(move | cell << 2 | is_four << 6)
    return Game(seed, start, bytes(tape), score, max_exponent(U64(board)))


def replay(start: int, tape: bytes) -> Iterator[int]:
    """Yield the board before each move; raise ValueError for a step that the rules do not allow."""
    board = start
    for step, byte in enumerate(tape):
        yield board
        after, cell = slide(U64(board), byte & 3), byte >> 2 & 15
        if after == board or after >> (60 - 4 * cell) & 15:
            raise ValueError(f"step {step} is {byte:#04x}, which is no move on the board {board:#018x}")
        board = put(after, cell, byte >> 6 & 1)


def write_session(path: Path, games: list[Game]) -> None:
    """Write games to a directory, which appears atomically: it is complete, or it is not there."""
    tape = np.frombuffer(b"".join(game.tape for game in games), np.uint8)
    runs = np.array([(*game[:2], len(game.tape), *game[3:]) for game in games], RUN)
    draft = path.with_name(f".{path.name}.tmp")
    draft.mkdir()
    for name, array in (("tape.npy", tape), ("runs.npy", runs)):
        with (draft / name).open("xb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
    flush_names(draft)
    draft.rename(path)
    flush_names(path.parent)


def flush_names(directory: Path) -> None:
    """Make the names in a directory survive a power failure."""
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


# %% Load
# A corpus joins the games of many sessions, and numbers their rows from 0.


class Corpus:
    """The rows and the run tables of sessions."""

    def __init__(self, paths: list[Path]) -> None:
        self.runs = np.concatenate([np.load(path / "runs.npy") for path in paths])
        self.firsts = np.cumsum(self.runs["rows"]) - self.runs["rows"]  # the first row of each game
        tape = np.concatenate([np.load(path / "tape.npy") for path in paths])
        games = zip(self.runs["start"].tolist(), np.split(tape, self.firsts[1:]), strict=True)
        boards = [board for start, part in games for board in replay(start, part.tobytes())]
        self.boards = np.array(boards, U64)


def mix(x: Any) -> Any:
    """Scramble numbers of 64 bits: a bijection, the finalizer of SplitMix64."""
    with np.errstate(over="ignore"):
        x = (x ^ x >> U64(30)) * U64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> U64(27)) * U64(0x94D049BB133111EB)
    return x ^ x >> U64(31)


def uniform(x: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn numbers of 64 bits into random numbers from 0 up to, not including, 1."""
    return (mix(x) >> U64(11)) / 2**53


def shuffled(places: NDArray[np.int64], count: int, key: int) -> NDArray[np.int64]:
    """Return the rows at some places of a random order of ``count`` rows, without making the order.

    A Feistel network permutes the numbers of ``2 * half`` bits. A number outside of the rows is permuted
    again, until it is inside. Each key gives another order, and every row appears in it exactly once.
    """
    half = U64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (U64(1) << half) - U64(1)
    found = places.astype(U64)
    outside = np.ones(len(found), bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & mask
        for turn in range(6):
            left, right = right, left ^ mix(right ^ mix(U64(key * 8 + turn))) & mask
        found[outside] = left << half | right
        outside = found >= count
    return found.astype(np.int64)


# %% Label
# The label of a row is the outcome of its game. Nothing is stored: choose other tiles at any time.


class Sample:
    """Games of a corpus, with at most ``per_run`` rows of each in an epoch.

    The rows of a game resemble each other: few rows of many games teach more than many rows of few games. The
    weight of a drawn row is the number of rows that it stands for. So long games keep their share.
    """

    def __init__(self, corpus: Corpus, runs: NDArray[np.int64], exponent: int, per_run: int = 64) -> None:
        self.corpus, self.runs, self.exponent = corpus, runs, exponent
        self.rows = corpus.runs["rows"][runs]
        self.drawn = np.minimum(self.rows, per_run)
        self.firsts = np.cumsum(self.drawn) - self.drawn
        self.weights = self.rows / self.drawn

    def __len__(self) -> int:
        return int(self.drawn.sum())

    def batch(self, size: int, epoch: int, position: int) -> Batch:
        """Return a batch of an epoch. The two numbers are all that a resumed training has to know."""
        places = np.arange(position * size, min((position + 1) * size, len(self)))
        numbers = shuffled(places, len(self), epoch)
        game = np.searchsorted(self.firsts, numbers, "right") - 1
        # Each row is drawn from its own part of the game, and is another one in each epoch.
        part = numbers - self.firsts[game]
        within = uniform(numbers.astype(U64) ^ mix(U64(epoch)))
        row = self.corpus.firsts[self.runs[game]] + ((part + within) * self.weights[game]).astype(np.int64)
        return {
            "tokens": boards_to_exps(self.corpus.boards[row]),
            "label": self.corpus.runs["highest"][self.runs[game]] >= self.exponent,
            "weight": self.weights[game],
        }


def split(corpus: Corpus, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split games by a hash of their seeds: no game is in both parts, and none moves when games are added."""
    first = uniform(corpus.runs["seed"]) < share
    return np.flatnonzero(first), np.flatnonzero(~first)


# %% Learn
# The critic is a logistic regression with a weight for each tile in each cell. Yours is better.


class Critic:
    """A probability for each board."""

    def __init__(self) -> None:
        self.table = np.zeros((16, 16))  # by cell and exponent
        self.bias = 0.0

    def __call__(self, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Predict the probability that the games of some boards reach the tile."""
        return 1 / (1 + np.exp(-self.bias - self.table[np.arange(16), tokens].sum(axis=1)))

    def learn(self, batch: Batch, rate: float = 0.8) -> None:
        """Take a step down the gradient of the weighted log loss."""
        weight = batch["weight"] / batch["weight"].sum()
        gradient = (self(batch["tokens"]) - batch["label"]) * weight
        np.add.at(self.table, (np.arange(16), batch["tokens"]), -rate * gradient[:, None])
        self.bias -= rate * gradient.sum()


def log_loss(p: NDArray[np.float64] | float, batch: Batch) -> float:
    """Average the surprise, in nats, that the labels of a batch are to a prediction."""
    return float(np.average(-np.log(np.where(batch["label"], p, 1 - np.asarray(p))), weights=batch["weight"]))


def main() -> None:
    """Play games, record them in two sessions, train a critic on most of them, and test it on the others."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--games", type=int, default=100, help="number of games (%(default)s)")
    parser.add_argument("--tile", type=int, default=512, help="the tile to predict (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in ("one", "two")]
        for number, path in enumerate(paths):
            write_session(path, [play(seed) for seed in range(number, args.games, 2)])
        corpus = Corpus(paths)
    train, test = (Sample(corpus, runs, args.tile.bit_length() - 1) for runs in split(corpus, 0.75))
    critic = Critic()
    for epoch in range(20):
        for position in range(-(-len(train) // 256)):
            critic.learn(train.batch(256, epoch, position))
    seen, unseen = (sample.batch(len(sample), 0, 0) for sample in (train, test))
    rate = np.average(seen["label"], weights=seen["weight"])
    print(f"{len(corpus.runs)} games with {len(corpus.boards):,} rows, {rate:.0%} on the way to {args.tile}")
    print(f"log loss of the critic on unseen games {log_loss(critic(unseen['tokens']), unseen):.3f}")
    print(f"log loss of the base rate              {log_loss(rate, unseen):.3f}")


if __name__ == "__main__":
    main()
