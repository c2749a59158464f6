"""Settings of the recorder that have to go together, or with the unit that starts it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from tape2048.base.text import counted
from tape2048.errors import ConfigError
from tape2048.session.locks import READERS_LOCK
from tape2048.settings.fields import ENV_PREFIX, Origin, read_value, refuse, settings_of
from tape2048_recorder.players.batch import is_batched
from tape2048_recorder.players.sampling import read_sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape2048_recorder.config.schema import RecorderConfig

#: The environment variable in which a unit says its ``TimeoutStopSec``, in seconds.
STOP_TIMEOUT_ENV = ENV_PREFIX + "STOP_TIMEOUT_S"

#: A row of ``steps.npy`` with its action. Written out, since the module that has the layout loads NumPy.
ROW_BYTES_MAX = 29

#: What waits of a row in the buffer of a compiled player: its board and its action.
BUFFERED_BYTES_MAX = 9


def check_together(config: RecorderConfig, origins: Mapping[str, Origin], env: Mapping[str, str]) -> None:
    """Refuse settings that are fine one by one and cannot all hold.

    Args:
        config: all settings.
        origins: where each came from.
        env: the environment, in which a unit may say how long it lets a recorder drain.

    Raises:
        ConfigError: which two do not go together, and what would.
    """
    _check_instance(config, origins)
    _check_batched(config, origins)
    _check_memory(config, origins)
    _check_stop_timeout(config, origins, env)


def _check_instance(config: RecorderConfig, origins: Mapping[str, Origin]) -> None:
    """Refuse the name whose lock file would be the readers' own."""
    if f"{config.instance}.lock" == READERS_LOCK:
        problem = f"found {config.instance!r}, expected another name: {READERS_LOCK} is what readers lock"
        refuse(problem, "instance", origins["instance"], hint=f"{config.instance}-1, for instance")


def buffer_mb(config: RecorderConfig) -> float:
    """What waits in a worker's buffer at most, megabytes: boards; rows where it plays in lanes."""
    row_bytes = ROW_BYTES_MAX if is_batched(config.player) else BUFFERED_BYTES_MAX
    return config.block_rows * row_bytes / 1e6


def _check_memory(config: RecorderConfig, origins: Mapping[str, Origin]) -> None:
    if config.max_ram_mb is None:
        return
    buffers_mb = config.worker_count * buffer_mb(config)
    if buffers_mb > config.max_ram_mb:
        workers, rows = counted(config.worker_count, "worker"), counted(config.block_rows, "row")
        why = f"the buffers of {workers} take {rows} each ({origins['block_rows']})"
        problem = f"found {config.max_ram_mb}, expected at least {math.ceil(buffers_mb)}: {why}"
        hint = "raise max_ram_mb, or lower workers or block_rows"
        refuse(problem, "max_ram_mb", origins["max_ram_mb"], hint=hint)


def _check_stop_timeout(
    config: RecorderConfig, origins: Mapping[str, Origin], env: Mapping[str, str]
) -> None:
    """Refuse a drain that the service manager would cut short: it kills what has not ended in time."""
    raw = env.get(STOP_TIMEOUT_ENV)
    if raw is None:
        return
    setting = settings_of(type(config))["rotate_s"]  # any number of seconds
    timeout_s = read_value(
        msgspec.structs.replace(setting, text="the unit's TimeoutStopSec", name="stop_timeout_s", none=None),
        raw,
        Origin("env", STOP_TIMEOUT_ENV),
    )
    if timeout_s <= config.drain_timeout_s:
        unit = f"the {timeout_s:g} s of the unit's TimeoutStopSec"
        problem = f"found {config.drain_timeout_s:g}, expected less than {unit}"
        hint = f"lower drain_timeout_s, or raise TimeoutStopSec= and {STOP_TIMEOUT_ENV}= of the unit together"
        refuse(problem, "drain_timeout_s", origins["drain_timeout_s"], hint=hint)


def _check_batched(config: RecorderConfig, origins: Mapping[str, Origin]) -> None:
    """Refuse what batched players take where the player is another one, and a bad [sampling] table."""
    batched = is_batched(config.player)
    for name in ("sampling", "model_dir"):
        if getattr(config, name) and not batched:
            problem = f"found it with player = {config.player!r}, expected a batched player"
            refuse(problem, name, origins[name], hint="batched players are python:package.module:factory")
    try:
        read_sampling(config.sampling)
    except ConfigError as error:
        raise type(error)(error.message, path=origins["sampling"].where or None, hint=error.hint) from error
