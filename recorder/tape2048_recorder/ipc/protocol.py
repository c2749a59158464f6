"""Messages of daemon and workers, over one socket for each worker.

A worker waits for its ranges, and plays on once a block is written. It receives the block's confirmation, and
the games that it requested in the same send (in either order), before it sends its next message::

    worker                                   daemon
    Compiles(cache)           ->             (nothing; where machine code is not in the cache)
    Ready(player_sha256)      ->
    Ask(want)                 ->             Games(first_id, count, seed) | NoMoreGames
    Reserve(rows)             ->             Range(session, path, first_row) | NoRoom
      ... pwrite ...
    Written(range, crc, runs) ->             Confirmed
    WantWeights               ->             Weights(generation, path, sha256)
    WeightsTaken | WeightsRefused -> (nothing)
    WriteFailed(range, errno) ->             (nothing; the worker reserves again)
    Bye | Crashed(error)      ->

The daemon answers ``Reserve`` when there is room, which may be much later: this is how it pauses workers. A
frame is a ``u32`` length and a MessagePack object; no rows travel here, only the summaries of runs
(``RUN_DTYPE`` bytes). A worker's argument is the JSON of its :class:`WorkerSpec`.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

#: The module that a worker process runs.
WORKER_MODULE = "tape2048_recorder.workers"

_LENGTH = struct.Struct("<I")
#: Below the size from which malloc maps each allocation separately.
_RECEIVE_BYTES = 1 << 16
FRAME_BYTES_MAX = 1 << 28


# From the worker.


class Compiles(msgspec.Struct, tag=True):
    """The player has to be compiled. ``cache`` is the directory that keeps the machine code, if any."""

    cache: str | None


class Ready(msgspec.Struct, tag=True):
    """The player is compiled and has made its first moves."""

    player_sha256: str
    start_s: float
    generation: int = 0


class Ask(msgspec.Struct, tag=True):
    """Request for up to ``want`` games."""

    want: int


class Reserve(msgspec.Struct, tag=True):
    """Request for the rows of a block of finished games, which ``generation`` of the weights played."""

    rows: int
    generation: int = 0


class Written(msgspec.Struct, tag=True):
    """The rows are in the file; ``runs`` is ``RUN_DTYPE`` with ``first_row`` counted from the block."""

    session: int
    first_row: int
    rows: int
    crc32c: int
    runs: bytes


class WriteFailed(msgspec.Struct, tag=True):
    """The rows could not be written; the worker still holds them."""

    session: int
    first_row: int
    errno: int


class Bye(msgspec.Struct, tag=True):
    """The worker ends. ``games_dropped`` counts games given up before their end, or without room."""

    games_dropped: int
    finished_dropped: int


class Crashed(msgspec.Struct, tag=True):
    """The worker failed, while it started if ``starting``. ``kind`` is the class of an error of ours."""

    error: str
    starting: bool
    kind: str = ""
    hint: str | None = None


class WantWeights(msgspec.Struct, tag=True):
    """Request for the weights to play."""


class WeightsTaken(msgspec.Struct, tag=True):
    """The weights are loaded; they play the games that begin from now on."""

    generation: int
    player_sha256: str


class WeightsRefused(msgspec.Struct, tag=True):
    """The weights cannot be used; the worker continues with its present ones."""

    generation: int
    error: str


# From the daemon.


class Games(msgspec.Struct, tag=True):
    """The ids of the games to play."""

    first_id: int
    count: int


class NoMoreGames(msgspec.Struct, tag=True):
    """Write the finished games, and stop."""


class Range(msgspec.Struct, tag=True):
    """The session and row to write the block to."""

    session: int
    path: str
    first_row: int


class NoRoom(msgspec.Struct, tag=True):
    """The disk is full and the time to wait is over: drop the block."""


class Weights(msgspec.Struct, tag=True):
    """The weights to play: an immutable file, and its hash."""

    generation: int
    path: str
    sha256: str


class Confirmed(msgspec.Struct, tag=True):
    """The block is in the journal; the worker may drop it."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """The argument of a worker process: its index, the descriptors that it inherits, and its settings.

    ``settings`` are the fields of the recorder's configuration, with the seed in effect and every parameter
    of the player. ``weights`` are for batched players.
    """

    index: int
    daemon_pid: int
    socket_fd: int
    shared_fd: int
    settings: dict[str, Any]
    weights: Weights | None = None


FromWorker: TypeAlias = (
    Compiles
    | Ready
    | Ask
    | Reserve
    | Written
    | WriteFailed
    | Bye
    | Crashed
    | WantWeights
    | WeightsTaken
    | WeightsRefused
)
FromDaemon: TypeAlias = Games | NoMoreGames | Range | NoRoom | Confirmed | Weights

_encode = msgspec.msgpack.Encoder().encode
_decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
_decode_from_daemon: Callable[[bytes], FromDaemon] = msgspec.msgpack.Decoder(FromDaemon).decode


class Channel:
    """Frames over a stream socket. ``receive_ready`` never waits; ``ask`` and ``receive`` do."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, *messages: FromWorker | FromDaemon) -> None:
        """Send messages in one write: the other side wakes once."""
        payloads = map(_encode, messages)
        self._socket.sendall(b"".join(_LENGTH.pack(len(payload)) + payload for payload in payloads))

    def receive_ready(self) -> tuple[list[FromWorker], bool]:
        """Return the messages that have arrived from a worker, and whether its side is still open."""
        is_open = True
        try:
            while True:
                data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
                self._received += data
                if len(data) < _RECEIVE_BYTES:
                    break
            is_open = bool(data)
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
        frames = iter(self._take_frame, None)
        return [_decode_from_worker(frame) for frame in frames], is_open

    def receive(self) -> FromDaemon:
        """Wait for one message from the daemon."""
        while (frame := self._take_frame()) is None:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise EOFError("the daemon closed the connection")
            self._received += data
        return _decode_from_daemon(frame)

    def ask(self, message: FromWorker) -> FromDaemon:
        """Send a message and wait for its answer."""
        self.send(message)
        return self.receive()

    def _take_frame(self) -> bytes | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > FRAME_BYTES_MAX:
            raise msgspec.ValidationError(
                f"found a frame of {length} bytes, expected at most {FRAME_BYTES_MAX}"
            )
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        frame = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return frame
