"""Messages and shared memory between the daemon and its workers.

Each worker has one socket to the daemon. It waits for the answer to a ``Reserve``, writes its block, and
continues to play. With ``BlockWritten`` it can send an ``Ask`` for more games. It receives both answers, in
either order, before it sends its next message::

    worker                                   daemon
    Starts(phase) | Warns(text) ->           (nothing)
    Ready(player_sha256)      ->
    Ask(want)                 ->             PlayGames(first_id, count) | NoMoreGames
    Reserve(rows)             ->             Range(session, path, first_row) | NoRoom
      ... pwrite ...
    BlockWritten(range, crc, runs) ->        Confirmed
    WantWeights               ->             Weights(generation, path, sha256)
    WeightsTaken | WeightsRefused -> (nothing)
    Forfeited(game, why)      ->             (nothing)
    WriteFailed(range, errno) ->             (nothing; the worker reserves again)
    Bye | Crashed(error)      ->

The daemon pauses workers by delaying its answer to ``Reserve`` until there is space on the disk. A frame is a
``u32`` length and a MessagePack object. No rows are sent, only the records of runs (``RUN_DTYPE`` bytes). A
worker's argument is the JSON of its :class:`WorkerSpec`.

The shared memory carries commands to the workers and progress to the daemon. It is an anonymous memory file,
inherited by descriptor. Each word has one writer, and no process waits for a word, so a process that dies at
any point leaves nothing locked. The kernel frees the memory with the last process that maps it, so nothing
stays in ``/dev/shm``.

On some processors, a process sees the writes of another process in a different order. Therefore, no word in
the shared memory announces that other data is ready. A message on the socket carries the data, or confirms
it. A word is 8 aligned bytes, which every processor reads and writes atomically.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np

#: The module that a worker process runs.
WORKER_MODULE = "tape2048_recorder.workers"

_LENGTH = struct.Struct("<I")
#: Small enough that malloc does not map each allocation separately.
_RECEIVE_BYTES = 1 << 16
FRAME_BYTES_MAX = 1 << 28

# From the worker.


class Starts(msgspec.Struct, tag=True):
    """Start of a phase of the worker: a text for the log. The status shows the part before ``: ``."""

    phase: str


class Warns(msgspec.Struct, tag=True):
    """A warning for the daemon's log. Several workers can send the same warning."""

    text: str


class Ready(msgspec.Struct, tag=True):
    """The player is compiled and has made its first moves."""

    player_sha256: str
    generation: int = 0


class Ask(msgspec.Struct, tag=True):
    """Request for up to ``want`` games, and for a higher ``rows_max`` in the shared memory."""

    want: int


class Reserve(msgspec.Struct, tag=True):
    """Request for a range of rows for a block of finished games, played by ``generation`` of the weights."""

    rows: int
    generation: int = 0


class BlockWritten(msgspec.Struct, tag=True):
    """Report that a block is in the file; ``first_row`` of ``runs`` (``RUN_DTYPE``) counts from the block."""

    session: int
    first_row: int
    rows: int
    crc32c: int
    runs: bytes
    columns_crc32c: int | None = None  # of all columns, one after another; None without columns


class WriteFailed(msgspec.Struct, tag=True):
    """Report that the rows could not be written. The worker still holds them."""

    session: int
    first_row: int
    errno: int


class Forfeited(msgspec.Struct, tag=True):
    """Report that a game is not recorded because of an engine's fault; ``why`` describes the fault."""

    game: int
    why: str


class Bye(msgspec.Struct, tag=True):
    """Report of a normal end; ``finished_dropped`` counts finished games that found no space on the disk."""

    games_dropped: int
    finished_dropped: int


class Crashed(msgspec.Struct, tag=True):
    """Report of a worker that failed; ``kind`` is the error's class, if it is a ``TapeError``."""

    error: str
    starting: bool
    kind: str = ""
    hint: str | None = None


class WantWeights(msgspec.Struct, tag=True):
    """Request for the weights to play."""


class WeightsTaken(msgspec.Struct, tag=True):
    """Report that the weights are loaded and play the games that start from now on."""

    generation: int
    player_sha256: str


class WeightsRefused(msgspec.Struct, tag=True):
    """Report that the weights cannot be used. The worker continues with its current weights."""

    generation: int
    error: str


# From the daemon.


class PlayGames(msgspec.Struct, tag=True):
    first_id: int
    count: int


class NoMoreGames(msgspec.Struct, tag=True):
    """Command to write the finished games, and to stop."""


class Range(msgspec.Struct, tag=True):
    session: int
    path: str
    first_row: int


class NoRoom(msgspec.Struct, tag=True):
    """Command to drop a block: the disk is full, and the time to wait for space is over."""


class Weights(msgspec.Struct, tag=True):
    """The weights to play: the path of an immutable file, and its SHA-256 (hex)."""

    generation: int
    path: str
    sha256: str


class Confirmed(msgspec.Struct, tag=True):
    """Report that the block is committed. The worker can drop it."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """A worker's argument; ``settings`` are the recorder's, with the seed and all parameters in effect."""

    index: int
    daemon_pid: int
    socket_fd: int
    shared_fd: int
    settings: dict[str, Any]
    weights: Weights | None = None
    starts: str | None = None


FromWorker: TypeAlias = (
    Starts
    | Warns
    | Ready
    | Ask
    | Reserve
    | BlockWritten
    | WriteFailed
    | Forfeited
    | Bye
    | Crashed
    | WantWeights
    | WeightsTaken
    | WeightsRefused
)
FromDaemon: TypeAlias = PlayGames | NoMoreGames | Range | NoRoom | Confirmed | Weights

_encode = msgspec.msgpack.Encoder().encode
_decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
_decode_from_daemon: Callable[[bytes], FromDaemon] = msgspec.msgpack.Decoder(FromDaemon).decode


class ChannelClosed(ConnectionError):  # noqa: N818 - the end of a worker, which reports no error
    """The process at the other end of a channel has ended."""


class Channel:
    """Frames over a stream socket. ``receive_ready`` never waits; ``receive`` does."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()
        self.fileno, self.close = sock.fileno, sock.close

    def send(self, *messages: FromWorker | FromDaemon) -> None:
        """Send messages in one write, so that the other process wakes once; ChannelClosed if it has ended."""
        payloads = map(_encode, messages)
        data = b"".join(_LENGTH.pack(len(payload)) + payload for payload in payloads)
        try:
            self._socket.sendall(data)
        except ConnectionError as error:
            raise ChannelClosed(*error.args) from error

    def receive_ready(self) -> tuple[list[FromWorker], bool]:
        """Return the messages that have arrived from a worker, and whether its end is still open."""
        try:
            while len(data := self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)) == _RECEIVE_BYTES:
                self._received += data
            self._received += data
            is_open = bool(data)
        except OSError as error:
            is_open = isinstance(error, BlockingIOError)
        return [_decode_from_worker(frame) for frame in iter(self._take_frame, None)], is_open

    def receive(self) -> FromDaemon:
        """Wait for a message from the daemon; ChannelClosed if it has ended."""
        while (frame := self._take_frame()) is None:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except ConnectionError as error:
                raise ChannelClosed(*error.args) from error
            if not data:
                raise ChannelClosed("the daemon closed the connection")
            self._received += data
        return _decode_from_daemon(frame)

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


# Commands, in the order in which they can follow each other.
PLAY = 0
DRAIN = 1  # finish the game in progress, write, stop
HURRY = 2  # drop the game in progress, write, stop

LOADS = 1  # a value of ``busy``: loading a model

_SLOT = np.dtype(
    {
        "names": [
            "command",
            "heartbeat_ns",
            "steps",
            "games",
            "rows",  # worker: rows of finished games, written or not
            "rows_max",  # daemon: number of ``rows`` at which no more games may start
            "weights",  # daemon: the generation of weights to play
            "oldest",  # worker: the oldest generation of weights in its games
            "model_ns",  # worker: time spent in its batched player
            "played_ns",  # worker: time spent in play, the player included
            "flush",  # daemon: number of the last request to write finished games
            "flushed",  # worker: number of the last such request that it has fulfilled
            "busy",  # worker: an activity that can take longer than a slice of play
            "block_rows",  # daemon: rows of finished games at which a block is written
            "flush_s",  # daemon: longest time that finished games stay unwritten
        ],
        "formats": ["<u8"] * 14 + ["<f8"],
        "offsets": list(range(0, 15 * 8, 8)),
        "itemsize": 128,  # whole cache lines, so that writers do not slow each other down
    }
)


class Shared:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self.slots = np.frombuffer(self._map, dtype=_SLOT)

    @classmethod
    def create(cls, workers: int) -> Shared:
        """Allocate the shared memory. Only children to which the descriptor is passed inherit it."""
        fd = os.memfd_create("tape2048")
        os.ftruncate(fd, workers * _SLOT.itemsize)
        return cls(fd)

    def close(self) -> None:
        """Unmap the memory; ``slots`` keeps its last values."""
        self.slots = self.slots.copy()
        self._map.close()
        os.close(self.fd)
