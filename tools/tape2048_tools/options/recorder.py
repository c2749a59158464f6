"""The recorder's settings as command line flags, made from the fields of its configuration."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tape2048.settings.fields import Setting, settings_of
from tape2048_recorder.config.loading import CONFIG_ENV, Loaded, check_loaded_player, load_config
from tape2048_recorder.config.schema import RecorderConfig

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load_from_command_line", "setting_option", "setting_options"]

F = TypeVar("F", bound="Callable[..., Any]")

#: A pattern that is a choice of plain words.
_CHOICES = re.compile(r"\^\(([a-z0-9]+(?:\|[a-z0-9]+)+)\)\$")

_METAVARS = {"s": "SECONDS", "mb": "MB", "count": "N"}


def setting_options(command: F) -> F:
    """Give a command ``--config`` and one flag for each setting of the recorder.

    The flags reach the command as keyword arguments, None where not given; values are text, which
    :func:`load_from_command_line` reads (click's own types would have other rules than the environment).
    """
    options = [
        setting_option(setting) for setting in settings_of(RecorderConfig).values() if setting.has_text
    ]
    config = click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        help=f"TOML file with settings; otherwise the one that {CONFIG_ENV} names.",
    )
    for option in reversed([config, *options]):  # click lists the one that was applied last first
        command = option(command)
    return command


def load_from_command_line(config_path: Path | None, flags: dict[str, object]) -> Loaded:
    """The configuration that a command's flags, the environment and the file make together.

    Raises:
        ConfigError: see :func:`tape2048_recorder.config.loading.load_config`.
    """
    loaded = load_config(flags, os.environ, config_path)
    check_loaded_player(loaded)
    return loaded


def setting_option(setting: Setting) -> Callable[[F], F]:
    """The flag of one setting; see :func:`setting_options`."""
    text = f"{setting.text[0].upper()}{setting.text[1:]}.".replace("`", "")
    default = setting.show(setting.default) if setting.default != "" else "empty"
    units = f"; units: {setting.units}" if setting.units else ""
    text = f"{text}  [default: {default}{units}]"
    if setting.kind == "bool":
        name = setting.flag.removeprefix("--")
        return click.option(f"--{name}/--no-{name}", setting.name, default=None, help=text)
    metavar = _METAVARS.get(setting.unit, "N" if setting.kind in ("int", "float") else "TEXT")
    if setting.pattern is not None and (choices := _CHOICES.fullmatch(setting.pattern)):
        metavar = f"[{choices[1]}]"
    return click.option(setting.flag, setting.name, metavar=metavar, help=text)
