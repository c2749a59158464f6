"""Helpers around critics: devices, optional packages, tensor files, directories."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tape2048.errors import ConfigError, MissingPackageError, ModelError, NameTakenError
from tape2048.io.durable import Staging, fsync_path, storage_errors, write_file
from tape2048.io.reading import read_path

if TYPE_CHECKING:
    from collections.abc import Mapping

M = TypeVar("M", bound=torch.nn.Module)

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
    """Return the device of this name; ``"auto"`` is CUDA if available, else the CPU; raise ConfigError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"found the device {name!r}, expected auto, cpu, cuda or cuda:N",
            hint="Name an available device, or auto. `tape2048 doctor` lists them.",
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            build = torch.version.cuda or "none: a build for the CPU alone"
            raise ConfigError(
                f"found the device {name!r}, expected one of {count} CUDA devices (PyTorch's CUDA: {build})",
                hint="the device cpu is always available; pytorch.org has other builds",
            )
    elif device.type != "cpu":
        raise ConfigError(
            f"found the device {name!r}, expected auto, cpu, cuda or cuda:N",
            hint="Name an available device, or auto. `tape2048 doctor` lists them.",
        )
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


def read_tensors(path: Path, sha256: str = "") -> dict[str, torch.Tensor]:
    """Read a safetensors file; raise ModelError unless it is whole and has this SHA-256 (if any)."""
    if not path.exists():
        raise ModelError(f"no {path.name}: not a complete directory of a model", path=path.parent)
    data = read_path(path).tobytes()
    tensors = parse_tensors(data, path)
    found = hashlib.sha256(data).hexdigest()
    if sha256 and found != sha256:
        raise ModelError(f"SHA-256 {found}, and critic.json says {sha256}: bytes changed", path=path)
    return tensors


def load_state(module: M, tensors: Mapping[str, torch.Tensor], what: str, path: Path) -> M:
    """Load parameters into a module and return it; raise ModelError, of ``what``, where they do not fit."""
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ModelError(f"{what}: {error}", path=path) from error
    return module


def parse_tensors(data: bytes, path: Path) -> dict[str, torch.Tensor]:
    """Parse a safetensors file; raise ModelError where it is malformed."""
    safetensors = require("safetensors.torch", "reading a model")
    try:
        tensors: dict[str, torch.Tensor] = safetensors.load(data)
    except Exception as error:  # SafetensorError, and other classes for a malformed header
        raise ModelError(f"not a safetensors file: {error}", path=path) from error
    return tensors


def by_prefix(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Group tensors by the part of their names before the first dot; keys are the rest."""
    parts: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition(".")
        parts[prefix][rest] = tensor
    return parts


def content_sha256(about: bytes, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 (hex) of a text and of tensors by name, type, shape and elements."""
    digest = hashlib.sha256(about)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


def publish_directory(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, replace: bool = False
) -> None:
    """Write a directory of files in one step."""
    target = Path(os.path.abspath(path))
    with storage_errors(target, "writing it"):
        target.parent.mkdir(parents=True, exist_ok=True)
        there = os.path.lexists(target)
        if there and not (replace and target.is_dir()):
            raise NameTakenError("the name is taken; nothing was replaced", path=target)
        others = _others(target, set(files)) if there else []
        with Staging(target) as staging:
            for name, content in files.items():
                write_file(staging.path / name, content)
            for other in others:
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    shutil.copy2(other, staging.path / other.name, follow_symlinks=False)
                    fsync_path(staging.path / other.name)
            staging.publish(exchange=there)


def _others(directory: Path, names: set[str]) -> list[Path]:
    """Return the files of a former version that are not in ``names``."""
    there = {entry.name: entry for entry in os.scandir(directory)}
    others = sorted(there.keys() - names)
    former = names <= there.keys()
    in_the_way = [name for name in others if not (former and there[name].is_file(follow_symlinks=False))]
    if in_the_way:
        raise NameTakenError(
            f"the directory has {in_the_way[0]} in it; nothing was replaced",
            path=directory,
            hint="move this file, or choose another name",
        )
    return [directory / name for name in others]
