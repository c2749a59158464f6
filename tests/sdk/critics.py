"""Sessions that a critic can learn from in seconds, and small towers and critics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.critic.config import CriticConfig

from .builders import Game, Spec, write_ours

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TILES = (4096, 8192, 16384)
STEPS = 40


def make_games(root: Path, *, sessions: int = 2, games: int = 60, name: str = "toy") -> Path:
    """Sessions whose boards tell of their game's end: the largest exponent is near the highest tile's."""
    for number in range(sessions):
        rng = np.random.default_rng(number)
        tiles = 1 << rng.integers(11, 15, games)
        made = [
            Game(i + 1, STEPS, int(tile), seed=1000 * number + i, max_score=int(tile) * 10)
            for i, tile in enumerate(tiles)
        ]

        def change(rows: NDArray[np.void], rng: Any = rng, tiles: Any = tiles) -> None:
            rows["exps"] = rng.integers(0, 9, (len(rows), 16))
            noise = rng.integers(-1, 2, len(rows)) * (rng.random(len(rows)) < 0.4)
            seen = np.log2(np.repeat(tiles, STEPS)).astype(int) + noise
            rows["exps"][np.arange(len(rows)), rng.integers(0, 16, len(rows))] = np.clip(seen, 10, 15)

        facts = {"player_sha256": "a" * 64, "engine": "toy", "started_at": "2025-01-02T03:04:05Z"}
        spec = Spec(games=made, facts=facts, change_rows=change, block_rows=1000)
        write_ours(root / f"2025010{number + 1}T030405Z_model={name}", spec)
    return root


def config(root: Path, out: Path, **changes: Any) -> CriticConfig:
    """A training of a few seconds; 120 games make 18 steps an epoch."""
    settings: dict[str, Any] = {
        "data": str(root), "out": str(out), "thresholds": " ".join(map(str, TILES)), "val_share": 0.2,
        "test_share": 0.0, "per_run": 24, "tower_dim": 16, "tower_layers": 1, "tower_heads": 2,
        "tower_ffn": 16, "batch_rows": 128, "epochs": 2, "learning_rate": 0.01, "warmup_steps": 4,
        "log_steps": 3, "checkpoint_steps": 5, "threads": 1, "device": "cpu",
    }  # fmt: skip
    return CriticConfig(**{**settings, **changes})
