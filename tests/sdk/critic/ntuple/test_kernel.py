"""The kernels beside plain Python over arrays of 4 by 4 cells."""

import math
import random
from typing import Any

import numpy as np
import pytest
from tests import reference

from tape2048.critic.ntuple.ntuple_critic import (
    GameBoards,
    learn,
    new_scratch,
    predict_all,
    tables_of,
    width_of,
)
from tape2048.ntuple.network import NetworkLayout

#: Tiles and stages. The kernels compile anew for each number of tuples, tiles and stages: there are few.
CASES = {
    "one tile": ((64,), ()),
    "two tiles, stages": ((16, 128), (32, 256)),
    "three tiles, stages": ((16, 64, 512), (32, 256)),
}
GAMES = (0, 1, 40, 0, 2, 25, 1)


class Slow:
    """Weights and squares as dictionaries, by tile, stage, tuple and the exponents in its cells."""

    def __init__(self, layout: NetworkLayout, tiles: tuple[int, ...]) -> None:
        self.layout, self.tiles = layout, tiles
        self.weights: dict[Any, float] = {}
        self.squares: dict[Any, float] = {}

    def keys(self, tile: int, cells: list[int]) -> list[Any]:
        stage = sum(1 << max(cells) >= first for first in self.layout.stages)
        return [
            (tile, stage, number, tuple(image[cell] for cell in chosen))
            for number, chosen in enumerate(self.layout.tuples)
            for image in reference.symmetries(cells)
        ]

    def probability(self, tile: int, cells: list[int]) -> float:
        if 1 << max(cells) >= tile:
            return 1.0
        logit = sum(self.weights.get(key, 0.0) for key in self.keys(tile, cells))
        return 1 / (1 + math.exp(-logit))

    def learn(self, game: list[list[int]], highest: int, decay: float, rate: float, columns: Any) -> None:
        targets, weights = columns
        for column, tile in enumerate(self.tiles):
            outcome = float(1 << highest >= tile)
            returned = following = outcome
            for row, cells in reversed([*enumerate(game)]):
                target = (1 - decay) * following + decay * returned
                if len(targets):
                    target = targets[row, column]
                following = self.probability(tile, cells)
                if following == 1.0:
                    returned = 1.0
                    continue
                returned, delta = target, target - following
                if len(weights):
                    delta *= weights[row]
                for key in self.keys(tile, cells):
                    self.squares[key] = self.squares.get(key, 0.0) + delta * delta
                    step = rate * delta / math.sqrt(self.squares[key] + 1e-6)
                    self.weights[key] = self.weights.get(key, 0.0) + step

    def records(self) -> np.ndarray[Any, Any]:
        width = width_of(list(self.tiles))
        found = np.zeros((self.layout.entries, 2 * width))
        for column, values in ((0, self.weights), (width, self.squares)):
            for (tile, stage, number, exps), value in values.items():
                digits = sum(exp << (4 * place) for place, exp in enumerate(reversed(exps)))
                at = stage * self.layout.stage_size + int(self.layout.offsets[number]) + digits
                found[at, column + self.tiles.index(tile)] = value
        return found


def draw(case: str) -> tuple[NetworkLayout, tuple[int, ...], list[list[list[int]]], list[int]]:
    """A layout of random tuples, games of random boards with few kinds of tiles, and their highest tiles."""
    tiles, stages = CASES[case]
    rng = random.Random(case)
    cells = ["".join(f"{cell:x}" for cell in sorted(rng.sample(range(16), 4))) for _ in range(2)]
    games = [
        [[rng.choice([0, 0, 1, 2, rng.randrange(10)]) for _ in range(16)] for _ in range(rows)]
        for rows in GAMES
    ]
    games[2][7] = [3] * 16  # the same records many times
    games[2][8] = [0] * 16
    return NetworkLayout.of(cells, stages), tiles, games, [rng.randrange(3, 11) for _ in games]


def packed(games: list[list[list[int]]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    boards = [reference.pack(cells) for game in games for cells in game]
    starts = np.cumsum([0, *map(len, games)])
    return np.array(boards, np.uint64), starts


def learned(
    case: str, order: list[int], decay: float = 0.7, rate: float = 0.3, columns: str = ""
) -> tuple[Any, Slow, int]:
    layout, tiles, games, highest = draw(case)
    records = np.zeros((layout.entries, 2 * width_of(list(tiles))), np.float32)
    tables = tables_of(layout, list(tiles), records)
    boards, starts = packed(games)
    rng = np.random.default_rng(0)
    soft = "targets" in columns
    targets = rng.random((len(boards) * soft, len(tiles) * soft)).astype(np.float32)
    weights = rng.random(len(boards) * ("weights" in columns)).astype(np.float32)
    given = GameBoards(boards, starts, np.array(highest, np.uint8), targets, weights)
    count = learn(tables, *given, np.array(order, np.int64), decay, rate, new_scratch(tables))
    slow = Slow(layout, tiles)
    for game in order:
        rows = slice(starts[game], starts[game + 1])
        slow.learn(games[game], highest[game], decay, rate, (targets[rows], weights[rows]))
    return tables, slow, count


@pytest.mark.parametrize("columns", ["", "targets", "weights", "targets and weights"])
@pytest.mark.parametrize("case", CASES)
def test_learning_is_what_the_module_says(case: str, columns: str) -> None:
    order = [4, 2, 0, 5, 1, 6, 2, 3]
    tables, slow, count = learned(case, order, columns=columns)
    assert count == sum(GAMES[game] for game in order)
    expected = slow.records()
    assert np.count_nonzero(expected) > 300
    assert np.allclose(tables.records, expected, rtol=1e-4, atol=1e-5)
    # Places beyond the tiles, up to the power of two, learn nothing.
    assert (tables.records.any(axis=0) == expected.any(axis=0)).all()


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_lambda_mixes_next_row_and_outcome(decay: float) -> None:
    tables, slow, _ = learned("two tiles, stages", [2, 5], decay)
    assert np.allclose(tables.records, slow.records(), rtol=1e-4, atol=1e-5)


def test_no_games_and_a_rate_of_nothing_change_nothing() -> None:
    for order, rate in (([], 0.3), ([0, 3], 0.3), ([2], 0.0)):
        tables, _, _ = learned("one tile", order, rate=rate)
        assert not tables.records[:, :1].any()


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
@pytest.mark.parametrize("case", CASES)
def test_a_prediction_is_the_sum_over_all_images(case: str, dtype: type) -> None:
    tables, slow, _ = learned(case, [2, 5, 1])
    width, count = width_of(list(slow.tiles)), len(slow.tiles)
    records, step = tables.records, 1.0
    if dtype is np.int16:
        step = 1 / 64
        records = np.rint(tables.records[:, :width] / step).astype(np.int16)
        slow.weights = {key: round(value / step) * step for key, value in slow.weights.items()}
    boards, _ = packed(draw(case)[2])
    found = predict_all(tables_of(slow.layout, list(slow.tiles), records), step, boards, count)
    assert (found.dtype, found.shape) == (np.float32, (len(boards), count))
    cells = [reference.unpack(board) for board in boards.tolist()]
    single = np.array([[slow.probability(tile, one) for tile in slow.tiles] for one in cells])
    expected = np.minimum.accumulate(single, axis=1)
    if count > 1:
        assert (single != expected).any(), "the order of tiles has to matter for this test"
    assert np.allclose(found, expected, atol=2e-2 if dtype is np.int16 else 1e-4)
    assert (np.diff(found, axis=1) <= 0).all()
    for column, tile in enumerate(slow.tiles):
        there = [1 << max(one) >= tile for one in cells]
        assert any(there)
        assert (found[there, column] == 1).all()


def test_a_board_and_its_images_are_the_same_to_it() -> None:
    tables, slow, _ = learned("three tiles, stages", [2, 5])
    weights = np.rint(tables.records[:, :4] * 64).astype(np.int16)  # sums of whole numbers are exact
    stored = tables_of(slow.layout, list(slow.tiles), weights)
    for cells in draw("three tiles, stages")[2][2]:
        images = np.array([reference.pack(image) for image in reference.symmetries(cells)], np.uint64)
        found = predict_all(stored, 1 / 64, images, 3)
        assert (found == found[0]).all()


@pytest.mark.parametrize("extreme", [32767, -32767])
def test_the_largest_weights_give_probabilities(extreme: int) -> None:
    layout, tiles, games, _ = draw("three tiles, stages")
    weights = np.full((layout.entries, 4), extreme, np.int16)
    weights[::2] = -extreme if extreme > 0 else extreme
    found = predict_all(tables_of(layout, list(tiles), weights), 1.0, packed(games)[0], 3)
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= 1)).all()


def test_threads_and_pieces_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _, _ = learned("one tile", [2, 5])
    boards = np.tile(packed(draw("one tile")[2])[0], 50)
    whole = predict_all(tables, 1.0, boards, 1, 1)
    monkeypatch.setattr("tape2048.critic.ntuple.ntuple_critic._PIECE_ROWS", 64)
    assert (predict_all(tables, 1.0, boards, 1, 3) == whole).all()
    assert predict_all(tables, 1.0, boards[:0], 1, 2).shape == (0, 1)
