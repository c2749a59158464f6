"""Trainings of a critic by several ranks, each in a process.

::

    python -m tests.sdk.critic_training

Each line of the input is a JSON array: a directory, the number of ranks and a port. A child for each rank
trains as ``rankN.json`` in the directory says, with a cache of its own. Two lines are printed: the number of
the ranks' process group, and ``ended``. Then ``ranks.json`` has the exit code and the seconds of each rank.
All of them are forked from one process, which has imported PyTorch.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import msgspec
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tape2048.critic.critic_config import CriticConfig
from tape2048.jit.compiler import cache_dir
from tape2048.torch.training import train_critic

_SET_CHILD_SUBREAPER = 36


def no_models_left() -> None:
    """Leave the group of ranks, in which no wrapped model may be alive any more."""
    assert not any(type(each) is DistributedDataParallel for each in gc.get_objects())
    leave()


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
            settings = (directory / f"rank{rank}.json").read_bytes()
            train_critic(msgspec.json.decode(settings, type=CriticConfig))
            code = 0
        except Exception:  # noqa: BLE001 - the test looks for it
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def train_as_ranks(directory: Path, ranks: int, port: int) -> None:
    begin = time.monotonic()
    pids = [train_as_rank(directory, rank, str(ranks), str(port)) for rank in range(ranks)]
    found = {}
    while len(found) < len(pids):
        pid, status = os.wait()
        found[pids.index(pid)] = os.waitstatus_to_exitcode(status), time.monotonic() - begin
    (directory / "ranks.json").write_text(json.dumps([found[rank] for rank in range(len(pids))]))


def serve() -> None:
    ctypes.CDLL(None).prctl(
        _SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )  # to wait also for ranks whose leader was killed
    cache_dir()  # as it is here, for all ranks
    importlib.import_module("torch._dynamo")  # an optimizer imports it: a second and a half for each rank
    for line in sys.stdin:
        directory, ranks, port = json.loads(line)
        leader = os.fork()
        if leader == 0:
            os.setsid()
            try:
                train_as_ranks(Path(directory), ranks, port)
            finally:
                os._exit(0)
        print(leader, flush=True)  # noqa: T201 - the test reads it
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        print("ended", flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    leave, dist.destroy_process_group = dist.destroy_process_group, no_models_left
    serve()
