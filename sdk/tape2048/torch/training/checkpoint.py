"""Reader and writer of a training's checkpoint: one safetensors file, replaced atomically.

::

    model.<name>                parameters and buffers
    optimizer.<i>.<name>        AdamW's state of the i-th parameter
    rng.cpu.<rank>, rng.cuda.<rank>   states of the generators
    state                       u8: TrainingState as JSON
    sha256                      u8[32]: of all other tensors; missing in checkpoints of earlier versions
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from tape2048.errors import ModelError, StateError
from tape2048.io.durable import publishing_file
from tape2048.torch.support import by_prefix, content_sha256, parse_tensors, tensor_bytes
from tape2048.training import check_same

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from tape2048.torch.training.ranks import Ranks

VERSION = 2


class TrainingState(msgspec.Struct, kw_only=True):
    """The state of a training, without tensors."""

    version: int = VERSION
    config: dict[str, Any]  # the settings that decide what is learned
    corpus: str  # identity of the rows before the split
    world_size: int
    step: int = 0  # number of optimizer steps made
    loader: dict[str, Any] = {}  # state of the loader
    loss_sum: float = 0.0  # sum over the steps since the last line of metrics, the mean of the ranks
    loss_steps: int = 0  # number of these steps
    best_loss: float | None = None  # lowest validation loss; None before the first one
    best_step: int = 0  # its step
    best_metrics: dict[str, Any] = {}  # the metrics of that validation
    worse: int = 0  # number of validations since the best one
    ended: str | None = None  # why the training has ended; None before its end
    elapsed_s: float = 0.0  # time spent so far, over all starts


def write_checkpoint(
    path: Path,
    state: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generators: dict[str, torch.Tensor],
) -> None:
    """Write a checkpoint and replace the last one; raise StorageError where the system refuses."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for i, kept in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{name}": torch.as_tensor(value) for name, value in kept.items()}
    tensors |= generators
    tensors["state"] = torch.frombuffer(bytearray(msgspec.json.encode(state)), dtype=torch.uint8)
    tensors["sha256"] = _sha256_of(tensors)
    content = tensor_bytes(tensors)
    with publishing_file(path, replace=True) as file:
        file.write(content)


def load_checkpoint(  # noqa: PLR0917
    content: bytes,
    path: Path,
    expected: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
) -> TrainingState:
    """Load a checkpoint into model, optimizer and this rank's generators; return the rest of its state."""
    try:
        tensors = parse_tensors(content, path)
    except ModelError as error:
        raise StateError(error.message, path=path, hint="start over with another --out") from error
    written = tensors.pop("sha256", None)
    if written is not None and not torch.equal(written, _sha256_of(tensors)):
        raise StateError(
            "the file is damaged: its SHA-256 is not the one that was written with it", path=path,
            hint="start over with another --out, or restore the file from a copy",
        )  # fmt: skip
    try:
        state = msgspec.json.decode(tensors.pop("state").numpy().tobytes(), type=TrainingState)
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"not a checkpoint of a training: {error}", path=path) from error
    _check_same(state, expected, path)
    parts = by_prefix(tensors)
    kept = {int(number): values for number, values in by_prefix(parts["optimizer"]).items()}
    try:
        model.load_state_dict(parts["model"])
        optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
    except (RuntimeError, ValueError) as error:
        raise StateError(f"the parameters are of other sizes: {error}", path=path) from error
    set_rng_state(parts["rng"], ranks)
    return state


def _sha256_of(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(content_sha256(b"", tensors))), dtype=torch.uint8)


def _check_same(state: TrainingState, expected: TrainingState, path: Path) -> None:
    theirs = {**state.config, "corpus": state.corpus, "ranks": state.world_size, "version": state.version}
    mine = {**expected.config, "corpus": expected.corpus, "ranks": expected.world_size, "version": VERSION}
    hint = "resume with its settings and sessions, or start over with another --out"
    if theirs["corpus"] == mine["corpus"]:  # another condition that selects the same rows is no difference
        mine["where"] = theirs.get("where")
    else:
        hint += "; --where \"started < '2026-11-21T06:00:00Z'\" leaves out later sessions"
    check_same(theirs, mine, path, StateError, hint)


def rng_states(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Return the states of all ranks' generators; all ranks have to call this."""
    found = {f"rng.cpu.{rank}": state for rank, state in enumerate(ranks.gather(torch.get_rng_state()))}
    if ranks.device.type == "cuda":
        states = ranks.gather(torch.cuda.get_rng_state(ranks.device))
        found |= {f"rng.cuda.{rank}": state for rank, state in enumerate(states)}
    return found


def set_rng_state(states: dict[str, torch.Tensor], ranks: Ranks) -> None:
    """Set this rank's generators; those that are not in the checkpoint keep their state."""
    cpu, cuda = states.get(f"cpu.{ranks.rank}"), states.get(f"cuda.{ranks.rank}")
    if cpu is not None:
        torch.set_rng_state(cpu)
    if cuda is not None and ranks.device.type == "cuda":
        torch.cuda.set_rng_state(cuda, ranks.device)
