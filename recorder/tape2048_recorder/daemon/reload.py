"""Reload of the configuration while the recorder runs.

The player's settings, and those that claim the directory, stay until the next start; limits and intervals may
change. A file that is unreadable or invalid changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import TapeError
from tape2048.settings.fields import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.status.report import Reporter

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
INTERVAL_S = 1.0


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
        self._next = now + INTERVAL_S
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
