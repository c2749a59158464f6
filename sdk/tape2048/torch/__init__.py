"""Batches as PyTorch tensors, and critics that are trained on them.

Needs torch (``pip install 'tape2048[torch]'``); critics and their files also need safetensors
(``pip install 'tape2048[critic]'``). :mod:`tape2048.torch.loader` says how the batches come, and how long
one is valid; :mod:`tape2048.torch.critic` what a critic is; :mod:`tape2048.torch.training` how it is trained.
"""

from tape2048.torch import _installed  # noqa: F401 - before what imports torch
from tape2048.torch.critic import Critic
from tape2048.torch.loader import CriticDataset, CriticLoader, RowBatch, as_torch_dataset, collate

__all__ = ["Critic", "CriticDataset", "CriticLoader", "RowBatch", "as_torch_dataset", "collate"]
