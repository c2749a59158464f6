"""The program of a worker process; only the daemon starts it.

Its argument is the JSON of a :class:`~tape2048_recorder.ipc.protocol.WorkerSpec`, with the descriptors of its
socket to the daemon and of their shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import msgspec

from tape2048.base.text import valid_text
from tape2048.errors import TapeError
from tape2048_recorder.ipc.protocol import (
    Channel,
    ChannelClosed,
    Crashed,
    Ready,
    Shared,
    Starts,
    Warns,
    WorkerSpec,
)
from tape2048_recorder.players.batch import is_batched
from tape2048_recorder.workers.loop import Worker

_PR_SET_PDEATHSIG = 1

#: Makes a worker the kernel's first choice when memory runs out, in thousandths of the total memory. A worker
#: is replaced, and its unrecorded games are played again. The daemon's death ends all workers, and it is the
#: largest process at times: while it publishes very many short games.
OOM_SCORE_ADJ = 500


class _ToDaemon(logging.Handler):
    """Sends the SDK's warnings to the daemon, which logs the same warning of several workers once."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send(Warns(valid_text(record.getMessage())))


def _worker_class(player: str) -> type[Worker]:
    if not is_batched(player):
        return Worker
    from tape2048_recorder.workers.batch_loop import BatchWorker

    return BatchWorker


def main(argument: str) -> int:
    """Run a worker from the JSON of its :class:`WorkerSpec`."""
    spec = msgspec.json.decode(argument, type=WorkerSpec)
    # The kernel kills this process when the daemon dies. The daemon may have died before this call.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != spec.daemon_pid:
        raise SystemExit(1)
    # The daemon decides when to stop. A terminal's Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()  # the stacks at SIGABRT
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        score.write_text(str(max(int(score.read_text()), OOM_SCORE_ADJ)))
    channel = Channel(socket.socket(fileno=spec.socket_fd))
    shared = Shared(spec.shared_fd)
    logging.getLogger("tape2048").addHandler(_ToDaemon(channel))
    starting = True
    try:
        from tape2048.jit.compiler import announced, cache_dir

        def announce() -> None:
            often = f"the first time only (kept in {cache_dir()})"
            if cache_dir() is None:
                often = "at each start"
            what = f"compiling the game loop with {spec.settings['player']}: half a minute or so, {often}"
            channel.send(Starts(valid_text(what)))

        with announced(announce):
            worker = _worker_class(spec.settings["player"])(spec, channel, shared)
            worker.warm_up()
        channel.send(Ready(worker.player_sha256, worker.generation))
        starting = False
        worker.run()
    except ChannelClosed:
        return 1  # the daemon is gone: nothing to report to
    except Exception as error:  # noqa: BLE001 - the worker's edge: the daemon is told
        if isinstance(error, TapeError):
            hint = None if error.hint is None else valid_text(error.hint)
            channel.send(Crashed(valid_text(str(error)), starting, type(error).__name__, hint))
        else:
            channel.send(Crashed(valid_text(traceback.format_exc()), starting))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
