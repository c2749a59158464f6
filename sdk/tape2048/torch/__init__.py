"""Batches as PyTorch tensors; critics, towers and their training. Needs the extra `torch`.

- `TorchCritic`: a trained critic.
- `embed_session`: computes the embeddings of a session.
- `CriticHead`: the head of a critic.
- `CriticDataset`: rows by number for `DataLoader`.
- `CriticLoader`: batches as tensors, prefetched by threads.
- `RowBatch`: rows that were fetched together.
- `as_torch_dataset`: a corpus as a PyTorch data set.
- `collate`: the `collate_fn` of a `CriticDataset`.
- `Tower`: a transformer encoder over the 16 cells.
- `TowerConfig`: the sizes of a tower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

try:
    import torch  # noqa: F401 - checks that it is installed
except ModuleNotFoundError as error:
    if error.name != "torch":  # torch is installed, and one of its own imports failed
        raise
    raise ModuleNotFoundError(
        "tape2048.torch needs torch, which is not installed: pip install 'tape2048[torch]' "
        "(a build of PyTorch of your choice: install that first)",
        name="torch",
    ) from error

if TYPE_CHECKING:
    from tape2048.torch.critic import TorchCritic as TorchCritic
    from tape2048.torch.embedding import embed_session as embed_session
    from tape2048.torch.head import CriticHead as CriticHead
    from tape2048.torch.loader import CriticDataset as CriticDataset
    from tape2048.torch.loader import CriticLoader as CriticLoader
    from tape2048.torch.loader import RowBatch as RowBatch
    from tape2048.torch.loader import as_torch_dataset as as_torch_dataset
    from tape2048.torch.loader import collate as collate
    from tape2048.torch.tower import Tower as Tower
    from tape2048.torch.tower import TowerConfig as TowerConfig
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        critic="TorchCritic",
        embedding="embed_session",
        head="CriticHead",
        loader="CriticDataset CriticLoader RowBatch as_torch_dataset collate",
        tower="Tower TowerConfig",
    )
