"""Trained critics: their directories, and their probabilities for boards.

::

    <dir>/
        critic.json          CriticInfo: thresholds, sizes, training data, metrics
        model.safetensors    tower.* (kind "tokens") and head.*, corrected for pos_weight

::

    critic = TorchCritic.load("critic/best")
    critic(boards)  # u64[N] or u8[N, 16] -> f32[N, T]: P(the game reaches each of critic.thresholds)
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import torch
from torch import nn

from tape2048._version import __version__
from tape2048.base.drawing import DrawsBoards
from tape2048.base.text import pretty_json
from tape2048.critic.facts import CriticFacts
from tape2048.errors import ColumnError, MissingPathError, ModelError, reader_hint
from tape2048.game.rules import boards_to_exps
from tape2048.session.run_table import check_thresholds
from tape2048.torch.heads import CriticHead, HeadInfo
from tape2048.torch.tower import (
    CRITIC_JSON,
    MODEL,
    Pooling,
    TowerConfig,
    build_tower,
    by_prefix,
    load_state,
    make_tower,
    open_tower,
    pick_device,
    publish_directory,
    read_json,
    read_tensors,
    tensor_bytes,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


VERSION = 2


class TowerInfo(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str  # identity of the tower; for kind `"embeddings"`, the `model_sha` of the embeddings
    pooling: Pooling = "mean"  # how its states become vectors
    config: TowerConfig | None = None  # sizes of a built-in tower that the critic contains
    factory: str | None = None  # `module:factory` of a foreign tower


class CriticInfo(CriticFacts, frozen=True, kw_only=True):
    version: int = VERSION
    release: str = __version__  # release that wrote it
    kind: Literal["tokens", "embeddings"]  # input: `"tokens"` (boards), or `"embeddings"` by the tower
    tower: TowerInfo
    head: HeadInfo  # sizes of the head
    model_sha256: str = ""  # SHA-256 of `model.safetensors`


def save_critic(
    directory: str | os.PathLike[str],
    info: CriticInfo,
    head: CriticHead,
    tower: nn.Module | None = None,
    *,
    replace: bool = False,
) -> CriticInfo:
    """Write a critic's directory, which appears atomically; return ``info`` with the SHA-256 of the model."""
    tensors = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    if tower is not None:
        tensors |= {f"tower.{name}": tensor for name, tensor in tower.state_dict().items()}
    model = tensor_bytes(tensors)
    info = msgspec.structs.replace(info, model_sha256=hashlib.sha256(model).hexdigest(), release=__version__)
    publish_directory(directory, {MODEL: model, CRITIC_JSON: pretty_json(info)}, replace=replace)
    return info


class TorchCritic(DrawsBoards):
    """A trained critic, a function from boards to probabilities; see :meth:`load`.

    Attributes:
        info: content of ``critic.json``.
        thresholds: tiles, in the order of the probabilities.
        kind: ``"tokens"`` or ``"embeddings"``.
        head: the head, in evaluation mode.
        tower: the tower, or None.
        device: device of head and tower.
        batch_rows: most boards in a batch.

    Example:
        >>> import numpy as np
        >>> from tape2048 import Session, sessions
        >>> from tape2048.torch import TorchCritic
        >>> critic = TorchCritic.load("critic/best", device="cpu")
        >>> critic(np.array([0x1200, 0x3], np.uint64)).shape, critic.thresholds
        ((2, 3), (8192, 16384, 32768))
        >>> critic(Session.open(sessions("selfplay")[0]).tokens([0, 7])).shape
        (2, 3)
    """

    def __init__(
        self,
        info: CriticInfo,
        head: CriticHead,
        tower: nn.Module | None = None,
        *,
        device: str | torch.device = "cpu",
        batch_rows: int = 8192,
    ) -> None:
        if batch_rows < 1:
            raise ValueError(f"batch_rows={batch_rows}; expected at least 1")
        self.info = info
        self.thresholds: tuple[int, ...] = tuple(info.thresholds)
        self.kind: Literal["tokens", "embeddings"] = info.kind
        self.device = torch.device(device)
        self.head = head.to(self.device).eval()
        self.tower = None if tower is None else tower.to(self.device).eval()
        self.batch_rows = batch_rows

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: str = "auto",
        *,
        batch_rows: int = 8192,
        tower: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> TorchCritic:
        """Load a critic from its directory.

        No code is imported because of the directory's content: the caller must pass the ``module:factory`` of
        a foreign tower.

        Args:
            path: the directory.
            device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
            batch_rows: most boards in a batch, at least 1.
            tower: for kind ``"embeddings"``, the tower that made the embeddings (a directory or
                ``module:factory``), so that the critic takes boards. For kind ``"tokens"`` with a foreign
                tower, its ``module:factory``.
            checkpoint: argument of the factory, for kind ``"embeddings"``.

        Raises:
            MissingPathError: the path does not exist.
            ModelError: there is no critic, it is damaged, or ``tower`` is not its tower.
            ConfigError: there is no such device, or the factory cannot be used.
            StorageError: the operating system could not read a file.
        """
        chosen = pick_device(device)
        directory = Path(os.path.abspath(path))
        info = _read_info(directory)
        parts = by_prefix(read_tensors(directory / MODEL, info.model_sha256))
        if foreign := parts.keys() - {"head", "tower"}:
            raise ModelError(
                f"found tensors {sorted(foreign)}, expected only head.* and tower.*", path=directory / MODEL
            )
        what = "the head's parameters and sizes disagree"
        arguments = msgspec.structs.asdict(info.head)
        head = load_state(
            lambda: CriticHead(thresholds=info.thresholds, **arguments), parts["head"], what, directory
        )
        module: nn.Module | None = None
        if info.kind == "tokens":
            module = _own_tower(info, parts["tower"], directory, tower)
        elif tower is not None:
            opened = open_tower(tower, checkpoint=checkpoint, pooling=info.tower.pooling)
            if opened.sha256 != info.tower.sha256:
                raise ModelError(
                    f"found the tower {tower} with SHA-256 {opened.sha256}, expected {info.tower.sha256}, as "
                    "of the embeddings that this critic was trained on",
                    path=directory,
                )
            module = opened.module
        return cls(info, head, module, device=chosen, batch_rows=batch_rows)

    @property
    def needs_embeddings(self) -> bool:
        """Whether the critic takes only embeddings: it has no tower, and :meth:`__call__` raises an error."""
        return self.tower is None

    @property
    def sha256(self) -> str:
        """Identity of the critic: SHA-256 (hexadecimal) of the file of its parameters."""
        return self.info.model_sha256

    def __repr__(self) -> str:
        return f"<TorchCritic: {self.kind} -> {self.thresholds}, step {self.info.step:,}, on {self.device}>"

    def __call__(self, boards: ArrayLike) -> NDArray[np.float32]:
        """Return P(the game reaches each threshold), ``f32[N, T]``; boards can be exponents ``u8[N, 16]``."""
        found = boards if isinstance(boards, np.ndarray) else np.asarray(boards, object)
        if found.ndim != 1 and (found.shape[1:] != (16,) or found.dtype != np.uint8):
            given = f"{found.dtype} of shape {found.shape}"
            raise ValueError(f"boards are {given}; expected packed boards u64[N] or exponents u8[N, 16]")
        tokens = boards_to_exps(boards) if found.ndim == 1 else found
        if tokens.size and tokens.max() > 15:
            raise ValueError(f"found the exponent {tokens.max()}, expected at most 15")
        if self.tower is None:
            raise ModelError(
                "found boards, expected embeddings: this critic has no tower",
                hint="load it with the tower that made its embeddings: TorchCritic.load(path, tower=...)",
            )
        tower = self.tower

        def logits(batch: torch.Tensor) -> torch.Tensor:
            vectors = tower(batch)
            # Embeddings are rounded to bfloat16, so a head that was trained on them gets rounded vectors.
            return self.head(vectors.to(torch.bfloat16) if self.kind == "embeddings" else vectors)  # type: ignore[no-any-return]

        return self._batched(torch.from_numpy(np.ascontiguousarray(tokens)), logits)

    def from_embeddings(self, x: NDArray[Any] | torch.Tensor) -> NDArray[np.float32]:
        """Return the probabilities for vectors ``[N, D]`` of the critic's tower; see :meth:`__call__`.

        Args:
            x: the vectors, as bits of bfloat16 (``u16``, as in sessions), floats, or a tensor.

        Raises:
            ColumnError: the vectors have another width.
        """
        if isinstance(x, torch.Tensor):
            tensor = x
        elif x.dtype == np.uint16:
            # Torch warns of read-only memory.
            bits = np.require(x, requirements=("C", "W")).view(np.int16)
            tensor = torch.from_numpy(bits).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.ascontiguousarray(x, np.float32))
        if tensor.ndim != 2 or tensor.shape[1] != self.head.in_dim:
            raise ColumnError(
                f"found embeddings of shape {list(tensor.shape)}, expected [N, {self.head.in_dim}]",
                hint="pass embeddings of the tower that this critic was trained on",
            )
        return self._batched(tensor, self.head)

    @torch.inference_mode()
    def _batched(self, rows: torch.Tensor, logits: Any) -> NDArray[np.float32]:
        found = np.empty((len(rows), len(self.thresholds)), np.float32)
        for begin in range(0, len(rows), self.batch_rows):
            batch = rows[begin : begin + self.batch_rows].to(self.device)
            found[begin : begin + len(batch)] = torch.sigmoid(logits(batch)).cpu().numpy()
        if self.head.ordered:
            # The sigmoids of equal logits may differ in the last bit, since some are vectorised.
            np.minimum.accumulate(found, axis=1, out=found)
        return found


def _read_info(directory: Path) -> CriticInfo:
    path = directory / CRITIC_JSON
    if not directory.exists():
        raise MissingPathError("no such file or directory", path=directory)
    if not path.exists():
        raise ModelError(
            f"no {CRITIC_JSON}: not a critic", path=directory,
            hint="name the directory best or last that `tape2048 critic train` writes",
        )  # fmt: skip
    info: CriticInfo = read_json(path, CriticInfo)
    if info.version != VERSION:
        old = "critics of version 1 learned from unweighted rows. Train the critic again"
        raise ModelError(
            f"critic version {info.version}; expected {VERSION}", path=path,
            hint=old if info.version < VERSION else reader_hint(info.release),
        )  # fmt: skip
    try:
        check_thresholds(info.thresholds)
    except ValueError as error:
        raise ModelError(str(error), path=path) from error
    return info


def _own_tower(
    info: CriticInfo, tensors: dict[str, torch.Tensor], directory: Path, tower: str | os.PathLike[str] | None
) -> nn.Module:
    if info.tower.config is not None:
        if tower is not None:
            found = f"found the tower {tower}, expected none: this critic contains its tower"
            raise ModelError(found, path=directory)
        return build_tower(info.tower.config, tensors, directory)
    if tower is None or os.fspath(tower) != info.tower.factory:
        raise ModelError(
            f"found {'no tower' if tower is None else f'the tower {tower}'}, expected {info.tower.factory}, "
            "which made the tower of this critic", path=directory,
            hint=f"if you trust that code, pass tower={info.tower.factory!r}",
        )  # fmt: skip
    module = make_tower(os.fspath(tower))
    return load_state(lambda: module, tensors, f"the tower of {tower} has other parameters", directory)
