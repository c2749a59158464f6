"""The order of a network's entries in a player: tuples that share all cells but one share cache lines.

The entries of a board are spread over megabytes, beyond the first caches of a core, so the time for a value
is that of the cache lines it touches. The tuples 01234 and 01245 share the cells 0, 1, 2 and 4. With the
digits of these four first, and one entry of each tuple as the halves of a word, the 32 entries of both with
the same four exponents are one line of 64 bytes. So the 32 entries of a board in four 5-tuples (or 6-tuples)
that pairwise share all cells but one take 16 lines.

Only ``i16`` tables are reordered. ``f32`` tables, which learn, keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from tape2048.io.bulk_read import allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tape2048.ntuple.layout import NetworkLayout

U64 = np.uint64

_WORD_BITS, _NIBBLE = 64, 0xF
_NEVER = 1 << 16  # more than all different tiles add up to
#: Bytes behind a table: an i16 entry is read as the low half of 32 bits.
PADDING = 4


class Places(NamedTuple):
    """The offsets of entries, for the kernels."""

    # For each pair of tuples, its byte offset in a stage, and the fields of its entries' offsets (`sums_at`).
    pairs: tuple[tuple[np.uint64, ...], ...]
    singles: tuple[tuple[np.uint64, ...], ...]  # the same for each tuple outside pairs
    stage_begins: tuple[np.uint64, ...]  # by stage but the first, the sum of tiles from which on it is meant
    stage_bytes: np.uint64  # bytes of a stage's entries


def stage_begins(layout: NetworkLayout, *, parted: bool = True) -> tuple[np.uint64, ...]:
    """Return :attr:`Places.stage_begins`; unless stages are ``parted``, all boards are in the first one."""
    return tuple(U64(begin if parted else _NEVER) for begin in layout.stages)


def places_of(layout: NetworkLayout, entry_bytes: int) -> Places:
    """Return the offsets of entries in a network's own order: stage by stage, tuple by tuple."""
    begins = [int(offset) * entry_bytes for offset in layout.offsets]
    fields = _padded([_fields(cells, entry_bytes.bit_length() - 1) for cells in layout.tuples])
    singles = [(begin, *parts) for begin, parts in zip(begins, fields, strict=True)]
    return Places((), _numbers(singles), stage_begins(layout), U64(layout.stage_size * entry_bytes))


def place(
    layout: NetworkLayout, table: npt.NDArray[Any], scales: npt.NDArray[np.float32]
) -> tuple[Places, npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Reorder a network's entries for a player.

    Args:
        layout: the network's.
        table: ``f32[entries]`` or ``i16[entries]``, in the network's own order.
        scales: ``f32[S, T]``.

    Returns:
        The offsets, the entries (``f32[entries]``, the network's own, or ``i16[entries]``, a copy), and the
        scales, ``f32[S, T]``, in the order of the offsets: the first tuple of each pair, the second tuple of
        each pair, the other tuples.

    Raises:
        StorageError: the system cannot provide the memory.
    """
    if table.dtype == np.float32:
        return places_of(layout, table.itemsize), table, scales
    memory = allocate(table.nbytes + PADDING, hint="a smaller network, or fewer workers, take less")
    placed = memory[: table.nbytes].view(np.int16)
    stages = placed.reshape(layout.stage_count, -1)
    positions = positions_of(layout)
    for (stage, t), entries in layout.tables(table).items():
        first, strides = positions[t]
        digits = (16,) * len(strides)
        target = as_strided(stages[stage, first:], digits, [2 * stride for stride in strides])
        target[...] = entries.reshape(digits)
    places, columns = player_places(layout)
    return places, placed, np.ascontiguousarray(scales[:, columns])


def positions_of(layout: NetworkLayout) -> list[tuple[int, list[int]]]:
    """Return where a player has each tuple's entries: the first one's index, and the stride of each digit."""
    found: dict[int, tuple[int, list[int]]] = {}
    pairs, singles = _pairs(layout)
    at = 0
    for tuples in [*pairs, *((t,) for t in singles)]:
        # A pair's tuples are the two halves of each word; another tuple is alone.
        for half, t in enumerate(tuples):
            order = _order(layout, t, tuples)
            stride = {cell: len(tuples) * 16**i for i, cell in enumerate(reversed(order))}
            found[t] = at + half, [stride[cell] for cell in layout.tuples[t]]
        at += sum(layout.sizes[t] for t in tuples)
    return [found[t] for t in range(len(layout.tuples))]


def player_places(layout: NetworkLayout) -> tuple[Places, list[int]]:
    """Return the offsets of a player's entries, and the tuples in the order of its scales' columns."""
    pairs, singles = _pairs(layout)
    begins = [2 * first for first, _ in positions_of(layout)]
    own = [[_fields(_order(layout, t, pair)[-1:], 2) for t in pair] for pair in pairs]
    shared = _padded([_fields(_order(layout, pair[0], pair)[:-1], 6) for pair in pairs])
    alone = _padded([_fields(layout.tuples[t], 1) for t in singles])
    places = Places(
        _numbers(
            [begins[pair[0]], *a, *b, *fields]
            for pair, (a, b), fields in zip(pairs, own, shared, strict=True)
        ),
        _numbers([begins[t], *fields] for t, fields in zip(singles, alone, strict=True)),
        stage_begins(layout),
        U64(2 * layout.stage_size),
    )
    return places, [a for a, _ in pairs] + [b for _, b in pairs] + singles


def _pairs(layout: NetworkLayout) -> tuple[list[tuple[int, int]], list[int]]:
    """Pair tuples of the same size that share all cells but one, first come first served; and the others."""
    left = list(range(len(layout.tuples)))
    pairs, singles = [], []
    while left:
        a = left.pop(0)
        size = len(layout.tuples[a])
        fitting = (
            b for b in left if len(layout.tuples[b]) == size and len(_shared(layout, a, b)) == size - 1
        )
        b = next(fitting, None)
        if b is None:
            singles.append(a)
        else:
            left.remove(b)
            pairs.append((a, b))
    return pairs, singles


def _shared(layout: NetworkLayout, a: int, b: int) -> set[int]:
    return set(layout.tuples[a]) & set(layout.tuples[b])


def _order(layout: NetworkLayout, t: int, tuples: tuple[int, ...]) -> list[int]:
    """Order a tuple's cells: last the cell that it does not share with the other tuple of its pair."""
    shared = _shared(layout, tuples[0], tuples[-1])
    return sorted(layout.tuples[t], key=lambda cell: (cell not in shared, cell))


def _fields(cells: Sequence[int], lowest: int) -> list[int]:
    """Return ``[rotation, mask, ...]`` that move the cells' digits to the bits from ``lowest`` on.

    Cells that move by the same distance share a field.
    """
    masks: dict[int, int] = {}
    for i, cell in enumerate(reversed(cells)):
        to = lowest + 4 * i
        rotation = (60 - 4 * cell - to) % _WORD_BITS
        masks[rotation] = masks.get(rotation, 0) | _NIBBLE << to
    return [number for field in masks.items() for number in field]


def _padded(fields: list[list[int]]) -> list[list[int]]:
    """Pad to equally many fields, since numba needs tuples of one type: a mask of 0 adds nothing."""
    most = max(map(len, fields), default=0)
    return [parts + [0] * (most - len(parts)) for parts in fields]


def _numbers(rows: Iterable[Sequence[int]]) -> tuple[tuple[np.uint64, ...], ...]:
    return tuple(tuple(map(U64, row)) for row in rows)
