"""The few words that daemon and workers share: commands one way, progress the other.

An anonymous memory file, handed down by its descriptor. Each word has one writer and nobody waits on
any of them, so a process that dies, wherever it is, leaves nothing locked; and the memory goes with
the last process that maps it, so nothing is left in ``/dev/shm``.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

__all__ = ["ASKS", "DRAIN", "HURRY", "LOADS", "PLAY", "Shared"]

# Commands, in the order in which they can follow each other.
PLAY = 0
DRAIN = 1  # finish the game in play, write, stop
HURRY = 2  # give up the game in play, write, stop

# What a worker is busy with.
LOADS = 1  # it loads a model
ASKS = 2  # it waits for the inference process, which is looked after for itself

_SLOT = np.dtype(
    {
        "names": [
            "command",
            "heartbeat_ns",
            "steps",
            "games",
            "weights",  # the daemon's: the generation of weights that are to play
            "oldest",  # the worker's: the oldest generation that it holds games of
            "model_ns",  # the worker's: time in its batched player
            "played_ns",  # ... and in all of its play
            "flush",  # the daemon's: number of the last request to write what is finished
            "flushed",  # the worker's: the last one that it has met
            "busy",  # the worker's: what may take longer than a slice of play
            "block_rows",  # the daemon's: finished games are written when they fill so many rows
            "flush_s",  # the daemon's: ... and after this long at the latest
        ],
        "formats": ["<u8"] * 12 + ["<f8"],
        "offsets": list(range(0, 13 * 8, 8)),
        "itemsize": 128,  # cache lines of their own, so that writers do not slow each other
    }
)


class Shared:
    """One slot a worker: ``command`` from the daemon; ``heartbeat_ns`` (monotonic), ``steps``, ``games``."""

    def __init__(self, fd: int, workers: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, workers * _SLOT.itemsize)
        self.slots = np.frombuffer(self._map, dtype=_SLOT)

    @classmethod
    def create(cls, workers: int) -> Shared:
        """New shared memory; the descriptor is closed on exec unless passed on by name."""
        fd = os.memfd_create("tape2048")
        os.ftruncate(fd, workers * _SLOT.itemsize)
        return cls(fd, workers)

    def close(self) -> None:
        """Let go of the memory; ``slots`` stays as it is now."""
        self.slots = self.slots.copy()
        self._map.close()
        os.close(self.fd)
