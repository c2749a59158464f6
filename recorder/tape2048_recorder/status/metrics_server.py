"""Metrics over HTTP with a bounded number of threads and descriptors.

A recorder without a free descriptor can neither publish nor start a worker. So at most
:data:`CONNECTIONS_MAX` connections are open, each in a thread and for a limited time. Others wait in the
socket's queue.
"""

from __future__ import annotations

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
PATIENCE_S = 2.0

#: Delay after a connection that could not be accepted because no descriptor was free.
RETRY_S = 0.1


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        self.request.settimeout(PATIENCE_S)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


class MetricsServer(ThreadingWSGIServer):
    """Serves a registry at an address until closed."""

    request_queue_size = 8 * CONNECTIONS_MAX

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
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
        """Answer a connection in a separate thread, once a thread is free."""
        self._slots.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and close it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a connection that breaks off does not concern the recorder."""

    def close(self) -> None:
        """Stop listening; open connections end within :data:`PATIENCE_S`."""
        self.shutdown()
        self.server_close()
        self._thread.join()
