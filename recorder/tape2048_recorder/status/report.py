"""Reports of a recorder: events, status, and the summary at its end; the caller decides how to show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.session.run_table import REACH_TILES

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


class Metric(NamedTuple):
    """The Prometheus metric of a field: its name without ``tape2048_``, its help, and the label of a table.

    Names follow Prometheus's conventions: a counter's name ends in ``_total``, with a plural unit before it.
    """

    name: str
    text: str
    label: str = ""


class Counts(msgspec.Struct):
    """Counts since the recorder started, other than of games."""

    blocks: Annotated[int, Metric("blocks_total", "Committed blocks.")] = 0
    sessions: Annotated[int, Metric("sessions_total", "Published sessions.")] = 0
    session_bytes: Annotated[int, Metric("session_bytes_total", "Bytes of published sessions.")] = 0
    publish_s: Annotated[float, Metric("publish_seconds_total", "Time spent publishing sessions.")] = 0.0
    publish_last_s: Annotated[
        float | None, Metric("publish_last_seconds", "Time to publish the last session.")
    ] = None
    pauses: Annotated[dict[str, int], Metric("pauses_total", "Pauses of the workers.", "reason")] = {}
    paused_s: Annotated[float, Metric("paused_seconds_total", "Time that workers had to wait.")] = 0.0
    worker_restarts: Annotated[int, Metric("worker_restarts_total", "Workers started again.")] = 0
    workers_silent: Annotated[int, Metric("workers_silent_total", "Workers ended without progress.")] = 0
    reloads: Annotated[int, Metric("reloads_total", "Reloads of the configuration.")] = 0


class Rotation(msgspec.Struct, frozen=True):
    """The state of the requests to rotate now."""

    asked: int = 0  # number of requests
    done: int = 0  # number of finished requests; they finish in order
    path: str | None = None  # the session that the last request published; None without new rows
    error: str | None = None  # why it failed


class Status(msgspec.Struct, frozen=True):
    """A recorder at one moment. Steps are moves made; rows are steps kept."""

    state: Annotated[State, Metric("state", "1 for the recorder's present state.", "state")]
    rotate_steps: Annotated[int, Metric("rotate_rows", "Rows at which a session is published.")]
    workers: Annotated[int, Metric("workers", "Configured workers.")]
    why: str | None = None
    elapsed_s: float = 0.0
    steps_per_s: float = 0.0
    steps: Annotated[int, Metric("steps_total", "Moves made, recorded or not.")] = 0
    games: Annotated[int, Metric("games_total", "Games finished.")] = 0
    recorded_rows: Annotated[int, Metric("recorded_rows_total", "Rows in committed blocks.")] = 0
    mean_score: Annotated[float | None, Metric("mean_score", "Mean score of recorded games.")] = None
    reach: Annotated[
        dict[int, float], Metric("reach_ratio", "Share of recorded games that reached a tile.", "tile")
    ] = {}
    session_rows: Annotated[int, Metric("open_session_rows", "Committed rows of the open session.")] = 0
    sessions: int = 0
    free_bytes: Annotated[
        int | None, Metric("disk_free_bytes", "Bytes free on the file system of out_dir.")
    ] = None
    workers_ready: Annotated[int, Metric("workers_ready", "Workers that play.")] = 0
    ending: bool = False  # no game starts any more, also during a pause
    can_record: bool = False  # every worker is ready, and there is room for a block
    workers_overdue: Annotated[int, Metric("workers_overdue", "Workers without progress now.")] = 0
    rows_waiting: Annotated[int, Metric("rows_waiting", "Rows that wait to be written.")] = 0
    sessions_pending: Annotated[int, Metric("sessions_pending", "Closed sessions not yet published.")] = 0
    disk_full_s: Annotated[
        float | None, Metric("disk_full_seconds", "Time to min_free_mb at the present rate.")
    ] = None
    by_highest_tile: Annotated[
        dict[int, int],
        Metric("recorded_games_total", "Recorded games by their highest tile.", "highest_tile"),
    ] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    rotation: Rotation = Rotation()
    model_share: Annotated[
        float | None, Metric("model_ratio", "Share of the workers' time in a batched player.")
    ] = None
    games_dropped: int = 0  # at the end: games not started, in progress, or finished and not yet written
    error: str | None = None  # the error that ended it

    @property
    def recorded_games(self) -> int:
        """Games in confirmed blocks."""
        return sum(self.by_highest_tile.values())


class Summary(msgspec.Struct, frozen=True):
    """The result of a run of the recorder."""

    reason: str
    out_dir: str
    sessions: list[str]  # paths of the published sessions
    recovered: list[str]  # paths of the sessions that a killed recorder had left
    games: int
    steps: int
    rows: int
    bytes: int  # of the published sessions
    elapsed_s: float
    mean_score: float | None
    score_max: int
    highest_tile: int | None
    reach: dict[int, float]
    games_dropped: int
    first_step_s: float | None  # from the start to the first move
    played_s: float = 0.0  # from the first move to the last, within 0.05 s
    model_share: float | None = None


class Reporter(Protocol):
    """Receives a recorder's events and statuses."""

    def event(self, level: Level, message: str) -> None:
        """Report something that happened once and that a person should know."""

    def status(self, make_status: Callable[[], Status]) -> None:
        """Show a status, about twice a second; call ``make_status`` only to show it."""
