"""What a critic learns from: the split, its loaders, the balance of its labels, whose embeddings they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tape2048.corpus import Capped, Corpus
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.session.embeddings import open_embeddings
from tape2048.session.labels import positive_weights, prevalence
from tape2048.torch.loader import CriticLoader

if TYPE_CHECKING:
    from tape2048.critic.config import CriticConfig
    from tape2048.session.embeddings import Embeddings
    from tape2048.torch.training.ranks import Ranks

#: Batches made ahead. A thread that gets no core for ten milliseconds, which others on the machine see to,
#: is behind four steps of a head by then.
_AHEAD = 16
#: ... in no more memory than this, if they are large, but for a few.
_AHEAD_BYTES = 64 * 1024 * 1024
_AHEAD_MIN = 4


class TrainingData(NamedTuple):
    """Everything about the rows.

    Attributes:
        corpus: all of them, before the split.
        train: the loader of the training part, whole batches alone, equally many on each rank.
        val: the loader of the validation part, in order.
        counts: rows of an epoch and runs, by part.
        weights: ``pos_weight`` of each threshold, or None.
        prior: share of true labels among the rows of an epoch, of each threshold, smoothed by half a run so
            that none is 0 or 1.
        embeddings: facts of them (of one session), where they are used.
    """

    corpus: Corpus
    train: CriticLoader
    val: CriticLoader
    counts: dict[str, tuple[int, int]]
    weights: tuple[float, ...] | None
    prior: tuple[float, ...]
    embeddings: Embeddings | None


def open_data(config: CriticConfig, ranks: Ranks) -> TrainingData:
    """Open the sessions and split them.

    Raises:
        EmptyCorpusError: no session, no run, a part without any, or not one whole batch.
        EmbeddingsError: ``use_embeddings``, and a session has none, or they are damaged or of other rows.
        MixedRowsError: sessions with embeddings of different towers.
        ConfigError: a share that cannot be.
        TapeError: as for :meth:`Corpus.open`.
    """
    corpus = Corpus.open(config.data, where=config.where or None, load=config.load, progress=False)  # type: ignore[arg-type]
    try:
        parts = corpus.split(salt=config.split_salt, **config.fractions)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    sources = {
        name: part if config.per_run is None else part.capped(config.per_run) for name, part in parts.items()
    }
    field = "embeddings" if config.use_embeddings else "tokens"
    embeddings = None
    if config.use_embeddings:  # of one session; the loader compares those of all
        embeddings = open_embeddings(corpus.sessions[int(parts["train"].runs["session"][0])])
    row_bytes = 16 if embeddings is None else embeddings.values.itemsize * embeddings.values.shape[1]
    common: dict[str, Any] = {
        "threads": config.loader_threads,
        "prefetch": max(_AHEAD_MIN, min(_AHEAD, _AHEAD_BYTES // (config.batch_rows * row_bytes))),
        "device": ranks.device,
        "fields": (field, "labels"),
        "thresholds": config.tiles,
        "label_dtype": "float32",
        "rank": ranks.rank,
        "world_size": ranks.world_size,
    }
    augment: Literal["d4"] | None = "d4" if config.augment == "d4" and not config.use_embeddings else None
    try:
        train = CriticLoader(
            sources["train"], config.batch_rows, seed=config.seed, augment=augment, drop_last=True, **common
        )
    except EmptyCorpusError as error:
        raise EmptyCorpusError(
            f"the training part: {error.message}", hint="a smaller batch_rows, or more games"
        ) from error
    val = CriticLoader(sources["val"], config.batch_rows, shuffle=False, **common)
    runs = parts["train"].run_labels(config.tiles)
    taken = _taken(sources["train"])
    from_data = config.pos_weight == "dataset"
    return TrainingData(
        corpus=corpus,
        train=train,
        val=val,
        counts={name: (len(source), len(parts[name].runs)) for name, source in sources.items()},
        weights=tuple(map(float, positive_weights(runs, taken))) if from_data else config.weights,
        prior=_prior(runs, taken),
        embeddings=embeddings,
    )


def _taken(source: Corpus | Capped) -> Any:
    """Rows of each run in an epoch: ``i8[R]``."""
    return np.diff(source.starts) if isinstance(source, Capped) else source.row_counts


def _prior(runs: Any, taken: Any) -> tuple[float, ...]:
    half = 0.5 * taken.sum() / max(1, np.count_nonzero(taken))
    total = taken.sum()
    return tuple(float((share * total + half) / (total + 2 * half)) for share in prevalence(runs, taken))


def bad_batch(data: TrainingData, part: Literal["train", "val"], epoch: int, index: int) -> str:
    """Which rows a batch of a part has, in words, and which embedding is not finite."""
    loader = data.train.batches if part == "train" else data.val.batches
    fields = ("row", "embeddings") if "embeddings" in loader.layout.fields else ("row",)
    again = type(loader)(
        loader.source, loader.batch_size, seed=loader.seed, fields=fields, shuffle=part == "train",
        drop_last=part == "train", rank=loader.rank, world_size=loader.world_size,
    )  # fmt: skip
    batch = again.buffer()
    again.fill(batch, epoch=epoch, index=index)
    rows = batch["row"]
    name = "training" if part == "train" else "validation"
    text = f"rows {', '.join(str(row) for row in rows[:3])}, ... of the {name} part"
    if len(fields) == 2:
        # All exponent bits set: infinite, or not a number.
        odd = ((batch["embeddings"] & 0x7F80) == 0x7F80).any(axis=1)
        if odd.any():
            row = int(rows[odd.argmax()])
            run = loader.corpus.runs[int(np.searchsorted(loader.corpus.row_starts, row, "right")) - 1]
            session = loader.corpus.sessions[int(run["session"])]
            text += f"; the embedding of row {row} (run {run['id']} of {session.name}) is not finite"
    return text
