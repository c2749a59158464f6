"""Rotation on request: workers first write their finished games, then the open session is published.

Finished games wait in the workers' buffers for up to ``flush_s``. A request raises the word ``flush`` of each
slot; a worker that sees it after a slice of play writes its finished games and sets ``flushed`` to the same
number, when the daemon has confirmed the block. Once all have done so the session is closed. A worker that
starts or has died holds nothing; one without room on the disk, or with a slow player, delays the rotation by
:data:`FLUSH_S` at most.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tape2048_recorder.status.report import Rotation

if TYPE_CHECKING:
    from tape2048_recorder.daemon.supervisor import Supervisor
    from tape2048_recorder.recording.publisher import Outcome
    from tape2048_recorder.recording.recording import Recording

#: Time limit for writing finished games. A slice of play takes a twentieth of a second, a block little more.
FLUSH_S = 10.0


class Rotations:
    """The requests to rotate now, and their outcomes; sessions are published in the order they close."""

    def __init__(self, supervisor: Supervisor, recording: Recording) -> None:
        self._supervisor = supervisor
        self._recording = recording
        self.state = Rotation()
        self._flushing: list[float] = []  # times of the requests whose session is still open
        #: For each other request: the sessions that have to be published, all of those before it included.
        self._waiting: deque[set[int]] = deque()

    def ask(self, now: float) -> None:
        """Request a rotation as soon as finished games are written."""
        self.state = msgspec.structs.replace(self.state, asked=self.state.asked + 1)
        self._flushing.append(now)
        self._supervisor.shared.slots["flush"] = self.state.asked

    def tick(self, now: float) -> None:
        """Close the open session if that is due or requested."""
        self._recording.rotate_if_due()
        if self._flushing and (self._flushed or now - self._flushing[0] >= FLUSH_S):
            self._close()

    @property
    def _flushed(self) -> bool:
        slots = self._supervisor.shared.slots
        workers = [worker.index for worker in self._supervisor.workers if worker.ready]
        return bool((slots["flushed"][workers] == slots["flush"][workers]).all())

    def _close(self) -> None:
        serials = self._recording.close_open()
        self._waiting.extend(set(serials) for _ in self._flushing)
        self._flushing.clear()
        self._finish(None, None)

    def _finish(self, path: str | None, error: str | None) -> None:
        done = self.state.done
        while self._waiting and not self._waiting[0]:
            self._waiting.popleft()
            done += 1
        if done != self.state.done:
            self.state = Rotation(self.state.asked, done, path, error)

    def on_outcome(self, outcome: Outcome) -> None:
        """Note the outcome of a try of the publisher."""
        if outcome.final:
            for serials in self._waiting:
                serials.discard(outcome.session.serial)
            published = outcome.published
            path = None if published is None or published.path is None else str(published.path)
            self._finish(path, None if outcome.error is None else str(outcome.error))
