"""A network as it stands in memory: tuples, stages, tables.

A **tuple** is a set of cells; its table has an entry for each way to fill them, indexed by the number
whose hexadecimal digits are the exponents in the tuple's cells, lowest cell first. A **stage** has all tables
of its own. Tables hold values in points of score, as ``f32``, or as ``i16`` in steps of a scale for each
table.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tape2048._jit import kernel
from tape2048.errors import ConfigError
from tape2048_recorder.ntuple.arguments import TILES
from tape2048_recorder.ntuple.lookup import value_of
from tape2048_recorder.ntuple.placing import place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DOWNGRADE", "Layout", "Network", "parse_tuple", "tuple_text"]

U64 = np.uint64

CELLS_MIN, CELLS_MAX = 4, 6

#: Of networks that do not say from which highest tile on they know boards too little.
DOWNGRADE = 16384
_DIGITS = "0123456789abcdef"

#: Entries that are quantised at once: what is computed on the way takes no memory that counts.
_ENTRIES_AT_ONCE = 1 << 18


def parse_tuple(text: str) -> tuple[int, ...]:
    """The cells of a tuple written as hexadecimal digits, ``"01245"``, lowest first.

    Raises:
        ConfigError: not 4 to 6 different cells in ascending order.
    """
    cells = tuple(_DIGITS.find(char) for char in text.lower())
    if -1 in cells or list(cells) != sorted(set(cells)) or not CELLS_MIN <= len(cells) <= CELLS_MAX:
        raise ConfigError(
            f"found the tuple {text!r}, expected {CELLS_MIN} to {CELLS_MAX} different cells, ascending",
            hint="one hexadecimal digit for each cell, 0 top left to f bottom right: 01245",
        )
    return cells


def tuple_text(cells: Iterable[int]) -> str:
    """The text that :func:`parse_tuple` reads."""
    return "".join(_DIGITS[cell] for cell in cells)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which tuples and stages a network has.

    Args:
        tuples: cells of each tuple, ascending.
        stages: the tiles at which a stage begins, ascending; empty: one stage for all boards.
    """

    tuples: tuple[tuple[int, ...], ...]
    stages: tuple[int, ...] = ()

    @classmethod
    def of(cls, tuples: Sequence[str], stages: Sequence[int] = ()) -> Layout:
        """A layout from its parts as a configuration has them.

        Raises:
            ConfigError: a tuple or a stage that cannot be, or one that is there twice.
        """
        parsed = tuple(parse_tuple(text) for text in tuples)
        if not parsed or len(set(parsed)) < len(parsed):
            raise ConfigError(f"found tuples {list(tuples)}, expected at least one, each once")
        exponents = [tile.bit_length() - 1 for tile in stages]
        good = all(2 <= e <= 15 and tile == 1 << e for tile, e in zip(stages, exponents, strict=True))
        if not good or exponents != sorted(set(exponents)):
            raise ConfigError(f"found stages {list(stages)}, expected tiles in ascending order, 4 to 32768")
        return cls(parsed, tuple(stages))

    @property
    def masks(self) -> tuple[np.uint64, ...]:
        """The nibbles of each tuple's cells."""
        return tuple(U64(sum(0xF << (60 - 4 * cell) for cell in cells)) for cells in self.tuples)

    @property
    def sizes(self) -> list[int]:
        """Entries of each tuple's table."""
        return [16 ** len(cells) for cells in self.tuples]

    @property
    def offsets(self) -> tuple[np.uint64, ...]:
        """Where each tuple's table begins in its stage."""
        return tuple(U64(end - size) for end, size in zip(accumulate(self.sizes), self.sizes, strict=True))

    @property
    def stage_size(self) -> int:
        """Entries of a stage."""
        return sum(self.sizes)

    @property
    def stage_count(self) -> int:
        """Stages, the first one included."""
        return len(self.stages) + 1

    @property
    def stage_exponents(self) -> npt.NDArray[np.uint64]:
        """``u64[S - 1]``: the exponent at which each stage but the first begins."""
        return np.array([tile.bit_length() - 1 for tile in self.stages], dtype=U64)

    @property
    def entries(self) -> int:
        """Entries of the whole network."""
        return self.stage_count * self.stage_size


@kernel
def _fill_values(places: Any, table: Any, scales: Any, boards: Any, out: Any) -> None:
    for i in range(boards.shape[0]):
        out[i] = value_of(places, table, scales, boards[i])


@dataclasses.dataclass(frozen=True)
class Network:
    """Tables and what is known of them.

    Args:
        layout: tuples and stages.
        table: ``f32[entries]`` or ``i16[entries]``: stage by stage, tuple by tuple.
        scales: ``f32[S, T]``: points of score that 1 in a table stands for (1 for ``f32`` tables).
        facts: how it was trained; plain values.
    """

    layout: Layout
    table: npt.NDArray[np.float32] | npt.NDArray[np.int16]
    scales: npt.NDArray[np.float32]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def downgrade(self) -> int:
        """From which highest tile on it knows boards too little, as its training says; 0: it knows all."""
        training = self.facts.get("training")
        found = training.get("downgrade") if isinstance(training, dict) else None
        return found if type(found) is int and found in {0, *TILES} else DOWNGRADE

    @classmethod
    def empty(cls, layout: Layout, *, initial_value: float = 0.0) -> Network:
        """A network that gives each board this value (optimistic initialisation where it is high)."""
        lookups = 8 * len(layout.tuples)
        table = np.full(layout.entries, initial_value / lookups, dtype=np.float32)
        return cls(layout, table, np.ones((layout.stage_count, len(layout.tuples)), dtype=np.float32))

    def values(self, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """The values of afterstates, ``u64[n]`` to ``f32[n]``, in points of score."""
        out = np.empty(len(boards), dtype=np.float32)
        _fill_values(*place(self), np.ascontiguousarray(boards, dtype=U64), out)
        return out

    def tables(self) -> dict[tuple[int, int], npt.NDArray[Any]]:
        """Each table by ``(stage, tuple)``: a view of ``table``."""
        views: dict[tuple[int, int], npt.NDArray[Any]] = {}
        at = 0
        for stage in range(self.layout.stage_count):
            for index, size in enumerate(self.layout.sizes):
                views[stage, index] = self.table[at : at + size]
                at += size
        return views

    def quantised(self, step: float) -> Network:
        """The same network as ``i16`` in steps of ``step`` points, or more where a table's range asks for it.

        Raises:
            ConfigError: it is quantised already, or the step is not above 0, or no ``f32``.
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
        quantised = target.tables()
        for (stage, index), values in self.tables().items():
            # The ends of the range are left free: 32,767 steps to either side.
            largest = float(max(values.max(), -values.min()))
            scale = max(step, largest / np.iinfo(np.int16).max, float(limits.tiny))
            scales[stage, index] = scale
            for first in range(0, len(values), _ENTRIES_AT_ONCE):
                part = slice(first, first + _ENTRIES_AT_ONCE)
                quantised[stage, index][part] = np.rint(values[part] / np.float32(scale))
        return target
