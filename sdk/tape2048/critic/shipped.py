"""The critics that ship with the package."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import ModelError
from tape2048.files.known_files import HINT, has_digits, known_file

if TYPE_CHECKING:
    import os

#: Names and files.
SHIPPED = {"default": "default.critic"}


def critic_path(path: str | os.PathLike[str]) -> Path:
    """Return the file of the critic that ships under this name, or the path; raise ModelError."""
    file = known_file(str(path))
    if str(path) in SHIPPED:
        file = Path(str(importlib.resources.files(__package__))) / "ntuple/weights" / SHIPPED[str(path)]
    if not file.is_file():
        is_neural = (file / "critic.json").exists()
        shipped = f"name a path, or a shipped critic: {', '.join(SHIPPED)}"
        hint = HINT if has_digits(str(path)) else shipped
        raise ModelError(
            "found a PyTorch critic; expected an n-tuple critic" if is_neural else "no such file",
            path=file,
            hint="load it with tape2048.torch.TorchCritic" if is_neural else hint,
        )
    return file
