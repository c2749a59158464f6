r"""Temporal difference learning of afterstate values, compiled.

Learning runs backwards through a finished game. For the afterstate :math:`s_i` of move :math:`i`, the reward
:math:`r_{i+1}` of the next move and the next afterstate :math:`s_{i+1}`,

.. math::

    G_i = r_{i+1} + (1 - \lambda)\, V(s_{i+1}) + \lambda\, G_{i+1}, \qquad \delta_i = G_i - V(s_i),

with :math:`G_i = 0` for the last afterstate of a game that is over (the lambda-return of Sutton and Barto,
2nd ed., section 12.1, over afterstates as in Szubert and Jaskowski 2014). Because learning runs backwards,
:math:`V(s_{i+1})` is already updated (Matsuzaki, "Developing 2048 player with backward temporal coherence
learning and restart", ACG 2017).

Each of the :math:`m` entries of :math:`V(s_i)` is then updated at its own rate, by temporal coherence (Beal
and Smith 1999; Jaskowski, "Mastering 2048 with delayed temporal coherence learning", 2018, section IV):

.. math::

    w \leftarrow w + \frac{\beta}{m} \frac{|E|}{A}\, \delta, \qquad E \leftarrow E + \delta, \qquad
    A \leftarrow A + |\delta|

where :math:`|E| / A` is 1 for an entry that has never been updated.

**Late positions** are rare in games from new boards. Two methods make them more frequent:

* A finished game restarts from its middle (Matsuzaki's restart).
* A game starts on a board with which an earlier game entered a stage, in the stage that has learned from the
  fewest moves (a carousel, as in Jaskowski 2018, section VI, but counting moves instead of games). Each lane
  keeps the last boards that entered each stage. On average, a board starts at most :data:`BEGINS_MAX` games.
  Without that limit, the last stages of a young network learned from a hundred boards in 35% of all moves.

**Goals** are sums of different tiles, as for stages. A game ends when it reaches a goal, and the rest is
valued as the board with its large tiles halved (:func:`tape2048.ntuple.lookup.downgraded`). Otherwise, a
stage whose games seldom succeed gets values so low that the stage before it learns to avoid it. The values of
the halved board come from games that succeed.

**Guides.** From a sum of tiles on, every second game can choose by the values of the halved boards. While no
game succeeds in a stage, the stage's values choose no better than chance. Guided games sometimes succeed, and
the stage's values learn from these games.

An entry is a record of 16 bytes (weight, E, A, number of updates), so that learning reads and writes one
cache line. A 512-bit register holds four entries. The number, for pruning, stays at 2**24 from there on.

Threads update the same entries without locks, so the update of another thread can be lost. Except on x86 with
AVX, the halves of two records can also be mixed: E and A are then from different updates, and :math:`|E| / A`
can be above 1. Therefore the rate is limited to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tape2048.game.rules import WON, final_exponent, rows_merge_score, slide, slide_rows, transpose, wins
from tape2048.jit.compiler import helper, kernel
from tape2048.ntuple.lookup import SYMMETRIES, addresses_at, downgraded, stage_of, value_of
from tape2048_recorder.game import rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048.ntuple.network import NetworkLayout, Places

U64 = np.uint64
F32 = np.float32

#: Capacity of a lane's buffers, in moves. The longest possible game has about 65,000 moves.
LENGTH_MAX = 1 << 17

# The words of a lane's state: its generator (two words); the first board of the next game, or 0 for a new
# board; and the number of games that reached a goal.
_RANDOM, _GAMMA, _RESTART, GOALS = range(4)
LANE_WORDS = 4

#: Most games that start on a stage's boards, per board that entered the stage.
BEGINS_MAX = 4

#: Rows of a lane's ``tallies``, by stage: games that entered it, games that started in it from ``pools``, and
#: moves learned from.
ENTERED, BEGUN, LEARNED = range(3)


class TrainingTables(NamedTuple):
    """A learning network, shared by lanes; ``entries`` is ``f32[entries, 4]``."""

    entries: npt.NDArray[np.float32]
    places: Places


class Plays(NamedTuple):
    """The network that chooses moves: the learning network's weights in the form of a player.

    ``goals`` are the sums at which games end. ``goal_reward`` is the least reward of a move that can reach a
    goal. ``guides`` are the sums from which guided games choose by the halved board.
    """

    places: Places
    table: npt.NDArray[np.float32]
    scales: npt.NDArray[np.float32]
    goals: tuple[np.uint64, ...]
    goal_reward: np.float32
    guides: tuple[np.uint64, ...]


class Lane(NamedTuple):
    """A sequence of games: the state of its generator, and buffers for a game.

    ``pools`` (``u64[S, P]``) holds the last boards that entered each stage, in a ring. ``tallies``
    (``i64[3, S]``) holds the counts :data:`ENTERED`, :data:`BEGUN` and :data:`LEARNED` of each stage.
    """

    state: npt.NDArray[np.uint64]
    pools: npt.NDArray[np.uint64]
    tallies: npt.NDArray[np.int64]
    boards: npt.NDArray[np.uint64]
    afterstates: npt.NDArray[np.uint64]
    rewards: npt.NDArray[np.float32]
    addresses: npt.NDArray[np.uint64]


@kernel
def _begin(state: Any, seed: Any) -> None:
    state[_RANDOM], state[_GAMMA] = rng.start(seed)
    state[_RESTART] = U64(0)


def new_lane(seed: np.uint64, layout: NetworkLayout, pool_boards: int = 1) -> Lane:
    """Return a lane before its first game, with room for ``pool_boards`` boards of each stage."""
    state = np.zeros(LANE_WORDS, dtype=U64)
    _begin(state, seed)
    return Lane(
        state,
        np.zeros((layout.stage_count, pool_boards), dtype=U64),
        np.zeros((3, layout.stage_count), dtype=np.int64),
        np.empty(LENGTH_MAX, dtype=U64),
        np.empty(LENGTH_MAX, dtype=U64),
        np.empty(LENGTH_MAX, dtype=np.float32),
        np.empty((2, SYMMETRIES * len(layout.tuples)), dtype=U64),
    )


@helper
def _find(tables: Any, lane: Any, board: Any, out: Any) -> None:
    places = tables.places
    stage = stage_of(places.stage_begins, board)
    lane.tallies[LEARNED, stage] += 1
    addresses_at(tables.entries, places.singles, stage * places.stage_bytes, board, transpose(board), out)


@kernel
def learn_backwards(tables: Any, lane: Any, length: Any, end: Any, beta: Any, decay: Any) -> Any:
    """Learn from the ``length`` moves of the game in ``lane``, and return the sum of ``|delta|``.

    Args:
        tables: the learning network.
        lane: the lane with the game.
        length: the number of moves.
        end: the value of the last afterstate, 0 if the game is over.
        beta: the learning rate.
        decay: lambda.
    """
    rate = F32(beta) / F32(lane.addresses.shape[1])
    decay = F32(decay)
    target, next_value, errors = F32(end), F32(0), 0.0
    if length:
        _find(tables, lane, lane.afterstates[length - 1], lane.addresses[0])
    for j in range(length):
        i = length - 1 - j
        if j:
            target = lane.rewards[i + 1] + (F32(1) - decay) * next_value + decay * target
        if i:  # prefetch: the entries of the previous move arrive while this move learns
            _find(tables, lane, lane.afterstates[i - 1], lane.addresses[~j & 1])
        delta, next_value = learn_entries(tables.places.singles, lane.addresses[j & 1], target, rate)
        errors += abs(delta)
    return errors


@helper(forceinline=True)
def _worth(plays: Any, after: Any, reward: Any, reached: Any, guided: Any) -> Any:
    """Return the reward plus the afterstate's value in a game that has reached ``reached`` goals."""
    seen = after
    if guided or (reward >= plays.goal_reward and stage_of(plays.goals, after) > reached):
        seen = downgraded(after)
    return reward + value_of(plays.places, plays.table, plays.scales, seen)


@helper
def _best_move(plays: Any, board: Any, reached: Any, guided: Any) -> Any:
    """Return ``(afterstate, reward)`` of the best move; ``(board, 0)`` without a legal move."""
    columns = transpose(board)
    column_score, row_score = F32(rows_merge_score(columns)), F32(rows_merge_score(board))
    best, best_after, reward = F32(-np.inf), board, F32(0)
    for m in range(4):
        vertical = m < 2
        source, merged = (columns, column_score) if vertical else (board, row_score)
        after = slide_rows(source, U64(m & 1))
        # A board and its transpose have the same value, so only the best board is transposed back. No branch
        # depends on a value: it would wait for the value's look-ups, and delay those of the next move.
        # Illegal moves are also valued, which costs less than a mispredicted branch.
        value = _worth(plays, after, merged, reached, guided)
        is_better = (after != source) & (value > best)
        best = value if is_better else best
        best_after = (transpose(after) if vertical else after) if is_better else best_after
        reward = merged if is_better else reward
    return best_after, reward


@helper
def _next_start(lane: Any, random: Any, gamma: Any) -> Any:
    entered, learned = lane.tallies[ENTERED], lane.tallies[LEARNED]
    stage = 0
    for other in range(1, learned.shape[0]):
        # Skip stages in which BEGINS_MAX games per board have started.
        if lane.tallies[BEGUN, other] < BEGINS_MAX * entered[other] and learned[other] < learned[stage]:
            stage = other
    if stage == 0:
        return U64(0), random
    lane.tallies[BEGUN, stage] += 1
    pick, random = rng.bounded(random, gamma, U64(min(entered[stage], lane.pools.shape[1])))
    return lane.pools[stage, pick], random


@helper
def _play(plays: Any, lane: Any, board: Any, game: Any, gamma: Any, pooling: Any, guided: Any) -> Any:
    """Play a game from a board; return ``(moves, points, value of the last afterstate, last board)``."""
    length, score, end = 0, 0.0, F32(0)
    reached = stage_of(plays.goals, board)
    entered = stage_of(plays.places.stage_begins, board)
    while length < LENGTH_MAX:
        after, reward = _best_move(plays, board, reached, guided and stage_of(plays.guides, board) > 0)
        if after == board:
            break
        if pooling:
            stage = stage_of(plays.places.stage_begins, board)
            if stage > entered:
                entered = stage
                lane.pools[stage, lane.tallies[ENTERED, stage] % lane.pools.shape[1]] = board
                lane.tallies[ENTERED, stage] += 1
        if end != F32(0):
            break
        score += reward
        if reward >= F32(65536):
            for m in range(4):
                if wins(board, U64(m)) and slide(board, U64(m)) == after:
                    return length, score, reward, WON
        if reward >= plays.goal_reward and stage_of(plays.goals, after) > reached:
            # The loop continues once more, to add the board to the pool.
            lane.state[GOALS] += U64(1)
            end = reward + value_of(plays.places, plays.table, plays.scales, downgraded(after))
        else:
            lane.boards[length], lane.afterstates[length], lane.rewards[length] = board, after, reward
            length += 1
        board, _, game = rng.spawn(after, game, gamma)
    return length, score, end, board


@kernel
def train(
    tables: Any,
    plays: Any,
    lane: Any,
    beta: Any,
    decay: Any,
    pooling: Any,
    guiding: Any,
    restart_moves_min: Any,
    moves_max: Any,
    scores: Any,
    highest: Any,
) -> Any:
    """Play and learn game by game, until ``moves_max`` moves are made or ``scores`` is full.

    Args:
        tables: the learning network.
        plays: the network that chooses moves.
        lane: the lane.
        beta: the learning rate.
        decay: lambda.
        pooling: whether games start on boards of the pools.
        guiding: whether every second game is guided by ``plays.guides``.
        restart_moves_min: the least number of moves of a game that restarts from its middle.
        moves_max: the number of moves.
        scores: receives the scores of games from new boards, ``f64[n]``.
        highest: receives the exponents of their highest tiles, ``u8[n]``.

    Returns:
        The number of ``scores``, and over all games the number of moves and the sum of ``|delta|``.
    """
    random, gamma, restart = lane.state[_RANDOM], lane.state[_GAMMA], lane.state[_RESTART]
    games, moves, errors = 0, 0, 0.0
    while moves < moves_max and games < scores.shape[0]:
        is_new = restart == U64(0)
        seed, random = rng.next_u64(random, gamma)
        new_board, _, game, game_gamma = rng.new_game(seed, U64(0))
        board = new_board if is_new else restart
        guided = guiding and (seed & U64(1)) == U64(0)
        length, score, end, board = _play(plays, lane, board, game, game_gamma, pooling, guided)
        errors += learn_backwards(tables, lane, length, end, beta, decay)
        moves += length
        if is_new:
            scores[games], highest[games] = score, final_exponent(board)
            games += 1
        restart = U64(0)
        if length >= restart_moves_min:
            restart = lane.boards[length // 2]
        elif pooling:
            restart, random = _next_start(lane, random, gamma)
    lane.state[_RANDOM], lane.state[_RESTART] = random, restart
    return games, moves, errors


#: Columns of a record, ``f32[4]``.
WEIGHT, E, A, USES = range(4)
ENTRY_BYTES = 16

# Callers omit an intrinsic's first parameter, the typing context. Type checkers do not know that.
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic

_COLUMNS = 4
_TOGETHER = 4  # entries in a vector
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_ENTRY = ir.VectorType(_F32, _COLUMNS)
_ENTRIES = ir.VectorType(_F32, _COLUMNS * _TOGETHER)


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(order)), order))


def _undefined(kind: Any) -> Any:
    return ir.Constant(kind, ir.Undefined)


def _everywhere(builder: Any, value: Any) -> Any:
    one = builder.insert_element(_undefined(_ENTRIES), value, ir.Constant(_I32, 0))
    return _shuffled(builder, one, _undefined(_ENTRIES), [0] * _ENTRIES.count)


def _size(builder: Any, value: Any) -> Any:
    name = "llvm.fabs." + (f"v{value.type.count}f32" if isinstance(value.type, ir.VectorType) else "f32")
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(value.type, [value.type]), name)
    return builder.call(function, [value])


def _column(builder: Any, entries: Any, column: int) -> Any:
    order = [_COLUMNS * (i // _COLUMNS) + column for i in range(_ENTRIES.count)]
    return _shuffled(builder, entries, _undefined(_ENTRIES), order)


def _mask(*columns: int) -> Any:
    bits = [int(i % _COLUMNS in columns) for i in range(_ENTRIES.count)]
    return ir.Constant(ir.VectorType(ir.IntType(1), _ENTRIES.count), bits)


def _value(builder: Any, vectors: list[Any]) -> Any:
    while len(vectors) > 1:
        vectors = [
            builder.fadd(vectors[i], vectors[i + 1]) if i + 1 < len(vectors) else vectors[i]
            for i in range(0, len(vectors), 2)
        ]
    places = [ir.Constant(_I32, _COLUMNS * i + WEIGHT) for i in range(_TOGETHER)]
    a, b, c, d = (builder.extract_element(vectors[0], place) for place in places)
    return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))


@_intrinsic
def learn_entries(typing_context: Any, singles: Any, addresses: Any, target: Any, rate: Any) -> Any:
    """Update a board's entries towards a target, each at its own rate (temporal coherence).

    Returns:
        ``(delta, value)``, both ``f32``: the target minus the old value, and the new value.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, addresses_, target_, rate_ = args
        data = context.make_array(signature.args[1])(context, builder, addresses_).data
        once = ir.Constant(_F32, 1.0)
        zero, one = (ir.Constant(_ENTRIES, [number] * _ENTRIES.count) for number in (0.0, 1.0))
        pointers: list[list[Any]] = []
        before: list[Any] = []
        for first in range(0, SYMMETRIES * singles.count, _TOGETHER):
            four = [
                builder.inttoptr(
                    builder.load(builder.gep(data, [ir.Constant(_I32, first + i)])), _ENTRY.as_pointer()
                )
                for i in range(_TOGETHER)
            ]
            pointers.append(four)
            a, b, c, d = (builder.load(pointer, align=_COLUMNS) for pointer in four)
            low, high = (_shuffled(builder, *pair, list(range(8))) for pair in ((a, b), (c, d)))
            before.append(_shuffled(builder, low, high, list(range(_ENTRIES.count))))
        delta = builder.fsub(target_, _value(builder, before))
        size = _size(builder, delta)
        # By column: the step of a weight at the full rate; delta; its absolute value; 1.
        moves = _everywhere(builder, builder.fmul(rate_, delta))
        for column, value in ((E, delta), (A, size), (USES, once)):
            moves = builder.select(_mask(column), _everywhere(builder, value), moves)
        after = []
        for four, entries in zip(pointers, before, strict=True):
            total = _column(builder, entries, A)
            ratio = builder.fdiv(_size(builder, _column(builder, entries, E)), total)
            is_full = builder.fcmp_ordered(">", ratio, one)
            is_full = builder.or_(is_full, builder.fcmp_ordered("==", total, zero))
            ratio = builder.select(is_full, one, ratio)  # NaN stays NaN, and ends the training
            ratio = builder.select(_mask(WEIGHT), ratio, one)
            after.append(moved := builder.fadd(entries, builder.fmul(ratio, moves)))
            for i, pointer in enumerate(four):
                columns = list(range(_COLUMNS * i, _COLUMNS * (i + 1)))
                part = _shuffled(builder, moved, _undefined(_ENTRIES), columns)
                builder.store(part, pointer, align=_COLUMNS)
        return context.make_tuple(builder, signature.return_type, [delta, _value(builder, after)])

    pair: Any = types.UniTuple(types.float32, 2)  # type: ignore[no-untyped-call]
    return pair(singles, addresses, types.float32, types.float32), codegen
