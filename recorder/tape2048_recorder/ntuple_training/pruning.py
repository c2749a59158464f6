r"""Pruning of networks: much smaller files for slightly weaker play.

Most entries of a network are seldom looked up. Rounding an entry that is looked up :math:`c` times to a step
:math:`\Delta` adds a squared error of :math:`c\,\Delta^2 / 12` over all games, and saves :math:`\log_2
\Delta` bits. For a given number of bits, the sum of the errors is least for

.. math::

    \Delta_i \propto 1 / \sqrt{c_i}

(reverse water-filling; Cover and Thomas, "Elements of Information Theory", 2nd ed., section 10.3.3). Each
entry is rounded to a power of two of the network's steps: the fewer look-ups, the coarser. A file does not
store zeros, and stores equal values in few bits.

The counts are those of the training (:func:`~tape2048_recorder.ntuple_training.trainer.training_counts`), or
of games: look-ups of the afterstates of each board, and of the boards that can follow each afterstate, as in
a 2-ply search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tape2048.errors import ConfigError
from tape2048.game.rules import empty_mask
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import popcount, select_bit
from tape2048.ntuple.lookup import SYMMETRIES, indices_of, stage_of
from tape2048.ntuple.network import Network, file_bytes, stage_begins
from tape2048_recorder.evaluation.evaluated_games import part_of, play_games
from tape2048_recorder.game import rng
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.ntuple import after_move, afterstates, of_network

U64 = np.uint64

_CREDIT = 1 / 16  # look-ups added to each entry's count, so that no count is 0

#: The coarsest rounding, which leaves only the sign and the highest bit of an i16.
_SHIFT_MAX = 14.0
_MOST = 32767

_GAMES_AT_ONCE = 200  # games played at a time, which bounds the boards in memory

#: The factor between successive roundings, and the number of roundings: up to 2**20 times the finest.
_FACTOR = 2**0.25
_TRIES = 80
_TRIES_MAX = _TRIES.bit_length()


@helper
def _count_answers(network: Any, board: Any, places: Any, counts: Any) -> Any:
    """Count the entries of a board's afterstates; return the result of :func:`afterstates`."""
    masks, offsets, begins, size = network
    options = afterstates(board)
    moves = options[4]
    while moves != U64(0):
        bit = moves & (~moves + U64(1))
        moves ^= bit
        after = after_move(bit, options)
        indices_of(masks, offsets, stage_of(begins, after) * size, after, places)
        for place in places:
            counts[place] += np.uint32(1)
    return options


@kernel
def _count_lookups(network: Any, boards: Any, seed: Any, places: Any, counts: Any) -> None:
    state, gamma = rng.start(seed)
    for board in boards:
        options = _count_answers(network, board, places, counts)
        moves = options[4]
        while moves != U64(0):
            bit = moves & (~moves + U64(1))
            moves ^= bit
            after = after_move(bit, options)
            holes = empty_mask(after)
            pick, state = rng.bounded(state, gamma, popcount(holes))
            four, state = rng.bounded(state, gamma, U64(10))
            spawned = select_bit(holes, pick) << U64(four == U64(0))
            _count_answers(network, after | spawned, places, counts)


def count_lookups(
    network: Network,
    *,
    games: int,
    seed: int,
    threads: int,
    progress: Callable[[int, int], object] | None = None,
) -> npt.NDArray[np.uint32]:
    """Return how often games look up each entry, ``u32[entries]``; half of them are 1-ply, half 2-ply."""
    layout = network.layout
    facts = layout.masks, layout.offsets, stage_begins(layout), U64(layout.stage_size)
    counts = np.zeros(layout.entries, np.uint32)
    places = np.empty(SYMMETRIES * len(layout.tuples), U64)
    player = of_network(network, mix="0:1+16:1", downgrade=network.downgrade)
    seeds = game_seeds(seed, np.arange(games, dtype=U64))
    for first in range(0, games, _GAMES_AT_ONCE):
        some = seeds[first : first + _GAMES_AT_ONCE]
        found = play_games(player, some, stride=1, threads=threads, progress=part_of(progress, first, games))
        _count_lookups(facts, found.boards, some[0], places, counts)
    return counts


@kernel
def _round(values: Any, counts: Any, coarseness: Any, out: Any) -> None:
    for i in range(values.shape[0]):
        shift: Any = np.rint(np.log2(coarseness / np.sqrt(counts[i] + _CREDIT)))
        step = np.exp2(min(max(shift, 0.0), _SHIFT_MAX))
        value = np.rint(values[i] / step) * step
        out[i] = np.int16(value - np.sign(value) * step if abs(value) > _MOST else value)


def rounded(network: Network, counts: npt.NDArray[np.uint32], coarseness: float) -> Network:
    """Return the network with each entry rounded to about ``coarseness / sqrt(look-ups)`` points of score."""
    table = np.empty_like(network.table)
    targets, numbers = (network.layout.tables(array) for array in (table, counts))
    for (stage, t), values in network.layout.tables(network.table).items():
        _round(values, numbers[stage, t], coarseness / float(network.scales[stage, t]), targets[stage, t])
    return dataclasses.replace(network, table=table)


def check_prunable(network: Network) -> None:
    """Raise ConfigError unless the tables are ``i16``."""
    if network.table.dtype != np.int16:
        raise ConfigError(
            f"found tables of {network.table.dtype}, expected int16",
            hint="Run `tape2048 player quantise` first.",
        )


def pruned(
    network: Network,
    counts: npt.NDArray[np.uint32],
    bytes_max: int,
    progress: Callable[[int, int], object] | None = None,
) -> Network:
    """Return the finest rounding of a network whose file has at most ``bytes_max`` bytes."""
    check_prunable(network)
    finest = float(network.scales.min()) * _CREDIT**0.5  # leaves each entry unchanged
    fits: Network | None = None
    low, high = 0, _TRIES  # powers of _FACTOR: below low no rounding fits, from high on every rounding does
    tried = 0
    while low < high:
        middle = (low + high) // 2
        found = rounded(network, counts, finest * _FACTOR**middle)
        if (size := file_bytes(found)) <= bytes_max:
            fits, high = found, middle
        else:
            low = middle + 1
        tried += 1
        if progress is not None:
            progress(_TRIES_MAX if low == high else tried, _TRIES_MAX)
    if fits is None:
        raise ConfigError(
            f"found {size:,} bytes with the coarsest rounding, expected at most {bytes_max:,}",
            hint="Allow more bytes, or use a network with fewer stages or with tuples of fewer cells.",
        )
    return fits
