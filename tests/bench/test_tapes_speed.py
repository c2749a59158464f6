"""Batches, pools and packed boards from tape: toy sizes in the suite."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

from tape2048.game.rules import boards_to_exps

from . import tapes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


def test_the_corpus_that_is_measured_serves_its_games() -> None:
    games = tapes.play("random", 50)
    corpus = tapes.corpus_on_tape(games, 3 * len(games.tape))
    numbers = np.random.default_rng(0).permutation(len(corpus))
    expected = boards_to_exps(games.boards[numbers % len(games.tape)])
    np.testing.assert_array_equal(corpus.tokens(numbers), expected)


@pytest.mark.benchmark(group="tapes")
@pytest.mark.skipif(shutil.which("cat") is None, reason="no cat")
def test_tapes(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool, tmp_path: Path) -> None:
    games = tapes.play(tapes.PLAYER, tapes.GAMES) if full else tapes.play("random", 200)
    batch = tapes.BATCH if full else 256

    def measure() -> list[Figure]:
        rows = tapes.ROWS if full else 50_000
        cold = tapes.COLD_ROWS if full else 20_000
        return [
            *tapes.batch_figures(games, rows=rows, batch=batch, rounds=rounds),
            *tapes.disk_figures(games, rows=cold, batch=batch, rounds=rounds, directory=tmp_path),
        ]

    found = benchmark.pedantic(measure, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
