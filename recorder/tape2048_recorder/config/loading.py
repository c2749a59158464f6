"""Loads and checks the recorder's configuration, and keeps the origin of each value.

Precedence: flag, environment (``TAPE2048_<NAME>``), file, default. The file is TOML, named by ``--config`` or
``TAPE2048_CONFIG``; no other place is searched. An unknown name is an error in every source, which names the
nearest known setting.

A player and its parameters are one choice: a source that sets ``player`` also sets ``player_args``, to the
parameters behind the name (``expectimax:depth=2``), to its ``[player_args]`` table if it is a file, or to
nothing. Parameters for one player never reach another that way.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import counted
from tape2048.errors import ConfigError
from tape2048.session.locks import READERS_LOCK
from tape2048.settings.fields import (
    DEFAULT,
    ENV_PREFIX,
    Origin,
    Setting,
    from_file,
    from_flags,
    located,
    read_given,
    read_plain,
    read_value,
    refuse,
    settings_of,
    unknown_key,
)
from tape2048_recorder.config.retention import TABLE as RETENTION_TABLE, read_retention
from tape2048_recorder.config.schema import RecorderConfig
from tape2048_recorder.players.batch import is_batched
from tape2048_recorder.players.registry import REGISTRY, check_player, takes_text
from tape2048_recorder.players.sampling import read_sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tape2048.settings.fields import Given

#: The environment variable that names the file.
CONFIG_ENV = ENV_PREFIX + "CONFIG"

#: The environment variable in which a unit passes its ``TimeoutStopSec``, in seconds.
STOP_TIMEOUT_ENV = ENV_PREFIX + "STOP_TIMEOUT_S"

#: Variables with our prefix that are not settings. Any other variable with it is a misspelt setting.
OTHER_ENV = frozenset({CONFIG_ENV, STOP_TIMEOUT_ENV})

#: Bytes of a row of ``steps.npy`` with its action. A literal: the layout's module loads NumPy.
ROW_BYTES_MAX = 29

#: Bytes of a row in the buffer of a compiled player: its board and its action.
BUFFERED_BYTES_MAX = 9

#: Bytes of a session on tape for each row: its step, and its share of an anchor.
TAPE_ROW_BYTES = 1.5


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, the origin of each of its values, and the file that was read, if any."""

    config: RecorderConfig
    origins: dict[str, Origin]
    path: str | None = None


def load_config(flags: Mapping[str, object], env: Mapping[str, str], path: Path | None = None) -> Loaded:
    """Merge flags, environment and file into a configuration."""
    loaded = merge_sources(flags, env, path)
    with located(loaded.origins["sampling"]):
        read_sampling(loaded.config.sampling)
    for name, problem, hint in _conflicts(loaded.config, loaded.origins, env):
        refuse(problem, name, loaded.origins[name], hint=hint)
    return loaded


def merge_sources(flags: Mapping[str, object], env: Mapping[str, str], path: Path | None = None) -> Loaded:
    """Merge as :func:`load_config`, without a check of settings that depend on each other."""
    if path is None and CONFIG_ENV in env:
        if not env[CONFIG_ENV]:
            raise ConfigError(
                f"{CONFIG_ENV}: found '', expected the path of a file", hint="unset it, or name a TOML file"
            )
        path = Path(env[CONFIG_ENV])
    values: dict[str, Any] = {}
    origins = dict.fromkeys(settings_of(RecorderConfig), DEFAULT)
    # From the weakest source to the strongest: each overwrites the ones before.
    for source in ([] if path is None else _from_file(path), _from_env(env), from_flags(flags)):
        given = read_given(RecorderConfig, source, also=[RETENTION_TABLE])
        for name, (value, origin) in _with_player(given).items():
            values[name], origins[name] = value, origin
    return Loaded(RecorderConfig(**values), origins, None if path is None else str(path))


def effective(config: RecorderConfig) -> dict[str, Any]:
    """Return every setting, with the tag in effect, as a session records them."""
    return {**msgspec.to_builtins(config), "model_tag": config.tag}


def config_sha256(config: RecorderConfig) -> str:
    """Return the SHA-256 (hex) of :func:`effective` as canonical JSON: sorted keys, no white space, UTF-8."""
    text = json.dumps(
        effective(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def split_player(text: str) -> tuple[str, dict[str, int | float | str | bool] | None]:
    """Split a player's name from the parameters behind it (None without any).

    The parameters start behind the first colon that a ``key=`` follows, so that a name may hold colons. A
    text parameter stays text: ``mix=16``, or a file called 007.

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


def check_loaded_player(loaded: Loaded) -> None:
    """Raise ConfigError for an unknown player or invalid parameters, with their origin."""
    takes_args = loaded.config.player in REGISTRY and loaded.config.player_args
    with located(loaded.origins["player_args" if takes_args else "player"]):
        check_player(loaded.config.player, loaded.config.player_args)


def buffer_mb(config: RecorderConfig) -> float:
    """Return the largest size of a worker's buffer in megabytes: boards; whole rows for batched players."""
    row_bytes = ROW_BYTES_MAX if is_batched(config.player) else BUFFERED_BYTES_MAX
    return config.rows_buffered_max * (1 if config.storage == "tape" else row_bytes) / 1e6


def row_bytes(config: RecorderConfig) -> float:
    """Return the bytes that a recorded row takes in a published session, without its metadata."""
    return TAPE_ROW_BYTES if config.storage == "tape" else 28 + config.record_action


# Sources.


def _from_file(path: Path) -> Iterator[Given]:
    for name, raw, origin in from_file(path):
        if name == RETENTION_TABLE:  # for `tape2048 prune`; an error in it shows now, not when a timer prunes
            read_retention(raw, origin)
        else:
            yield name, raw, origin


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    settings = settings_of(RecorderConfig)
    by_variable = {setting.env: name for name, setting in settings.items() if setting.has_text}
    for variable, raw in env.items():
        if variable in by_variable:
            yield by_variable[variable], raw, Origin("env", variable)
        elif variable.startswith(ENV_PREFIX) and variable not in OTHER_ENV:
            raise unknown_key(variable, [*by_variable, *OTHER_ENV], Origin("env", variable))


def _with_player(given: dict[str, tuple[Any, Origin]]) -> dict[str, tuple[Any, Origin]]:
    """Return one source's values, with the parameters split from the player's name."""
    if "player" not in given:
        return given
    text, origin = given["player"]
    try:
        name, args = split_player(text)
    except ValueError as error:
        problem = (
            f"found {text!r}, expected NAME:key=value,key=value ({error} is no key=value, or a repeated key)"
        )
        hint = "a value with a comma in it goes into the file's [player_args]"
        refuse(problem, "player", origin, hint=hint)
    if args is not None and "player_args" in given:
        where = given["player_args"][1].where
        problem = f"found parameters behind the name and in [player_args] ({where}), expected one of them"
        refuse(problem, "player", origin, hint="keep the table, and the bare name in `player`")
    return {"player_args": (args or {}, origin), **given, "player": (name, origin)}


def _conflicts(
    config: RecorderConfig, origins: Mapping[str, Origin], env: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that contradict others: name, problem and hint."""
    if f"{config.instance}.lock" == READERS_LOCK:
        problem = f"found {config.instance!r}, expected another name: readers lock {READERS_LOCK}"
        yield "instance", problem, f"Choose {config.instance}-1, for instance."
    if config.lease and config.seed is None:
        problem = f"found {config.lease} with a random seed, expected 0: a lease is a share of a seed's games"
        yield "lease", problem, "Give every recorder that has a lease the same --seed."
    if config.storage == "tape" and config.sample_rate > 1:
        problem = f"found {config.sample_rate}, expected 1: a tape ({origins['storage']}) keeps every step"
        yield "sample_rate", problem, 'Drop sample_rate (readers can skip rows), or set storage = "rows".'
    for name in ("sampling", "model_dir"):
        if getattr(config, name) and not is_batched(config.player):
            problem = f"found it with player = {config.player!r}, expected a batched player"
            yield name, problem, "Batched players are python:package.module:factory."
    buffers_mb = config.worker_count * buffer_mb(config)
    if config.max_ram_mb is not None and buffers_mb > config.max_ram_mb:
        workers, rows = counted(config.worker_count, "worker"), counted(config.rows_buffered_max, "row")
        why = f"the buffers of {workers} take {rows} each ({origins['block_rows']})"
        problem = f"found {config.max_ram_mb}, expected at least {math.ceil(buffers_mb)}: {why}"
        yield "max_ram_mb", problem, "Raise max_ram_mb, or lower workers or block_rows."
    # A spool needs room for a session beside the open one.
    spool_mb = math.ceil(2 * config.rotate_steps * row_bytes(config) / config.sample_rate / 1e6)
    if config.spool_max_mb is not None and config.spool_max_mb < spool_mb:
        why = f"two sessions of {counted(config.rotate_steps, 'row')} ({origins['rotate_steps']})"
        problem = f"found {config.spool_max_mb}, expected at least {spool_mb}: {why}"
        yield "spool_max_mb", problem, "Raise spool_max_mb, or lower rotate_steps."
    if STOP_TIMEOUT_ENV in env:  # after which the service manager kills a recorder that drains
        seconds = Setting("stop_timeout_s", "float", None, "the unit's TimeoutStopSec", gt=0)
        timeout_s = read_value(seconds, env[STOP_TIMEOUT_ENV], Origin("env", STOP_TIMEOUT_ENV))
        if timeout_s <= config.drain_timeout_s:
            unit = f"the {timeout_s:g} s of the unit's TimeoutStopSec"
            problem = f"found {config.drain_timeout_s:g}, expected less than {unit}"
            hint = f"Lower drain_timeout_s, or raise TimeoutStopSec= and {STOP_TIMEOUT_ENV}= of the unit."
            yield "drain_timeout_s", problem, hint
