"""How strong and how fast a player is: many seeded games, on all cores, nothing recorded."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.resources import ram_available
from tape2048.errors import ConfigError
from tape2048_recorder.game.loop import play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.registry import own

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int], object]

__all__ = ["REACH_TILES", "Evaluation", "Share", "evaluate"]

REACH_TILES = (2048, 4096, 8192, 16384, 32768)

#: Two-sided 95% of the normal distribution.
_Z = 1.959964

#: Games that a thread takes at a time: enough to be busy, few enough for a bar that moves.
_CHUNK_GAMES = 8

#: What a game takes until all are summed up: number, seed, score, highest tile, and as much again in passing.
_GAME_BYTES = 64


class Share(NamedTuple):
    """A share of games with its 95% interval (Wilson 1927), all in 0..1."""

    share: float
    low: float
    high: float


class Evaluation(msgspec.Struct, frozen=True):
    """What games of one player came to.

    Attributes:
        games: how many.
        moves: of all games.
        mean_score: of a game.
        mean_score_error: half the width of the mean's 95% interval (normal approximation).
        score_max: the best.
        reach: for each tile, the share of games that reached it.
        moves_per_cpu_s: moves a second of one core.
        moves_per_s: moves a second, of all threads together.
    """

    games: int
    moves: int
    mean_score: float
    mean_score_error: float
    score_max: int
    reach: dict[int, Share]
    moves_per_cpu_s: float
    moves_per_s: float


def wilson(count: int, of: int) -> Share:
    """A share and its 95% score interval (Wilson, JASA 1927)."""
    if of == 0:
        return Share(math.nan, 0.0, 1.0)
    p = count / of
    centre = p + _Z * _Z / (2 * of)
    half = _Z * math.sqrt(p * (1 - p) / of + _Z * _Z / (4 * of * of))
    scale = 1 + _Z * _Z / of
    return Share(p, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


def evaluate(
    player: Any,
    *,
    games: int,
    seed: int,
    threads: int,
    progress: Progress | None = None,
) -> Evaluation:
    """Play ``games`` games and sum them up; the same seed gives the same games on any number of threads.

    Args:
        player: a player's ``NamedTuple``.
        games: how many, at least 1.
        seed: decides the games.
        threads: how many play at once, at least 1.
        progress: told ``(done, games)`` from time to time, and at the end.

    Raises:
        ConfigError: more games than there is memory for.
        ValueError: fewer than one game or thread.
    """
    if games < 1 or threads < 1:
        raise ValueError(f"games={games}, threads={threads}; expected at least 1 of each")
    _check_memory(games)
    seeds = game_seeds(seed, np.arange(games, dtype=np.uint64))
    scores = np.zeros(games, dtype=np.uint64)
    highest = np.zeros(games, dtype=np.uint64)
    players = [own(player) for _ in range(threads)]
    warm = np.zeros(1, dtype=np.uint64)
    play_unrecorded(players[0], seeds[:1], warm, warm.copy())  # compiled before the clock starts
    work = _Work(seeds, scores, highest)
    begin = time.monotonic()
    running = [threading.Thread(target=work.run, args=(player,)) for player in players]
    try:
        for thread in running:
            thread.start()
        while alive := [thread for thread in running if thread.is_alive()]:
            alive[0].join(0.2)
            if progress is not None:
                progress(work.done, games)
            if work.done >= games:
                break
    finally:
        work.stop = True  # an interrupt ends the threads at their next chunk
        for thread in running:
            if thread.ident is not None:  # the system may have refused to start it
                thread.join()
    if work.error is not None:
        raise work.error
    if progress is not None:
        progress(games, games)
    elapsed = time.monotonic() - begin
    return _summed(scores, highest, work.moves, work.cpu_s, elapsed)


def _check_memory(games: int) -> None:
    needed, free = games * _GAME_BYTES, ram_available()
    if needed > free:
        raise ConfigError(
            f"found {games:,} games, which need {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free",
            hint="fewer games: 100,000 tell a mean score to half a percent",
        )


class _Work:
    """The games that are left, shared by threads."""

    def __init__(
        self, seeds: npt.NDArray[np.uint64], scores: npt.NDArray[np.uint64], highest: npt.NDArray[np.uint64]
    ) -> None:
        self._seeds, self._scores, self._highest = seeds, scores, highest
        self._lock = threading.Lock()
        self._next = 0
        self.done = 0
        self.moves = 0
        self.cpu_s = 0.0
        self.stop = False
        self.error: BaseException | None = None

    def run(self, player: Any) -> None:
        try:
            while not self.stop:
                with self._lock:
                    begin, self._next = self._next, self._next + _CHUNK_GAMES
                part = slice(begin, min(begin + _CHUNK_GAMES, len(self._seeds)))
                if begin >= len(self._seeds):
                    return
                cpu = time.thread_time()
                moves = play_unrecorded(player, self._seeds[part], self._scores[part], self._highest[part])
                with self._lock:
                    self.cpu_s += time.thread_time() - cpu
                    self.moves += moves
                    self.done += part.stop - part.start
        except BaseException as error:  # noqa: BLE001 - the thread's edge: raised again by evaluate
            self.error = error
            self.stop = True


def _summed(
    scores: npt.NDArray[np.uint64],
    highest: npt.NDArray[np.uint64],
    moves: int,
    cpu_s: float,
    elapsed_s: float,
) -> Evaluation:
    games = len(scores)
    deviation = float(scores.std(ddof=1)) if games > 1 else math.nan
    return Evaluation(
        games=games,
        moves=moves,
        mean_score=float(scores.mean()),
        mean_score_error=_Z * deviation / math.sqrt(games),
        score_max=int(scores.max()),
        reach={tile: wilson(int((highest >= tile).sum()), games) for tile in REACH_TILES},
        moves_per_cpu_s=moves / max(cpu_s, 1e-9),
        moves_per_s=moves / max(elapsed_s, 1e-9),
    )
