"""The parts of a training: model, optimizer, split, loaders, weights of labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from tape2048.critic.facts import check_columns, open_parts
from tape2048.errors import ColumnError, ConfigError, EmptyCorpusError, TapeError
from tape2048.torch.heads import CriticHead
from tape2048.torch.loader import CriticLoader
from tape2048.torch.torch_critic import CriticInfo, TowerInfo
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
    from tape2048.corpus import Corpus
    from tape2048.critic.critic_config import CriticConfig
    from tape2048.players import PlayedBy
    from tape2048.session.columns import Column
    from tape2048.torch.ranks import Ranks


#: Number of prefetched batches. On a busy machine, a thread may get no core for ten milliseconds: four steps
#: of a head.
_PREFETCH = 16
#: Most bytes of prefetched batches, unless the minimum number takes more.
_PREFETCH_BYTES = 64 * 1024 * 1024
_PREFETCH_MIN = 4


class TrainingData(NamedTuple):
    corpus: Corpus  # all rows, before the split
    players: list[PlayedBy]  # players of the games
    train: CriticLoader  # the loader of the training part: whole batches, equally many on each rank
    val: CriticLoader
    counts: dict[str, tuple[int, int]]  # number of rows in an epoch, and of runs, by part
    weights: tuple[float, ...] | None  # `pos_weight` of each threshold, or None
    mean_weight: float  # mean weight of the rows of a training epoch; estimated for a column of weights
    columns_sha256: str | None  # SHA-256 of the facts of the columns that are learned from
    # Share of true labels by threshold, smoothed by half a run so that none is 0 or 1.
    prior: tuple[float, ...]
    embeddings: Column | None  # embeddings of one session, for their facts; None if they are not used


def open_alike(config: CriticConfig, ranks: Ranks) -> TrainingData:
    """Open the sessions on every rank; raise an error on all ranks if the sessions or settings differ."""
    data, failed = None, None
    facts: dict[str, dict[str, str]] = {}
    try:
        data = _open(config, ranks)
        settings = {name: repr(value) for name, value in config.deciding().items()}
        settings["columns_sha256"] = repr(data.columns_sha256)
        sessions = data.corpus.session_identities()
        facts = {"session": sessions, "setting": settings, "all": {"rows": data.corpus.identity}}
    except TapeError as error:
        failed = error
    ranks.check_alike(facts, failed)
    if failed is not None:
        raise failed
    assert data is not None
    return data


def _open(config: CriticConfig, ranks: Ranks) -> TrainingData:
    corpus, players, parts = open_parts(config, "auto")
    cap = config.per_run
    sources = {name: part if cap is None else part.capped(cap) for name, part in parts.items()}
    field = "embeddings" if config.use_embeddings else "tokens"
    embeddings = None
    if config.use_embeddings:  # one session is enough: the loader compares all sessions
        embeddings = corpus.sessions[int(parts["train"].runs["session"][0])].column("embeddings")
    row_bytes = 16 if embeddings is None else embeddings.info.row_bytes
    common: dict[str, Any] = {
        "threads": 1,
        "prefetch": max(_PREFETCH_MIN, min(_PREFETCH, _PREFETCH_BYTES // (config.batch_rows * row_bytes))),
        "device": ranks.device,
        "fields": (field, "labels", "weight"),
        "label_dtype": "float32",
        "rank": ranks.rank,
        "world_size": ranks.world_size,
    }
    mean, columns_sha256 = check_columns(parts["train"], config)
    augment: Literal["d4"] | None = "d4" if config.augment == "d4" and not config.use_embeddings else None
    try:
        train = CriticLoader(
            sources["train"],
            config.batch_rows,
            seed=config.seed,
            augment=augment,
            drop_last=True,
            pool_rows=config.pool_rows,
            pool_sessions=config.pool_sessions,
            **common,
            **config.column_options,
        )
    except EmptyCorpusError as error:
        raise EmptyCorpusError(
            f"the training part: {error.message}", hint="lower batch_rows, or add games"
        ) from error
    outcomes = {**config.column_options, "targets": None}
    val = CriticLoader(sources["val"], config.batch_rows, shuffle=False, **common, **outcomes)
    learned = parts["train"]
    from_data = config.pos_weight == "dataset"
    half = 0.5 / np.count_nonzero(learned.row_counts)
    return TrainingData(
        corpus=corpus,
        players=players,
        train=train,
        val=val,
        counts={name: (len(source), len(parts[name].runs)) for name, source in sources.items()},
        weights=tuple(learned.pos_weight(config.tiles).tolist()) if from_data else config.weights,
        mean_weight=mean * len(learned) / len(sources["train"]),
        columns_sha256=columns_sha256,
        prior=tuple(((learned.prevalence(config.tiles) + half) / (1 + 2 * half)).tolist()),
        embeddings=embeddings,
    )


def bad_batch(data: TrainingData, part: Literal["train", "val"], epoch: int, index: int) -> str:
    """Describe the rows of a batch, and its first embedding that is not finite."""
    loader = data.train.batches if part == "train" else data.val.batches
    fields = ("row", "embeddings") if "embeddings" in loader.layout.fields else ("row",)
    source, batch_size, options = loader.__getstate__()["made"]
    options = {**options, "fields": fields, "weight": None, "targets": None}
    again = type(loader)(source, batch_size, **options)
    again.go_to(loader.epoch, 0, loader.start)
    batch = again.buffer()
    again.fill(batch, epoch=epoch, index=index)
    rows = batch["row"]
    name = "training" if part == "train" else "validation"
    text = f"rows {', '.join(str(row) for row in rows[:3])}, ... of the {name} part"
    if len(fields) == 2:
        # Infinities and NaN have all exponent bits set.
        odd = ((batch["embeddings"] & 0x7F80) == 0x7F80).any(axis=1)
        if odd.any():
            row = int(rows[odd.argmax()])
            run = loader.corpus.runs[int(np.searchsorted(loader.corpus.row_starts, row, "right")) - 1]
            session = loader.corpus.sessions[int(run["session"])]
            text += f". The embedding of row {row} (run {run['run_id']} of {session.name}) is not finite"
    return text


class CriticModel(nn.Module):
    """A tower, if any, and a head: maps tokens or embeddings to logits."""

    def __init__(self, tower: nn.Module | None, head: CriticHead) -> None:
        super().__init__()
        self.tower = tower
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, ``f32[B, T]``, of tokens ``u8[B, 16]`` or embeddings ``bf16[B, D]``."""
        return cast("torch.Tensor", self.head(x if self.tower is None else self.tower(x)))


def inputs(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["embeddings"] if "embeddings" in batch else batch["tokens"]


def make_model(config: CriticConfig, data: TrainingData) -> CriticModel:
    """Make a model that predicts the prevalence for every row; errors are of the configured tower."""
    tower: nn.Module | None = None
    if data.embeddings is not None:
        _check_tower(config, data.embeddings)
        width = data.embeddings.values.shape[1]
    else:
        if config.tower:
            is_new = is_factory(config.tower)
            tower = make_tower(config.tower) if is_new else open_tower(config.tower).module
        else:
            sizes = {name: getattr(config, f"tower_{name}") for name in TowerConfig.__struct_fields__}
            tower = Tower(TowerConfig(**sizes))
        with torch.no_grad():
            width = tower(torch.zeros(1, 16, dtype=torch.uint8)).shape[1]
    head = CriticHead(width, config.tiles, config.hidden, config.dropout, ordered=config.ordered)
    weights = (None if config.ordered else data.weights) or (1.0,) * len(data.prior)
    # With weight w, the loss is minimal at the odds w p / (1 - p).
    head.set_prior([p * w / (p * w + 1 - p) for p, w in zip(data.prior, weights, strict=True)])
    return CriticModel(tower, head)


def _check_tower(config: CriticConfig, embeddings: Column) -> None:
    if not config.tower:
        return
    if is_factory(config.tower):
        raise ConfigError(
            f"tower: found {config.tower!r} with use_embeddings, expected a directory, or no tower",
            hint="leave tower out: the embeddings identify their tower",
        )
    found = open_tower(config.tower)
    facts = embeddings.info.facts
    if found.sha256 != facts.get("model_sha"):
        raise ColumnError(
            f"found embeddings of the tower {facts.get('model_sha')} (D = {embeddings.values.shape[1]}), "
            f"expected {found.sha256}, as {config.tower}",
            path=config.data,
            hint=f"Make embeddings with this tower: tape2048 embed --tower {config.tower} --force",
        )


def split_of_tower(config: CriticConfig) -> str | None:
    """Return a warning if the tower was trained on games outside the training part; otherwise, None.

    A part is an interval of the runs' hashes, and the training part is the first interval. With the same salt
    and a share that is not larger, the tower's games are a subset of the training part.
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
        f"the tower {config.tower} learned from another part of the games (train {share:g}{salt}), which may "
        "contain held-out games of these sessions: the metrics may flatter this critic"
    )


def tower_info(config: CriticConfig, data: TrainingData, model: CriticModel) -> TowerInfo:
    if data.embeddings is not None:
        facts = data.embeddings.info.facts
        return TowerInfo(sha256=facts.get("model_sha", ""), pooling=facts.get("pooling", "mean"))
    assert model.tower is not None
    sha256 = tower_sha256(model.tower)
    if isinstance(model.tower, Tower):
        return TowerInfo(sha256=sha256, config=model.tower.config)
    return TowerInfo(sha256=sha256, factory=config.tower)


def make_optimizer(config: CriticConfig, model: CriticModel) -> torch.optim.AdamW:
    """Make an AdamW optimizer. Weight decay is on matrices, and not on biases, norms and embeddings."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": one} for one in (0.01, 0.0)]
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or id(parameter) in embeddings or name.endswith("position")
        groups[plain]["params"].append(parameter)
    return torch.optim.AdamW(groups, lr=config.learning_rate)


def learning_rate(config: CriticConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step, from 0: a linear rise from 0, then half a cosine down to 0."""
    warmup = min(config.warmup_steps, steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def autocast(config: CriticConfig, device: torch.device) -> torch.autocast:
    """Return the context in which the model runs: bfloat16 on CUDA, if configured."""
    return torch.autocast("cuda", torch.bfloat16, enabled=config.bf16 and device.type == "cuda")
