"""The learning of :mod:`tape2048_recorder.ntuple_training.learning` on a GPU, in thousands of games at once.

A warp plays a game. Each of its four groups of 8 threads slides the board in one direction, and each thread
of a group looks up one of the afterstate's 8 images. A launch plays :data:`SEGMENT_MOVES` moves of each game
and then learns from them backwards. If a game is not over, the value of its next move represents the rest.

Warps write to the same tables without locks, so an update can overwrite another. That keeps learning stable:
an entry that thousands of games look up at once, as in the first moves, changes by one update instead of
their sum.

Games start from new boards, or from boards of the pools, which all games share, but never from the middle of
a game. Games are guided to the end of a training. When the guidance ended after 42G moves, the network forgot
within 3G moves how to reach 32768.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numba.cuda
import numpy as np
import numpy.typing as npt
from numba import float32, int32, int64, uint32, uint64

from tape2048.errors import ConfigError
from tape2048.game import rules
from tape2048.game.rules import MERGE_SCORE, SLIDE, boards_to_exps
from tape2048.jit.mix import mix64
from tape2048.ntuple import lookup
from tape2048_recorder.ntuple_training.learning import (
    BEGINS_MAX,
    BEGUN,
    ENTERED,
    LEARNED,
    USES,
    WEIGHT,
    E,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048.ntuple.network import NetworkLayout

cuda: Any = numba.cuda  # most of it is untyped

#: Moves of each game in a launch.
SEGMENT_MOVES = 64

#: Most results of new games that the host can read after a launch.
RESULTS_MAX = 1 << 16

_WARP = 32
_THREADS = 128  # in a block
_ALL = 0xFFFFFFFF
_IMAGES = 8
_GROUPS = 4
_CELLS = 16
_NEVER = 1 << 63  # a sum that no board has
_WIN = float32(65536)  # the least score of a move that ends a game by the rules

# The words of a game. The board is 0 if no game has started. The flags: the game started from a new board; it
# is guided; it has reached its goal, and the next board is its last.
_BOARD, _RANDOM, _SCORE, _STAGE, _REACHED, _FLAGS = range(6)
_GAMMA = uint64(0x9E3779B97F4A7C15)
_IS_NEW, _IS_GUIDED, _IS_OVER = uint64(1), uint64(2), uint64(4)


class DeviceArrays(NamedTuple):
    """The arrays on a GPU, for G games, S stages, P boards per pool, and segments of M moves."""

    weights: Any  # `f32[entries]`
    rates: Any  # `f32[entries, 3]`: E, A and the number of updates
    slide: Any  # SLIDE
    merge: Any  # MERGE_SCORE
    begins: Any  # `sums_of` the stages
    goals: Any  # `sums_of` the goals
    guides: Any  # `sums_of` the guides
    games: Any  # `u64[G, 6]`
    afterstates: Any  # `u64[M, G]`
    rewards: Any  # `f32[M, G]`
    tails: Any  # `f32[M, G]`: value of the game after a move; NaN if the next move is in the segment
    pools: Any  # `u64[S, P]`
    tallies: Any  # `i64[3, S]`
    results: Any  # `u64[RESULTS_MAX, 2]`: score and last board of new games
    counts: Any  # `i64[2]`: results so far, and games that reached their goal
    errors: Any  # `f32[G]`


def sums_of(sums: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Return sums for the kernel, ``u64[8]``, one per thread of a group; ConfigError for more than 8."""
    if len(sums) > _IMAGES:
        raise ConfigError(
            f"found {len(sums)} stages or goals, expected at most {_IMAGES} on a GPU",
            hint="Use fewer of them, or train with device = 'cpu'.",
        )
    return np.array([*sums, *[_NEVER] * (_IMAGES - len(sums))], np.uint64)


def compiled(layout: NetworkLayout, segment_moves: int) -> Any:
    """Return the kernel that plays and learns with a network of this layout, on :class:`DeviceArrays`."""
    boards = _board_functions()
    entries = _entry_functions(layout)
    start = _start_function(layout, boards)
    choose = _choice_function(layout, boards, entries)
    play = _play_function(segment_moves, boards, start, choose)
    learn = _learn_function(layout, segment_moves, boards, entries)

    @cuda.jit  # type: ignore[untyped-decorator]
    def kernel(on: Any, goal_reward: Any, beta: Any, decay: Any, pooling: Any) -> None:
        game = cuda.grid(1) // _WARP
        if game < on.games.shape[0]:
            play(on, game, goal_reward, pooling)
            cuda.syncwarp()
            learn(on, game, beta, decay)

    return kernel


def _device(function: Any) -> Any:
    """Compile a function for the device, a Python function or one that is compiled for the processor."""
    return cuda.jit(device=True, inline="always")(getattr(function, "py_func", function))


class _Boards(NamedTuple):
    """Functions of boards on the device.

    ``mix``, ``transpose`` and ``downgraded`` share their source with the processor. All threads of a warp
    must call ``tiles_of``, ``stage_of`` and ``spawned`` together.
    """

    mix: Any
    transpose: Any
    downgraded: Any
    image: Any  # the k-th of the 8 images of a board
    tiles_of: Any  # the sum of a board's different tiles
    stage_of: Any  # the number of sums that a board's sum reaches
    spawned: Any  # a board with one more tile, drawn by 64 random bits


def _board_functions() -> _Boards:
    transpose = _device(rules.transpose)

    @_device
    def image(board: Any, k: Any) -> Any:
        if k & 1:
            low = uint64(0x0F0F0F0F0F0F0F0F)
            board = ((board >> uint64(4)) & low) | ((board & low) << uint64(4))
            low = uint64(0x00FF00FF00FF00FF)
            board = ((board >> uint64(8)) & low) | ((board & low) << uint64(8))
        if k & 2:
            board = (board >> uint64(32)) | (board << uint64(32))
            low = uint64(0x0000FFFF0000FFFF)
            board = ((board >> uint64(16)) & low) | ((board & low) << uint64(16))
        if k & 4:
            board = transpose(board)
        return board

    @_device
    def tiles_of(board: Any) -> Any:
        cells = uint32(board >> uint64(8 * (cuda.laneid & 7)))
        total = int32((1 << (cells & uint32(15))) | (1 << ((cells >> uint32(4)) & uint32(15))))
        for step in (1, 2, 4):
            total |= cuda.shfl_xor_sync(_ALL, total, step)
        return uint64(total)

    @_device
    def stage_of(sums: Any, total: Any) -> Any:
        votes = cuda.ballot_sync(_ALL, total >= sums[cuda.laneid & 7])
        return int64(cuda.popc((uint32(votes) >> uint32(cuda.laneid & 24)) & uint32(255)))

    @_device
    def spawned(board: Any, bits: Any) -> Any:
        thread = cuda.laneid
        is_empty = thread < _CELLS and (board >> uint64(4 * (thread & 15))) & uint64(15) == uint64(0)
        holes = uint32(cuda.ballot_sync(_ALL, is_empty))
        draw = ((bits >> uint64(32)) * uint64(10 * cuda.popc(holes))) >> uint64(32)
        cell = draw // uint64(10)
        rank = cuda.popc(holes & uint32((uint64(1) << uint64(thread)) - uint64(1)))
        chosen = cuda.ballot_sync(_ALL, is_empty and uint64(rank) == cell)
        exponent = uint64(2) if draw == cell * uint64(10) else uint64(1)
        return board | (exponent << uint64(4 * (cuda.ffs(chosen) - 1)))

    return _Boards(_device(mix64), transpose, _device(lookup.downgraded), image, tiles_of, stage_of, spawned)


class _Entries(NamedTuple):
    place_of: Any  # the index, within a stage, of the t-th tuple's entry for an image of a board
    value_of: Any  # the sum of all tuples' entries for an image of a board


def _index_function(cells: Sequence[int]) -> Any:
    """Return a function for the index of a tuple's entry; all shifts are constants for the compiler."""
    shift = np.uint64(60 - 4 * cells[-1])
    if len(cells) == 1:

        @_device
        def first(pattern: Any) -> Any:
            return uint32(pattern >> shift) & uint32(15)

        return first
    before = _index_function(cells[:-1])

    @_device
    def index(pattern: Any) -> Any:
        return uint32(before(pattern) << uint32(4)) | uint32(uint32(pattern >> shift) & uint32(15))

    return index


def _entry_functions(layout: NetworkLayout) -> _Entries:
    @_device
    def place_of(_pattern: Any, _t: Any) -> Any:
        return uint64(0)

    @_device
    def value_of(_weights: Any, _pattern: Any, _begin: Any) -> Any:
        return float32(0)

    # Each tuple wraps the functions of the earlier tuples.
    for number, (cells, offset) in enumerate(zip(layout.tuples, layout.offsets, strict=True)):
        place_of, value_of = _with_tuple(
            place_of, value_of, number, _index_function(cells), np.uint64(offset)
        )
    return _Entries(place_of, value_of)


def _with_tuple(place_before: Any, value_before: Any, number: int, index_of: Any, offset: Any) -> Any:
    @_device
    def place_of(pattern: Any, t: Any) -> Any:
        place = uint64(index_of(pattern)) + offset
        return place if t == number else place_before(pattern, t)

    @_device
    def value_of(weights: Any, pattern: Any, begin: Any) -> Any:
        return value_before(weights, pattern, begin) + weights[begin + offset + uint64(index_of(pattern))]

    return place_of, value_of


def _start_function(layout: NetworkLayout, boards: _Boards) -> Any:
    """Return the function that starts a game: ``(board, random, flags)``."""
    mix, spawned, stages = boards.mix, boards.spawned, layout.stage_count

    @_device
    def start(on: Any, random: Any, pooling: Any) -> Any:
        pools, tallies = on.pools, on.tallies
        random += _GAMMA
        bits = mix(random)
        board = uint64(0)
        if pooling and cuda.laneid == 0:
            stage = 0
            for other in range(1, stages):
                if (
                    tallies[BEGUN, other] < BEGINS_MAX * tallies[ENTERED, other]
                    and tallies[LEARNED, other] < tallies[LEARNED, stage]
                ):
                    stage = other
            if stage > 0:
                cuda.atomic.add(tallies, (BEGUN, stage), 1)
                room = min(tallies[ENTERED, stage], pools.shape[1])
                board = pools[stage, int64((bits >> uint64(1)) % uint64(room))]
        board = uint64(cuda.shfl_sync(_ALL, int64(board), 0))
        flags = uint64(0)
        if board == uint64(0):
            flags |= _IS_NEW
            for _ in range(2):
                random += _GAMMA
                board = spawned(board, mix(random))
        if bits & uint64(1) != uint64(0):
            flags |= _IS_GUIDED
        return board, random, flags

    return start


def _choice_function(layout: NetworkLayout, boards: _Boards, entries: _Entries) -> Any:
    """Return the function that chooses a move: ``(value, afterstate, reward, whether it is a goal)``.

    The value is minus infinity if no move is legal. ``tiles`` is the sum of the board's different tiles.
    """
    transpose, downgraded, image, tiles_of, stage_of = (
        boards.transpose, boards.downgraded, boards.image, boards.tiles_of, boards.stage_of,
    )  # fmt: skip
    value_of, stage_size = entries.value_of, np.uint64(layout.stage_size)

    @_device
    def choose(on: Any, board: Any, tiles: Any, flags: Any, reached: Any, goal_reward: Any) -> Any:
        k, group = cuda.laneid & 7, cuda.laneid >> 3
        # The group's afterstate, transposed so that the move is along the rows. Its value is the same.
        source = transpose(board) if group < 2 else board
        after, points = uint64(0), uint64(0)
        for i in range(4):
            row = int64((source >> uint64(16 * i)) & uint64(0xFFFF))
            after |= uint64(on.slide[row + ((group & 1) << 16)]) << uint64(16 * i)
            points += uint64(on.merge[row])
        reward = float32(points)
        at_goal = 0
        is_new = stage_of(on.goals, tiles_of(after)) > reached
        if reward >= _WIN or (reward >= goal_reward and is_new):
            at_goal = 1
        seen, is_late = after, stage_of(on.guides, tiles) > 0
        if at_goal == 1 or (flags & _IS_GUIDED != uint64(0) and is_late):
            seen = downgraded(after)
        begin = uint64(stage_of(on.begins, tiles_of(seen))) * stage_size
        value = value_of(on.weights, image(seen, k), begin)
        for step in (1, 2, 4):
            value += cuda.shfl_xor_sync(_ALL, value, step)
        best, value = group, reward + value if after != source else float32(-math.inf)
        for step in (8, 16):
            other_value = cuda.shfl_xor_sync(_ALL, value, step)
            other = cuda.shfl_xor_sync(_ALL, best, step)
            if other_value > value or (other_value == value and other < best):
                best, value = other, other_value
        first = best * _IMAGES
        at_goal = cuda.shfl_sync(_ALL, at_goal, first)
        after = uint64(cuda.shfl_sync(_ALL, int64(after), first))
        reward = cuda.shfl_sync(_ALL, reward, first)
        return value, transpose(after) if best < 2 else after, reward, at_goal

    return choose


def _play_function(segment_moves: int, boards: _Boards, start: Any, choose: Any) -> Any:
    mix, tiles_of, stage_of, spawned = boards.mix, boards.tiles_of, boards.stage_of, boards.spawned

    @_device
    def play(on: Any, game: Any, goal_reward: Any, pooling: Any) -> None:
        thread, games, tails = cuda.laneid, on.games, on.tails
        board, random, score = games[game, _BOARD], games[game, _RANDOM], games[game, _SCORE]
        entered, reached = int64(games[game, _STAGE]), int64(games[game, _REACHED])
        flags = games[game, _FLAGS]
        length, own = 0, 0  # moves of the segment, and of its current game
        while True:
            if board == uint64(0):
                board, random, flags = start(on, random, pooling)
                score, own = uint64(0), 0
                tiles = tiles_of(board)
                entered, reached = int64(stage_of(on.begins, tiles)), int64(stage_of(on.goals, tiles))
            tiles = tiles_of(board)
            value, after, reward, at_goal = choose(on, board, tiles, flags, reached, goal_reward)
            is_dead = value == float32(-math.inf)
            if pooling and not is_dead:
                stage = stage_of(on.begins, tiles)
                if stage > entered:
                    entered = int64(stage)
                    if thread == 0:
                        number = cuda.atomic.add(on.tallies, (ENTERED, stage), 1)
                        on.pools[stage, number % on.pools.shape[1]] = board
            if is_dead or flags & _IS_OVER != uint64(0):
                if thread == 0:
                    if own > 0 and flags & _IS_OVER == uint64(0):
                        tails[length - 1, game] = float32(0)
                    if flags & _IS_NEW != uint64(0):
                        place = cuda.atomic.add(on.counts, 0, 1) % on.results.shape[0]
                        on.results[place, 0], on.results[place, 1] = score, board
                board = uint64(0)
                continue
            if length == segment_moves:
                if thread == 0 and own > 0:
                    tails[length - 1, game] = value
                break
            score += uint64(reward)
            if at_goal == 1:
                flags |= _IS_OVER
                if thread == 0:
                    cuda.atomic.add(on.counts, 1, 1)
                    if own > 0:
                        tails[length - 1, game] = value
            else:
                if thread == 0:
                    on.afterstates[length, game], on.rewards[length, game] = after, reward
                    tails[length, game] = float32(math.nan)
                length += 1
                own += 1
            random += _GAMMA
            board = spawned(after, mix(random))
        if thread == 0:
            games[game, _BOARD], games[game, _RANDOM], games[game, _SCORE] = board, random, score
            games[game, _STAGE], games[game, _REACHED] = uint64(entered), uint64(reached)
            games[game, _FLAGS] = flags

    return play


def _learn_function(layout: NetworkLayout, segment_moves: int, boards: _Boards, entries: _Entries) -> Any:
    """Return the function that learns from the moves of a segment, backwards."""
    tuples, stages = len(layout.tuples), layout.stage_count
    rounds = -(-tuples // _GROUPS)
    image, tiles_of, stage_of = boards.image, boards.tiles_of, boards.stage_of
    place_of, stage_size = entries.place_of, np.uint64(layout.stage_size)

    @_device
    def learn(on: Any, game: Any, beta: Any, decay: Any) -> None:
        thread, weights, rates = cuda.laneid, on.weights, on.rates
        k, group = thread & 7, thread >> 3
        rate = beta / float32(_IMAGES * tuples)
        places = cuda.local.array(rounds, uint64)
        target, following, error, learned = float32(0), float32(0), float32(0), 0
        for back in range(segment_moves):
            j = segment_moves - 1 - back
            tail = on.tails[j, game]
            if math.isnan(tail):
                target = on.rewards[j + 1, game] + (float32(1) - decay) * following + decay * target
            else:
                target = tail
            after = on.afterstates[j, game]
            stage, pattern = stage_of(on.begins, tiles_of(after)), image(after, k)
            if stage == thread:
                learned += 1
            value = float32(0)
            for i in range(rounds):
                places[i] = uint64(stage) * stage_size + place_of(pattern, group + _GROUPS * i)
                if group + _GROUPS * i < tuples:
                    value += weights[places[i]]
            for step in (1, 2, 4, 8, 16):
                value += cuda.shfl_xor_sync(_ALL, value, step)
            delta = target - value
            error += abs(delta)
            value = float32(0)
            for i in range(rounds):
                is_tuple, place = group + _GROUPS * i < tuples, places[i]
                e, a, uses, weight = float32(0), float32(0), float32(0), float32(0)
                if is_tuple:
                    e, a, uses, weight = rates[place, 0], rates[place, 1], rates[place, 2], weights[place]
                cuda.syncwarp()  # equal images share an entry, which is updated once
                if is_tuple:
                    # At most 1, because e and a can be from different updates: see `learning`.
                    weight += rate * delta * (float32(1) if a == float32(0) or abs(e) > a else abs(e) / a)
                    weights[place] = weight
                    rates[place, 0], rates[place, 1] = e + delta, a + abs(delta)
                    rates[place, 2] = uses + float32(1)
                    value += weight
            for step in (1, 2, 4, 8, 16):
                value += cuda.shfl_xor_sync(_ALL, value, step)
            following = value
        if thread < stages and learned > 0:
            cuda.atomic.add(on.tallies, (LEARNED, thread), learned)
        if thread == 0:
            on.errors[game] += error

    return learn


class GpuLearner:
    """Games and tables on a GPU; ConfigError without a GPU or without enough free memory.

    For each stage, ``pool_boards`` boards (at least 1) are kept to start games from. The order in which games
    learn is not reproducible.
    """

    def __init__(self, layout: NetworkLayout, games: int, pool_boards: int, seed: Sequence[int]) -> None:
        if not cuda.is_available():
            raise ConfigError(
                "found no CUDA GPU that numba can use, expected one for device = 'cuda'",
                hint="Install numba-cuda for your version of CUDA, or train with device = 'cpu'.",
            )
        needed, free = 16 * layout.entries, cuda.current_context().get_memory_info()[0]
        if needed > free:
            raise ConfigError(
                f"found {free / 1e9:.1f} GB of free GPU memory, expected {needed / 1e9:.1f} GB for these "
                "tuples and stages",
                hint="Use fewer stages or smaller tuples. One cell less leaves 1/16 of a tuple's entries.",
            )
        self._games = games
        self._kernel = compiled(layout, SEGMENT_MOVES)
        states = np.zeros((games, 6), np.uint64)
        states[:, _RANDOM] = np.random.default_rng(seed).integers(0, 2**64, games, np.uint64)
        nothing = cuda.to_device(sums_of(()))
        self._on = DeviceArrays(
            weights=cuda.device_array(layout.entries, np.float32),
            rates=cuda.device_array((layout.entries, 3), np.float32),
            slide=cuda.to_device(SLIDE),
            merge=cuda.to_device(MERGE_SCORE),
            begins=nothing,
            goals=nothing,
            guides=nothing,
            games=cuda.to_device(states),
            afterstates=cuda.device_array((SEGMENT_MOVES, games), np.uint64),
            rewards=cuda.device_array((SEGMENT_MOVES, games), np.float32),
            tails=cuda.device_array((SEGMENT_MOVES, games), np.float32),
            pools=cuda.to_device(np.zeros((layout.stage_count, pool_boards), np.uint64)),
            tallies=cuda.to_device(np.zeros((3, layout.stage_count), np.int64)),
            results=cuda.to_device(np.zeros((RESULTS_MAX, 2), np.uint64)),
            counts=cuda.to_device(np.zeros(2, np.int64)),
            errors=cuda.to_device(np.zeros(games, np.float32)),
        )
        self._taken = 0

    def upload(self, entries: npt.NDArray[np.float32]) -> None:
        self._on.weights.copy_to_device(np.ascontiguousarray(entries[:, WEIGHT]))
        self._on.rates.copy_to_device(np.ascontiguousarray(entries[:, E : USES + 1]))

    def download(self, entries: npt.NDArray[np.float32]) -> None:
        entries[:, WEIGHT] = self._on.weights.copy_to_host()
        entries[:, E : USES + 1] = self._on.rates.copy_to_host()

    def learn(
        self,
        launches: int,
        *,
        begins: Sequence[int],
        goals: Sequence[int],
        guides: Sequence[int],
        beta: float,
        decay: float,
    ) -> int:
        """Play and learn; return the number of moves.

        Args:
            launches: number of segments of :data:`SEGMENT_MOVES` moves for each game.
            begins: sums at which stages start; empty before stages split, when no pool is used.
            goals: sums at which games end.
            guides: sums from which every second game chooses by the halved board.
            beta: learning rate.
            decay: lambda.
        """
        sums = {"begins": begins, "goals": goals, "guides": guides}
        on = self._on._replace(**{name: cuda.to_device(sums_of(each)) for name, each in sums.items()})
        reward = np.float32(min((goal & -goal for goal in goals), default=np.inf))
        for _ in range(launches):
            self._kernel[-(-self._games * _WARP // _THREADS), _THREADS](
                on, reward, np.float32(beta), np.float32(decay), bool(begins)
            )
        cuda.synchronize()
        return launches * self._games * SEGMENT_MOVES

    def results(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
        """Return scores and highest exponents of new games since the last call, at most 65,536 games."""
        count = int(self._on.counts.copy_to_host()[0])
        new = np.arange(max(self._taken, count - RESULTS_MAX), count)
        self._taken = count
        scores, boards = self._on.results.copy_to_host()[new % RESULTS_MAX].T
        return scores.astype(np.float64), boards_to_exps(boards).max(axis=1, initial=0)

    def take_errors(self) -> float:
        """Return the sum of ``|delta|`` since the last call."""
        total = float(self._on.errors.copy_to_host().sum(dtype=np.float64))
        self._on.errors.copy_to_device(np.zeros(self._games, np.float32))
        return total

    @property
    def goals(self) -> int:
        return int(self._on.counts.copy_to_host()[1])

    @property
    def tallies(self) -> npt.NDArray[np.int64]:
        """Counts by stage, ``i64[3, S]``, as in :class:`~tape2048_recorder.ntuple_training.learning.Lane`."""
        tallies: npt.NDArray[np.int64] = self._on.tallies.copy_to_host()
        return tallies
