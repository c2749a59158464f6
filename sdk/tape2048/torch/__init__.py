"""Batches as PyTorch tensors, and critics that are trained on them.

Needs torch (``pip install 'tape2048[torch]'``); critics and their files also need safetensors
(``pip install 'tape2048[critic]'``). :mod:`tape2048.torch.loader` says how the batches come, and how long
one is valid; :mod:`tape2048.torch.critic` what a critic is; :mod:`tape2048.torch.training.run` how it is trained.
"""

try:
    import torch  # noqa: F401 - to see whether it is there
except ModuleNotFoundError as error:
    if error.name != "torch":  # it is there, and lacks something itself
        raise
    raise ModuleNotFoundError(
        "tape2048.torch needs torch, which is not installed: pip install 'tape2048[torch]' "
        "(a build of PyTorch of your choice: install that first)",
        name="torch",
    ) from error

from tape2048.torch.critic import Critic
from tape2048.torch.loader import CriticDataset, CriticLoader, RowBatch, as_torch_dataset, collate

__all__ = ["Critic", "CriticDataset", "CriticLoader", "RowBatch", "as_torch_dataset", "collate"]
