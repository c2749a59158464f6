"""Data of a critic's training: the split, its loaders, the balance of labels, the embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from tape2048.critic.facts import PlayedBy, open_parts, strangers
from tape2048.critic.ntuple.critic import NTupleCritic
from tape2048.errors import EmptyCorpusError, ModelError, TapeError
from tape2048.game.rules import exps_to_boards
from tape2048.session.session import open_embeddings
from tape2048.torch.loader import CriticLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048.corpus import Corpus
    from tape2048.critic.config import CriticConfig
    from tape2048.session.directory import Embeddings
    from tape2048.torch.training.ranks import Ranks


#: Prefetched batches. A thread that gets no core for ten milliseconds, as on a busy machine, falls four
#: steps of a head behind.
_PREFETCH = 16
#: Memory for prefetched batches, except for the minimum.
_PREFETCH_BYTES = 64 * 1024 * 1024
_PREFETCH_MIN = 4


class TrainingData(NamedTuple):
    """The rows of a training."""

    corpus: Corpus  # all rows, before the split
    players: list[PlayedBy]  # whose games these are
    train: CriticLoader  # the loader of the training part: complete batches, equally many on each rank
    val: CriticLoader
    counts: dict[str, tuple[int, int]]  # number of rows in an epoch and of runs, by part
    weights: tuple[float, ...] | None  # `pos_weight` of each threshold, or None
    mean_weight: float  # of the rows of an epoch of the training part
    # Share of true labels by threshold, smoothed by half a run so that none is 0 or 1.
    prior: tuple[float, ...]
    embeddings: Embeddings | None  # embeddings of one session, for their facts; None if they are not used


def open_alike(config: CriticConfig, ranks: Ranks) -> TrainingData:
    """Open the sessions on every rank, and raise an error on all of them if they differ."""
    data, failed = None, None
    facts: dict[str, dict[str, str]] = {}
    try:
        data = _open(config, ranks)
        settings = {name: repr(value) for name, value in config.deciding().items()}
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
    corpus, players, parts = open_parts(config, config.load)
    cap = config.per_run
    sources = {name: part if cap is None else part.capped(cap) for name, part in parts.items()}
    field = "embeddings" if config.use_embeddings else "tokens"
    embeddings = None
    if config.use_embeddings:  # of one session; the loader compares all sessions
        embeddings = open_embeddings(corpus.sessions[int(parts["train"].runs["session"][0])])
    row_bytes = 16 if embeddings is None else embeddings.values.itemsize * embeddings.values.shape[1]
    common: dict[str, Any] = {
        "threads": config.loader_threads,
        "prefetch": max(_PREFETCH_MIN, min(_PREFETCH, _PREFETCH_BYTES // (config.batch_rows * row_bytes))),
        "device": ranks.device,
        "fields": (field, "labels", "weight"),
        "thresholds": config.tiles,
        "label_dtype": "float32",
        "rank": ranks.rank,
        "world_size": ranks.world_size,
    }
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
        )
    except EmptyCorpusError as error:
        raise EmptyCorpusError(
            f"the training part: {error.message}", hint="a smaller batch_rows, or more games"
        ) from error
    val = CriticLoader(sources["val"], config.batch_rows, shuffle=False, **common)
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
        mean_weight=len(learned) / len(sources["train"]),
        prior=tuple(((learned.prevalence(config.tiles) + half) / (1 + 2 * half)).tolist()),
        embeddings=embeddings,
    )


def bad_batch(data: TrainingData, part: Literal["train", "val"], epoch: int, index: int) -> str:
    """Describe the rows of a batch, and the first embedding that is not finite."""
    loader = data.train.batches if part == "train" else data.val.batches
    fields = ("row", "embeddings") if "embeddings" in loader.layout.fields else ("row",)
    again = type(loader)(
        loader.source, loader.batch_size, seed=loader.seed, fields=fields, shuffle=part == "train",
        drop_last=part == "train", rank=loader.rank, world_size=loader.world_size,
        pool_rows=loader.pool_rows, pool_sessions=loader.pool_sessions,
    )  # fmt: skip
    batch = again.buffer()
    again.fill(batch, epoch=epoch, index=index)
    rows = batch["row"]
    name = "training" if part == "train" else "validation"
    text = f"rows {', '.join(str(row) for row in rows[:3])}, ... of the {name} part"
    if len(fields) == 2:
        # All exponent bits are set in infinities and NaN.
        odd = ((batch["embeddings"] & 0x7F80) == 0x7F80).any(axis=1)
        if odd.any():
            row = int(rows[odd.argmax()])
            run = loader.corpus.runs[int(np.searchsorted(loader.corpus.row_starts, row, "right")) - 1]
            session = loader.corpus.sessions[int(run["session"])]
            text += f"; the embedding of row {row} (run {run['id']} of {session.name}) is not finite"
    return text


class Targets:
    """What to learn from a batch: outcomes of games, a teacher's probabilities, or a mixture of both.

    A game's outcome is one bit for thousands of its rows. A teacher, an n-tuple critic that learned by
    temporal differences, has a probability for each board. Learning from it is distillation (Hinton, Vinyals
    and Dean, "Distilling the knowledge in a neural network", 2015): the teacher's errors replace the bit's
    noise.
    """

    def __init__(self, config: CriticConfig, players: Sequence[PlayedBy]) -> None:
        self.share = config.teacher_share
        self.teacher = NTupleCritic.load(config.teacher) if self.share else None
        if self.teacher is None:
            return
        if self.teacher.thresholds != config.tiles:
            raise ModelError(
                f"the teacher predicts the tiles {self.teacher.thresholds}, and the training {config.tiles}",
                path=config.teacher,
                hint="--thresholds names the teacher's",
            )
        if others := strangers(self.teacher.info, players):
            judged = "; ".join(map(str, self.teacher.info.players))
            raise ModelError(
                f"the teacher judges {judged}, and these are games of {'; '.join(map(str, others))}",
                path=config.teacher,
                hint="train a teacher on the same player's games: tape2048 critic train --kind ntuple",
            )

    def __call__(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the targets of a batch with tokens and labels: ``f32[n, T]``."""
        labels = batch["labels"]
        if self.teacher is None:
            return labels
        boards = exps_to_boards(batch["tokens"].cpu().numpy())
        taught = torch.from_numpy(self.teacher(boards)).to(labels.device)
        return torch.lerp(labels, taught, self.share)
