"""N-tuple critics: training by temporal differences. Loads numba."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.critic.critic_config import NTupleCriticConfig as NTupleCriticConfig
    from tape2048.critic.ntuple.ntuple_critic import (
        corpus_games as corpus_games,
        train_ntuple_critic as train_ntuple_critic,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
