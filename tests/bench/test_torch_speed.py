"""Rows a second through the PyTorch loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tape2048.maintenance.validation import validate_session

from . import corpora, torch_loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


def test_corpora_that_are_made_up_are_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "SESSION_ROWS", 400)
    root = corpora.make_corpus(tmp_path / "corpus", 1000, game_rows=150)
    reports = [validate_session(path) for path in sorted(root.iterdir())]
    assert [(report.rows, report.runs) for report in reports] == [(400, 3), (400, 3), (200, 2)]
    # The outcomes of the games are made up; everything else has to be right.
    messages = [finding.message for report in reports for finding in report.findings]
    assert all("has highest_tile" in message for message in messages), messages


@pytest.mark.benchmark(group="torch")
def test_torch_loader(
    benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    how = {"rows": torch_loader.ROWS, "batch": torch_loader.BATCH, "batches": torch_loader.BATCHES}
    if not full:
        how = {"rows": 20_000, "batch": 100, "batches": 100}
    found = benchmark.pedantic(
        torch_loader.torch_figures, kwargs={**how, "rounds": rounds, "directory": tmp_path}, rounds=1
    )
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
