"""The first of equal boards of a view, exactly and in bounded memory.

Each board has its own key: its bits, scrambled by a bijection. The keys of all rows go through one hash
table, in the order of the view; a row whose key is not there yet is kept. The table has 12 bytes for each
row. If that is too much, the rows are read several times, and each pass takes a range of the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.base.threads import map_ordered
from tape2048.files.bulk_read import allocate
from tape2048.game.rules import flip, mirror, transpose
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import high64, mix
from tape2048.jit.memory import keep, prefetch, word
from tape2048.loader.batch import Batch, BatchLayout
from tape2048.loader.boards import no_bits, pack
from tape2048.loader.gatherer import Gatherer
from tape2048.loader.order import Order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.loader.row_view import ViewTables

U64 = np.uint64

#: Entries of the table for each row of a pass: the table is at most two thirds full.
_ENTRIES = 1.5
_KEY_BYTES = 8
#: Rows that a thread reads at a time, and keys whose entries are requested before the first is compared.
_CHUNK_ROWS, _AHEAD = 1 << 14, 48
#: There are at most ``2**16`` passes.
_PASS_BITS_MAX = 16


@helper
def _least(board: Any) -> Any:
    other = mirror(board)
    return min(board, flip(board), other, flip(other))


@kernel
def _make_keys(tokens: Any, symmetry: Any, keys: Any) -> None:
    """Write the key of each board."""
    for i in range(tokens.shape[0]):
        cells = U64(tokens.ctypes.data) + (U64(i) << U64(4))
        board = pack(cells)
        if symmetry:
            board = min(_least(board), _least(transpose(board)))
        keys[i] = mix(board)


@kernel
def _mark_new(keys: Any, chosen: Any, table: Any, counts: Any, words: Any) -> Any:
    """Set bits of rows with keys not in a table, and add these; return its used entries, -1 if full.

    ``chosen`` is the number of highest bits of a key that give its pass, and the pass; other keys are
    skipped. ``table`` has one more entry, for the key 0. ``counts`` is the number of the first row, and of
    used entries.
    """
    bits, turn = chosen
    address, entries = table
    first, used = counts
    count = keys.shape[0]
    for ahead in range(count + _AHEAD):
        if ahead < count:
            prefetch(address + (high64(keys[ahead] << bits, entries) << U64(3)))
        i = ahead - _AHEAD
        if i < 0 or (keys[i] >> U64(1)) >> (U64(63) - bits) != turn:
            continue
        key = keys[i]
        at = high64(key << bits, entries) if key else entries
        found = word(address, at)
        while found and found != key and key:
            at = U64(0) if at + U64(1) == entries else at + U64(1)
            found = word(address, at)
        if not found:
            used += 1
            if used == entries:
                return np.int64(-1)
            keep(address, at, key | U64(key == U64(0)))
            row = first + U64(i)
            words[row >> U64(6)] |= U64(1) << (row & U64(63))
    return np.int64(used)


def mark_first(tables: ViewTables, *, symmetry: bool, memory: int | None = None) -> NDArray[np.uint64]:
    """Return a mask of the rows of a view whose board no earlier row has; see ``Corpus.unique``."""
    rows = int(tables.rowmap.run_starts[-1])
    budget = max(1, ram_available() // 2 if memory is None else memory)
    passes = -(-int(rows * _ENTRIES * _KEY_BYTES) // budget)
    bits = min(_PASS_BITS_MAX, (passes - 1).bit_length())
    layout = BatchLayout(("tokens",), 0, "bool")
    gatherer, order = Gatherer(tables, layout.fields, np.empty(0, np.int64)), Order.straight()
    if gatherer.reads_rows:
        tables.store.check_files()
    words = no_bits(rows)

    def keys_of(first: int) -> tuple[int, NDArray[np.uint64]]:
        batch = Batch.allocate(layout, min(_CHUNK_ROWS, rows - first))
        with gatherer.hold(first, first + batch.capacity):
            gatherer.fill(order, (first, batch.capacity), batch)
        keys = np.empty(batch.rows, np.uint64)
        _make_keys(batch["tokens"], symmetry, keys)
        return first, keys

    def take(turn: int, entries: int) -> bool:
        table, used = allocate((entries + 1) * _KEY_BYTES), 0
        located = U64(table.ctypes.data), U64(entries)
        for first, keys in map_ordered(keys_of, range(0, rows, _CHUNK_ROWS)):
            used = int(_mark_new(keys, (U64(bits), U64(turn)), located, (U64(first), used), words))
            if used < 0:
                return False
        return True

    for turn in range(1 << bits):
        entries = int(rows * _ENTRIES / (1 << bits)) + 64
        while not take(turn, entries):  # far more keys than the mean: it marks the same rows again
            entries *= 2
    return words
