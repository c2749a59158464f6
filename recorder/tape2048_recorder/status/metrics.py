"""Metrics for Prometheus: over HTTP, or in a file for node_exporter's textfile collector.

Each request gets the metrics of the last snapshot of the status file. The package prometheus-client (extra
``metrics``) is imported only where a configuration enables metrics.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from tape2048.errors import ConfigError, MissingPackageError, RecorderError
from tape2048_recorder.status.report import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.status.metrics_server import MetricsServer
    from tape2048_recorder.status.report import Status
    from tape2048_recorder.status.status_file import Snapshot

#: Between two writings of the textfile: Prometheus's usual interval.
TEXTFILE_INTERVAL_S = 15.0

#: A later start can succeed: the port was taken, or (at boot) the address was not there yet. With the exit
#: code of a wrong setting, a service would stay down.
_TRANSIENT = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}

Samples = list[tuple[dict[str, str], float]]


class _Metric(NamedTuple):
    """A metric: its name without ``tape2048_``, its help text, and its value in a status.

    Names follow Prometheus's conventions: a counter's name ends in ``_total``, with a plural unit before it.
    The value of a metric with a ``label`` is a table by that label's values.
    """

    name: str
    text: str
    value: Callable[[Status], float | Mapping[Any, float] | None]
    label: str = ""

    def samples(self, status: Status) -> Samples:
        value = self.value(status)
        if isinstance(value, Mapping):
            return [({self.label: str(key)}, float(each)) for key, each in value.items()]
        return [] if value is None else [({}, float(value))]


_METRICS = (
    _Metric(
        "state",
        "1 for the recorder's present state.",
        lambda s: {state: state == s.state for state in get_args(State)},
        "state",
    ),
    _Metric("steps_total", "Moves made, recorded or not.", lambda s: s.steps),
    _Metric("model_ratio", "Share of the workers' time in a batched player.", lambda s: s.model_share),
    _Metric("games_total", "Games finished.", lambda s: s.games),
    _Metric("recorded_rows_total", "Rows in confirmed blocks.", lambda s: s.recorded_rows),
    _Metric(
        "recorded_games_total",
        "Recorded games by their highest tile.",
        lambda s: s.by_highest_tile,
        "highest_tile",
    ),
    _Metric("reach_ratio", "Share of recorded games that reached a tile.", lambda s: s.reach, "tile"),
    _Metric("mean_score", "Mean score of recorded games.", lambda s: s.mean_score),
    _Metric("blocks_total", "Confirmed blocks.", lambda s: s.counts.blocks),
    _Metric("sessions_total", "Published sessions.", lambda s: s.counts.sessions),
    _Metric("session_bytes_total", "Bytes of published sessions.", lambda s: s.counts.session_bytes),
    _Metric("publish_seconds_total", "Time spent publishing sessions.", lambda s: s.counts.publish_s),
    _Metric("publish_last_seconds", "Time to publish the last session.", lambda s: s.counts.publish_last_s),
    _Metric("pauses_total", "Times that workers had to wait.", lambda s: s.counts.pauses, "reason"),
    _Metric("paused_seconds_total", "Time that workers had to wait.", lambda s: s.counts.paused_s),
    _Metric("worker_restarts_total", "Workers started again.", lambda s: s.counts.worker_restarts),
    _Metric("workers_silent_total", "Workers ended without progress.", lambda s: s.counts.workers_silent),
    _Metric("workers", "Configured workers.", lambda s: s.workers),
    _Metric("workers_ready", "Workers that play.", lambda s: s.workers_ready),
    _Metric("workers_overdue", "Workers without progress now.", lambda s: s.workers_overdue),
    _Metric("rows_waiting", "Rows that wait to be written.", lambda s: s.rows_waiting),
    _Metric("sessions_pending", "Closed sessions not yet published.", lambda s: s.sessions_pending),
    _Metric("open_session_rows", "Confirmed rows of the open session.", lambda s: s.session_rows),
    _Metric("rotate_rows", "Rows at which a session is published.", lambda s: s.rotate_steps),
    _Metric("disk_free_bytes", "Bytes free on the file system of out_dir.", lambda s: s.free_bytes),
    _Metric("disk_full_seconds", "Time to min_free_mb at the present rate.", lambda s: s.disk_full_s),
    _Metric("reloads_total", "Times that the configuration was reloaded.", lambda s: s.counts.reloads),
)


def families(snapshot: Snapshot) -> Iterator[Any]:
    """Yield prometheus-client's metric families of a snapshot, labelled with the recorder's instance."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    facts = {
        "version": snapshot.version,
        "player": str(snapshot.config["player"]),
        "model_tag": str(snapshot.config["model_tag"]),
        "config_sha256": snapshot.config_sha256,
    }
    started = datetime.fromisoformat(snapshot.started_at).timestamp()
    metrics: list[tuple[str, str, Samples]] = [
        ("build_info", "The version, player and configuration at work; always 1.", [(facts, 1.0)]),
        ("start_time_seconds", "When the recorder started, Unix time.", [({}, started)]),
        ("status_time_seconds", "When these values were taken, Unix time.", [({}, snapshot.written_at)]),
        *((metric.name, metric.text, metric.samples(snapshot.status)) for metric in _METRICS),
    ]
    for name, text, samples in metrics:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        labels = ["recorder", *(samples[0][0] if samples else ())]
        family = kind(f"tape2048_{name}", text, labels=labels)
        for found, value in samples:
            family.add_metric([snapshot.instance, *found.values()], value)
        yield family


class Metrics:
    """Exports the last snapshot to Prometheus, as far as a configuration enables it.

    Args:
        config: the recorder's configuration.
        warn: called when the textfile cannot be written.

    Raises:
        MissingPackageError: prometheus-client is not installed, and metrics are enabled.
        ConfigError: the address cannot be listened on.
        RecorderError: it cannot be listened on at this moment.
    """

    def __init__(self, config: RecorderConfig, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._warned = False
        self._snapshot: Snapshot | None = None
        self._next = 0.0
        self._textfile = config.metrics_textfile
        self._server: MetricsServer | None = None
        if config.metrics_listen is None and self._textfile is None:
            return
        if importlib.util.find_spec("prometheus_client") is None:
            raise MissingPackageError(
                "metrics need the package prometheus-client, which is not installed",
                hint="pip install 'tape2048[metrics]', or set metrics_listen and metrics_textfile to \"off\"",
            )
        from prometheus_client import CollectorRegistry

        self._registry = CollectorRegistry()
        self._registry.register(self)
        if config.metrics_listen is not None:
            self._listen(config.metrics_listen)

    def _listen(self, address: str) -> None:
        from tape2048_recorder.status.metrics_server import MetricsServer

        host, _, port = address.rpartition(":")
        try:
            self._server = MetricsServer(host.strip("[]"), int(port), self._registry)
        except (OSError, OverflowError) as error:
            transient = isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _TRANSIENT
            raise (RecorderError if transient else ConfigError)(
                f"metrics_listen: found {address!r}, which cannot be listened on "
                f"({getattr(error, 'strerror', None) or error})",
                hint='name a free port of an address of this machine, or set it to "off"',
            ) from error

    def collect(self) -> Iterator[Any]:
        """Collect the metrics; prometheus-client calls this in the server's thread."""
        return families(self._snapshot) if self._snapshot is not None else iter(())

    def show(self, snapshot: Snapshot) -> None:
        """Export this snapshot from now on, and write the textfile when it is due."""
        self._snapshot = snapshot
        now = time.monotonic()
        if self._textfile is not None and (now >= self._next or snapshot.status.state == "stopped"):
            self._next = now + TEXTFILE_INTERVAL_S
            self._write(Path(self._textfile))

    def _write(self, path: Path) -> None:
        from prometheus_client import generate_latest

        # node_exporter must not read a partial file; a crash leaves one under a name that it ignores.
        draft = path.with_name(f".{path.name}.next")
        try:
            draft.unlink(missing_ok=True)  # a link that somebody left there would be followed
            with draft.open("xb") as file:
                file.write(generate_latest(self._registry))
            draft.chmod(0o644)  # the collector is another user; the umask may deny it
            draft.replace(path)
            self._warned = False
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._warned:
                self._warn(f"metrics_textfile cannot be written: {error}")
            self._warned = True

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.close()
