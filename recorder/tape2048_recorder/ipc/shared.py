"""Shared memory of daemon and workers: commands one way, progress the other.

It is an anonymous memory file, inherited by descriptor. Each word has one writer and no process waits on any
of them, so a process that dies at any point leaves nothing locked; the kernel frees the memory with the last
process that maps it, so nothing stays in ``/dev/shm``.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

# Commands, in the order in which they can follow each other.
PLAY = 0
DRAIN = 1  # finish the game in play, write, stop
HURRY = 2  # give up the game in play, write, stop

LOADS = 1  # a value of ``busy``: loading a model

_SLOT = np.dtype(
    {
        "names": [
            "command",
            "heartbeat_ns",
            "steps",
            "games",
            "weights",  # daemon: the generation of weights to play
            "oldest",  # worker: the oldest generation that it holds games of
            "model_ns",  # worker: time in its batched player
            "played_ns",  # worker: time in all of its play
            "flush",  # daemon: number of the last request to write finished games
            "flushed",  # worker: number of the last such request that it has met
            "busy",  # worker: the activity that may take longer than a slice of play
            "block_rows",  # daemon: rows of finished games at which a block is written
            "flush_s",  # daemon: seconds after which finished games are written at the latest
        ],
        "formats": ["<u8"] * 12 + ["<f8"],
        "offsets": list(range(0, 13 * 8, 8)),
        "itemsize": 128,  # whole cache lines, so that writers do not slow each other
    }
)


class Shared:
    """One slot a worker: ``command`` from the daemon; ``heartbeat_ns`` (monotonic), ``steps``, ``games``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self.slots = np.frombuffer(self._map, dtype=_SLOT)

    @classmethod
    def create(cls, workers: int) -> Shared:
        """Allocate shared memory; exec closes the descriptor unless it is passed on by name."""
        fd = os.memfd_create("tape2048")
        os.ftruncate(fd, workers * _SLOT.itemsize)
        return cls(fd)

    def close(self) -> None:
        """Unmap the memory; ``slots`` keeps its last values."""
        self.slots = self.slots.copy()
        self._map.close()
        os.close(self.fd)
