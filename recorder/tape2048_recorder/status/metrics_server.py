"""Metrics over HTTP, of which no visitor takes more than a connection's share of threads and descriptors.

A recorder without a free descriptor can neither publish nor start a worker. So at most
:data:`CONNECTIONS_MAX` connections are open, each in a thread: a further one ends the oldest that has not
sent its whole request.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CONNECTIONS_MAX = 16

#: Time limit of each read and write: a scrape sends its request in one piece.
PATIENCE_S = 10.0

#: Delay after a connection that could not be accepted, as no descriptor was free.
RETRY_S = 0.1


class _Handler(WSGIRequestHandler):
    server: MetricsServer

    def setup(self) -> None:
        self.request.settimeout(PATIENCE_S)
        super().setup()

    def parse_request(self) -> bool:
        """Read the request; return False where the connection was ended meanwhile."""
        return super().parse_request() and self.server.leave_idle(self.connection)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


class MetricsServer(ThreadingWSGIServer):
    """Serves a registry at an address until closed.

    Raises:
        OSError: the address cannot be resolved (``socket.gaierror``) or listened on.
        OverflowError: the port is above 65,535.
    """

    request_queue_size = 8 * CONNECTIONS_MAX  # a visitor that finds the queue full comes again after a second

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._mutex = threading.Lock()
        # Connections that have not sent their request, oldest first.
        self._idle: dict[socket.socket, None] = {}
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(RETRY_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, once one is free."""
        if not self._slots.acquire(blocking=False):
            self._end_oldest()
            self._slots.acquire()
        with self._mutex:
            self._idle[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and close it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        self.leave_idle(request)
        self._slots.release()

    def leave_idle(self, request: socket.socket) -> bool:
        """Keep a connection from being ended; return False if it was."""
        with self._mutex:
            return self._idle.pop(request, request) is None

    def _end_oldest(self) -> None:
        with self._mutex, contextlib.suppress(OSError):
            if (oldest := next(iter(self._idle), None)) is not None:
                del self._idle[oldest]
                oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a connection that breaks off is none of the recorder's business."""

    def close(self) -> None:
        """Stop listening, and end the connections that have not sent their request."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        while self._idle:
            self._end_oldest()
