"""Workers of which nothing is heard: found, made to say where they are, and ended.

A worker notes the time after each slice of play (a twentieth of a second) and after each block. One that has
not done so for ``worker_silence_s`` is overdue: it gets SIGABRT, on which Python's faulthandler writes the
stack of each thread to the daemon's standard error (from Python 3.14 on the native stack too; before that
the core file has it, where the system keeps core files), and SIGKILL some seconds later. Its death then
shows as any other.

Not silent is a worker that waits for the daemon, or for the inference process, which is looked after in the
same way. Compiling, the first slice and loading a model may take :data:`START_S`, writing a block ten times
as long as a slice: it is the disk's time.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048_recorder.shared import ASKS, LOADS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tape2048_recorder.supervisor import Supervisor, Worker

__all__ = ["ABORT_S", "START_S", "Silence", "Watch", "whereabouts"]

#: From its start to the end of its first slice, a worker may take this long: a cold compiler takes a minute.
#: So may a model that is loaded later.
START_S = 600.0

#: A block of rows is 7 MB; a disk that takes longer than this many times a slice's patience hangs.
WRITING_FACTOR = 10.0

#: From SIGABRT to SIGKILL: writing the stacks takes milliseconds, a core file seconds.
ABORT_S = 5.0

#: What one look adds to a silence at most. A daemon that was itself stopped must not blame its workers.
LOOK_S_MAX = 1.0


class Silence:
    """How long nothing has been heard of a process, and its end.

    Args:
        process: which.

    Attributes:
        ending: whether it has been told to die.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ending = False
        self._mark: object = None
        self._silent_s = 0.0  # since SIGABRT, where it is ending
        self._looked_at: float | None = None

    def look(self, now: float, mark: object, *, excused: bool) -> float:
        """Seconds without progress; 0 while it is ending (it is killed where that takes too long).

        Args:
            now: ``time.monotonic``.
            mark: what progress changes. All by which patience is measured belongs to it: where that changes,
                what came before does not count.
            excused: whether it waits for others.
        """
        self._silent_s += 0.0 if self._looked_at is None else min(now - self._looked_at, LOOK_S_MAX)
        self._looked_at = now
        if self.ending:
            if self._silent_s >= ABORT_S:
                self.process.kill()
            return 0.0
        if excused or mark != self._mark:
            self._mark, self._silent_s = mark, 0.0
        return self._silent_s

    def end(self) -> str:
        """Have it write its stack and die, also where somebody has stopped it; returns where it was."""
        where = whereabouts(self.process.pid)
        self.ending, self._silent_s = True, 0.0
        self.process.send_signal(signal.SIGABRT)
        self.process.send_signal(signal.SIGCONT)
        return where


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


def whereabouts(pid: int) -> str:
    """What the kernel knows of a process: its state, and the function in which it sleeps."""
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "it is gone"
    words = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced"}
    text = f"state {state}, {words.get(state, 'ended')}"
    try:
        sleeps_in = (Path("/proc") / str(pid) / "wchan").read_text().strip("\0\n 0")
    except OSError:
        sleeps_in = ""
    return f"{text} in {sleeps_in}" if sleeps_in else text
