"""How long sessions are kept: the ``[retention]`` table of the recorder's configuration.

::

    [retention]
    max_total_mb = 500_000
    keep_last = 3

    [retention.tags.greedy]  # further limits for the sessions of one model tag
    max_age_s = 86_400

The recorder itself removes nothing: ``tape2048 prune`` does, by hand or by a timer. The limits of a tag
hold besides the general ones, over the sessions of that tag alone; its ``keep_last`` stands in the place
of the general one. The oldest go first. A session's age counts from its start, which its name says, so that
no copy and no touch makes it younger.
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

__all__ = ["TABLE", "TAGS", "Retention", "RetentionLimits", "load_retention", "read_retention"]

#: The table of the file, and the tables in it that hold limits of single tags.
TABLE = "retention"
TAGS = "tags"

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


class RetentionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may stay. Without any limit, everything does."""

    max_total_mb: Annotated[
        NonNegative | None,
        about(
            "megabytes (10**6 bytes) that all sessions together may take",
            why="what the sessions are worth is the operator's to say",
            none="off",
        ),
    ] = None
    max_age_s: Annotated[
        Positive | None,
        about("age, from its start, at which a session goes", why="as `max_total_mb`", none="off"),
    ] = None
    max_sessions: Annotated[
        NonNegative | None,
        about("sessions that may stand in the directory", why="as `max_total_mb`", none="off"),
    ] = None
    keep_free_mb: Annotated[
        Count | None,
        about(
            "megabytes that are to be free on the file system; choose more than the recorder's "
            "`min_free_mb`, below which it pauses",
            why="as `max_total_mb`",
            none="off",
        ),
    ] = None
    keep_last: Annotated[
        int,
        about(
            "newest sessions of each model tag that stay whatever the limits say",
            why="a wrong limit never takes the last session",
            ge=0,
        ),
    ] = 1

    @property
    def limited(self) -> bool:
        """Whether there is any limit at all."""
        limits = (self.max_total_mb, self.max_age_s, self.max_sessions, self.keep_free_mb)
        return any(limit is not None for limit in limits)


class Retention(msgspec.Struct, frozen=True):
    """The general limits, and those of single model tags."""

    general: RetentionLimits = RetentionLimits()
    tags: dict[str, RetentionLimits] = {}

    @property
    def limited(self) -> bool:
        """Whether there is any limit at all."""
        return self.general.limited or any(limits.limited for limits in self.tags.values())

    def keep_last(self, tag: str) -> int:
        """How many of the newest sessions of a tag stay in every case."""
        return self.tags.get(tag, self.general).keep_last


def read_retention(raw: object, origin: Origin) -> Retention:
    """The limits that a file's table says.

    Args:
        raw: the table, as the TOML parser gave it.
        origin: where it stands.

    Raises:
        UnknownKeyError: a limit that does not exist.
        ConfigError: a value that cannot be.
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
                f"{name}: found {tag!r}, expected a model tag, as it stands in a session's name",
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
                hint="what is free is so for all tags",
            )
        if "keep_last" not in table:
            limits = msgspec.structs.replace(limits, keep_last=general.keep_last)
        by_tag[tag] = limits
    return Retention(general, by_tag)


def load_retention(flags: Mapping[str, object], path: Path | None = None) -> Retention:
    """The limits that a file and the command line's flags make together; a flag counts before the file.

    Args:
        flags: general limits by name, as text; None means not given.
        path: the recorder's file, or None.

    Raises:
        ConfigError: a value that cannot be, or a file that cannot be read.
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
        keep_last = general.keep_last
        tags = {tag: msgspec.structs.replace(limits, keep_last=keep_last) for tag, limits in tags.items()}
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
