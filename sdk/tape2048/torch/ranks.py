"""The ranks of a training under ``torchrun``: communication, comparison of data and settings, directory."""

from __future__ import annotations

import contextlib
import datetime as dt
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

from tape2048.errors import ConfigError, TapeError
from tape2048.files.training_directory import TrainingDirectory
from tape2048.loader.batches import launched_ranks
from tape2048.torch.tower import local_device

T = TypeVar("T")

_PATIENCE = dt.timedelta(hours=3)  # longest wait of ranks for each other
_NAMED = 5  # differences that an error names


class Ranks(NamedTuple):
    rank: int
    world_size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    def mean(self, value: float) -> float:
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total / self.world_size)

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - the only argument
        if self.world_size == 1:
            return flag
        found = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found.item())

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return all ranks' tensors, which have the same shape and type, by rank, in CPU memory."""
        if self.world_size == 1:
            return [values.cpu()]
        mine = values.to(self.device).contiguous()
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine)
        return [tensor.cpu() for tensor in found]

    def from_first(self, make: Callable[[], T]) -> T:
        """Call ``make`` on rank 0, and return its result, which must be picklable, on all ranks."""
        if self.world_size == 1:
            return make()
        told: list[Any] = [None, None]
        failed = None
        if self.first:
            try:
                told[0] = make()
            except TapeError as error:
                failed, told[1] = error, str(error)
        dist.broadcast_object_list(told, src=0, device=self.device)
        if failed is not None:
            raise failed
        if told[1] is not None:
            raise ConfigError(f"rank 0 cannot start: {told[1]}")
        return cast("T", told[0])

    def check_alike(self, facts: Mapping[str, Mapping[str, str]], failed: TapeError | None) -> None:
        """Raise ConfigError if ranks differ in these facts, or if another rank has failed.

        Ranks that differ could make different numbers of steps, and wait for each other forever. ``failed``
        is the error of this rank.
        """
        if self.world_size == 1:
            return
        mine = platform.node(), {kind: dict(values) for kind, values in facts.items()}, failed and str(failed)
        all_of: list[Any] = [None] * self.world_size
        dist.all_gather_object(all_of, mine)
        if failed is not None:
            return
        host, first, _ = all_of[0]
        for rank, (node, found, error) in enumerate(all_of):
            if error is not None:
                raise ConfigError(f"rank {rank} on {node} cannot start: {error}")
            differences = [line for kind in first for line in _differences(kind, found[kind], first[kind])]
            if differences:
                more = f", and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
                raise ConfigError(
                    f"rank {rank} on {node} differs from rank 0 on {host}: "
                    f"{'; '.join(differences[:_NAMED])}{more}",
                    hint="give each rank the same sessions and settings, such as the address of one store",
                )


def _differences(kind: str, found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    lines = [f"{kind} {name}, which rank 0 lacks" for name in found.keys() - expected.keys()]
    lines += [f"no {kind} {name}" for name in expected.keys() - found.keys()]
    both = sorted(found.keys() & expected.keys())
    pairs = [(name, found[name], expected[name]) for name in both if found[name] != expected[name]]
    return sorted(lines + [f"{kind} {name} is {a:.40}, not {b:.40}" for name, a, b in pairs])


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the process group: gloo on CPUs, NCCL on CUDA, with the device of ``$LOCAL_RANK``."""
    rank, world_size = launched_ranks()
    chosen = local_device(device)
    if world_size == 1:
        yield Ranks(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Ranks(rank, world_size, chosen)
    finally:
        if mine:
            dist.destroy_process_group()


class RanksDirectory(TrainingDirectory):
    """The directory of a training by several ranks. Rank 0 writes, and the other ranks get its checkpoint."""

    def __init__(self, path: Path, counter: str, ranks: Ranks) -> None:
        super().__init__(path, counter)
        self._ranks = ranks

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        lock = super().locked()
        with contextlib.ExitStack() as stack:
            self._ranks.from_first(lambda: stack.enter_context(lock))
            yield

    def read_checkpoint(self) -> memoryview | None:
        """Return rank 0's checkpoint on all ranks, which may be on nodes without the file."""
        read = super().read_checkpoint
        if self._ranks.world_size == 1:
            return read()
        content = self._ranks.from_first(lambda: None if (found := read()) is None else bytes(found))
        if self._ranks.any(content is None and self.checkpoint.exists()):
            raise ConfigError(
                "the node of another rank has a checkpoint, and the node of rank 0 has none",
                path=self.checkpoint,
                hint="choose a directory that all nodes can reach, or a new directory",
            )
        return None if content is None else memoryview(content)

    def cut_metrics(self, steps: int) -> None:
        if self._ranks.first:
            super().cut_metrics(steps)

    def append_metrics(self, line: Mapping[str, Any], report: Callable[[str], None]) -> bool:
        return not self._ranks.first or super().append_metrics(line, report)
