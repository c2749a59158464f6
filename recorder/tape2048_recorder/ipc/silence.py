"""How long a process has made no progress, and how a hung one is ended.

A hung process gets SIGABRT, on which Python's faulthandler writes the stack of each thread to the daemon's
standard error (from Python 3.14 on the native stack too; before that the core file has it, where the system
keeps core files), and SIGKILL :data:`ABORT_S` later.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

#: From its start to the end of its first slice, a worker may take this long: a cold compiler takes a minute.
#: So may a model that is loaded later.
START_S = 600.0

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
