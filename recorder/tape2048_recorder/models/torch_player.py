"""``TorchPlayer``: a PyTorch model as a batched player (extra ``[torch]``).

::

    player = "python:tape2048_recorder.models.torch_player:make"

    [player_args]
    model = "policy.safetensors"
    module = "my.nets:policy"

The model maps ``i64[B, 16]``, the exponents of the tiles, to ``[B, 4]``, scores for up, down, left and right.
The name of its file determines the format:

* ``*.pt2``: a file of ``torch.export.save``, exported for batches of ``batch`` boards or of any size;
* ``*.safetensors``: weights of the module that the factory ``module`` returns (``package.module:factory`` or
  ``file.py:factory``, called with the remaining arguments);
* any other name: TorchScript, a file of ``torch.jit.save``.

All batches have the same shape, and the last batch is padded. On CUDA, the model runs in bfloat16, batches go
through pinned buffers, the computation is one CUDA graph if it can be captured, and two batches are in
flight. On a CPU, the model runs in float32 in the worker's only thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ConfigError, MissingPackageError, PlayerError, TapeError
from tape2048_recorder.models.padding import PaddedModel
from tape2048_recorder.players.batch_player import make_batch_player

try:
    import torch
except ImportError as error:  # the message names the extra
    raise MissingPackageError(
        "a TorchPlayer needs torch, which is not installed", hint="pip install 'tape2048[torch]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: Calls before the capture of a CUDA graph. Libraries choose algorithms and allocate in the first calls.
_WARM_CALLS = 3


def make(
    *,
    model: str,
    module: str = "",
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 0,
    compile: bool = False,  # noqa: A002 - torch's name
    **module_args: Any,
) -> TorchPlayer:
    """Return the player of a model's file.

    Args:
        model: the file.
        module: for ``.safetensors``, the factory of the module.
        device: ``auto`` (CUDA if available), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``auto`` (bfloat16 on CUDA, float32 on a CPU), float32, bfloat16 or float16.
        batch: number of boards in each batch; 0: as many as the worker passes in its largest call. If
            ``batch`` is not 0, games do not depend on the number of lanes, but can depend on ``batch``.
        compile: whether to use ``torch.compile``.
        **module_args: further arguments of ``module``.

    Raises:
        ConfigError: an invalid argument, or torch finds no CUDA.
        PlayerError: the file is missing or damaged, or does not fit the module.
        MissingPackageError: ``.safetensors`` without that package.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"found device = {device!r}, expected auto, cpu, cuda or cuda:N")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"found device = {device!r}, but torch finds no CUDA",
            hint="Pass device = 'auto' to use the CPU, or check torch.cuda.is_available().",
        )
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    if dtype not in _DTYPES:
        raise ConfigError(f"found dtype = {dtype!r}, expected auto or one of {', '.join(_DTYPES)}")
    if batch < 0:
        raise ConfigError(f"found batch = {batch}, expected 0 or a number of boards")
    net, digest = load_model(Path(model), module, module_args)
    kind_of_device = torch.device(device).type
    facts = f"{digest} {module} {sorted(module_args.items())} {dtype} {kind_of_device} {batch} {compile}"
    kind = CudaPlayer if device.startswith("cuda") else TorchPlayer
    return kind(
        net,
        device=device,
        dtype=_DTYPES[dtype],
        batch=batch,
        compiled=compile,
        sha256=hashlib.sha256(facts.encode()).hexdigest(),
    )


def load_model(path: Path, module: str, module_args: dict[str, Any]) -> tuple[torch.nn.Module, str]:
    is_weights = path.suffix == ".safetensors"
    if is_weights != bool(module):
        need = "module=package.module:factory, which returns the module for the weights"
        raise ConfigError(
            f"found {path.name} {'without' if is_weights else 'with'} module, expected "
            f"{need if is_weights else 'no module: the file contains it'}"
        )
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PlayerError(
            f"cannot be read: {error.strerror or error}",
            path=path,
            hint="Pass model=... with a path, absolute or relative to where the recorder was started.",
        ) from error
    try:
        if is_weights:
            net = _with_weights(path, module, module_args)
        elif path.suffix == ".pt2":
            net = torch.export.load(path).module()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
                net = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except TapeError:  # from the module's factory
        raise
    except Exception as error:
        raise PlayerError(
            f"cannot be loaded: {type(error).__name__}: {error}",
            path=path,
            hint="Write checkpoints under another name, and rename them when they are complete.",
        ) from error
    with contextlib.suppress(NotImplementedError):  # the mode of an exported module is fixed
        net.eval()
    return net, digest


def _with_weights(path: Path, module: str, module_args: dict[str, Any]) -> torch.nn.Module:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingPackageError(
            "weights in .safetensors need the package safetensors", hint="pip install 'tape2048[torch]'"
        ) from error
    net = make_batch_player(f"python:{module}", module_args)
    if not isinstance(net, torch.nn.Module):
        raise ConfigError(
            f"found a {type(net).__name__} from module = {module!r}, expected a torch.nn.Module"
        )
    net.load_state_dict(load_file(path), strict=True)
    return net


class TorchPlayer(PaddedModel):
    def __init__(
        self,
        net: torch.nn.Module,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        batch: int = 0,
        compiled: bool = False,
        sha256: str = "",
    ) -> None:
        super().__init__(batch)
        self.sha256 = sha256
        self._device = torch.device(device)
        with contextlib.suppress(NotImplementedError, AttributeError, RuntimeError):  # some cannot be moved
            net = net.to(device=self._device, dtype=dtype)
        self._net: Callable[[torch.Tensor], torch.Tensor] = net
        if compiled:
            self._net = torch.compile(net, dynamic=False)

    def _prepare(self) -> None:
        self._tokens = torch.zeros((self._batch, 16), dtype=torch.int64)
        self._input = self._tokens.numpy()

    def _run(self) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            return self._compute(self._tokens).float().numpy()

    def _compute(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self._net(tokens)
        if not isinstance(scores, torch.Tensor) or scores.shape != (self._batch, 4):
            found = f"{tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise PlayerError(
                f"the model returned {found} for {counted(self._batch, 'board')}, "
                f"expected a tensor ({self._batch}, 4)",
                hint="Return float32 scores of shape (boards, 4), finite for the legal moves.",
            )
        return scores


class _Slot:
    def __init__(self, batch: int, device: torch.device) -> None:
        self.host_in = torch.zeros((batch, 16), dtype=torch.uint8, pin_memory=True)
        self.host_out = torch.zeros((batch, 4), dtype=torch.float32, pin_memory=True)
        self.device_in = torch.zeros((batch, 16), dtype=torch.uint8, device=device)
        self.device_out = torch.zeros((batch, 4), dtype=torch.float32, device=device)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rows = 0


class CudaPlayer(TorchPlayer):
    """A model on a GPU, with two batches in flight."""

    def warm_up(self, n: int) -> None:
        """Create the buffers, and capture the graph. A batch holds at least ``n`` boards."""
        self._batch = max(self._batch, n)
        super().warm_up(n)

    def _prepare(self) -> None:
        self._slots = [_Slot(self._batch, self._device) for _ in range(2)]
        self._next = 0
        self._in_flight: list[_Slot] = []
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        for slot in self._slots:
            self._capture(slot)

    def _fill(self, slot: _Slot) -> None:
        slot.device_out.copy_(self._compute(slot.device_in.long()))

    def _capture(self, slot: _Slot) -> None:
        """Capture the computation as a CUDA graph. Models that cannot be captured run without a graph."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(_WARM_CALLS):
                self._fill(slot)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode(), torch.cuda.graph(graph, stream=self._stream):
                self._fill(slot)
        except RuntimeError:  # the model synchronises, or its allocations depend on data
            torch.cuda.synchronize(self._device)
            return
        slot.graph = graph

    def submit(
        self, _boards: npt.NDArray[np.uint64], _legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> None:
        slot = self._slots[self._next]
        self._next = 1 - self._next
        slot.rows = len(exps)
        slot.host_in.numpy()[: len(exps)] = exps
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            slot.device_in.copy_(slot.host_in, non_blocking=True)
            if slot.graph is not None:
                slot.graph.replay()
            else:
                self._fill(slot)
            slot.host_out.copy_(slot.device_out, non_blocking=True)
            slot.done.record(self._stream)
        self._in_flight.append(slot)

    def collect(self) -> npt.NDArray[np.float32]:
        """Return the scores of the oldest batch, ``f32[n, 4]`` (a view, reused by the second next batch)."""
        slot = self._in_flight.pop(0)
        slot.done.synchronize()
        scores: npt.NDArray[np.float32] = slot.host_out.numpy()[: slot.rows]
        return scores

    def _scores(self, exps: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        self.submit(np.empty(0, np.uint64), np.empty(0, np.uint8), exps)
        return self.collect().copy()
