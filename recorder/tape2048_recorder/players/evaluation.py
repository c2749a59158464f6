"""Strength and speed of a player, measured over many seeded games on several threads."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.intervals import Z95, Share, wilson
from tape2048.base.resources import ram_available
from tape2048.errors import ConfigError
from tape2048.session.labels import REACH_TILES
from tape2048_recorder.game.loop import play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.registry import own

if TYPE_CHECKING:
    from collections.abc import Callable

    Progress = Callable[[int, int], object]

#: Games of one call of the compiled loop: few enough for a moving progress bar.
_CHUNK_GAMES = 8

#: Memory of a game: number, seed, score, highest tile, and as much again for temporaries.
_GAME_BYTES = 64

_TICK_S = 0.2


class Evaluation(msgspec.Struct, frozen=True):
    """Results of the games of one player."""

    games: int
    moves: int  # of all games
    mean_score: float
    mean_score_error: float  # half the width of the mean's 95% interval (normal approximation)
    score_max: int
    reach: dict[int, Share]  # for each tile, the share of games that reached it
    moves_per_cpu_s: float
    moves_per_s: float  # of all threads together


def evaluate(
    player: Any, *, games: int, seed: int, threads: int, progress: Progress | None = None
) -> Evaluation:
    """Play games and summarise them; the same seed gives the same games on any number of threads.

    ``progress`` is called with ``(done, games)`` every 0.2 s, and at the end.

    Raises:
        ConfigError: more games than fit into memory.
        ValueError: fewer than one game or thread.
    """
    if games < 1 or threads < 1:
        raise ValueError(f"games={games}, threads={threads}; expected at least 1 of each")
    needed, free = games * _GAME_BYTES, ram_available()
    if needed > free:
        raise ConfigError(
            f"found {games:,} games, which need {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free",
            hint="fewer games: 100,000 tell a mean score to half a percent",
        )
    seeds = game_seeds(seed, np.arange(games, dtype=np.uint64))
    warm = np.zeros((2, 1), dtype=np.uint64)
    play_unrecorded(player, seeds[:1], *warm)  # compile before the clock starts
    begin = time.monotonic()
    scores, highest, moves, cpu_s = _play(player, seeds, threads, progress)
    elapsed_s = time.monotonic() - begin
    deviation = float(scores.std(ddof=1)) if games > 1 else math.nan
    return Evaluation(
        games=games,
        moves=moves,
        mean_score=float(scores.mean()),
        mean_score_error=Z95 * deviation / math.sqrt(games),
        score_max=int(scores.max()),
        reach={tile: wilson(int((highest >= tile).sum()), games) for tile in REACH_TILES},
        moves_per_cpu_s=moves / max(cpu_s, 1e-9),
        moves_per_s=moves / max(elapsed_s, 1e-9),
    )


def _play(
    player: Any, seeds: npt.NDArray[np.uint64], threads: int, progress: Progress | None
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], int, float]:
    """Return the scores and highest tiles of games, the moves of all, and the CPU time."""
    scores, highest = np.zeros((2, len(seeds)), dtype=np.uint64)

    def play(player: Any, part: slice) -> int:
        return play_unrecorded(player, seeds[part], scores[part], highest[part])

    return scores, highest, *play_in_threads(player, len(seeds), threads, play, progress)


def play_in_threads(
    player: Any,
    games: int,
    threads: int,
    play: Callable[[Any, slice], int],
    progress: Progress | None = None,
) -> tuple[int, float]:
    """Play numbered games on several threads, a few at a time.

    Args:
        player: of which each thread gets its own (:func:`~tape2048_recorder.players.registry.own`).
        games: their number.
        threads: at least 1.
        play: plays a slice of the games without the GIL, and returns the moves made.
        progress: called with ``(done, games)`` every 0.2 s, and at the end. What it raises ends the threads.

    Returns:
        The moves of all games, and the CPU time in seconds.
    """
    chunks = iter(range(0, games, _CHUNK_GAMES))
    lock, stop = threading.Lock(), threading.Event()
    done = moves = 0
    cpu_s = 0.0

    def work(player: Any) -> None:
        nonlocal done, moves, cpu_s
        while not stop.is_set():
            with lock:
                begin = next(chunks, games)
            if begin == games:
                return
            part = slice(begin, min(begin + _CHUNK_GAMES, games))
            cpu_begin = time.thread_time()
            made = play(player, part)
            with lock:
                cpu_s += time.thread_time() - cpu_begin
                moves += made
                done += part.stop - begin

    with ThreadPoolExecutor(threads) as pool:
        try:
            running = [pool.submit(work, own(player)) for _ in range(threads)]
            while done < games and not any(one.done() and one.exception() for one in running):
                wait(running, _TICK_S, FIRST_EXCEPTION)
                if progress is not None:
                    progress(done, games)
        finally:
            stop.set()  # threads end after their chunk
    for one in running:
        one.result()
    if progress is not None:
        progress(games, games)
    return moves, cpu_s
