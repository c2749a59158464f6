"""Detects and kills hung workers.

A worker notes the time after each slice of play (a twentieth of a second) and after each block. One that has
not done so for ``worker_silence_s`` is overdue: :class:`tape2048_recorder.ipc.process.Silence` ends it,
and its
death then shows as any other.

A worker that waits for the daemon is not overdue, nor one that waits for the inference process, which is
watched in the same way. Compiling, the first slice and loading a model may take
:data:`~tape2048_recorder.ipc.process.START_S`, writing a block ten times as long as a slice: it is the disk's
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048_recorder.ipc.process import START_S, Silence
from tape2048_recorder.ipc.shared import ASKS, LOADS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tape2048_recorder.daemon.supervisor import Supervisor, Worker

#: A block of rows is 7 MB; a disk that takes longer than this many times a slice's patience hangs.
WRITING_FACTOR = 10.0


class Watch:
    """Looks at the workers with each tick of the daemon.

    Args:
        supervisor: whose workers they are.
        warn: told of each worker that is ended.
    """

    def __init__(self, supervisor: Supervisor, warn: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._warn = warn
        self._seen: dict[int, tuple[Silence, int]] = {}  # by worker, with its steps when it started
        self.ended = 0

    @property
    def overdue(self) -> int:
        """How many workers are to be ended and still there; the inference process counts as one."""
        ending = sum(silence.ending for silence, _ in self._seen.values())
        return ending + self._supervisor.server_overdue

    def look(self, now: float, silence_s: float) -> None:
        """See who has made progress, and end who has not.

        Args:
            now: ``time.monotonic``.
            silence_s: how long a slice of play may take.
        """
        for worker in self._supervisor.workers:
            if worker.process is None:
                self._seen.pop(worker.index, None)
            else:
                self._look_at(worker, worker.process, now, silence_s)

    def _look_at(
        self, worker: Worker, process: subprocess.Popen[bytes], now: float, silence_s: float
    ) -> None:
        slot = self._supervisor.shared.slots[worker.index]
        heartbeat_ns, steps, busy = int(slot["heartbeat_ns"]), int(slot["steps"]), int(slot["busy"])
        silence, steps_at_start = self._seen.get(worker.index, (None, 0))
        if silence is None or silence.process is not process:
            silence, steps_at_start = self._seen[worker.index] = Silence(process), steps
        waits = worker.waiting_rows is not None or worker.unconfirmed is not None
        mark = heartbeat_ns, steps, busy, worker.ready, worker.range is None, worker.said_bye
        waits = waits or (busy == ASKS and self._supervisor.awaits_answer(worker))
        silent_s = silence.look(now, mark, excused=waits)
        if worker.range is not None:
            silence_s *= WRITING_FACTOR
        elif not worker.ready or steps == steps_at_start or busy == LOADS:
            silence_s = max(silence_s, START_S)
        if silent_s >= silence_s:
            self.ended += 1
            where = silence.end()
            what = f"worker {worker.index} (pid {process.pid}) has made no progress for {silent_s:.0f} s"
            self._warn(f"{what} ({where}): ending it, its stack follows")
