"""Random batches of a corpus: order, gather, pools, buffers."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.batches.batch import Batch as Batch
    from tape2048.batches.batches import Batches as Batches
    from tape2048.batches.shuffle import Permutation as Permutation
    from tape2048.formats.batch_fields import FIELDS as FIELDS
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
