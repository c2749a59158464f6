"""Memory shared by workers and the inference process: one slot for each half of a table of lanes.

It is an anonymous memory file, as in :mod:`tape2048_recorder.ipc.shared`. A worker fills a slot and
increments ``asked``; the server computes, writes the answer, and sets ``answered`` to the same number. Each
word has one writer and there is no lock, so a process that dies leaves nothing locked: the next server
answers the pending requests.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from tape2048_recorder.players.batch import DECLARED_BYTES_MAX

#: Two halves of a table alternate, and a worker has two tables while weights change; all may be in flight.
SLOTS_PER_TABLE = 2
SLOTS_PER_WORKER = 2 * SLOTS_PER_TABLE

#: Kinds of answers; ``LOADING`` before the answer, while the server loads the model.
MOVES, SCORES, ERROR, LOADING = range(4)

_HEAD = np.dtype(
    [
        ("asked", "<u8"),
        ("n", "<u8"),
        ("answered", "<u8"),
        ("kind", "<u8"),
        ("weights", "S2048"),  # path of the checkpoint, or empty
        ("sha256", f"S{DECLARED_BYTES_MAX}"),  # declared by the player
        ("error", "S64"),  # the class of the error
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
    """The mapped slots, of ``capacity`` boards each."""

    def __init__(self, fd: int, workers: int, capacity: int) -> None:
        self.fd = fd
        self.capacity = capacity
        dtype = _slot_dtype(capacity)
        count = workers * SLOTS_PER_WORKER
        self._map = mmap.mmap(fd, count * dtype.itemsize)
        self.slots = np.frombuffer(self._map, dtype=dtype)

    @classmethod
    def create(cls, workers: int, capacity: int) -> Slots:
        """Create the memory, all zero; its descriptor is closed on exec unless passed by number."""
        fd = os.memfd_create("tape2048-slots")
        os.ftruncate(fd, workers * SLOTS_PER_WORKER * _slot_dtype(capacity).itemsize)
        return cls(fd, workers, capacity)
