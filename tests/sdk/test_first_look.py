"""What a newcomer tries, each in one call, on the recording that is installed with the package."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, plot_board, sample
from tape2048.torch import CriticLoader

plt = pytest.importorskip("matplotlib.pyplot")
pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return sample()


#: Each call beside what has to be true of its result.
TRIES: dict[str, tuple[Callable[[Corpus], Any], Callable[[Any], object]]] = {
    "index": (lambda c: c[0], lambda row: row["step_idx"] == 0 and row["exps"].shape == (16,)),
    "slice": (lambda c: c[10:20], lambda rows: rows["step_idx"].tolist() == [*range(10, 20)]),
    "iterate games": (
        lambda c: [game.score for game in c.games()],
        lambda scores: len(scores) == 100 and max(scores) > 700_000,
    ),
    "sample 100 near death": (
        lambda c: c.phase(rows_left=(0, 20)).sample(100, seed=1),
        lambda batch: batch.tokens.shape == (100, 16) and batch.steps_left.max() < 20,
    ),
    "to pandas": (
        lambda c: c.to_pandas(n=1000),
        lambda frame: isinstance(frame, pd.DataFrame) and frame.shape == (1000, 21),
    ),
    "plot a board": (
        lambda c: plot_board(c.game(0).boards[-1]),
        lambda ax: {"2", "4", ""} & {text.get_text() for text in ax.texts},
    ),
    "load into PyTorch": (
        lambda c: next(iter(CriticLoader(c, batch_size=64))),
        lambda batch: tuple(batch["tokens"].shape) == (64, 16),
    ),
    "describe": (lambda c: c.describe(), lambda table: [row[0] for row in table.rows] == ["72", "28", "100"]),
    "filter by score": (
        lambda c: c.where(min_score=300_000),
        lambda view: 0 < len(view.runs) < 28 and len(view.players) == 1,
    ),
    "game i": (
        lambda c: c.game(3).boards,
        lambda boards: boards.shape[1:] == (4, 4) and np.count_nonzero(boards[0]) == 2,
    ),
    "add": (lambda c: c + c, lambda both: len(both.runs) == 100),
}  # fmt: skip


@pytest.mark.parametrize("name", TRIES)
def test_one_call(corpus: Corpus, name: str) -> None:
    call, holds = TRIES[name]
    assert holds(call(corpus))
    plt.close("all")
