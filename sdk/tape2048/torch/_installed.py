"""Imported first: where torch is not installed, the error says what brings it."""

from __future__ import annotations

try:
    import torch  # noqa: F401 - to see whether it is there
except ModuleNotFoundError as error:
    if error.name != "torch":  # it is there, and lacks something itself
        raise
    raise ModuleNotFoundError(
        "tape2048.torch needs torch, which is not installed: pip install 'tape2048[torch]' "
        "(a build of PyTorch of your choice: install that first)",
        name="torch",
    ) from error
