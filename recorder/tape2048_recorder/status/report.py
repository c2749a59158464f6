"""Reports of a recorder: events, status, and the summary at its end; the caller decides how to show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.session.labels import REACH_TILES

if TYPE_CHECKING:
    from collections.abc import Callable

Level = Literal["info", "warning", "error"]
State = Literal["starting", "recording", "paused", "draining", "publishing", "stopped"]


class Tally:
    """Sums over recorded runs, with their means and reach rates."""

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

    @property
    def reach(self) -> dict[int, float]:
        """The share of games that reached each of ``REACH_TILES``; 0 before the first game."""
        from_top = self._by_exponent[::-1].cumsum()[::-1]
        return {tile: int(from_top[tile.bit_length() - 1]) / max(self.games, 1) for tile in REACH_TILES}

    @property
    def by_highest_tile(self) -> dict[int, int]:
        """The number of games by highest tile, of those that occurred, ascending."""
        return {1 << int(exp): int(self._by_exponent[exp]) for exp in np.flatnonzero(self._by_exponent)}

    @property
    def highest_tile(self) -> int | None:
        """The highest tile of all; None before the first game."""
        return max(self.by_highest_tile, default=None)


class Counts(msgspec.Struct):
    """Counts since the recorder began, other than of games.

    Attributes:
        blocks: confirmed ones.
        sessions: published ones.
        session_bytes: their size.
        publish_s: total time of publishing.
        publish_last_s: time of the last one; None before the first.
        pauses: times that workers had to wait, by kind of reason.
        paused_s: total time that they waited.
        worker_restarts: processes that were started to replace others.
        workers_silent: processes that were ended because they made no progress.
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
    """The state of the requests to rotate now.

    Attributes:
        asked: how many there were.
        done: how many of them are finished; they finish in order.
        path: the session that the last of these published; None where there was nothing to publish.
        error: why it could not.
    """

    asked: int = 0
    done: int = 0
    path: str | None = None
    error: str | None = None


class Status(msgspec.Struct, frozen=True):
    """A recorder at one moment. Steps are moves made; rows are steps kept.

    Attributes:
        games: finished ones, of which ``by_highest_tile`` counts the recorded ones.
        ending: no game begins any more, also during a pause.
        can_record: every worker is ready, and there is room for a block.
        workers_overdue: workers without progress for too long that are not replaced yet.
        rows_waiting: rows that wait for the disk, as do the ``sessions_pending``.
        disk_full_s: time until ``min_free_mb`` is reached at the present rate.
        model_share: share of the workers' time in a batched player; None for other players.
        games_dropped: games that workers had at its end: not begun, in play, or finished and not yet written.
        error: the error that ended it; None while it runs and after a normal end.
    """

    state: State
    rotate_steps: int
    workers: int
    why: str | None = None
    elapsed_s: float = 0.0
    steps_per_s: float = 0.0
    steps: int = 0
    games: int = 0
    recorded_rows: int = 0
    mean_score: float | None = None
    reach: dict[int, float] = {}
    session_rows: int = 0
    sessions: int = 0
    free_bytes: int | None = None
    workers_ready: int = 0
    ending: bool = False
    can_record: bool = False
    workers_overdue: int = 0
    rows_waiting: int = 0
    sessions_pending: int = 0
    disk_full_s: float | None = None
    by_highest_tile: dict[int, int] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    rotation: Rotation = Rotation()
    model_share: float | None = None
    games_dropped: int = 0
    error: str | None = None

    @property
    def recorded_games(self) -> int:
        """Games in confirmed blocks."""
        return sum(self.by_highest_tile.values())


class Summary(msgspec.Struct, frozen=True):
    """The result of a recorder's life.

    Attributes:
        sessions: the paths of those that it published, with their ``bytes``.
        recovered: the paths of those that a killed recorder had left.
        elapsed_s: from its start to its end.
        first_step_s: from its start to the first move; None without one.
        played_s: from the first move to the last, to a twentieth of a second.
    """

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
    played_s: float = 0.0
    model_share: float | None = None


class Reporter(Protocol):
    """Receives a recorder's events and statuses."""

    def event(self, level: Level, message: str) -> None:
        """Report something that happened once and that a person should know."""

    def status(self, make_status: Callable[[], Status]) -> None:
        """Show a status, about twice a second; call ``make_status`` only to show it."""
