"""Strength and speed of a player, measured over many seeded games on several threads."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.intervals import Z95, Share, wilson
from tape2048.base.resources import ram_available
from tape2048.errors import ConfigError
from tape2048.session.labels import REACH_TILES
from tape2048_recorder.game.loop import play_on, play_unrecorded
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


class Match(msgspec.Struct, frozen=True):
    """Results of two players in games of the same seeds."""

    a: Evaluation
    b: Evaluation
    difference: float  # mean score of a minus that of b
    difference_error: float  # half the width of its 95% interval, from the differences game by game
    a_ahead: Share  # of the games, where a scored more


class _Played(NamedTuple):
    """Games of one player: scores and highest tiles, ``u64[n]``, the moves of all, and the time."""

    scores: npt.NDArray[np.uint64]
    highest: npt.NDArray[np.uint64]
    moves: int
    cpu_s: float
    elapsed_s: float


def evaluate(
    player: Any,
    *,
    games: int,
    seed: int,
    threads: int,
    starts: npt.NDArray[np.uint64] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Play games and summarise them; the same seed gives the same games on any number of threads.

    Args:
        player: from :func:`~tape2048_recorder.players.registry.make_player`.
        games: at least 1.
        seed: of the games, 64 bits.
        threads: at least 1.
        starts: boards before a move, ``u64[n]``, from which the games begin in turn; scores are then the
            points made since. None: new games.
        progress: called with ``(done, games)`` every 0.2 s, and at the end.

    Raises:
        ConfigError: more games than fit into memory.
        ValueError: fewer than one game or thread.
    """
    _check(games, threads)
    return _summary(_play(player, games=games, seed=seed, threads=threads, starts=starts, progress=progress))


def match(
    a: Any,
    b: Any,
    *,
    games: int,
    seed: int,
    threads: int,
    starts: npt.NDArray[np.uint64] | None = None,
    progress: Progress | None = None,
) -> Match:
    """Play the same games with two players; for the rest as :func:`evaluate`."""
    _check(2 * games, threads)

    def after(before: int) -> Progress | None:
        return None if progress is None else lambda done, _: progress(before + done, 2 * games)

    one, other = (
        _play(player, games=games, seed=seed, threads=threads, starts=starts, progress=after(before))
        for player, before in ((a, 0), (b, games))
    )
    differences = one.scores.astype(np.float64) - other.scores
    return Match(
        a=_summary(one),
        b=_summary(other),
        difference=float(differences.mean()),
        difference_error=_error(differences),
        a_ahead=wilson(int((differences > 0).sum()), games),
    )


def _check(games: int, threads: int) -> None:
    if games < 1 or threads < 1:
        raise ValueError(f"games={games}, threads={threads}; expected at least 1 of each")
    needed, free = games * _GAME_BYTES, ram_available()
    if needed > free:
        raise ConfigError(
            f"found {games:,} games, which need {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free",
            hint="fewer games: 100,000 tell a mean score to half a percent",
        )


def _error(values: npt.NDArray[Any]) -> float:
    """Return half the width of the 95% interval of a mean; NaN of a single value."""
    return Z95 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _summary(played: _Played) -> Evaluation:
    scores, games = played.scores, len(played.scores)
    return Evaluation(
        games=games,
        moves=played.moves,
        mean_score=float(scores.mean()),
        mean_score_error=_error(scores),
        score_max=int(scores.max()),
        reach={tile: wilson(int((played.highest >= tile).sum()), games) for tile in REACH_TILES},
        moves_per_cpu_s=played.moves / max(played.cpu_s, 1e-9),
        moves_per_s=played.moves / max(played.elapsed_s, 1e-9),
    )


def _play(
    player: Any,
    *,
    games: int,
    seed: int,
    threads: int,
    starts: npt.NDArray[np.uint64] | None,
    progress: Progress | None,
) -> _Played:
    """Play the games of a seed, new ones or from boards in turn."""
    seeds = game_seeds(seed, np.arange(games, dtype=np.uint64))
    begins = None if starts is None else np.resize(starts, games)
    scores = np.zeros(games, dtype=np.uint64)
    exponents, tiles = np.zeros(games, dtype=np.uint8), np.zeros(games, dtype=np.uint64)

    def play(player: Any, part: slice) -> int:
        if begins is None:
            return play_unrecorded(player, seeds[part], scores[part], tiles[part])
        return play_on(player, begins[part], seeds[part], exponents[part], scores[part])

    play(own(player), slice(0, 0))  # compile before the clock starts
    begin = time.monotonic()
    moves, cpu_s = play_in_threads(player, games, threads, play, progress)
    highest = tiles if begins is None else np.uint64(1) << exponents.astype(np.uint64)
    return _Played(scores, highest, moves, cpu_s, time.monotonic() - begin)


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
