"""Supervision of worker processes: start, death, restart, and the end of hung workers.

A worker has a socket to the daemon and a slot in the shared memory. The daemon notices a worker's death by
the end of its socket.

A worker notes the time (its heartbeat) when its program runs, after each slice of play (0.05 s) and after
each block. A worker without a heartbeat for ``worker_silence_s`` is overdue, unless it waits for the daemon.
Before its first heartbeat, CPU time counts as progress, because many workers that start together are slow.
Compiling, the first slice and loading a model can take up to :data:`START_S`. Writing a block can take
:data:`WRITING_FACTOR` times ``worker_silence_s``, because the disk determines that time. A stopped process
(SIGSTOP) gets no extra time.

An overdue worker receives SIGABRT. Python's faulthandler then writes the stack of each thread to the daemon's
standard error, since Python 3.14 with the native stack. (With earlier versions, the native stack is in the
core file, if the system keeps core files.) SIGKILL follows after :data:`ABORT_S`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.base.text import exit_text
from tape2048_recorder.ipc.protocol import (
    LOADS,
    PLAY,
    WORKER_MODULE,
    BlockWritten,
    Channel,
    ChannelClosed,
    FromDaemon,
    Range,
    Shared,
    Weights,
    WorkerSpec,
)
from tape2048_recorder.recording.world import REAL, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048_recorder.record_options import RecorderConfig

#: Delay from a worker's death to its restart. It doubles each time until a block is committed.
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 30.0

#: Time from the end of a worker's socket to SIGKILL. Libraries can hang when the process exits.
BYE_S = 0.5

#: Time limit for writing a block, up to 7 MB, in units of ``worker_silence_s``.
WRITING_FACTOR = 10.0

#: Deaths without a committed block between them at which restarts stop: the minimum, and the number per
#: worker. One event that kills all workers must not reach it.
DEATHS_MIN = 8
DEATHS_PER_WORKER = 3

#: Time limit from a worker's start to the end of its first slice (compiling takes a minute), and for loading
#: a model.
START_S = 600.0

#: Time from SIGABRT to SIGKILL. Writing the stacks takes milliseconds, a core file seconds.
ABORT_S = 5.0

#: The most that one check adds to the time without progress: a stopped daemon must not blame its workers.
LOOK_S_MAX = 1.0


@dataclasses.dataclass(eq=False)
class WorkerPlace:
    index: int
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    #: Whether a block of this place was ever committed, which proves that workers can start here.
    has_recorded: bool = False
    said_bye: bool = False
    start_at: float = 0.0
    backoff_s: float = BACKOFF_FIRST_S
    last_error: str | None = None
    #: Its reserved rows, until they are committed.
    range: Range | None = None
    #: Number of rows to write, while it waits for a range.
    waiting_rows: int | None = None
    #: Whether these rows are of several games, which can be written in parts.
    waiting_divisible: bool = False
    #: Generation of the weights that played these rows.
    waiting_generation: int = 0
    #: The rows of its slot that are in committed blocks, or were lost with a process.
    rows_counted: int = 0
    #: A written block whose record cannot be written to the journal yet.
    unconfirmed: BlockWritten | None = None
    #: The socket of its current or last process.
    channel: Channel = dataclasses.field(init=False)

    @property
    def alive(self) -> bool:
        return self.process is not None

    def answer(self, message: FromDaemon) -> None:
        """Send an answer. It is lost if the worker has died, which the end of its socket shows."""
        with contextlib.suppress(ChannelClosed):
            self.channel.send(message)

    def forget_work(self) -> None:
        self.ready = False
        self.range = None
        self.waiting_rows = None
        self.unconfirmed = None


class Supervisor:
    def __init__(self, config: RecorderConfig, world: World = REAL, starts: Path | None = None) -> None:
        self._world = world
        self._settings = msgspec.structs.asdict(config)
        self._starts = None if starts is None else str(starts)
        #: The weights for workers that start from now on; None without ``model_dir``.
        self.weights: Weights | None = None
        self.shared = Shared.create(config.worker_count)
        self.workers = [WorkerPlace(index) for index in range(config.worker_count)]
        self.deaths_in_a_row = 0
        self.pace(config)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.workers if worker.process is not None]

    def pace(self, config: RecorderConfig) -> None:
        """Set how often workers write finished games. They notice within a slice of play."""
        slots = self.shared.slots
        # Larger blocks would make sessions larger than rotate_steps, longer intervals older than rotate_s.
        slots["block_rows"] = config.rows_buffered_max
        slots["flush_s"] = min(config.flush_s, config.rotate_s or config.flush_s)

    @property
    def rows_unconfirmed(self) -> int:
        return int(self.shared.slots["rows"].sum()) - sum(worker.rows_counted for worker in self.workers)

    def allow(self, worker: WorkerPlace, rows: int) -> bool:
        """Grant a share of the rows left, exceeded by less than a game; return False if none is left."""
        finished, allowed = self.shared.slots["rows"].copy(), self.shared.slots["rows_max"]
        held = np.maximum(allowed, finished) - finished
        held[worker.index] = 0
        share = -(-(rows - int(held.sum())) // len(self.workers))
        allowed[worker.index] = int(finished[worker.index]) + max(share, 0)
        return share > 0

    def offer_weights(self, generation: int) -> None:
        """Announce newer weights to all workers. They notice within a slice of play."""
        self.shared.slots["weights"] = generation

    def start(self, worker: WorkerPlace) -> None:
        """Start a process. Main thread only: the kernel signals it when the thread that started it ends."""
        ours, theirs = self._world.socketpair()
        slot = self.shared.slots[worker.index]
        slot["command"] = PLAY
        slot["busy"] = 0
        slot["heartbeat_ns"] = self._world.time.monotonic_ns()
        slot["oldest"] = 0 if self.weights is None else self.weights.generation
        slot["flushed"] = slot["flush"]
        spec = WorkerSpec(
            worker.index,
            os.getpid(),
            theirs.fileno(),
            self.shared.fd,
            self._settings,
            self.weights,
            self._starts,
        )
        # A worker uses one thread, so its libraries must not start more.
        threads = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            worker.process = self._world.popen(
                [sys.executable, "-P", "-m", WORKER_MODULE, msgspec.json.encode(spec).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.shared.fd),
                process_group=0,  # so that a terminal's Ctrl-C does not reach it while Python starts
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

    def reap(self, worker: WorkerPlace) -> str:
        """Reap a process whose socket has closed, killed if necessary; return how it ended, in words."""
        assert worker.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(BYE_S)
        worker.process.kill()
        code = worker.process.wait()
        worker.channel.close()
        worker.process = None
        worker.forget_work()
        slot = self.shared.slots[worker.index]
        slot["rows_max"] = worker.rows_counted = int(slot["rows"])
        return exit_text(code)

    def schedule_restart(self, worker: WorkerPlace, now: float) -> None:
        self.deaths_in_a_row += 1
        worker.start_at = now + worker.backoff_s
        worker.backoff_s = min(2 * worker.backoff_s, BACKOFF_MAX_S)

    @property
    def is_hopeless(self) -> bool:
        return self.deaths_in_a_row >= max(DEATHS_MIN, DEATHS_PER_WORKER * len(self.workers))

    def note_progress(self, worker: WorkerPlace) -> None:
        self.deaths_in_a_row = 0
        worker.has_recorded = True
        worker.backoff_s = BACKOFF_FIRST_S

    def command(self, command: int) -> None:
        """Send a command to all workers. They notice within a slice of play."""
        self.shared.slots["command"] = command

    def kill_all(self) -> None:
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()

    def close(self) -> None:
        self.kill_all()
        for worker in self.workers:
            if worker.process is not None:
                self.reap(worker)
        self.shared.close()


@dataclasses.dataclass
class _Silence:
    """The time since a process last made progress, or since SIGABRT while it is ``ending``."""

    process: subprocess.Popen[bytes]
    heartbeat_at_start: int
    steps_at_start: int
    looked_at: float
    mark: object = None
    silent_s: float = 0.0
    ending: bool = False


class Watch:
    """The watch over hung workers, at every tick of the daemon; ``warn`` is called for each of them."""

    def __init__(self, supervisor: Supervisor, warn: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._warn = warn
        self._seen: dict[int, _Silence] = {}  # by worker
        self.ended = 0

    @property
    def overdue(self) -> int:
        """The number of workers that received SIGABRT and have not ended yet."""
        return sum(silence.ending for silence in self._seen.values())

    def look(self, now: float, silence_s: float) -> None:
        """Check all workers, and end workers without progress; ``silence_s`` is the limit in play."""
        for worker in self._supervisor.workers:
            if worker.process is None:
                self._seen.pop(worker.index, None)
            else:
                self._look_at(worker, worker.process, now, silence_s)

    def _look_at(
        self, worker: WorkerPlace, process: subprocess.Popen[bytes], now: float, silence_s: float
    ) -> None:
        slot = self._supervisor.shared.slots[worker.index]
        heartbeat_ns, steps, busy = int(slot["heartbeat_ns"]), int(slot["steps"]), int(slot["busy"])
        seen = self._seen.get(worker.index)
        if seen is None or seen.process is not process:
            seen = self._seen[worker.index] = _Silence(process, heartbeat_ns, steps, now)
        seen.silent_s += min(now - seen.looked_at, LOOK_S_MAX)
        seen.looked_at = now
        if seen.ending:
            if seen.silent_s >= ABORT_S:
                process.kill()
            return
        # The mark includes everything that the limit depends on, so that a change resets the silence.
        runs = heartbeat_ns != seen.heartbeat_at_start
        cpu = None if runs else _cpu_ticks(process.pid)
        mark = heartbeat_ns, steps, busy, worker.ready, worker.range is None, worker.said_bye, cpu
        if mark != seen.mark or worker.waiting_rows is not None or worker.unconfirmed is not None:
            seen.mark, seen.silent_s = mark, 0.0
        shortest_s = silence_s
        if worker.range is not None:
            silence_s *= WRITING_FACTOR
        elif runs and (not worker.ready or steps == seen.steps_at_start or busy == LOADS):
            silence_s = max(silence_s, START_S)
        silent_s = seen.silent_s
        if silent_s < shortest_s:
            return
        where = whereabouts(process.pid)
        if silent_s >= silence_s or where.startswith(_STOPPED):
            self.ended += 1
            seen.ending, seen.silent_s = True, 0.0
            process.send_signal(signal.SIGABRT)
            process.send_signal(signal.SIGCONT)  # a stopped process receives SIGABRT when it continues
            what = f"worker {worker.index} (pid {process.pid}) has made no progress for {silent_s:.0f} s"
            self._warn(f"{what} ({where}): ending it. Its stack follows")


_STOPPED = "state T"


def _cpu_ticks(pid: int) -> int | None:
    """Return the CPU time that a process has used, in clock ticks; None if it has ended."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


def whereabouts(pid: int) -> str:
    """Describe a process's state, and the kernel function in which it sleeps."""
    proc = Path("/proc") / str(pid)
    try:
        state = (proc / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "it has ended"
    names = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced"}
    text = f"state {state}, {names.get(state, 'ended')}"
    try:
        sleeps_in = (proc / "wchan").read_text().strip("\0\n 0")
    except OSError:
        sleeps_in = ""
    return f"{text} in {sleeps_in}" if sleeps_in else text
