"""The memory that workers and the inference process share: one slot for each half of a table of lanes.

An anonymous memory file, as that of :mod:`tape2048_recorder.ipc.shared`. A worker fills a slot and raises
``asked``; the server computes, fills in the answer, and sets ``answered`` to the same number. Each word has
one writer and there is no lock, so whoever dies leaves nothing held: a server that starts anew finds what was
asked and not answered, and answers it.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from tape2048_recorder.players.batch import TOLD_BYTES_MAX

#: Two halves alternate, and while weights change a worker plays two tables; all of them may be under way.
SLOTS_PER_TABLE = 2
SLOTS_PER_WORKER = 2 * SLOTS_PER_TABLE

#: What an answer is; of one that is still to come, whether its model is being loaded.
MOVES, SCORES, ERROR, LOADING = range(4)

_HEAD = np.dtype(
    [
        ("asked", "<u8"),
        ("n", "<u8"),
        ("answered", "<u8"),
        ("kind", "<u8"),
        ("weights", "S2048"),  # path of the checkpoint, or empty
        ("told", f"S{TOLD_BYTES_MAX}"),  # what the player says of itself
        ("error", "S64"),  # its class
        ("text", "S4096"),
        ("hint", "S1024"),
    ]
)


def _slot_dtype(capacity: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("head", _HEAD),
            ("boards", "<u8", (capacity,)),
            ("scores", "<f4", (capacity, 4)),
            ("exps", "u1", (capacity, 16)),
            ("legal", "u1", (capacity,)),
            ("moves", "u1", (capacity,)),
        ],
        align=True,
    )


class Slots:
    """The slots, mapped.

    Args:
        fd: the memory file.
        workers: how many workers.
        capacity: boards that a slot holds.
    """

    def __init__(self, fd: int, workers: int, capacity: int) -> None:
        self.fd = fd
        self.capacity = capacity
        dtype = _slot_dtype(capacity)
        count = workers * SLOTS_PER_WORKER
        self._map = mmap.mmap(fd, count * dtype.itemsize)
        self.slots = np.frombuffer(self._map, dtype=dtype)

    @classmethod
    def create(cls, workers: int, capacity: int) -> Slots:
        """New memory, all zero; the descriptor is closed on exec unless passed on by name."""
        fd = os.memfd_create("tape2048-slots")
        os.ftruncate(fd, workers * SLOTS_PER_WORKER * _slot_dtype(capacity).itemsize)
        return cls(fd, workers, capacity)
