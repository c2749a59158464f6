"""Rows of a view by number: row numbers, whole records, fields, and pieces that lie together in memory."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.batches.fields import Batch, Layout, check_label_dtype
from tape2048.formats.rows import unchecked_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import SupportsIndex

    from numpy.typing import ArrayLike, NDArray

    from tape2048.batches.fields import LabelDtype
    from tape2048.batches.gatherer import Gatherer
    from tape2048.store.view import View


def row_numbers(view: View, rows: slice | ArrayLike) -> NDArray[np.int64]:
    """Row numbers of a slice, a mask, or numbers, which the gather checks against the view."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(len(view)))
    # A u64 beyond 2**63 becomes negative, which the gather refuses as it does any other wrong one.
    return np.ascontiguousarray(unchecked_numbers(rows, len(view)), np.int64)


def records(view: View, gatherer: Gatherer, numbers: NDArray[np.int64]) -> NDArray[np.void]:
    """Whole rows, ``dtype[n]``."""
    from tape2048.batches.gatherer import gather

    out = np.empty(len(numbers), view.dtype)
    gather(gatherer, numbers, records=out.view(np.uint8).reshape(len(numbers), view.dtype.itemsize))
    return out


def fetch(
    view: View,
    numbers: NDArray[np.int64],
    fields: tuple[str, ...],
    thresholds: NDArray[np.int64],
    label_dtype: LabelDtype,
) -> dict[str, NDArray[Any]]:
    """Fields of rows, as new arrays."""
    from tape2048.batches.gatherer import Gatherer, gather

    check_label_dtype(label_dtype)
    gatherer = Gatherer(view, fields, thresholds)
    layout = Layout(fields, len(thresholds), label_dtype, gatherer.embedding_width)
    batch = Batch.allocate(layout, len(numbers))
    gather(gatherer, numbers, batch=batch)
    return batch.arrays


def row_number(row: SupportsIndex) -> int:
    """A row's number as Python's own; TypeError for what is none."""
    try:
        return operator.index(row)
    except TypeError:
        raise TypeError(f"row {row!r}; expected a number or a slice (get_batch takes many)") from None


def in_place(view: View, first: int, end: int) -> NDArray[np.void] | None:
    """Rows ``first <= row < end`` as a view of the store's memory; None where they do not stand together."""
    rows = view.rowmap
    if rows.mask.words.size:
        return None
    starts = rows.guide.starts
    a = int(np.searchsorted(starts, np.uint64(first), "right")) - 1
    b = int(np.searchsorted(starts, np.uint64(end), "left"))
    if not (rows.address[a:b] == rows.address[a]).all() or not (rows.end[a:b] == rows.end[a]).all():
        return None
    address = (int(rows.address[a]) + first * rows.row_bytes) % 2**64
    return view.store.bytes_at(address, (end - first) * rows.row_bytes).view(view.dtype)


def pieces(view: View, rows_max: int) -> Iterator[slice]:
    """The rows of ``Corpus.pieces``."""
    if rows_max < 1:
        raise ValueError(f"rows_max={rows_max}; expected at least 1")
    rows = view.rowmap
    if rows.mask.words.size:
        edges = np.arange(0, len(view), rows_max)
    else:
        apart = (rows.address[1:] != rows.address[:-1]) | (rows.end[1:] != rows.end[:-1])
        edges = rows.guide.starts[:-1][np.concatenate(([True], apart))].astype(np.int64)
    for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(view)], strict=True):
        for first in range(begin, end, rows_max):
            yield slice(first, min(end, first + rows_max))
