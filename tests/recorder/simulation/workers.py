"""Fake worker processes: they speak the protocol over fake sockets, write blocks, and misbehave when told."""

from __future__ import annotations

import errno
import math
import mmap
import os
import signal
import socket
import struct
import subprocess
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.session.layout import RUN_DTYPE, STEP_DTYPE, STEPS_HEADER_BYTES
from tape2048_recorder.ipc.protocol import (
    _SLOT,
    DRAIN,
    HURRY,
    Ask,
    BlockWritten,
    Bye,
    Confirmed,
    Crashed,
    FromDaemon,
    FromWorker,
    NoMoreGames,
    NoRoom,
    PlayGames,
    Range,
    Ready,
    Reserve,
    Starts,
    WorkerSpec,
    WriteFailed,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from random import Random

    from .life import Life

ROW_BYTES = STEP_DTYPE.itemsize
#: Beyond those of Linux, so that no real process is looked at or signalled.
FIRST_PID = 1 << 23

_LENGTH = struct.Struct("<I")
_RUN = struct.Struct("<QQQIIII")
_ROW = struct.Struct("<QI16x")
assert _RUN.size == RUN_DTYPE.itemsize

_decode = msgspec.msgpack.Decoder(FromDaemon).decode
_encode = msgspec.msgpack.Encoder().encode

#: What a worker can be told to do at one of the next points of its work.
MISHAPS = (
    "die", "exit", "hang", "late", "truncate", "garbage", "huge", "lie rows", "lie place", "lie session",
)  # fmt: skip
_LIES = ("lie rows", "lie place", "lie session")


#: The rows of the longest game.
GAME_ROWS_MAX = 6


def rows_of(game: int) -> int:
    """The rows of a game: its id decides everything about it."""
    return 1 + (game * 2654435761 >> 9) % GAME_ROWS_MAX


@lru_cache(maxsize=1 << 14)
def bytes_of(game: int) -> bytes:
    return b"".join(_ROW.pack(game, step) for step in range(rows_of(game)))


def run_of(game: int, seed: int, first_row: int) -> bytes:
    """A game's summary, as :data:`RUN_DTYPE`."""
    count = rows_of(game)
    return _RUN.pack(game, seed, first_row, count, count, 4 * count, 2 << game % 9)


class Block(NamedTuple):
    """A block that a worker has written: its games, as the recorder's seed and the id; and where."""

    games: list[tuple[int, int]]
    file: Any
    begin: int
    end: int


class _Died(Exception):  # noqa: N818 - no error
    """The worker ends with this exit status."""


class Socket:
    """One end of a pair; the other end is ``peer``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.peer: Socket | None = None
        self.received = bytearray()
        self.owner: Process | None = None  # told of what arrives
        self.open = True

    def fileno(self) -> int:
        return self.fd if self.open else -1

    def close(self) -> None:
        self.open = False
        if self.peer is not None and self.peer.owner is not None:
            self.peer.owner.resume()

    def sendall(self, data: bytes) -> None:
        if not self.peer.open:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self.peer.received += data
        if self.peer.owner is not None:
            self.peer.owner.on_data()

    def send(self, data: bytes) -> None:
        """As a worker does: it dies of a daemon that is gone."""
        if not self.peer.open:
            raise _Died(1)
        self.peer.received += data

    def recv(self, size: int, flags: int) -> bytes:
        assert flags == socket.MSG_DONTWAIT
        data = bytes(self.received[:size])
        del self.received[:size]
        if not data and self.peer.open:
            raise BlockingIOError
        return data

    @property
    def is_connected(self) -> bool:
        return self.peer is not None and self.peer.open

    @property
    def is_ready(self) -> bool:
        return bool(self.received) or self.peer is None or not self.peer.open


class Words:
    """A worker's slot, on a processor that shows the words of another one late and in any order.

    A message, a start and an end show all earlier words, as they do everywhere.
    """

    def __init__(self, slot: np.void, life: Life, random: Random) -> None:
        self._slot = slot
        self._life = life
        self._random = random
        self._unseen: dict[str, Any] = {}  # its words that the daemon does not see yet
        self._read: dict[str, Any] = {}  # the daemon's words as it saw them last

    def __getitem__(self, name: str) -> Any:
        if name in self._unseen:
            return self._unseen[name]
        if name not in self._read or self._random.random() < 0.3:
            self._read[name] = self._slot[name]
        return self._read[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._read.pop(name, None)
        self._unseen[name] = np.uint64(value)

    def show_some(self) -> None:
        """Show some of the words now, and the others a little later."""
        for name in [name for name in self._unseen if self._random.random() < 0.5]:
            self._slot[name] = self._unseen.pop(name)
        if self._unseen:
            self._life.later(self._random.choice((0.0, 0.01, 0.05)), self.show)

    def show(self) -> None:
        """Show all words."""
        for name, value in self._unseen.items():
            self._slot[name] = value
        self._unseen.clear()

    def synchronise(self) -> None:
        """Show all words, and see all words of the daemon."""
        self.show()
        self._read.clear()


class Process:
    """A worker, as ``subprocess.Popen`` starts it."""

    def __init__(self, life: Life, spec: WorkerSpec, theirs: Socket) -> None:
        self.life = life
        self.spec = spec
        self.seed = spec.settings["seed"]
        self.pid = life.next_pid()
        self.socket = theirs
        theirs.owner = self
        self.code: int | None = None
        self.mishap: str | None = None
        self._points_left = 0
        self._answers: deque[FromDaemon] = deque()
        self._waits = False  # for an answer
        self._random = life.random_of("worker", spec.index, life.starts)
        shared = mmap.mmap(spec.shared_fd, 0)
        slot = np.frombuffer(shared, dtype=_SLOT)[spec.index]
        self.slot = Words(slot, life, life.random_of("words", spec.index, life.starts))
        self.writing: Block | None = None  # the block to be confirmed
        self.hung_at = math.inf
        self.hangs_writing = False
        self.is_ended = self.has_played = False
        self._pace = self._random.choice((0.03, 0.1, 0.4))
        self._steps = self._run()
        self._more_games, self._asked, self._announced = True, False, False
        self._queue: deque[int] = deque()
        self._done: list[int] = []
        self._file: tuple[int, int] | None = None
        life.later(self._random.choice((0.0, 0.05, 0.3)), self._step)

    # What the daemon does with it.

    def kill(self) -> None:
        self._end(-signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        self.is_ended = True
        if number == signal.SIGABRT and (self.code is None) and self._random.random() < 0.8:
            self._end(-signal.SIGABRT)  # else it does not even notice that

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            assert timeout is not None, "the daemon waits for a process that nobody has killed"
            self.life.pass_time(timeout)
            raise subprocess.TimeoutExpired("worker", timeout)
        return self.code

    @property
    def hangs(self) -> bool:
        """Whether it makes no progress, and was not sent its end; before its first game it may be slow."""
        return self.code is None and self.hung_at < math.inf and self.has_played and not self.is_ended

    def on_data(self) -> None:
        """Take what the daemon has sent: from here on it has been said."""
        received = self.socket.received
        self.slot.synchronise()
        while len(received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received)
            message = _decode(bytes(received[_LENGTH.size : _LENGTH.size + length]))
            del received[: _LENGTH.size + length]
            if isinstance(message, PlayGames):
                self.life.truth.hand_out(self, message.first_id, message.count)
            elif isinstance(message, Confirmed):
                self.life.truth.confirm(self.life, self.writing)
            self._answers.append(message)
        self.resume()

    def resume(self) -> None:
        if self._waits:
            self._waits = False
            self.life.later(self._random.choice((0.0, 0.0, 0.002, 0.05)), self._step)

    # What it does.

    def _end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.slot.synchronise()
            self._steps.close()
            self._close_file()
            self.socket.owner = None
            self.socket.close()

    def _step(self) -> None:
        if self.code is not None:
            return
        system = self.life.system
        system.as_worker = True
        try:
            wait_s = next(self._steps)
        except StopIteration:
            self._end(0)
        except _Died as died:
            self._end(died.args[0])
        else:
            if wait_s is None:
                self._waits = not self._answers
                if self._answers:
                    self.life.later(0.0, self._step)
            else:
                self.life.later(wait_s, self._step)
        finally:
            system.as_worker = False
            self.slot.show_some()

    def _point(self, *, writing: bool = True) -> Generator[float | None, None, None]:
        """A point at which it may misbehave, ``writing`` with a range of rows in its hands."""
        if self.mishap is None:
            return
        if self._points_left:
            self._points_left -= 1
            return
        mishap = self.mishap
        if mishap in _LIES:
            return  # with the next block
        self.mishap = None
        if mishap == "late":
            yield self._random.uniform(0.1, 3.0)
        elif mishap == "hang":
            self.hung_at, self.hangs_writing = self.life.now, writing
            while True:
                yield 1e6
        else:
            if mishap == "truncate":
                self.socket.send(b"\x40\0\0\0\x80")
            elif mishap == "garbage":
                self.socket.send(b"\x03\0\0\0\xc1\xc1\xc1")
            elif mishap == "huge":
                self.socket.send(b"\xff\xff\xff\xff")
            raise _Died(1 if mishap == "exit" else -signal.SIGKILL)

    def misbehave(self, mishap: str) -> None:
        """Do so at one of the next points."""
        self.mishap = mishap
        self._points_left = self._random.randrange(6)

    def _send(self, *messages: FromWorker) -> None:
        self.slot.synchronise()
        payloads = map(_encode, messages)
        self.socket.send(b"".join(_LENGTH.pack(len(each)) + each for each in payloads))

    def _receive(self) -> Generator[float | None, None, FromDaemon]:
        while not self._answers:
            if not self.socket.is_connected:
                raise _Died(1)
            yield None
        return self._answers.popleft()

    def _settle(self) -> Generator[float | None, None, None]:
        while self._announced or self._asked:
            answer = yield from self._receive()
            if self._asked and isinstance(answer, PlayGames | NoMoreGames):
                self._asked = False
                self._take(answer)
            else:
                assert self._announced, answer
                assert isinstance(answer, Confirmed), answer
                self._announced = False
                self.writing = None

    def _answer_to(self, message: FromWorker) -> Generator[float | None, None, FromDaemon]:
        yield from self._settle()
        self._send(message)
        return (yield from self._receive())

    def _take(self, answer: FromDaemon) -> None:
        if isinstance(answer, PlayGames):
            self._queue.extend(range(answer.first_id, answer.first_id + answer.count))
        else:
            assert isinstance(answer, NoMoreGames), answer
            self._more_games = False

    def _beat(self) -> None:
        self.slot["heartbeat_ns"] = self.life.clock_ns()

    def _start(self) -> Generator[float | None, None, None]:
        random = self._random
        self._beat()
        if random.random() < 0.03:
            self.life.calm = False
            self._send(Crashed("out of luck", starting=True, kind="", hint=None))
            raise _Died(1)
        if random.random() < 0.1:
            self._send(Starts("compiling"))
            yield 0.5
        self._send(Ready("ab" * 32))

    def _run(self) -> Generator[float | None, None, None]:
        yield from self._start()
        random, slot = self._random, self.slot
        since: float | None = None
        dropped = in_play = 0
        while (command := int(slot["command"])) != HURRY:
            yield from self._point(writing=False)
            if command == DRAIN:
                self._more_games = False
                yield from self._settle()
                while len(self._queue) > (slot["rows"] < slot["rows_max"]):
                    self._queue.pop()
            if slot["flush"] != slot["flushed"]:
                asked = int(slot["flush"])
                dropped += yield from self._flush()
                yield from self._settle()
                since = None
                slot["flushed"] = asked
            if self._queue and slot["rows"] < slot["rows_max"]:
                yield self._pace
                self._done.append(self._queue.popleft())
                rows = np.uint64(rows_of(self._done[-1]))
                slot["steps"] += rows
                slot["rows"] += rows
                slot["games"] += np.uint64(1)
                self._beat()
                self.has_played = True
                since = self.life.now if since is None else since
                full = sum(map(rows_of, self._done)) >= slot["block_rows"]
                if full or self.life.now - since >= slot["flush_s"]:
                    dropped += yield from self._flush()
                    since = None
            elif self._asked:
                yield from self._settle()
            elif self._more_games:
                self._take((yield from self._answer_to(Ask(random.randint(1, 12)))))
            else:
                break
        in_play = len(self._queue)
        dropped += yield from self._flush()
        yield from self._settle()
        yield from self._point()
        self._send(Bye(in_play, dropped))
        yield random.choice((0.0, 0.0, 0.1, 2.0))

    def _flush(self) -> Generator[float | None, None, int]:
        """Write the finished games; how many found no room."""
        dropped = 0
        while self._done:
            dropped += yield from self._flush_some()
        return dropped

    def _flush_some(self) -> Generator[float | None, None, int]:
        """Write as many games as there is room for at once."""
        games, self._done = self._done, []
        while True:
            rows = sum(map(rows_of, games))
            data = b"".join(map(bytes_of, games))
            place = yield from self._answer_to(Reserve(rows, divisible=len(games) > 1))
            if isinstance(place, NoRoom):
                if len(games) > 1:
                    half = len(games) // 2
                    games, self._done = games[:half], games[half:] + self._done
                    continue
                left, self._done = self._done, []
                return 1 + len(left)
            assert isinstance(place, Range), place
            yield from self._point()
            try:
                file = yield from self._write(place, data)
            except OSError as error:
                self._send(WriteFailed(place.session, place.first_row, error.errno or 0))
                continue
            break
        runs, first = [], 0
        for game in games:
            runs.append(run_of(game, self.seed + game, first))
            first += rows_of(game)
        yield from self._point()
        message = BlockWritten(place.session, place.first_row, rows, crc32c(data), b"".join(runs))
        message = self._lied(message)
        seed = self.seed
        begin = STEPS_HEADER_BYTES + place.first_row * ROW_BYTES
        self.writing = Block([(seed, game) for game in games], file, begin, begin + len(data))
        self.life.truth.write(self.writing)
        self._asked = self._more_games and self._random.random() < 0.8
        self._announced = True
        self._send(message, *([Ask(self._random.randint(1, 12))] if self._asked else []))
        self._beat()
        yield from self._point()
        return 0

    def _lied(self, message: BlockWritten) -> BlockWritten:
        mishap = self.mishap
        if mishap not in _LIES:
            return message
        self.mishap = None
        if mishap == "lie rows":
            return msgspec.structs.replace(message, rows=message.rows + 1)
        if mishap == "lie place":
            return msgspec.structs.replace(message, first_row=message.first_row + 1)
        return msgspec.structs.replace(message, session=message.session + 7)

    def _write(self, place: Range, data: bytes) -> Generator[float | None, None, Any]:
        """Write a block in one or two pieces; the file it went to."""
        system = self.life.system
        if self._file is None or self._file[0] != place.session:
            self._close_file()
            self._file = place.session, system.open(place.path, os.O_WRONLY)
        fd = self._file[1]
        at = STEPS_HEADER_BYTES + place.first_row * ROW_BYTES
        half = self._random.randrange(len(data)) if self._random.random() < 0.3 else 0
        for piece, offset in ((data[:half], at), (data[half:], at + half)):
            done = 0
            while done < len(piece):
                done += system.pwrite(fd, piece[done:], offset + done)
            if half and offset == at:
                yield from self._point()
                yield 0.001
        return system.file_of(fd)

    def _close_file(self) -> None:
        if self._file is not None:
            self.life.system.close(self._file[1])
            self._file = None
