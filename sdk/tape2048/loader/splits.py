"""Splits of runs into training and validation parts, by the identity of runs, from the run table alone.

A run's identity is the SHA-256 of its player and its seed. It stays the same in copied and merged sessions. A
hash of the identity determines the part, so a game is never in two parts, and never changes its part when
sessions are added::

    key  = the first 8 bytes of SHA-256("tape2048 split 1" NUL salt NUL player_sha256), as a little-endian u64
    u    = mix64(mix64(seed + key)) / 2**64
    part = the first part with a cumulated share above u

Sums are modulo 2**64, and ``mix64`` is SplitMix64's finalizer. Games that start from the same given board
share positions, with any player. For these games, the board replaces the seed, and ``player_sha256`` is
empty.
"""

from __future__ import annotations

import hashlib
import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.jit.mix import mix64
from tape2048.loader.run_columns import facts_of_runs
from tape2048.session.run_table import ordinals_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.loader.run_columns import Named
    from tape2048.session.session import Session


#: Tolerance for the sum of the shares: 0.7 + 0.2 + 0.1 is not 1 in floating point.
TOLERANCE = 1e-6


def check_shares(shares: Sequence[Any], shown: object) -> None:
    """Raise TypeError or ValueError unless shares are positive numbers whose sum is 1."""
    if not all(isinstance(share, numbers.Real) for share in shares):
        raise TypeError(f"shares {shown}; expected numbers")
    if not shares or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > TOLERANCE:
        raise ValueError(f"shares {shown}; expected positive shares with the sum 1")


def run_hash(runs: NDArray[np.void], sessions: Sequence[Named], salt: str = "") -> NDArray[np.uint64]:
    """Hash the identity of each run with a salt: ``u64[R]``, uniform."""
    facts, index = facts_of_runs(runs, sessions)
    players = [each.get("player_sha256") for each in facts]
    keys = np.array([player_key(sha if isinstance(sha, str) else "", salt) for sha in players], np.uint64)
    numbers = runs["seed"].copy()
    for ordinal, session in enumerate(sessions):
        if (dataset := getattr(session, "dataset", None)) is not None:
            mine = runs["session"] == ordinal
            numbers[mine] = dataset.table.hash_numbers()[dataset.table.ordinals(runs["id"][mine])]
    # Mixed twice, since seeds are often consecutive, and the keys of two salts may be close.
    hashed: NDArray[np.uint64] = mix64(mix64(numbers + keys[index]))
    return hashed


def split_hash(runs: NDArray[np.void], sessions: Sequence[Session], salt: str = "") -> NDArray[np.uint64]:
    """Return the hashes that determine the parts of runs, ``u64[R]``: equal for runs from one given board."""
    hashes = run_hash(runs, sessions, salt)
    for ordinal, session in enumerate(sessions):
        if (boards := session.start_boards) is not None:
            mine = np.flatnonzero(runs["session"] == ordinal)
            starts = boards[ordinals_of(session.runs["id"], runs["id"][mine])]
            hashes[mine] = mix64(mix64(starts + np.uint64(player_key("", salt))))
    return hashes


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
