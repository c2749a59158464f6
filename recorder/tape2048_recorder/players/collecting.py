"""Games for the training of an n-tuple critic, played and not recorded: every few boards, in memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.resources import ram_available
from tape2048.critic.facts import PlayedBy
from tape2048.critic.ntuple.games import Games, GameSource, split_games
from tape2048.errors import ConfigError
from tape2048.session.labels import exponents_of
from tape2048_recorder.game.loop import GAMES_PLAYED, Buffer, play_into
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.evaluation import play_in_threads
from tape2048_recorder.players.registry import check_player, make_player, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from tape2048.critic.ntuple.config import NTupleCriticConfig
    from tape2048_recorder.players.batch import ArgValue

#: Boards that a buffer holds at first.
_ROWS = 1 << 14

#: Memory of a game without its boards: seed, run, part, and as much again for temporaries.
_GAME_BYTES = 128


def play_games(
    player: Any,
    seeds: npt.NDArray[np.uint64],
    *,
    stride: int,
    threads: int,
    progress: Callable[[int, int], object] | None = None,
) -> Games:
    """Play a game from each seed, and keep every ``stride``-th board of each.

    Args:
        player: a built-in one, from :func:`~tape2048_recorder.players.registry.make_player`.
        seeds: of the games, ``u64[R]``, in the order of the result.
        stride: 1: all boards before a move.
        threads: at least 1.
        progress: called with the number of games done and of all. What it raises ends the games.

    Raises:
        ConfigError: more boards than fit into memory.
    """
    parts: dict[int, tuple[Any, Any]] = {}
    held = 0

    def play(player: Any, part: slice) -> int:
        nonlocal held
        count = part.stop - part.start
        buffer = Buffer(rows_max=_ROWS, runs_max=count, record_action=False, sample_rate=stride)
        buffer.give(np.arange(count, dtype=np.uint64), seeds[part])
        while play_into(buffer, player, steps_max=1 << 30) != GAMES_PLAYED:
            buffer.grow()
        parts[part.start] = buffer.boards.copy(), buffer.runs.copy()
        held += buffer.boards.nbytes
        _check_memory(len(seeds), 2 * held)  # they are joined, and then split
        return buffer.steps_played

    play_in_threads(player, len(seeds), threads, play, progress)
    boards, runs = (np.concatenate(some) for some in zip(*(parts[at] for at in sorted(parts)), strict=True))
    starts = np.append(0, np.cumsum(runs["rows"].astype(np.int64)))
    return Games(boards, starts, exponents_of(runs["highest_tile"]))


def played_games(
    config: NTupleCriticConfig,
    name: str,
    args: Mapping[str, ArgValue],
    games: int,
    progress: Callable[[int, int], object] | None = None,
) -> GameSource:
    """Play the games of a training; the same seed gives the games that a recorder with it would play.

    Args:
        config: the training's settings; its seed decides the games.
        name: of a built-in player.
        args: its parameters.
        games: their number, at least 1.
        progress: as for :func:`play_games`.

    Raises:
        ConfigError: a batched player, or an invalid parameter.
        ConfigError: no such player or parameter.
        EmptyCorpusError: a part of the split without games.
    """
    player = make_player(name, check_player(name, args))
    _check_memory(games, games * _GAME_BYTES)
    seeds = game_seeds(config.seed, np.arange(games, dtype=np.uint64))
    found = play_games(player, seeds, stride=config.stride, threads=config.thread_count, progress=progress)
    sha256 = player_sha256(name, player)
    given = ",".join(f"{key}={value}" for key, value in args.items())
    played = PlayedBy(f"{name}:{given}" if given else name, sha256, games)
    identity = hashlib.sha256(f"{sha256} {config.seed} {games} {config.stride}".encode()).hexdigest()
    return split_games(found, seeds, played, config, identity)


def _check_memory(games: int, needed: int) -> None:
    free = ram_available()
    if needed > free:
        raise ConfigError(
            f"{games:,} games need at least {needed / 1e9:,.1f} GB more, and {free / 1e9:,.1f} GB are free",
            hint="fewer games, fewer of their rows (--stride), or games that are recorded first (--data)",
        )
