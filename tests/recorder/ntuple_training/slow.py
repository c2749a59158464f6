"""N-tuple networks as in their papers, on boards as lists: no bit tricks, no speed.

Networks for tests have small whole numbers in their tables, which ``f32`` adds without rounding: what is
compiled has to give the very same values, and ties are ties.
"""

import math
import random

import numpy as np
import numpy.typing as npt
from tests import reference

from tape2048.ntuple.network import Network, NetworkLayout

#: The chances of a spawned 2 and 4, by exponent.
SPAWNS = ((1, 0.9), (2, 0.1))

#: As many tuples as the network ``fast`` has. With these and no stages, ``i16`` runs what is compiled for it.
FAST = ("0145", "1256", "0123", "4567", "569a")


def random_network(
    *tuples: str, stages: tuple[int, ...] = (), dtype: type = np.float32, seed: int = 1, spread: int = 500
) -> Network:
    """A network of random whole numbers; as ``i16`` with a scale of its own for each table."""
    layout = NetworkLayout.of(tuples, stages)
    rng = np.random.default_rng(seed)
    table = rng.integers(-spread, spread + 1, layout.entries).astype(dtype)
    shape = (layout.stage_count, len(layout.tuples))
    scales = np.ones(shape) if dtype is np.float32 else rng.choice([0.25, 0.5, 2, 16], shape)
    return Network(layout, table, scales.astype(np.float32))


def index_of(cells: list[int], places: tuple[int, ...]) -> int:
    """The number whose hexadecimal digits are the exponents in a tuple's cells, the lowest cell first."""
    return int("".join(f"{cells[place]:x}" for place in places), 16)


def stage_of(layout: NetworkLayout, cells: list[int]) -> int:
    """The number of stages' sums that the board's different tiles reach."""
    total = sum(2**exponent for exponent in set(cells))
    return sum(total >= begin for begin in layout.stages)


def entries_of(layout: NetworkLayout, cells: list[int]) -> list[list[int]]:
    """For each tuple, the places in the network's table of the eight entries that count."""
    begin = stage_of(layout, cells) * sum(16 ** len(places) for places in layout.tuples)
    found = []
    for places in layout.tuples:
        found.append([begin + index_of(image, places) for image in reference.symmetries(cells)])
        begin += 16 ** len(places)
    return found


def value(network: Network, cells: list[int]) -> float:
    scales = network.scales[stage_of(network.layout, cells)]
    entries = entries_of(network.layout, cells)
    return sum(
        float(scale) * sum(float(network.table[at]) for at in places)
        for scale, places in zip(scales, entries, strict=True)
    )


def near_best(network: Network, cells: list[int], margin: float) -> dict[int, float]:
    """Reward and value of the legal moves within ``margin`` of the best one; of all where it is 0."""
    values = move_values(network, cells, looks_ahead=False)
    least = max(values.values(), default=0.0) - (margin or math.inf)
    return {move: value for move, value in values.items() if value >= least}


def expected_answer(network: Network, after: list[int], spawns: int = 1, margin: float = 0.0) -> float:
    """The expectation over the spawns of the best answer's value, 0 without an answer."""
    total = 0.0
    empty = reference.empty_cells(after)
    for cell in empty:
        for exponent, chance in SPAWNS:
            board = list(after)
            board[cell] = exponent
            if spawns == 1:
                answers = move_values(network, board, looks_ahead=False)
            else:
                answers = {}
                for move in near_best(network, board, margin):
                    next_, score = reference.seen_slide(board, move)
                    answers[move] = score + expected_answer(network, next_, spawns - 1, margin)
            total += chance * max(answers.values(), default=0.0)
    return total / len(empty)


def move_values(
    network: Network, cells: list[int], *, looks_ahead: bool | int, margin: float = 0.0
) -> dict[int, float]:
    """Reward and value of each legal move, so many spawns ahead."""
    found = {}
    for move in reference.legal_moves(cells):
        after, score = reference.seen_slide(cells, move)
        if looks_ahead:
            found[move] = score + expected_answer(network, after, int(looks_ahead), margin)
        else:
            found[move] = score + value(network, after)
    return found


def random_boards(count: int, *, seed: int, highest: int = 15) -> list[list[int]]:
    """Boards of all fill levels, the emptiest first."""
    rng = random.Random(seed)
    boards = []
    for i in range(count):
        top = rng.randint(1, highest)
        cells = [rng.randint(1, top) for _ in range(16)]
        for cell in rng.sample(range(16), 16 - i * 17 // count):
            cells[cell] = 0
        boards.append(cells)
    return boards


def packed(boards: list[list[int]]) -> npt.NDArray[np.uint64]:
    """The boards as ``u64``."""
    return np.array([reference.pack(cells) for cells in boards], dtype=np.uint64)
