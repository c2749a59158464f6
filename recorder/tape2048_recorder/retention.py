"""The table ``[retention]`` of the configuration file: limits on the sessions to keep.

An example::

    [retention]
    max_total_mb = 500_000
    keep_last = 3

    [retention.tags.greedy]  # further limits for the sessions of one model tag
    max_age_s = 86_400

The recorder removes nothing. ``tape2048 prune``, run by hand or by a timer, removes the oldest sessions
first. A tag's limits apply to its sessions in addition to the general limits. Its ``keep_last`` replaces the
general value. A session's age counts from its start, which is in its name, so copying a session does not
change it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec

from tape2048.base.settings import (
    NonNegative,
    Origin,
    Positive,
    Settings,
    about,
    as_table,
    from_file,
    from_flags,
    misplaced,
    read_given,
    read_table,
    refuse,
    settings_of,
)

#: The table with the general limits, and its subtable with the limits of tags.
RETENTION = "retention"
_TAGS = f"{RETENTION}.tags"

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class RetentionLimits(Settings, frozen=True, kw_only=True):
    """Limits on the sessions to keep. Without limits, all sessions stay."""

    removed = MappingProxyType({"keep_free_mb": "use max_total_mb"})

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
        about(
            "age at which a session is removed, counted from its start",
            why="the operator decides what to keep",
            none="off",
        ),
    ] = None
    max_sessions: Annotated[
        NonNegative | None,
        about("number of sessions to keep", why="the operator decides what to keep", none="off"),
    ] = None
    keep_last: Annotated[
        NonNegative,
        about(
            "number of newest sessions of each model tag that are never removed",
            why="a wrong limit never removes the last session",
        ),
    ] = 1

    @property
    def limited(self) -> bool:
        return (self.max_total_mb, self.max_age_s, self.max_sessions) != (None, None, None)


#: The table of each limit.
LIMITS = dict.fromkeys(settings_of(RetentionLimits), RETENTION)


class Retention(msgspec.Struct, frozen=True):
    general: RetentionLimits = RetentionLimits()
    tags: dict[str, RetentionLimits] = {}

    @property
    def limited(self) -> bool:
        return self.general.limited or any(limits.limited for limits in self.tags.values())

    def keep_last(self, tag: str) -> int:
        """Return the number of newest sessions of a tag that stay whatever the limits."""
        return self.tags.get(tag, self.general).keep_last


def read_retention(raw: object, origin: Origin, outer: Collection[str] = ()) -> Retention:
    """Read the limits in a file's ``[retention]`` table; ConfigError for an invalid limit.

    ``outer`` are the settings outside of the table, for the error of a misplaced setting.
    """
    table = dict(as_table(raw, RETENTION, origin))
    tags = as_table(table.pop("tags", {}), _TAGS, origin)
    general = read_table(RetentionLimits, table, RETENTION, origin, outer)
    by_tag = {}
    for tag, limits in tags.items():
        name = f"{_TAGS}.{tag}"
        if not _TAG.fullmatch(tag):
            hint = "Find the tags in the sessions' names, <start>_model=<tag>: tape2048 list."
            refuse(f"found {tag!r}, expected a model tag, as in a session's name", name, origin, hint=hint)
        own = {"keep_last": general.keep_last, **as_table(limits, name, origin)}
        by_tag[tag] = read_table(RetentionLimits, own, name, origin, outer)
    return Retention(general, by_tag)


def load_retention(flags: Mapping[str, object], path: Path | None = None) -> Retention:
    """Merge the limits of flags and of a file; flags take precedence."""
    retention = Retention()
    for name, raw, origin in [] if path is None else from_file(path):
        if name == RETENTION:
            retention = read_retention(raw, origin)
        elif name in LIMITS:
            raise misplaced(name, RETENTION, origin)
    source = from_flags(RetentionLimits, flags)
    given = {name: value for name, (value, _) in read_given(RetentionLimits, source).items()}
    general = msgspec.structs.replace(retention.general, **given)
    last = {name: value for name, value in given.items() if name == "keep_last"}
    return Retention(
        general, {tag: msgspec.structs.replace(limits, **last) for tag, limits in retention.tags.items()}
    )
