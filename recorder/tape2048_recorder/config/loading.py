"""Loads the recorder's configuration, and keeps where each of its values came from.

A value given in more than one place counts in this order: flag, environment (``TAPE2048_<NAME>``), file,
default. The file is TOML, named by ``--config`` or ``TAPE2048_CONFIG``; no other place is searched. A name
that no setting has is refused wherever it stands, with the nearest one that exists.

A player and its parameters are one choice: a source that names a ``player`` also sets ``player_args``,
to what stands behind the name (``expectimax:depth=2``), to its ``[player_args]`` table if it is a file,
or to nothing. Parameters for one player never reach another that way.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.errors import ConfigError
from tape2048.settings.fields import (
    ENV_PREFIX,
    Origin,
    read_plain,
    read_value,
    refuse,
    settings_of,
    unknown_key,
)
from tape2048.settings.toml import read_toml
from tape2048_recorder.config.checks import STOP_TIMEOUT_ENV, check_together
from tape2048_recorder.config.retention import TABLE as RETENTION_TABLE
from tape2048_recorder.config.retention import read_retention
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_recorder.players.registry import REGISTRY, check_player, takes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The environment variable that names the file.
CONFIG_ENV = ENV_PREFIX + "CONFIG"

#: Variables with our prefix that are not settings. Any other one is refused as a misspelt setting.
OTHER_ENV = frozenset({CONFIG_ENV, STOP_TIMEOUT_ENV})


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, where each of its values was written, and the file that was read, if any."""

    config: RecorderConfig
    origins: dict[str, Origin]
    path: str | None = None


def load_config(flags: Mapping[str, object], env: Mapping[str, str], path: Path | None = None) -> Loaded:
    """The configuration that flags, environment and file make together.

    Args:
        flags: settings by name, as the command line gave them; None means not given.
        env: the environment.
        path: the file; None: the one that ``TAPE2048_CONFIG`` names, or none.

    Raises:
        UnknownKeyError: a setting that does not exist.
        ConfigError: a value that cannot be, a file that cannot be read, or settings that contradict.
    """
    if path is None and CONFIG_ENV in env:
        if not env[CONFIG_ENV]:
            raise ConfigError(
                f"{CONFIG_ENV}: found '', expected the path of a file", hint="unset it, or name a TOML file"
            )
        path = Path(env[CONFIG_ENV])
    settings = settings_of(RecorderConfig)
    values = {name: setting.default for name, setting in settings.items()}
    origins = {name: Origin("default") for name in settings}
    # From the weakest source to the strongest: each overwrites what the ones before it said.
    for source in (_from_file(path), _from_env(env), _from_flags(flags)):
        given = {name: (read_value(settings[name], raw, origin), origin) for name, raw, origin in source}
        for name, (value, origin) in _with_player(given).items():
            values[name], origins[name] = value, origin
    config = msgspec.convert(values, RecorderConfig)
    check_together(config, origins, env)
    return Loaded(config=config, origins=origins, path=None if path is None else str(path))


def effective(config: RecorderConfig) -> dict[str, Any]:
    """What a session records of its configuration: every setting, with the tag that it is named after."""
    return {**msgspec.to_builtins(config), "model_tag": config.tag}


def config_sha256(config: RecorderConfig) -> str:
    """SHA-256 (hex) of :func:`effective` as canonical JSON: sorted keys, no white space, UTF-8."""
    text = json.dumps(
        effective(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def split_player(text: str) -> tuple[str, dict[str, int | float | str | bool] | None]:
    """A player's name and the parameters behind it, None where none are.

    The parameters start behind the first colon that a ``key=`` follows, so that a name may hold colons. What
    is text to the player stays text: ``mix=16``, or a file called 007.

    >>> split_player("expectimax:depth=2")
    ('expectimax', {'depth': 2})
    >>> split_player("python:my.module:factory")
    ('python:my.module:factory', None)
    """
    match = re.fullmatch(r"(?P<name>.+?)(?::(?P<args>[A-Za-z_]\w*=.*))?", text)
    if match is None or match["args"] is None:
        return text, None
    args: dict[str, int | float | str | bool] = {}
    for item in match["args"].split(","):
        key, equals, value = item.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", key) or not equals or key in args:
            raise ValueError(item)
        args[key] = value if takes_text(match["name"], key) else read_plain(value)
    return match["name"], args


Given = tuple[str, object, Origin]


def _from_file(path: Path | None) -> Iterator[Given]:
    if path is None:
        return
    values, lines = read_toml(path)
    for name, raw in values.items():
        origin = Origin("file", f"{path}:{lines[name]}")
        if name == RETENTION_TABLE:  # for `tape2048 prune`; a mistake in it is said now, and not at night
            read_retention(raw, origin)
            continue
        if name not in settings_of(RecorderConfig):
            raise unknown_key(name, [*settings_of(RecorderConfig), RETENTION_TABLE], origin)
        yield name, raw, origin


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    by_variable = {
        setting.env: name for name, setting in settings_of(RecorderConfig).items() if setting.has_text
    }
    for variable, raw in env.items():
        if variable in by_variable:
            yield by_variable[variable], raw, Origin("env", variable)
        elif variable.startswith(ENV_PREFIX) and variable not in OTHER_ENV:
            raise unknown_key(variable, [*by_variable, *OTHER_ENV], Origin("env", variable))


def _from_flags(flags: Mapping[str, object]) -> Iterator[Given]:
    settings = settings_of(RecorderConfig)
    for name, raw in flags.items():
        if name not in settings:
            raise unknown_key(name, settings, Origin("flag"))
        if raw is not None:
            yield name, raw, Origin("flag", settings[name].flag)


def _with_player(given: dict[str, tuple[Any, Origin]]) -> dict[str, tuple[Any, Origin]]:
    """What one source gave, with the parameters split from the player's name."""
    if "player" not in given:
        return given
    text, origin = given["player"]
    try:
        name, args = split_player(text)
    except ValueError as error:
        problem = (
            f"found {text!r}, expected NAME:key=value,key=value ({error} is not a key=value, or comes twice)"
        )
        refuse(
            problem, "player", origin, hint="a value with a comma in it goes into the file's [player_args]"
        )
    if args is not None and "player_args" in given:
        where = given["player_args"][1].where
        problem = f"found parameters behind the name and in [player_args] ({where}), expected one of them"
        refuse(problem, "player", origin, hint="keep the table, and the bare name in `player`")
    return {"player_args": (args or {}, origin), **given, "player": (name, origin)}


def check_loaded_player(loaded: Loaded) -> None:
    """Refuse a player that does not exist or does not take these parameters, where it was written.

    Raises:
        UnknownKeyError: no such player or parameter; the nearest one is named.
        ConfigError: a parameter that cannot be.
    """
    try:
        check_player(loaded.config.player, loaded.config.player_args)
    except ConfigError as error:
        takes_args = loaded.config.player in REGISTRY and loaded.config.player_args
        origin = loaded.origins["player_args" if takes_args else "player"]
        path = origin.where if origin.kind == "file" else None
        named = f"{origin.where}: " if origin.kind in {"env", "flag"} else ""
        raise type(error)(f"{named}{error.message}", path=path, hint=error.hint) from error
