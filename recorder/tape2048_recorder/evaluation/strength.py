"""Strength and speed of a built-in player, measured over seeded games on several threads."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.intervals import Z95, Share, wilson
from tape2048.base.resources import ram_available
from tape2048.errors import ConfigError
from tape2048.session.run_table import REACH_TILES
from tape2048_recorder.evaluation.rollouts import play_in_threads
from tape2048_recorder.game.loop import play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.registry import own

if TYPE_CHECKING:
    from tape2048_recorder.evaluation.rollouts import Progress

#: Memory of a game: number, seed, score, highest tile, and as much again for temporaries.
_GAME_BYTES = 64


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
    difference: float  # mean score of a minus mean score of b
    difference_error: float  # half the width of its 95% interval, from the differences game by game
    a_ahead: Share  # of the games, where a scored more


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
        seed: seed of the games, 64 bits.
        threads: at least 1.
        starts: boards before a move, ``u64[n]``, from which the games begin in turn; scores are then the
            points made since. None: new games.
        progress: called with ``(done, games)`` every 0.2 s, and at the end.

    Raises:
        ConfigError: more games than fit into memory.
        ValueError: fewer than one game or thread.
    """
    return _play(player, progress, games=games, seed=seed, threads=threads, starts=starts)[1]


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
    found = []
    for player, before in ((a, 0), (b, games)):

        def add(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, 2 * games)

        found.append(_play(player, add, games=games, seed=seed, threads=threads, starts=starts))
    (scores, one), (other_scores, other) = found
    differences = scores.astype(np.float64) - other_scores
    return Match(
        a=one,
        b=other,
        difference=float(differences.mean()),
        difference_error=_error(differences),
        a_ahead=wilson(int((differences > 0).sum()), games),
    )


def _error(values: npt.NDArray[Any]) -> float:
    """Return half the width of the 95% interval of a mean; NaN of a single value."""
    return Z95 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _play(
    player: Any,
    progress: Progress | None,
    *,
    games: int,
    seed: int,
    threads: int,
    starts: npt.NDArray[np.uint64] | None,
) -> tuple[npt.NDArray[np.uint64], Evaluation]:
    if games < 1 or threads < 1:
        raise ValueError(f"games={games}, threads={threads}; expected at least 1 of each")
    needed, free = games * _GAME_BYTES, ram_available()
    if needed > free:
        raise ConfigError(
            f"found {games:,} games, which need {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free",
            hint="fewer games: 100,000 tell a mean score to half a percent",
        )
    seeds = game_seeds(seed, np.arange(games, dtype=np.uint64))
    begins = np.empty(0, np.uint64) if starts is None else np.resize(starts, games)
    scores, highest = np.zeros(games, np.uint64), np.zeros(games, np.uint8)

    def play(player: Any, part: slice) -> int:
        return play_unrecorded(player, begins[part], seeds[part], scores[part], highest[part])

    play(own(player), slice(0, 0))  # compile before the clock starts
    begin = time.monotonic()
    moves, cpu_s = play_in_threads(player, games, threads, play, progress)
    elapsed_s = time.monotonic() - begin
    tiles = 1 << highest.astype(np.int64)
    evaluation = Evaluation(
        games=games,
        moves=moves,
        mean_score=float(scores.mean()),
        mean_score_error=_error(scores),
        score_max=int(scores.max()),
        reach={tile: wilson(int((tiles >= tile).sum()), games) for tile in REACH_TILES},
        moves_per_cpu_s=moves / max(cpu_s, 1e-9),
        moves_per_s=moves / max(elapsed_s, 1e-9),
    )
    return scores, evaluation
