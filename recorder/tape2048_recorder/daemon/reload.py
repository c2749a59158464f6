"""Reading the configuration again while the recorder runs: what may change then, and what may not.

How workers play, and everything by which the directory is claimed, stays until the next start; how often they
write does not. A file that cannot be read, or does not hold, changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import TapeError
from tape2048.settings.fields import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.status.report import Reporter

__all__ = ["LIVE", "Reload", "merged"]

#: The settings that may change while it runs.
LIVE = frozenset(
    {
        "max_games",
        "max_steps",
        "max_wall_s",
        "max_ram_mb",
        "max_disk_mb",
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

#: Between two readings, however often they are asked for.
INTERVAL_S = 1.0


def merged(running: RecorderConfig, wanted: RecorderConfig) -> tuple[RecorderConfig, list[str], list[str]]:
    """The settings that hold after a reload.

    Args:
        running: those that hold now.
        wanted: those that were read.

    Returns:
        The running ones with the live ones of ``wanted``; the names of those that changed; of those that
        differ and have to wait for the next start.
    """
    differ = [name for name in settings_of(type(running)) if getattr(running, name) != getattr(wanted, name)]
    changed = [name for name in differ if name in LIVE]
    after = msgspec.structs.replace(running, **{name: getattr(wanted, name) for name in changed})
    return after, changed, [name for name in differ if name not in LIVE]


class Reload:
    """Reads the settings again when asked, at most once a second.

    Args:
        load: reads them, as the start did.
        reporter: told what changed, and what is refused.
        around: what is to hold while they are read (the service manager is told).
        changed: told of the settings that hold afterwards.
    """

    def __init__(
        self,
        load: Callable[[], RecorderConfig],
        reporter: Reporter,
        *,
        around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        changed: Callable[[RecorderConfig], None] = lambda _: None,
    ) -> None:
        self._load = load
        self._reporter = reporter
        self._around = around
        self._changed = changed
        self._asked = False
        self._next = float("-inf")

    def ask(self, *, ending: bool = False) -> None:
        """Somebody wants the settings read again; any number of times is as good as one.

        Args:
            ending: the recorder is about to end: no setting changes any more.
        """
        if ending:
            self._reporter.event("warning", "reload: nothing is changed: the recorder is ending")
        else:
            self._asked = True

    def due(self, now: float) -> bool:
        """Whether it is time to read them (``now``: ``time.monotonic``)."""
        return self._asked and now >= self._next

    def read(self, running: RecorderConfig) -> RecorderConfig:
        """The settings that hold from now on."""
        self._asked = False
        self._next = time.monotonic() + INTERVAL_S
        with self._around():
            try:
                wanted = self._load()
            except TapeError as error:
                hint = "" if error.hint is None else f" ({error.hint})"
                self._reporter.event("error", f"reload: nothing is changed: {error}{hint}")
                return running
            after, changed, refused = merged(running, wanted)
            self._changed(after)
            self._say(running, wanted, changed, refused)
        return after

    def _say(
        self, running: RecorderConfig, wanted: RecorderConfig, changed: list[str], refused: list[str]
    ) -> None:
        settings = settings_of(type(running))

        def shown(name: str, config: RecorderConfig) -> str:
            return settings[name].show(getattr(config, name))

        for name in refused:
            self._reporter.event(
                "warning",
                f"reload: {name} stays {shown(name, running)}; {shown(name, wanted)} needs a restart",
            )
        said = ", ".join(f"{name} = {shown(name, wanted)} (was {shown(name, running)})" for name in changed)
        self._reporter.event("info", f"reload: {said or 'nothing that may change now has changed'}")
