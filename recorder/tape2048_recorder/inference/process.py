"""The daemon's side of ``inference = "server"``: starts the inference process, and starts it again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import InferenceError
from tape2048_recorder.inference.slots import LOADING, MOVES, SLOTS_PER_WORKER
from tape2048_recorder.ipc.process import START_S, Silence
from tape2048_recorder.ipc.protocol import LOADERS_MAX

if TYPE_CHECKING:
    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.inference.slots import Slots
    from tape2048_recorder.ipc.protocol import WorkerSpec
    from tape2048_recorder.status.report import Reporter

#: The module that the inference process runs.
SERVER_MODULE = "tape2048_recorder.inference.server"

#: Deaths in a row, without an answer between them, after which it is hopeless.
DEATHS_MAX = 5
RETRY_S = 0.5

_HINT_NOT_MADE = "see what memory and how many processes it may have: `tape2048 doctor`"


def _not_made(error: OSError) -> str:
    return f"no inference process could be made: {error.strerror or error}"


class InferenceProcess:
    """One process that computes for all workers.

    What it is asked stands in memory that outlives it, so that a process that follows answers what this one
    did not, and no worker loses a game.

    Args:
        config: the recorder's.
        player_args: with defaults filled in.
        reporter: told when it dies.

    Raises:
        InferenceError: no process could be made.
    """

    def __init__(
        self, config: RecorderConfig, player_args: dict[str, int | float | str | bool], reporter: Reporter
    ) -> None:
        from tape2048_recorder.inference.remote import capacity_of
        from tape2048_recorder.inference.slots import Slots

        workers = config.worker_count
        self._config = config
        self._player_args = player_args
        self._reporter = reporter
        self._capacity = capacity_of(config.lanes)
        self._slots: Slots = Slots.create(workers, self._capacity)
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
            raise InferenceError(_not_made(error), hint=_HINT_NOT_MADE) from error

    @property
    def fds(self) -> tuple[int, ...]:
        """What workers inherit."""
        return (self._slots.fd, *self._wakes)

    @property
    def pids(self) -> list[int]:
        """The process, while it runs."""
        return [] if self._process is None else [self._process.pid]

    @property
    def overdue(self) -> bool:
        """Whether it is to be ended and still there."""
        return self._process is not None and self._silence.ending

    def has_pending(self, index: int) -> bool:
        """Whether a request of this worker is not answered."""
        heads = self._slots.slots["head"][index * SLOTS_PER_WORKER : (index + 1) * SLOTS_PER_WORKER]
        return bool((heads["asked"] != heads["answered"]).any())

    def told(self, spec: WorkerSpec) -> WorkerSpec:
        """A worker's specification, with where it asks."""
        return msgspec.structs.replace(
            spec, server_memory_fd=self._slots.fd, server_wake_fds=list(self._wakes)
        )

    def _start(self) -> None:
        from tape2048_recorder.inference.server import ServerSpec

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

    def tick(self, now: float, silence_s: float) -> InferenceError | None:
        """Start another process where this one has died or hangs; an error where that does not help.

        Args:
            now: ``time.monotonic``.
            silence_s: how long an answer may take; one for which a model is loaded may take ``START_S``.
        """
        if self._process is None:
            if now < self._start_at:
                return None
            try:
                self._start()
            except OSError as error:
                return self._note_death(_not_made(error), _HINT_NOT_MADE, now)
            return None
        code = self._process.poll()
        if code is None:
            self._look_at(self._process.pid, now, silence_s)
            return None
        self._process = None
        self._note_loading()
        return self._note_death(
            f"the inference process ended with status {code}", "its standard error is above", now
        )

    def _look_at(self, pid: int, now: float, silence_s: float) -> None:
        """End the process where something is asked, and nothing has been answered for too long."""
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
            self._reporter.event("warning", f"{what} ({where}): ending it, its stack follows")

    def _note_loading(self) -> None:
        """Count what the process loaded when it ended; those that follow are told not to try for ever."""
        heads = self._slots.slots["head"]
        loads = (heads["asked"] != heads["answered"]) & (heads["kind"] == LOADING)
        self._died.update({weights for weights in heads["weights"][loads].tolist() if weights})
        heads["kind"][loads] = MOVES  # that is counted; the next process says anew what it loads

    def _note_death(self, what: str, hint: str, now: float) -> InferenceError | None:
        """Have another one start in a while; an error where too many have died."""
        self._start_at = now + RETRY_S
        answered = int(self._slots.slots["head"]["answered"].sum())
        self._deaths = 1 if answered > self._answered else self._deaths + 1
        self._answered = answered
        if self._deaths >= DEATHS_MAX:
            return InferenceError(f"{what}, {DEATHS_MAX} times without an answer between", hint=hint)
        self._reporter.event("warning", f"{what}, another starts; workers wait and lose nothing")
        return None

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for fd in self._wakes:
            os.close(fd)
        os.close(self._slots.fd)
        self._wakes = []
