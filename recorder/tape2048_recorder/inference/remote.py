"""The worker's side of ``inference = "server"``: a batched player whose model runs in another process."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import InferenceError, PlayerError, error_class
from tape2048_recorder.inference.slots import ERROR, MOVES, SLOTS_PER_TABLE, SLOTS_PER_WORKER, Slots
from tape2048_recorder.ipc.shared import ASKS, HURRY

if TYPE_CHECKING:
    import numpy.typing as npt

    from tape2048_recorder.ipc.protocol import Weights, WorkerSpec

#: A waiting worker looks anew this often: a server that starts anew answers what was asked before, and rings.
_WAIT_MS = 200

#: What an answer that is an error has.
_SAID = ("error", "text", "hint")


class Hurried(BaseException):
    """The time for answers is over. No ``Exception``: whoever wraps a player's errors lets it pass."""


def capacity_of(lanes: int) -> int:
    """Boards of the larger half of a worker's lanes."""
    return lanes - lanes // 2


class RemotePlayer:
    """Asks the inference process; two batches may be under way.

    Args:
        spec: the worker's.
        weights: the checkpoint that is to answer, or None.
        table: 0 or 1: which of the worker's slots it asks in; another player that still plays has the others.
        told: the worker's slot of what it shares with the daemon, which is told while an answer takes long.

    Attributes:
        sha256: what the player says of itself, once it has answered.
    """

    def __init__(
        self, spec: WorkerSpec, weights: Weights | None, table: int, told: npt.NDArray[np.void]
    ) -> None:
        self._slots = Slots(spec.server_memory_fd, spec.workers, capacity_of(spec.lanes))
        first = spec.index * SLOTS_PER_WORKER + table * SLOTS_PER_TABLE
        self._mine = self._slots.slots[first : first + SLOTS_PER_TABLE]
        self._ring, self._wake = spec.server_wake_fds[0], spec.server_wake_fds[1 + spec.index]
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._told = told
        self._weights = b"" if weights is None else os.fsencode(weights.path)
        self._next = 0
        self._under_way: list[int] = []
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
        """Put a batch into a slot, and ring."""
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
        self._under_way.append(self._next)
        self._next = (self._next + 1) % SLOTS_PER_TABLE

    def collect(self) -> npt.NDArray[Any]:
        """The answer to the oldest batch (a view, good until two more are asked).

        Raises:
            PlayerError: what the player raised over there.
            Hurried: the daemon wants no more waiting.
        """
        slot = self._mine[self._under_way.pop(0)]
        head = slot["head"]
        before = int(self._told["busy"][0])
        while head["answered"] != head["asked"]:
            if self._poll.poll(_WAIT_MS):
                os.eventfd_read(self._wake)
            elif self._told["command"][0] == HURRY:
                self._told["busy"] = before
                raise Hurried
            else:  # the process is not there, or loads a model
                self._told["busy"] = ASKS
        if self._told["busy"][0] != before:
            self._told["heartbeat_ns"] = time.monotonic_ns()  # first: the silence ends here
            self._told["busy"] = before
        n = int(head["n"])
        if int(head["kind"]) == ERROR:
            name, text, hint = (bytes(head[part]).decode(errors="replace") for part in _SAID)
            raise _error(name, text, hint)
        self.sha256 = bytes(head["told"]).decode()
        answer: npt.NDArray[Any] = slot["moves"][:n] if int(head["kind"]) == MOVES else slot["scores"][:n]
        return answer


def _error(name: str, text: str, hint: str) -> PlayerError:
    kind = error_class(name)
    return (kind if issubclass(kind, PlayerError) else InferenceError)(text, hint=hint or None)
