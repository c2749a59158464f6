"""What daemon and workers say to each other, over one socket for each worker.

A worker waits for its ranges, and plays on once a block is written. That it was confirmed, and the games that
it asked for in the same breath (either may come first), it hears before it says the next thing::

    worker                                   daemon
    Ready(player_sha256)      ->
    Ask(want)                 ->             Games(first_id, count, seed) | NoMoreGames
    Reserve(rows)             ->             Range(session, path, first_row) | NoRoom
      ... pwrite ...
    Written(range, crc, runs) ->             Confirmed
    WantWeights               ->             Weights(generation, path, sha256)
    WeightsTaken | WeightsRefused -> (nothing)
    WriteFailed(range, errno) ->             (nothing; the worker reserves again)
    Bye | Crashed(error)      ->

The daemon answers ``Reserve`` when there is room, which may be much later: that is how it pauses
workers. A frame is a ``u32`` length and a MessagePack object; no rows travel here, only the summaries
of runs (``RUN_DTYPE`` bytes).
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct("<I")
#: Below what malloc takes from the kernel anew each time.
_RECEIVE_BYTES = 1 << 16
FRAME_BYTES_MAX = 1 << 28

#: So many processes may end while they load a checkpoint; then it is one that cannot be loaded.
LOADERS_MAX = 3


class Ready(msgspec.Struct, tag=True):
    """The player is compiled and has made its first moves."""

    player_sha256: str
    start_s: float
    generation: int = 0


class Ask(msgspec.Struct, tag=True):
    """Give me this many games (fewer will do)."""

    want: int


class Reserve(msgspec.Struct, tag=True):
    """I hold this many rows of finished games, which this generation of weights played."""

    rows: int
    generation: int = 0


class Written(msgspec.Struct, tag=True):
    """The rows stand in the file; ``runs`` is ``RUN_DTYPE`` with ``first_row`` counted from the block."""

    session: int
    first_row: int
    rows: int
    crc32c: int
    runs: bytes


class WriteFailed(msgspec.Struct, tag=True):
    """The rows could not be written, and I still hold them."""

    session: int
    first_row: int
    errno: int


class Bye(msgspec.Struct, tag=True):
    """I am done. ``games_dropped`` counts games given up before their end, or that found no room."""

    games_dropped: int
    finished_dropped: int


class Crashed(msgspec.Struct, tag=True):
    """I cannot go on; ``starting``: I never could. ``kind`` is the error's class where it is one of ours."""

    error: str
    starting: bool
    kind: str = ""
    hint: str | None = None


class WantWeights(msgspec.Struct, tag=True):
    """Which weights are to play?"""


class WeightsTaken(msgspec.Struct, tag=True):
    """They are loaded; games that I begin from now on are theirs."""

    generation: int
    player_sha256: str


class WeightsRefused(msgspec.Struct, tag=True):
    """They cannot be used, and I go on with those that I have."""

    generation: int
    error: str


class Games(msgspec.Struct, tag=True):
    """Play the games with these ids."""

    first_id: int
    count: int


class NoMoreGames(msgspec.Struct, tag=True):
    """Write what is finished, and stop."""


class Range(msgspec.Struct, tag=True):
    """Write your block into this session at this row."""

    session: int
    path: str
    first_row: int


class NoRoom(msgspec.Struct, tag=True):
    """The disk is full and the time to wait is over: drop the block."""


class Weights(msgspec.Struct, tag=True):
    """These are to play: a file that nobody changes, and what its bytes sum up to."""

    generation: int
    path: str
    sha256: str


class Confirmed(msgspec.Struct, tag=True):
    """The block is in the journal; forget it."""


FromWorker: TypeAlias = (
    Ready
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
        """The socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, *messages: FromWorker | FromDaemon) -> None:
        """Send messages, together: the other side wakes once.

        Raises:
            OSError: the other side is gone.
        """
        payloads = map(_encode, messages)
        self._socket.sendall(b"".join(_LENGTH.pack(len(payload)) + payload for payload in payloads))

    def receive_ready(self) -> tuple[list[FromWorker], bool]:
        """Everything that has arrived from a worker, and whether its side is still open."""
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
        messages = []
        while (frame := self._take_frame()) is not None:
            messages.append(_decode_from_worker(frame))
        return messages, is_open

    def receive(self) -> FromDaemon:
        """Wait for one message from the daemon.

        Raises:
            EOFError: the daemon is gone.
        """
        while (frame := self._take_frame()) is None:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                message = "the daemon closed the connection"
                raise EOFError(message)
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
            message = f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are expected"
            raise msgspec.ValidationError(message)
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        frame = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return frame
