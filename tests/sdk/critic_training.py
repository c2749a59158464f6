"""A training of a critic in a process of its own, to be killed or to be one of several ranks.

::

    python -m tests.sdk.critic_training CONFIG.json [--paced]

``--paced``: says ``step`` after each one, and waits for a line before the next.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tape2048.critic.config import CriticConfig
from tape2048.torch.training import train_critic

if TYPE_CHECKING:
    from tape2048.training import TrainingProgress


class Paced:
    """Goes on when it is told to."""

    def event(self, message: str) -> None:
        pass

    def progress(self, progress: TrainingProgress) -> None:
        sys.stdout.write("step\n")
        sys.stdout.flush()
        sys.stdin.readline()


def no_models_left() -> None:
    """Leave the group of ranks, in which no wrapped model may be alive any more."""
    assert not any(type(each) is DistributedDataParallel for each in gc.get_objects())
    leave()


if __name__ == "__main__":
    leave, dist.destroy_process_group = dist.destroy_process_group, no_models_left
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=CriticConfig)
    train_critic(settings, Paced() if "--paced" in sys.argv else None)
