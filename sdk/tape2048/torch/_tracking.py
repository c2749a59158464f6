"""Where metrics go: a file of lines, always; TensorBoard and Weights & Biases, where they are asked for."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tape2048._durable import storage_error
from tape2048.torch._support import require

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.critic_config import CriticConfig

__all__ = ["METRICS", "Tracking"]

METRICS = "metrics.jsonl"


class Tracking:
    """The places that a training's metrics go to; a context that closes them.

    Args:
        config: which.
        directory: the training's.
        kept_bytes: of ``metrics.jsonl``; what stands behind them is of steps that will be made again.

    Raises:
        MissingPackageError: one is asked for, and is not installed.
        StorageError: the file cannot be written.
    """

    def __init__(self, config: CriticConfig, directory: Path, kept_bytes: int) -> None:
        self._path = directory / METRICS
        self._board: Any = None
        self._wandb: Any = None
        if config.tensorboard:
            hint = "pip install tensorboard"
            module = require("torch.utils.tensorboard", "tensorboard = true", hint)
            self._board = module.SummaryWriter(str(directory / "tensorboard"))
        if config.wandb_project:
            wandb = require("wandb", "wandb_project", "pip install wandb")
            settings = msgspec.structs.asdict(config)
            # The same training goes on as the same run.
            name = f"{directory.absolute()} {sorted(config.deciding().items())}"
            self._wandb = wandb.init(
                project=config.wandb_project, config=settings, dir=str(directory), resume="allow",
                id=hashlib.sha256(name.encode()).hexdigest()[:16],
            )  # fmt: skip
        try:
            with self._path.open("ab") as file:
                # Cutting makes no file longer: of one that is gone, or that lost its end with the power,
                # what is missing would be zeros.
                file.truncate(min(kept_bytes, file.tell()))
        except OSError as error:
            raise storage_error(error, self._path, "writing metrics") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def note(self, kind: str, step: int, values: dict[str, Any]) -> int:
        """Write a line, and pass its numbers on.

        Args:
            kind: ``"train"`` or ``"val"``.
            step: optimizer steps made.
            values: numbers, or tables of numbers by threshold.

        Returns:
            The length of ``metrics.jsonl``.
        """
        line = msgspec.json.encode({"kind": kind, "step": step, **values}) + b"\n"
        try:
            with self._path.open("ab") as file:
                file.write(line)
                length = file.tell()
        except OSError as error:
            raise storage_error(error, self._path, "writing metrics") from error
        numbers = _numbers(kind, values)
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)
        return length


def _numbers(prefix: str, values: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            found[f"{prefix}/{name}"] = value
    return found
