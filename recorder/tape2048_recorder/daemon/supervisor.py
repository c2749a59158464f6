"""Worker processes: starting them, hearing that they died, and starting them again.

A worker has one socket to the daemon and a slot in the shared memory. Its death shows as the end of
its socket, whatever killed it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tape2048_recorder.ipc.protocol import WORKER_MODULE, Channel, FromDaemon, Range, Weights, Written
from tape2048_recorder.ipc.shared import PLAY, Shared

if TYPE_CHECKING:
    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.inference.process import InferenceProcess
    from tape2048_recorder.ipc.protocol import WorkerSpec

#: Between a worker's death and the next start in its place: doubled each time until a block is confirmed.
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 30.0

#: From the end of the socket of a worker that is through to its end. Libraries that it loaded may hang there.
BYE_S = 0.5

#: Deaths in a row, without a confirmed block between them, after which it is hopeless: at least so many, and
#: so many for each worker. What kills all of many at once has not come back yet.
DEATHS_MIN = 8
DEATHS_PER_WORKER = 3


class Worker:
    """One place for a worker: the process in it, and what it holds."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Channel | None = None
        self.ready = False
        #: Whether a block of this place was ever confirmed: what cannot start here now could before.
        self.has_recorded = False
        self.said_bye = False
        self.start_at = 0.0
        self.backoff_s = BACKOFF_FIRST_S
        self.last_error: str | None = None
        #: The rows that it was given to write to, until they are confirmed.
        self.range: Range | None = None
        #: Rows that it wants to write, while it waits for a range.
        self.waiting_rows: int | None = None
        #: The weights that played them.
        self.waiting_generation = 0
        #: A block that is written, while the journal cannot take its record.
        self.unconfirmed: Written | None = None

    @property
    def alive(self) -> bool:
        """Whether a process is in this place."""
        return self.process is not None

    def answer(self, message: FromDaemon) -> None:
        """Answer it; if it has died, the end of its socket will say so."""
        assert self.channel is not None
        with contextlib.suppress(ConnectionError):
            self.channel.send(message)

    def forget_work(self) -> None:
        """Whatever it held is gone with it."""
        self.ready = False
        self.range = None
        self.waiting_rows = None
        self.unconfirmed = None


class Exit(NamedTuple):
    """How a process ended: its exit status as ``subprocess`` gives it, in words."""

    code: int

    def __str__(self) -> str:
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return f"exit status {self.code}"


class Supervisor:
    """Starts and ends workers.

    Args:
        spec: what workers are told; index and descriptors are filled in.
        config: how many, and how often they write.
    """

    def __init__(self, spec: WorkerSpec, config: RecorderConfig) -> None:
        self._spec = spec
        self.shared = Shared.create(config.worker_count)
        self.workers = [Worker(index) for index in range(config.worker_count)]
        self.deaths_in_a_row = 0
        #: Further descriptors that workers inherit.
        self.fds: tuple[int, ...] = ()
        self._server: InferenceProcess | None = None
        self.pace(config)

    @property
    def pids(self) -> list[int]:
        """The processes that run, with the one that computes for all workers."""
        pids = [worker.process.pid for worker in self.workers if worker.process is not None]
        return pids if self._server is None else pids + self._server.pids

    @property
    def server_overdue(self) -> bool:
        """Whether the inference process is to be ended and still there."""
        return self._server is not None and self._server.overdue

    def awaits_answer(self, worker: Worker) -> bool:
        """Whether the inference process has yet to answer something that this worker asked."""
        return self._server is not None and self._server.owes(worker.index)

    def use(self, server: InferenceProcess) -> None:
        """Workers that start from now on ask this process."""
        self._spec = server.told(self._spec)
        self.fds = server.fds
        self._server = server

    def set_weights(self, weights: Weights) -> None:
        """Workers that start from now on play these."""
        self._spec = msgspec.structs.replace(self._spec, weights=weights)

    def pace(self, config: RecorderConfig) -> None:
        """Have workers write finished games as often as these settings ask; they see it within a slice."""
        slots = self.shared.slots
        # A block larger than a session would make every session as large as a block, an older one as late.
        slots["block_rows"] = min(config.block_rows, config.rotate_steps)
        slots["flush_s"] = min(config.flush_s, config.rotate_s or config.flush_s)

    def offer_weights(self, generation: int) -> None:
        """Tell all workers that newer weights are there; they see it within a slice of play."""
        self.shared.slots["weights"] = generation

    def start(self, worker: Worker) -> None:
        """Start a process in this place.

        Main thread only: when the thread that started a process ends, the kernel takes its parent for dead.

        Raises:
            OSError: no process could be made.
        """
        ours, theirs = socket.socketpair()
        self.shared.slots["command"][worker.index] = PLAY
        self.shared.slots["busy"][worker.index] = 0
        self.shared.slots["heartbeat_ns"][worker.index] = time.monotonic_ns()
        weights = self._spec.weights
        self.shared.slots["oldest"][worker.index] = 0 if weights is None else weights.generation
        self.shared.slots["flushed"][worker.index] = self.shared.slots["flush"][worker.index]
        spec = msgspec.structs.replace(
            self._spec,
            index=worker.index,
            socket_fd=theirs.fileno(),
            shared_fd=self.shared.fd,
            daemon_pid=os.getpid(),
        )
        # A worker is one thread; libraries that would start one for each core must not.
        threads = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            worker.process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER_MODULE, msgspec.json.encode(spec).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.shared.fd, *self.fds),
                process_group=0,  # out of reach of a terminal's Ctrl-C while Python starts
                env={**os.environ, **threads},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        worker.channel = Channel(ours)
        worker.forget_work()
        worker.said_bye = False
        worker.last_error = None

    def bury(self, worker: Worker) -> Exit:
        """End what is left of a process whose socket has closed, and say how it ended."""
        assert worker.process is not None
        assert worker.channel is not None
        if worker.said_bye:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(BYE_S)
        worker.process.kill()
        code = worker.process.wait()
        worker.channel.close()
        worker.process = None
        worker.channel = None
        worker.forget_work()
        return Exit(code)

    def schedule_restart(self, worker: Worker, now: float) -> None:
        """Count a death, and say when to start another process in this place."""
        self.deaths_in_a_row += 1
        worker.start_at = now + worker.backoff_s
        worker.backoff_s = min(2 * worker.backoff_s, BACKOFF_MAX_S)

    @property
    def is_hopeless(self) -> bool:
        """Whether another start would end as the last ones did."""
        return self.deaths_in_a_row >= max(DEATHS_MIN, DEATHS_PER_WORKER * len(self.workers))

    def note_progress(self, worker: Worker) -> None:
        """A block of this worker was confirmed: whatever killed others is not everywhere."""
        self.deaths_in_a_row = 0
        worker.has_recorded = True
        worker.backoff_s = BACKOFF_FIRST_S

    def command(self, command: int) -> None:
        """Tell all workers; they see it within a slice of play."""
        self.shared.slots["command"] = command

    def kill_all(self) -> None:
        """End all processes at once."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()

    def close(self) -> None:
        """End what still runs, and let go of the shared memory."""
        for worker in self.workers:
            if worker.process is not None:
                self.bury(worker)
        self.shared.close()
