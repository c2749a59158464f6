"""A plain n-tuple player and trainer to compare ours with: four tuples of 5 cells, as one writes them first.

One table of ``f32`` for each tuple (16.8 MB), indices by shifts of the board, its transpose and their mirror
images, values added up as they come; TD(0) with temporal coherence, backwards over each game, restarts from
the middle. Compiled, with the rules and the generator that ours has. It has no stages, no drawn ties and no
margin, and asks for nothing before it needs it. Ours has to be as fast, on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from tape2048.game.rules import count_empty, empty_mask, flip, mirror, rows_merge_score, slide_rows, transpose
from tape2048.jit.compiler import kernel
from tape2048_recorder.game.rng import new_game, spawn

if TYPE_CHECKING:
    from tape2048.ntuple.network import Network

__all__ = ["TUPLES", "Learner", "learn", "play", "table_of", "values"]

U64 = np.uint64
F32 = np.float32

TUPLES = ("01234", "45678", "01245", "45689")

_FIVE = U64(0xFFFFF)
_SIZE = U64(16**5)

_LENGTH_MAX = 1 << 17
_RESTART_MIN = 10


def table_of(network: Network) -> npt.NDArray[np.float32]:
    """The first stage of a network with these tuples, ``f32[4 * 16**5]``, in points of score."""
    tables = network.layout.tables(network.table)
    scaled = [tables[0, t].astype(np.float32) * network.scales[0, t] for t in range(len(TUPLES))]
    return np.concatenate(scaled)


@register_jitable
def _place(board: Any, t: Any) -> Any:
    """Where the entry of one tuple is, for one of the eight boards."""
    if t == 0:
        return board >> U64(44)
    if t == 1:
        return _SIZE + ((board >> U64(28)) & _FIVE)
    if t == 2:
        return U64(2) * _SIZE + ((board >> U64(52)) << U64(8) | (board >> U64(40)) & U64(0xFF))
    return U64(3) * _SIZE + ((board >> U64(28)) & U64(0xFFF00) | (board >> U64(24)) & U64(0xFF))


@register_jitable
def _sum_of_one(table: Any, board: Any) -> Any:
    return (
        table[_place(board, 0)] + table[_place(board, 1)] + table[_place(board, 2)] + table[_place(board, 3)]
    )


@register_jitable
def _value(table: Any, board: Any) -> Any:
    """The value of an afterstate: 32 look-ups."""
    total = F32(0)
    for source in (board, transpose(board)):
        turned = mirror(source)
        total += _sum_of_one(table, source) + _sum_of_one(table, turned)
        total += _sum_of_one(table, flip(source)) + _sum_of_one(table, flip(turned))
    return total


@kernel
def values(table: Any, boards: Any, out: Any) -> None:
    """The values of afterstates, ``u64[n]`` to ``f32[n]``."""
    for i in range(boards.shape[0]):
        out[i] = _value(table, boards[i])


@register_jitable
def _best(table: Any, board: Any, look: Any) -> Any:
    """``(value, afterstate, reward)`` of the best move; the board itself where none is legal."""
    best = F32(-np.inf)
    best_after = board
    best_reward = F32(0)
    columns = transpose(board)
    for m in range(4):
        source = columns if m < 2 else board
        after = slide_rows(source, U64(m & 1))
        if after == source:
            continue
        reward = F32(rows_merge_score(source))
        found = reward + (_expected(table, after) if look else _value(table, after))
        if found > best:
            best = found
            best_after = transpose(after) if m < 2 else after
            best_reward = reward
    return best, best_after, best_reward


@kernel
def _best_now(table: Any, board: Any) -> Any:
    return _best(table, board, False)


@kernel
def _expected(table: Any, after: Any) -> Any:
    """The best answers' value, over all spawns."""
    total = F32(0)
    cells = empty_mask(after)
    count = F32(count_empty(after))
    while cells != U64(0):
        cell = cells & (~cells + U64(1))
        cells ^= cell
        two, _, _ = _best_now(table, after | cell)
        four, _, _ = _best_now(table, after | cell << U64(1))
        total += F32(0.9) * max(two, F32(0)) + F32(0.1) * max(four, F32(0))
    return total / count


@kernel
def _best_ahead(table: Any, board: Any) -> Any:
    return _best(table, board, True)


@kernel
def play(table: Any, seeds: Any, look: Any) -> int:
    """Play the games of these seeds, looking a spawn ahead where fewer cells are empty; returns the moves."""
    moves = 0
    for i in range(seeds.shape[0]):
        board, _, state, gamma = new_game(seeds[i], U64(0))
        while True:
            if count_empty(board) < look:
                _, after, _ = _best_ahead(table, board)
            else:
                _, after, _ = _best_now(table, board)
            if after == board:
                break
            board, _, state = spawn(after, state, gamma)
            moves += 1
    return moves


class Learner(NamedTuple):
    """What learns, and room for a game; ``state`` the last seed and the afterstate to go on from."""

    table: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]
    sizes: npt.NDArray[np.float32]
    afterstates: npt.NDArray[np.uint64]
    rewards: npt.NDArray[np.float32]
    state: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls, seed: int) -> Learner:
        """A network that knows nothing."""
        entries = len(TUPLES) * int(_SIZE)
        return cls(
            *(np.zeros(entries, dtype=np.float32) for _ in range(3)), np.empty(_LENGTH_MAX, dtype=np.uint64),
            np.empty(_LENGTH_MAX, dtype=np.float32), np.array([seed, 0], dtype=np.uint64),
        )  # fmt: skip


@register_jitable
def _places(board: Any, out: Any) -> None:
    k = 0
    for source in (board, transpose(board)):
        for turned in (source, mirror(source)):
            for final in (turned, flip(turned)):
                for t in range(4):
                    out[k] = _place(final, t)
                    k += 1


@register_jitable
def _learn_game(learner: Any, length: Any, places: Any) -> None:
    table, errors, sizes = learner.table, learner.errors, learner.sizes
    target = F32(0)
    for j in range(length):
        i = length - 1 - j
        _places(learner.afterstates[i], places)
        value = F32(0)
        for k in range(32):
            value += table[places[k]]
        delta = target - value
        for k in range(32):
            at = places[k]
            rate = abs(errors[at]) / sizes[at] if sizes[at] else F32(1)
            table[at] += delta * rate / F32(32)
            errors[at] += delta
            sizes[at] += abs(delta)
        value = F32(0)
        for k in range(32):
            value += table[places[k]]
        target = learner.rewards[i] + value


@kernel(allocates=True)
def learn(learner: Any, moves_max: Any) -> int:
    """Play and learn until so many moves are made, and the game ends; returns the moves."""
    places = np.empty(32, dtype=np.uint64)
    moves = 0
    while moves < moves_max:
        learner.state[0] += U64(1)
        board, _, state, gamma = new_game(learner.state[0], U64(0))
        if learner.state[1]:
            board, _, state = spawn(learner.state[1], state, gamma)
        length = 0
        while length < _LENGTH_MAX:
            _, after, reward = _best_now(learner.table, board)
            if after == board:
                break
            learner.afterstates[length] = after
            learner.rewards[length] = reward
            board, _, state = spawn(after, state, gamma)
            length += 1
        _learn_game(learner, length, places)
        moves += length
        middle = learner.afterstates[length // 2]
        learner.state[1] = middle if length >= _RESTART_MIN else U64(0)
    return moves
