"""Settings of critic trainings from a TOML file and flags, and a loader for critics of any kind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tape2048.base.settings import load_settings, settings_toml
from tape2048.critic.critic_config import CriticConfig, LearningConfig, NTupleCriticConfig
from tape2048.errors import MissingPackageError
from tape2048_tools.options.recorder_options import SAMPLE, flags_of, sample_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape2048.critic.ntuple.ntuple_critic import NTupleCritic
    from tape2048.torch.torch_critic import TorchCritic

    AnyCritic: TypeAlias = NTupleCritic | TorchCritic

#: The sample files in a checkout, by kind.
EXAMPLES: dict[type[LearningConfig], Path] = {
    CriticConfig: Path("config/critic.example.toml"),
    NTupleCriticConfig: Path("config/ntuple-critic.example.toml"),
}

_HEAD = """\
# Settings of `{command} --config FILE`, each at its default.
# Flags such as --epochs 5 override this file. An unknown name is an error.

"""

#: One flag for each setting.
critic_options = flags_of(CriticConfig)
ntuple_options = flags_of(NTupleCriticConfig)

C = TypeVar("C", bound=LearningConfig)


def load_critic_config(kind: type[C], path: Path | None, flags: Mapping[str, object] | None = None) -> C:
    """Load a configuration from a file (None: the defaults) and from flags, which override the file."""
    return load_settings(kind, path, flags, listed_by=f"{_command(kind)} --print-config")


def example_toml(kind: type[LearningConfig]) -> str:
    return _HEAD.format(command=_command(kind)) + settings_toml(kind())


def _command(kind: type[LearningConfig]) -> str:
    return "tape2048 critic train" + (" --kind ntuple" if kind is NTupleCriticConfig else "")


def open_critic(path: Path, device: str = "auto", tower: str | None = None) -> AnyCritic:
    from tape2048.critic.ntuple.ntuple_critic import NTupleCritic
    from tape2048.critic.shipped import SHIPPED

    if str(path) in SHIPPED or not path.is_dir():
        return NTupleCritic.load(path)
    require_torch()
    from tape2048.torch.torch_critic import TorchCritic

    return TorchCritic.load(path, device, tower=tower)


def require_torch() -> None:
    for package in ("torch", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"{package} is not installed: neural critics and towers need it",
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
