"""What the workers play: that all play the same, which weights, and what a player's error means."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tape2048.errors import PlayerError, RecorderError, TapeError, WorkerStartError, error_class
from tape2048_recorder.ipc.protocol import LOADERS_MAX, FromWorker, WantWeights, WeightsRefused, WeightsTaken
from tape2048_recorder.ipc.shared import LOADS

if TYPE_CHECKING:
    from tape2048_recorder.daemon.supervisor import Supervisor, Worker
    from tape2048_recorder.daemon.weights import LiveWeights
    from tape2048_recorder.inference.process import InferenceProcess
    from tape2048_recorder.ipc.protocol import Crashed, Ready
    from tape2048_recorder.recording.recording import Recording

__all__ = ["Playing", "error_of"]


def error_of(message: Crashed, *, first: bool) -> TapeError | None:
    """The error that ends the recorder, or None where another worker may do better.

    A player of the user's own that raises or answers nonsense would do so again: the recorder ends, with what
    was played published. Of a worker that never got ready, any error is final, if it is the ``first`` one in
    its place; one that follows another may lack what that one had (memory), and find it in a while.
    """
    kind = error_class(message.kind)
    if issubclass(kind, PlayerError):
        return kind(message.error, hint=message.hint)
    return WorkerStartError(f"a worker could not start: {message.error}") if first else None


class Playing:
    """Holds what each generation of weights is, for daemon and sessions.

    Args:
        supervisor: its workers are told which weights to begin with.
        live: weights that change while it records, or None.
        server: the process that computes for all workers, or None.
    """

    def __init__(
        self, supervisor: Supervisor, live: LiveWeights | None, server: InferenceProcess | None
    ) -> None:
        self._server = server
        self._supervisor = supervisor
        self._live = live
        self._told: dict[int, int] = {}  # by worker, the generation that it asked for last
        self._died: Counter[int] = Counter()  # by generation, workers that ended while they loaded it
        self.player_sha256: str | None = None

    def on_ready(self, index: int, message: Ready) -> RecorderError | None:
        """Note what a worker plays; an error where it is not what the others do."""
        if self._live is not None:
            self.player_sha256 = message.player_sha256
            return _conflict(self._live.on_ready(message.generation, message.player_sha256))
        if self.player_sha256 is None:
            self.player_sha256 = message.player_sha256
        if self.player_sha256 == message.player_sha256:
            return None
        return _conflict(
            f"worker {index} plays {message.player_sha256[:12]}, the others {self.player_sha256[:12]}: "
            "the player changed while the recorder ran"
        )

    def hear(self, worker: Worker, message: FromWorker) -> RecorderError | None:
        """Answer what a worker says about weights; an error as :meth:`on_ready`."""
        assert self._live is not None, "no weights were offered"
        if isinstance(message, WeightsTaken | WeightsRefused):
            return _conflict(self._live.on_message(message))
        assert isinstance(message, WantWeights)
        self._told[worker.index] = self._live.current.generation
        worker.answer(self._live.current)
        return None

    def attend(self, recording: Recording, now: float, *, silence_s: float, look: bool) -> TapeError | None:
        """Look after server and weights, and close the sessions of weights that no worker plays any more.

        Args:
            recording: whose sessions they are.
            now: ``time.monotonic``.
            silence_s: how long the server may take for an answer.
            look: whether to look for newer weights.

        Returns:
            What ends the recorder, or None.
        """
        if self._live is not None:
            oldest = int(self._supervisor.shared.slots["oldest"].min())
            recording.retire(oldest)
            if look:
                self._look_at_the_dead(self._live)
                self._live.attend(now, oldest)
                self._supervisor.set_weights(self._live.proven)
        return None if self._server is None else self._server.tick(now, silence_s)

    def _look_at_the_dead(self, live: LiveWeights) -> None:
        """Refuse weights that end whoever loads them."""
        busy = self._supervisor.shared.slots["busy"]
        for worker in self._supervisor.workers:
            if not worker.alive and busy[worker.index] == LOADS:
                busy[worker.index] = 0
                generation = self._told[worker.index]
                self._died[generation] += 1
                if self._died[generation] == LOADERS_MAX and generation > live.proven.generation:
                    why = f"{LOADERS_MAX} workers ended while they loaded it"
                    live.on_message(WeightsRefused(generation, why))

    def close(self) -> None:
        """Let go of server and weights; the workers have ended."""
        if self._server is not None:
            self._server.close()
        if self._live is not None:
            self._live.close()


def _conflict(text: str | None) -> RecorderError | None:
    # Not WorkerStartError, with which a service stays down: all that start again play the same.
    return None if text is None else RecorderError(text, hint="start it again: all then play what is there")
