"""Sessions that a critic can learn from in seconds, and small towers and critics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tape2048.base.text import pretty_json
from tape2048.critic.critic_config import CriticConfig

from .builders import Game, Spec, write_ours

TILES = (4096, 8192, 16384)
STEPS = 40


def make_games(root: Path, *, sessions: int = 2, games: int = 60, name: str = "toy") -> Path:
    """Sessions whose boards tell of their game's end: the largest exponent is near the highest tile's."""
    for number in range(sessions):
        rng = np.random.default_rng(number)
        tiles = 1 << rng.integers(11, 15, games)
        first_seed = 1000 * number + 10**6 * (name != "toy")
        made = [
            Game(i + 1, STEPS, int(tile), seed=first_seed + i, max_score=int(tile) * 10)
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


def make_uneven(root: Path, *, alike: bool = False, games: int = 80) -> Path:
    """Sessions whose long games reach the tiles more often; all boards of a game are alike, or of all games.

    Games are of 24, 48 or 240 steps, so that each of 12 rows of a game stands for 2, 4 or 20 rows.
    """
    rng = np.random.default_rng(5)
    steps = rng.choice([24, 48, 240], games)
    tiles = 1 << (rng.integers(10, 13, games) + (steps == 240) * rng.integers(1, 3, games))
    made = [
        Game(i + 1, int(length), int(tile), seed=i)
        for i, (length, tile) in enumerate(zip(steps, tiles, strict=True))
    ]

    def change(rows: NDArray[np.void]) -> None:
        boards = rng.integers(1, 14, (games, 16))
        rows["exps"] = boards[0] if alike else np.repeat(boards, steps, axis=0)

    facts = {"player_sha256": "a" * 64, "engine": "toy", "started_at": "2025-01-02T03:04:05Z"}
    write_ours(
        root / "20250102T030405Z_model=uneven",
        Spec(games=made, facts=facts, change_rows=change, block_rows=1000),
    )
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


#: Fields of a line of metrics that resuming does not repeat.
_TIMES = ("rows_per_s", "data_wait", "elapsed_s")


def lines(out: Path) -> list[dict[str, Any]]:
    """The metrics of a training, without times."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in _TIMES} for line in found]


class CrashError(Exception):
    """Ends a training in place of a kill."""


class Seen:
    """A view that remembers, and can end the training at a report of progress, without a checkpoint."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.events: list[str] = []
        self.seen: list[Any] = []
        self.crash_at = crash_at

    def progress(self, progress: Any) -> None:
        self.seen.append(progress)
        if len(self.seen) == self.crash_at:
            raise CrashError

    def event(self, message: str) -> None:
        self.events.append(message)


def save_tower(directory: Path, tower: Any, *, replace: bool = False) -> None:
    from tape2048.torch import tower as towers

    files = {
        towers.TOWER_JSON: pretty_json(tower.config), towers.MODEL: towers.tensor_bytes(tower.state_dict())
    }  # fmt: skip
    towers.publish_directory(directory, files, replace=replace)


def forget_checksum(session: Path) -> None:
    """Make the column of embeddings one without a checksum, as earlier versions wrote it."""
    facts = json.loads((session / "embeddings.json").read_bytes())
    del facts["crc32c"]
    (session / "embeddings.json").write_text(json.dumps(facts))
