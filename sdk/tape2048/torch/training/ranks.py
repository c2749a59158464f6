"""Ranks of a training: one process, or those that ``torchrun`` started."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from tape2048.errors import RankError
from tape2048.torch.support import local_device

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ranks(NamedTuple):
    """This process's rank, the number of ranks, and this process's device."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over the ranks."""
        if self.world_size == 1:
            return values
        total = values.to(self.device, copy=True)
        dist.all_reduce(total)
        return (total / self.world_size).to(values.device)

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether the flag is true on any rank."""
        if self.world_size == 1:
            return flag
        found = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found.item())

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, which have one shape and type, in order, in CPU memory."""
        if self.world_size == 1:
            return [values.cpu()]
        mine = values.to(self.device).contiguous()
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine)
        return [tensor.cpu() for tensor in found]


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the process group of ``$RANK`` and ``$WORLD_SIZE``: gloo on CPUs, NCCL on CUDA.

    With the devices ``auto`` and ``cuda``, each process takes that of its ``$LOCAL_RANK``.

    Raises:
        DeviceError: no such device.
        RankError: invalid variables.
    """
    world_size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    if not 0 <= rank < world_size:
        raise RankError(f"$RANK={rank} of $WORLD_SIZE={world_size}; expected 0 <= rank < world size")
    chosen = local_device(device)
    if world_size == 1:
        yield Ranks(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Ranks(rank, world_size, chosen)
    finally:
        if mine:
            dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise RankError(f"${name}={text!r}; expected a whole number") from error
