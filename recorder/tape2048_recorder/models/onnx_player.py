"""``OnnxPlayer``: an ONNX model as a batched player (extra ``[onnx]``).

::

    tape2048 record --player python:tape2048_recorder.models.onnx_player:make:model=policy.onnx

The model has one input of integers, ``[B, 16]``, the exponents of the tiles, and its first output is
``[B, 4]`` of float32, the scores for up, down, left and right. Batches always have the same shape; what is
left of the last one is padded. A model that was made for one number of boards is called with that number.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ConfigError, MissingPackageError, PlayerAnswerError, WeightsError

try:
    import onnxruntime
except ImportError as error:  # the extra is named where the player is
    raise MissingPackageError(
        "an OnnxPlayer needs onnxruntime, which is not installed", hint="pip install 'tape2048[onnx]'"
    ) from error

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["OnnxPlayer", "make"]

_CUDA = "CUDAExecutionProvider"
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}


def make(*, model: str, batch: int = 0, device: str = "auto") -> OnnxPlayer:
    """The player of a model's file.

    Args:
        model: the file.
        batch: boards to a call; 0: as many as come at once, or as the model was made for.
        device: ``auto`` (CUDA where onnxruntime has it), ``cpu`` or ``cuda``.

    Raises:
        ConfigError: an argument that cannot be, or CUDA where onnxruntime has none.
        WeightsError: the file is not there, not whole, or has other inputs and outputs.
    """
    if device not in {"auto", "cpu", "cuda"} or batch < 0:
        expected = "expected auto, cpu or cuda, and 0 or more"
        raise ConfigError(f"found device = {device!r}, batch = {batch}, {expected}")
    return OnnxPlayer(Path(model), batch=batch, device=device)


class OnnxPlayer:
    """A model in onnxruntime, on one thread.

    Args:
        path: its file.
        batch: boards to a call; 0: what :meth:`warm_up` is told.
        device: as for :func:`make`.
    """

    def __init__(self, path: Path, *, batch: int = 0, device: str = "auto") -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        providers = [
            name
            for name in onnxruntime.get_available_providers()
            if name == "CPUExecutionProvider" or (name == _CUDA and device != "cpu")
        ]
        try:
            data = path.read_bytes()
            self._session = onnxruntime.InferenceSession(data, options, providers=providers)
        except Exception as error:
            raise WeightsError(f"cannot be loaded: {type(error).__name__}: {error}", path=path) from error
        provider = self._session.get_providers()[0]
        if device == "cuda" and provider != _CUDA:
            raise ConfigError(
                f"found device = 'cuda', and onnxruntime computes by {provider}",
                hint="install onnxruntime-gpu and its CUDA; device = 'auto' takes what there is",
            )
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _INTEGERS or len(inputs[0].shape) != 2:
            found = ", ".join(f"{one.type}{one.shape}" for one in inputs)
            raise WeightsError(f"found inputs {found}, expected one of integers, [boards, 16]", path=path)
        made_for = inputs[0].shape[0]
        self._batch = made_for if isinstance(made_for, int) else batch
        self._fixed = self._batch > 0
        self._name, self._dtype = inputs[0].name, _INTEGERS[inputs[0].type]
        self._input = np.zeros((self._batch, 16), dtype=self._dtype)
        facts = f"{hashlib.sha256(data).hexdigest()} {batch} {provider}"
        self.sha256 = hashlib.sha256(facts.encode()).hexdigest()

    def warm_up(self, n: int) -> None:
        """Fix the batches' shape, and see whether a board's scores depend on its place.

        Raises:
            PlayerAnswerError: the model gives something else than four scores a board.
        """
        if not self._batch:
            self._batch = n
            self._input = np.zeros((n, 16), dtype=self._dtype)
        self._input[:] = np.arange(16) % 12
        scores = self._run()
        if self._fixed and (scores != scores[0]).any():
            warnings.warn(
                f"a board's scores depend on its place in a batch of {self._batch}: the same seed "
                "gives other games with other numbers of lanes or workers",
                stacklevel=2,
            )

    def __call__(
        self, boards: npt.NDArray[np.uint64], _legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.float32]:
        """Scores ``f32[n, 4]``."""
        if not self._batch:
            self.warm_up(len(boards))
        answer = np.empty((len(exps), 4), dtype=np.float32)
        for first in range(0, len(exps), self._batch):
            part = exps[first : first + self._batch]
            self._input[: len(part)] = part  # behind it stands what was there
            answer[first : first + len(part)] = self._run()[: len(part)]
        return answer

    def _run(self) -> npt.NDArray[np.float32]:
        scores: npt.NDArray[np.float32] = self._session.run(None, {self._name: self._input})[0]
        if scores.shape != (self._batch, 4) or scores.dtype != np.float32:
            raise PlayerAnswerError(
                f"the model gave {scores.dtype}{list(scores.shape)} for {counted(self._batch, 'board')}, "
                f"expected float32[{self._batch}, 4]"
            )
        return scores
