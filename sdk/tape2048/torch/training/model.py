"""Model of a training: tower and head, or a head alone; its optimizer and learning rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tape2048.errors import ColumnError, ConfigError
from tape2048.torch.critic import CriticHead, CriticInfo, TowerInfo
from tape2048.torch.tower import (
    CRITIC_JSON,
    Tower,
    TowerConfig,
    is_factory,
    make_tower,
    open_tower,
    read_json,
    tower_sha256,
)

if TYPE_CHECKING:
    from tape2048.critic.config import CriticConfig
    from tape2048.session.directory import Embeddings
    from tape2048.torch.training.data import TrainingData


class CriticModel(nn.Module):
    """Maps tokens (with a tower) or embeddings to logits."""

    def __init__(self, tower: nn.Module | None, head: CriticHead) -> None:
        super().__init__()
        self.tower = tower
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``f32[B, T]`` of ``u8[B, 16]`` or ``bf16[B, D]``."""
        logits: torch.Tensor = self.head(x if self.tower is None else self.tower(x))
        return logits


def inputs(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the model's input from a batch."""
    return batch["embeddings"] if "embeddings" in batch else batch["tokens"]


def make_model(config: CriticConfig, data: TrainingData) -> CriticModel:
    """Make a new model, which predicts the prevalence for every row; raise errors of the configured tower."""
    tower: nn.Module | None = None
    if data.embeddings is not None:
        _check_tower(config, data.embeddings)
        width = data.embeddings.values.shape[1]
    else:
        tower = _new_tower(config)
        with torch.no_grad():
            width = tower(torch.zeros(1, 16, dtype=torch.uint8)).shape[1]
    head = CriticHead(width, config.tiles, config.hidden, config.dropout, ordered=config.ordered)
    weights = (None if config.ordered else data.weights) or (1.0,) * len(data.prior)
    # With a weight w, the loss is minimal at the odds w p / (1 - p).
    head.set_prior([p * w / (p * w + 1 - p) for p, w in zip(data.prior, weights, strict=True)])
    return CriticModel(tower, head)


def _new_tower(config: CriticConfig) -> nn.Module:
    if config.tower and is_factory(config.tower):
        return make_tower(config.tower)
    if config.tower:
        return open_tower(config.tower).module
    sizes = {name: getattr(config, f"tower_{name}") for name in TowerConfig.__struct_fields__}
    return Tower(TowerConfig(**sizes))


def _check_tower(config: CriticConfig, embeddings: Embeddings) -> None:
    """Compare the embeddings with the configured tower, if there is one."""
    if not config.tower:
        return
    if is_factory(config.tower):
        raise ConfigError(
            f"tower: found {config.tower!r} with use_embeddings, expected a directory, or nothing",
            hint="the embeddings identify their tower",
        )
    found = open_tower(config.tower)
    if found.sha256 != embeddings.model_sha:
        raise ColumnError(
            f"the sessions' embeddings are of tower {embeddings.model_sha} "
            f"(D = {embeddings.values.shape[1]}); {config.tower} is {found.sha256}",
            path=config.data,
            hint="tape2048 embed --force makes them again",
        )


def split_of_tower(config: CriticConfig) -> str | None:
    """Warn of a tower that was trained on games outside this training's part.

    A part is an interval of the runs' hashes, and the training part is the first one: with the same salt and
    no larger a share, the tower's games are a subset of this training's.
    """
    path = Path(config.tower) / CRITIC_JSON
    if not config.tower or is_factory(config.tower) or not path.exists():
        return None
    split = read_json(path, CriticInfo).split
    share = split.fractions.get("train", 0.0)
    if split.salt == config.split_salt and share <= config.fractions["train"]:
        return None
    salt = f", split_salt {split.salt!r}" if split.salt != config.split_salt else ""
    return (
        f"the tower {config.tower} learned from another part of the games (train {share:g}{salt}): held-out "
        "games of these sessions may be among them, and flatter this critic"
    )


def tower_info(config: CriticConfig, data: TrainingData, model: CriticModel) -> TowerInfo:
    """Describe the tower for ``critic.json``."""
    if data.embeddings is not None:
        pooling: Any = data.embeddings.pooling
        return TowerInfo(sha256=data.embeddings.model_sha, pooling=pooling)
    assert model.tower is not None
    sha256 = tower_sha256(model.tower)
    if isinstance(model.tower, Tower):
        return TowerInfo(sha256=sha256, config=model.tower.config)
    return TowerInfo(sha256=sha256, factory=config.tower)


def make_optimizer(config: CriticConfig, model: CriticModel) -> torch.optim.AdamW:
    """Make AdamW with weight decay on matrices only: not on biases, norms and embeddings."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or id(parameter) in embeddings or name.endswith("position")
        (rest if plain else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate)


def learning_rate(config: CriticConfig, step: int, steps: int) -> float:
    """Return the rate of step ``step`` (from 0) of ``steps``: linear from 0 up, then half a cosine to 0."""
    warmup = min(config.warmup_steps, steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def autocast(config: CriticConfig, device: torch.device) -> torch.autocast:
    """Run the tower under bfloat16 on CUDA, if configured."""
    return torch.autocast("cuda", torch.bfloat16, enabled=config.bf16 and device.type == "cuda")
