"""Targets of a critic's training: outcomes of games, a teacher's probabilities, or a mixture of both.

A game's outcome is one bit for thousands of its rows. A teacher, an n-tuple critic that learned by temporal
differences, has a probability for each board; learning from it is distillation (Hinton, Vinyals and Dean,
"Distilling the knowledge in a neural network", 2015) with the teacher's errors in place of the bit's noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tape2048.critic.facts import strangers
from tape2048.critic.ntuple.critic import NTupleCritic
from tape2048.errors import ModelError
from tape2048.game.rules import exps_to_boards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048.critic.config import CriticConfig
    from tape2048.critic.facts import PlayedBy


class Targets:
    """The targets of batches.

    Args:
        config: the settings.
        players: whose games the critic learns from.

    Raises:
        ModelError: there is no such teacher, or it has other tiles or judges another player.
    """

    def __init__(self, config: CriticConfig, players: Sequence[PlayedBy]) -> None:
        self.share = config.teacher_share
        self.teacher = NTupleCritic.load(config.teacher) if self.share else None
        if self.teacher is None:
            return
        if self.teacher.thresholds != config.tiles:
            raise ModelError(
                f"the teacher predicts the tiles {self.teacher.thresholds}, and the training {config.tiles}",
                path=config.teacher,
                hint="--thresholds names the teacher's",
            )
        if others := strangers(self.teacher.info, players):
            judged = "; ".join(map(str, self.teacher.info.players))
            raise ModelError(
                f"the teacher judges {judged}, and these are games of {'; '.join(map(str, others))}",
                path=config.teacher,
                hint="train a teacher on the same player's games: tape2048 critic train --kind ntuple",
            )

    def __call__(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the targets of a batch with tokens and labels: ``f32[n, T]``."""
        labels = batch["labels"]
        if self.teacher is None:
            return labels
        boards = exps_to_boards(batch["tokens"].cpu().numpy())
        taught = torch.from_numpy(self.teacher(boards)).to(labels.device)
        return torch.lerp(labels, taught, self.share)
