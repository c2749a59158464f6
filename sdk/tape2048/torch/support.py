"""Helpers around critics: devices, optional packages, tensor files."""

from __future__ import annotations

import hashlib
import importlib
import os
from typing import TYPE_CHECKING, Any

import torch

from tape2048.errors import CriticError, DeviceError, MissingPackageError
from tape2048.io.reading import read_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HINT = "pip install 'tape2048[critic]'"


def require(package: str, what: str, hint: str = _HINT) -> Any:
    """Import a package of an extra; raise MissingPackageError where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs {package.partition('.')[0]}, which cannot be imported ({error})", hint=hint
        ) from error


def pick_device(name: str) -> torch.device:
    """Return the device of this name; ``"auto"`` is CUDA if available, else the CPU.

    Raises:
        DeviceError: no such device on this machine, or no support for it in this build of PyTorch.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"found the device {name!r}, expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            build = torch.version.cuda or "none: a build for the CPU alone"
            raise DeviceError(
                f"found the device {name!r}, expected one of {count} CUDA devices (PyTorch's CUDA: {build})",
                hint="the device cpu is always available; pytorch.org has other builds",
            )
    elif device.type != "cpu":
        raise DeviceError(f"found the device {name!r}, expected auto, cpu, cuda or cuda:N")
    return device


def local_device(name: str) -> torch.device:
    """Return a device as :func:`pick_device`; of several CUDA devices, that of ``$LOCAL_RANK``."""
    chosen = pick_device(name)
    if str(chosen) == "cuda" and os.environ.get("LOCAL_RANK"):
        return pick_device(f"cuda:{os.environ['LOCAL_RANK']}")
    return chosen


def tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Encode tensors as a safetensors file, deterministically."""
    safetensors = require("safetensors.torch", "writing a model")
    # Cloned, since the format refuses tensors that share memory, as tied weights do.
    ready = {name: tensors[name].detach().cpu().clone().contiguous() for name in sorted(tensors)}
    data: bytes = safetensors.save(ready)
    return data


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file into memory.

    Raises:
        CriticError: the file is missing or malformed.
        StorageError: the operating system could not read it.
    """
    if not path.exists():
        raise CriticError(f"no {path.name}: not a complete directory of a model", path=path.parent)
    safetensors = require("safetensors.torch", "reading a model")
    data = read_path(path).tobytes()
    try:
        tensors: dict[str, torch.Tensor] = safetensors.load(data)
    except Exception as error:  # SafetensorError, and other classes for a malformed header
        raise CriticError(f"not a safetensors file: {error}", path=path) from error
    return tensors


def content_sha256(about: bytes, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 (hex) of a text and of tensors by name, type, shape and elements."""
    digest = hashlib.sha256(about)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()
