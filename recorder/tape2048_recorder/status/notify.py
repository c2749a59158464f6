"""Notifications to the service manager, in systemd's protocol.

A notification is a datagram of ``NAME=value`` lines to the socket in ``NOTIFY_SOCKET``, a path or (with
``@``) an abstract name: sd_notify(3). Twice a second, the recorder sends

* ``READY=1`` the first time that every worker is ready and there is space for a block;
* ``STATUS=`` with the rate and the open session;
* ``STOPPING=1`` when draining starts;
* ``EXTEND_TIMEOUT_USEC=`` while it starts, drains or publishes;
* ``WATCHDOG=1`` unless a worker is overdue (:class:`~tape2048_recorder.daemon.supervisor.Watch`), so that
  systemd restarts a service with a worker that cannot be ended.
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

    from tape2048_recorder.status.status_report import Status

#: ``sun_path`` has 108 bytes, including the final zero of a path: unix(7).
ADDRESS_BYTES_MAX = 107

#: Time by which each notification extends the timeout of starting or stopping.
EXTEND_S = 30.0


class Manager:
    """The connection to the service manager, if the environment has ``NOTIFY_SOCKET``."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._watchdog = watchdog_is_on(env, os.getpid())
        self._is_ready = self._is_stopping = False
        self._socket: socket.socket | None = None
        address = env.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return
        if len(os.fsencode(address)) > ADDRESS_BYTES_MAX:
            raise ConfigError(
                f"NOTIFY_SOCKET: found a socket name of {len(os.fsencode(address))} bytes, expected at most "
                f"{ADDRESS_BYTES_MAX}: {address}",
                hint="Give the service manager a directory with a shorter path, or unset NOTIFY_SOCKET.",
            )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(0)  # a manager that does not read must not stop the recorder
        self._address = "\0" + address[1:] if address[0] == "@" else address

    def send(self, **fields: object) -> None:
        """Send these fields. Errors are ignored, so that recording continues."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                message = "\n".join(f"{name}={value}" for name, value in fields.items())
                self._socket.sendto(message.encode(), self._address)

    def starting(self, doing: str) -> None:
        """Report a long operation before the first status."""
        self.send(STATUS=doing, EXTEND_TIMEOUT_USEC=int(10e6 * EXTEND_S))

    def status(self, status: Status, rotate_steps: int) -> None:
        fields: dict[str, object] = {}
        if status.ending and not self._is_stopping:
            self._is_stopping = True
            fields["STOPPING"] = 1
        if status.can_record and not status.ending and not self._is_ready:
            self._is_ready = True
            fields["READY"] = 1
        if status.ending or not (self._is_ready or status.workers_overdue):
            fields["EXTEND_TIMEOUT_USEC"] = int(1e6 * EXTEND_S)
        if self._watchdog and not status.workers_overdue:
            fields["WATCHDOG"] = 1
        self.send(**fields, STATUS=status_line(status, rotate_steps))

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Report a reload of the settings for the time of the context, if ``READY=1`` was sent before."""
        if self._is_ready:
            self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        try:
            yield
        finally:
            if self._is_ready:
                self.send(READY=1)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def watchdog_is_on(env: Mapping[str, str], pid: int) -> bool:
    """Whether the manager expects ``WATCHDOG=1`` from this process (from any without ``WATCHDOG_PID``)."""
    period = env.get("WATCHDOG_USEC", "")
    return period.isdecimal() and int(period) > 0 and env.get("WATCHDOG_PID", str(pid)) == str(pid)


def status_line(status: Status, rotate_steps: int) -> str:
    why = "" if status.why is None else f" ({' '.join(status.why.split())})"
    session = f"session {status.session_rows / rotate_steps:.0%} of {rotate_steps:,} rows"
    workers = f"{status.workers_ready} of {counted(status.workers, 'worker')}"
    return f"{status.state}{why}, {status.steps_per_s:,.0f} steps/s, {session}, {workers}"
