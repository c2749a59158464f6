"""Discounted returns of all rows of a view, by one pass over them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.errors import CorpusError
from tape2048.loader.batch import Batch
from tape2048.loader.column_fields import plan_fields
from tape2048.loader.gatherer import Gatherer
from tape2048.loader.order import Order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.loader.row_view import ViewTables

_PIECE_ROWS = 1 << 18  # approximate number of rows that are computed together


def discounted(tables: ViewTables, discount: float) -> NDArray[np.float32]:
    """Return the discounted return of each row; arguments and errors as for ``Corpus.discounted``."""
    if not 0 <= discount <= 1:
        raise ValueError(f"discount={discount!r}; expected 0 to 1")
    starts, all_rows = tables.rowmap.run_starts.astype(np.int64), tables.whole.rowmap.rows
    if starts[-1] != all_rows:
        raise CorpusError(
            f"found {starts[-1]:,} of the {all_rows:,} rows of these games; expected all rows, because a "
            "return depends on every later row of its game",
            hint="Compute it before phase, select and rows_where.",
        )
    layout, _ = plan_fields(tables, ("return_1",), np.empty(0, np.int64), "bool")
    gatherer, order = Gatherer(tables, layout.fields, np.empty(0, np.int64)), Order.straight()
    found = np.empty(all_rows, np.float32)

    def compute(runs: tuple[int, int]) -> None:
        edges = starts[runs[0] : runs[1] + 1]
        first, end = int(edges[0]), int(edges[-1])
        batch = Batch.allocate(layout, end - first)
        with gatherer.hold(first, end):
            gatherer.fill(order, (first, end - first), batch)
        # All games together, from their last rows backwards. They are sorted by length, so that the games
        # with rows left are always the first ones.
        by_length = np.argsort(-np.diff(edges), kind="stable")
        lengths, at = np.diff(edges)[by_length], edges[1:][by_length] - first
        going = np.searchsorted(-lengths, -np.arange(int(lengths[0])), "left")
        values = np.zeros(len(lengths))
        for count in going.tolist():
            at[:count] -= 1
            values[:count] = discount * values[:count] + batch["return_1"][at[:count]]
            found[first + at[:count]] = values[:count]

    begins = np.unique(np.searchsorted(starts, np.arange(0, all_rows, _PIECE_ROWS), "right") - 1)
    for _ in map_ordered(compute, itertools.pairwise([*begins.tolist(), len(starts) - 1])):
        pass
    return found
