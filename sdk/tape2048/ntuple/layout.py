"""The layout of an n-tuple network: its tuples, its stages, and the offsets of their tables.

A **tuple** is a set of cells. Its table has an entry for each way to fill them, indexed by the number whose
hexadecimal digits are the exponents in the tuple's cells, lowest cell first. Each **stage** has its own set
of tables. It begins at a **sum of different tiles**: a board belongs to the last stage whose sum its tiles
reach, each size of tile counted once. So 8192 begins with that tile; 12288 with an 8192 and a 4096 beside it;
a board without the 8192 reaches neither, however many 4096 it has.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tape2048.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

U64 = np.uint64

#: Highest tiles from which boards may be downgraded; below the first, no tile can be missing.
TILES = [1 << exponent for exponent in range(2, 16)]

#: The default of :attr:`tape2048.ntuple.network.Network.downgrade`.
DOWNGRADE = 16384

_SUM_MAX = sum(TILES)

CELLS_MIN, CELLS_MAX = 4, 6
_DIGITS = "0123456789abcdef"


def parse_tuple(text: str) -> tuple[int, ...]:
    """Parse a tuple such as ``"01245"``; raise ConfigError unless it has 4 to 6 cells, ascending."""
    cells = tuple(_DIGITS.find(char) for char in text.lower())
    if -1 in cells or list(cells) != sorted(set(cells)) or not CELLS_MIN <= len(cells) <= CELLS_MAX:
        raise ConfigError(
            f"found the tuple {text!r}, expected {CELLS_MIN} to {CELLS_MAX} different cells, ascending",
            hint="one hexadecimal digit for each cell, 0 top left to f bottom right: 01245",
        )
    return cells


def tuple_text(cells: Iterable[int]) -> str:
    """Return the text that :func:`parse_tuple` reads."""
    return "".join(_DIGITS[cell] for cell in cells)


def check_sums(sums: Sequence[int], name: str) -> tuple[int, ...]:
    """Return sums of different tiles; raise ConfigError, with their name, unless they ascend and can be."""
    good = all(0 < total <= _SUM_MAX and total % TILES[0] == 0 for total in sums)
    if not good or list(sums) != sorted(set(sums)):
        raise ConfigError(
            f"found {name} {list(sums)}, expected tiles from 4 to 32768, or sums of different ones, in "
            "ascending order",
            hint="8192 12288 is an 8192 without a 4096 beside it, and then with one",
        )
    return tuple(sums)


@dataclasses.dataclass(frozen=True)
class NetworkLayout:
    """The tuples and stages of a network.

    Args:
        tuples: cells of each tuple, ascending.
        stages: the sums of different tiles at which a stage begins, ascending; empty: one for all boards.

    Example:
        >>> from tape2048.ntuple import NetworkLayout
        >>> NetworkLayout.of(["0123", "01245"], stages=[2048]).entries
        2228224
    """

    tuples: tuple[tuple[int, ...], ...]
    stages: tuple[int, ...] = ()

    @classmethod
    def of(cls, tuples: Sequence[str], stages: Sequence[int] = ()) -> NetworkLayout:
        """Make a layout from tuples and stages as configurations spell them.

        Args:
            tuples: such as ``["0123", "01245"]``.
            stages: tiles from 4 to 32768, or sums of different ones, ascending.

        Raises:
            ConfigError: an invalid or repeated tuple or stage.
        """
        parsed = tuple(parse_tuple(text) for text in tuples)
        if not parsed or len(set(parsed)) < len(parsed):
            raise ConfigError(f"found tuples {list(tuples)}, expected at least one, each once")
        return cls(parsed, check_sums(stages, "stages"))

    @property
    def masks(self) -> tuple[np.uint64, ...]:
        """Mask of the nibbles of each tuple's cells."""
        return tuple(U64(sum(0xF << (60 - 4 * cell) for cell in cells)) for cells in self.tuples)

    @property
    def sizes(self) -> list[int]:
        """Entries of each tuple's table."""
        return [16 ** len(cells) for cells in self.tuples]

    @property
    def offsets(self) -> tuple[np.uint64, ...]:
        """Index of the first entry of each tuple's table in its stage."""
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
    def entries(self) -> int:
        """Entries of the whole network."""
        return self.stage_count * self.stage_size

    def tables(self, table: npt.NDArray[Any]) -> dict[tuple[int, int], npt.NDArray[Any]]:
        """Return views of each tuple's entries in ``table``, by ``(stage, tuple)``."""
        keys = [(stage, index) for stage in range(self.stage_count) for index in range(len(self.tuples))]
        ends = accumulate(self.sizes * self.stage_count)
        return dict(zip(keys, np.split(table, list(ends)[:-1]), strict=True))
