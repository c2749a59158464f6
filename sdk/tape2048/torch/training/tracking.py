"""Metrics for TensorBoard and Weights & Biases."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tape2048.torch.support import require

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.critic.config import CriticConfig


class Tracking:
    """Sends metrics to the configured trackers; a context that closes them.

    Raises:
        MissingPackageError: a configured tracker is not installed.
    """

    def __init__(self, config: CriticConfig, directory: Path) -> None:
        self._board: Any = None
        self._wandb: Any = None
        if config.tensorboard:
            hint = "pip install tensorboard"
            module = require("torch.utils.tensorboard", "tensorboard = true", hint)
            self._board = module.SummaryWriter(str(directory / "tensorboard"))
        if config.wandb_project:
            wandb = require("wandb", "wandb_project", "pip install wandb")
            settings = msgspec.structs.asdict(config)
            # A resumed training continues its run.
            name = f"{directory.absolute()} {sorted(config.deciding().items())}"
            self._wandb = wandb.init(
                project=config.wandb_project, config=settings, dir=str(directory), resume="allow",
                id=hashlib.sha256(name.encode()).hexdigest()[:16],
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def note(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Send a line of metrics (``"train"`` or ``"val"``): numbers, or numbers by threshold."""
        numbers = _numbers(kind, values)
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)


def _numbers(prefix: str, values: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            found[f"{prefix}/{name}"] = value
    return found
