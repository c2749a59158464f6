"""The argument of a worker process: which one it is, what it plays, and the descriptors that it inherits."""

from __future__ import annotations

import msgspec

from tape2048_recorder.ipc.protocol import Weights

#: The module that a worker process runs.
WORKER_MODULE = "tape2048_recorder.workers"


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker is told when it starts."""

    index: int
    workers: int
    daemon_pid: int
    socket_fd: int
    shared_fd: int
    player: str
    player_args: dict[str, int | float | str | bool]
    seed: int
    sample_rate: int
    record_action: bool
    # What follows is for batched players (`tape2048_recorder.workers.batch_loop`).
    lanes: int = 1
    sampling: dict[str, int | float | str | bool] = {}
    inference: str = "worker"
    weights: Weights | None = None
    server_memory_fd: int = -1
    server_wake_fds: list[int] = []
