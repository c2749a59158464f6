"""The processes that train together: one, or those that ``torchrun`` started."""

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
    """Which process this is, of how many, and the device that is its own."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean over the ranks."""
        if self.world_size == 1:
            return values
        total = values.to(self.device, copy=True)
        dist.all_reduce(total)
        return (total / self.world_size).to(values.device)

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - one flag, and that is all
        """Whether the flag is up on any rank."""
        if self.world_size == 1:
            return flag
        found = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found.item())

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, which are of one shape and type, in their order, in memory."""
        if self.world_size == 1:
            return [values.cpu()]
        mine = values.to(self.device).contiguous()
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine)
        return [tensor.cpu() for tensor in found]


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes that ``$RANK`` and ``$WORLD_SIZE`` speak of: gloo on CPUs, NCCL on CUDA.

    Args:
        device: as configured; with ``auto`` and ``cuda``, each process takes the one of its ``$LOCAL_RANK``.

    Raises:
        DeviceError: no such device.
        RankError: the variables make no sense.
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
