"""Critics without PyTorch: n-tuple critics, settings, evaluation, metrics, baselines, rollouts, score files.

- `NTupleCritic`: an n-tuple critic, from its file or by the name under which it ships.
- `CriticConfig`: the settings of a training.
- `evaluate`: evaluates a critic on held-out games.
- `Evaluation`: the result of an evaluation.
- `Oracle`: true probabilities of positions by rollouts, kept on disk.
- `oracle_scores`: measures predictions against rollouts.
- `Estimate`: a number with its 95% interval.
- `RunBootstrap`: the bootstrap by run.
- `brier_score`: the Brier score.
- `calibration_error`: the expected calibration error.
- `ranking`: AUROC and average precision.
- `reliability`: predicted and observed shares in bins.
- `CriticScores`: the probabilities in a score file.
- `open_scores`: maps a score file.
- `write_scores`: writes a critic's probabilities for every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.critic.config import CriticConfig as CriticConfig
    from tape2048.critic.evaluation import Evaluation as Evaluation
    from tape2048.critic.evaluation import evaluate as evaluate
    from tape2048.critic.metrics import Estimate as Estimate
    from tape2048.critic.metrics import RunBootstrap as RunBootstrap
    from tape2048.critic.metrics import brier_score as brier_score
    from tape2048.critic.metrics import calibration_error as calibration_error
    from tape2048.critic.metrics import ranking as ranking
    from tape2048.critic.metrics import reliability as reliability
    from tape2048.critic.ntuple.critic import NTupleCritic as NTupleCritic
    from tape2048.critic.oracle import Oracle as Oracle
    from tape2048.critic.scores import CriticScores as CriticScores
    from tape2048.critic.scores import open_scores as open_scores
    from tape2048.critic.scores import write_scores as write_scores
    from tape2048.critic.truth import oracle_scores as oracle_scores
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        config="CriticConfig",
        evaluation="Evaluation evaluate",
        metrics="Estimate RunBootstrap brier_score calibration_error ranking reliability",
        oracle="Oracle",
        scores="CriticScores open_scores write_scores",
        truth="oracle_scores",
        **{"ntuple.critic": "NTupleCritic"},
    )
