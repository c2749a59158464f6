"""The settings as documents: the README's reference table and the sample file, both made from the Struct.

``make docs`` in a checkout writes both anew; tests compare what the checkout has with what these functions
give.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.settings.fields import settings_of
from tape2048.settings.sample import comment, sample_entry
from tape2048_recorder.config.retention import TABLE, RetentionLimits
from tape2048_recorder.config.schema import RecorderConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

#: The lines in README.md between which the table stands.
MARKERS = ("<!-- settings:begin -->", "<!-- settings:end -->")

#: ... and those between which the table of the ``[retention]`` limits stands.
RETENTION_MARKERS = ("<!-- retention:begin -->", "<!-- retention:end -->")

#: The sample file in a checkout.
SAMPLE = Path("systemd/recorder.toml")

_SAMPLE_HEAD = """\
Settings of the tape2048 recorder, each with its default.

Remove the # in front of a setting to change it. A flag (--rotate-steps 5M) counts before an
environment variable (TAPE2048_ROTATE_STEPS=5M), and that before this file; an unknown name is refused.
Use it with `tape2048 record --config FILE` or TAPE2048_CONFIG=FILE, and look at the result with
`tape2048 config show --origin`. Megabytes are 10**6 bytes."""

_RETENTION_HEAD = """\
How long sessions are kept: `tape2048 prune --config FILE` removes what these limits let go, the oldest
first; the recorder itself removes nothing. Limits for the sessions of one model tag go into
[retention.tags.TAG]."""


def markdown_table() -> str:
    """The reference table: setting, default, values, what it does, why the default."""
    return _table(RecorderConfig)


def retention_table() -> str:
    """The reference table of the limits in ``[retention]``."""
    return _table(RetentionLimits)


def _table(config: type[msgspec.Struct]) -> str:
    lines = ["| setting | default | values | what it does | why this default |", "|---|---|---|---|---|"]
    for setting in settings_of(config).values():
        default = setting.show(setting.default)
        cells = (f"`{setting.name}`", f"`{default}`", setting.expected, setting.text, setting.why)
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def sample_toml() -> str:
    """A file with every setting in a comment: what it does, why its default, and the default itself.

    Prose starts with ``# ``, a setting with ``#``: with these removed, the file means the same.
    """
    settings = settings_of(RecorderConfig).values()
    # A table ends the part of a TOML file where plain keys may stand.
    ordered = sorted(settings, key=lambda setting: setting.kind == "table")
    limits = settings_of(RetentionLimits).values()
    parts = [
        comment(_SAMPLE_HEAD),
        *map(sample_entry, ordered),
        _retention_head(),
        *map(sample_entry, limits),
    ]
    return "\n\n".join(parts) + "\n"


def _retention_head() -> str:
    return f"{comment(_RETENTION_HEAD)}\n#[{TABLE}]"


def with_table(
    readme: str, markers: tuple[str, str] = MARKERS, make_table: Callable[[], str] = markdown_table
) -> str:
    """The text of a README with the table between its markers made anew.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    begin, end = markers
    pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if readme.count(begin) != 1 or readme.count(end) != 1 or not pattern.search(readme):
        message = f"expected one {begin} with one {end} after it"
        raise ValueError(message)
    return pattern.sub(lambda _: f"{begin}\n{make_table()}{end}", readme)
