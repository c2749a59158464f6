"""The settings as documents: the README's reference table and the sample file, both made from the Struct.

``python -m tape2048_tools.settings_docs`` in a checkout writes both anew (``make docs``); tests compare
what the checkout has with what these functions give.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.settings_fields import settings_of
from tape2048_recorder.config import RecorderConfig
from tape2048_recorder.retention import TABLE, RetentionLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from tape2048.settings_fields import Setting

__all__ = [
    "MARKERS",
    "RETENTION_MARKERS",
    "SAMPLE",
    "markdown_table",
    "retention_table",
    "sample_toml",
    "settings_toml",
    "with_table",
]

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
        _comment(_SAMPLE_HEAD),
        *map(_sample_entry, ordered),
        _retention_head(),
        *map(_sample_entry, limits),
    ]
    return "\n\n".join(parts) + "\n"


def _retention_head() -> str:
    return f"{_comment(_RETENTION_HEAD)}\n#[{TABLE}]"


def settings_toml(config: msgspec.Struct) -> str:
    """A file that says what this configuration is: every setting explained, at its value."""
    entries = []
    for setting in settings_of(type(config)).values():
        value = getattr(config, setting.name)
        entries.append(f"{_about(setting, named=value != setting.default)}\n{_toml_line(setting, value)}")
    return "\n\n".join(entries) + "\n"


def _sample_entry(setting: Setting) -> str:
    return f"{_about(setting)}\n#{_toml_line(setting, setting.default)}"


def _about(setting: Setting, *, named: bool = False) -> str:
    """The comment above a setting; its default is named where the value below is another one."""
    default = f"Default ({_toml_value(setting, setting.default)})" if named else "Default"
    what = f"{setting.text[0].upper()}{setting.text[1:]}"
    return _comment(f"{what}.\nValues: {setting.expected}.\n{default}: {setting.why}.")


def _comment(text: str) -> str:
    lines = [part for line in text.split("\n") for part in (textwrap.wrap(line, 98) or [""])]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _toml_line(setting: Setting, value: object) -> str:
    if setting.kind == "table":
        return f"[{setting.name}]"
    return f"{setting.name} = {_toml_value(setting, value)}"


def _toml_value(setting: Setting, value: object) -> str:
    shown = setting.none if value is None else setting.show(value)
    if value is None or setting.kind == "str":
        return json.dumps(shown, ensure_ascii=False)  # a TOML string takes what a JSON string does
    return str(shown)


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


def main() -> None:
    """Write the sample files and the tables in README.md of the checkout that is the working directory."""
    from tape2048_tools.critic_options import EXAMPLE, example_toml

    EXAMPLE.parent.mkdir(exist_ok=True)
    EXAMPLE.write_text(example_toml())
    readme = Path("README.md")
    readme.write_text(with_table(with_table(readme.read_text()), RETENTION_MARKERS, retention_table))
    SAMPLE.write_text(sample_toml())


if __name__ == "__main__":
    main()
