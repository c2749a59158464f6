"""The worker's client of the inference process: a batched player whose model runs there."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import PlayerError, error_class
from tape2048_recorder.inference.slots import ERROR, MOVES, SLOTS_PER_TABLE, SLOTS_PER_WORKER, Slots
from tape2048_recorder.ipc.shared import ASKS, HURRY

if TYPE_CHECKING:
    import numpy.typing as npt

    from tape2048_recorder.ipc.protocol import Weights, WorkerSpec

#: Interval at which a waiting worker looks for the daemon's command; a new server answers pending requests.
_WAIT_MS = 200


class Hurried(BaseException):
    """The daemon waits for no more answers. Not an ``Exception``, so that it passes handlers of those."""


def capacity_of(lanes: int) -> int:
    """Return the boards of the larger half of a worker's lanes."""
    return lanes - lanes // 2


class RemotePlayer:
    """Sends batches to the inference process; two may be in flight.

    Args:
        spec: the worker's.
        weights: the checkpoint to use, or None.
        table: 0 or 1: which half of the worker's slots to use; an older player may still use the other.
        shared: the worker's slot in the memory shared with the daemon.

    Attributes:
        sha256: declared by the player, after its first answer.
    """

    def __init__(
        self, spec: WorkerSpec, weights: Weights | None, table: int, shared: npt.NDArray[np.void]
    ) -> None:
        self._slots = Slots(spec.server_memory_fd, spec.workers, capacity_of(spec.lanes))
        first = spec.index * SLOTS_PER_WORKER + table * SLOTS_PER_TABLE
        self._mine = self._slots.slots[first : first + SLOTS_PER_TABLE]
        self._ring, self._wake = spec.server_wake_fds[0], spec.server_wake_fds[1 + spec.index]
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._shared = shared
        self._weights = b"" if weights is None else os.fsencode(weights.path)
        self._next = 0
        self._in_flight: list[int] = []
        self.sha256: str | None = None

    def __call__(
        self, boards: npt.NDArray[np.uint64], legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[Any]:
        """As :class:`tape2048_recorder.players.batch.BatchPlayer`."""
        self.submit(boards, legal, exps)
        return self.collect()

    def submit(
        self, boards: npt.NDArray[np.uint64], legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> None:
        """Write a batch into a slot, and wake the server."""
        slot = self._mine[self._next]
        n = len(boards)
        slot["boards"][:n] = boards
        slot["legal"][:n] = legal
        slot["exps"][:n] = exps
        head = slot["head"]
        head["n"] = n
        head["weights"] = self._weights
        head["asked"] += np.uint64(1)
        os.eventfd_write(self._ring, 1)
        self._in_flight.append(self._next)
        self._next = (self._next + 1) % SLOTS_PER_TABLE

    def collect(self) -> npt.NDArray[Any]:
        """Return the answer to the oldest batch (a view, valid until two more batches).

        Raises:
            PlayerError: raised by the player in the server.
            Hurried: the daemon waits for no more answers.
        """
        slot = self._mine[self._in_flight.pop(0)]
        head = slot["head"]
        before = int(self._shared["busy"][0])
        while head["answered"] != head["asked"]:
            if self._poll.poll(_WAIT_MS):
                os.eventfd_read(self._wake)
            elif self._shared["command"][0] == HURRY:
                self._shared["busy"] = before
                raise Hurried
            else:  # there is no server, or it loads a model
                self._shared["busy"] = ASKS
        if self._shared["busy"][0] != before:
            self._shared["heartbeat_ns"] = time.monotonic_ns()  # before "busy": the silence ends here
            self._shared["busy"] = before
        if head["kind"] == ERROR:
            name, text, hint = (
                bytes(head[part]).decode(errors="replace") for part in ("error", "text", "hint")
            )
            kind = error_class(name)
            raise (kind if issubclass(kind, PlayerError) else PlayerError)(text, hint=hint or None)
        self.sha256 = bytes(head["sha256"]).decode()
        answer: npt.NDArray[Any] = slot["moves" if head["kind"] == MOVES else "scores"][: int(head["n"])]
        return answer
