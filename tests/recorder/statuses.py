"""Statuses and snapshots of recorders that were never there."""

import os
import time
from typing import Any

from tape2048_recorder.record_options import RecorderConfig, config_sha256, effective
from tape2048_recorder.status.status_report import Process, Snapshot, Status


def status_now(**fields: Any) -> Status:
    """A status of a recorder that is well, but for these fields."""
    well: dict[str, Any] = {
        "state": "recording", "why": None, "elapsed_s": 10.0, "steps_per_s": 1_500_000.0,
        "steps": 15_000_000, "games": 6000, "recorded_rows": 14_000_000, "mean_score": 52_000.0,
        "reach": {2048: 0.92, 4096: 0.5}, "session_rows": 4_000_000, "sessions": 1,
        "free_bytes": 80_000_000_000, "workers": 2, "workers_ready": 2, "can_record": True,
    }  # fmt: skip
    return Status(**{**well, **fields})


def snapshot_now(*, age_s: float = 0.0, **fields: Any) -> Snapshot:
    """What this process would have written some seconds ago as a recorder; ``fields`` are the snapshot's."""
    config = RecorderConfig(player_args={"look": 16})
    process = Process.of(os.getpid())
    assert process is not None
    well: dict[str, Any] = {
        "version": "1.2.3", "process": process, "host": "here", "instance": "default",
        "started_at": "2026-01-02T03:04:05Z", "config": effective(config),
        "config_sha256": config_sha256(config), "written_at": time.time() - age_s,
        "monotonic_s": time.monotonic() - age_s, "status": status_now(),
    }  # fmt: skip
    return Snapshot(**{**well, **fields})
