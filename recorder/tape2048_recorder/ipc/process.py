"""Set-up of the processes that the daemon starts: when they die, and which signals they leave to it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1

#: By how much a worker counts as larger than it is, in thousandths of the memory there is, when the kernel
#: looks for whom to kill.
OOM_SCORE_ADJ = 500


def set_up(daemon_pid: int) -> None:
    """Have this process die with the daemon, write its stacks on SIGABRT, and ignore SIGINT and SIGTERM."""
    die_with(daemon_pid)
    # Whether to stop is the daemon's to say; a terminal's Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()


def die_with(daemon_pid: int) -> None:
    """Have the kernel kill this process when the daemon dies, and stop now if it has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != daemon_pid:
        raise SystemExit(1)


def die_first() -> None:
    """Be the one that the kernel kills where memory runs out.

    A worker is replaced, and its unrecorded games are played again. The daemon would take everybody along,
    and is the largest at times: while it publishes very many short games.
    """
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        score.write_text(str(max(int(score.read_text()), OOM_SCORE_ADJ)))
