"""What a training of a critic waits for, and how fast embeddings come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tape2048.critic.config import CriticConfig

from . import critic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


@pytest.mark.benchmark(group="critic")
def test_critic(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    config = CriticConfig(device="auto")
    how: dict[str, Any] = {"rows": critic.ROWS, "steps": critic.STEPS, "batch": critic.BATCH}
    if not full:
        how = {"rows": 20_000, "steps": 8, "batch": 100}
        config = CriticConfig(device="cpu", batch_rows=64, tower_dim=8, tower_layers=1, tower_heads=1)
    how |= {"rounds": rounds, "directory": tmp_path, "config": config}
    found = benchmark.pedantic(critic.critic_figures, kwargs=how, rounds=1)
    figures.extend(found)
    assert all(figure.value >= 0 for figure in found)
    assert {figure.unit for figure in found} == {"rows/s", "x", "% of a step"}
