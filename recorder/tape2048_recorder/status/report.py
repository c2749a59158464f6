"""What a recorder says while it runs and when it ends; how that is shown is its caller's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "REACH_TILES",
    "Counts",
    "Level",
    "Reporter",
    "Rotation",
    "State",
    "Status",
    "Summary",
    "Tally",
]

Level = Literal["info", "warning", "error"]
State = Literal["starting", "recording", "paused", "draining", "publishing", "stopped"]


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
    def by_highest_tile(self) -> dict[int, int]:
        """How many games had each highest tile, of those that occurred."""
        return {
            1 << int(exponent): int(self._by_exponent[exponent])
            for exponent in np.flatnonzero(self._by_exponent)
        }

    @property
    def highest_tile(self) -> int | None:
        """The highest tile of all; None before the first game."""
        reached = np.flatnonzero(self._by_exponent)
        return 1 << int(reached[-1]) if len(reached) else None


class Counts(msgspec.Struct, frozen=True):
    """What has happened since the recorder began, beside games.

    Attributes:
        blocks: confirmed ones.
        sessions: published ones.
        session_bytes: what those hold.
        publish_s: what publishing them took, all together.
        publish_last_s: what the last one took; None before the first.
        pauses: how often workers had to wait, by kind of reason.
        paused_s: how long they did.
        worker_restarts: processes that were started in the place of others.
        workers_silent: processes that were ended because nothing was heard of them.
        reloads: times that the configuration was read again.
    """

    blocks: int = 0
    sessions: int = 0
    session_bytes: int = 0
    publish_s: float = 0.0
    publish_last_s: float | None = None
    pauses: dict[str, int] = {}
    paused_s: float = 0.0
    worker_restarts: int = 0
    workers_silent: int = 0
    reloads: int = 0


class Rotation(msgspec.Struct, frozen=True):
    """What has become of the requests to rotate now.

    Attributes:
        asked: how many there were.
        done: how many of them are over, the first ones.
        path: the session that the last of these published; None where there was nothing to publish.
        error: why it could not.
    """

    asked: int = 0
    done: int = 0
    path: str | None = None
    error: str | None = None


class Status(msgspec.Struct, frozen=True):
    """A recorder at one moment. Steps are moves made; rows are steps kept.

    ``ending``: no game is begun any more, also while it is paused. ``can_record``: every worker is ready,
    and there is room for a block. ``workers_overdue``: workers of which nothing was heard for too long, and
    that are not replaced yet; the inference process counts as one. ``rows_waiting`` and
    ``sessions_pending`` are what the disk is behind. ``disk_full_s``: when ``min_free_mb`` is reached at the
    rate of now. ``model_share``: of the workers' time, the share in a batched player; None for the others.
    ``games``: finished ones, of which ``by_highest_tile`` counts the recorded ones. ``games_dropped``: those
    that workers had when it ended, not begun, in play, or finished and not yet written.
    ``error``: what it ended with, in words; None while it runs, and where nothing went wrong.
    """

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
    ending: bool = False
    can_record: bool = False
    workers_overdue: int = 0
    rows_waiting: int = 0
    sessions_pending: int = 0
    disk_full_s: float | None = None
    by_highest_tile: dict[int, int] = {}
    counts: Counts = Counts()
    rotation: Rotation = Rotation()
    model_share: float | None = None
    games_dropped: int = 0
    error: str | None = None

    @property
    def recorded_games(self) -> int:
        """Games that stand in confirmed blocks."""
        return sum(self.by_highest_tile.values())


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
    model_share: float | None = None


class Reporter(Protocol):
    """Where a recorder's words go."""

    def event(self, level: Level, message: str) -> None:
        """Something happened once that a person should know."""

    def status(self, make_status: Callable[[], Status]) -> None:
        """About twice a second: call ``make_status`` if there is something to show."""
