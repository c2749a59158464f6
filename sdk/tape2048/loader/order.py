"""Orders: the number of the row in each place of an epoch. The first step of a gather.

An order is straight, shuffled by a keyed bijection (``shuffle``), or listed by the caller. Its keys also draw
the rows of a capped sample and the symmetries, so (seed, epoch, place) decides everything about a row.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tape2048.loader.row_map import address_of
from tape2048.loader.shuffle import Permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRAIGHT, SHUFFLED, LISTED = np.uint64(0), np.uint64(1), np.uint64(2)
_NO_KEYS = np.empty(0, np.uint64)


class OrderEntries(NamedTuple):
    """An order as the kernel takes it, ``u64``; ``kind`` is STRAIGHT, SHUFFLED or LISTED.

    A ``symmetry_key`` of 0 leaves boards unchanged. ``turned_by`` is the address of the numbers that draw the
    symmetries of listed rows; 0: their own numbers.
    """

    kind: Any
    listed: Any = 0
    cap_key: Any = 0
    symmetry_key: Any = 0
    turned_by: Any = 0


class Order(NamedTuple):
    """An order of rows. ``keys`` is empty unless it is shuffled; ``numbers`` are the listed, ``i64[n]``."""

    words: NDArray[np.uint64]
    keys: NDArray[np.uint64] = _NO_KEYS
    numbers: NDArray[np.int64] | None = None

    @classmethod
    def straight(cls, cap_key: int = 0) -> Self:
        return cls(np.array(OrderEntries(STRAIGHT, cap_key=cap_key), np.uint64))

    @classmethod
    def listed(
        cls, numbers: NDArray[np.int64], symmetry_key: int = 0, turned_by: NDArray[np.int64] | None = None
    ) -> Self:
        """Return the order of these numbers. The caller keeps ``turned_by``, ``i64[n]``."""
        by = 0 if turned_by is None else address_of(turned_by)
        entries = OrderEntries(LISTED, address_of(numbers), 0, symmetry_key, by)
        return cls(np.array(entries, np.uint64), numbers=numbers)

    @property
    def shuffled(self) -> bool:
        return bool(self.words[0] == SHUFFLED)

    @property
    def cap_key(self) -> int:
        return int(OrderEntries(*self.words).cap_key)

    @property
    def symmetry_key(self) -> int:
        return int(OrderEntries(*self.words).symmetry_key)


@lru_cache(maxsize=64)
def order_of(rows: int, seed: int, epoch: int, shuffle: bool, augment: bool) -> Order:  # noqa: FBT001
    name = b"tape2048 batches 1" + seed.to_bytes(8, "little") + epoch.to_bytes(8, "little")
    words = np.frombuffer(hashlib.sha256(name).digest(), "<u8")
    symmetry = int(words[1]) | 1 if augment else 0  # 0 means no symmetry
    entries = OrderEntries(SHUFFLED if shuffle else STRAIGHT, 0, int(words[0]), symmetry)
    return Order(np.array(entries, np.uint64), Permutation(rows, seed=seed, epoch=epoch).keys)
