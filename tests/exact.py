"""2048 on small boards, solved: every position, the best player of its score, and what becomes of its games.

A move keeps the sum of the tiles, and a spawn adds 2 or 4. Positions are therefore grouped by half their sum:
dynamic programming goes from the last group to the first (what a position is worth) or from the first to the
last (how often a game comes by). Positions that are turned or mirrored are one, as the least of their images.
The player is the one of the highest expected score, a function of the position.

A board is a board of the product whose other cells stay empty: the tiles are in its top left corner. Moves to
the left and up are then the product's; the others are these on a mirrored board.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tape2048.critic.ntuple.ntuple_critic import GameBoards
from tape2048.game import boards_to_exps, slide
from tape2048.game.rules import LEFT, UP
from tape2048.jit.compiler import kernel

from .sdk.builders import Game, Spec, write_ours

FOURS = 0.1  # share of spawned fours
_U = np.uint64


class Shape(NamedTuple):
    """The cells of a board and its symmetries, as shifts of their nibbles."""

    shifts: NDArray[np.uint64]  # `u64[C]`
    images: NDArray[np.uint64]  # `u64[S, C]`: where symmetry s takes each cell
    mirrors: NDArray[np.int64]  # the symmetries that swap left and right, top and bottom: `i64[2]`

    @staticmethod
    def of(rows: int, columns: int) -> Shape:
        """Return the shape of a board."""
        cells = [(r, c) for r in range(rows) for c in range(columns)]
        flips = [(r, c) for r in (0, 1) for c in (0, 1)]
        found = [
            [(rows - 1 - r if fr else r, columns - 1 - c if fc else c) for r, c in cells] for fr, fc in flips
        ]
        if rows == columns:
            found += [[(c, r) for r, c in image] for image in found]
        shifts = np.array([[60 - 4 * (4 * r + c) for r, c in image] for image in found], np.uint64)
        return Shape(shifts[0], shifts, np.array([1, 2]))


@kernel
def image_of(board: Any, shape: Any, number: Any) -> Any:
    """Return an image of a board under a symmetry."""
    out = _U(0)
    for cell in range(len(shape.shifts)):
        out |= ((board >> shape.shifts[cell]) & _U(15)) << shape.images[number, cell]
    return out


@kernel
def least_image(board: Any, shape: Any) -> Any:
    """Return the least image of a board, which stands for all."""
    least = board
    for number in range(1, len(shape.images)):
        image = image_of(board, shape, number)
        least = min(least, image)
    return least


@kernel
def move_of(board: Any, number: Any, shape: Any) -> Any:
    """Return the least image after one of four moves; 0 if it is illegal."""
    direction = _U(LEFT) if number < 2 else _U(UP)
    seen = board if number % 2 == 0 else image_of(board, shape, shape.mirrors[number // 2])
    after = slide(seen, direction)
    return _U(0) if after == seen else least_image(after, shape)


@kernel
def potential_of(board: Any, shape: Any) -> Any:
    """Return the score of making these tiles from twos. A move scores what it adds."""
    total = 0.0
    for cell in range(len(shape.shifts)):
        exponent = np.int64((board >> shape.shifts[cell]) & _U(15))
        if exponent:
            total += (exponent - 1) * 2.0**exponent
    return total


@kernel
def highest_of(board: Any, shape: Any) -> Any:
    """Return the exponent of the highest tile."""
    highest = _U(0)
    for cell in range(len(shape.shifts)):
        highest = max(highest, (board >> shape.shifts[cell]) & _U(15))
    return np.int64(highest)


@kernel
def half_sum(board: Any, shape: Any) -> Any:
    """Return half the sum of the tiles."""
    total = 0
    for cell in range(len(shape.shifts)):
        total += (1 << np.int64((board >> shape.shifts[cell]) & _U(15))) >> 1
    return total


@kernel
def afterstates(boards: Any, shape: Any, out: Any) -> Any:
    """Write the boards after all moves of all boards to ``u64[4 N]``; return their number."""
    count = 0
    for i in range(len(boards)):
        for number in range(4):
            after = move_of(boards[i], number, shape)
            if after:
                out[count] = after
                count += 1
    return count


@kernel
def spawns(boards: Any, shape: Any, tile: Any, out: Any) -> Any:
    """Write the boards after all spawns of a tile; return their number."""
    count = 0
    for i in range(len(boards)):
        for cell in range(len(shape.shifts)):
            if (boards[i] >> shape.shifts[cell]) & _U(15) == 0:
                out[count] = least_image(boards[i] | (_U(tile) << shape.shifts[cell]), shape)
                count += 1
    return count


@kernel
def place_of(board: Any, boards: Any, starts: Any, shape: Any) -> Any:
    """Return the index of a least image."""
    group = half_sum(board, shape)
    low, high = starts[group], starts[group + 1]
    while low < high:
        middle = (low + high) // 2
        if boards[middle] < board:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def solve_backwards(  # noqa: PLR0917 - a kernel takes arrays
    boards: Any, starts: Any, shape: Any, values: Any, chosen: Any, reach: Any
) -> None:
    """Fill in the expected score of the best player, its afterstates, and its chances of the tiles."""
    tiles = reach.shape[1]
    chances, best_chances = np.zeros(tiles), np.zeros(tiles)
    for i in range(len(boards) - 1, -1, -1):
        board, best = boards[i], -1.0
        for number in range(4):
            after = move_of(board, number, shape)
            if after == 0:
                continue
            value, empty = potential_of(after, shape) - potential_of(board, shape), 0
            chances[:] = 0.0
            expected = 0.0
            for cell in range(len(shape.shifts)):
                if (after >> shape.shifts[cell]) & _U(15):
                    continue
                empty += 1
                for tile in range(1, 3):
                    share = FOURS if tile == 2 else 1.0 - FOURS
                    then = least_image(after | (_U(tile) << shape.shifts[cell]), shape)
                    place = place_of(then, boards, starts, shape)
                    expected += share * values[place]
                    for e in range(tiles):
                        chances[e] += share * reach[place, e]
            value += expected / empty
            if value > best:
                best, chosen[i] = value, after
                best_chances[:] = chances / empty
        values[i] = max(best, 0.0)
        highest = highest_of(board, shape)
        for e in range(tiles):
            reach[i, e] = 1.0 if e <= highest else (best_chances[e] if best >= 0 else 0.0)


@kernel
def visit_forwards(boards: Any, starts: Any, shape: Any, chosen: Any, visits: Any) -> None:
    """Fill in how often the player's games come by each position, of which the first ones are given."""
    for i in range(len(boards)):
        after = chosen[i]
        if after == 0 or visits[i] == 0:
            continue
        empty = 0
        for cell in range(len(shape.shifts)):
            empty += (after >> shape.shifts[cell]) & _U(15) == 0
        for cell in range(len(shape.shifts)):
            if (after >> shape.shifts[cell]) & _U(15) == 0:
                for tile in range(1, 3):
                    share = FOURS if tile == 2 else 1.0 - FOURS
                    then = least_image(after | (_U(tile) << shape.shifts[cell]), shape)
                    visits[place_of(then, boards, starts, shape)] += visits[i] * share / empty


@kernel
def drawn_spawn(board: Any, shape: Any) -> Any:
    """Return a board with a drawn tile in a drawn empty cell."""
    empty = 0
    for cell in range(len(shape.shifts)):
        empty += (board >> shape.shifts[cell]) & _U(15) == 0
    left = np.random.randint(empty)  # noqa: NPY002 - numba's own
    tile = _U(2) if np.random.random() < FOURS else _U(1)  # noqa: NPY002
    for cell in range(len(shape.shifts)):
        if (board >> shape.shifts[cell]) & _U(15) == 0:
            if left == 0:
                return least_image(board | (tile << shape.shifts[cell]), shape)
            left -= 1
    return board


@kernel
def play_on(  # noqa: PLR0917 - as above
    begins: Any,
    seed: Any,
    boards: Any,
    starts: Any,
    shape: Any,
    chosen: Any,
    out: Any,
    counts: Any,
    ends: Any,
) -> Any:
    """Play from boards (0: a new game) to the end: boards before moves, moves, exponents; or stop if full."""
    np.random.seed(seed)  # noqa: NPY002
    at = 0
    for game in range(len(begins)):
        board, first = begins[game], at
        if board == 0:
            board = drawn_spawn(drawn_spawn(board, shape), shape)
        while True:
            after = chosen[place_of(board, boards, starts, shape)]
            if after == 0:
                break
            if at < len(out):
                out[at] = board
            at += 1
            board = drawn_spawn(after, shape)
        counts[game], ends[game] = at - first, highest_of(board, shape)
    return at


class Solved(NamedTuple):
    """Every position before a move or at the end, in ascending order of half its sum."""

    shape: Shape
    boards: NDArray[np.uint64]  # least images, `u64[N]`
    starts: NDArray[np.int64]  # the first position of each half sum
    images: int  # positions, if those that are turned or mirrored are not one
    values: NDArray[np.float64]  # expected score to come of the best player, `f64[N]`
    chosen: NDArray[np.uint64]  # the board after its move; 0 at the end
    reach: NDArray[np.float64]  # its probability of at least the exponent e, `f64[N, E]`
    visits: NDArray[np.float64]  # the probability that one of its games comes by
    mean_score: float  # of its games

    @property
    def rows(self) -> NDArray[np.int64]:
        """Positions before a move that the player comes by: the rows of its games."""
        return np.flatnonzero((self.chosen > 0) & (self.visits > 0))

    def places(self, boards: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the positions of least images."""
        found = np.empty(len(boards), np.int64)
        _places(boards, self.boards, self.starts, self.shape, found)
        return found

    def play(self, begins: NDArray[np.uint64], seed: int) -> GameBoards:
        """Play games from boards, 0 for new games; keep every board before a move."""
        counts, ends = np.zeros(len(begins), np.int64), np.zeros(len(begins), np.uint8)
        out = np.empty(0, np.uint64)
        for _ in range(2):  # first to count
            size = play_on(begins, seed, self.boards, self.starts, self.shape, self.chosen, out, counts, ends)
            out = out if len(out) else np.empty(size, np.uint64)
        return GameBoards(out, np.append(0, np.cumsum(counts)), ends)


@kernel
def _places(of: Any, boards: Any, starts: Any, shape: Any, found: Any) -> None:
    for i in range(len(of)):
        found[i] = place_of(of[i], boards, starts, shape)


@kernel
def _count_images(boards: Any, shape: Any) -> Any:
    total = 0
    for i in range(len(boards)):
        same = 0
        for number in range(len(shape.images)):
            same += image_of(boards[i], shape, number) == boards[i]
        total += len(shape.images) // same
    return total


def solve(rows: int, columns: int) -> Solved:
    """Find all positions of a board, the best player, and its games."""
    shape = Shape.of(rows, columns)
    cells = len(shape.shifts)
    groups = 1 << (cells + 1)  # more than half the sum of a full board
    found: list[list[NDArray[np.uint64]]] = [[] for _ in range(groups + 3)]
    out = np.empty(cells, np.uint64)
    first = np.zeros(cells**2 * 4, np.uint64)  # weights are added up below
    begins: dict[int, float] = {}
    for tile, share in ((1, 1 - FOURS), (2, FOURS)):
        one = out[: spawns(np.zeros(1, np.uint64), shape, tile, out)].copy()
        for other, other_share in ((1, 1 - FOURS), (2, FOURS)):
            count = spawns(one, shape, other, first)
            for board in first[:count].tolist():
                begins[board] = begins.get(board, 0) + share * other_share / count
    for board in begins:
        found[half_sum(np.uint64(board), shape)].append(np.array([board], np.uint64))
    parts: list[NDArray[np.uint64]] = []
    for group in range(groups):
        boards = np.unique(np.concatenate(found[group])) if found[group] else np.empty(0, np.uint64)
        parts.append(boards)
        afters = np.empty(4 * len(boards), np.uint64)
        afters = np.unique(afters[: afterstates(boards, shape, afters)])
        for tile in (1, 2):
            then = np.empty(cells * len(afters), np.uint64)
            found[group + tile].append(np.unique(then[: spawns(afters, shape, tile, then)]))
        found[group] = []
    boards = np.concatenate(parts)
    starts = np.append(0, np.cumsum([len(part) for part in parts]))
    values, chosen = np.zeros(len(boards)), np.zeros(len(boards), np.uint64)
    reach, visits = np.zeros((len(boards), cells + 2)), np.zeros(len(boards))
    solve_backwards(boards, starts, shape, values, chosen, reach)
    images = int(_count_images(boards, shape))
    solved = Solved(shape, boards, starts, images, values, chosen, reach, visits, 0.0)
    first_places, shares = solved.places(np.array(list(begins), np.uint64)), np.array(list(begins.values()))
    visits[first_places] = shares
    visit_forwards(boards, starts, shape, chosen, visits)
    return solved._replace(mean_score=float(shares @ values[first_places]))


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
    played = solved.play(np.zeros(games, np.uint64), seed)

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
    played, rng = solved.play(np.zeros(games, np.uint64), seed), np.random.default_rng(seed)
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
