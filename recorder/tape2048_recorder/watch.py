"""Workers of which nothing is heard: found, made to say where they are, and ended.

A worker notes the time after each slice of play (a twentieth of a second) and after each block. One that has
not done so for ``worker_silence_s`` is overdue: it gets SIGABRT, on which Python's faulthandler writes the
stack of each thread to the daemon's standard error (from Python 3.14 on the native stack too; before that
the core file has it, where the system keeps core files), and SIGKILL some seconds later. Its death then
shows as any other.

Not silent is a worker that waits for the daemon. Compiling, the first slice and loading a model, here or in
the inference process, may take :data:`START_S`, writing a block ten times as long as a slice: it is the
disk's time.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tape2048_recorder.supervisor import Supervisor, Worker

__all__ = ["ABORT_S", "START_S", "Watch", "whereabouts"]

#: From its start to the end of its first slice, a worker may take this long: a cold compiler takes a minute.
#: So may a model that is loaded later.
START_S = 600.0

#: A block is 7 MB; a disk that takes longer than this many times a slice's patience hangs.
WRITING_FACTOR = 10.0

#: From SIGABRT to SIGKILL: writing the stacks takes milliseconds, a core file seconds.
ABORT_S = 5.0

#: What one look adds to a silence at most. A daemon that was itself stopped must not blame its workers.
LOOK_S_MAX = 1.0


class _Silence:
    """What is known of one process."""

    def __init__(self, process: subprocess.Popen[bytes], heartbeat_ns: int, steps: int) -> None:
        self.process = process
        self.heartbeat_ns = heartbeat_ns
        self.steps_at_start = steps
        self.silent_s = 0.0
        self.aborted_s: float | None = None  # since SIGABRT; None before


class Watch:
    """Looks at the workers with each tick of the daemon.

    Args:
        supervisor: whose workers they are.
        warn: told of each worker that is ended.
    """

    def __init__(self, supervisor: Supervisor, warn: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._warn = warn
        self._seen: dict[int, _Silence] = {}
        self._looked_at: float | None = None
        self.ended = 0

    @property
    def overdue(self) -> int:
        """How many workers are to be ended and still there."""
        return sum(silence.aborted_s is not None for silence in self._seen.values())

    def look(self, now: float, silence_s: float) -> None:
        """See who has made progress, and end who has not.

        Args:
            now: ``time.monotonic``.
            silence_s: how long a slice of play may take.
        """
        passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, LOOK_S_MAX)
        self._looked_at = now
        for worker in self._supervisor.workers:
            if worker.process is None:
                self._seen.pop(worker.index, None)
            else:
                self._look_at(worker, worker.process, passed_s, silence_s)

    def _look_at(
        self, worker: Worker, process: subprocess.Popen[bytes], passed_s: float, silence_s: float
    ) -> None:
        slot = self._supervisor.shared.slots[worker.index]
        heartbeat_ns, steps = int(slot["heartbeat_ns"]), int(slot["steps"])
        seen = self._seen.get(worker.index)
        if seen is None or seen.process is not process:
            seen = self._seen[worker.index] = _Silence(process, heartbeat_ns, steps)
        if seen.aborted_s is not None:
            seen.aborted_s += passed_s
            if seen.aborted_s >= ABORT_S:
                process.kill()
            return
        waits = worker.waiting_rows is not None or worker.unconfirmed is not None or worker.said_bye
        if waits or heartbeat_ns != seen.heartbeat_ns:
            seen.heartbeat_ns, seen.silent_s = heartbeat_ns, 0.0
            return
        seen.silent_s += passed_s
        patience_s = silence_s
        if worker.range is not None:
            patience_s *= WRITING_FACTOR
        elif not worker.ready or steps == seen.steps_at_start or slot["loading"]:
            patience_s = max(patience_s, START_S)
        if seen.silent_s >= patience_s:
            self._abort(worker, seen)

    def _abort(self, worker: Worker, seen: _Silence) -> None:
        seen.aborted_s = 0.0
        self.ended += 1
        pid = seen.process.pid
        self._warn(
            f"worker {worker.index} (pid {pid}) has made no progress for {seen.silent_s:.0f} s "
            f"({whereabouts(pid)}): ending it, its stack follows"
        )
        abort(seen.process)


def abort(process: subprocess.Popen[bytes]) -> None:
    """Have a process write its stack and die, also where somebody has stopped it."""
    process.send_signal(signal.SIGABRT)
    process.send_signal(signal.SIGCONT)


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
