"""Rotation on request: what workers have finished is written first, then the open session is published.

Finished games wait in the workers' buffers for up to ``flush_s``. A request raises the word ``flush`` of each
slot; a worker that sees it after a slice of play writes what is finished and raises ``flushed`` to the same
number, when the daemon has confirmed the block. Once all have done so the session is closed. A worker that
starts or has died holds nothing; nobody waits longer than :data:`FLUSH_S` for one that has no room on the
disk, or whose player takes its time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tape2048_recorder.status.report import Rotation

if TYPE_CHECKING:
    from tape2048_recorder.daemon.supervisor import Supervisor
    from tape2048_recorder.recording.publisher import Outcome
    from tape2048_recorder.recording.recording import Recording

__all__ = ["Rotations"]

#: The longest to wait for finished games. A slice of play takes a twentieth of a second, a block little more.
FLUSH_S = 10.0


class Rotations:
    """Requests to rotate now, and what became of them; sessions are published in the order they close.

    Args:
        supervisor: whose workers hold finished games.
        recording: whose sessions are closed.
    """

    def __init__(self, supervisor: Supervisor, recording: Recording) -> None:
        self._supervisor = supervisor
        self._recording = recording
        self.state = Rotation()
        self._flushing: list[float] = []  # for each request whose session is still open: when it came
        self._waiting: deque[int] = deque()  # for each other one: the session that it closed

    def ask(self, now: float) -> None:
        """Rotate as soon as what is finished is written."""
        self.state = Rotation(self.state.asked + 1, self.state.done, self.state.path, self.state.error)
        self._flushing.append(now)
        self._supervisor.shared.slots["flush"] = self.state.asked

    def attend(self, now: float) -> None:
        """Close the open session where that is due, or was asked for."""
        self._recording.rotate_if_due()
        if self._flushing and (self._flushed or now - self._flushing[0] >= FLUSH_S):
            self._close()

    @property
    def _flushed(self) -> bool:
        slots = self._supervisor.shared.slots
        workers = [worker.index for worker in self._supervisor.workers if worker.ready]
        return bool((slots["flushed"][workers] == slots["flush"][workers]).all())

    def _close(self) -> None:
        serial, count = self._recording.close_open(), len(self._flushing)
        self._flushing.clear()
        if serial is None and not self._waiting:
            self.state = Rotation(self.state.asked, self.state.done + count)
            return
        # With nothing open, what is on its way to be published is what the requests were for.
        self._waiting.extend([self._waiting[-1] if serial is None else serial] * count)

    def on_outcome(self, outcome: Outcome) -> None:
        """The publisher has tried a session; it may be over with it."""
        serial = outcome.session.serial
        done = self._waiting.count(serial) if outcome.final else 0
        if done:
            path = None if outcome.published is None else outcome.published.path
            error = None if outcome.error is None else str(outcome.error)
            self._waiting = deque(waiting for waiting in self._waiting if waiting != serial)
            found = None if path is None else str(path)
            self.state = Rotation(self.state.asked, self.state.done + done, found, error)
