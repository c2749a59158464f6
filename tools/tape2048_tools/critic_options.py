"""The settings of a critic's training, from a TOML file and flags."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tape2048.critic_config import CriticConfig
from tape2048.errors import ConfigError, MissingPackageError
from tape2048.settings_fields import Origin, read_value, settings_of, unknown_key
from tape2048.settings_toml import read_toml
from tape2048_tools.options import setting_option
from tape2048_tools.settings_docs import settings_toml

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXAMPLE", "critic_options", "example_toml", "load_critic_config", "require_torch"]

F = TypeVar("F", bound="Callable[..., Any]")

#: The sample file in a checkout.
EXAMPLE = Path("config/critic.example.toml")

_LISTED_BY = "tape2048 critic train --print-config"

_HEAD = """\
# Settings of `tape2048 critic train --config FILE`, each at its default. A flag (--batch-rows 512)
# counts before this file; an unknown name is refused, with the nearest known one.

"""


def critic_options(command: F) -> F:
    """Give a command one flag for each setting; values are text, None where not given."""
    for setting in reversed(settings_of(CriticConfig).values()):
        command = setting_option(setting)(command)
    return command


def load_critic_config(path: Path | None, flags: dict[str, object] | None = None) -> CriticConfig:
    """The configuration of a file (None: the defaults), with what flags say in place of it.

    Lists of numbers, where the setting is numbers apart by spaces, are taken as such.

    Raises:
        UnknownKeyError: a setting that does not exist; names the nearest one.
        ConfigError: a value that cannot be, settings that cannot all hold, or a file that cannot be read.
    """
    settings = settings_of(CriticConfig)
    given: list[tuple[str, object, Origin]] = []
    if path is not None:
        raws, lines = read_toml(path, sample_hint=f"name another with --config; `{_LISTED_BY}` prints one")
        given += [(name, _plain(raw), Origin("file", f"{path}:{lines[name]}")) for name, raw in raws.items()]
    given += [
        (name, raw, Origin("flag", "--" + name.replace("_", "-")))
        for name, raw in (flags or {}).items()
        if raw is not None
    ]
    values: dict[str, Any] = {name: setting.default for name, setting in settings.items()}
    for name, raw, origin in given:
        if name not in settings:
            raise unknown_key(name, settings, origin, listed_by=_LISTED_BY)
        values[name] = read_value(settings[name], raw, origin)
    config = msgspec.convert(values, CriticConfig)
    try:
        config.check()
    except ConfigError as error:
        raise ConfigError(error.message, path=path, hint=error.hint) from error
    return config


def _plain(raw: object) -> object:
    """``[8192, 16384]`` as ``"8192 16384"``."""
    if isinstance(raw, list) and raw and all(isinstance(item, int | float) for item in raw):
        return " ".join(str(item) for item in raw)
    return raw


def example_toml() -> str:
    """A file with every setting at its default, and what it does."""
    return _HEAD + settings_toml(CriticConfig())


def require_torch() -> None:
    """Raise MissingPackageError unless what critics need is installed."""
    for package in ("torch", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"critics need {package}, which is not installed",
                hint="pip install 'tape2048[critic]' (a build of PyTorch of your choice: install that first)",
            )
