"""What a call of the gather is made of: tables, order and outputs, as the addresses that the kernel takes.

A call with thirty arrays took 10 us before it did anything, with four 1 us; a batch takes 50 to 100. The
arrays of a view do not change, so their addresses are written into one array once, and that is passed.
Each class here keeps alive what its addresses point to, and says in one place what stands where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.guide import NO_GUIDE, Guide
from tape2048.store.row_map import NO_LABELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.store.row_map import RowMap


class Cap(NamedTuple):
    """At most so many rows of each run; which ones, the order's key says.

    Attributes:
        guide: over the capped numbers of the runs' rows.
        evenly: draw at equal distances, not one row at random of each of equal stretches.
    """

    guide: Guide
    evenly: bool


class Pool(NamedTuple):
    """Rows that were copied together: chunks of the view, one after the other.

    Attributes:
        rows: the copied rows, ``u8[n, row_bytes]``.
        firsts: the view's number of each chunk's first row, ``u64[C]``.
        shift: a chunk has ``2**shift`` rows; only the last one may be shorter.
    """

    rows: NDArray[np.uint8]
    firsts: NDArray[np.uint64]
    shift: int


NO_CAP = Cap(NO_GUIDE, evenly=False)
NO_POOL = Pool(np.empty((0, 0), np.uint8), np.empty(0, np.uint64), 0)


class Tables(NamedTuple):
    """The entries of a plan, in this order: ``u64``, most of them addresses (0: there is no such table).

    ``limit`` bounds the numbers of the view's rows, ``rows`` those of the map. ``packed`` says that there are
    packed boards, whose addresses are in ``board``, or follow from ``board_line``. ``labels`` is a guide of
    its own (see :func:`make_label_guide`); 0 where there is none. ``exponents`` has the exponent
    of the highest tile for each segment, not for each run: that spares most batches the run. ``patterns`` has
    a row's labels for each exponent, as the bytes of a word; 0 where they do not fit.
    """

    limit: Any
    entries: Any
    starts: Any
    shift: Any
    line: Any
    address: Any
    packed: Any
    board_line: Any
    board: Any
    run: Any
    end: Any
    rows: Any
    row_bytes: Any
    run_starts: Any
    words: Any
    ranks: Any
    samples: Any
    cap_entries: Any
    cap_starts: Any
    cap_shift: Any
    cap_evenly: Any
    pool: Any
    pool_firsts: Any
    pool_shift: Any
    pool_rows: Any
    labels: Any
    exponents: Any
    thresholds: Any
    threshold_count: Any
    patterns: Any


class Order(NamedTuple):
    """The entries of an order, likewise.

    ``kind`` is one of ``gather_kernel.STRAIGHT``, SHUFFLED and LISTED; ``listed`` the address of the places,
    ``i64``; ``cap_key`` and ``symmetry_key`` what draws rows and symmetries (``symmetry_key`` 0: boards stay
    as they are).
    """

    kind: Any
    listed: Any = 0
    cap_key: Any = 0
    symmetry_key: Any = 0


class Outputs(NamedTuple):
    """The entries of a target, likewise: addresses of C-ordered arrays, 0 for what is not asked for.

    For a batch of B rows: ``records`` u8[B, row_bytes], ``tokens`` u8[B, 16], ``flags`` bool[B, T] and
    ``targets`` f32[B, T] (labels), ``row`` i64[B] (number in the view, behind its cap), ``run`` and
    ``step`` u4[B], ``action``, ``legal``, ``move`` and ``symmetry`` u8[B], ``segment`` u4[B] and ``base``
    i64[B] (number in the map).
    """

    records: Any = 0
    tokens: Any = 0
    flags: Any = 0
    targets: Any = 0
    row: Any = 0
    run: Any = 0
    step: Any = 0
    action: Any = 0
    legal: Any = 0
    move: Any = 0
    symmetry: Any = 0
    segment: Any = 0
    base: Any = 0


def _label_patterns(thresholds: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The labels of each exponent as eight bytes, ``u8[256, 8]``; none for more than eight thresholds."""
    if len(thresholds) > 8:
        return np.empty((0, 8), np.uint8)
    patterns = np.zeros((256, 8), np.uint8)
    patterns[:, : len(thresholds)] = np.arange(256)[:, None] >= thresholds
    return patterns


def address_of(array: NDArray[Any]) -> int:
    """Address of the first element; 0 for an array without any."""
    return int(array.__array_interface__["data"][0]) if array.size else 0


class Plan:
    """The tables of a view (or of a pool of its rows), ready for the kernel.

    Args:
        rows: the view's map. The rows themselves must be kept alive by the caller.
        cap: its cap.
        pool: rows copied out of it.
        exponents: exponent of the highest tile of each run, ``u8[R]``.
        thresholds: exponents to compare with, ``u8[T]``.
        labels: from :func:`make_label_guide`; without, labels take a look-up more.

    Attributes:
        words: what the kernel takes, ``u64``.
        line: address of row 0, number of rows and bytes of a row, ``u64``, where the view's rows stand in one
            line in memory and in the view's order; else None.
    """

    __slots__ = ("_kept", "line", "words")

    def __init__(
        self,
        rows: RowMap,
        exponents: NDArray[np.uint8],
        thresholds: NDArray[np.uint8],
        cap: Cap = NO_CAP,
        pool: Pool = NO_POOL,
        *,
        labels: NDArray[np.uint32] = NO_LABELS,
    ) -> None:
        by_segment = exponents[rows.run]
        packed = len(rows.board) > 0 and len(pool.rows) == 0
        numbers = cap.guide.starts if len(cap.guide.entries) else rows.run_starts
        patterns = _label_patterns(thresholds)
        tables = Tables(
            limit=numbers[-1],
            entries=address_of(rows.guide.entries),
            starts=address_of(rows.guide.starts),
            shift=rows.guide.shift,
            line=rows.line,
            address=address_of(rows.address),
            packed=int(packed),
            board_line=rows.board_line if packed else 0,
            board=address_of(rows.board) if packed else 0,
            run=address_of(rows.run),
            end=address_of(rows.end),
            rows=rows.rows,
            row_bytes=rows.row_bytes,
            run_starts=address_of(rows.run_starts),
            words=address_of(rows.mask.words),
            ranks=address_of(rows.mask.ranks),
            samples=address_of(rows.mask.samples),
            cap_entries=address_of(cap.guide.entries),
            cap_starts=address_of(cap.guide.starts),
            cap_shift=cap.guide.shift,
            cap_evenly=int(cap.evenly),
            pool=address_of(pool.rows),
            pool_firsts=address_of(pool.firsts),
            pool_shift=pool.shift,
            pool_rows=len(pool.rows),
            labels=address_of(labels),
            exponents=address_of(by_segment),
            thresholds=address_of(thresholds),
            threshold_count=len(thresholds),
            patterns=address_of(patterns),
        )
        self.words = np.array(tables, np.uint64)
        is_line = tables.line and not (tables.words or tables.cap_entries or tables.pool)
        line = np.uint64(tables.line), np.uint64(tables.limit), np.uint64(tables.row_bytes)
        self.line = line if is_line else None
        self._kept = (rows, by_segment, labels, thresholds, patterns, cap, pool)
