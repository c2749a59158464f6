"""What was played, in numbers: from a session's run table alone, so O(runs) however many rows there are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session

__all__ = [
    "LABEL_THRESHOLDS",
    "REACH_THRESHOLDS",
    "Summary",
    "Tile",
    "directory_bytes",
    "label_prevalence",
    "quantiles",
    "reach",
    "summarize",
    "tiles",
]

#: Tiles whose share of games tells players apart: weak ones by the first, strong ones by the last.
REACH_THRESHOLDS = (2048, 4096, 8192, 16384, 32768)

#: The critic's questions: will this game reach that tile?
LABEL_THRESHOLDS = (8192, 16384, 32768)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One line about a session; None where it has no games, or does not say.

    Attributes:
        name: the directory's name.
        path: the directory.
        rows: rows in ``steps.npy``.
        games: runs.
        mean_score: mean of the games' final scores.
        best_tile: the highest tile of any game.
        reach: share of games whose highest tile is at least the key.
        bytes: size of the directory's files.
        recovered: whether crash recovery finished it.
    """

    name: str
    path: str
    rows: int
    games: int
    mean_score: float | None
    best_tile: int | None
    reach: dict[int, float | None]
    bytes: int
    recovered: bool | None


class Tile(msgspec.Struct, frozen=True):
    """Games that ended with this highest tile, their share, and the share that got at least this far."""

    tile: int
    games: int
    share: float
    reach: float


def summarize(session: Session) -> Summary:
    """The line about one session."""
    runs = session.runs
    recovered = session.meta.get("recovered")
    return Summary(
        name=session.path.name,
        path=str(session.path),
        rows=len(session.steps),
        games=len(runs),
        mean_score=float(runs["max_score"].mean()) if len(runs) else None,
        best_tile=int(runs["highest_tile"].max()) if len(runs) else None,
        reach=reach(runs, REACH_THRESHOLDS),
        bytes=directory_bytes(session.path),
        recovered=recovered if isinstance(recovered, bool) else None,
    )


def reach(runs: NDArray[np.void], thresholds: Sequence[int]) -> dict[int, float | None]:
    """The share of games that reached each tile; None without games."""
    return {
        threshold: float((runs["highest_tile"] >= threshold).mean()) if len(runs) else None
        for threshold in thresholds
    }


def tiles(runs: NDArray[np.void]) -> list[Tile]:
    """The games by highest tile, the lowest first."""
    values, counts = np.unique(runs["highest_tile"], return_counts=True)
    at_least = counts[::-1].cumsum()[::-1]
    return [
        Tile(tile=int(tile), games=int(games), share=float(games / len(runs)), reach=float(up / len(runs)))
        for tile, games, up in zip(values, counts, at_least, strict=True)
    ]


def quantiles(values: NDArray[Any]) -> dict[str, float]:
    """Mean, 10%, 50%, 90% and greatest; empty without values. Quantiles are values that occur."""
    if not len(values):
        return {}
    p10, p50, p90 = np.quantile(values, (0.1, 0.5, 0.9), method="inverted_cdf")
    return {
        "mean": float(values.mean()),
        "p10": float(p10),
        "p50": float(p50),
        "p90": float(p90),
        "max": float(values.max()),
    }


def label_prevalence(runs: NDArray[np.void]) -> list[dict[str, float | int | None]]:
    """For each of :data:`LABEL_THRESHOLDS`: games and share of games and of rows whose label is true.

    A critic sees rows, and games that get far have more of them, so that the two shares differ.
    """
    rows = int(runs["rows"].sum(dtype=np.uint64))
    found: list[dict[str, float | int | None]] = []
    for threshold in LABEL_THRESHOLDS:
        positive = runs["highest_tile"] >= threshold
        positive_rows = int(runs["rows"][positive].sum(dtype=np.uint64))
        found.append(
            {
                "threshold": threshold,
                "games": int(positive.sum()),
                "game_share": float(positive.mean()) if len(runs) else None,
                "row_share": positive_rows / rows if rows else None,
            }
        )
    return found


def directory_bytes(path: Path) -> int:
    """The size of a directory's own files."""
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
