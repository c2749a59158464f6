"""A training of a critic in a process of its own, to be killed or to be one of several ranks.

::

    python -m tests.sdk.critic_training CONFIG.json STEP
    python -m tests.sdk.critic_training --ranks DIRECTORY RANKS PORT

The process kills itself after a step. ``--ranks``: a child for each rank trains as ``DIRECTORY/rankN.json``
says, with a cache of its own. The exit code and seconds of each.
"""

import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import msgspec
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tape2048.critic.config import CriticConfig
from tape2048.jit.compiler import cache_dir
from tape2048.torch.training import train_critic
from tape2048.training import TrainingProgress

from .critics import CrashError, Seen


class Killed(Seen):
    """Ends the process by SIGKILL in place of an error."""

    def progress(self, progress: TrainingProgress) -> None:
        try:
            super().progress(progress)
        except CrashError:
            os.kill(os.getpid(), signal.SIGKILL)


def no_models_left() -> None:
    """Leave the group of ranks, in which no wrapped model may be alive any more."""
    assert not any(type(each) is DistributedDataParallel for each in gc.get_objects())
    leave()


def train(path: Path, view: Killed | None = None) -> None:
    train_critic(msgspec.json.decode(path.read_bytes(), type=CriticConfig), view)


def train_as_rank(directory: Path, rank: int, ranks: str, port: str) -> int:
    """Fork a process that trains as one of several ranks, with a cache of its own."""
    if pid := os.fork():
        return pid
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ["XDG_CACHE_HOME"] = str(directory / f"node{rank}")
    code = 1
    with (directory / f"rank{rank}.stderr").open("w") as errors:
        os.dup2(errors.fileno(), 2)
        try:
            train(directory / f"rank{rank}.json")
            code = 0
        except Exception:  # noqa: BLE001 - the test looks for it
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def train_as_ranks(directory: Path, ranks: str, port: str) -> None:
    cache_dir()  # as it is here, for all ranks
    importlib.import_module("torch._dynamo")  # an optimizer imports it: a second and a half for each rank
    begin = time.monotonic()
    pids = [train_as_rank(directory, rank, ranks, port) for rank in range(int(ranks))]
    found = {}
    while len(found) < len(pids):
        pid, status = os.wait()
        found[pids.index(pid)] = os.waitstatus_to_exitcode(status), time.monotonic() - begin
    print(json.dumps([found[rank] for rank in range(len(pids))]))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    leave, dist.destroy_process_group = dist.destroy_process_group, no_models_left
    if sys.argv[1] == "--ranks":
        train_as_ranks(Path(sys.argv[2]), *sys.argv[3:])
    else:
        train(Path(sys.argv[1]), Killed(int(sys.argv[2])))
