"""Plans: what each step of a gather reads, in the order of the steps.

A place of an order (``order``) becomes a number of the view by the cap and the mask, the number becomes the
addresses of the row, its board and its columns, and these become fields. The kernel takes a plan as words:
arrays by their addresses, 0 for an empty one. A call with 26 arrays would take 14 us before it does anything,
and a batch takes 50 to 100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.guide import NO_GUIDE, Guide
from tape2048.loader.row_map import NO_LABELS, ROWS_WORDS, RowMap, leaves, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NONE = np.empty(0, np.uint64)


class Cap(NamedTuple):
    """A cap on the rows of each range, a run or a part of a run. The order's key draws them.

    ``firsts`` (``u64[n + 1]``) are numbers of the view. ``evenly``: 1 to draw rows at equal distances, 0 to
    draw one random row of each of equal parts. ``weights`` (``f32[n]``) are the rows that a drawn row
    represents.
    """

    guide: Guide
    firsts: NDArray[np.uint64]
    evenly: Any
    weights: NDArray[np.float32]


class Pool(NamedTuple):
    """Copied rows or boards, each with its values in all columns: chunks of the view, one after the other.

    ``firsts`` (``u64[C]``) are numbers of the view. A chunk has ``2**shift`` rows; only the last one may be
    shorter.
    """

    rows: NDArray[np.uint8]
    firsts: NDArray[np.uint64]
    shift: Any
    count: Any
    stride: Any

    @classmethod
    def of(cls, rows: NDArray[np.uint8], firsts: NDArray[np.uint64], shift: int) -> Pool:
        return cls(rows, firsts, shift, *rows.shape)


class Labels(NamedTuple):
    """Labels of rows: the exponent of the game's highest tile, compared with each threshold.

    ``guide`` is a label guide (``row_map``). ``exponents`` are by segment, so labels do not look up runs.
    ``patterns`` has a row's labels for each exponent, as the bytes of a word; empty if they do not fit.
    """

    guide: NDArray[np.uint32]
    exponents: NDArray[np.uint8]
    thresholds: NDArray[np.uint8]
    count: Any
    patterns: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        exponents: NDArray[np.uint8],
        thresholds: NDArray[np.uint8],
        guide: NDArray[np.uint32] = NO_LABELS,
    ) -> Labels:
        patterns = np.zeros((256 if len(thresholds) <= 8 else 0, 8), np.uint8)
        patterns[:, : len(thresholds)] = np.arange(len(patterns))[:, None] >= thresholds[:8]
        return cls(guide, exponents, thresholds, len(thresholds), patterns)


class ColumnEntries(NamedTuple):
    """A column, ``u64``. ``line`` is the address of row 0, or in a pool the place in the pool's row.

    ``origins`` is a table of that address for each line, or 0. ``moves`` is the bytes of a move's value if a
    row has a value for each move, ``A_MOVE`` where a row is the number of a move, and else 0. ``mapped`` is 1
    where rows have their number in the map.
    """

    line: Any
    origins: Any
    stride: Any
    size: Any
    moves: Any
    mapped: Any


class Plan(NamedTuple):
    """The tables of all steps: arrays, or their addresses in the kernel.

    ``limit`` is the number of rows of the view, after the cap. ``rows`` is where they are, or were before
    they were copied to ``pool``. ``packed``: 1 where boards are served as words. ``columns`` are ``u64[C,
    6]``, a :class:`ColumnEntries` each.
    """

    limit: Any
    cap: Cap
    rows: RowMap
    packed: Any
    labels: Labels
    pool: Pool
    columns: NDArray[np.uint64]
    column_count: Any

    @classmethod
    def of(cls, rows: RowMap, labels: Labels, cap: Cap, columns: Sequence[ColumnEntries] = ()) -> Plan:
        limit = (cap.guide.starts if len(cap.guide.entries) else rows.run_starts)[-1]
        entries = np.array(columns, np.uint64).reshape(-1, len(ColumnEntries._fields))
        packed = int(len(rows.board) > 0 or rows.tape.alone)
        return cls(limit, cap, rows, packed, labels, NO_POOL, entries, len(columns))

    @property
    def words(self) -> NDArray[np.uint64]:
        """The plan as the kernel takes it. The caller keeps the plan, which has the arrays."""
        return np.array([*leaves(self)], np.uint64)


NO_CAP = Cap(NO_GUIDE, _NONE, 0, np.empty(0, np.float32))
NO_POOL = Pool.of(np.empty((0, 0), np.uint8), _NONE, 0)


#: Number of a plan's words.
PLAN_WORDS = 20 + ROWS_WORDS
_AFTER = 7 + ROWS_WORDS


def read_plan(words: Any) -> Plan:
    """Make a plan of its words, a tuple; the kernel compiles this."""
    after = words[_AFTER:]
    return Plan(
        words[0],
        Cap(Guide(words[1], words[2], words[3]), words[4], words[5], words[6]),
        read_rows(words[7:_AFTER]),
        after[0],
        Labels(after[1], after[2], after[3], after[4], after[5]),
        Pool(after[6], after[7], after[8], after[9], after[10]),
        after[11],
        after[12],
    )
