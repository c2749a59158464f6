"""The settings of a critic's training, from a TOML file and flags."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tape2048.critic.config import CriticConfig
from tape2048.errors import MissingPackageError
from tape2048.settings.fields import load_settings, settings_of
from tape2048.settings.sample import settings_toml
from tape2048_tools.options.recorder import setting_option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def load_critic_config(path: Path | None, flags: Mapping[str, object] | None = None) -> CriticConfig:
    """The configuration of a file (None: the defaults), with what flags say in place of it.

    Lists of numbers, where the setting is numbers apart by spaces, are taken as such.

    Raises:
        UnknownKeyError: a setting that does not exist; names the nearest one.
        ConfigError: a value that cannot be, settings that cannot all hold, or a file that cannot be read.
    """
    return load_settings(CriticConfig, path, flags, listed_by=_LISTED_BY)


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
