"""What a recorder says while it runs and when it ends; how that is shown is its caller's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REACH_TILES", "Level", "Reporter", "State", "Status", "Summary", "Tally"]

Level = Literal["info", "warning", "error"]
State = Literal["starting", "recording", "paused", "draining", "publishing"]


#: The tiles whose reach rates are reported.
REACH_TILES = (2048, 4096, 8192, 16384, 32768)


class Tally:
    """Sums over recorded runs, from which means and reach rates follow."""

    def __init__(self) -> None:
        self.games = 0
        self.steps = 0
        self.rows = 0
        self.score_sum = 0
        self.score_max = 0
        self._by_exponent = np.zeros(32, dtype=np.int64)

    def add(self, runs: npt.NDArray[np.void]) -> None:
        """Count these runs (``RUN_DTYPE[n]``)."""
        if not len(runs):
            return
        self.games += len(runs)
        self.steps += int(runs["steps"].sum())
        self.rows += int(runs["rows"].sum())
        self.score_sum += int(runs["max_score"].sum(dtype=np.int64))
        self.score_max = max(self.score_max, int(runs["max_score"].max()))
        exponents = np.log2(np.maximum(runs["highest_tile"], 1)).astype(np.int64)
        self._by_exponent += np.bincount(exponents, minlength=32)

    @property
    def mean_score(self) -> float | None:
        """Mean score of a game; None before the first."""
        return self.score_sum / self.games if self.games else None

    def reach(self, tile: int) -> float | None:
        """The share of games whose highest tile is at least ``tile``; None before the first."""
        if not self.games:
            return None
        return int(self._by_exponent[tile.bit_length() - 1 :].sum()) / self.games

    @property
    def highest_tile(self) -> int | None:
        """The highest tile of all; None before the first game."""
        reached = np.flatnonzero(self._by_exponent)
        return 1 << int(reached[-1]) if len(reached) else None


class Status(msgspec.Struct, frozen=True):
    """A recorder at one moment. Steps are moves made; rows are steps kept."""

    state: State
    why: str | None
    elapsed_s: float
    steps_per_s: float
    steps: int
    games: int
    recorded_rows: int
    mean_score: float | None
    reach: dict[int, float]
    session_rows: int
    rotate_steps: int
    sessions: int
    free_bytes: int | None
    workers: int
    workers_ready: int


class Summary(msgspec.Struct, frozen=True):
    """What a recorder leaves when it ends. ``sessions`` are the paths of what it published."""

    reason: str
    out_dir: str
    sessions: list[str]
    recovered: list[str]
    games: int
    steps: int
    rows: int
    bytes: int
    elapsed_s: float
    mean_score: float | None
    score_max: int
    highest_tile: int | None
    reach: dict[int, float]
    games_dropped: int
    first_step_s: float | None


class Reporter(Protocol):
    """Where a recorder's words go."""

    def event(self, level: Level, message: str) -> None:
        """Something happened once that a person should know."""

    def status(self, make_status: Callable[[], Status]) -> None:
        """About twice a second: call ``make_status`` if there is something to show."""
