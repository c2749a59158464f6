"""What the recorder tells the service manager: systemd's notification protocol, spoken directly.

The protocol is one datagram of ``NAME=value`` lines to the socket that ``NOTIFY_SOCKET`` names, a path or
(with ``@``) an abstract name: sd_notify(3). What is said follows from the recorder's status, which comes
twice a second:

* ``READY=1`` once every worker is ready and a block could be written;
* ``STATUS=`` with the rate and the open session, ``STOPPING=1`` when draining begins;
* ``EXTEND_TIMEOUT_USEC=`` each time while starting, draining or publishing goes on;
* ``WATCHDOG=1`` unless a worker is overdue (:mod:`.watch`): a service of which a part has stopped for good is
  started again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from tape2048.base.text import counted
from tape2048.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tape2048_recorder.status.report import Status

__all__ = ["EXTEND_S", "Manager", "Notifier", "status_line", "watchdog_is_on"]

#: ``sun_path`` has 108 bytes, one of them the zero that ends a path: unix(7). An abstract name may take all;
#: nobody has one as long.
ADDRESS_BYTES_MAX = 107

#: How much longer starting or stopping may take, counted from each time that it is asked for.
EXTEND_S = 30.0


class Notifier:
    """Sends to the socket of ``NOTIFY_SOCKET``; without one, nothing.

    Args:
        env: the environment.

    Raises:
        ConfigError: no socket can have this name; the manager would wait for a recorder that says nothing.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        address = env.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if not address.startswith(("/", "@")):
            return
        if len(os.fsencode(address)) > ADDRESS_BYTES_MAX:
            raise ConfigError(
                f"NOTIFY_SOCKET: found a name of {len(os.fsencode(address))} bytes, expected at most "
                f"{ADDRESS_BYTES_MAX}, which is the longest that a socket can have: {address}",
                hint="give the service manager a directory with a shorter path, or unset NOTIFY_SOCKET",
            )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(0)  # a manager that does not read must not stop the recorder
        self._address = "\0" + address[1:] if address[0] == "@" else address

    def send(self, **fields: object) -> None:
        """Send these fields; a manager that is gone is no reason to stop recording."""
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            self._socket.sendto(
                "\n".join(f"{name}={value}" for name, value in fields.items()).encode(), self._address
            )

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()


def watchdog_is_on(env: Mapping[str, str], pid: int) -> bool:
    """Whether the manager waits for ``WATCHDOG=1`` from this process.

    Args:
        env: the environment; ``WATCHDOG_PID`` names whom it means, everybody where it is not set.
        pid: of this process.
    """
    period = env.get("WATCHDOG_USEC", "")
    return period.isdecimal() and int(period) > 0 and env.get("WATCHDOG_PID", str(pid)) == str(pid)


def status_line(status: Status) -> str:
    """How things stand, in the line that ``systemctl status`` shows."""
    facts = [status.state if status.why is None else f"{status.state} ({' '.join(status.why.split())})"]
    facts.append(f"{status.steps_per_s:,.0f} steps/s")
    facts.append(f"session {status.session_rows / status.rotate_steps:.0%} of {status.rotate_steps:,} rows")
    facts.append(f"{status.workers_ready} of {counted(status.workers, 'worker')}")
    return ", ".join(facts)


class Manager:
    """Keeps the service manager informed.

    Args:
        env: the environment.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._notifier = Notifier(env)
        self._watchdog = watchdog_is_on(env, os.getpid())
        self._is_ready = False
        self._is_stopping = False

    def starting(self, doing: str) -> None:
        """Something before the first status takes its time."""
        self._notifier.send(STATUS=doing, EXTEND_TIMEOUT_USEC=_microseconds(10 * EXTEND_S))

    def status(self, status: Status) -> None:
        """Tell what follows from a status."""
        fields: dict[str, object] = {}
        stopping = status.ending
        if stopping and not self._is_stopping:
            self._is_stopping = True
            fields["STOPPING"] = 1
        if status.can_record and not stopping and not self._is_ready:
            self._is_ready = True
            fields["READY"] = 1
        if stopping or not (self._is_ready or status.workers_overdue):
            fields["EXTEND_TIMEOUT_USEC"] = _microseconds(EXTEND_S)
        if self._watchdog and not status.workers_overdue:
            fields["WATCHDOG"] = 1
        self._notifier.send(**fields, STATUS=status_line(status))

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """While the settings are read again; before it is ready, a manager does not want to hear of that."""
        if self._is_ready:
            self._notifier.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        try:
            yield
        finally:
            if self._is_ready:
                self._notifier.send(READY=1)

    def close(self) -> None:
        """Let go of the socket."""
        self._notifier.close()


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
