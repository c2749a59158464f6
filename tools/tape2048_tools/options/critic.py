"""The settings of critics' trainings, from a TOML file and flags; and critics of any kind by their path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tape2048.critic.config import CriticConfig, LearningConfig, NTupleCriticConfig
from tape2048.errors import MissingPackageError
from tape2048.settings.fields import load_settings, settings_toml
from tape2048_tools.options.recorder import SAMPLE, flags_of, sample_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape2048.critic.ntuple.critic import NTupleCritic
    from tape2048.torch.critic import TorchCritic

    AnyCritic: TypeAlias = NTupleCritic | TorchCritic

#: The sample files in a checkout, by kind.
EXAMPLES: dict[type[LearningConfig], Path] = {
    CriticConfig: Path("config/critic.example.toml"),
    NTupleCriticConfig: Path("config/ntuple-critic.example.toml"),
}

_HEAD = """\
# Settings of `{command} --config FILE`, each at its default. A flag
# (--epochs 5) counts before this file; an unknown name is refused, with the nearest known one.

"""

#: One flag for each setting.
critic_options = flags_of(CriticConfig)
ntuple_options = flags_of(NTupleCriticConfig)

C = TypeVar("C", bound=LearningConfig)


def load_critic_config(kind: type[C], path: Path | None, flags: Mapping[str, object] | None = None) -> C:
    """Load a configuration from a file (None: the defaults); flags count before it."""
    return load_settings(kind, path, flags, listed_by=f"{_command(kind)} --print-config")


def example_toml(kind: type[LearningConfig]) -> str:
    """Return a file with every setting at its default, and its effect."""
    return _HEAD.format(command=_command(kind)) + settings_toml(kind())


def _command(kind: type[LearningConfig]) -> str:
    return "tape2048 critic train" + (" --kind ntuple" if kind is NTupleCriticConfig else "")


def open_critic(path: Path, device: str = "auto", tower: str | None = None) -> AnyCritic:
    """Load a critic of any kind: the directory of a neural one, or an n-tuple critic's file or name."""
    from tape2048.critic.facts import SHIPPED
    from tape2048.critic.ntuple.critic import NTupleCritic

    if str(path) in SHIPPED or not path.is_dir():
        return NTupleCritic.load(path)
    require_torch()
    from tape2048.torch.critic import TorchCritic

    return TorchCritic.load(path, device, tower=tower)


def require_torch() -> None:
    """Raise MissingPackageError unless the packages that critics need are installed."""
    for package in ("torch", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"critics need {package}, which is not installed",
                hint="pip install 'tape2048[critic]' (for another build of PyTorch, install that first)",
            )


def main() -> None:
    """Write the sample files into the working directory, which is a checkout (``make generate``)."""
    for kind, example in EXAMPLES.items():
        example.parent.mkdir(exist_ok=True)
        example.write_text(example_toml(kind))
    SAMPLE.write_text(sample_toml())


if __name__ == "__main__":
    main()
