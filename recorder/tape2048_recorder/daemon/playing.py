"""The players at work: they are all the same, with which weights, and the meaning of their errors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tape2048.errors import PlayerError, RecorderError, StartError, TapeError, error_class
from tape2048_recorder.ipc.protocol import LOADERS_MAX, FromWorker, WantWeights, WeightsRefused, WeightsTaken
from tape2048_recorder.ipc.shared import LOADS

if TYPE_CHECKING:
    from tape2048_recorder.daemon.supervisor import Supervisor, Worker
    from tape2048_recorder.daemon.weights import LiveWeights
    from tape2048_recorder.inference.process import InferenceProcess
    from tape2048_recorder.ipc.protocol import Crashed, Ready
    from tape2048_recorder.recording.recording import Recording


def error_of(message: Crashed, *, first: bool) -> TapeError | None:
    """Return the error that ends the recorder, or None where another worker may succeed.

    A user's player that raises or gives invalid answers would do so again: the recorder ends, with its games
    published. An error of a worker that never got ready is final if it is the ``first`` one in its place; a
    later one may lack a resource that the first had (memory), and get it later.
    """
    kind = error_class(message.kind)
    if issubclass(kind, (PlayerError, StartError)):
        return kind(message.error, hint=message.hint)
    return StartError(f"a worker could not start: {message.error}") if first else None


def compiling_text(player: str, cache: str | None) -> str:
    """Say what is compiled, how long it usually takes, and how often; ``cache`` keeps the machine code."""
    often = f"the first time only (kept in {cache})"
    if cache is None:
        often = "at each start (no directory to keep it can be written: set XDG_CACHE_HOME)"
    return f"compiling the game loop with {player}: half a minute or so, {often}"


class Playing:
    """The player and weights at work, for daemon and sessions.

    Args:
        supervisor: starts workers with the current weights.
        live: weights that change during recording, or None.
        server: the process that computes for all workers, or None.
    """

    def __init__(
        self, supervisor: Supervisor, live: LiveWeights | None, server: InferenceProcess | None
    ) -> None:
        self._server = server
        self._supervisor = supervisor
        self._live = live
        self._told: dict[int, int] = {}  # the last generation offered, by worker
        self._died: Counter[int] = Counter()  # workers that ended while loading, by generation
        self.player_sha256: str | None = None

    def on_ready(self, index: int, message: Ready) -> RecorderError | None:
        """Note a worker's player; return an error where it differs from the others'."""
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

    def on_message(self, worker: Worker, message: FromWorker) -> RecorderError | None:
        """Answer a worker's message about weights; return an error as :meth:`on_ready`."""
        assert self._live is not None, "no weights were offered"
        if isinstance(message, WeightsTaken | WeightsRefused):
            return _conflict(self._live.on_message(message))
        assert isinstance(message, WantWeights)
        self._told[worker.index] = self._live.current.generation
        worker.answer(self._live.current)
        return None

    def tick(self, recording: Recording, now: float, *, silence_s: float, look: bool) -> TapeError | None:
        """Check server and weights, and close the sessions of weights that no worker plays any more.

        Args:
            recording: has the sessions.
            now: ``time.monotonic``.
            silence_s: time limit for an answer of the server.
            look: whether to look for newer weights.

        Returns:
            The error that ends the recorder, or None.
        """
        if self._live is not None:
            oldest = int(self._supervisor.shared.slots["oldest"].min())
            recording.retire(oldest)
            if look:
                self._refuse_fatal(self._live)
                self._live.tick(now, oldest)
                self._supervisor.set_weights(self._live.proven)
        return None if self._server is None else self._server.tick(now, silence_s)

    def _refuse_fatal(self, live: LiveWeights) -> None:
        """Refuse weights that end the processes that load them."""
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
        """Close server and weights, after the workers."""
        if self._server is not None:
            self._server.close()
        if self._live is not None:
            self._live.close()


def _conflict(text: str | None) -> RecorderError | None:
    # Not StartError, with which a service stays down: after a restart all workers agree.
    return None if text is None else RecorderError(text, hint="restart it: all workers then load the same")
