"""The sample of rows for a critic's evaluation, with the scores of the critic and of baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tape2048.errors import ColumnError
from tape2048.session.embeddings import open_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.baselines import Baseline

#: Rows fetched at a time.
BATCH_ROWS = 32_768


class Critic(Protocol):
    """The interface of critics; :class:`tape2048.torch.critic.TorchCritic` has it."""

    @property
    def thresholds(self) -> tuple[int, ...]:
        """The T tiles."""

    @property
    def needs_embeddings(self) -> bool:
        """Whether it takes embeddings and no boards."""

    def __call__(self, boards: NDArray[np.uint64], /) -> NDArray[np.float32]:
        """Return probabilities ``f32[n, T]`` of boards ``u64[n]``."""

    def from_embeddings(self, x: NDArray[np.uint16], /) -> NDArray[np.float32]:
        """Return probabilities ``f32[n, T]`` of embeddings ``u16[n, D]``."""


class Sample(NamedTuple):
    """Rows and their scores."""

    boards: NDArray[np.uint64]  # `u64[N]`
    runs: NDArray[np.int32]  # the run of each row, `i32[N]`: an index into `highest` and `lengths`
    highest: NDArray[np.int64]  # the highest tile of each run, `i64[R]`
    lengths: NDArray[np.int64]  # moves of each run, `i64[R]`
    weights: NDArray[np.float32]  # rows that a row of each run stands for, `f32[R]`
    steps: NDArray[np.uint32]  # move number of each row, `u32[N]`
    tiles: NDArray[np.uint8]  # exponent of the highest tile on the board, `u8[N]`
    probabilities: NDArray[np.float32]  # the critic's, `f32[N, T]`; `f32[N, 0]` without a critic
    baselines: dict[str, NDArray[Any]]  # scores by name, `[N]` each

    def labels(self, thresholds: Sequence[int]) -> NDArray[np.bool_]:
        """Return ``bool[R, T]``: the tiles that each run reached."""
        reached: NDArray[np.bool_] = self.highest[:, None] >= np.asarray(thresholds)
        return reached

    @property
    def row_weights(self) -> NDArray[np.float64]:
        """Rows that each row stands for: ``f64[N]``."""
        return self.weights.astype(np.float64)[self.runs]


def take_sample(
    corpus: Corpus,
    critic: Critic | None,
    baselines: Mapping[str, Baseline],
    *,
    per_run: int | None,
    seed: int,
    progress: Callable[[int, int], object] | None = None,
) -> Sample:
    """Draw at most ``per_run`` rows of each run (None: all), with their weights, and score them.

    ``progress`` is called with the number of rows done and of all rows.
    """
    from tape2048.critic.baselines import highest_tile
    from tape2048.game.rules import exps_to_boards

    embedded = critic is not None and critic.needs_embeddings
    source = corpus if per_run is None else corpus.capped(per_run)
    batches = source.batches(
        BATCH_ROWS, shuffle=False, seed=seed, rank=0, world_size=1,
        fields=("tokens", "run", "step", *(("embeddings",) if embedded else ())),
    )  # fmt: skip
    parts: list[tuple[Any, ...]] = []
    done = 0
    for batch in batches:
        boards, steps = exps_to_boards(batch["tokens"]), batch["step"].copy()
        if critic is None:
            probabilities = np.empty((len(boards), 0), np.float32)
        else:
            probabilities = critic.from_embeddings(batch["embeddings"]) if embedded else critic(boards)
        scores = [baseline(boards, steps) for baseline in baselines.values()]
        runs = batch["run"].astype(np.int32)
        parts.append((boards, runs, steps, highest_tile(boards, steps), probabilities, *scores))
        done += len(boards)
        if progress is not None:
            progress(done, len(source))
    boards, runs, steps, tiles, probabilities, *scores = map(np.concatenate, zip(*parts, strict=True))
    return Sample(
        boards,
        runs,
        corpus.runs["highest_tile"].astype(np.int64),
        corpus.runs["steps"].astype(np.int64),
        source.weights,
        steps,
        tiles,
        probabilities,
        dict(zip(baselines, scores, strict=True)),
    )


def check_embeddings(corpus: Corpus, tower_sha256: str) -> None:
    """Raise ColumnError unless all sessions of a corpus have embeddings of this tower."""
    for number in np.unique(corpus.runs["session"]).tolist():
        session = corpus.sessions[number]
        found = open_embeddings(session)
        if found.model_sha != tower_sha256:
            raise ColumnError(
                f"found embeddings of the tower {found.model_sha[:16]}..., and the critic learned from those "
                f"of {tower_sha256[:16]}...",
                path=session.path,
                hint="name the critic's tower (--tower), or make embeddings with it",
            )
