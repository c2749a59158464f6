"""Arguments of the gather kernel: tables, order and outputs, as the addresses of their arrays.

A call with 26 arrays takes 14 us before it does anything, with five 2 us; a batch takes 50 to 100. The arrays
of a view do not change, so their addresses are written once into one array. The classes here define the
order of its entries, and keep the arrays alive.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.guide import NO_GUIDE, Guide
from tape2048.rows.row_map import BOARD_BYTES, NO_LABELS, line_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.rows.row_map import RowMap


class Cap(NamedTuple):
    """A cap on the rows of each run; the order's key draws them.

    Attributes:
        guide: over the capped numbers of the runs' rows.
        evenly: draw at equal distances, not one random row of each of equal stretches.
        weights: rows of the view that a drawn row of each run stands for, ``f32[R]``.
    """

    guide: Guide
    evenly: bool
    weights: NDArray[np.float32]


class Pool(NamedTuple):
    """Copied rows or boards: chunks of the view, one after the other.

    Attributes:
        rows: the copied rows, ``u8[n, row_bytes]``, or their packed boards, ``u8[n, 8]``.
        firsts: the view's number of each chunk's first row, ``u64[C]``.
        shift: a chunk has ``2**shift`` rows; only the last one may be shorter.
    """

    rows: NDArray[np.uint8]
    firsts: NDArray[np.uint64]
    shift: int


NO_CAP = Cap(NO_GUIDE, evenly=False, weights=np.empty(0, np.float32))
NO_POOL = Pool(np.empty((0, 0), np.uint8), np.empty(0, np.uint64), 0)


class PlanEntries(
    namedtuple(  # noqa: PYI024 - thirty-five entries of one type, u64
        "PlanEntries",
        "limit entries starts shift line address strides packed board_line board run end rows row_bytes "
        "run_starts words ranks samples cap_entries cap_starts cap_shift cap_evenly pool pool_firsts "
        "pool_shift pool_rows labels exponents thresholds threshold_count patterns weights tape runs "
        "run_bytes",
    )
):
    """The entries of a plan, ``u64``, most of them addresses (0: there is no such table).

    ``limit`` bounds the numbers of the view's rows, ``rows`` those of the map. ``packed`` is 1 where boards
    are served as words. ``exponents`` and ``weights`` are by segment, so most batches need no run.
    ``patterns`` has a row's labels for each exponent, as the bytes of a word; 0 if they do not fit.
    """

    __slots__ = ()


class Order(NamedTuple):
    """The entries of an order, ``u64``.

    Attributes:
        kind: ``gather_kernel.STRAIGHT``, SHUFFLED or LISTED.
        listed: address of the listed places, ``i64``.
        cap_key: key of the capped rows.
        symmetry_key: key of the symmetries; 0 leaves boards as they are.
    """

    kind: Any
    listed: Any = 0
    cap_key: Any = 0
    symmetry_key: Any = 0


class Outputs(
    namedtuple(  # noqa: PYI024 - fifteen entries of one type, u64
        "Outputs",
        "records tokens flags targets weight row run step action legal move symmetry segment base boards",
        defaults=[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    )
):
    """The entries of a target: addresses of C-ordered arrays, 0 for an output that is not wanted.

    ``records`` u8[B, row_bytes]; ``flags`` bool[B, T] and ``targets`` f32[B, T] are labels; ``segment``
    u32[B]; ``base`` i64[B], number in the map; ``boards`` u64[B]; the others as the fields of a batch.
    """

    __slots__ = ()


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first element; 0 for an empty array."""
    return int(array.__array_interface__["data"][0]) if array.size else 0


class GatherPlan:
    """The tables of a view, or of a pool of its rows, as the kernel takes them; the rows are the caller's.

    Attributes:
        words: the entries of ``PlanEntries``, ``u64``.
        packed: whether boards are served as words.
        line: address of row 0, number of rows and bytes of a row, ``u64``, if all rows are adjacent in memory
            and in the view's order; else None.
    """

    __slots__ = ("_kept", "line", "packed", "words")

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
        pooled = len(pool.rows) > 0
        in_memory = len(rows.board) > 0 and not pooled
        packed = pool.rows.shape[1] == BOARD_BYTES if pooled else in_memory or rows.tape.alone
        numbers = cap.guide.starts if len(cap.guide.entries) else rows.run_starts
        patterns = np.zeros((256 if len(thresholds) <= 8 else 0, 8), np.uint8)
        patterns[:, : len(thresholds)] = np.arange(len(patterns))[:, None] >= thresholds[:8]
        weights = cap.weights[rows.run] if len(cap.guide.entries) else cap.weights
        tables = PlanEntries(
            limit=numbers[-1],
            entries=address_of(rows.guide.entries),
            starts=address_of(rows.guide.starts),
            shift=rows.guide.shift,
            line=0 if len(rows.strides) else line_of(rows.address),
            address=address_of(rows.address),
            strides=address_of(rows.strides),
            packed=int(packed),
            board_line=line_of(rows.board) if in_memory else 0,
            board=address_of(rows.board) if in_memory else 0,
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
            weights=address_of(weights),
            tape=address_of(rows.tape.segments),
            runs=address_of(rows.tape.runs["id"]) if len(rows.tape.segments) else 0,
            run_bytes=rows.tape.runs.itemsize,
        )
        self.words = np.array(tables, np.uint64)
        self.packed = packed
        is_line = tables.line and not (tables.words or tables.cap_entries or tables.pool)
        line = np.uint64(tables.line), np.uint64(tables.limit), np.uint64(tables.row_bytes)
        self.line = line if is_line else None
        self._kept = (rows, by_segment, labels, thresholds, patterns, weights, cap, pool)
