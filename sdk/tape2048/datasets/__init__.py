"""Data sets of 32-byte rows: the data set directory and pack.dat.

- `Dataset`: a data set directory, or several as one.
- `DataPack`: a pack.dat in memory.
- `verify_dataset`: checks a data set completely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.datasets.dataset import Dataset as Dataset
    from tape2048.datasets.packdat import DataPack as DataPack
    from tape2048.datasets.verify import verify_dataset as verify_dataset
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        dataset="Dataset",
        packdat="DataPack",
        verify="verify_dataset",
    )
