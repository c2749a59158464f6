"""The inference process: computes for all workers, so that one model on one GPU serves them.

Started by the daemon, never by hand. It takes whatever
stands in the slots when it looks, as one batch for each checkpoint that is asked for, and looks again. A
checkpoint is loaded when it is first asked for, and stays for as long as anybody asks for it.
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
from tape2048.errors import InferenceError, PlayerError
from tape2048_recorder.inference.slots import ERROR, LOADING, MOVES, SCORES, SLOTS_PER_WORKER, Slots
from tape2048_recorder.ipc.process import set_up
from tape2048_recorder.players.batch import Caller, make_batch_player, told_by

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A model that was not asked for in so many rounds is let go when another one is loaded. Each table asks in
#: every few rounds; how many models play at once depends on how long the workers' games are.
_IDLE_ROUNDS = 1000


class ServerSpec(msgspec.Struct, frozen=True):
    """What the process is told when it starts."""

    daemon_pid: int
    workers: int
    capacity: int
    memory_fd: int
    ring_fd: int
    wake_fds: list[int]
    player: str
    player_args: dict[str, int | float | str | bool]
    refused: list[bytes] = []  # checkpoints that have ended who loaded them


class _Model:
    """A model in memory; ``told`` is what it says of itself, ``round`` when it was last asked for."""

    def __init__(self, caller: Caller, told: str) -> None:
        self.caller = caller
        self.told = told
        self.round = 0


class Server:
    """Answers slots."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._slots = Slots(spec.memory_fd, spec.workers, spec.capacity).slots
        # The most that a player is given at once: half of every worker's lanes.
        self._batch = spec.workers * spec.capacity
        self._boards = np.zeros(self._batch, dtype=np.uint64)
        self._legal = np.zeros(self._batch, dtype=np.uint8)
        self._exps = np.zeros((self._batch, 16), dtype=np.uint8)
        self._asked = np.zeros(len(self._slots), dtype=np.uint64)
        self._models: dict[bytes, _Model] = {}  # by checkpoint
        self._round = 0

    def run(self) -> None:
        """Answer, and wait for the ring, for ever."""
        while True:
            self.answer_all()  # before the first wait: what a server that died left unanswered
            os.eventfd_read(self._spec.ring_fd)

    def answer_all(self) -> None:
        """Answer what is asked now."""
        self._round += 1
        heads = self._slots["head"]
        # What is answered is what was asked here: a worker that dies and starts anew may ask over it.
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
        """The slots of each call of the player, with their boards: at most what its warm-up was told.

        No slot is cut, so that each call ends with answers: whoever asked goes on, and the daemon sees it.
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
        """Answer slots with one call of the player."""
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
            slot["head"]["told"] = valid_text(model.told).encode()
            self._done(i)
            at += n

    @contextlib.contextmanager
    def _refusing(self, chosen: list[int]) -> Iterator[None]:
        """Tell whoever asks in these slots of an error."""
        try:
            yield
        except PlayerError as error:
            self._refuse(chosen, type(error).__name__, str(error), error.hint or "")
        except Exception:  # noqa: BLE001 - the process's edge: the workers are told
            self._refuse(chosen, InferenceError.__name__, traceback.format_exc(), "")

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
        found = self._models.get(weights)
        if found is None:
            found = self._models[weights] = self._loaded(weights)
        found.round = self._round
        return found

    def _loaded(self, weights: bytes) -> _Model:
        """A model that was not in memory; those that nobody asks for any more go first."""
        for idle in [key for key, one in self._models.items() if self._round - one.round > _IDLE_ROUNDS]:
            del self._models[idle]
        spec = self._spec
        if weights in spec.refused:
            raise InferenceError("the inference process ended each time that it loaded it")
        args = {**spec.player_args, "model": os.fsdecode(weights)} if weights else spec.player_args
        player = make_batch_player(spec.player, args)
        caller = Caller(player, spec.player)
        caller.warm_up(self._batch)
        return _Model(caller, told_by(player, spec.player))


def main(argument: str) -> int:
    """Run the process from the JSON of its :class:`ServerSpec`."""
    spec = msgspec.json.decode(argument, type=ServerSpec)
    set_up(spec.daemon_pid)
    Server(spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
