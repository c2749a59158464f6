"""The control at a toy size: games whose outcome was drawn by lot, so that only leakage can be learned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.sdk.builders import Game, Spec, write_ours

from .critic_controls import controls, read

GAMES = 60
ROWS = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pieces of random games, each of the rows after a random number of moves."""
    pieces = []
    for seed in range(GAMES):
        cells, _, generator = reference.new_game(seed)
        boards: list[list[int]] = []
        while len(boards) < 20 + ROWS and (move := reference.random_move(cells, generator)) is not None:
            boards.append(cells)
            cells, _ = reference.spawn(reference.slide(cells, move)[0], generator)
        pieces.append(boards[-ROWS:])
    lots = np.random.default_rng(7).permutation(GAMES) < GAMES // 2
    games = [
        Game(i + 1, len(piece), 8192 if lots[i] else 4096, seed=i, max_score=1)
        for i, piece in enumerate(pieces)
    ]

    def put_boards(rows: Any) -> None:
        rows["exps"] = [board for piece in pieces for board in piece]

    directory = tmp_path_factory.mktemp("controls")
    write_ours(directory / "20250102T030405Z_model=toy", Spec(games=games, change_rows=put_boards))
    return directory


def test_a_split_by_row_leaks(root: Path) -> None:
    """A split by row finds outcomes that were drawn by lot."""
    rows = read(root, 8192, per_run=ROWS, runs_max=GAMES, seed=1)
    assert rows.reached.sum() == GAMES // 2
    found = {(one.outcomes, one.split): one.auroc for one in controls(rows, trees=15, seed=1)}
    for outcomes in ("true", "shuffled"):
        by_run, by_row = found[outcomes, "run"], found[outcomes, "row"]
        assert by_run.low <= 0.5 <= by_run.high
        assert by_row.value > 0.75
        assert by_row.low > by_run.high
