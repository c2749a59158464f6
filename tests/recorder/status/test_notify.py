"""What the service manager hears, over real sockets of both kinds."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape2048.errors import ConfigError
from tape2048_recorder.status.notify import Manager, watchdog_is_on

from ..statuses import status_now

ROWS = 10_000_000


class Listener:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(60)

    def heard(self) -> dict[str, str]:
        """The next message; nothing that is not ``NAME=value`` may be in it."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def hears_nothing(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(60)
        return False


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    name = str(tmp_path / "n") if request.param == "path" else f"@tape2048-test-{os.getpid()}"
    listener = Listener(name)
    yield listener
    listener.socket.close()


@pytest.fixture
def manager(listener: Listener) -> Iterator[Manager]:
    manager = Manager({"NOTIFY_SOCKET": listener.address, "WATCHDOG_USEC": "1000000"})
    yield manager
    manager.close()


def status(**fields: Any) -> Any:
    return status_now(**{"workers": 2, "workers_ready": 2, "can_record": True, **fields})


def test_ready_once_a_block_can_be_written(listener: Listener, manager: Manager) -> None:
    manager.status(status(state="starting", workers_ready=1, can_record=False), ROWS)
    first = listener.heard()
    assert "READY" not in first
    assert first["EXTEND_TIMEOUT_USEC"] == "30000000"
    manager.status(status(), ROWS)
    assert listener.heard()["READY"] == "1"
    manager.status(status(), ROWS)
    again = listener.heard()
    assert not {"READY", "EXTEND_TIMEOUT_USEC", "STOPPING"} & again.keys()
    assert again["STATUS"] == "recording, 1,500,000 steps/s, session 40% of 10,000,000 rows, 2 of 2 workers"


def test_stopping_once_with_more_time(listener: Listener, manager: Manager) -> None:
    manager.status(status(), ROWS)
    listener.heard()
    for state in ("draining", "paused", "publishing"):
        manager.status(status(state=state, ending=True), ROWS)
    heard = [listener.heard() for _ in range(3)]
    assert [message.get("STOPPING") for message in heard] == ["1", None, None]
    assert all(message["EXTEND_TIMEOUT_USEC"] == "30000000" for message in heard)
    assert not any("READY" in message for message in heard)


def test_an_overdue_worker_stops_the_watchdog(listener: Listener, manager: Manager) -> None:
    manager.status(status(), ROWS)
    assert listener.heard()["WATCHDOG"] == "1"
    manager.status(status(workers_overdue=1), ROWS)
    assert "WATCHDOG" not in listener.heard()
    manager.status(status(), ROWS)
    assert listener.heard()["WATCHDOG"] == "1"


def test_reloading_has_the_moment_and_an_end(listener: Listener, manager: Manager) -> None:
    with manager.reloading():
        assert listener.hears_nothing()  # not before it is ready
    assert listener.hears_nothing()
    manager.status(status(), ROWS)
    listener.heard()
    before = time.monotonic_ns()
    with manager.reloading():
        heard = listener.heard()
        assert heard["RELOADING"] == "1"
        assert before // 1000 <= int(heard["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert listener.heard() == {"READY": "1"}


def test_a_manager_that_does_not_read(listener: Listener) -> None:
    manager = Manager({"NOTIFY_SOCKET": listener.address})
    for _ in range(2000):  # a socket holds some hundred
        manager.send(STATUS="x" * 1000)
    manager.close()


@pytest.mark.parametrize("address", ["", "relative", "/nobody/listens", "@nobody-listens", "/" + "x" * 106])
def test_a_socket_that_is_not_there_is_no_error(address: str) -> None:
    manager = Manager({"NOTIFY_SOCKET": address})
    manager.send(READY=1)
    manager.close()


@pytest.mark.parametrize("first", "/@")
def test_a_name_that_no_socket_can_have_is_refused(first: str) -> None:
    with pytest.raises(ConfigError, match="found a socket name of 109 bytes, expected at most 107"):
        Manager({"NOTIFY_SOCKET": first + "é" * 54})


@pytest.mark.parametrize(
    ("env", "on"),
    [
        ({}, False), ({"WATCHDOG_USEC": "30000000"}, True),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, True),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, False), ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False), ({"WATCHDOG_USEC": ""}, False),
    ],
)  # fmt: skip
def test_the_watchdog_means_this_process(env: dict[str, str], on: bool) -> None:
    assert watchdog_is_on(env, 7) is on
