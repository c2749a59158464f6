"""Writes a table of integers into a SQLite file as pages, past SQLite.

SQLite takes a microsecond and a Python object for each value of a run, in a thread that competes for the
interpreter: with short games most of a publication. A table whose key ascends is simple enough to write
(https://www.sqlite.org/fileformat2.html, "B-tree Pages" and "Record Format"): each column gets the width
that its values need, so that all records have one length, and many pages are one array operation.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tape2048.io.durable import write_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

#: The page with this byte stays unused: SQLite locks it.
LOCK_OFFSET = 1 << 30

#: Pages built at once.
_PART_PAGES = 256

_INTERIOR, _LEAF = 5, 13
_INTERIOR_HEADER, _LEAF_HEADER = 12, 8
#: Largest cell of an interior page: a page number and a key.
_INTERIOR_CELL = 4 + 9

#: Widths of integers in bytes, with their serial types.
_TYPES = {1: 1, 2: 2, 3: 3, 4: 4, 6: 5, 8: 6}


class _File:
    """The pages of a closed database."""

    def __init__(self, fd: int) -> None:
        head = os.pread(fd, 100, 0)
        size = int.from_bytes(head[16:18], "big")
        self.page_bytes = 1 << 16 if size == 1 else size
        self.usable = self.page_bytes - head[20]
        self._count = int.from_bytes(head[28:32], "big")
        self._lock = LOCK_OFFSET // self.page_bytes + 1
        self._fd = fd

    def append(self, pages: NDArray[np.uint8]) -> list[int]:
        """Append pages, ``u8[n, page_bytes]``; return their numbers."""
        numbers: list[int] = []
        before_lock = max(0, self._lock - 1 - self._count)
        for part in (pages[:before_lock], pages[before_lock:]):
            if len(part):
                self._count += self._count + 1 == self._lock
                self.put(self._count + 1, part)
                numbers += range(self._count + 1, self._count + 1 + len(part))
                self._count += len(part)
        return numbers

    def put(self, number: int, pages: NDArray[np.uint8]) -> None:
        """Write pages from this number on."""
        write_all(self._fd, pages.reshape(-1).data, (number - 1) * self.page_bytes)

    def end(self) -> None:
        """Write the number of pages into the header."""
        write_all(self._fd, self._count.to_bytes(4, "big"), 28)


def write_table(fd: int, root: int, table: NDArray[np.int64]) -> None:
    """Fill an empty table of a closed database without auto-vacuum."""
    if not len(table):
        return
    file = _File(fd)
    level: list[tuple[int, int]] = []  # of each page, its number and its last key
    for pages, last_keys in _leaves(table, file):
        if len(pages) == 1 and last_keys == [table[-1, 0]] and not level:
            file.put(root, pages)
            return
        level += zip(file.append(pages), last_keys, strict=True)
    most = (file.usable - _INTERIOR_HEADER) // (2 + _INTERIOR_CELL) + 1
    while len(level) > most:
        ends = np.linspace(0, len(level), -(-len(level) // most) + 1).astype(int).tolist()
        groups = [level[first:end] for first, end in pairwise(ends)]
        level = [(file.append(_interior(group, file))[0], group[-1][1]) for group in groups]
    file.put(root, _interior(level, file))
    file.end()


def _leaves(table: NDArray[np.int64], file: _File) -> Iterator[tuple[NDArray[np.uint8], list[int]]]:
    """Yield leaf pages, ``u8[n, page_bytes]``, and the last key of each."""
    widths = [_width(table[:, column]) for column in range(1, table.shape[1])]
    # The record's header: its length, NULL in place of the key, and each column's type.
    header = [2 + len(widths), 0, *(_TYPES[width] for width in widths)]
    record_bytes = len(header) + sum(widths)
    for first, end, key_bytes in _keys_by_length(table[:, 0]):
        cell_bytes = 1 + key_bytes + record_bytes
        fit = (file.usable - _LEAF_HEADER) // (2 + cell_bytes)
        whole = first + (end - first) // fit * fit
        steps = [*range(first, whole, fit * _PART_PAGES), whole, end]
        for begin, until in pairwise(steps):
            if begin == until:
                continue
            part = table[begin:until]
            count = min(fit, len(part))
            cells = np.empty((len(part), cell_bytes), np.uint8)
            cells[:, 0] = record_bytes
            cells[:, 1 : 1 + key_bytes] = _varints(part[:, 0], key_bytes)
            cells[:, 1 + key_bytes :][:, : len(header)] = header
            at = 1 + key_bytes + len(header)
            for column, width in enumerate(widths, 1):
                values = part[:, column].astype(">i8").view(np.uint8).reshape(-1, 8)
                cells[:, at : at + width] = values[:, 8 - width :]
                at += width
            pages = np.zeros((len(part) // count, file.page_bytes), np.uint8)
            start = file.usable - count * cell_bytes
            pages[:, :_LEAF_HEADER] = _header(_LEAF, count, start)
            pointers = np.arange(start, file.usable, cell_bytes, dtype=">u2").view(np.uint8)
            pages[:, _LEAF_HEADER : _LEAF_HEADER + 2 * count] = pointers
            pages[:, start : file.usable] = cells.reshape(len(pages), -1)
            yield pages, part[count - 1 :: count, 0].tolist()


def _interior(children: Sequence[tuple[int, int]], file: _File) -> NDArray[np.uint8]:
    """Make the page above others, given the number and the last key of each; ``u8[1, page_bytes]``."""
    cells = [number.to_bytes(4, "big") + _varint(key) for number, key in children[:-1]]
    start = file.usable - sum(map(len, cells))
    pointers = np.cumsum([start, *map(len, cells)])[:-1].astype(">u2").tobytes()
    head = _header(_INTERIOR, len(cells), start).tobytes() + children[-1][0].to_bytes(4, "big")
    page = np.zeros(file.page_bytes, np.uint8)
    page[: len(head) + len(pointers)] = np.frombuffer(head + pointers, np.uint8)
    page[start : file.usable] = np.frombuffer(b"".join(cells), np.uint8)
    return page[None]


def _header(kind: int, cells: int, start: int) -> NDArray[np.uint8]:
    """Make the first eight bytes of a page; ``start`` is where its cells begin."""
    content = start % (1 << 16)  # 0 stands for 65,536
    return np.frombuffer(
        bytes([kind, 0, 0, *cells.to_bytes(2, "big"), *content.to_bytes(2, "big"), 0]), np.uint8
    )


def _width(values: NDArray[np.int64]) -> int:
    """Return the width of a column."""
    low, high = int(values.min()), int(values.max())
    return next(width for width in _TYPES if -(1 << 8 * width - 1) <= low <= high < 1 << 8 * width - 1)


def _keys_by_length(keys: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of ascending keys whose varints have one length: first, end, length."""
    # Seven bits a byte, and eight in the ninth, which negative keys have.
    bounds = np.array([0, *(1 << 7 * length for length in range(1, 9))], np.int64)
    places = [0, *np.searchsorted(keys, bounds).tolist(), len(keys)]
    for (first, end), length in zip(pairwise(places), (9, 1, 2, 3, 4, 5, 6, 7, 8, 9), strict=True):
        if first < end:
            yield first, end, length


def _varint(key: int) -> bytes:
    """Encode a key as a varint."""
    if 0 <= key < 1 << 56:
        groups = [key & 0x7F]
        while key := key >> 7:
            groups.append(key & 0x7F | 0x80)
    else:
        bits = key % 2**64
        groups = [bits & 0xFF, *(bits >> 8 + 7 * place & 0x7F | 0x80 for place in range(8))]
    return bytes(reversed(groups))


def _varints(keys: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    """Encode keys, ``i64[n]``, as varints of one length, ``u8[n, length]``."""
    bits = keys.astype(np.int64).view(np.uint64)
    out = np.empty((len(keys), length), np.uint8)
    if length == 9:
        out[:, 8] = bits & np.uint64(0xFF)
        bits = bits >> np.uint64(8)
    for byte in range(min(length, 8) - 1, -1, -1):
        out[:, byte] = (bits & np.uint64(0x7F)) | np.uint64(0x80)
        bits = bits >> np.uint64(7)
    if length < 9:
        out[:, -1] &= 0x7F
    return out
