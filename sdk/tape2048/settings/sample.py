"""TOML files with an explanation of every setting: purpose, values, and reason of the default."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from tape2048.settings.fields import settings_of

if TYPE_CHECKING:
    import msgspec

    from tape2048.settings.fields import Setting


def settings_toml(config: msgspec.Struct) -> str:
    """Format a configuration as a file, every setting explained; tables come last, as TOML requires."""
    entries = []
    for setting in sorted(settings_of(type(config)).values(), key=lambda setting: setting.kind == "table"):
        value = getattr(config, setting.name)
        entries.append(f"{_about(setting, named=value != setting.default)}\n{_toml_line(setting, value)}")
    return "\n\n".join(entries) + "\n"


def sample_entry(setting: Setting) -> str:
    """Format a setting as its explanation and its default, commented out."""
    return f"{_about(setting)}\n#{_toml_line(setting, setting.default)}"


def _about(setting: Setting, *, named: bool = False) -> str:
    """Format the comment above a setting; ``named`` adds the default's value."""
    default = f"Default ({_toml_value(setting, setting.default)})" if named else "Default"
    what = f"{setting.text[0].upper()}{setting.text[1:]}"
    return comment(f"{what}.\nValues: {setting.expected}.\n{default}: {setting.why}.")


def comment(text: str) -> str:
    """Wrap prose as lines of a comment."""
    lines = [part for line in text.split("\n") for part in (textwrap.wrap(line, 98) or [""])]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _toml_line(setting: Setting, value: object) -> str:
    if isinstance(value, dict):
        entries = (
            f"{json.dumps(key)} = {json.dumps(each, ensure_ascii=False)}" for key, each in value.items()
        )
        return "\n".join([f"[{setting.name}]", *entries])
    return f"{setting.name} = {_toml_value(setting, value)}"


def _toml_value(setting: Setting, value: object) -> str:
    shown = setting.none if value is None else setting.show(value)
    if value is None or setting.kind == "str":
        return json.dumps(shown, ensure_ascii=False)  # a TOML string takes what a JSON string does
    return str(shown)
