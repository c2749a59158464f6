"""Learning on a GPU: moves and updates against slow ones, on a GPU or in 32 Python threads."""

import itertools
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.recorder.processes import PATIENCE_S

from tape2048.errors import ConfigError
from tape2048.game.rules import MERGE_SCORE, SLIDE, merge_score, slide
from tape2048.ntuple.lookup import downgraded
from tape2048.ntuple.network import Network, NetworkLayout
from tape2048_recorder.ntuple_training import gpu_learner
from tape2048_recorder.ntuple_training.learning import LEARNED
from tape2048_recorder.ntuple_training.trainer import Trainer
from tape2048_recorder.ntuple_training.training_config import TrainingConfig

from . import slow

U64 = np.uint64
MOVES = 24
LAYOUT = NetworkLayout.of(["0123", "01245"], [64])
GOAL, GUIDE = 128, 32


class HostArray(np.ndarray[Any, Any]):
    """An array of the device, in memory."""

    def copy_to_host(self) -> Any:
        return np.array(self)

    def copy_to_device(self, array: Any) -> None:
        self[:] = array


class Warp:
    """What the kernel uses of ``numba.cuda``, for one warp whose threads are Python's."""

    local = SimpleNamespace(array=lambda length, _: np.zeros(length, U64))
    popc = staticmethod(lambda x: int(x).bit_count())
    ffs = staticmethod(lambda x: (int(x) & -int(x)).bit_length())
    clz = staticmethod(lambda x: 64 - int(x).bit_length())

    def __init__(self) -> None:
        self._threads, self._barrier = threading.local(), threading.Barrier(32)
        self._given: list[Any] = [None] * 32
        self.atomic = SimpleNamespace(add=self._add)

    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)
    to_device = staticmethod(lambda array: np.array(array).view(HostArray))
    device_array = staticmethod(HostArray)
    current_context = staticmethod(lambda: SimpleNamespace(get_memory_info=lambda: (10**9, 10**9)))

    def jit(self, function: Any = None, *, device: bool = False, inline: str = "") -> Any:
        if device:
            return lambda inner: inner
        return defaultdict(lambda: partial(self.run, function))

    @property
    def laneid(self) -> int:
        return int(self._threads.number)

    def grid(self, _: int) -> int:
        return self.laneid

    def _exchanged(self, value: Any) -> list[Any]:
        self._given[self.laneid] = value
        self._barrier.wait(PATIENCE_S)
        given = list(self._given)
        self._barrier.wait(PATIENCE_S)
        return given

    def shfl_sync(self, _: int, value: Any, thread: Any) -> Any:
        return self._exchanged(value)[int(thread)]

    def shfl_xor_sync(self, _: int, value: Any, mask: int) -> Any:
        return self._exchanged(value)[self.laneid ^ mask]

    def ballot_sync(self, _: int, vote: Any) -> int:
        return sum(bool(each) << i for i, each in enumerate(self._exchanged(vote)))

    def syncwarp(self) -> None:
        self._barrier.wait(PATIENCE_S)

    @staticmethod
    def _add(array: Any, place: Any, more: Any) -> Any:
        before = array[place]
        array[place] += more  # only one thread of the warp adds to a place
        return before

    def run(self, kernel: Any, *args: Any) -> None:
        def one(number: int) -> None:
            self._threads.number = number
            try:
                with np.errstate(over="ignore"):
                    kernel(*args)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(32) as pool:
            raised = [thread.exception() for thread in [pool.submit(one, number) for number in range(32)]]
        for error in sorted(
            filter(None, raised), key=lambda error: isinstance(error, threading.BrokenBarrierError)
        ):
            raise error


class Segment:
    """One game's tables, and what each launch left of its moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weights = random.normal(0, 30, LAYOUT.entries).astype(np.float32)
        self.rates = np.zeros((LAYOUT.entries, 3), np.float32)
        self.rates[:, :2] = random.uniform(0, 100, (LAYOUT.entries, 2))
        self.games = np.zeros((1, 6), U64)
        self.games[:, 1] = random.integers(0, 2**64, 1, U64)
        self.afterstates = np.zeros((MOVES, 1), U64)
        self.rewards, self.tails = np.zeros((2, MOVES, 1), np.float32)
        self.pools, self.tallies = np.zeros((2, 8), U64), np.zeros((3, 2), np.int64)
        self.results, self.counts = np.zeros((50, 2), U64), np.zeros(2, np.int64)
        self.errors = np.zeros(1, np.float32)
        self._monkeypatch = monkeypatch

    def launch(self, *, goals: list[int], guides: list[int], beta: float = 1.0, kernel: Any = None) -> None:
        sums = [gpu_learner.sums_of(each) for each in (LAYOUT.stages, goals, guides)]
        arrays = gpu_learner.DeviceArrays(
            self.weights, self.rates, SLIDE, MERGE_SCORE, *sums, self.games, self.afterstates, self.rewards,
            self.tails, self.pools, self.tallies, self.results, self.counts, self.errors,
        )  # fmt: skip
        reward = np.float32(max(goals, default=1e9))
        args = arrays, reward, np.float32(beta), np.float32(0.5), True
        if kernel is not None:
            kernel(*args)
            return
        with self._monkeypatch.context() as patch:
            patch.setattr(gpu_learner, "cuda", Warp())
            gpu_learner.compiled(LAYOUT, MOVES)[1, 32](*args)

    def values(self, boards: list[int]) -> Any:
        scales = np.ones((2, 2), np.float32)
        return Network(LAYOUT, self.weights, scales).values(np.array(boards, U64))


def total(board: int) -> int:
    """The sum of the different tiles."""
    return sum(1 << e for e in {int(board) >> 4 * i & 15 for i in range(16)} - {0})


def options(segment: Segment, board: int, *, guided: bool, goal: int) -> list[tuple[float, int, float, bool]]:
    """Value, afterstate, reward and whether it is a goal of each legal move."""
    found = []
    for move in range(4):
        after, reward = int(slide(U64(board), move)), float(merge_score(U64(board), move))
        if after != board:
            at_goal = reward >= goal and total(after) >= goal
            smaller = at_goal or (guided and total(board) >= GUIDE)
            seen = int(downgraded(U64(after))) if smaller else after
            found.append((reward + float(segment.values([seen])[0]), after, reward, at_goal))
    return found


def with_spawn(after: int) -> list[int]:
    return [after | e << 4 * i for i in range(16) if not after >> 4 * i & 15 for e in (1, 2)]


@pytest.mark.parametrize(("goals", "guides"), [([], []), ([GOAL], []), ([GOAL], [GUIDE])])
def test_moves(monkeypatch: pytest.MonkeyPatch, goals: list[int], guides: list[int]) -> None:
    """Each move is the best one of a board that can follow the move before, and scores its merges."""
    segment = Segment(monkeypatch, seed=len(goals) + len(guides))
    goal = max(goals, default=10**9)
    ends = turned = 0
    for _ in range(4):
        segment.launch(goals=goals, guides=guides, beta=0.0)
        moves = list(zip(segment.afterstates[:, 0], segment.rewards[:, 0], segment.tails[:, 0], strict=True))
        for (before, _, tail), (after, reward, _) in itertools.pairwise(moves):
            best: dict[bool, list[Any]] = {False: [], True: []}
            tops = []
            for board, guided in itertools.product(with_spawn(int(before)), best):
                found = options(segment, board, guided=guided, goal=goal)
                top = max(found, default=(0.0, 0, 0.0, False))
                best[guided] += [each[1:3] for each in found if each[0] >= top[0] - 1e-2]
                tops += [top[0]] if guided <= bool(guides) else []
            if not np.isnan(tail):  # 0 for a lost board, else the value of the move to the goal
                ends += 1
                assert np.isclose(tops, tail, atol=1e-2).any()
                continue
            made = int(after), float(reward)
            turned += made not in best[False]
            assert made in best[False] + best[bool(guides)]
    assert (turned > 0) == bool(guides)
    assert ends
    assert segment.counts[0] > 0
    score, last = (int(word) for word in segment.results[0])
    missing = reference.board_score(reference.unpack(last)) - score  # 4 for each spawned 4
    assert missing % 4 == 0
    assert 0 <= missing < score


def test_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each afterstate, from the last on, moves towards its lambda-return, each entry at its own rate."""
    segment = Segment(monkeypatch, seed=9)
    for _ in range(3):
        weights, rates = segment.weights.copy(), segment.rates.astype(np.float64)
        segment.launch(goals=[GOAL], guides=[])
        expected = Network(LAYOUT, weights, np.ones((2, 2), np.float32))
        target = following = 0.0
        for j in reversed(range(MOVES)):
            after, tail = segment.afterstates[j, 0], float(segment.tails[j, 0])
            if np.isnan(tail):
                tail = float(segment.rewards[j + 1, 0]) + 0.5 * following + 0.5 * target
            target = tail
            delta = target - float(expected.values(np.array([after]))[0])
            for places in slow.entries_of(LAYOUT, reference.unpack(int(after))):
                for place in set(places):  # images that look the same have one entry
                    e, a, uses = rates[place]
                    weights[place] += delta / 16 * (min(abs(e) / a, 1.0) if a else 1.0)
                    rates[place] = e + delta, a + abs(delta), uses + 1
            following = float(expected.values(np.array([after]))[0])
        assert np.allclose(segment.weights, weights, rtol=1e-3, atol=1e-2)
        assert np.allclose(segment.rates, rates, rtol=1e-3, atol=1e-1)
    assert segment.tallies[LEARNED].sum() == 3 * MOVES


def test_trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A training splits its stages, ends games at goals, and resumes from its checkpoint."""
    monkeypatch.setattr(gpu_learner, "cuda", Warp())
    monkeypatch.setattr(gpu_learner, "SEGMENT_MOVES", MOVES)
    config = TrainingConfig(
        tuples="0123", stages="32", split_moves=MOVES, pool_boards=4, goals="64", guide_from=48,
        device="cuda", gpu_games=1, moves=6 * MOVES,
    )  # fmt: skip
    trainer = Trainer(config)
    trainer.learn(4 * MOVES)
    figures = trainer.progress().figures
    assert figures["moves"] == trainer.moves == 4 * MOVES
    assert sum(stage.learned for stage in figures["stages"]) == 4 * MOVES
    assert figures["stages"][1].entered > 0
    assert figures["goals"] > 0
    assert figures["mean_error"] > 0
    path = tmp_path / "checkpoint"
    trainer.save(path)
    again = Trainer.resume(memoryview(path.read_bytes()), path, config)
    assert np.array_equal(again.network().table, trainer.network().table)
    again.learn(10**9)
    assert again.done
    first, last = (np.count_nonzero(each.network().table) for each in (trainer, again))
    assert last > first > 0


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="pool_boards = 0"):
        TrainingConfig(device="cuda").check()
    with pytest.raises(ConfigError, match="9 stages or goals, expected at most 8"):
        gpu_learner.sums_of(range(9))
    monkeypatch.setattr(gpu_learner, "cuda", SimpleNamespace(is_available=lambda: False))
    with pytest.raises(ConfigError, match="no CUDA GPU"):
        Trainer(TrainingConfig(tuples="0123", stages="", device="cuda", pool_boards=1)).learn(1)
    full = SimpleNamespace(get_memory_info=lambda: (1000, 1000))
    monkeypatch.setattr(gpu_learner, "cuda", warp := Warp())
    monkeypatch.setattr(warp, "current_context", lambda: full)
    with pytest.raises(ConfigError, match=r"found 0\.0 GB of free GPU memory"):
        Trainer(TrainingConfig(tuples="0123", stages="", device="cuda", pool_boards=1)).learn(1)


@pytest.mark.filterwarnings("ignore:.*Host array used in CUDA kernel")
@pytest.mark.filterwarnings("ignore:.*under-utilization")
@pytest.mark.skipif(not gpu_learner.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("guides", [[], [GUIDE]])
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch, guides: list[int]) -> None:
    """A GPU plays and learns what the threads do."""
    compiled = gpu_learner.compiled(LAYOUT, MOVES)
    segment, other = (Segment(monkeypatch, seed=3) for _ in range(2))
    for _ in range(4):
        segment.launch(goals=[GOAL], guides=guides)
        other.launch(goals=[GOAL], guides=guides, kernel=compiled[1, 32])
        for name in ("games", "afterstates", "rewards", "tallies", "pools", "results", "counts"):
            assert np.array_equal(getattr(segment, name), getattr(other, name)), name
        for name in ("tails", "weights", "rates", "errors"):
            mine, theirs = getattr(segment, name), getattr(other, name)
            assert np.allclose(mine, theirs, rtol=1e-4, atol=1e-2, equal_nan=True), name
            getattr(other, name)[:] = mine  # sums of other orders differ, and may decide a later move
