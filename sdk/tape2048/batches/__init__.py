"""Random batches of a corpus: order, gather, pools, buffers.

- `Batches`: the batches of a corpus, epoch after epoch.
- `FIELDS`: the names of all fields of a batch.
- `Batch`: the buffers of one batch.
- `Permutation`: a keyed bijection on [0, n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.batches.batches import Batches as Batches
    from tape2048.batches.fields import FIELDS as FIELDS
    from tape2048.batches.fields import Batch as Batch
    from tape2048.batches.shuffle import Permutation as Permutation
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        batches="Batches",
        fields="FIELDS Batch",
        shuffle="Permutation",
    )
