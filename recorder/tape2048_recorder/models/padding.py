"""Batches of one shape, for models whose results depend on the shape."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class PaddedModel:
    _input: npt.NDArray[np.integer]

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._fixed = batch > 0
        self._warm = False

    def _prepare(self) -> None:
        """Create the buffers of a batch, including ``_input`` (integers ``[batch, 16]``)."""
        raise NotImplementedError

    def _run(self) -> npt.NDArray[np.float32]:
        raise NotImplementedError

    def warm_up(self, n: int) -> None:
        """Fix the shape of the batches, and warn if a board's scores depend on its place in the batch."""
        self._batch = self._batch or n
        self._prepare()
        self._warm = True
        scores = self._scores(np.tile(np.arange(16, dtype=np.uint8) % 12, (self._batch, 1)))
        if self._fixed and (scores != scores[0]).any():
            warnings.warn(
                f"a board's scores depend on its place in a batch of {self._batch}: with another number of "
                "lanes or workers, the same seed gives other games",
                stacklevel=2,
            )

    def __call__(
        self, boards: npt.NDArray[np.uint64], _legal: npt.NDArray[np.uint8], exps: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.float32]:
        """Return scores ``f32[n, 4]``."""
        if not self._warm:
            self.warm_up(len(boards))
        return self._scores(exps)

    def _scores(self, exps: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        answer = np.empty((len(exps), 4), dtype=np.float32)
        for first in range(0, len(exps), self._batch):
            part = exps[first : first + self._batch]
            self._input[: len(part)] = part  # the padding is left over from an earlier batch
            answer[first : first + len(part)] = self._run()[: len(part)]
        return answer
