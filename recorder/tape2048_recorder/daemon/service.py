"""Whoever has to know how a recorder is doing, beside the person who looks at its log.

A reporter that passes everything on to another one and keeps three more informed: the service manager, the
status file, and metrics. Each follows from the status that the daemon makes twice a second; none can stop
the recording, nor can a view that has nowhere left to write.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from typing import TYPE_CHECKING, Self

import msgspec

from tape2048._version import __version__
from tape2048_recorder.config.loading import config_sha256, effective
from tape2048_recorder.recording.partial import utc_text
from tape2048_recorder.status.metrics import open_metrics
from tape2048_recorder.status.notify import Manager
from tape2048_recorder.status.report import Status
from tape2048_recorder.status.status_file import Process, Snapshot, StatusFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.status.report import Level, Reporter

__all__ = ["Service"]

#: Between two writings of the status file, when nothing happens that somebody waits for.
INTERVAL_S = 1.0


class Service:
    """A reporter for one life of a recorder.

    Args:
        view: where events and statuses are shown.
        config: the recorder's.
        path: of the status file.
        env: the environment (``NOTIFY_SOCKET``, ``WATCHDOG_USEC``).

    Raises:
        MissingPackageError: metrics are wanted, and their package is not there.
        ConfigError: metrics cannot be served where they are wanted, or no manager can be where it should be.
        RecorderError: metrics cannot be served there at this moment.
    """

    def __init__(self, view: Reporter, config: RecorderConfig, path: Path, env: Mapping[str, str]) -> None:
        self.manager = Manager(env)
        self._view = view
        self._config = config
        self._started_at = utc_text()
        self._process = Process.of(os.getpid())
        self._metrics = open_metrics(config, lambda text: self.event("warning", text))
        self._file = StatusFile(path)
        self._file_fails = False
        self._next = 0.0
        self._last = Status(
            state="starting",
            why=None,
            elapsed_s=0.0,
            steps_per_s=0.0,
            steps=0,
            games=0,
            recorded_rows=0,
            mean_score=None,
            reach={},
            session_rows=0,
            rotate_steps=config.rotate_steps,
            sessions=0,
            free_bytes=None,
            workers=config.worker_count,
            workers_ready=0,
        )

    def __enter__(self) -> Self:
        self._tell(self._last)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = str(error) or kind.__name__ if error is not None and kind is not None else None
        last = msgspec.structs.replace(
            self._last,
            state="stopped",
            ending=True,
            why=failure or self._last.why,
            error=failure,
            steps_per_s=0.0,
        )
        self._tell(last)
        self._file.close()
        self._metrics.close()
        self.manager.close()

    def event(self, level: Level, message: str) -> None:
        """Something happened once that a person should know."""
        with contextlib.suppress(OSError):  # a log that nobody reads, or that is full: tried again each time
            self._view.event(level, message)

    def status(self, make_status: Callable[[], Status]) -> None:
        """How things stand; called twice a second."""
        status = make_status()
        with contextlib.suppress(OSError):
            self._view.status(lambda: status)
        self.manager.status(status)
        before, self._last = self._last, status
        now = time.monotonic()
        changed = (before.state, before.ending, before.rotation) != (
            status.state,
            status.ending,
            status.rotation,
        )
        if changed or now >= self._next:
            self._next = now + INTERVAL_S
            self._tell(status)

    def changed(self, config: RecorderConfig) -> None:
        """These settings hold from now on."""
        self._config = config

    def _tell(self, status: Status) -> None:
        assert self._process is not None
        snapshot = Snapshot(
            version=__version__,
            process=self._process,
            host=platform.node(),
            instance=self._config.instance,
            started_at=self._started_at,
            config=effective(self._config),
            config_sha256=config_sha256(self._config),
            written_at=time.time(),
            monotonic_s=time.monotonic(),
            status=status,
        )
        self._metrics.show(snapshot)
        try:
            self._file.write(snapshot)
        except OSError as error:
            if not self._file_fails:
                self.event("warning", f"the status file cannot be written: {error}")
            self._file_fails = True
        else:
            self._file_fails = False
