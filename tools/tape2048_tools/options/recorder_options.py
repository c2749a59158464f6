"""The recorder's settings as command line flags, and as a sample file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tape2048.base.lazy import load_named
from tape2048.base.settings import Setting, comment, sample_entry, settings_of
from tape2048.errors import ConfigError, NameTakenError
from tape2048.files.durable import refuse_special, replace_file, write_file
from tape2048.files.opening import storage_error
from tape2048_recorder.players.options import REGISTRY
from tape2048_recorder.record_options import (
    CONFIG_ENV,
    Loaded,
    RecorderConfig,
    check_loaded_player,
    load_config,
    split_player,
)
from tape2048_recorder.retention import RETENTION, RetentionLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import msgspec

_METAVARS = {"s": "SECONDS", "mb": "MB", "count": "N"}

#: Settings whose values are files or directories.
_PATHS = frozenset({"out_dir", "model_dir"})


def complete_player(
    _context: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [
        CompletionItem(kind.name, help=kind.summary)
        for kind in REGISTRY.values()
        if kind.name.startswith(incomplete)
    ]


def flags(name: str) -> tuple[str, str]:
    """Return the flags that a setting has or had."""
    name = name.replace("_", "-")
    return f"--{name}", f"--no-{name}"


def instead(texts: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return a decorator that answers options of earlier versions with these texts."""

    def decorate(command: Any) -> Any:
        command.instead = texts
        return command

    return decorate


class _Flag(click.Option):
    def __init__(self, *args: Any, group: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


def flags_of(
    config: type[msgspec.Struct], takes: Callable[[str], bool] = lambda _: True
) -> Callable[[Any], Any]:
    """Return a decorator that adds the flags of the settings for which ``takes`` is true.

    The command gets the flags as keyword arguments, None if not given. Values are text, so that the loader of
    the configuration parses flags by the same rules as environment variables.
    """

    def decorate(command: Any) -> Any:
        settings = [one for one in settings_of(config).values() if one.has_text and takes(one.name)]
        for setting in reversed(settings):  # click lists the last one applied first
            command = _flag(setting)(command) if setting.flag else command
        names = {one.name: f"Set {one.name} in the file of --config." for one in settings if not one.flag}
        removed = {name: f"It was removed: {why}." for name, why in getattr(config, "removed", {}).items()}
        texts = {flag: text for name, text in {**names, **removed}.items() for flag in flags(name)}
        return instead(texts)(command)

    return decorate


def _flag(setting: Setting) -> Callable[[Any], Any]:
    if not setting.flag.startswith("--"):
        return click.argument(setting.name, required=False, metavar=f"[{setting.flag}]")
    text = f"{setting.text[0].upper()}{setting.text[1:]}.".replace("`", "")
    default = setting.show(setting.default) if setting.default != "" else "empty"
    units = f"; units: {setting.units}" if setting.units else ""
    text = f"{text}  [default: {default}{units}]"
    if setting.kind == "bool":
        name = setting.flag.removeprefix("--")
        names = f"--{name}/--no-{name}", setting.name
        return click.option(*names, cls=_Flag, group=setting.group, default=None, help=text)
    how: dict[str, Any] = {"metavar": _METAVARS.get(setting.unit, "N" if setting.kind != "str" else "TEXT")}
    if setting.choices:
        how = {"type": click.Choice(setting.choices)}
    elif setting.name in _PATHS:
        how["type"] = click.Path()
    elif setting.name == "player":
        how["shell_complete"] = complete_player
    return click.option(setting.flag, setting.name, cls=_Flag, group=setting.group, help=text, **how)


def setting_options(takes: Callable[[str], bool] = lambda _: True) -> Callable[[Any], Any]:
    text = f"TOML file with settings, or its address in a store.  [default: the file named by {CONFIG_ENV}]"
    config = click.option("--config", "config_path", metavar="PATH|URL", help=text)
    return lambda command: config(flags_of(RecorderConfig, takes)(command))


def load_from_command_line(config_path: str | None, flags: Mapping[str, object]) -> Loaded:
    """Load the configuration from a command's flags, the environment and a file, local or in a store."""
    path = config_path or os.environ.get(CONFIG_ENV)
    if path is not None and "://" in path:
        text = load_named("tape2048_recorder.shipping:read_settings")(path)
        loaded = load_config(flags, os.environ, path, text)
    else:
        loaded = load_config(flags, os.environ, None if config_path is None else Path(config_path))
    check_loaded_player(loaded)
    return loaded


def parse_player(text: str) -> tuple[str, dict[str, int | float | str | bool]]:
    try:
        name, args = split_player(text)
    except ValueError as error:
        raise ConfigError(f"found the player {text!r}, expected NAME:key=value,... ({error})") from error
    return name, args or {}


# Samples.

#: The sample file in a checkout.
SAMPLE = Path("systemd/recorder.toml")

_SAMPLE_HEAD = """\
Settings of the tape2048 recorder, each with its default.

Remove the # in front of a setting to change it. Flags (--rotate-steps 5M) override environment
variables (TAPE2048_ROTATE_STEPS=5M), and variables override this file. An unknown name is an
error. Use the file with `tape2048 record --config FILE` or TAPE2048_CONFIG=FILE, and check the
result with `tape2048 config show --origin`. Megabytes are 10**6 bytes."""

_RETENTION_HEAD = """\
Retention limits: `tape2048 prune --config FILE` removes the oldest sessions beyond these limits.
The recorder itself removes nothing. Limits for the sessions of one model tag go into
[retention.tags.TAG]."""


def write_samples(texts: Mapping[Path, str], *, force: bool) -> Iterator[Path]:
    """Write sample files, and yield their paths; NameTakenError for a file that exists, unless forced."""
    for path, text in texts.items():
        try:
            if force:
                refuse_special(path)
            (replace_file if force else write_file)(path, text.encode())
        except FileExistsError as error:
            raise NameTakenError(
                "the file exists. It was not replaced", path=path, hint="Pass --force to replace it."
            ) from error
        except OSError as error:
            raise storage_error(error, path, "writing the sample") from error
        yield path


def sample_toml() -> str:
    """Return a TOML file of comments: for each setting its effect, the reason for its default, its default.

    Prose starts with ``# ``, and a setting with ``#``. The file means the same with all settings uncommented.
    """
    # In TOML no plain key may follow a table.
    ordered = sorted(settings_of(RecorderConfig).values(), key=lambda setting: setting.kind == "table")
    retention = f"{comment(_RETENTION_HEAD)}\n#[{RETENTION}]"
    limits = settings_of(RetentionLimits).values()
    parts = [comment(_SAMPLE_HEAD), *map(sample_entry, ordered), retention, *map(sample_entry, limits)]
    return "\n\n".join(parts) + "\n"
