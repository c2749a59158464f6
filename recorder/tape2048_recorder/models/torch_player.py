"""``TorchPlayer``: a PyTorch model as a batched player (extra ``[torch]``).

::

    player = "python:tape2048_recorder.models.torch_player:make"

    [player_args]
    model = "policy.safetensors"
    module = "my.nets:policy"

The model takes ``int64[B, 16]``, the exponents of the tiles, and gives ``[B, 4]``, scores for up, down, left
and right. It is loaded from

* ``*.pt2``: what ``torch.export.save`` wrote, exported for batches of ``batch`` boards or of any size;
* ``*.safetensors``: weights, for the module that ``module`` makes (``package.module:factory`` or
  ``file.py:factory``, called with the arguments that are left over);
* any other name: TorchScript, as ``torch.jit.save`` wrote it.

Batches always have the same shape; what is left of the last one is padded. On CUDA the model runs in
bfloat16, batches go through pinned buffers, and the whole computation is one CUDA graph where it can be
captured; two batches may be under way. On a CPU it runs in float32 in the worker's one thread.
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
from tape2048.errors import ConfigError, MissingPackageError, PlayerAnswerError, TapeError, WeightsError
from tape2048_recorder.players.batch import make_batch_player

try:
    import torch
except ImportError as error:  # the extra is named where the player is
    raise MissingPackageError(
        "a TorchPlayer needs torch, which is not installed", hint="pip install 'tape2048[torch]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["CudaPlayer", "TorchPlayer", "load_model", "make"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: Calls before a CUDA graph is captured: libraries choose their algorithms and allocate in the first ones.
_WARM_CALLS = 3


def make(
    *,
    model: str,
    module: str = "",
    device: str = "auto",
    dtype: str = "auto",
    batch: int = 0,
    compile: bool = False,  # noqa: A002 - the word of torch
    **module_args: Any,
) -> TorchPlayer:
    """The player of a model's file.

    Args:
        model: the file.
        module: for ``.safetensors``, what makes the module.
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``auto`` (bfloat16 on CUDA, float32 on a CPU), or one of float32, bfloat16, float16.
        batch: boards to a call; 0: as many as come at once. The games of a session follow from this number
            where a model's sums depend on shapes: set it, and the number of lanes does not matter.
        compile: whether to run the model through ``torch.compile``.
        module_args: further arguments of ``module``.

    Raises:
        ConfigError: an argument that cannot be, or CUDA where torch finds none.
        WeightsError: the file is not there, not whole, or does not fit the module.
        MissingPackageError: ``.safetensors`` without that package.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"found device = {device!r}, expected auto, cpu, cuda or cuda:N")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"found device = {device!r}, and torch finds no CUDA",
            hint="see torch.cuda.is_available(); device = 'auto' takes what there is",
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
    """A model, and the SHA-256 of its file.

    Raises:
        ConfigError: ``module`` and the file's kind do not go together.
        WeightsError: the file cannot be loaded.
    """
    is_weights = path.suffix == ".safetensors"
    if is_weights != bool(module):
        need = "module=package.module:factory, which makes what the weights are for"
        raise ConfigError(
            f"found {path.name} {'without' if is_weights else 'with'} module; expected "
            f"{need if is_weights else 'none: the file has the module'}"
        )
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise WeightsError(
            f"cannot be read: {error.strerror or error}",
            path=path,
            hint="model=... names a file; a relative path counts from where the recorder was started",
        ) from error
    try:
        if is_weights:
            net = _with_weights(path, module, module_args)
        elif path.suffix == ".pt2":
            net = torch.export.load(path).module()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is, and files of it remain
                net = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except TapeError:  # what its module's factory says of itself
        raise
    except Exception as error:
        raise WeightsError(
            f"cannot be loaded: {type(error).__name__}: {error}",
            path=path,
            hint="a checkpoint is to be written under another name and renamed when it is whole",
        ) from error
    with contextlib.suppress(
        NotImplementedError
    ):  # an exported module is in the mode that it was exported in
        net.eval()
    return net, digest


def _with_weights(path: Path, module: str, module_args: dict[str, Any]) -> torch.nn.Module:
    """The module that a factory makes, with the weights of a file."""
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


class TorchPlayer:
    """A model on the CPU.

    Args:
        net: from ``int64[B, 16]`` to scores ``[B, 4]``.
        device: torch's name of the device.
        dtype: what its parameters and inputs of floating point are turned to.
        batch: boards to a call; 0: what :meth:`warm_up` is told.
        compiled: whether ``torch.compile`` goes over it.
        sha256: what tells it from others.
    """

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
        self.sha256 = sha256
        self._device = torch.device(device)
        self._net: Callable[[torch.Tensor], torch.Tensor] = _placed(net, self._device, dtype)
        if compiled:
            self._net = torch.compile(self._net, dynamic=False)
        self._fixed = batch > 0
        self._batch = batch
        self._warm = False

    def warm_up(self, n: int) -> None:
        """Fix the batches' shape, compile, and see whether a board's scores depend on its place.

        Raises:
            PlayerAnswerError: the model gives something else than four scores a board.
        """
        self._batch = self._batch or n
        self._prepare()
        self._warm = True
        board = np.arange(16, dtype=np.uint8) % 12
        scores = self._scores(np.tile(board, (self._batch, 1)))
        if self._fixed and (scores != scores[0]).any():
            warnings.warn(
                f"a board's scores depend on its place in a batch of {self._batch}: the same seed "
                "gives other games with other numbers of lanes or workers",
                stacklevel=2,
            )

    def _prepare(self) -> None:
        """Make the buffers for batches of the size that is known now."""
        self._tokens = torch.zeros((self._batch, 16), dtype=torch.int64)
        self._input = self._tokens.numpy()

    def __call__(
        self, boards: npt.NDArray[np.uint64], _legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.float32]:
        """Scores ``f32[n, 4]``."""
        if not self._warm:
            self.warm_up(len(boards))
        return self._scores(exps)

    def _scores(self, exps: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        answer = np.empty((len(exps), 4), dtype=np.float32)
        for first in range(0, len(exps), self._batch):
            part = exps[first : first + self._batch]
            self._input[: len(part)] = part  # behind it stands what was there
            with torch.inference_mode():
                scores = self._run(self._tokens)
            answer[first : first + len(part)] = scores[: len(part)].float().numpy()
        return answer

    def _run(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self._net(tokens)
        if not isinstance(scores, torch.Tensor) or scores.shape != (self._batch, 4):
            found = f"{tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise PlayerAnswerError(
                f"the model gave {found} for {counted(self._batch, 'board')}, "
                f"expected a tensor ({self._batch}, 4)"
            )
        return scores


class _Slot:
    """Buffers of one batch under way."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.host_in = torch.zeros((batch, 16), dtype=torch.uint8, pin_memory=True)
        self.host_out = torch.zeros((batch, 4), dtype=torch.float32, pin_memory=True)
        self.device_in = torch.zeros((batch, 16), dtype=torch.uint8, device=device)
        self.device_out = torch.zeros((batch, 4), dtype=torch.float32, device=device)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rows = 0


class CudaPlayer(TorchPlayer):
    """A model on a GPU: batches are copied and computed asynchronously, two at a time."""

    def warm_up(self, n: int) -> None:
        """Make the buffers, and capture the graph."""
        # One call takes a whole group of lanes, in one shape.
        self._batch = max(self._batch, n)
        super().warm_up(n)

    def _prepare(self) -> None:
        self._slots = [_Slot(self._batch, self._device) for _ in range(2)]
        self._next = 0
        self._under_way: list[_Slot] = []
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        for slot in self._slots:
            self._capture(slot)

    def _compute(self, slot: _Slot) -> None:
        slot.device_out.copy_(self._run(slot.device_in.long()))

    def _capture(self, slot: _Slot) -> None:
        """Record the computation as a graph; models that cannot be captured run call by call."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(_WARM_CALLS):
                self._compute(slot)
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode(), torch.cuda.graph(graph, stream=self._stream):
                self._compute(slot)
        except RuntimeError:  # it synchronises, or allocates by what it computes
            torch.cuda.synchronize(self._device)
            return
        slot.graph = graph

    def submit(
        self, _boards: npt.NDArray[np.uint64], _legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> None:
        """Copy a batch to the device and begin to compute."""
        slot = self._slots[self._next]
        self._next = 1 - self._next
        slot.rows = len(exps)
        slot.host_in.numpy()[: len(exps)] = exps
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            slot.device_in.copy_(slot.host_in, non_blocking=True)
            if slot.graph is not None:
                slot.graph.replay()
            else:
                self._compute(slot)
            slot.host_out.copy_(slot.device_out, non_blocking=True)
            slot.done.record(self._stream)
        self._under_way.append(slot)

    def collect(self) -> npt.NDArray[np.float32]:
        """The scores of the oldest batch, once they are there (a view, good until two more batches)."""
        slot = self._under_way.pop(0)
        slot.done.synchronize()
        scores: npt.NDArray[np.float32] = slot.host_out.numpy()[: slot.rows]
        return scores

    def _scores(self, exps: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        self.submit(np.empty(0, np.uint64), np.empty(0, np.uint8), exps)
        return self.collect().copy()


def _placed(net: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The model on its device, in its type; what takes neither runs as it is."""
    with contextlib.suppress(NotImplementedError, AttributeError, RuntimeError):
        net = net.to(device=device, dtype=dtype)
    return net
