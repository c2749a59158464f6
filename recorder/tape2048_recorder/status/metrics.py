"""What a recorder tells Prometheus: over HTTP, or in a file for node_exporter's textfile collector.

Metrics are made from the last snapshot of the status file whenever somebody asks. The package
prometheus-client (extra ``metrics``) is imported only where a configuration wants metrics.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args

from tape2048.errors import ConfigError, MissingPackageError, RecorderError
from tape2048_recorder.status.report import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.status.report import Status
    from tape2048_recorder.status.status_file import Snapshot

#: Between two writings of the textfile: as often as Prometheus usually looks.
TEXTFILE_INTERVAL_S = 15.0

#: What another start may find otherwise: the port is taken, or (at boot) the address is not there yet,
#: nor who resolves it. With the exit code of a wrong setting, a service would stay down.
_PASSING = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}

Samples = list[tuple[dict[str, str], float]]


class _Metric(NamedTuple):
    """A metric: its name without ``tape2048_``, what it is, and its samples in a snapshot.

    Prometheus's conventions: a counter's name ends in ``_total``, and units stand in the plural before that.
    """

    name: str
    text: str
    samples: Callable[[Snapshot], Samples]


def _one(value: Callable[[Status], float | None]) -> Callable[[Snapshot], Samples]:
    def samples(snapshot: Snapshot) -> Samples:
        found = value(snapshot.status)
        return [] if found is None else [({}, float(found))]

    return samples


def _labelled(label: str, values: Callable[[Status], Mapping[Any, float]]) -> Callable[[Snapshot], Samples]:
    return lambda snapshot: [
        ({label: str(key)}, float(value)) for key, value in values(snapshot.status).items()
    ]


def _build(snapshot: Snapshot) -> Samples:
    config = snapshot.config
    facts = {
        "version": snapshot.version,
        "player": str(config["player"]),
        "model_tag": str(config["model_tag"]),
        "config_sha256": snapshot.config_sha256,
    }
    return [(facts, 1.0)]


def _started(snapshot: Snapshot) -> Samples:
    return [({}, datetime.fromisoformat(snapshot.started_at).timestamp())]


def _states(status: Status) -> dict[str, float]:
    return {state: float(state == status.state) for state in get_args(State)}


_METRICS = (
    _Metric("build_info", "What plays and records; always 1.", _build),
    _Metric("state", "1 for the state that the recorder is in.", _labelled("state", _states)),
    _Metric("start_time_seconds", "When the recorder started, Unix time.", _started),
    _Metric(
        "status_time_seconds",
        "When these values were taken, Unix time.",
        lambda snapshot: [({}, snapshot.written_at)],
    ),
    _Metric("steps_total", "Moves made, recorded or not.", _one(lambda s: s.steps)),
    _Metric("model_ratio", "Share of the workers' time in a batched player.", _one(lambda s: s.model_share)),
    _Metric("games_total", "Games finished.", _one(lambda s: s.games)),
    _Metric("recorded_rows_total", "Rows in confirmed blocks.", _one(lambda s: s.recorded_rows)),
    _Metric(
        "recorded_games_total",
        "Recorded games by their highest tile.",
        _labelled("highest_tile", lambda s: s.by_highest_tile),
    ),
    _Metric(
        "reach_ratio", "Share of recorded games that reached a tile.", _labelled("tile", lambda s: s.reach)
    ),
    _Metric("mean_score", "Mean score of recorded games.", _one(lambda s: s.mean_score)),
    _Metric("blocks_total", "Confirmed blocks.", _one(lambda s: s.counts.blocks)),
    _Metric("sessions_total", "Published sessions.", _one(lambda s: s.counts.sessions)),
    _Metric("session_bytes_total", "Bytes of published sessions.", _one(lambda s: s.counts.session_bytes)),
    _Metric(
        "publish_seconds_total", "Time that publishing sessions took.", _one(lambda s: s.counts.publish_s)
    ),
    _Metric(
        "publish_last_seconds",
        "Time that publishing the last session took.",
        _one(lambda s: s.counts.publish_last_s),
    ),
    _Metric(
        "pauses_total",
        "Times that workers had to wait, by reason.",
        _labelled("reason", lambda s: s.counts.pauses),
    ),
    _Metric("paused_seconds_total", "Time that workers had to wait.", _one(lambda s: s.counts.paused_s)),
    _Metric(
        "worker_restarts_total",
        "Workers started in the place of others.",
        _one(lambda s: s.counts.worker_restarts),
    ),
    _Metric(
        "workers_silent_total",
        "Workers ended because nothing was heard of them.",
        _one(lambda s: s.counts.workers_silent),
    ),
    _Metric("workers", "Workers that there should be.", _one(lambda s: s.workers)),
    _Metric("workers_ready", "Workers that play.", _one(lambda s: s.workers_ready)),
    _Metric("workers_overdue", "Workers of which nothing is heard now.", _one(lambda s: s.workers_overdue)),
    _Metric("rows_waiting", "Rows that wait to be written.", _one(lambda s: s.rows_waiting)),
    _Metric(
        "sessions_pending", "Closed sessions that wait to be published.", _one(lambda s: s.sessions_pending)
    ),
    _Metric("open_session_rows", "Confirmed rows of the open session.", _one(lambda s: s.session_rows)),
    _Metric("rotate_rows", "Rows at which a session is published.", _one(lambda s: s.rotate_steps)),
    _Metric("disk_free_bytes", "Bytes free on the file system of out_dir.", _one(lambda s: s.free_bytes)),
    _Metric(
        "disk_full_seconds",
        "Time until min_free_mb is reached at the rate of now.",
        _one(lambda s: s.disk_full_s),
    ),
    _Metric(
        "reloads_total", "Times that the configuration was read again.", _one(lambda s: s.counts.reloads)
    ),
)


class Metrics(Protocol):
    """Where snapshots are shown to Prometheus."""

    def show(self, snapshot: Snapshot) -> None:
        """These values are the ones of now."""

    def close(self) -> None:
        """Nobody is served any more."""


def families(snapshot: Snapshot) -> Iterator[Any]:
    """The snapshot as prometheus-client's metric families, labelled with the recorder's instance."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric in _METRICS:
        kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
        samples = metric.samples(snapshot)
        labels = ["recorder", *(samples[0][0] if samples else ())]
        family = kind(f"tape2048_{metric.name}", metric.text, labels=labels)
        for found, value in samples:
            family.add_metric([snapshot.instance, *found.values()], value)
        yield family


class _Off:
    def show(self, snapshot: Snapshot) -> None:
        pass

    def close(self) -> None:
        pass


def open_metrics(config: RecorderConfig, warn: Callable[[str], None]) -> Metrics:
    """Metrics as a configuration wants them.

    Args:
        config: the recorder's.
        warn: told when the textfile cannot be written.

    Raises:
        MissingPackageError: prometheus-client is not installed, and metrics are wanted.
        ConfigError: nobody can listen where they are wanted.
        RecorderError: nobody can at this moment.
    """
    if config.metrics_listen is None and config.metrics_textfile is None:
        return _Off()
    if importlib.util.find_spec("prometheus_client") is None:
        raise MissingPackageError(
            "metrics need the package prometheus-client, which is not installed",
            hint="pip install 'tape2048[metrics]', or set metrics_listen and metrics_textfile to \"off\"",
        )
    return _Served(config, warn)


class _Served:
    """Serves the last snapshot, and writes it each :data:`TEXTFILE_INTERVAL_S`."""

    def __init__(self, config: RecorderConfig, warn: Callable[[str], None]) -> None:
        from prometheus_client import CollectorRegistry

        self._warn = warn
        self._warned = False
        self._snapshot: Snapshot | None = None
        self._next = 0.0
        self._textfile = config.metrics_textfile
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._server: Any = None
        if config.metrics_listen is not None:
            self._listen(config.metrics_listen)

    def _listen(self, address: str) -> None:
        from prometheus_client import start_http_server

        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), self._registry)
        except (OSError, OverflowError) as error:
            passing = isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _PASSING
            raise (RecorderError if passing else ConfigError)(
                f"metrics_listen: found {address!r}, where nobody can listen "
                f"({getattr(error, 'strerror', None) or error})",
                hint='name a free port of an address of this machine, or set it to "off"',
            ) from error

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client, in a thread of the server's."""
        return families(self._snapshot) if self._snapshot is not None else iter(())

    def show(self, snapshot: Snapshot) -> None:
        """Serve these values from now on."""
        self._snapshot = snapshot
        now = time.monotonic()
        if self._textfile is not None and (now >= self._next or snapshot.status.state == "stopped"):
            self._next = now + TEXTFILE_INTERVAL_S
            self._write(Path(self._textfile))

    def _write(self, path: Path) -> None:
        from prometheus_client import generate_latest

        # node_exporter must not see a half; what a crash leaves has no name that it reads.
        draft = path.with_name(f".{path.name}.next")
        try:
            draft.write_bytes(generate_latest(self._registry))
            draft.chmod(0o644)  # the collector is another user, whatever our own mask says
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            if not self._warned:
                self._warn(f"metrics_textfile cannot be written: {error}")
            self._warned = True
        else:
            self._warned = False

    def close(self) -> None:
        """End the server and its thread."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
