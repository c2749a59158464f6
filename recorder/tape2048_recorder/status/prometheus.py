"""Metrics for Prometheus: over HTTP, or in a file for node_exporter's textfile collector.

The metrics are those of the last snapshot of the status file. The package prometheus-client (extra
``metrics``) is imported only if a configuration enables metrics.

A recorder without a free descriptor can neither publish nor start a worker. Therefore the server has at most
:data:`CONNECTIONS_MAX` connections, each in a thread and for a limited time. A further connection ends the
oldest connection without a request, so that idle clients do not delay a scrape.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import select
import socket
import threading
import time
from collections import OrderedDict
from datetime import datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, get_args, get_type_hints
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec

from tape2048.errors import ConfigError, MissingPackageError, RecorderError
from tape2048.players import player_text
from tape2048_recorder.status.status_report import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_recorder.status.status_report import Snapshot

#: Interval of writing the textfile: Prometheus's usual scrape interval.
TEXTFILE_INTERVAL_S = 15.0

#: Errors after which a later start can succeed: the port is in use, or the address does not exist yet, at
#: boot. With the exit code of an invalid setting, systemd would not restart the service.
_TRANSIENT = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}

Samples = list[tuple[dict[str, str], float]]


def _metrics(record: msgspec.Struct) -> Iterator[tuple[str, str, Samples]]:
    for field, hint in get_type_hints(type(record), include_extras=True).items():
        value = getattr(record, field)
        if isinstance(value, msgspec.Struct):
            yield from _metrics(value)
        for metric in getattr(hint, "__metadata__", ()):
            if field == "state":
                value = {state: state == value for state in get_args(State)}
            table = value if isinstance(value, dict) else {} if value is None else {"": value}
            labels = (({metric.label: str(key)} if metric.label else {}, each) for key, each in table.items())
            yield metric.name, metric.text, [(label, float(each)) for label, each in labels]


def families(snapshot: Snapshot) -> Iterator[Any]:
    """Yield a snapshot as metric families of prometheus-client, labelled with the recorder's instance."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    facts = {
        "version": snapshot.version,
        "player": player_text(snapshot.config),
        "model_tag": str(snapshot.config["model_tag"]),
        "config_sha256": snapshot.config_sha256,
    }
    started = datetime.fromisoformat(snapshot.started_at).timestamp()
    metrics: list[tuple[str, str, Samples]] = [
        ("build_info", "The version, player and configuration in use; always 1.", [(facts, 1.0)]),
        ("start_time_seconds", "When the recorder started, Unix time.", [({}, started)]),
        ("status_time_seconds", "When these values were taken, Unix time.", [({}, snapshot.written_at)]),
        ("rotate_rows", "Rows at which a session is published.", [({}, snapshot.config["rotate_steps"])]),
        *_metrics(snapshot.status),
    ]
    for name, text, samples in metrics:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"tape2048_{name}", text, labels=["recorder", *(samples[0][0] if samples else ())])
        for found, value in samples:
            family.add_metric([snapshot.instance, *found.values()], value)
        yield family


class Metrics:
    """The export of the last snapshot to Prometheus, over HTTP, to a file, or not at all."""

    def __init__(self, config: RecorderConfig, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._warned = False
        self._snapshot: Snapshot | None = None
        self._next = 0.0
        self._textfile = config.metrics_textfile
        self._server: BoundedServer | None = None
        if config.metrics_listen is None and self._textfile is None:
            return
        if importlib.util.find_spec("prometheus_client") is None:
            raise MissingPackageError(
                "metrics need the package prometheus-client, which is not installed",
                hint="pip install 'tape2048[metrics]', or set metrics_listen and metrics_textfile to \"off\"",
            )
        from prometheus_client import CollectorRegistry, make_wsgi_app

        self._registry = CollectorRegistry()
        self._registry.register(self)
        if (address := config.metrics_listen) is None:
            return
        host, _, port = address.rpartition(":")
        try:
            self._server = BoundedServer(host.strip("[]"), int(port), make_wsgi_app(self._registry))
        except (OSError, OverflowError) as error:
            transient = isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _TRANSIENT
            raise (RecorderError if transient else ConfigError)(
                f"metrics_listen: found {address!r}, on which the recorder cannot listen "
                f"({getattr(error, 'strerror', None) or error})",
                hint='Choose an address of this machine and a free port, or set metrics_listen to "off".',
            ) from error
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics. prometheus-client calls this in the server's thread."""
        return families(self._snapshot) if self._snapshot is not None else iter(())

    def show(self, snapshot: Snapshot) -> None:
        """Export this snapshot from now on, and write the textfile if it is due."""
        self._snapshot = snapshot
        now = time.monotonic()
        if self._textfile is not None and (now >= self._next or snapshot.status.state == "stopped"):
            self._next = now + TEXTFILE_INTERVAL_S
            self._write(Path(self._textfile))

    def _write(self, path: Path) -> None:
        from prometheus_client import generate_latest

        # node_exporter must not read a partial file, and it ignores this name.
        draft = path.with_name(f".{path.name}.next")
        try:
            draft.unlink(missing_ok=True)  # never write through a symlink
            with draft.open("xb") as file:
                file.write(generate_latest(self._registry))
            draft.chmod(0o644)  # the collector runs as another user, whom the umask may exclude
            draft.replace(path)
            self._warned = False
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._warned:
                self._warn(f"metrics_textfile cannot be written: {error}")
            self._warned = True

    def close(self) -> None:
        """Stop listening; open connections end within :data:`REQUEST_S`."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


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
    """An HTTP server of a WSGI application with a bounded number of connections."""

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
        except BaseException:  # no thread could be started
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and close it."""
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
