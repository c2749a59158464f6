r"""Temporal difference learning of the probabilities that games reach tiles, compiled.

The logit of each tile is the sum of its weights over the tuples and the eight symmetries of a board, as a
player's value is (:mod:`tape2048.ntuple.lookup`). It learns from a finished game backwards: for the rows
:math:`s_0, s_1, ...` that count (every ``stride``-th one), the tile's outcome :math:`y` and the probability
:math:`p_i` of row :math:`i`,

.. math::

    G_i = (1 - \lambda)\, p_{i+1} + \lambda\, G_{i+1}, \qquad \delta_i = G_i - p_i,

with :math:`G = y` for the last row (the lambda-return of Sutton and Barto, 2nd ed., section 12.1, with no
reward before the end). Backwards, :math:`p_{i+1}` has already learned. A game's outcome is one bit for
thousands of rows; the probability of the next row says more, and weighs it against all games that came by.
On a board that has the tile already, the probability is 1 and nothing is learned.

Each weight moves by the gradient of the log loss at a rate of its own (AdaGrad: Duchi, Hazan and Singer, JMLR
12, 2011):

.. math::

    S \leftarrow S + \delta^2, \qquad w \leftarrow w + \eta\, \delta / \sqrt{S + \epsilon}
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.game.rules import max_exponent
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import prefetch
from tape2048.ntuple.images import stage_of
from tape2048.ntuple.lookup import SYMMETRIES, indices_of

U64 = np.uint64
F32 = np.float32

_EPSILON = F32(1e-6)


class CriticTables(NamedTuple):
    """A learning critic; threads share it. The columns of a record are the weights of W tiles and their S.

    ``exponents`` are those of the tiles in ascending order, then 0 up to W, a power of two: on any board, a
    tile of exponent 0 is reached, and nothing is learned for it.
    """

    records: npt.NDArray[np.float32]  # `f32[entries, 2 W]`
    exponents: tuple[np.uint64, ...]  # W
    masks: tuple[np.uint64, ...]
    offsets: tuple[np.uint64, ...]
    stage_begins: tuple[np.uint64, ...]
    stage_size: np.uint64


class Scratch(NamedTuple):
    """Buffers of a thread: the places of two boards, and for W tiles G, p of the next row, and steps."""

    places: npt.NDArray[np.uint64]  # `u64[2, 8 T]`
    columns: npt.NDArray[np.float32]  # `f32[4, W]`


def new_scratch(tables: CriticTables) -> Scratch:
    """Return the buffers of a thread."""
    places = np.empty((2, SYMMETRIES * len(tables.masks)), dtype=U64)
    return Scratch(places, np.empty((4, len(tables.exponents)), dtype=F32))


@register_jitable
def _sigmoid(logit: Any) -> Any:
    return F32(1) / (F32(1) + math.exp(-logit))


@register_jitable
def _look_up(tables: Any, board: Any, places: Any) -> Any:
    """Write the places of a board's records, and ask for their memory."""
    base = stage_of(tables.stage_begins, board) * tables.stage_size
    indices_of(tables.masks, tables.offsets, base, board, places)
    records = tables.records
    address, size = U64(records.ctypes.data), U64(records.itemsize * records.shape[1])
    for k in range(places.shape[0]):
        prefetch(address + size * places[k])


@kernel
def learn(
    tables: Any,
    boards: Any,
    starts: Any,
    highest: Any,
    order: Any,
    decay: Any,
    rate: Any,
    scratch: Any,
) -> Any:
    """Learn from games, each backwards.

    Args:
        tables: the critic; other threads may write to it at the same time.
        boards: ``u64[N]``, the rows that count, game by game in step order.
        starts: ``i64[R + 1]``, the first row of each game, and N.
        highest: ``u8[R]``, the exponent of each game's highest tile.
        order: ``i64[n]``, the games to learn from.
        decay: lambda.
        rate: eta.
        scratch: this thread's own.

    Returns:
        The number of rows learned from.
    """
    records, exponents = tables.records, tables.exponents
    width = len(exponents)
    returns, following, steps, squares = scratch.columns
    decay, rate = F32(decay), F32(rate)
    learned = 0
    for at in range(order.shape[0]):
        game = order[at]
        first, i = starts[game], starts[game + 1] - 1
        for c in range(width):
            returns[c] = following[c] = F32(U64(highest[game]) >= exponents[c])
        if i >= first:
            _look_up(tables, boards[i], scratch.places[i & 1])
        while i >= first:
            board, places = boards[i], scratch.places[i & 1]
            if i > first:
                # The records of the row before arrive while this one learns.
                _look_up(tables, boards[i - 1], scratch.places[~i & 1])
            steps[:] = F32(0)
            for k in range(places.shape[0]):
                for c in range(width):
                    steps[c] += records[places[k], c]
            reached = max_exponent(board)
            for c in range(width):
                target = (F32(1) - decay) * following[c] + decay * returns[c]
                p = _sigmoid(steps[c])
                has_tile = reached >= exponents[c]
                delta = F32(0) if has_tile else target - p
                returns[c] = F32(1) if has_tile else target
                following[c] = F32(1) if has_tile else p
                steps[c] = rate * delta
                squares[c] = delta * delta
            for k in range(places.shape[0]):
                place = places[k]
                for c in range(width):
                    total = records[place, width + c] + squares[c]
                    records[place, width + c] = total
                    records[place, c] += steps[c] / math.sqrt(total + _EPSILON)
            learned += 1
            i -= 1
    return learned


@kernel
def predict(tables: Any, scale: Any, boards: Any, out: Any, scratch: Any) -> None:
    """Write P(the game reaches each tile) of boards ``u64[n]`` into ``f32[n, T]``, T <= W.

    The first W columns of ``tables.records`` are the weights, in units of ``scale``. No probability is above
    that of a lower tile; on a board that has the tile it is 1.
    """
    records, exponents = tables.records, tables.exponents
    logits, scale = scratch.columns[0], F32(scale)
    if boards.shape[0]:
        _look_up(tables, boards[0], scratch.places[0])
    for i in range(boards.shape[0]):
        board, places = boards[i], scratch.places[i & 1]
        if i + 1 < boards.shape[0]:
            _look_up(tables, boards[i + 1], scratch.places[~i & 1])
        logits[:] = F32(0)
        for k in range(places.shape[0]):
            for c in range(len(exponents)):
                logits[c] += F32(records[places[k], c])
        reached = max_exponent(board)
        least = F32(1)
        for c in range(out.shape[1]):
            p = F32(1) if reached >= exponents[c] else _sigmoid(scale * logits[c])
            least = min(least, p)
            out[i, c] = least
