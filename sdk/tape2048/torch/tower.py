"""Towers: encoders from boards to vectors, built-in and foreign.

A tower maps tokens ``u8[B, 16]`` to vectors ``[B, D]``, or to states ``[B, n, D]``, which are then pooled
(``mean`` over n, or ``cls``: the first). The built-in tower is a transformer encoder over the 16 cells. Its
directory::

    config.json          TowerConfig
    model.safetensors    the parameters

The directory of a critic that was trained on tokens contains a tower, and can be opened as one.

A **foreign tower** is named ``module:factory``. ``factory(checkpoint)`` is called with the path of the
checkpoint, or None, and returns a ``torch.nn.Module`` or another callable. Embeddings carry the SHA-256 of
their tower: of the checkpoint's bytes, or else of the module's parameters.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
import torch
from torch import nn

from tape2048.base.text import pretty_json
from tape2048.errors import ConfigError, MissingPackageError, MissingPathError, ModelError
from tape2048.io.reading import map_path, read_path
from tape2048.torch.support import (
    by_prefix,
    content_sha256,
    load_state,
    publish_directory,
    read_tensors,
    tensor_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

TOWER_JSON = "config.json"
CRITIC_JSON = "critic.json"
MODEL = "model.safetensors"

CELLS = 16
#: Kinds of cells: empty, and tiles from 2 to 32768.
KINDS = 16

Pooling = Literal["mean", "cls"]

S = TypeVar("S", bound=msgspec.Struct)

_FACTORY = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


class TowerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sizes of a built-in tower.

    Attributes:
        dim: D, width of the vectors; a multiple of ``heads``.
        layers: number of layers.
        heads: attention heads of a layer.
        ffn: width of a layer's feed-forward part.
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

    A cell's token is the sum of an embedding of its exponent and one of its position. Layers normalise first
    (pre-norm: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"), and a last
    normalisation precedes the mean.

    Args:
        config: its sizes.

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
        # Their sum has variance 1, and positions differ from the start.
        nn.init.normal_(self.kind.weight, std=0.5**0.5)
        nn.init.normal_(self.position, std=0.5**0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return vectors ``f32[B, D]`` of exponents ``[B, 16]`` of any integer type, each at most 15."""
        states = self.encoder(self.kind(tokens.long()) + self.position)
        return pool(states, "mean")


class _Pooled(nn.Module):
    """A foreign tower with pooled states."""

    def __init__(self, inner: Any, pooling: Pooling) -> None:
        super().__init__()
        self.inner = inner  # registered as a submodule if it is a module
        self.pooling = pooling

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.inner(tokens)
        if not isinstance(found, torch.Tensor):
            raise ModelError(f"the tower gave a {type(found).__name__}, expected a tensor")
        if found.ndim not in {2, 3} or len(found) != len(tokens) or not found.is_floating_point():
            raise ModelError(
                f"the tower gave {found.dtype} of shape {list(found.shape)} for {len(tokens)} boards, "
                f"expected numbers of shape [{len(tokens)}, D] or [{len(tokens)}, n, D]"
            )
        return pool(found, self.pooling)


def pool(states: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Pool states ``[B, n, D]`` to vectors ``f32[B, D]``: their mean (in float32), or the first (``cls``)."""
    if states.ndim == 2:
        return states.float()
    return states.float().mean(dim=1) if pooling == "mean" else states[:, 0].float()


class OpenTower(NamedTuple):
    """A tower in evaluation mode, and its identity."""

    module: nn.Module  # maps `u8[B, 16]` to `f32[B, D]`
    sha256: str  # 64 hexadecimal digits
    pooling: Pooling  # of its states
    config: TowerConfig | None = None  # of a built-in tower, else None
    factory: str | None = None  # of a foreign tower, else None


def is_factory(spec: str) -> bool:
    """Return whether this names a factory (``module:factory``) rather than a directory."""
    return _FACTORY.fullmatch(spec) is not None and not Path(spec).exists()


def open_tower(
    spec: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    pooling: Pooling = "mean",
) -> OpenTower:
    """Open a tower in evaluation mode."""
    if pooling not in get_args(Pooling):
        raise ConfigError(f"pooling: found {pooling!r}, expected 'mean' or 'cls'")
    text = os.fspath(spec)
    if is_factory(text):
        return _open_factory(text, checkpoint, pooling)
    if checkpoint is not None:
        raise ConfigError(f"found a checkpoint for {text!r}, expected one for a module:factory alone")
    if pooling != "mean":
        raise ConfigError(f"pooling: found {pooling!r}, expected 'mean', as for all built-in towers")
    return _open_directory(Path(text))


def make_tower(factory: str) -> nn.Module:
    """Make a new foreign tower, for training from the start; errors as for :func:`open_tower`."""
    module = _call_factory(factory, None)
    if not isinstance(module, nn.Module) or not list(module.parameters()):
        raise ConfigError(f"{factory} gave a {type(module).__name__}, expected a module with parameters")
    return _Pooled(module, "mean")


def save_tower(directory: str | os.PathLike[str], tower: Tower, *, replace: bool = False) -> None:
    """Write a tower's directory; see :func:`tape2048.torch.support.publish_directory`."""
    files = {TOWER_JSON: pretty_json(tower.config), MODEL: tensor_bytes(tower.state_dict())}
    publish_directory(directory, files, replace=replace)


def tower_sha256(tower: nn.Module) -> str:
    """Return a tower's identity, SHA-256 (hex) of its sizes and parameters."""
    config = tower.config if isinstance(tower, Tower) else None
    about = b"tape2048 tower 1\0" + (msgspec.json.encode(config) if config else b"")
    return content_sha256(about, tower.state_dict())


def build_tower(config: TowerConfig, tensors: Mapping[str, torch.Tensor], path: Path) -> Tower:
    """Make a tower with these parameters; raise ModelError where they do not match the sizes."""
    what = "the tower's parameters and sizes disagree"
    try:
        tower = Tower(config)
    except ConfigError as error:
        raise ModelError(f"{what}: {error}", path=path) from error
    return load_state(tower, tensors, what, path)


def _open_directory(path: Path) -> OpenTower:
    if not path.exists():
        raise MissingPathError("nothing stands at this path", path=path)
    if not path.is_dir():
        raise ModelError(
            "no directory of a tower or critic", path=path,
            hint="name one that `tape2048 critic train` made, or a module:factory",
        )  # fmt: skip
    if (path / TOWER_JSON).exists():
        config, tensors = read_json(path / TOWER_JSON, TowerConfig), read_tensors(path / MODEL)
    elif (path / CRITIC_JSON).exists():
        config, sha256 = _tower_in_critic(path / CRITIC_JSON)
        tensors = by_prefix(read_tensors(path / MODEL, sha256))["tower"]
    else:
        raise ModelError(f"neither {TOWER_JSON} nor {CRITIC_JSON}: no tower or critic", path=path)
    tower = build_tower(config, tensors, path)
    return OpenTower(tower.eval(), tower_sha256(tower), "mean", config=config)


class _TowerOfCritic(msgspec.Struct):
    config: TowerConfig | None = None


class _CriticWithTower(msgspec.Struct):
    kind: str
    tower: _TowerOfCritic | None = None
    model_sha256: str = ""


def _tower_in_critic(path: Path) -> tuple[TowerConfig, str]:
    """Read the sizes of a critic's tower, and the SHA-256 of its model's file."""
    found = read_json(path, _CriticWithTower)
    if found.kind != "tokens" or found.tower is None or found.tower.config is None:
        raise ModelError(
            "this critic contains no built-in tower: it was trained on embeddings, or with a foreign tower",
            path=path,
            hint="name the tower that made its embeddings",
        )
    return found.tower.config, found.model_sha256


def read_json(path: Path, kind: type[S]) -> S:
    """Read a small JSON file as a Struct; raise ModelError where it is malformed."""
    try:
        return msgspec.json.decode(read_path(path).tobytes(), type=kind)
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
            f"{spec} has neither a checkpoint nor parameters, which would identify it",
            hint="name its checkpoint",
        )
    return OpenTower(_Pooled(inner, pooling).eval(), sha256, pooling, factory=spec)


def _call_factory(spec: str, checkpoint: str | None) -> Any:
    match = _FACTORY.fullmatch(spec)
    if match is None:
        raise ConfigError(f"found the tower {spec!r}, expected module:factory")
    try:
        module = importlib.import_module(match["module"])
    except ModuleNotFoundError as error:
        # "their.towers" is missing where "their" is; a missing "torch" does not concern "torchtower".
        if error.name and not f"{match['module']}.".startswith(f"{error.name}."):
            raise MissingPackageError(f"{spec} needs {error.name}, which is not installed") from error
        raise ConfigError(
            f"{spec}: no module {match['module']!r}",
            hint="start where it is, or put its directory in PYTHONPATH",
        ) from error
    factory: Any = getattr(module, match["name"], None)
    if factory is None:
        raise ConfigError(f"{spec}: the module has no {match['name']!r}")
    if not callable(factory):
        raise ConfigError(f"{spec} is a {type(factory).__name__}, expected a function that makes a tower")
    made = factory(checkpoint)
    if not callable(made):
        raise ConfigError(f"{spec}({checkpoint!r}) gave a {type(made).__name__}, expected a callable")
    return made
