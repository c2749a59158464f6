"""Unrecorded games of a player on several threads: their boards, scores and highest tiles.

Built-in players play one game after another in the compiled loop. Batched players play many games in
lockstep. Both use the same rules and generator, so players that choose the same moves play the same games.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.critic.ntuple.ntuple_critic import GameBoards, GameSource, split_games
from tape2048.errors import ConfigError
from tape2048.game.rules import exps_to_boards
from tape2048.ntuple.mapped import check_tables
from tape2048.players import PlayedBy, player_text
from tape2048.session.layout import SAMPLE_RATE_MAX
from tape2048.session.run_table import exponents_of
from tape2048_recorder.evaluation.game_threads import in_threads
from tape2048_recorder.evaluation.lockstep import Batched, TableReport, play_in_lanes
from tape2048_recorder.game.game_loop import Buffer, play_all, play_unrecorded
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.batch_player import batch_sha256, make_batch_player
from tape2048_recorder.players.options import check_player, is_batched, make_player, own, player_sha256
from tape2048_recorder.players.parameters import with_digests
from tape2048_recorder.players.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from tape2048.critic.critic_config import NTupleCriticConfig
    from tape2048_recorder.players.options import ArgValue

    Progress = Callable[[int, int], object]

_CHUNK_GAMES = 8  # games per call of the compiled loop: few, so that the progress bar moves

_ROWS = 1 << 14  # initial capacity of a buffer, in boards
_EXPONENTS = 16  # columns of the counts of rollouts: the exponents of tiles, 0 to 15

#: Most rollouts per position, because counts are ``u16``.
ROLLOUTS_MAX = 65_535

_ROLLOUT_BITS = 16

#: A bit that is set in ids of rollouts and never in ids of recorded games, so that their games differ.
_ROLLOUT_ID = 1 << 63


def make_contestant(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Return a player of any kind, to play unrecorded games.

    Args:
        name: name of a player, as in ``record``.
        args: its parameters.

    Raises:
        ConfigError: an unknown player, or invalid parameters.
        StartError: a batched player cannot be imported.
        PlayerError: the factory of a batched player raised an exception.

    Example:
        >>> type(make_contestant("greedy", {})).__name__
        'Greedy'
    """
    full = check_player(name, args)
    return Batched(name, make_batch_player(name, full)) if is_batched(name) else make_player(name, full)


def contestant_sha256(name: str, args: Mapping[str, ArgValue], player: Any) -> str:
    """Return the SHA-256 (hex) of a player from :func:`make_contestant`; equal hashes mean equal moves."""
    if isinstance(player, Batched):
        return batch_sha256(name, check_player(name, args), Sampling(), player.player)
    return player_sha256(name, player)


def _play_in_threads(
    player: Any, games: int, threads: int, play: Callable[[Any, slice], object], progress: Progress | None
) -> None:
    """Play games of a built-in player on several threads; ``play`` gets ranges of game numbers."""
    chunks = iter(range(0, games, _CHUNK_GAMES))  # its `next` is atomic
    lock = threading.Lock()
    done = 0

    def work(stop: threading.Event, player: Any) -> None:
        nonlocal done
        for first in chunks:
            part = slice(first, min(first + _CHUNK_GAMES, games))
            play(player, part)
            with lock:
                done += part.stop - first
            if stop.is_set():
                break

    works = [functools.partial(work, player=own(player)) for _ in range(threads)]
    in_threads(works, lambda: progress and progress(done, games))
    check_tables()


def part_of(progress: Progress | None, before: int, games: int) -> Progress:
    """Return a progress function for a part of ``games``, after ``before`` games of other parts."""
    return lambda done, _: progress and progress(before + done, games)


def play_games(
    player: Any, seeds: npt.NDArray[np.uint64], *, stride: int, threads: int, progress: Progress | None = None
) -> GameBoards:
    """Play a game from each seed, and keep every ``stride``-th board."""
    parts: dict[int, tuple[Any, Any]] = {}
    held = 0

    def keep(number: int, boards: Any, runs: Any) -> None:
        nonlocal held
        parts[number] = boards, runs
        held += boards.nbytes
        check_memory(len(seeds), 2 * held)  # joining the parts doubles the memory

    def play(player: Any, part: slice) -> None:
        count = part.stop - part.start
        buffer = Buffer(rows_max=_ROWS, runs_max=count, record_action=False, sample_rate=stride)
        buffer.give(np.arange(count, dtype=np.uint64), seeds[part])
        play_all(buffer, player)
        keep(part.start, buffer.boards.copy(), buffer.runs.copy())

    def take(report: TableReport) -> None:
        finished = report.table.finished
        boards, runs = exps_to_boards(finished.rows["exps"]), finished.runs.copy()
        for at, run in enumerate(runs):
            keep(int(run["run_id"]), boards[int(run["first_row"]) :][: int(run["rows"])], runs[at : at + 1])

    if isinstance(player, Batched):
        numbers = np.arange(len(seeds), dtype=np.uint64)
        how: dict[str, Any] = {"threads": threads, "sample_rate": stride, "take": take, "progress": progress}
        play_in_lanes(player, numbers, seeds, np.empty(0, np.uint64), **how)
    else:
        _play_in_threads(player, len(seeds), threads, play, progress)
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
    """Play games to train a critic: the games that a recorder with the same seed would record."""
    full = check_player(name, args)
    player = make_player(name, full)
    # Bytes per game besides its boards: seed, run and part, doubled for temporaries.
    check_memory(games, games * 128)
    seeds = game_seeds(config.seed, np.arange(games, dtype=np.uint64))
    found = play_games(player, seeds, stride=config.stride, threads=config.thread_count, progress=progress)
    sha256 = player_sha256(name, player)
    played = PlayedBy(player_text({"player": name, "player_args": with_digests(name, full)}), sha256, games)
    identity = hashlib.sha256(f"{sha256} {config.seed} {games} {config.stride}".encode()).hexdigest()
    return split_games(found, seeds, played, config, identity)


def check_memory(
    games: int,
    needed: int,
    hint: str = "Play fewer games, keep fewer of their rows (--stride), or train on recorded games.",
) -> None:
    """Raise ConfigError if fewer than ``needed`` bytes of memory are free."""
    if needed > (free := ram_available()):
        raise ConfigError(
            f"found {free / 1e9:,.1f} GB of free memory, expected at least {needed / 1e9:,.1f} GB for "
            f"{games:,} games",
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
    """Play rollouts from each board; return ``u16[n, 16]``: rollouts that reached at least each exponent.

    ``seed``, the number of the position (from ``first``) and the number of the rollout determine a rollout,
    with any number of threads. A player with ``mix`` draws its depth for each rollout.
    """
    if not 1 <= rollouts <= ROLLOUTS_MAX or threads < 1 or first < 0:
        raise ValueError(
            f"found rollouts={rollouts}, threads={threads}, first={first}; expected 1 to {ROLLOUTS_MAX} "
            "rollouts, at least 1 thread, and a first position of at least 0"
        )
    seeds = rollout_seeds(seed, len(boards), rollouts, first).reshape(-1)
    begins = np.repeat(np.asarray(boards, np.uint64), rollouts)
    highest = np.zeros(len(seeds), np.uint8)

    def take(part: Played) -> None:
        highest[part.numbers] = part.highest

    numbers = np.arange(len(seeds), dtype=np.uint64)
    play_unrecorded_games(player, numbers, seeds, begins, threads=threads, take=take, progress=progress)
    ends = highest.reshape(len(boards), rollouts)
    return np.stack([(ends >= e).sum(axis=1, dtype=np.uint16) for e in range(_EXPONENTS)], axis=1)


class Played(NamedTuple):
    """Finished games, by number. A forfeited game counts 0 points."""

    numbers: npt.NDArray[np.uint64]
    scores: npt.NDArray[np.uint64]  # points
    highest: npt.NDArray[np.uint8]  # exponents of the highest tiles
    moves: int  # since the last report
    cpu_s: float  # since the last report
    peak_bytes: int = 0  # peak memory of an engine's process so far
    forfeits: Mapping[int, str] = MappingProxyType({})  # reasons by game number


def play_unrecorded_games(
    player: Any,
    numbers: npt.NDArray[np.uint64],
    seeds: npt.NDArray[np.uint64],
    boards: npt.NDArray[np.uint64],
    *,
    threads: int,
    take: Callable[[Played], object],
    progress: Progress | None = None,
) -> float:
    """Play a game from each seed, without rows.

    Args:
        player: from :func:`make_contestant`.
        numbers: numbers of the games, ``u64[n]``.
        seeds: seeds of the games, ``u64[n]``.
        boards: boards to start from, before a move, ``u64[n]``; empty: new games.
        threads: number of threads, at least 1. An engine gets a process per thread. A Python player always
            plays on one thread.
        take: function that is called with finished games, by one thread at a time.
        progress: function that is called with ``(done, games)``.

    Returns:
        The elapsed time in seconds, without compiling and warming up.

    Raises:
        PlayerError: a batched player raised an exception or returned an invalid answer, or an engine
            forfeited too many games in a row.

    Example:
        >>> found = []
        >>> numbers, boards = np.arange(3, dtype=np.uint64), np.empty(0, np.uint64)
        >>> player = make_contestant("greedy", {})
        >>> seeds = game_seeds(1, numbers)
        >>> _ = play_unrecorded_games(player, numbers, seeds, boards, threads=1, take=found.append)
        >>> sum(len(part.scores) for part in found)
        3
    """
    if isinstance(player, Batched):

        def report(found: TableReport) -> None:
            runs, forfeits = found.table.finished.runs, found.forfeits
            lost = np.fromiter(forfeits, np.uint64, len(forfeits))
            take(
                Played(
                    numbers=np.append(runs["run_id"], lost),
                    scores=np.append(runs["score"], np.zeros_like(lost)).astype(np.uint64),
                    highest=np.append(exponents_of(runs["highest_tile"]), np.zeros(len(lost), np.uint8)),
                    moves=found.moves,
                    cpu_s=found.usage.cpu_s,
                    peak_bytes=found.usage.peak_bytes,
                    forfeits=forfeits,
                )
            )

        how: dict[str, Any] = {"threads": threads, "sample_rate": SAMPLE_RATE_MAX, "take": report}
        return play_in_lanes(player, numbers, seeds, boards, **how, progress=progress)
    lock = threading.Lock()

    def play(player: Any, part: slice) -> None:
        begin_s, ends = time.thread_time(), (scores[part], highest[part])
        moves = play_unrecorded(player, boards[part], seeds[part], *ends)
        with lock:
            take(Played(numbers[part], *ends, moves, time.thread_time() - begin_s))

    scores, highest = np.zeros(len(seeds), np.uint64), np.zeros(len(seeds), np.uint8)
    none = slice(0, 0)  # no game: compile before the clocks start
    play_unrecorded(own(player), boards[none], seeds[none], scores[none], highest[none])
    begin = time.monotonic()
    _play_in_threads(player, len(seeds), threads, play, progress)
    return time.monotonic() - begin


def rollout_seeds(seed: int, positions: int, rollouts: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """Return the seeds of rollouts, ``u64[positions, rollouts]``, all different for any ``first``."""
    numbers = np.arange(first, first + positions, dtype=np.uint64) << np.uint64(_ROLLOUT_BITS)
    return game_seeds(seed, numbers[:, None] | np.arange(rollouts, dtype=np.uint64) | np.uint64(_ROLLOUT_ID))
