"""``OnnxPlayer``: an ONNX model as a batched player (extra ``[onnx]``).

::

    tape2048 record --player python:tape2048_recorder.models.onnx_player:make:model=policy.onnx

The model has one integer input ``[B, 16]``, the exponents of the tiles. Its first output is ``f32[B, 4]``,
the scores for up, down, left and right. All batches have the same shape, and the last batch is padded. If the
model has a fixed number of boards, that is the size of a batch. External data is searched beside the model.
Checkpoints in ``model_dir`` are copied, so each must be one file.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ConfigError, MissingPackageError, PlayerError
from tape2048_recorder.models.padding import PaddedModel

try:
    import onnxruntime
except ImportError as error:  # the message names the extra
    raise MissingPackageError(
        "an OnnxPlayer needs onnxruntime, which is not installed", hint="pip install 'tape2048[onnx]'"
    ) from error

if TYPE_CHECKING:
    import numpy.typing as npt

_CUDA = "CUDAExecutionProvider"
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}


#: The option of onnxruntime that names the directory of a model's external data.
_DATA_DIRECTORY = "session.model_external_initializers_file_folder_path"

#: In a model, the key of a file name of at most 127 bytes, and the length of the name.
_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f])", re.DOTALL)


def _external_data(model: bytes) -> set[bytes]:
    return {model[found.end() : found.end() + found[1][0]] for found in _LOCATION.finditer(model)}


def make(*, model: str, batch: int = 0, device: str = "auto") -> OnnxPlayer:
    """Return the player of a model's file.

    Args:
        model: the file.
        batch: number of boards in each batch; 0: as many as the worker passes in its largest call.
        device: ``auto`` (CUDA if onnxruntime supports it), ``cpu`` or ``cuda``.

    Raises:
        ConfigError: an invalid argument, or onnxruntime has no CUDA.
        PlayerError: the file is missing or damaged, or has other inputs.
    """
    if device not in {"auto", "cpu", "cuda"} or batch < 0:
        expected = "expected device auto, cpu or cuda, and batch 0 or more"
        raise ConfigError(f"found device = {device!r}, batch = {batch}, {expected}")
    return OnnxPlayer(Path(model), batch=batch, device=device)


class OnnxPlayer(PaddedModel):
    """A model in onnxruntime, on one thread."""

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
            beside = {(path.parent / name.decode()).resolve() for name in _external_data(data)}
            options.add_session_config_entry(_DATA_DIRECTORY, str(path.parent.resolve()))
            self._session = onnxruntime.InferenceSession(data, options, providers=providers)
        except Exception as error:
            raise PlayerError(
                f"cannot be loaded: {type(error).__name__}: {error}",
                path=path,
                hint="Write checkpoints under another name, and rename them when they are complete.",
            ) from error
        provider = self._session.get_providers()[0]
        if device == "cuda" and provider != _CUDA:
            raise ConfigError(
                f"found device = 'cuda', but onnxruntime uses {provider}, expected {_CUDA}",
                hint="Install onnxruntime-gpu and its CUDA libraries, or pass device = 'auto'.",
            )
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _INTEGERS or len(inputs[0].shape) != 2:
            found = ", ".join(f"{one.type}{one.shape}" for one in inputs)
            raise PlayerError(
                f"found the inputs {found}, expected one input of integers with the shape [boards, 16]",
                path=path,
                hint="Export a model whose only input is the exponents of the tiles.",
            )
        made_for = inputs[0].shape[0]
        super().__init__(made_for if isinstance(made_for, int) else batch)
        self._name, self._dtype = inputs[0].name, _INTEGERS[inputs[0].type]
        parts = [data, *(each.read_bytes() for each in sorted(beside) if each.is_file())]
        facts = f"{' '.join(hashlib.sha256(part).hexdigest() for part in parts)} {batch} {provider}"
        self.sha256 = hashlib.sha256(facts.encode()).hexdigest()

    def _prepare(self) -> None:
        self._input = np.zeros((self._batch, 16), dtype=self._dtype)

    def _run(self) -> npt.NDArray[np.float32]:
        scores: npt.NDArray[np.float32] = self._session.run(None, {self._name: self._input})[0]
        if scores.shape != (self._batch, 4) or scores.dtype != np.float32:
            raise PlayerError(
                f"the model returned {scores.dtype}{list(scores.shape)} for {counted(self._batch, 'board')}, "
                f"expected float32[{self._batch}, 4]",
                hint="Return float32 scores of shape (boards, 4), finite for the legal moves.",
            )
        return scores
