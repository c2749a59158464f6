"""A worker: plays games into its block buffer, and writes full blocks where the daemon says.

Started by the daemon as ``python -m tape2048_recorder.worker`` with a socket and a shared memory file
at the descriptors named in its arguments; never by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048._durable import write_all
from tape2048.errors import TapeError
from tape2048.formats.session import STEPS_HEADER_BYTES
from tape2048_recorder.protocol import (
    Ask,
    Bye,
    Channel,
    Confirmed,
    Crashed,
    Games,
    NoRoom,
    Range,
    Ready,
    Reserve,
    Weights,
    WriteFailed,
    Written,
)
from tape2048_recorder.shared import DRAIN, HURRY, Shared

__all__ = ["WorkerSpec", "die_with", "main"]

_PR_SET_PDEATHSIG = 1

#: One call of the compiled loop should take about this long: it is how soon a command is seen.
SLICE_S = 0.05
_SLICE_STEPS_FIRST = 256
_SLICE_STEPS_MAX = 1 << 24

#: Finished games a block holds at most; 40 bytes each. Random games (118 rows) fill a block of 262,144
#: rows with about 2,200.
RUNS_MAX = 16_384

#: By how much a worker counts as larger than it is, in thousandths of the memory there is, when the kernel
#: looks for whom to kill.
OOM_SCORE_ADJ = 500

#: Games asked for at first, before anything is known of their length.
_FIRST_GAMES = 8


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker is told when it starts."""

    index: int
    workers: int
    daemon_pid: int
    socket_fd: int
    shared_fd: int
    player: str
    player_args: dict[str, int | float | str | bool]
    seed: int
    sample_rate: int
    record_action: bool
    # What follows is for batched players (`tape2048_recorder.lanes.worker`).
    lanes: int = 1
    sampling: dict[str, int | float | str | bool] = {}
    inference: str = "worker"
    weights: Weights | None = None
    server_memory_fd: int = -1
    server_wake_fds: list[int] = []


class Worker:
    """The loop of one worker; ``run`` returns when there is nothing left to do."""

    #: The weights that played what is in the buffer; only batched players have more than one.
    generation = 0

    def __init__(self, spec: WorkerSpec, channel: Channel, shared: Shared) -> None:
        # The compiler is loaded here and not above, so that a worker that cannot load it says so.
        from tape2048_recorder import game_loop, rng

        self._loop = game_loop
        self._game_seeds = rng.game_seeds
        self._spec = spec
        self._channel = channel
        self._slot = shared.slots[spec.index : spec.index + 1]
        self.player_sha256 = ""
        self._block_rows = int(self._slot["block_rows"][0])
        self._prepare()
        self._slice_steps = _SLICE_STEPS_FIRST
        self._finished_since: float | None = None
        self._games = 0
        self._rows = 0
        self._finished_dropped = 0
        self._file: tuple[int, int] | None = None  # session, descriptor

    def _prepare(self) -> None:
        """Make the player and the buffer."""
        from tape2048_recorder import players

        self._player: Any = players.make_player(self._spec.player, self._spec.player_args)
        self.player_sha256 = players.player_sha256(self._spec.player, self._player)
        self._buffer = self._new_buffer(self._block_rows)

    def _new_buffer(self, rows_max: int) -> Any:
        spec = self._spec
        return self._loop.Buffer(
            rows_max=rows_max,
            runs_max=RUNS_MAX,
            record_action=spec.record_action,
            sample_rate=spec.sample_rate,
        )

    def warm_up(self) -> None:
        """Compile the game loop (or load it), and see that the player moves."""
        buffer = self._new_buffer(64)
        buffer.give(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64))
        self._loop.play_into(buffer, self._player, steps_max=4)

    def run(self) -> None:
        """Play until the daemon has no more games or commands a stop."""
        more = True
        while (command := int(self._slot["command"][0])) != HURRY:
            if command == DRAIN:
                more = False
                self._buffer.forget_waiting()
            self._flush_if_asked()
            self._resize_if_asked()
            idle = not self._buffer.in_play and not self._buffer.games_waiting
            if idle and more:
                more = self._get_games()
            elif idle:
                break
            else:
                self._play_slice()
        self._flush()
        self._channel.send(Bye(int(self._buffer.in_play), self._finished_dropped))

    def _get_games(self) -> bool:
        free_runs = RUNS_MAX - len(self._buffer.runs)
        if free_runs == 0:
            self._flush()
            return True
        answer = self._channel.ask(Ask(min(self._games_to_fill(), free_runs)))
        if not isinstance(answer, Games):
            return False
        ids = np.arange(answer.first_id, answer.first_id + answer.count, dtype=np.uint64)
        self._buffer.give(ids, self._game_seeds(self._spec.seed, ids))
        return True

    def _games_to_fill(self) -> int:
        """About how many games fill what is left of the buffer."""
        if not self._games:
            return _FIRST_GAMES
        free_rows = self._buffer.rows_max - self._buffer.rows_finished
        return int(free_rows * self._games / self._rows) + 1

    def _play_slice(self) -> None:
        buffer, slot = self._buffer, self._slot
        steps_before, runs_before, rows_before = buffer.steps_played, len(buffer.runs), buffer.rows_finished
        begin = time.monotonic()
        status = self._loop.play_into(buffer, self._player, steps_max=self._slice_steps)
        now = time.monotonic()
        steps = buffer.steps_played - steps_before
        self._games += len(buffer.runs) - runs_before
        self._rows += buffer.rows_finished - rows_before
        slot["steps"] += np.uint64(steps)
        slot["games"] += np.uint64(len(buffer.runs) - runs_before)
        slot["heartbeat_ns"] = time.monotonic_ns()
        if status == self._loop.STEPS_PLAYED:
            scale = min(max(SLICE_S / max(now - begin, 1e-6), 0.25), 4.0)
            self._slice_steps = min(max(int(steps * scale), 1), _SLICE_STEPS_MAX)
        if len(buffer.runs) and self._finished_since is None:
            self._finished_since = now
        if status == self._loop.BUFFER_FULL and not len(buffer.runs):
            buffer.grow()
        elif status == self._loop.BUFFER_FULL or self._flush_is_due(now):
            self._flush()

    def _flush_is_due(self, now: float) -> bool:
        return self._finished_since is not None and now - self._finished_since >= self._slot["flush_s"][0]

    def _flush_if_asked(self) -> None:
        """Write what is finished where the daemon is to rotate, and let it know."""
        asked = self._slot["flush"][0]
        if asked != self._slot["flushed"][0]:
            self._flush_all()
            self._slot["flushed"] = asked

    def _flush_all(self) -> None:
        """Write all that is finished."""
        self._flush()

    def _resize_if_asked(self) -> None:
        """Make blocks of another size where the daemon's settings have changed."""
        rows = int(self._slot["block_rows"][0])
        if rows != self._block_rows:
            self._flush_all()
            self._block_rows = rows
            self._resize(rows)

    def _resize(self, rows: int) -> None:
        self._buffer.resize(rows)

    def _flush(self) -> None:
        """Write the finished games as one block, and wait until the daemon has confirmed it."""
        buffer = self._buffer
        rows = buffer.rows_finished
        if not rows:
            return
        checksum = crc32c(buffer.block)
        while True:
            place = self._channel.ask(Reserve(rows, self.generation))
            if isinstance(place, NoRoom):
                self._finished_dropped += len(buffer.runs)
                break
            if not isinstance(place, Range):
                message = f"expected a range to write to, got {place!r}"
                raise TypeError(message)
            try:
                write_all(
                    self._open(place),
                    buffer.block,
                    STEPS_HEADER_BYTES + place.first_row * buffer.dtype.itemsize,
                )
            except OSError as error:
                self._channel.send(WriteFailed(place.session, place.first_row, error.errno or 0))
                continue
            answer = self._channel.ask(
                Written(place.session, place.first_row, rows, checksum, buffer.runs.tobytes())
            )
            if not isinstance(answer, Confirmed):
                message = f"expected the block to be confirmed, got {answer!r}"
                raise TypeError(message)
            break
        buffer.drop_block()
        self._finished_since = None
        self._slot["heartbeat_ns"] = time.monotonic_ns()

    def _open(self, place: Range) -> int:
        """The descriptor of the session's rows; one file is open at a time."""
        if self._file is None or self._file[0] != place.session:
            self._close_file()
            self._file = (place.session, os.open(place.path, os.O_WRONLY | os.O_CLOEXEC))
        return self._file[1]

    def _close_file(self) -> None:
        """Close the last session's file, if there is one.

        Some network file systems say only now what became of a write, of blocks that are confirmed. The
        daemon hears of it, too, when it publishes the session: its descriptor is older than the rows.
        """
        if self._file is not None:
            fd, self._file = self._file[1], None  # it is closed, whatever closing says
            with contextlib.suppress(OSError):
                os.close(fd)


def die_with(daemon_pid: int) -> None:
    """Have the kernel kill this process when the daemon dies, and stop now if it has died already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != daemon_pid:
        raise SystemExit(1)


def die_first() -> None:
    """Be the one that the kernel kills where memory runs out.

    A worker is replaced, and its unrecorded games are played again. The daemon would take everybody along,
    and is the largest at times: while it publishes very many short games.
    """
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        score.write_text(str(max(int(score.read_text()), OOM_SCORE_ADJ)))


def _worker_class(player: str) -> type[Worker]:
    """The kind of worker that plays a player of this name."""
    from tape2048_recorder.players.batch import is_batched

    if not is_batched(player):
        return Worker
    from tape2048_recorder.lanes.worker import BatchWorker

    return BatchWorker


def main(argument: str) -> int:
    """Run a worker from the JSON of its :class:`WorkerSpec`."""
    begin = time.monotonic()
    spec = msgspec.json.decode(argument, type=WorkerSpec)
    die_with(spec.daemon_pid)
    die_first()
    # Whether to stop is the daemon's to say; a terminal's Ctrl-C reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    channel = Channel(socket.socket(fileno=spec.socket_fd))
    shared = Shared(spec.shared_fd, spec.workers)
    starting = True
    try:
        worker = _worker_class(spec.player)(spec, channel, shared)
        worker.warm_up()
        channel.send(Ready(worker.player_sha256, time.monotonic() - begin, worker.generation))
        starting = False
        worker.run()
    except (EOFError, ConnectionError):
        return 1  # the daemon is gone, and with it whatever could be said
    except Exception as error:  # noqa: BLE001 - the worker's edge: the daemon is told
        if isinstance(error, TapeError):
            channel.send(Crashed(str(error), starting, type(error).__name__, error.hint))
        else:
            channel.send(Crashed(traceback.format_exc(), starting))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
