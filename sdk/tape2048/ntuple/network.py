"""N-tuple networks in memory: the layout, the tables, and facts about the training.

Tables hold values in points of score, as ``f32``, or as ``i16`` in steps of a scale for each table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.errors import ConfigError
from tape2048.jit.compiler import kernel
from tape2048.ntuple.layout import DOWNGRADE, TILES, NetworkLayout
from tape2048.ntuple.lookup import value_of
from tape2048.ntuple.placing import place

U64 = np.uint64

#: Entries quantised at a time, which bounds the temporary arrays.
_ENTRIES_AT_ONCE = 1 << 18


@kernel
def _fill_values(places: Any, table: Any, scales: Any, boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[i] = value_of(places, table, scales, boards[i])


@dataclasses.dataclass(frozen=True)
class Network:
    """An n-tuple network.

    Args:
        layout: tuples and stages.
        table: ``f32[entries]`` or ``i16[entries]``: stage by stage, tuple by tuple.
        scales: ``f32[S, T]``: points of score for each unit of a table's entries (1 for ``f32`` tables).
        facts: plain values about the training.

    Example:
        >>> import numpy as np
        >>> from tape2048.ntuple import NetworkLayout, Network
        >>> network = Network.empty(NetworkLayout.of(["0123"]), initial_value=100)
        >>> network.values(np.array([0x1200, 0x3], np.uint64))
        array([100., 100.], dtype=float32)
    """

    layout: NetworkLayout
    table: npt.NDArray[np.float32] | npt.NDArray[np.int16]
    scales: npt.NDArray[np.float32]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def downgrade(self) -> int:
        """Highest tile from which on boards are downgraded, as the training says; 0: never."""
        training = self.facts.get("training")
        found = training.get("downgrade") if isinstance(training, dict) else None
        return found if type(found) is int and found in {0, *TILES} else DOWNGRADE

    @classmethod
    def empty(cls, layout: NetworkLayout, *, initial_value: float = 0.0) -> Network:
        """Make a network that gives each board the same value (optimistic initialisation if it is high).

        Args:
            layout: tuples and stages.
            initial_value: in points of score.
        """
        lookups = 8 * len(layout.tuples)
        table = np.full(layout.entries, initial_value / lookups, dtype=np.float32)
        return cls(layout, table, np.ones((layout.stage_count, len(layout.tuples)), dtype=np.float32))

    def values(self, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """Return the values of afterstates ``u64[n]`` as ``f32[n]``, in points of score."""
        out = np.empty(len(boards), dtype=np.float32)
        placed = place(self.layout, self.table, self.scales)
        _fill_values(*placed, np.ascontiguousarray(boards, dtype=U64), out)
        return out

    def quantised(self, step: float) -> Network:
        """Return the network as ``i16`` in steps of ``step`` points, or more where a table's range needs it.

        Raises:
            ConfigError: the network is quantised already, or the step is not a positive ``f32``.
        """
        limits = np.finfo(np.float32)
        if self.table.dtype != np.float32 or not 0 < step <= float(limits.max):
            raise ConfigError(
                f"found tables of {self.table.dtype} and a step of {step:g}; "
                "expected float32 and a step above 0 that float32 can hold"
            )
        table = np.empty(self.layout.entries, dtype=np.int16)
        scales = np.empty_like(self.scales)
        target = Network(self.layout, table, scales, {**self.facts, "quantised_step": step})
        quantised = self.layout.tables(table)
        for (stage, index), values in self.layout.tables(self.table).items():
            # 32,767 steps to either side: -32,768 is never used.
            largest = float(max(values.max(), -values.min()))
            scale = max(step, largest / np.iinfo(np.int16).max, float(limits.tiny))
            scales[stage, index] = scale
            for first in range(0, len(values), _ENTRIES_AT_ONCE):
                part = slice(first, first + _ENTRIES_AT_ONCE)
                quantised[stage, index][part] = np.rint(values[part] / np.float32(scale))
        return target
