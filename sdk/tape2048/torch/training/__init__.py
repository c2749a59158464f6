"""Training of a critic: model, data, validation, checkpoints, ranks."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.torch.training.run import train_critic as train_critic
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
