"""Gauges of a recorder: its counts other than of games, its status, and the limits at which it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tape2048.base.text import counted
from tape2048_recorder.config.loading import row_bytes
from tape2048_recorder.ipc.world import REAL, World
from tape2048_recorder.recording.recording import DISK_FULL, DISK_SLOW, MEGABYTE, SPOOL_FULL
from tape2048_recorder.status.report import Counts, Rotation, State, Status, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.daemon.supervisor import Supervisor, Watch
    from tape2048_recorder.recording.publisher import Outcome
    from tape2048_recorder.recording.recording import Recording

#: Window of the mean that is shown as the rate.
RATE_WINDOW_S = 10.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def pause_kind(why: str) -> str:
    """Return the kind of a reason for a pause, as metrics label it."""
    kinds = {DISK_FULL: "disk_full", DISK_SLOW: "disk_slow", SPOOL_FULL: "spool_full"}
    return next((kind for prefix, kind in kinds.items() if why.startswith(prefix)), "write_failed")


@dataclasses.dataclass(kw_only=True, eq=False)
class Gauges:
    """Counts, rates, and the status of a recorder that began at ``begun`` (``time.monotonic``)."""

    begun: float
    supervisor: Supervisor
    recording: Recording
    tally: Tally
    watch: Watch
    world: World = REAL

    def __post_init__(self) -> None:
        self._progress: deque[tuple[float, int]] = deque()
        self._paused_at: float | None = None
        #: Excluding a pause in progress.
        self.counts = Counts()

    def paused(self, why: str) -> None:
        """Note that workers begin to wait."""
        kind = pause_kind(why)
        self.counts.pauses[kind] = self.counts.pauses.get(kind, 0) + 1
        self._paused_at = self.world.now

    def resumed(self) -> None:
        """Note that they no longer wait."""
        self.counts.paused_s = self._paused_so_far_s
        self._paused_at = None

    @property
    def _paused_so_far_s(self) -> float:
        return self.counts.paused_s + (0.0 if self._paused_at is None else self.world.now - self._paused_at)

    def on_outcome(self, outcome: Outcome) -> None:
        """Count a try of the publisher."""
        self.counts.publish_s += outcome.seconds
        if outcome.published is not None:
            self.counts.publish_last_s = outcome.seconds
            self.counts.session_bytes += outcome.published.bytes

    def _steps_per_s(self) -> tuple[int, float]:
        """Return the steps so far, and the rate over the last seconds; call it at even intervals."""
        now, steps = self.world.now, int(self.supervisor.shared.slots["steps"].sum())
        self._progress.append((now, steps))
        while now - self._progress[0][0] > RATE_WINDOW_S:
            self._progress.popleft()
        then, before = self._progress[0]
        return steps, (steps - before) / (now - then) if now > then else 0.0

    @property
    def model_share(self) -> float | None:
        """The share of the workers' time in a batched player; None without one."""
        slots = self.supervisor.shared.slots
        played_ns = int(slots["played_ns"].sum())
        return min(int(slots["model_ns"].sum()) / played_ns, 1.0) if played_ns else None

    def status(
        self,
        config: RecorderConfig,
        *,
        state: State,
        ending: bool,
        why: str | None,
        sessions: int,
        games_dropped: int,
        rotation: Rotation,
    ) -> Status:
        """Make a status: the arguments, and everything else that it holds."""
        workers = self.supervisor.workers
        ready = sum(worker.ready for worker in workers)
        steps, steps_per_s = self._steps_per_s()
        try:
            free = self.recording.free_bytes()
        except OSError:
            free = None
        room = self.recording.why_not(config.rows_buffered_max) is None
        return Status(
            state=state,
            ending=ending,
            why=why,
            elapsed_s=self.world.now - self.begun,
            steps_per_s=steps_per_s,
            model_share=self.model_share,
            steps=steps,
            games=int(self.supervisor.shared.slots["games"].sum()),
            recorded_rows=self.tally.rows,
            mean_score=self.tally.mean_score,
            reach=self.tally.reach,
            session_rows=self.recording.open_rows,
            rotate_steps=config.rotate_steps,
            sessions=sessions,
            free_bytes=free,
            workers=len(workers),
            workers_ready=ready,
            can_record=ready == len(workers) and room,
            workers_overdue=self.watch.overdue,
            rows_waiting=sum(worker.waiting_rows or 0 for worker in workers),
            sessions_pending=self.recording.sessions_pending,
            disk_full_s=self._disk_full_s(config, free, steps_per_s),
            by_highest_tile=self.tally.by_highest_tile,
            counts=msgspec.structs.replace(
                self.counts,
                sessions=sessions,
                pauses=dict(self.counts.pauses),
                paused_s=self._paused_so_far_s,
                workers_silent=self.watch.ended,
            ),
            games_dropped=games_dropped,
            rotation=rotation,
        )

    def _disk_full_s(self, config: RecorderConfig, free: int | None, steps_per_s: float) -> float | None:
        bytes_per_s = steps_per_s * row_bytes(config) / config.sample_rate
        if free is None or bytes_per_s <= 0:
            return None
        return max(free - config.min_free_mb * MEGABYTE, 0) / bytes_per_s


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum the resident memory of these processes; shared pages count for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return total


def limit_met(
    config: RecorderConfig, *, rows: int, elapsed_s: float, disk_bytes: int, pids: Iterable[int]
) -> str | None:
    """Describe the limit that is met, or return None. The ledger enforces ``max_games``."""
    if config.max_steps is not None and rows >= config.max_steps:
        return f"max_steps = {config.max_steps} was reached ({counted(rows, 'row')})"
    if config.max_wall_s is not None and elapsed_s >= config.max_wall_s:
        return f"max_wall_s = {config.max_wall_s:g} was reached"
    if config.max_disk_mb is not None and disk_bytes >= config.max_disk_mb * MEGABYTE:
        return f"max_disk_mb = {config.max_disk_mb} was reached ({disk_bytes / MEGABYTE:.0f} MB of sessions)"
    if config.max_ram_mb is not None:
        ram = resident_bytes(pids)
        if ram >= config.max_ram_mb * MEGABYTE:
            return f"max_ram_mb = {config.max_ram_mb} was reached ({ram / MEGABYTE:.0f} MB resident)"
    return None
