"""Retention of sessions: the ``[retention]`` table of the recorder's configuration.

::

    [retention]
    max_total_mb = 500_000
    keep_last = 3

    [retention.tags.greedy]  # further limits for the sessions of one model tag
    max_age_s = 86_400

The recorder itself removes nothing: ``tape2048 prune`` does, by hand or by a timer. A tag's limits apply to
its own sessions, in addition to the general ones; its ``keep_last`` replaces the general one. The oldest
sessions go first. A session's age counts from its start, which is in its name, so that no copy and no touch
makes it younger.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from tape2048.errors import ConfigError
from tape2048.settings.fields import (
    Count,
    NonNegative,
    Origin,
    Positive,
    about,
    read_value,
    settings_of,
    unknown_key,
)
from tape2048.settings.toml import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The table of the file, and the tables in it that hold limits of single tags.
TABLE = "retention"
TAGS = "tags"

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class RetentionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    """The general limits, and those of single model tags."""

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
    """Read the limits in a file's table.

    Raises:
        ConfigError: an unknown limit.
        ConfigError: an invalid value.
    """
    if not isinstance(raw, dict):
        _refuse_table(TABLE, raw, origin)
    tags = raw.get(TAGS, {})
    if not isinstance(tags, dict):
        _refuse_table(f"{TABLE}.{TAGS}", tags, origin)
    general = _limits(
        {name: value for name, value in raw.items() if name != TAGS}, TABLE, origin, more=(TAGS,)
    )
    by_tag = {}
    for tag, table in tags.items():
        name = f"{TABLE}.{TAGS}.{tag}"
        if not _TAG.fullmatch(tag):
            raise ConfigError(
                f"{name}: found {tag!r}, expected a model tag, as in a session's name",
                path=origin.where,
                hint="`tape2048 list` shows the names: <start>_model=<tag>",
            )
        if not isinstance(table, dict):
            _refuse_table(name, table, origin)
        limits = _limits(table, name, origin)
        if limits.keep_free_mb is not None:
            raise ConfigError(
                f"{name}.keep_free_mb: found a limit of one tag, expected it in [{TABLE}]",
                path=origin.where,
                hint="free space is common to all tags",
            )
        if "keep_last" not in table:
            limits = msgspec.structs.replace(limits, keep_last=general.keep_last)
        by_tag[tag] = limits
    return Retention(general, by_tag)


def load_retention(flags: Mapping[str, object], path: Path | None = None) -> Retention:
    """Merge the limits of a file and of the command line's flags; flags take precedence.

    Args:
        flags: general limits by name, as text; None means not given.
        path: the recorder's file, or None.

    Raises:
        ConfigError: an invalid value, or an unreadable file.
    """
    retention = Retention()
    if path is not None:
        values, lines = read_toml(path)
        if TABLE in values:
            retention = read_retention(values[TABLE], Origin("file", f"{path}:{lines[TABLE]}"))
    settings = settings_of(RetentionLimits)
    given = {
        name: read_value(settings[name], raw, Origin("flag", settings[name].flag))
        for name, raw in flags.items()
        if raw is not None
    }
    general = msgspec.structs.replace(retention.general, **given)
    tags = retention.tags
    if "keep_last" in given:
        last = general.keep_last
        tags = {tag: msgspec.structs.replace(limits, keep_last=last) for tag, limits in tags.items()}
    return Retention(general, tags)


def _limits(
    table: dict[str, Any], name: str, origin: Origin, *, more: tuple[str, ...] = ()
) -> RetentionLimits:
    settings = settings_of(RetentionLimits)
    values = {}
    for key, raw in table.items():
        if key not in settings:
            error = unknown_key(key, [*settings, *more], origin)
            raise type(error)(
                f"{name}: {error.message}", path=error.path, hint="the sample file explains every limit"
            )
        try:
            values[key] = read_value(settings[key], raw, origin)
        except ConfigError as error:
            raise type(error)(f"{name}.{error.message}", path=error.path, hint=error.hint) from None
    return RetentionLimits(**values)


def _refuse_table(name: str, raw: object, origin: Origin) -> NoReturn:
    raise ConfigError(
        f"{name}: found {raw!r}, expected a table of limits", path=origin.where, hint=f"write [{name}]"
    )
