"""The copy of a learning network's weights by which all threads choose their moves."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tape2048.errors import ConfigError
from tape2048.io.bulk_read import allocate
from tape2048.ntuple.placing import PADDING, player_places, positions_of, stage_begins
from tape2048_recorder.ntuple_training.learning import Plays, copy_weights

if TYPE_CHECKING:
    from tape2048.ntuple.layout import Layout

U64 = np.uint64

#: Threads renew their copy after as many moves as the lesser of these shares, of the tables' entries and of
#: all moves so far, but at least this many. Copying takes a hundredth or two of one thread's time.
_COPY_ENTRIES = 1 / 4
_COPY_MOVES = 1 / 16
_COPY_MOVES_MIN = 20_000

#: Scales of the copy's tables begin here, and hold this many steps.
_SCALE_MIN = 2.0**-6
_STEPS_MAX = 32_767


def overflow() -> ConfigError:
    """Return the error of values that are no longer finite."""
    return ConfigError(
        "the values have left the range of float32",
        hint="a smaller initial_value or beta; an earlier checkpoint is intact",
    )


class PlayerCopy:
    """The player's copy of the weights, from which all threads choose their moves.

    The first thread that finds it old renews it, and the others go on meanwhile. A scale is a power of two
    that only grows, so they seldom see entries in steps of another one, and never for long.

    Args:
        layout: the network's.
        entries: the learning entries.
        goals: the sums of different tiles that end a game.
    """

    def __init__(self, layout: Layout, entries: npt.NDArray[np.float32], goals: tuple[int, ...] = ()) -> None:
        self._layout = layout
        self._sources = layout.tables(entries)
        self._goals = tuple(map(U64, goals))
        self._goal_reward = np.float32(min((total & -total for total in goals), default=np.inf))
        self._positions = positions_of(layout)
        self._places, columns = player_places(layout)
        self._column = {t: column for column, t in enumerate(columns)}
        self.table = allocate(2 * layout.entries + PADDING)[: 2 * layout.entries].view(np.int16)
        self.scales = np.full((layout.stage_count, len(layout.tuples)), _SCALE_MIN, dtype=np.float32)
        self.good_until = 0  # moves
        self._renewing = threading.Lock()

    def plays(self, *, parted: bool) -> Plays:
        """Return the arguments of the compiled loop."""
        begins = stage_begins(self._layout, parted=parted)
        places = self._places._replace(stage_begins=begins)
        return Plays(places, self.table, self.scales, self._goals, self._goal_reward)

    def renew(self, moves: int, *, parted: bool) -> int:
        """Renew the copy if it is old after ``moves`` of all threads; return how many moves it then lasts."""
        if moves >= self.good_until and self._renewing.acquire(blocking=False):
            try:
                if moves >= self.good_until:  # else another thread has just renewed it
                    self._renew(self._layout.stage_count if parted else 1)
                    entries = self._layout.entries if parted else self._layout.stage_size
                    lasts = min(entries * _COPY_ENTRIES, moves * _COPY_MOVES)
                    self.good_until = moves + max(int(lasts), _COPY_MOVES_MIN)
            finally:
                self._renewing.release()
        left = self.good_until - moves
        return left if left > 0 else _COPY_MOVES_MIN

    def _renew(self, stages: int) -> None:
        for (stage, t), entries in self._sources.items():
            if stage >= stages:
                continue
            first, strides = self._positions[t]
            out = self.table[stage * self._layout.stage_size + first :]
            at = stage, self._column[t]
            while (
                largest := copy_weights(entries, np.array(strides, U64), self.scales[at], out)
            ) > self.scales[at] * _STEPS_MAX:
                if not math.isfinite(largest):
                    raise overflow()
                self.scales[at] = 2.0 ** math.ceil(math.log2(largest / _STEPS_MAX))
