"""The service around a recording: its reporter, and the reload of its settings.

The reporter also updates the service manager, the status file and the metrics.
Each update follows from the status that the daemon makes twice a second; a failed one does not stop the
recording, nor does a view that can no longer write.

On a reload, limits and intervals may change. The player's settings, and those that claim the directory, stay
until the next start. A file that is unreadable or invalid changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Self

import msgspec

from tape2048._version import __version__
from tape2048.errors import StorageError, TapeError
from tape2048.settings.fields import settings_of
from tape2048_recorder.config import config_sha256, effective
from tape2048_recorder.recording.partial import utc_text
from tape2048_recorder.status.metrics import Metrics
from tape2048_recorder.status.notify import Manager
from tape2048_recorder.status.report import Process, Snapshot, Status, StatusFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from tape2048_recorder.config import RecorderConfig
    from tape2048_recorder.status.report import Level, Reporter

#: Interval of writing the status file, without a change of state.
STATUS_FILE_S = 1.0


class Service:
    """The reporter of one life of a recorder."""

    def __init__(
        self,
        view: Reporter,
        config: RecorderConfig,
        path: Path,
        env: Mapping[str, str],
        lost: Callable[[], StorageError | None] = lambda: None,
    ) -> None:
        self.manager = Manager(env)
        self._view = view
        self.config = config
        self._started_at = utc_text(time.time())
        process = Process.of(os.getpid())
        assert process is not None
        self._process = process
        self._metrics = Metrics(config, lambda text: self.event("warning", text))
        self._file = StatusFile(path)
        self._lost = lost
        self._file_fails = False
        self._next = 0.0
        self._last = Status(state="starting", workers=config.worker_count)

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
        if self._lost() is None:
            self._file.close()
        self._metrics.close()
        self.manager.close()

    def event(self, level: Level, message: str) -> None:
        """Pass an event to the view."""
        with contextlib.suppress(OSError):  # a closed or full log: tried again each time
            self._view.event(level, message)

    def status(self, make_status: Callable[[], Status]) -> None:
        """Pass the status on, and write its file when it is due."""
        status = make_status()
        with contextlib.suppress(OSError):
            self._view.status(lambda: status)
        self.manager.status(status, self.config.rotate_steps)
        before, self._last = self._last, status
        now = time.monotonic()
        key = attrgetter("state", "ending", "rotation")
        if key(before) != key(status) or now >= self._next:
            self._next = now + STATUS_FILE_S
            self._tell(status)

    def _tell(self, status: Status) -> None:
        snapshot = Snapshot(
            version=__version__,
            process=self._process,
            host=platform.node(),
            instance=self.config.instance,
            started_at=self._started_at,
            config=effective(self.config),
            config_sha256=config_sha256(self.config),
            written_at=time.time(),
            monotonic_s=time.monotonic(),
            status=status,
        )
        self._metrics.show(snapshot)
        if self._lost() is not None:
            return
        try:
            self._file.write(snapshot)
        except (OSError, StorageError) as error:
            if not self._file_fails:
                self.event("warning", f"the status file cannot be written: {error}")
            self._file_fails = True
        else:
            self._file_fails = False


#: The settings that may change while the recorder runs.
LIVE = frozenset(
    {
        "max_games",
        "max_steps",
        "max_wall_s",
        "max_ram_mb",
        "max_disk_mb",
        "spool_max_mb",
        "min_free_mb",
        "rotate_steps",
        "rotate_s",
        "flush_s",
        "block_rows",
        "drain_timeout_s",
        "worker_silence_s",
        "log_interval_s",
        "log_level",
    }
)

#: Shortest time between two reloads.
RELOAD_S = 1.0


def merged(running: RecorderConfig, wanted: RecorderConfig) -> tuple[RecorderConfig, list[str], list[str]]:
    """Merge the live settings of ``wanted`` into the running ones."""
    differ = [name for name in settings_of(type(running)) if getattr(running, name) != getattr(wanted, name)]
    changed = [name for name in differ if name in LIVE]
    after = msgspec.structs.replace(running, **{name: getattr(wanted, name) for name in changed})
    return after, changed, [name for name in differ if name not in LIVE]


@dataclasses.dataclass(eq=False)
class Reload:
    """Reads the settings again on request, at most once a second."""

    load: Callable[[], RecorderConfig]
    reporter: Reporter
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    changed: Callable[[RecorderConfig], None] = lambda _: None

    def __post_init__(self) -> None:
        self._asked = False
        self._next = float("-inf")

    def ask(self, *, ending: bool = False) -> None:
        """Request a reload; a recorder that is ``ending`` refuses it."""
        if ending:
            self.reporter.event("warning", "reload: nothing is changed: the recorder is ending")
        else:
            self._asked = True

    def due(self, now: float) -> bool:
        """Whether a reload is due (``now``: ``time.monotonic``)."""
        return self._asked and now >= self._next

    def read(self, running: RecorderConfig, now: float) -> RecorderConfig:
        """Read the settings; return those in effect from now on."""
        self._asked = False
        self._next = now + RELOAD_S
        settings = settings_of(type(running))

        def shown(name: str, config: RecorderConfig) -> str:
            return settings[name].show(getattr(config, name))

        with self.around():
            try:
                wanted = self.load()
            except TapeError as error:
                hint = "" if error.hint is None else f" ({error.hint})"
                self.reporter.event("error", f"reload: nothing is changed: {error}{hint}")
                return running
            after, changed, refused = merged(running, wanted)
            self.changed(after)
            for name in refused:
                stays = f"reload: {name} stays {shown(name, running)}"
                self.reporter.event("warning", f"{stays}; {shown(name, wanted)} needs a restart")
            news = [f"{name} = {shown(name, wanted)} (was {shown(name, running)})" for name in changed]
            self.reporter.event(
                "info", f"reload: {', '.join(news) or 'nothing that may change now has changed'}"
            )
        return after
