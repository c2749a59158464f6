"""Batches as PyTorch tensors, and what is trained on them.

Needs torch (``pip install 'tape2048[torch]'``). :mod:`tape2048.torch.loader` says how the batches come, and how
long one is valid.
"""

from tape2048.torch.loader import CriticDataset, CriticLoader, RowBatch, as_torch_dataset, collate

__all__ = ["CriticDataset", "CriticLoader", "RowBatch", "as_torch_dataset", "collate"]
