"""Batched players for tests: factories as a user would write them, with NumPy only."""

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tape2048.errors import PlayerError

Player = Callable[[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.uint8]], Any]

_LOWEST = np.array([(legal & -legal).bit_length() - 1 if legal else 0 for legal in range(16)], dtype=np.uint8)


def lowest(**_: Any) -> Player:
    """The legal move with the lowest number."""
    return lambda _boards, legal, _exps: _LOWEST[legal]


def scores_of(boards: NDArray[np.uint64], key: int = 0) -> NDArray[np.float32]:
    """Numbers that follow from the board alone, in integers: the same in any batch."""
    moves = np.arange(1, 5, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (boards[:, None] ^ np.uint64(key)) * (moves * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1))
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-22)


def hashed(key: int = 0) -> Player:
    """Scores that follow from the board alone."""
    return lambda boards, _legal, _exps: scores_of(boards, key)


class Overlapping:
    """The same scores, by ``submit`` and ``collect``; it notes that two batches were under way."""

    def __init__(self) -> None:
        self.under_way: list[NDArray[np.uint64]] = []
        self.most = 0

    def __call__(self, boards: NDArray[np.uint64], legal: Any, exps: Any) -> Any:
        raise AssertionError("submit and collect are there")

    def submit(self, boards: NDArray[np.uint64], _legal: Any, _exps: Any) -> None:
        self.under_way.append(boards)
        self.most = max(self.most, len(self.under_way))

    def collect(self) -> NDArray[np.float32]:
        return scores_of(self.under_way.pop(0))


def overlapping() -> Overlapping:
    return Overlapping()


def failing(*, after: int, how: str = "raise") -> Player:
    """Fails once it has answered for this many boards, in one of five ways."""
    seen = 0

    def play(boards: NDArray[np.uint64], legal: NDArray[np.uint8], _exps: NDArray[np.uint8]) -> Any:
        nonlocal seen
        seen += len(boards)
        if seen <= after:
            return _LOWEST[legal]
        if how == "raise":
            raise ZeroDivisionError("no more")
        if how == "nan":
            scores = scores_of(boards)
            scores[-1] = np.nan
            return scores
        if how == "illegal":
            moves = _LOWEST[legal]
            moves[-1] = 4
            return moves
        return {"shape": np.zeros(len(boards) + 1, np.uint8), "dtype": np.zeros(len(boards), np.int64)}[how]

    return play


def heavy(megabytes: int) -> Player:
    """Holds this much memory."""
    held = np.ones(megabytes * 10**6, dtype=np.uint8)
    return lambda boards, _legal, _exps: scores_of(boards, int(held[0]))


def from_checkpoint(model: str, slow_s: float = 0.0, load_s: float = 0.0) -> Player:
    """Scores by the ``key`` of a JSON checkpoint; one that is not whole is refused."""
    time.sleep(load_s)
    try:
        key = json.loads(Path(model).read_text())["key"]
    except (ValueError, KeyError) as error:
        raise PlayerError(f"not a whole checkpoint: {error}", path=model) from error

    def play(boards: NDArray[np.uint64], _legal: NDArray[np.uint8], _exps: NDArray[np.uint8]) -> Any:
        time.sleep(slow_s)
        return scores_of(boards, key)

    return play


def unending(how: str) -> Player:
    """Its process does not come to its end: a thread, or what a library does at the very end, stays."""
    if how == "thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
    else:
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc.pause, ctypes.c_void_p), None)
    return hashed()


def deadly(model: str) -> Player:
    """Loading a checkpoint without a key ends the process, as where memory runs out."""
    if "key" not in Path(model).read_text():
        os._exit(9)
    return from_checkpoint(model, slow_s=0.001)


class Bounded:
    """Takes no more boards than its warm-up was told, as a player with buffers does."""

    def warm_up(self, n: int) -> None:
        self.most = n

    def __call__(self, boards: NDArray[np.uint64], _legal: Any, _exps: Any) -> NDArray[np.float32]:
        buffer = np.empty((self.most, 4), dtype=np.float32)
        buffer[: len(boards)] = scores_of(boards)
        return buffer[: len(boards)]


def bounded() -> Bounded:
    return Bounded()


not_a_factory = 3
