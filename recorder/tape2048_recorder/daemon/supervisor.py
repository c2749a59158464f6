"""Supervision of worker processes: start, death, restart, and the end of hung ones.

A worker has one socket to the daemon and a slot in the shared memory. Any death shows as the end of its
socket.

A worker notes the time after each slice of play (a twentieth of a second) and after each block. A worker that
has not done so for ``worker_silence_s`` is overdue, unless it waits for the daemon. Compiling, the first
slice and loading a model may take :data:`START_S`. Writing a block may take ten times as long as a slice,
since the disk determines that time.

An overdue worker gets SIGABRT, on which Python's faulthandler writes the stack of each thread to the daemon's
standard error (from Python 3.14 on the native stack too; before that the core file has it, where the system
keeps core files), and SIGKILL :data:`ABORT_S` later. Its death then shows as any other.
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

#: Back-off from a worker's death to its restart: doubled each time until a block is confirmed.
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 30.0

#: From the end of a worker's socket to its exit, in which libraries that it loaded may hang.
BYE_S = 0.5

#: A block of rows is 7 MB. A disk that takes longer than this many times a slice's limit hangs.
WRITING_FACTOR = 10.0

#: Deaths in a row, without a confirmed block between them, after which restarts stop: the minimum, and the
#: number for each worker. One event that kills all of many workers is not yet a repetition.
DEATHS_MIN = 8
DEATHS_PER_WORKER = 3

#: Limit from a worker's start to the end of its first slice: a cold compiler takes a minute. Loading a model
#: later has the same limit.
START_S = 600.0

#: From SIGABRT to SIGKILL: writing the stacks takes milliseconds, a core file seconds.
ABORT_S = 5.0

#: The most that one look adds to a silence. A daemon that was itself stopped must not blame its workers.
LOOK_S_MAX = 1.0


@dataclasses.dataclass(eq=False)
class WorkerPlace:
    """A worker's place: its process, and the work that it holds."""

    index: int
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    #: Whether a block of this place was ever confirmed: then a worker could start here before.
    has_recorded: bool = False
    said_bye: bool = False
    start_at: float = 0.0
    backoff_s: float = BACKOFF_FIRST_S
    last_error: str | None = None
    #: Its reserved rows, until they are confirmed.
    range: Range | None = None
    #: The rows that it wants to write, while it waits for a range.
    waiting_rows: int | None = None
    #: The weights that played them.
    waiting_generation: int = 0
    #: The rows of its slot that are in confirmed blocks, or were lost with a process.
    rows_counted: int = 0
    #: A written block, while the journal cannot take its record.
    unconfirmed: BlockWritten | None = None
    #: The socket of its process, or of the last one.
    channel: Channel = dataclasses.field(init=False)

    @property
    def alive(self) -> bool:
        """Whether a process is in this place."""
        return self.process is not None

    def answer(self, message: FromDaemon) -> None:
        """Send an answer; if it has died, the end of its socket will show that."""
        with contextlib.suppress(ChannelClosed):
            self.channel.send(message)

    def forget_work(self) -> None:
        """Forget the work that a dead process held."""
        self.ready = False
        self.range = None
        self.waiting_rows = None
        self.unconfirmed = None


class Supervisor:
    """Starts and ends workers."""

    def __init__(self, config: RecorderConfig, world: World = REAL, starts: Path | None = None) -> None:
        self._world = world
        self._settings = msgspec.structs.asdict(config)
        self._starts = None if starts is None else str(starts)
        #: Played by workers that start from now on; None for players without a ``model_dir``.
        self.weights: Weights | None = None
        self.shared = Shared.create(config.worker_count)
        self.workers = [WorkerPlace(index) for index in range(config.worker_count)]
        self.deaths_in_a_row = 0
        self.pace(config)

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [worker.process.pid for worker in self.workers if worker.process is not None]

    def pace(self, config: RecorderConfig) -> None:
        """Set how often workers write finished games. They see it within a slice of play."""
        slots = self.shared.slots
        # Blocks larger than a session would enlarge every session. A longer interval would delay them.
        slots["block_rows"] = config.rows_buffered_max
        slots["flush_s"] = min(config.flush_s, config.rotate_s or config.flush_s)

    @property
    def rows_unconfirmed(self) -> int:
        """Rows of finished games that are in no confirmed block."""
        return int(self.shared.slots["rows"].sum()) - sum(worker.rows_counted for worker in self.workers)

    def allow(self, worker: WorkerPlace, rows: int) -> bool:
        """Let a worker finish its share of the rows left until a limit; return False without rows left.

        A game in progress is finished, so a worker exceeds its share by less than one game.
        """
        finished, allowed = self.shared.slots["rows"].copy(), self.shared.slots["rows_max"]
        held = np.maximum(allowed, finished) - finished
        held[worker.index] = 0
        share = -(-(rows - int(held.sum())) // len(self.workers))
        allowed[worker.index] = int(finished[worker.index]) + max(share, 0)
        return share > 0

    def offer_weights(self, generation: int) -> None:
        """Announce newer weights to all workers. They see it within a slice of play."""
        self.shared.slots["weights"] = generation

    def start(self, worker: WorkerPlace) -> None:
        """Start a process in this place.

        Main thread only: when the thread that started a process ends, the kernel treats its parent as dead.
        """
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
        # A worker is one thread. Libraries must not start further threads.
        threads = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            worker.process = self._world.popen(
                [sys.executable, "-P", "-m", WORKER_MODULE, msgspec.json.encode(spec).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.shared.fd),
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

    def reap(self, worker: WorkerPlace) -> str:
        """Reap a process whose socket has closed, and kill it if it does not exit; return how it ended."""
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
        """Count a death, and set the time of the restart."""
        self.deaths_in_a_row += 1
        worker.start_at = now + worker.backoff_s
        worker.backoff_s = min(2 * worker.backoff_s, BACKOFF_MAX_S)

    @property
    def is_hopeless(self) -> bool:
        """Whether there were too many deaths in a row for another restart."""
        return self.deaths_in_a_row >= max(DEATHS_MIN, DEATHS_PER_WORKER * len(self.workers))

    def note_progress(self, worker: WorkerPlace) -> None:
        """Reset the count of deaths: a block of this worker was confirmed."""
        self.deaths_in_a_row = 0
        worker.has_recorded = True
        worker.backoff_s = BACKOFF_FIRST_S

    def command(self, command: int) -> None:
        """Send a command to all workers. They see it within a slice of play."""
        self.shared.slots["command"] = command

    def kill_all(self) -> None:
        """Kill all processes."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()

    def close(self) -> None:
        """End the processes that still run, and free the shared memory."""
        self.kill_all()
        for worker in self.workers:
            if worker.process is not None:
                self.reap(worker)
        self.shared.close()


@dataclasses.dataclass
class _Silence:
    """The time since a process last made progress, or since SIGABRT while it is ``ending``."""

    process: subprocess.Popen[bytes]
    steps_at_start: int
    looked_at: float
    mark: object = None
    silent_s: float = 0.0
    ending: bool = False


class Watch:
    """Checks the workers at every tick of the daemon; ``warn`` is called for each hung worker."""

    def __init__(self, supervisor: Supervisor, warn: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._warn = warn
        self._seen: dict[int, _Silence] = {}  # by worker
        self.ended = 0

    @property
    def overdue(self) -> int:
        """The number of workers that were sent SIGABRT and are still there."""
        return sum(silence.ending for silence in self._seen.values())

    def look(self, now: float, silence_s: float) -> None:
        """End the workers without progress for longer than ``silence_s``, the limit of a slice of play."""
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
            seen = self._seen[worker.index] = _Silence(process, steps, now)
        seen.silent_s += min(now - seen.looked_at, LOOK_S_MAX)
        seen.looked_at = now
        if seen.ending:
            if seen.silent_s >= ABORT_S:
                process.kill()
            return
        # All that the limit depends on is part of the mark: a change of it resets the silence.
        mark = heartbeat_ns, steps, busy, worker.ready, worker.range is None, worker.said_bye
        if mark != seen.mark or worker.waiting_rows is not None or worker.unconfirmed is not None:
            seen.mark, seen.silent_s = mark, 0.0
        if worker.range is not None:
            silence_s *= WRITING_FACTOR
        elif not worker.ready or steps == seen.steps_at_start or busy == LOADS:
            silence_s = max(silence_s, START_S)
        silent_s = seen.silent_s
        if silent_s >= silence_s:
            self.ended += 1
            where = whereabouts(process.pid)
            seen.ending, seen.silent_s = True, 0.0
            process.send_signal(signal.SIGABRT)
            process.send_signal(signal.SIGCONT)  # a stopped process receives SIGABRT when it continues
            what = f"worker {worker.index} (pid {process.pid}) has made no progress for {silent_s:.0f} s"
            self._warn(f"{what} ({where}): ending it, its stack follows")


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
