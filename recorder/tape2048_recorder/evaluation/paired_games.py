"""Comparison of players by games from the same seeds: results, strengths, and paired differences."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.intervals import Share, student95, wilson
from tape2048.session.run_table import REACH_TILES
from tape2048_recorder.evaluation.evaluated_games import Played, check_memory, play_unrecorded_games
from tape2048_recorder.game.rng import game_seeds

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from tape2048_recorder.evaluation.evaluated_games import Progress


class Strength(msgspec.Struct, frozen=True):
    games: int
    moves: int  # of all games
    mean_score: float
    mean_score_error: float  # half the width of the mean's 95% interval (Student's t)
    score_max: int
    reach: dict[int, Share]  # share of games that reached each tile
    moves_per_cpu_s: float  # moves per second of processor time
    moves_per_s: float  # of all threads together
    forfeits: int = 0  # games that count 0 points because of a fault of the engine
    peak_bytes: int = 0  # peak memory of an engine's process; 0 for other players


class Difference(msgspec.Struct, frozen=True):
    """The difference between two players, a and b, in games from the same seeds."""

    difference: float  # mean score of a minus mean score of b
    difference_error: float  # half the width of its 95% interval, from the differences of paired games
    a_ahead: Share  # share of games in which a scored more


@dataclasses.dataclass(eq=False)
class Results:
    """Results of one player by game number; ``games`` is the number of games to play.

    Raises:
        ConfigError: more games than fit into memory.

    Example:
        >>> results = Results(2)
        >>> number, score, exponent = np.array([[1], [512], [6]])
        >>> results.add(Played(number, score, exponent, moves=99, cpu_s=0.1))
        >>> results.missing.tolist(), results.strength().mean_score
        ([0], 512.0)
    """

    games: int

    def __post_init__(self) -> None:
        # Bytes of number, seed, score and highest tile, doubled for temporaries.
        hint = "Play fewer games: 100,000 give a mean score to half a percent."
        check_memory(self.games, self.games * 64, hint)
        self.scores = np.zeros(self.games, np.uint64)
        self.highest = np.zeros(self.games, np.uint8)  # exponents of the highest tiles
        self.played = np.zeros(self.games, np.bool_)
        self.moves = 0
        self.cpu_s = self.elapsed_s = 0.0
        self.peak_bytes = 0
        self.forfeits: dict[int, str] = {}  # reasons by game number

    @property
    def missing(self) -> npt.NDArray[np.uint64]:
        return np.flatnonzero(~self.played).astype(np.uint64)

    def add(self, part: Played) -> None:
        self.scores[part.numbers], self.highest[part.numbers] = part.scores, part.highest
        self.played[part.numbers] = True
        self.moves += part.moves
        self.cpu_s += part.cpu_s
        self.peak_bytes = max(self.peak_bytes, part.peak_bytes)
        self.forfeits.update(part.forfeits)

    def strength(self) -> Strength:
        """Summarise the games played so far, at least one."""
        scores, games = self.scores[self.played], int(self.played.sum())
        tiles = 1 << self.highest[self.played].astype(np.int64)
        return Strength(
            games=games,
            moves=self.moves,
            mean_score=float(scores.mean()),
            mean_score_error=_error(scores),
            score_max=int(scores.max()),
            reach={tile: wilson(int((tiles >= tile).sum()), games) for tile in REACH_TILES},
            moves_per_cpu_s=self.moves / max(self.cpu_s, 1e-9),
            moves_per_s=self.moves / max(self.elapsed_s, 1e-9),
            forfeits=len(self.forfeits),
            peak_bytes=self.peak_bytes,
        )

    def minus(self, other: Results) -> Difference:
        """Return the difference to another player over the games that both played."""
        both = self.played & other.played
        differences = self.scores[both].astype(np.float64) - other.scores[both]
        return Difference(
            difference=float(differences.mean()),
            difference_error=_error(differences),
            a_ahead=wilson(int((differences > 0).sum()), len(differences)),
        )


def _error(values: npt.NDArray[Any]) -> float:
    """Return half the width of the 95% interval of a mean; NaN for a single value."""
    count = len(values)
    return student95(count - 1) * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan


def play(
    player: Any,
    *,
    games: int,
    seed: int,
    threads: int,
    starts: npt.NDArray[np.uint64] | None = None,
    progress: Progress | None = None,
    results: Results | None = None,
    take: Callable[[Played], object] | None = None,
) -> Results:
    """Play seeded games. The same seed gives the same games on any number of threads.

    Args:
        player: from :func:`~tape2048_recorder.evaluation.evaluated_games.make_contestant`.
        games: number of games, at least 1.
        seed: seed of the games, 64 bits.
        threads: number of threads, at least 1. An engine gets a process per thread. A Python player always
            plays on one thread.
        starts: boards before a move, ``u64[n]``, from which the games start in turn. Scores then count from
            there. None: new games.
        progress: function that is called with ``(done, games)`` every 0.2 s and at the end.
        results: results of games that need not be played again.
        take: function that is called with finished games, by one thread at a time.

    Raises:
        ConfigError: more games than fit into memory.
        PlayerError: a batched player raised an exception, or returned an invalid answer.
        ValueError: fewer than one game or thread.

    Example:
        >>> from tape2048_recorder.evaluation.evaluated_games import make_contestant
        >>> players = [make_contestant(name, {}) for name in ("greedy", "random")]
        >>> greedy, random = (play(player, games=50, seed=1, threads=1) for player in players)
        >>> greedy.minus(random).difference > 0
        True
    """
    if games < 1 or threads < 1:
        raise ValueError(f"found games={games}, threads={threads}; expected at least 1 of each")
    results = results or Results(games)

    def add(part: Played) -> None:
        results.add(part)
        if take is not None:
            take(part)

    numbers = results.missing
    boards = np.empty(0, np.uint64) if starts is None else starts[numbers % np.uint64(len(starts))]
    how: dict[str, Any] = {"threads": threads, "take": add, "progress": progress}
    if len(numbers):
        results.elapsed_s += play_unrecorded_games(player, numbers, game_seeds(seed, numbers), boards, **how)
    return results
