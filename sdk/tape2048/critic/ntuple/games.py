"""The games that an n-tuple critic learns from: every few boards of each game, and how far it came."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048.base.resources import ram_available
from tape2048.critic.facts import PlayedBy, check_one_player, players_of
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.game.rules import exps_to_boards
from tape2048.rows.splits import parts_of_seeds
from tape2048.session.labels import exponents_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tape2048.corpus import Corpus
    from tape2048.critic.ntuple.config import NTupleCriticConfig

    Progress = Callable[[int, int], object]

#: Share of the free memory that boards may take; the tables and other programs need the rest.
_RAM_SHARE = 1 / 4

#: Boards fetched at a time.
_FETCHED = 1 << 20

#: Boards of the pieces in which games are learned from. The order within a piece is random, so free memory
#: must not decide where one ends: a resumed training would learn other things.
_PIECE_BOARDS = 1 << 26


class Games(NamedTuple):
    """Every few boards of some games.

    Attributes:
        boards: ``u64[N]``, game by game, in step order.
        starts: ``i64[R + 1]``, the first board of each game, and N.
        highest: ``u8[R]``, the exponent of each game's highest tile.
    """

    boards: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    highest: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of games, R."""
        return len(self.highest)

    def between(self, begin: int, end: int) -> Games:
        """Return the games from number ``begin`` to ``end``, as views."""
        first, last = self.starts[begin], self.starts[end]
        return Games(self.boards[first:last], self.starts[begin : end + 1] - first, self.highest[begin:end])

    def take(self, chosen: npt.NDArray[np.bool_]) -> Games:
        """Return the games under a mask ``bool[R]``."""
        counts = np.diff(self.starts)
        return Games(
            self.boards[np.repeat(chosen, counts)],
            np.append(0, np.cumsum(counts[chosen])),
            self.highest[chosen],
        )


class GameSource(NamedTuple):
    """The games of a training, and their facts.

    Attributes:
        chunks: yields the games of the training part from a piece on, in pieces that fit into memory; called
            for each pass.
        val: those of the validation part.
        train_games: number of games of the training part.
        highest: exponents of their highest tiles, ``u8[R]``.
        players: whose games they are.
        identity: of all games, before the split.
    """

    chunks: Callable[[int], Iterator[Games]]
    val: Games
    train_games: int
    highest: npt.NDArray[np.uint8]
    players: list[PlayedBy]
    identity: str


def read_games(corpus: Corpus, stride: int, progress: Progress | None = None) -> Games:
    """Read every ``stride``-th row of each run of a corpus, from its first on.

    Args:
        corpus: the runs.
        stride: 1: all rows.
        progress: called with the number of boards read so far, and of all.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.critic.ntuple.games import read_games
        >>> corpus = Corpus.open("selfplay")
        >>> len(read_games(corpus, 1).boards) == len(corpus)
        True
    """
    counts = -(-corpus.row_counts // stride)
    starts = np.append(0, np.cumsum(counts))
    boards = np.empty(starts[-1], np.uint64)
    shift = corpus.row_starts[:-1] - stride * starts[:-1]
    for first in range(0, len(boards), _FETCHED):
        numbers = np.arange(first, min(first + _FETCHED, len(boards)))
        runs = np.searchsorted(starts, numbers, "right") - 1
        boards[numbers] = exps_to_boards(corpus.tokens(stride * numbers + shift[runs]))
        if progress is not None:
            progress(first + len(numbers), len(boards))
    return Games(boards, starts, exponents_of(corpus.runs["highest_tile"]))


def corpus_games(config: NTupleCriticConfig, progress: Progress | None = None) -> GameSource:
    """Open the sessions of a training, and split them.

    Games whose boards do not fit into a quarter of the free memory are read piece by piece in each pass.

    Args:
        config: the settings of the training.
        progress: as for :func:`read_games`.

    Raises:
        EmptyCorpusError: no session, no run, or a part without runs.
        ConfigError: an invalid share, or games of several players.
        TapeError: as for :meth:`Corpus.open`.

    Example:
        >>> from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games
        >>> source = corpus_games(NTupleCriticConfig(data="selfplay"))
        >>> source.train_games > len(source.val) > 0
        True
    """
    from tape2048.corpus import Corpus

    corpus = Corpus.open(
        config.data,
        where=config.where or None,
        load="mmap",
        cache=config.cache or None,
        cache_max_mb=config.cache_max_mb,
        progress=False,
    )
    players = players_of(corpus)
    check_one_player(players, mixed=config.mixed_players)
    try:
        parts = corpus.split(salt=config.split_salt, **config.fractions)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    train, val = parts["train"], parts["val"]
    ends = np.cumsum(-(-train.row_counts // config.stride))
    begins = np.flatnonzero(np.diff((np.maximum(ends, 1) - 1) // _PIECE_BOARDS, prepend=-1))
    pieces = list(pairwise([*begins.tolist(), len(ends)]))
    fits = 8 * int(ends[-1]) <= ram_available() * _RAM_SHARE
    held = read_games(train, config.stride, progress) if fits else None

    def chunks(first: int) -> Iterator[Games]:
        numbers = np.arange(len(ends))
        for begin, end in pieces[first:]:
            if held is None:
                yield read_games(train.where((begin <= numbers) & (numbers < end)), config.stride)
            else:
                yield held.between(begin, end)

    return GameSource(
        chunks,
        read_games(val, config.stride),
        len(train.runs),
        exponents_of(train.runs["highest_tile"]),
        players,
        corpus.identity,
    )


def split_games(
    games: Games, seeds: npt.NDArray[np.uint64], player: PlayedBy, config: NTupleCriticConfig, identity: str
) -> GameSource:
    """Split games that were played for a training and not recorded, as their recordings would be.

    Args:
        games: all of them.
        seeds: of the games, ``u64[R]``.
        player: theirs.
        config: the split.
        identity: of the games.

    Raises:
        EmptyCorpusError: a part without games.
    """
    part = parts_of_seeds(seeds, player.sha256, list(config.fractions.values()), config.split_salt)
    train, val = (games.take(part == list(config.fractions).index(name)) for name in ("train", "val"))
    if not (len(train) and len(val)):
        raise EmptyCorpusError(
            f"found {len(train)} games to learn from and {len(val)} for validation", hint="more games"
        )
    return GameSource(lambda first: iter([train][first:]), val, len(train), train.highest, [player], identity)
