"""Critics without PyTorch: n-tuple critics, settings, evaluation, baselines, rollouts."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.critic.critic_config import CriticConfig as CriticConfig
    from tape2048.critic.evaluation import evaluate as evaluate
    from tape2048.critic.facts import unseen_games as unseen_games
    from tape2048.critic.metrics import (
        Estimate as Estimate,
        RunBootstrap as RunBootstrap,
        brier_score as brier_score,
        calibration_error as calibration_error,
        log_loss as log_loss,
        ranking as ranking,
        reliability as reliability,
    )
    from tape2048.critic.ntuple.ntuple_critic import NTupleCritic as NTupleCritic
    from tape2048.critic.oracle import Oracle as Oracle, oracle_scores as oracle_scores
    from tape2048.critic.results import Evaluation as Evaluation
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
