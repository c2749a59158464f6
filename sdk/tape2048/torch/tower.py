"""Towers: built-in and foreign encoders from boards to vectors. Also the devices and files of models.

A tower maps tokens ``u8[B, 16]`` to vectors ``[B, D]``, or to states ``[B, n, D]``, which are then pooled: by
the ``mean`` over n, or as the first state (``cls``). The built-in tower is a transformer encoder over the 16
cells. Its directory::

    config.json          TowerConfig
    model.safetensors    the parameters

The directory of a critic that was trained on tokens contains a tower, and can be opened as one.

A **foreign tower** is specified as ``module:factory``. ``factory(checkpoint)`` is called with the path of the
checkpoint, or None, and returns a ``torch.nn.Module`` or another callable. The facts of embeddings have the
SHA-256 of their tower: of the checkpoint's bytes or, without a checkpoint, of the module's parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import msgspec
import torch
from torch import nn

from tape2048.errors import ConfigError, MissingPackageError, MissingPathError, ModelError, NameTakenError
from tape2048.files.durable import Draft, fsync_path, write_file
from tape2048.files.opening import storage_errors
from tape2048.files.reading import map_path, read_document, read_path
from tape2048.files.safetensors import check_length

TOWER_JSON = "config.json"
CRITIC_JSON = "critic.json"
MODEL = "model.safetensors"

CELLS = 16
#: Number of kinds of cells: empty, and tiles from 2 to 32768.
KINDS = 16

Pooling = Literal["mean", "cls"]

S = TypeVar("S", bound=msgspec.Struct)
M = TypeVar("M", bound=nn.Module)

_FACTORY = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


class TowerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of a built-in tower.

    Attributes:
        dim: width of the vectors, D; a multiple of ``heads``.
        layers: number of layers.
        heads: number of attention heads of a layer.
        ffn: width of the feed-forward part of a layer.
        dropout: share of activations dropped in training.

    Example:
        >>> from tape2048.torch import TowerConfig
        >>> TowerConfig(dim=64, layers=1)
        TowerConfig(dim=64, layers=1, heads=4, ffn=256, dropout=0.0)
    """

    dim: int = 128
    layers: int = 2
    heads: int = 4
    ffn: int = 256
    dropout: float = 0.0

    def check(self) -> None:
        """Raise ConfigError for invalid sizes."""
        for name, most in (("dim", 65_536), ("layers", 1024), ("heads", 65_536), ("ffn", 2**20)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name}: found {getattr(self, name)}, expected 1 to {most}")
        if self.dim % self.heads:
            raise ConfigError(f"dim: found {self.dim}, expected a multiple of heads ({self.heads})")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: found {self.dropout}, expected at least 0 and below 1")


class Tower(nn.Module):
    """A transformer encoder over the 16 cells, mean-pooled.

    The input for a cell is the sum of the embeddings of its exponent and its position. Layers normalise first
    (pre-norm: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"), and a last
    normalisation precedes the mean.

    Args:
        config: sizes of the tower.

    Raises:
        ConfigError: invalid sizes.

    Example:
        >>> import torch
        >>> from tape2048.torch import Tower, TowerConfig
        >>> Tower(TowerConfig(dim=8, heads=2))(torch.zeros(5, 16, dtype=torch.uint8)).shape
        torch.Size([5, 8])
    """

    def __init__(self, config: TowerConfig | None = None) -> None:
        super().__init__()
        self.config = config or TowerConfig()
        self.config.check()
        self.kind = nn.Embedding(KINDS, self.config.dim)
        self.position = nn.Parameter(torch.empty(CELLS, self.config.dim))
        layer = nn.TransformerEncoderLayer(
            self.config.dim,
            self.config.heads,
            self.config.ffn,
            dropout=self.config.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, self.config.layers, norm=nn.LayerNorm(self.config.dim), enable_nested_tensor=False
        )
        # The sum has variance 1, and the positions differ from the start.
        nn.init.normal_(self.kind.weight, std=0.5**0.5)
        nn.init.normal_(self.position, std=0.5**0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the vectors, ``f32[B, D]``, of exponents ``[B, 16]`` up to 15, of any integer type."""
        return pool(self.encoder(self.kind(tokens.long()) + self.position), "mean")


class _Pooled(nn.Module):
    def __init__(self, inner: Any, pooling: Pooling) -> None:
        super().__init__()
        self.inner = inner  # registered as a submodule if it is a module
        self.pooling = pooling

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.inner(tokens)
        if not isinstance(found, torch.Tensor):
            raise ModelError(f"the tower returned a {type(found).__name__}, expected a tensor")
        if found.ndim not in {2, 3} or len(found) != len(tokens) or not found.is_floating_point():
            raise ModelError(
                f"the tower returned {found.dtype} of shape {list(found.shape)} for {len(tokens)} boards, "
                f"expected floats of shape [{len(tokens)}, D] or [{len(tokens)}, n, D]"
            )
        return pool(found, self.pooling)


def pool(states: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Pool states ``[B, n, D]`` to vectors ``f32[B, D]``: their mean, in float32, or the first (``cls``)."""
    if states.ndim == 2:
        return states.float()
    return states.float().mean(dim=1) if pooling == "mean" else states[:, 0].float()


class OpenTower(NamedTuple):
    module: nn.Module  # maps `u8[B, 16]` to `f32[B, D]`
    sha256: str  # 64 hexadecimal digits
    pooling: Pooling  # how its states become vectors


def is_factory(spec: str) -> bool:
    return _FACTORY.fullmatch(spec) is not None and not Path(spec).exists()


def open_tower(
    spec: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    pooling: Pooling = "mean",
) -> OpenTower:
    """Open a tower in evaluation mode; ``spec`` is a directory, or ``module:factory``.

    The factory gets ``checkpoint``, and ``pooling`` is for a foreign tower. Raises MissingPathError,
    ModelError, MissingPackageError or ConfigError.
    """
    if pooling not in get_args(Pooling):
        raise ConfigError(f"pooling: found {pooling!r}, expected 'mean' or 'cls'")
    text = os.fspath(spec)
    if is_factory(text):
        return _open_factory(text, checkpoint, pooling)
    if checkpoint is not None:
        raise ConfigError(f"found a checkpoint for {text!r}, expected it only for a module:factory")
    if pooling != "mean":
        raise ConfigError(f"pooling: found {pooling!r}, expected 'mean' for a built-in tower")
    return _open_directory(Path(text))


def make_tower(factory: str) -> nn.Module:
    """Make a new foreign tower, to train it from the start; errors are as for :func:`open_tower`."""
    module = _call_factory(factory, None)
    if not isinstance(module, nn.Module) or not list(module.parameters()):
        raise ConfigError(f"{factory} returned a {type(module).__name__}, expected a module with parameters")
    return _Pooled(module, "mean")


def tower_sha256(tower: nn.Module) -> str:
    """Return a tower's identity: SHA-256 (hexadecimal) of its sizes and parameters."""
    config = tower.config if isinstance(tower, Tower) else None
    about = b"tape2048 tower 1\0" + (msgspec.json.encode(config) if config else b"")
    return content_sha256(about, tower.state_dict())


def build_tower(config: TowerConfig, tensors: Mapping[str, torch.Tensor], path: Path) -> Tower:
    return load_state(lambda: Tower(config), tensors, "the tower's parameters and sizes disagree", path)


def _open_directory(path: Path) -> OpenTower:
    if not path.exists():
        raise MissingPathError("no such file or directory", path=path)
    if not path.is_dir():
        raise ModelError(
            "found a file, expected the directory of a tower or critic", path=path,
            hint="name a critic of `tape2048 critic train`, or a module:factory",
        )  # fmt: skip
    if (path / TOWER_JSON).exists():
        config, tensors = read_json(path / TOWER_JSON, TowerConfig), read_tensors(path / MODEL)
    elif (path / CRITIC_JSON).exists():
        found = read_json(path / CRITIC_JSON, _CriticWithTower)
        if found.kind != "tokens" or found.tower is None or found.tower.config is None:
            raise ModelError(
                "this critic has no built-in tower: it was trained on embeddings, or with a foreign tower",
                path=path / CRITIC_JSON,
                hint="name the tower that made its embeddings",
            )
        config, tensors = (
            found.tower.config,
            by_prefix(read_tensors(path / MODEL, found.model_sha256))["tower"],
        )
    else:
        raise ModelError(
            f"found neither {TOWER_JSON} nor {CRITIC_JSON}, expected a tower or critic", path=path
        )
    tower = build_tower(config, tensors, path)
    return OpenTower(tower.eval(), tower_sha256(tower), "mean")


class _TowerOfCritic(msgspec.Struct):
    config: TowerConfig | None = None


class _CriticWithTower(msgspec.Struct):
    kind: str
    tower: _TowerOfCritic | None = None
    model_sha256: str = ""


def read_json(path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(read_document(path, error=ModelError), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"malformed: {error}", path=path) from error


def _open_factory(spec: str, checkpoint: str | os.PathLike[str] | None, pooling: Pooling) -> OpenTower:
    inner = _call_factory(spec, None if checkpoint is None else os.fspath(checkpoint))
    tensors = inner.state_dict() if isinstance(inner, nn.Module) else {}
    if checkpoint is not None:
        sha256 = hashlib.sha256(map_path(checkpoint).data).hexdigest()
    elif tensors:
        sha256 = content_sha256(f"tape2048 tower 1\0{spec}".encode(), tensors)
    else:
        raise ConfigError(
            f"{spec} cannot be identified: found neither a checkpoint nor parameters",
            hint="pass its checkpoint",
        )
    return OpenTower(_Pooled(inner, pooling).eval(), sha256, pooling)


def _call_factory(spec: str, checkpoint: str | None) -> Any:
    match = _FACTORY.fullmatch(spec)
    if match is None:
        raise ConfigError(f"found the tower {spec!r}, expected module:factory")
    try:
        module = importlib.import_module(match["module"])
    except ModuleNotFoundError as error:
        # If "their" is missing, so is "their.towers". A missing "torch" has nothing to do with "torchtower".
        if error.name and not f"{match['module']}.".startswith(f"{error.name}."):
            raise MissingPackageError(f"{spec} needs {error.name}, which is not installed") from error
        raise ConfigError(
            f"{spec}: no module {match['module']!r}",
            hint="start in the directory of the module, or add that directory to PYTHONPATH",
        ) from error
    factory: Any = getattr(module, match["name"], None)
    if factory is None:
        raise ConfigError(f"{spec}: the module has no {match['name']!r}")
    if not callable(factory):
        raise ConfigError(f"{spec} is a {type(factory).__name__}, expected a function that makes a tower")
    made = factory(checkpoint)
    if not callable(made):
        raise ConfigError(f"{spec}({checkpoint!r}) returned a {type(made).__name__}, expected a callable")
    return made


_HINT = "pip install 'tape2048[critic]'"


def require(package: str, what: str, hint: str = _HINT) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} needs {package.partition('.')[0]}, which cannot be imported ({error})", hint=hint
        ) from error


def pick_device(name: str) -> torch.device:
    """Return the device; ConfigError if it is unavailable. ``"auto"`` is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = None
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in {"cpu", "cuda"}:
        raise ConfigError(
            f"found the device {name!r}, expected auto, cpu, cuda or cuda:N",
            hint="Name an available device, or auto. `tape2048 doctor` lists them.",
        )
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            build = torch.version.cuda or "none, a build for CPUs only"
            raise ConfigError(
                f"found the device {name!r}, expected an index below {count}, the number of CUDA devices "
                f"(PyTorch's CUDA: {build})",
                hint="choose the device cpu, or install a build of PyTorch with CUDA (pytorch.org)",
            )
    return device


def local_device(name: str) -> torch.device:
    """Return a device as :func:`pick_device` does; ``cuda`` is the CUDA device of ``$LOCAL_RANK``."""
    chosen = pick_device(name)
    if str(chosen) == "cuda" and os.environ.get("LOCAL_RANK"):
        return pick_device(f"cuda:{os.environ['LOCAL_RANK']}")
    return chosen


def tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Encode tensors as a safetensors file, deterministically."""
    safetensors = require("safetensors.torch", "writing a model")
    # Cloned, since the package rejects tensors that share memory, as tied weights do.
    ready = {name: tensors[name].detach().cpu().clone().contiguous() for name in sorted(tensors)}
    return cast("bytes", safetensors.save(ready))


def read_tensors(path: Path, sha256: str = "") -> dict[str, torch.Tensor]:
    """Read a safetensors file; raise ModelError if it is incomplete, or has another SHA-256 than given."""
    if not path.exists():
        raise ModelError(f"found no {path.name}, expected a complete directory of a model", path=path.parent)
    data = read_path(path).tobytes()
    tensors = parse_tensors(data, path)
    found = hashlib.sha256(data).hexdigest()
    if sha256 and found != sha256:
        raise ModelError(f"has SHA-256 {found}; expected {sha256} by critic.json", path=path)
    return tensors


def load_state(make: Callable[[], M], tensors: Mapping[str, torch.Tensor], what: str, path: Path) -> M:
    try:
        module = make()
        module.load_state_dict(dict(tensors))
    except (RuntimeError, ValueError, ConfigError) as error:
        raise ModelError(f"{what}: {error}", path=path) from error
    return module


def parse_tensors(data: bytes, path: Path) -> dict[str, torch.Tensor]:
    safetensors = require("safetensors.torch", "reading a model")
    try:
        check_length(data, None)  # the library takes 2 KB for each array of any header
        return cast("dict[str, torch.Tensor]", safetensors.load(data))
    except Exception as error:  # SafetensorError, and other classes for a malformed header
        raise ModelError(f"not a safetensors file: {error}", path=path) from error


def by_prefix(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Group tensors by the part of their names before the first dot; the keys in a group are the rest."""
    parts: defaultdict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition(".")
        parts[prefix][rest] = tensor
    return parts


def content_sha256(about: bytes, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 (hexadecimal) of bytes and of the names, types, shapes and elements of tensors."""
    digest = hashlib.sha256(about)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


def publish_directory(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, replace: bool = False
) -> None:
    """Write a directory of files atomically; with ``replace``, it replaces a directory of the same files."""
    target = Path(os.path.abspath(path))
    with storage_errors(target, "writing it"):
        target.parent.mkdir(parents=True, exist_ok=True)
        there = os.path.lexists(target)
        if there and not (replace and target.is_dir()):
            raise NameTakenError("exists already. Nothing was replaced", path=target)
        others = _others(target, set(files)) if there else []
        with Draft(target) as draft:
            for name, content in files.items():
                write_file(draft.path / name, content)
            for other in others:
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    shutil.copy2(other, draft.path / other.name, follow_symlinks=False)
                    fsync_path(draft.path / other.name)
            draft.publish(exchange=there)


def _others(directory: Path, names: set[str]) -> list[Path]:
    there = {entry.name: entry for entry in os.scandir(directory)}
    others = sorted(there.keys() - names)
    former = names <= there.keys()
    in_the_way = [name for name in others if not (former and there[name].is_file(follow_symlinks=False))]
    if in_the_way:
        raise NameTakenError(
            f"the directory contains {in_the_way[0]}. Nothing was replaced",
            path=directory,
            hint=f"move {in_the_way[0]}, or choose another name",
        )
    return [directory / name for name in others]
