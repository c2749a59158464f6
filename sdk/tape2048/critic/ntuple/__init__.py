"""N-tuple critics: training by temporal differences. Loads numba.

- `NTupleCriticConfig`: the settings of a training.
- `corpus_games`: opens the games of a training from sessions.
- `train_ntuple_critic`: trains a critic in a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.critic.ntuple.config import NTupleCriticConfig as NTupleCriticConfig
    from tape2048.critic.ntuple.games import corpus_games as corpus_games
    from tape2048.critic.ntuple.training import train_ntuple_critic as train_ntuple_critic
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__, config="NTupleCriticConfig", games="corpus_games", training="train_ntuple_critic"
    )
