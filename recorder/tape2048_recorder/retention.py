"""The limits on the sessions to keep: the table ``[retention]`` of the configuration file.

The configuration file can have them::

    [retention]
    max_total_mb = 500_000
    keep_last = 3

    [retention.tags.greedy]  # further limits for the sessions of one model tag
    max_age_s = 86_400

The recorder itself removes nothing: ``tape2048 prune`` does, by hand or by a timer. A tag's limits apply to
its sessions, in addition to the general limits; its ``keep_last`` replaces the general value. The oldest
sessions go first. A session's age counts from its start, which is in its name: no copy or touch changes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from tape2048.settings.fields import (
    Count,
    NonNegative,
    Origin,
    Positive,
    Settings,
    about,
    as_table,
    from_file,
    from_flags,
    read_given,
    read_table,
    refuse,
)

#: The table of the file with the limits on sessions, and that table's table of limits by tag.
RETENTION = "retention"
_TAGS = f"{RETENTION}.tags"

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class RetentionLimits(Settings, frozen=True, kw_only=True):
    """Limits on the sessions to keep. Without any limit, all stay."""

    max_total_mb: Annotated[
        NonNegative | None,
        about(
            "megabytes (10**6 bytes) that all sessions together may take",
            why="the operator decides what to keep",
            none="off",
        ),
    ] = None
    max_age_s: Annotated[
        Positive | None,
        about("age, from its start, at which a session is removed", why="as `max_total_mb`", none="off"),
    ] = None
    max_sessions: Annotated[
        NonNegative | None,
        about("sessions that may be in the directory", why="as `max_total_mb`", none="off"),
    ] = None
    keep_free_mb: Annotated[
        Count | None,
        about(
            "megabytes to keep free on the file system; choose more than the recorder's `min_free_mb`, "
            "below which it pauses",
            why="as `max_total_mb`",
            none="off",
        ),
    ] = None
    keep_last: Annotated[
        NonNegative,
        about(
            "newest sessions of each model tag that stay regardless of the limits",
            why="a wrong limit never removes the last session",
        ),
    ] = 1

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        limits = (self.max_total_mb, self.max_age_s, self.max_sessions, self.keep_free_mb)
        return any(limit is not None for limit in limits)


class Retention(msgspec.Struct, frozen=True):
    """The general limits, and the limits of single model tags."""

    general: RetentionLimits = RetentionLimits()
    tags: dict[str, RetentionLimits] = {}

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return self.general.limited or any(limits.limited for limits in self.tags.values())

    def keep_last(self, tag: str) -> int:
        """Return how many of the newest sessions of a tag stay in every case."""
        return self.tags.get(tag, self.general).keep_last


def read_retention(raw: object, origin: Origin) -> Retention:
    """Read the limits in a file's ``[retention]`` table; ConfigError for invalid ones."""
    table = dict(as_table(raw, RETENTION, origin))
    tags = as_table(table.pop("tags", {}), _TAGS, origin)
    general = read_table(RetentionLimits, table, RETENTION, origin)
    by_tag = {}
    for tag, limits in tags.items():
        name = f"{_TAGS}.{tag}"
        if not _TAG.fullmatch(tag):
            hint = "`tape2048 list` shows the names: <start>_model=<tag>"
            refuse(f"found {tag!r}, expected a model tag, as in a session's name", name, origin, hint=hint)
        own = {"keep_last": general.keep_last, **as_table(limits, name, origin)}
        by_tag[tag] = read_table(RetentionLimits, own, name, origin)
        if by_tag[tag].keep_free_mb is not None:
            problem = f"found a limit of one tag, expected it in [{RETENTION}]"
            refuse(problem, f"{name}.keep_free_mb", origin, hint="All tags share the free space.")
    return Retention(general, by_tag)


def load_retention(flags: Mapping[str, object], path: Path | None = None) -> Retention:
    """Merge the limits of a file and of flags; flags take precedence."""
    retention = Retention()
    for name, raw, origin in [] if path is None else from_file(path):
        if name == RETENTION:
            retention = read_retention(raw, origin)
    source = from_flags(RetentionLimits, flags)
    given = {name: value for name, (value, _) in read_given(RetentionLimits, source).items()}
    general = msgspec.structs.replace(retention.general, **given)
    last = {name: value for name, value in given.items() if name == "keep_last"}
    return Retention(
        general, {tag: msgspec.structs.replace(limits, **last) for tag, limits in retention.tags.items()}
    )
