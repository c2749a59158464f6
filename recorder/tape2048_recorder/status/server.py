"""An HTTP server with a bounded number of connections, for metrics and for the viewer.

A recorder without a free descriptor can neither publish nor start a worker. Therefore the server has at most
:data:`CONNECTIONS_MAX` connections, each in a thread and for a limited time. A further connection ends the
oldest connection without a request, so that idle clients do not delay a scrape.

waitress 3.0.2 was tried instead, with ``asyncore_use_poll``, a ``channel_timeout`` of 10 s and a
``connection_limit`` of 128 or 900, against 2,000 idle connections and 1,000 that send a byte of a header per
second. With 1,024 descriptors, it answered no request within 30 s, and this server all (median 0.5 ms). The
slow connections were still open after 25 s; this server closes them after :data:`REQUEST_S`. Only with
descriptors for all connections did it answer, in 3 ms.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import OrderedDict
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS_MAX = 16

#: Time limits for a request and for its answer. A client on a busy machine can take seconds to send it.
REQUEST_S, ANSWER_S = 10.0, 60.0

#: Delay after a connection could not be accepted because no descriptor was free.
RETRY_S = 0.1


class _Handler(WSGIRequestHandler):
    server: BoundedServer

    def setup(self) -> None:
        self.request.settimeout(REQUEST_S)
        super().setup()

    def parse_request(self) -> bool:
        """Read the whole request. Its connection is not idle any more."""
        parsed = super().parse_request()
        self.server.idle.pop(self.request, None)
        self.request.settimeout(ANSWER_S)
        return parsed

    def get_environ(self) -> dict[str, Any]:
        """Return the WSGI environment, with a function that returns whether the client has disconnected."""
        return {**super().get_environ(), "is_gone": self._is_gone}

    def _is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.request, select.POLLRDHUP)
        return bool(poll.poll(0))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


class BoundedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    on_full: Callable[[], object] = staticmethod(lambda: None)  # called before an idle connection is ended

    def __init__(self, host: str, port: int, app: Any, connections_max: int = CONNECTIONS_MAX) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        self.request_queue_size = 8 * connections_max
        #: Connections without a request and their start times (monotonic), the oldest first.
        self.idle: OrderedDict[socket.socket, float] = OrderedDict()
        self._slots = threading.BoundedSemaphore(connections_max)
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(app)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; after an error, wait before the next attempt."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(RETRY_S)
            raise

    def service_actions(self) -> None:
        """End connections whose request takes too long."""
        for request, began in list(self.idle.items()):
            if time.monotonic() - began > REQUEST_S:
                self._end(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a separate thread; end the oldest idle connection if no thread is free."""
        if not self._slots.acquire(blocking=False):
            self.on_full()
            with contextlib.suppress(StopIteration):  # none is idle
                self._end(next(iter(self.idle)))
            self._slots.acquire()
        self.idle[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except Exception:  # no thread could be started; after a signal, the thread ends by itself
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def _end(self, request: socket.socket) -> None:
        self.idle.pop(request, None)
        with contextlib.suppress(OSError):  # the connection has just ended
            request.shutdown(socket.SHUT_RDWR)

    def _release(self, request: socket.socket) -> None:
        self.idle.pop(request, None)
        self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection."""
