"""Data sets of 32-byte rows: the data set directory and pack.dat."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.datasets.dataset import Dataset as Dataset
    from tape2048.datasets.packdat import DataPack as DataPack
    from tape2048.datasets.verify import verify_dataset as verify_dataset
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
