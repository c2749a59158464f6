"""Child processes of the daemon: their set-up, the detection of a hung one, and its end.

A hung process gets SIGABRT, on which Python's faulthandler writes the stack of each thread to the daemon's
standard error (from Python 3.14 on the native stack too; before that the core file has it, where the system
keeps core files), and SIGKILL :data:`ABORT_S` later.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_PR_SET_PDEATHSIG = 1

#: Added to a worker's score for the kernel's out-of-memory killer, in thousandths of the total memory.
OOM_SCORE_ADJ = 500

#: Limit from a worker's start to the end of its first slice: a cold compiler takes a minute. Loading a model
#: later has the same limit.
START_S = 600.0

#: From SIGABRT to SIGKILL: writing the stacks takes milliseconds, a core file seconds.
ABORT_S = 5.0

#: The most that one look adds to a silence. A daemon that was itself stopped must not blame its workers.
LOOK_S_MAX = 1.0


def set_up(daemon_pid: int) -> None:
    """Die with the daemon, write stacks on SIGABRT, and ignore SIGINT and SIGTERM."""
    # The kernel kills this process when the daemon dies; the daemon may have died before this call.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != daemon_pid:
        raise SystemExit(1)
    # The daemon decides when to stop; a terminal's Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()


def die_first() -> None:
    """Make this process the kernel's first choice when memory runs out.

    A worker is replaced, and its unrecorded games are played again. The daemon's death ends all workers, and
    it is the largest process at times: while it publishes very many short games.
    """
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        score.write_text(str(max(int(score.read_text()), OOM_SCORE_ADJ)))


class Silence:
    """The time since a process last made progress, and the process's end.

    Attributes:
        ending: whether the process has been sent SIGABRT.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ending = False
        self._mark: object = None
        self._silent_s = 0.0  # since SIGABRT, while it is ending
        self._looked_at: float | None = None

    def look(self, now: float, mark: object, *, excused: bool) -> float:
        """Return the seconds without progress; 0 while it is ending (SIGKILL follows after ``ABORT_S``).

        Args:
            now: ``time.monotonic``.
            mark: a value that progress changes. It includes all that the limit depends on: a change of it
                resets the silence.
            excused: whether the process waits for another one.
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
        """Have it write its stack and die, also while it is stopped; return where it was."""
        where = whereabouts(self.process.pid)
        self.ending, self._silent_s = True, 0.0
        self.process.send_signal(signal.SIGABRT)
        self.process.send_signal(signal.SIGCONT)
        return where


def whereabouts(pid: int) -> str:
    """Describe a process's state, and the kernel function in which it sleeps."""
    proc = Path("/proc") / str(pid)
    try:
        state = (proc / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "it is gone"
    names = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced"}
    text = f"state {state}, {names.get(state, 'ended')}"
    try:
        sleeps_in = (proc / "wchan").read_text().strip("\0\n 0")
    except OSError:
        sleeps_in = ""
    return f"{text} in {sleeps_in}" if sleeps_in else text
