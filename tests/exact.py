"""2048 on small boards, solved: every position, the best player of its score, and how its games end.

A move keeps the sum of the tiles, and a spawn adds 2 or 4. Dynamic programming therefore goes from the
largest sum to the smallest (what a position is worth) and back (how often a game comes by). The player is the
one of the highest expected score. Tiles are in the top left corner of a board.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tape2048.critic.ntuple.ntuple_critic import GameBoards
from tape2048.game import boards_to_exps

from .reference import slide_line
from .sdk.builders import Game, Spec, write_ours

FOURS = 0.1  # share of spawned fours

Cells = tuple[int, ...]
Option = tuple[int, list[tuple[Cells, float]]]


class Solved(NamedTuple):
    """Every position before a move or at the end, in the order of its board."""

    boards: NDArray[np.uint64]  # `u64[N]`
    values: NDArray[np.float64]  # expected score to come of the best player, `f64[N]`
    ended: NDArray[np.bool_]  # whether no move is legal
    reach: NDArray[np.float64]  # its probability of at least the exponent e, `f64[N, E]`
    visits: NDArray[np.float64]  # the probability that one of its games comes by
    nexts: NDArray[np.int64]  # the positions that may follow, `i64[N, K]`; an end follows itself
    shares: NDArray[np.float64]  # their cumulated probabilities
    firsts: dict[int, float]  # the positions that a game begins with, and their probabilities

    @property
    def rows(self) -> NDArray[np.int64]:
        """Positions before a move that the player comes by: the rows of its games."""
        return np.flatnonzero(~self.ended & (self.visits > 0))

    def places(self, boards: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the positions of boards."""
        return np.searchsorted(self.boards, boards)

    def play(self, begins: NDArray[np.int64], seed: int) -> GameBoards:
        """Play games from positions; keep every board before a move."""
        rng, path = np.random.default_rng([seed, 1]), [begins]
        while not self.ended[path[-1]].all():
            at = path[-1]
            drawn = (rng.random(len(at))[:, None] >= self.shares[at]).sum(axis=1)
            path.append(self.nexts[at, drawn])
        places = np.stack(path, axis=1)
        moving = ~self.ended[places]
        ends = boards_to_exps(self.boards[path[-1]]).max(axis=1)
        return GameBoards(self.boards[places[moving]], np.append(0, np.cumsum(moving.sum(axis=1))), ends)

    def play_new(self, games: int, seed: int) -> GameBoards:
        """Play new games."""
        begins, shares = zip(*self.firsts.items(), strict=True)
        return self.play(np.random.default_rng([seed, 2]).choice(begins, games, p=shares), seed)


def spawns(cells: Cells) -> Iterator[tuple[Cells, float]]:
    """Yield the boards after all spawns, each with its probability."""
    empty = [cell for cell, exponent in enumerate(cells) if not exponent]
    for cell in empty:
        for exponent, share in ((1, 1 - FOURS), (2, FOURS)):
            yield (*cells[:cell], exponent, *cells[cell + 1 :]), share / len(empty)


def moves(cells: Cells, ways: list[list[list[int]]]) -> Iterator[tuple[Cells, int]]:
    """Yield the board after each legal move, and its score; each way lists the cells of its lines."""
    for way in ways:
        after, score = [0] * len(cells), 0
        for line in way:
            moved, scored = slide_line([cells[cell] for cell in line])
            score += scored
            for cell, exponent in zip(line, moved, strict=False):
                after[cell] = exponent
        if tuple(after) != cells:
            yield tuple(after), score


def all_options(rows: int, columns: int, begins: Iterable[Cells]) -> dict[Cells, list[Option]]:
    """Return what each move of each position leads to: its score, and boards with their probabilities."""
    size = rows * columns
    across = [[*range(row * columns, (row + 1) * columns)] for row in range(rows)]
    down = [[*range(column, size, columns)] for column in range(columns)]
    ways = [across, down, *([line[::-1] for line in lines] for lines in (across, down))]
    options: dict[Cells, list[Option]] = {}
    waiting = list(begins)
    while waiting:
        cells = waiting.pop()
        if cells not in options:
            options[cells] = [(score, list(spawns(after))) for after, score in moves(cells, ways)]
            waiting += [then for _, found in options[cells] for then, _ in found]
    return options


def solve(rows: int, columns: int) -> Solved:
    """Find all positions of a board, the best player, and its games."""
    size = rows * columns
    begins: dict[Cells, float] = {}
    for one, share in spawns((0,) * size):
        for two, other in spawns(one):
            begins[two] = begins.get(two, 0) + share * other
    options = all_options(rows, columns, begins)
    order = sorted(options, key=lambda cells: sum(1 << exponent for exponent in cells if exponent))
    shifts = [60 - 4 * (4 * row + column) for row in range(rows) for column in range(columns)]
    numbers = {
        cells: sum(exponent << shift for exponent, shift in zip(cells, shifts, strict=True))
        for cells in order
    }
    boards = np.array(sorted(numbers.values()), np.uint64)
    places = dict(zip(sorted(order, key=numbers.__getitem__), range(len(order)), strict=True))
    count, most = len(order), 2 * size
    values, visits, ended = np.zeros(count), np.zeros(count), np.ones(count, np.bool_)
    has = np.arange(size + 2) <= boards_to_exps(boards).max(axis=1)[:, None]
    reach = has.astype(np.float64)
    nexts, shares = np.repeat(np.arange(count)[:, None], most, axis=1), np.ones((count, most))
    for cells in reversed(order):
        best = -1.0
        at = places[cells]
        for score, found in options[cells]:
            then, chances = [places[each] for each, _ in found], np.array([share for _, share in found])
            if (value := score + chances @ values[then]) > best:
                best, ended[at], values[at] = value, False, value
                nexts[at, : len(then)], shares[at, : len(then) - 1] = then, chances.cumsum()[:-1]
                shares[at, len(then) - 1 :] = 1
                reach[at] = np.where(has[at], 1, chances @ reach[then])
    firsts = {places[cells]: share for cells, share in begins.items()}
    visits[list(firsts)] = list(firsts.values())
    for cells in order:
        if not ended[at := places[cells]]:
            np.add.at(visits, nexts[at], visits[at] * np.diff(shares[at], prepend=0))
    return Solved(boards, values, ended, reach, visits, nexts, shares, firsts)


def true_metrics(solved: Solved, predicted: NDArray[Any], exponent: int) -> dict[str, float]:
    """Return the metrics over all rows of all games of predictions ``[N]``, at :attr:`Solved.rows`.

    They are the plain definitions: R2 and bias against q, Brier score and log loss of outcomes.
    """
    rows = solved.rows
    p, q, weights = np.asarray(predicted, np.float64), solved.reach[rows, exponent], solved.visits[rows]

    def mean(of: NDArray[np.float64]) -> float:
        return float(np.average(of, weights=weights))

    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    return {
        "r2": 1 - mean((p - q) ** 2) / mean((q - mean(q)) ** 2),
        "bias": mean(p - q),
        "brier": mean(q * (1 - p) ** 2 + (1 - q) * p**2),
        "log_loss": -mean(q * np.log(clipped) + (1 - q) * np.log1p(-clipped)),
    }


def recorded(root: Path, solved: Solved, *, games: int, seed: int) -> Path:
    """Write a session of new games of the best player, as a recorder would."""
    played = solved.play_new(games, seed)

    def change(rows: NDArray[np.void]) -> None:
        rows["exps"] = boards_to_exps(played.boards)

    made = [
        Game(number, int(moves), 1 << int(highest), seed=number)
        for number, (moves, highest) in enumerate(zip(np.diff(played.starts), played.highest, strict=True))
    ]
    facts = {"player": "best", "player_sha256": "e" * 64, "rows": len(played.boards), "runs": games}
    spec = Spec(games=made, facts=facts, change_rows=change, block_rows=100_000)
    write_ours(root / "20260102T030405Z_model=best", spec)
    return root


class Positions(NamedTuple):
    """Positions of a capped sample of some new games."""

    places: NDArray[np.int64]
    runs: NDArray[np.int64]
    weights: NDArray[np.float64]  # of a row of each run: rows of the game / rows drawn
    highest: NDArray[np.uint8]  # the exponent of each run's highest tile


def capped_positions(solved: Solved, *, games: int, per_run: int, seed: int) -> Positions:
    """Play new games, and draw rows of each."""
    played, rng = solved.play_new(games, seed), np.random.default_rng(seed)
    moves = np.diff(played.starts)
    drawn = [
        start + rng.choice(count, min(per_run, count), replace=False)
        for start, count in zip(played.starts.tolist(), moves.tolist(), strict=False)
    ]
    counts = np.array([len(one) for one in drawn])
    runs = np.repeat(np.arange(games), counts)
    return Positions(
        solved.places(played.boards[np.concatenate(drawn)]), runs, moves / counts, played.highest
    )
