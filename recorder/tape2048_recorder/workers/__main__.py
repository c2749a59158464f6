"""The program of a worker process, which only the daemon starts.

Its argument is the JSON of a :class:`~tape2048_recorder.ipc.protocol.WorkerSpec`, which includes the
descriptors of the socket to the daemon and of the shared memory.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import msgspec

from tape2048.base.lazy import load_named
from tape2048.base.text import valid_text
from tape2048.errors import TapeError
from tape2048_recorder.ipc.parent_death import die_with
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
from tape2048_recorder.players.options import is_batched
from tape2048_recorder.workers.worker_loop import Worker

#: The worker of batched players, imported only for them.
BATCH_WORKER = "tape2048_recorder.workers.batch_loop:BatchWorker"

#: Added to a worker's share of the memory, in thousandths, when the kernel selects a process to kill. A
#: killed worker is replaced, and its unrecorded games are played again. The daemon's death would end all
#: workers, and the daemon can be the largest process, while it publishes very many short games.
OOM_SCORE_ADJ = 500


class _ToDaemon(logging.Handler):
    """A logging handler that sends the SDK's warnings to the daemon, which logs equal warnings once."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send(Warns(valid_text(record.getMessage())))


def main(argument: str) -> int:
    spec = msgspec.json.decode(argument, type=WorkerSpec)
    die_with(spec.daemon_pid)
    # Only the daemon stops a worker. A terminal's Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()  # writes the stacks at SIGABRT
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        score.write_text(str(max(int(score.read_text()), OOM_SCORE_ADJ)))
    channel = Channel(socket.socket(fileno=spec.socket_fd))
    shared = Shared(spec.shared_fd)
    shared.slots["heartbeat_ns"][spec.index] = time.monotonic_ns()
    logging.getLogger("tape2048").addHandler(_ToDaemon(channel))
    starting = True
    try:
        from tape2048.jit.compiler import announced, cache_dir, logger

        logger.disabled = True  # the daemon logs what follows
        began: list[float] = []

        def announce() -> None:
            directory = cache_dir()
            kept = "at each start" if directory is None else f"once for this version, kept in {directory}"
            began.append(time.monotonic())
            channel.send(Starts(valid_text(f"compiling the game loop for {spec.settings['player']}: {kept}")))

        with announced(announce):
            kind = load_named(BATCH_WORKER) if is_batched(spec.settings["player"]) else Worker
            worker = kind(spec, channel, shared)
            worker.warm_up()
        for begin in began:
            channel.send(Starts(f"compiled the game loop in {time.monotonic() - begin:.1f} s"))
        channel.send(Ready(worker.player_sha256, worker.generation))
        starting = False
        worker.run()
    except ChannelClosed:
        return 1  # the daemon has ended: no process to report to
    except Exception as error:  # noqa: BLE001 - every error is reported to the daemon
        if isinstance(error, TapeError):
            hint = None if error.hint is None else valid_text(error.hint)
            channel.send(Crashed(valid_text(str(error)), starting, type(error).__name__, hint))
        else:
            channel.send(Crashed(valid_text(traceback.format_exc()), starting))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
