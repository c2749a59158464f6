"""Metrics for Prometheus: over HTTP, or in a file for node_exporter's textfile collector.

The metrics are those of the last snapshot of the status file. The package prometheus-client (extra
``metrics``) is imported only if a configuration enables metrics.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import socket
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec

from tape2048.errors import ConfigError, MissingPackageError, RecorderError
from tape2048.players import player_text
from tape2048_recorder.status.server import BoundedServer
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
        file = config.metrics_textfile
        self._textfile = None if file is None else Path(file).absolute()
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
        self._snapshot = snapshot
        now = time.monotonic()
        if self._textfile is not None and (now >= self._next or snapshot.status.state == "stopped"):
            self._next = now + TEXTFILE_INTERVAL_S
            self._write(self._textfile)

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
        """Stop listening; open connections end within :data:`~tape2048_recorder.status.server.REQUEST_S`."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
