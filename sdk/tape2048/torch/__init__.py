"""Batches as PyTorch tensors; critics, towers and their training. Needs the extra `torch`."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

try:
    import torch  # noqa: F401 - checks that it is installed
except ModuleNotFoundError as error:
    if error.name != "torch":  # torch is installed, but a package that torch imports is missing
        raise
    raise ModuleNotFoundError(
        "tape2048.torch needs torch, which is not installed. Run: pip install 'tape2048[torch]' "
        "(to choose a build of PyTorch, install PyTorch first)",
        name="torch",
    ) from error

if TYPE_CHECKING:
    from tape2048.torch.embedding import embed_session as embed_session
    from tape2048.torch.heads import CriticHead as CriticHead
    from tape2048.torch.loader import (
        CriticDataset as CriticDataset,
        CriticLoader as CriticLoader,
        RowBatch as RowBatch,
        TensorBatch as TensorBatch,
        as_torch_dataset as as_torch_dataset,
        collate as collate,
    )
    from tape2048.torch.torch_critic import TorchCritic as TorchCritic
    from tape2048.torch.tower import Tower as Tower, TowerConfig as TowerConfig
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
