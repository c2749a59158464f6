"""Splits of runs into training and validation parts, by the identity of runs, from the run table alone.

A run's identity is the SHA-256 of its player and its seed. It stays the same in copied and merged sessions. A
hash of the identity determines the part, so a game is never in two parts, and never changes its part when
sessions are added::

    key  = the first 8 bytes of SHA-256("tape2048 split 1" NUL salt NUL player_sha256), as a little-endian u64
    u    = mix64(mix64(seed + key)) / 2**64
    part = the first part with a cumulated share above u

Sums are modulo 2**64, and ``mix64`` is SplitMix64's finalizer. A game that starts from a given board has
positions like those of the game that the board came from, so it is split with the identity of that game. If
that game is unknown, the board replaces the seed, and ``player_sha256`` is empty: games from one board stay
together.
"""

from __future__ import annotations

import hashlib
import logging
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.text import counted
from tape2048.jit.mix import mix64
from tape2048.loader.run_columns import facts_of_runs
from tape2048.session.layout import START_BOARDS
from tape2048.session.run_table import ordinals_of
from tape2048.session.start_games import GAME_DTYPE, read_start_games

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.session.recorded_order import Named
    from tape2048.session.session import Session


#: Tolerance for the sum of the shares: 0.7 + 0.2 + 0.1 is not 1 in floating point.
TOLERANCE = 1e-6


def check_shares(shares: Sequence[Any], shown: object) -> None:
    """Raise TypeError or ValueError unless shares are positive numbers whose sum is 1."""
    if not all(isinstance(share, numbers.Real) for share in shares):
        raise TypeError(f"shares {shown}; expected numbers")
    if not shares or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > TOLERANCE:
        raise ValueError(f"shares {shown}; expected positive shares with the sum 1")


class RunIdentities(NamedTuple):
    players: list[str]  # SHA-256; empty if unknown
    player: NDArray[np.int64]  # of each run, `i64[R]`: an index into `players`
    seeds: NDArray[np.uint64]  # of each run, or another number that identifies the game of a player

    @classmethod
    def of(cls, runs: NDArray[np.void], sessions: Sequence[Named]) -> RunIdentities:
        facts, index = facts_of_runs(runs, sessions)
        players = [sha if isinstance(sha := each.get("player_sha256"), str) else "" for each in facts]
        seeds = runs["seed"].copy()
        for ordinal, session in enumerate(sessions):
            if (dataset := getattr(session, "dataset", None)) is not None:
                mine = runs["session"] == ordinal
                seeds[mine] = dataset.table.hash_numbers()[dataset.table.ordinals(runs["run_id"][mine])]
        return cls(players, index, seeds)

    def hash(self, salt: str) -> NDArray[np.uint64]:
        keys = np.array([player_key(player, salt) for player in self.players], np.uint64)
        # Mixed twice, since seeds are often consecutive, and the keys of two salts may be close.
        hashed: NDArray[np.uint64] = mix64(mix64(self.seeds + keys[self.player]))
        return hashed


def run_hash(runs: NDArray[np.void], sessions: Sequence[Named], salt: str = "") -> NDArray[np.uint64]:
    """Hash the identity of each run with a salt: ``u64[R]``, uniform."""
    return RunIdentities.of(runs, sessions).hash(salt)


def split_identities(runs: NDArray[np.void], sessions: Sequence[Session]) -> RunIdentities:
    """Return the identities by which runs are split: for a game from a given board, its game's."""
    found = RunIdentities.of(runs, sessions)
    for ordinal in np.unique(runs["session"]).tolist():
        session, mine = sessions[ordinal], np.flatnonzero(runs["session"] == ordinal)
        if not _has_given_starts(session):
            continue
        if (games := read_start_games(session)) is not None:
            table = np.frombuffer(games.games, GAME_DTYPE)
            drawn = table[mix64(runs["seed"][mine]) % np.uint64(len(table))]
            found.seeds[mine] = drawn["seed"]
            found.player[mine] = drawn["player"].astype(np.int64) + len(found.players)
            found.players.extend(games.players)
        elif (boards := session.start_boards) is not None:
            found.seeds[mine] = boards[ordinals_of(session.runs["run_id"], runs["run_id"][mine])]
            found.player[mine] = len(found.players)
            found.players.append("")
    return found


def split_hash(runs: NDArray[np.void], sessions: Sequence[Session], salt: str = "") -> NDArray[np.uint64]:
    """Return the hashes that determine the parts of runs, ``u64[R]``."""
    return split_identities(runs, sessions).hash(salt)


def warn_of_unknown_games(sessions: Sequence[Session]) -> None:
    """Log a warning if some start boards are of unknown games, which the other sessions may have."""
    unknown = [each for each in sessions if _has_given_starts(each) and read_start_games(each) is None]
    if 0 < len(unknown) < len(sessions):
        logging.getLogger("tape2048").warning(
            "split: %s with start boards of unknown games (the first: %s). If the other sessions have these "
            "games, similar positions are in different parts. To prevent that, record with --from and "
            "sessions, or with a file of `tape2048 player starts`",
            counted(len(unknown), "session"), unknown[0].name,
        )  # fmt: skip


def _has_given_starts(session: Session) -> bool:
    return START_BOARDS in session.meta and session.foreign is None and session.dataset is None


def parts_of_seeds(
    seeds: NDArray[np.uint64], player_sha256: str, shares: Sequence[float], salt: str = ""
) -> NDArray[np.int64]:
    """Return the part that each game of a player will be in once it is recorded: ``i64[R]``."""
    return parts_of_hashes(mix64(mix64(seeds + np.uint64(player_key(player_sha256, salt)))), shares)


def parts_of_hashes(hashes: NDArray[np.uint64], shares: Sequence[float]) -> NDArray[np.int64]:
    """Return the part of each hash, as an index into the shares."""
    # A double holds the upper 53 bits exactly.
    position = (hashes >> np.uint64(11)).astype(np.float64) / 2**53
    ends = np.cumsum(np.asarray(shares, np.float64))
    ends[-1] = 1.0
    return np.searchsorted(ends, position, "right")


def player_key(player_sha256: str, salt: str) -> int:
    """Return the number that a player and a salt add to the seeds of the player's games."""
    text = f"tape2048 split 1\0{salt}\0{player_sha256}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
