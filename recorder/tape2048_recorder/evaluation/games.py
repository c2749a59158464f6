"""Unrecorded games of a built-in player on several threads: their boards, how far they come, its strength."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.base.intervals import Z95, Share, wilson
from tape2048.base.resources import ram_available
from tape2048.critic.ntuple.critic import GameBoards, GameSource, split_games
from tape2048.errors import ConfigError
from tape2048.formats.session import TOP_TILE
from tape2048.ntuple.placed import check_tables
from tape2048.players import PlayedBy, player_text
from tape2048.session.run_table import REACH_TILES, exponents_of
from tape2048_recorder.game.loop import Buffer, play_all, play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import check_player, make_player, own, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from tape2048.critic.config import NTupleCriticConfig
    from tape2048_recorder.players.batch import ArgValue

    Progress = Callable[[int, int], object]

_CHUNK_GAMES = 8  # games of one call of the compiled loop: few enough for a moving progress bar

_TICK_S = 0.2

_ROWS = 1 << 14  # boards that a buffer holds at first
_EXPONENTS = 16  # columns of the counts of rollouts: the exponents of tiles, 0 to 15

#: Most rollouts of a position: counts are ``u16``.
ROLLOUTS_MAX = 65_535

_ROLLOUT_BITS = 16

#: Set in the ids of rollouts and never in ids of a recorder's games, so that they share no game of a seed.
_ROLLOUT_ID = 1 << 63


def play_in_threads(
    player: Any, games: int, threads: int, play: Callable[[Any, slice], int], progress: Progress | None = None
) -> tuple[int, float]:
    """Play games by number on several threads.

    Returns:
        The moves of all games, and the CPU time in seconds.
    """
    chunks = iter(range(0, games, _CHUNK_GAMES))  # its `next` is atomic
    lock, stop = threading.Lock(), threading.Event()
    done = 0

    def work(player: Any) -> tuple[int, float]:
        nonlocal done
        moves, begin_s = 0, time.thread_time()
        for first in chunks:
            part = slice(first, min(first + _CHUNK_GAMES, games))
            moves += play(player, part)
            with lock:
                done += part.stop - first
            if stop.is_set():
                break
        return moves, time.thread_time() - begin_s

    with ThreadPoolExecutor(threads) as pool:
        try:
            running = [pool.submit(work, own(player)) for _ in range(threads)]
            pending = set(running)
            while pending:
                ended, pending = wait(pending, _TICK_S, FIRST_EXCEPTION)
                for each in ended:
                    each.result()
                if progress is not None:
                    progress(done, games)
        finally:
            stop.set()  # threads end after their chunk
    check_tables()
    moves, cpu_s = zip(*(each.result() for each in running), strict=True)
    return sum(moves), sum(cpu_s)


def part_of(progress: Progress | None, before: int, games: int) -> Progress:
    """Return the progress of a part of some games, before which others were played."""
    return lambda done, _: progress and progress(before + done, games)


def play_games(
    player: Any, seeds: npt.NDArray[np.uint64], *, stride: int, threads: int, progress: Progress | None = None
) -> GameBoards:
    """Play a game from each seed, and keep every ``stride``-th board."""
    parts: dict[int, tuple[Any, Any]] = {}
    held = 0

    def play(player: Any, part: slice) -> int:
        nonlocal held
        count = part.stop - part.start
        buffer = Buffer(rows_max=_ROWS, runs_max=count, record_action=False, sample_rate=stride)
        buffer.give(np.arange(count, dtype=np.uint64), seeds[part])
        play_all(buffer, player)
        parts[part.start] = buffer.boards.copy(), buffer.runs.copy()
        held += buffer.boards.nbytes
        _check_memory(len(seeds), 2 * held)  # they are joined, and then split
        return buffer.steps_played

    play_in_threads(player, len(seeds), threads, play, progress)
    boards, runs = (np.concatenate(some) for some in zip(*(parts[at] for at in sorted(parts)), strict=True))
    starts = np.append(0, np.cumsum(runs["rows"].astype(np.int64)))
    return GameBoards(boards, starts, exponents_of(runs["highest_tile"]))


def played_games(
    config: NTupleCriticConfig,
    name: str,
    args: Mapping[str, ArgValue],
    games: int,
    progress: Progress | None = None,
) -> GameSource:
    """Play the games of a critic's training: the games that a recorder with the same seed would record."""
    full = check_player(name, args)
    player = make_player(name, full)
    # Without its boards a game takes its seed, run, part, and as much again for temporaries.
    _check_memory(games, games * 128)
    seeds = game_seeds(config.seed, np.arange(games, dtype=np.uint64))
    found = play_games(player, seeds, stride=config.stride, threads=config.thread_count, progress=progress)
    sha256 = player_sha256(name, player)
    played = PlayedBy(player_text({"player": name, "player_args": full}), sha256, games)
    identity = hashlib.sha256(f"{sha256} {config.seed} {games} {config.stride}".encode()).hexdigest()
    return split_games(found, seeds, played, config, identity)


def _check_memory(
    games: int,
    needed: int,
    hint: str = "fewer games, fewer of their rows (--stride), or games that are recorded first",
) -> None:
    if needed > (free := ram_available()):
        raise ConfigError(
            f"{games:,} games need at least {needed / 1e9:,.1f} GB more, and {free / 1e9:,.1f} GB are free",
            hint=hint,
        )


def play_rollouts(
    player: Any,
    boards: npt.NDArray[np.uint64],
    *,
    rollouts: int,
    seed: int,
    threads: int,
    first: int = 0,
    progress: Progress | None = None,
) -> npt.NDArray[np.uint16]:
    """Play from each board to the end, several times, and count how far the games come.

    ``seed``, the number of a position and the number of a rollout decide the rollout, on any number of
    threads. A player with a mixture (``mix`` of ``ntuple``) draws from it for each rollout.

    Returns:
        ``u16[n, 16]``: the number of rollouts whose highest tile at the end has at least the exponent ``e``.
    """
    if not 1 <= rollouts <= ROLLOUTS_MAX or threads < 1 or first < 0:
        raise ValueError(
            f"rollouts={rollouts}, threads={threads}, first={first}; expected 1 to {ROLLOUTS_MAX}, "
            "at least 1 and at least 0"
        )
    seeds = rollout_seeds(seed, len(boards), rollouts, first).reshape(-1)
    begins = np.repeat(np.asarray(boards, np.uint64), rollouts)
    ends = _play_unrecorded(player, begins, seeds, threads, progress).highest.reshape(len(boards), rollouts)
    return np.stack([(ends >= e).sum(axis=1, dtype=np.uint16) for e in range(_EXPONENTS)], axis=1)


class _Played(NamedTuple):
    scores: npt.NDArray[np.uint64]
    highest: npt.NDArray[np.uint8]
    moves: int
    cpu_s: float
    elapsed_s: float


def _play_unrecorded(
    player: Any,
    begins: npt.NDArray[np.uint64],
    seeds: npt.NDArray[np.uint64],
    threads: int,
    progress: Progress | None,
) -> _Played:
    scores, highest = np.zeros(len(seeds), np.uint64), np.zeros(len(seeds), np.uint8)

    def play(player: Any, part: slice) -> int:
        return play_unrecorded(player, begins[part], seeds[part], scores[part], highest[part])

    play(own(player), slice(0, 0))  # compile before the clock starts
    begin = time.monotonic()
    moves, cpu_s = play_in_threads(player, len(seeds), threads, play, progress)
    return _Played(scores, highest, moves, cpu_s, time.monotonic() - begin)


def rollout_seeds(seed: int, positions: int, rollouts: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """Return the seeds of rollouts, ``u64[positions, rollouts]``: all different for any ``first``."""
    numbers = np.arange(first, first + positions, dtype=np.uint64) << np.uint64(_ROLLOUT_BITS)
    return game_seeds(seed, numbers[:, None] | np.arange(rollouts, dtype=np.uint64) | np.uint64(_ROLLOUT_ID))


class Strength(msgspec.Struct, frozen=True):
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

    a: Strength
    b: Strength
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
) -> Strength:
    """Play games and summarise them. The same seed gives the same games on any number of threads.

    Args:
        player: from :func:`~tape2048_recorder.players.options.make_player`.
        games: at least 1.
        seed: seed of the games, 64 bits.
        threads: at least 1.
        starts: boards before a move, ``u64[n]``, from which the games start in turn; scores are then the
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
    (scores, one), (other_scores, other) = (
        _play(
            player,
            part_of(progress, before, 2 * games),
            games=games,
            seed=seed,
            threads=threads,
            starts=starts,
        )
        for player, before in ((a, 0), (b, games))
    )
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
) -> tuple[npt.NDArray[np.uint64], Strength]:
    if games < 1 or threads < 1:
        raise ValueError(f"games={games}, threads={threads}; expected at least 1 of each")
    # Number, seed, score, highest tile, and as much again for temporaries.
    _check_memory(games, games * 64, "fewer games: 100,000 tell a mean score to half a percent")
    seeds = game_seeds(seed, np.arange(games, dtype=np.uint64))
    begins = np.empty(0, np.uint64) if starts is None else np.resize(starts, games)
    played = _play_unrecorded(player, begins, seeds, threads, progress)
    tiles = 1 << played.highest.astype(np.int64)
    return played.scores, Strength(
        games=games,
        moves=played.moves,
        mean_score=float(played.scores.mean()),
        mean_score_error=_error(played.scores),
        score_max=int(played.scores.max()),
        reach={tile: wilson(int((tiles >= tile).sum()), games) for tile in (*REACH_TILES, TOP_TILE)},
        moves_per_cpu_s=played.moves / max(played.cpu_s, 1e-9),
        moves_per_s=played.moves / max(played.elapsed_s, 1e-9),
    )
