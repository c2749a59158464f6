"""The inference process, which computes for all workers with one model on one GPU.

The daemon starts it. It answers the pending slots as one batch for each checkpoint, and looks again. It loads
a checkpoint at the first request, and drops it when requests cease.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.base.text import valid_text
from tape2048.errors import PlayerError
from tape2048_recorder.inference.slots import ERROR, LOADING, MOVES, SCORES, SLOTS_PER_WORKER, Slots
from tape2048_recorder.ipc.process import set_up
from tape2048_recorder.players.batch import Caller, declared_sha256, make_batch_player

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Rounds without a request after which a model is dropped when another is loaded. Each table has a request
#: every few rounds; the number of models in use depends on the length of the workers' games.
_IDLE_ROUNDS = 1000


class ServerSpec(msgspec.Struct, frozen=True):
    """Argument of the process."""

    daemon_pid: int
    workers: int
    capacity: int
    memory_fd: int
    ring_fd: int
    wake_fds: list[int]
    player: str
    player_args: dict[str, int | float | str | bool]
    refused: list[bytes] = []  # checkpoints whose loading ended earlier processes


class _Model:
    """A model in memory, with its declared identity and the round of its last request."""

    def __init__(self, caller: Caller, sha256: str) -> None:
        self.caller = caller
        self.sha256 = sha256
        self.round = 0


class Server:
    """Answers the requests in the slots."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._slots = Slots(spec.memory_fd, spec.workers, spec.capacity).slots
        # The largest batch: half of every worker's lanes.
        self._batch = spec.workers * spec.capacity
        self._boards = np.zeros(self._batch, dtype=np.uint64)
        self._legal = np.zeros(self._batch, dtype=np.uint8)
        self._exps = np.zeros((self._batch, 16), dtype=np.uint8)
        self._asked = np.zeros(len(self._slots), dtype=np.uint64)
        self._models: dict[bytes, _Model] = {}  # by checkpoint
        self._round = 0

    def run(self) -> None:
        """Answer and wait, for ever."""
        while True:
            self.answer_all()  # before the first wait: requests that an earlier server left
            os.eventfd_read(self._spec.ring_fd)

    def answer_all(self) -> None:
        """Answer the pending requests."""
        self._round += 1
        heads = self._slots["head"]
        # Answer the numbers as of now: a restarted worker may overwrite its requests.
        self._asked = heads["asked"].copy()
        asked = np.flatnonzero(self._asked != heads["answered"])
        for weights in sorted(set(heads["weights"][asked].tolist())):
            self._answer([int(i) for i in asked if heads["weights"][i] == weights], weights)

    def _answer(self, chosen: list[int], weights: bytes) -> None:
        with self._refusing(chosen):
            if weights not in self._models:
                self._slots["head"]["kind"][chosen] = LOADING
            model = self._model(weights)
            for call in self._calls(chosen):
                with self._refusing(list(call)):
                    self._answer_at_once(call, model)

    def _calls(self, chosen: list[int]) -> list[dict[int, int]]:
        """Group slots, with their numbers of boards, into calls of at most the largest batch.

        No slot is split, so each call completes answers: workers go on, and the daemon sees progress.
        """
        calls: list[dict[int, int]] = []
        boards = self._batch
        for i in chosen:
            n = int(self._slots["head"]["n"][i])
            if boards + n > self._batch:
                calls.append({})
                boards = 0
            calls[-1][i] = n
            boards += n
        return calls

    def _answer_at_once(self, call: dict[int, int], model: _Model) -> None:
        """Answer slots by one call of the player."""
        at = 0
        for i, n in call.items():
            slot = self._slots[i]
            self._boards[at : at + n] = slot["boards"][:n]
            self._legal[at : at + n] = slot["legal"][:n]
            self._exps[at : at + n] = slot["exps"][:n]
            at += n
        model.caller.submit((self._boards[:at], self._legal[:at], self._exps[:at]))
        answer = model.caller.collect()
        is_moves = answer.dtype == np.uint8
        at = 0
        for i, n in call.items():
            slot = self._slots[i]
            slot["moves" if is_moves else "scores"][:n] = answer[at : at + n]
            slot["head"]["kind"] = MOVES if is_moves else SCORES
            slot["head"]["sha256"] = valid_text(model.sha256).encode()
            self._done(i)
            at += n

    @contextlib.contextmanager
    def _refusing(self, chosen: list[int]) -> Iterator[None]:
        """Answer these slots with the error, if there is one."""
        try:
            yield
        except PlayerError as error:
            self._refuse(chosen, type(error).__name__, str(error), error.hint or "")
        except Exception:  # noqa: BLE001 - the process's edge: workers raise it
            self._refuse(chosen, PlayerError.__name__, traceback.format_exc(), "")

    def _refuse(self, chosen: list[int], name: str, text: str, hint: str) -> None:
        for i in chosen:
            head = self._slots[i]["head"]
            head["kind"] = ERROR
            head["error"] = name.encode()
            head["text"] = valid_text(text).encode()[-4096:]
            head["hint"] = valid_text(hint).encode()[:1024]
            self._done(i)

    def _done(self, i: int) -> None:
        head = self._slots[i]["head"]
        head["answered"] = self._asked[i]
        os.eventfd_write(self._spec.wake_fds[i // SLOTS_PER_WORKER], 1)

    def _model(self, weights: bytes) -> _Model:
        """Return the model of a checkpoint; loading one drops idle models first."""
        if weights not in self._models:
            self._models[weights] = self._load(weights)
        found = self._models[weights]
        found.round = self._round
        return found

    def _load(self, weights: bytes) -> _Model:
        for idle in [key for key, one in self._models.items() if self._round - one.round > _IDLE_ROUNDS]:
            del self._models[idle]
        spec = self._spec
        if weights in spec.refused:
            raise PlayerError("the inference process ended each time it loaded this checkpoint")
        args = {**spec.player_args, "model": os.fsdecode(weights)} if weights else spec.player_args
        player = make_batch_player(spec.player, args)
        caller = Caller(player, spec.player)
        caller.warm_up(self._batch)
        return _Model(caller, declared_sha256(player, spec.player))


def main(argument: str) -> int:
    """Run the process from the JSON of its :class:`ServerSpec`."""
    spec = msgspec.json.decode(argument, type=ServerSpec)
    set_up(spec.daemon_pid)
    Server(spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
