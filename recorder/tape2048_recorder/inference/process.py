"""The daemon's side of the inference process: start, watch, restart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import PlayerError
from tape2048_recorder.inference.remote import capacity_of
from tape2048_recorder.inference.server import ServerSpec
from tape2048_recorder.inference.slots import LOADING, MOVES, SLOTS_PER_WORKER, Slots
from tape2048_recorder.ipc.process import START_S, Silence
from tape2048_recorder.ipc.protocol import LOADERS_MAX

if TYPE_CHECKING:
    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.ipc.protocol import WorkerSpec
    from tape2048_recorder.status.report import Reporter

#: Module of the inference process.
SERVER_MODULE = "tape2048_recorder.inference.server"

#: Deaths in a row without an answer, after which the recorder gives up.
DEATHS_MAX = 5
RETRY_S = 0.5

_HINT_NOT_STARTED = "`tape2048 doctor` shows the limits of memory and processes"


def _not_started(error: OSError) -> str:
    return f"the inference process did not start: {error.strerror or error}"


class InferenceProcess:
    """One process that computes for all workers.

    The requests are in memory that outlives it, so its successor answers them, and no worker loses a game.

    Raises:
        PlayerError: the process did not start.
    """

    def __init__(
        self, config: RecorderConfig, player_args: dict[str, int | float | str | bool], reporter: Reporter
    ) -> None:
        workers = config.worker_count
        self._config = config
        self._player_args = player_args
        self._reporter = reporter
        self._capacity = capacity_of(config.lanes)
        self._slots = Slots.create(workers, self._capacity)
        self._wakes = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(1 + workers)]
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._deaths = 0
        self._answered = 0
        self._died: Counter[bytes] = Counter()  # by checkpoint, processes that ended while they loaded it
        try:
            self._start()
        except OSError as error:
            self.close()
            raise PlayerError(_not_started(error), hint=_HINT_NOT_STARTED) from error

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that workers inherit."""
        return (self._slots.fd, *self._wakes)

    @property
    def pids(self) -> list[int]:
        """Its process id, while it runs."""
        return [] if self._process is None else [self._process.pid]

    @property
    def overdue(self) -> bool:
        """Whether it was killed for silence and has not ended yet."""
        return self._process is not None and self._silence.ending

    def has_pending(self, index: int) -> bool:
        """Whether a request of this worker has no answer yet."""
        heads = self._slots.slots["head"][index * SLOTS_PER_WORKER : (index + 1) * SLOTS_PER_WORKER]
        return bool((heads["asked"] != heads["answered"]).any())

    def extend(self, spec: WorkerSpec) -> WorkerSpec:
        """Return a worker's specification with the descriptors of this process."""
        return msgspec.structs.replace(
            spec, server_memory_fd=self._slots.fd, server_wake_fds=list(self._wakes)
        )

    def _start(self) -> None:
        spec = ServerSpec(
            daemon_pid=os.getpid(),
            workers=self._config.worker_count,
            capacity=self._capacity,
            memory_fd=self._slots.fd,
            ring_fd=self._wakes[0],
            wake_fds=self._wakes[1:],
            player=self._config.player,
            player_args=self._player_args,
            refused=[weights for weights, died in self._died.items() if died >= LOADERS_MAX],
        )
        argument = msgspec.json.encode(spec).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", SERVER_MODULE, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=self.fds,
            process_group=0,
        )
        self._silence = Silence(self._process)

    def tick(self, now: float, silence_s: float) -> PlayerError | None:
        """Restart a process that has died or hangs; return an error after too many deaths.

        Args:
            now: ``time.monotonic``.
            silence_s: the longest time for an answer; ``START_S`` where the process loads a model.
        """
        if self._process is None:
            if now < self._start_at:
                return None
            try:
                self._start()
            except OSError as error:
                return self._note_death(_not_started(error), _HINT_NOT_STARTED, now)
            return None
        code = self._process.poll()
        if code is None:
            self._check_silence(self._process.pid, now, silence_s)
            return None
        self._process = None
        self._note_loading()
        return self._note_death(
            f"the inference process ended with status {code}", "its standard error is above", now
        )

    def _check_silence(self, pid: int, now: float, silence_s: float) -> None:
        """Kill the process where requests are pending and it has not answered any for too long."""
        heads = self._slots.slots["head"]
        waiting = heads["asked"] != heads["answered"]
        loads = waiting & (heads["kind"] == LOADING)
        answered = int(heads["answered"].sum())
        silent_s = self._silence.look(now, (answered, loads.tobytes()), excused=not waiting.any())
        if answered == self._answered or loads.any():
            silence_s = max(silence_s, START_S)
        if silent_s >= silence_s:
            where = self._silence.end()
            what = f"the inference process (pid {pid}) has not answered for {silent_s:.0f} s"
            self._reporter.event("warning", f"{what} ({where}): killing it, its stack follows")

    def _note_loading(self) -> None:
        """Count the checkpoints that the process was loading; its successors refuse the repeated ones."""
        heads = self._slots.slots["head"]
        loads = (heads["asked"] != heads["answered"]) & (heads["kind"] == LOADING)
        self._died.update({weights for weights in heads["weights"][loads].tolist() if weights})
        heads["kind"][loads] = MOVES  # counted; the next process marks its own

    def _note_death(self, what: str, hint: str, now: float) -> PlayerError | None:
        """Schedule a restart, or return an error after too many deaths."""
        self._start_at = now + RETRY_S
        answered = int(self._slots.slots["head"]["answered"].sum())
        self._deaths = 1 if answered > self._answered else self._deaths + 1
        self._answered = answered
        if self._deaths >= DEATHS_MAX:
            return PlayerError(f"{what}, {DEATHS_MAX} times without an answer in between", hint=hint)
        self._reporter.event("warning", f"{what}; it restarts, and workers wait and lose nothing")
        return None

    def close(self) -> None:
        """Kill it, and close the descriptors."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for fd in self._wakes:
            os.close(fd)
        os.close(self._slots.fd)
        self._wakes = []
