"""Batches against the C loop and NumPy, labels of many rows, many sessions: toy sizes in the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

from . import batches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


def test_the_corpus_that_is_measured_serves_its_rows() -> None:
    corpus = batches.corpus_in_memory(30_000, 100)
    assert len(corpus) == 30_000
    rows = corpus[:]
    found = [batch.copy() for batch in corpus.batches(1000, fields=("row", "tokens", "labels", "run"))]
    numbers = np.concatenate([batch["row"] for batch in found])
    assert sorted(numbers.tolist()) == list(range(30_000))
    np.testing.assert_array_equal(np.concatenate([batch["tokens"] for batch in found]), rows["exps"][numbers])
    run = np.searchsorted(corpus.row_starts, numbers, "right") - 1
    np.testing.assert_array_equal(np.concatenate([batch["run"] for batch in found]), run)
    np.testing.assert_array_equal(
        np.concatenate([batch["labels"] for batch in found]), corpus.run_labels(batches.THRESHOLDS)[run]
    )


@pytest.mark.benchmark(group="batches")
def test_batches(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool) -> None:
    how = {
        "rows": batches.ROWS if full else 20_000,
        "large": batches.LARGE_ROWS if full else 40_000,
        "batch": batches.BATCH if full else 512,
    }
    found = benchmark.pedantic(batches.batch_figures, kwargs={**how, "rounds": rounds}, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="labels")
def test_labels(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool) -> None:
    rows = batches.LABEL_ROWS if full else 100_000
    found = benchmark.pedantic(batches.label_figures, kwargs={"rows": rows, "rounds": rounds}, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="opening")
def test_opening(
    benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool, tmp_path: Path
) -> None:
    how = {"sessions": batches.SESSIONS if full else 3, "games": batches.SESSION_GAMES if full else 5}
    found = benchmark.pedantic(
        batches.opening_figures, args=(tmp_path / "corpus",), kwargs={**how, "rounds": rounds}, rounds=1
    )
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
