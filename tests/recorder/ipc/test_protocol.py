"""Frames between daemon and workers: split, joined, cut off, too long, senseless."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from tape2048_recorder.ipc.protocol import (
    FRAME_BYTES_MAX,
    Ask,
    BlockWritten,
    Bye,
    Channel,
    ChannelClosed,
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
    Warns,
    WriteFailed,
)

from ..processes import PATIENCE_S, wait_until

FROM_WORKER: list[FromWorker] = [
    Ready("ab" * 32),
    Ask(8),
    Reserve(2**40),
    BlockWritten(3, 2**63, 100, 2**32 - 1, bytes(range(256))),
    WriteFailed(3, 0, 28),
    Bye(1, 2),
    Warns("é"),
    Crashed("Traceback ... é", starting=True),
]
FROM_DAEMON: list[FromDaemon] = [
    PlayGames(2**63, 17), NoMoreGames(), Range(1, "/out/.partial/é", 5), NoRoom(), Confirmed(),
]  # fmt: skip


class Pair:
    """A channel, and the bare socket of its other side."""

    def __init__(self) -> None:
        ours, self.other = socket.socketpair()
        self.channel = Channel(ours)

    def close(self) -> None:
        self.channel.close()
        self.other.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair()) as pair:
        yield pair


def sent(message: FromWorker | FromDaemon) -> bytes:
    """The bytes that a message is sent as."""
    with closing(Pair()) as pair:
        pair.channel.send(message)
        return pair.other.recv(1 << 20)


def test_a_frame_is_a_length_and_a_messagepack_object() -> None:
    assert sent(Ask(8)) == struct.pack("<I", 16) + b"\x82\xa4type\xa3Ask\xa4want\x08"


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda message: type(message).__name__)
def test_what_a_worker_says_arrives(pair: Pair, message: FromWorker) -> None:
    pair.other.sendall(sent(message))
    assert pair.channel.receive_ready() == ([message], True)
    assert pair.channel.receive_ready() == ([], True)


@pytest.mark.parametrize("message", FROM_DAEMON, ids=lambda message: type(message).__name__)
def test_what_the_daemon_says_arrives(pair: Pair, message: FromDaemon) -> None:
    pair.other.sendall(sent(message))
    assert pair.channel.receive() == message


def test_frames_that_arrive_byte_by_byte(pair: Pair) -> None:
    stream = b"".join(sent(message) for message in FROM_WORKER)
    received: list[FromWorker] = []
    for byte in stream:
        pair.other.sendall(bytes([byte]))
        messages, is_open = pair.channel.receive_ready()
        assert is_open
        received += messages
    assert received == FROM_WORKER


def test_a_block_with_as_many_runs_as_fit(pair: Pair) -> None:
    written = BlockWritten(1, 0, 10**6, 0, bytes(16_384 * 40))
    other = Channel(pair.other)
    thread = threading.Thread(target=other.send, args=(written,))
    thread.start()
    received: list[FromWorker] = []

    def arrived() -> list[FromWorker]:
        received.extend(pair.channel.receive_ready()[0])
        return received

    wait_until(arrived)
    thread.join(PATIENCE_S)
    assert received == [written]


def test_what_was_said_before_the_end_is_heard(pair: Pair) -> None:
    pair.other.sendall(sent(Ask(8)) + sent(Bye(0, 0)) + sent(Ask(9))[:-1])
    pair.other.close()
    assert pair.channel.receive_ready()[0] == [Ask(8), Bye(0, 0)]
    assert pair.channel.receive_ready() == ([], False)


def test_a_worker_hears_that_the_daemon_is_gone(pair: Pair) -> None:
    pair.other.sendall(sent(Confirmed())[:-1])
    pair.other.close()
    with pytest.raises(ChannelClosed, match="closed"):
        pair.channel.receive()


@pytest.mark.parametrize(
    "noise",
    [
        struct.pack("<I", FRAME_BYTES_MAX + 1),
        b"\xff" * 8,
        struct.pack("<I", 0),
        struct.pack("<I", 1) + b"\xc0",
        struct.pack("<I", 4) + b"\x82\xa4ty",
        sent(Confirmed()),  # the daemon's own words
        sent(Ask(8)).replace(b"\x08", b"\xc0"),
    ],
    ids=["too long", "noise", "empty", "null", "cut off within", "not a worker's", "wrong type"],
)
def test_what_makes_no_sense_is_an_error(pair: Pair, noise: bytes) -> None:
    pair.other.sendall(noise)
    with pytest.raises(msgspec.MsgspecError):
        pair.channel.receive_ready()
