"""The way of a row from its session to a batch: buffers, filters, splits, order, gather, mixtures.

Opened sessions come in, with their rows and run tables. Filters, phases and splits make views of them, and
batches of a view come out, in random order. Open ``buffers.py`` for the rows, ``row_view.py`` for a
selection, ``batches.py`` for batches.
"""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.loader.batch import Batch as Batch
    from tape2048.loader.batches import Batches as Batches
    from tape2048.loader.shuffle import Permutation as Permutation
    from tape2048.session.batch_fields import FIELDS as FIELDS
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
