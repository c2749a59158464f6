"""Games that several sessions hold, such as a session beside its copy in the other storage, or a merged one.

Such games have one player, one seed and one outcome. Seeds alone tell nothing without the player's SHA-256:
games of such sessions are the same if the run tables are equal as a whole.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.base.text import counted, printable
from tape2048.players import facts_of_runs
from tape2048.rows.buffers import gather_runs
from tape2048.rows.splits import run_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.session.session import Session

_OUTCOME = ("steps", "max_score", "highest_tile")
_NAMED = 5  # pairs that a message names


class Doubled(NamedTuple):
    """Games of a session that another one holds, too, by the ordinals of both; the other one serves them."""

    session: int
    other: int
    games: int


def find_doubled(
    runs: NDArray[np.void], sessions: Sequence[Session]
) -> tuple[NDArray[np.bool_], list[Doubled]]:
    """Find the runs that another session serves: one on tape, or else the one with more rows, or the first.

    Args:
        runs: rows of the run table of a corpus.
        sessions: those that ``runs["session"]`` indexes.

    Returns:
        A mask of these runs, ``bool[R]``, and their sessions.
    """
    doubled = np.zeros(len(runs), np.bool_)
    if len(sessions) < 2:
        return doubled, []
    hashes = run_hash(runs, sessions)
    facts, index = facts_of_runs(runs, sessions)
    is_known = np.array([isinstance(each.get("player_sha256"), str) for each in facts])[index]
    for ordinal in np.unique(runs["session"][~is_known]).tolist():
        table = sessions[ordinal].runs
        digest = hashlib.sha256(b"".join(table[name].tobytes() for name in ("id", "seed", *_OUTCOME)))
        mine = ~is_known & (runs["session"] == ordinal)
        hashes[mine] += np.uint64(int.from_bytes(digest.digest()[:8], "little"))
    order = np.argsort(hashes, kind="stable")
    equal = np.zeros(len(runs), np.bool_)
    equal[:-1] = hashes[order][1:] == hashes[order][:-1]
    order = order[equal | np.roll(equal, 1)]
    some, off_tape = runs[order], np.array([one.tape is None for one in sessions])
    outcome = [hashes[order], *(some[name] for name in _OUTCOME)]
    ranks = off_tape[some["session"]], -some["rows"].astype(np.int64), some["session"]
    at = np.lexsort((*ranks[::-1], *outcome))
    is_first = np.ones(len(at), np.bool_)
    is_first[1:] = np.logical_or.reduce([each[at][1:] != each[at][:-1] for each in outcome])
    session = some["session"][at].astype(np.int64)
    other = session[np.maximum.accumulate(np.where(is_first, np.arange(len(at)), 0))]
    doubled[order[at]] = session != other
    pairs, games = np.unique(np.stack((session, other))[:, session != other], axis=1, return_counts=True)
    return doubled, [Doubled(*each) for each in zip(*pairs.tolist(), games.tolist(), strict=True)]


def describe_doubled(several: Sequence[Doubled], sessions: Sequence[Session]) -> str:
    """Return the sessions that hold games twice, as text."""
    places = [printable(getattr(one, "address", one.path)) for one in sessions]  # names may be equal
    texts = [
        f"{counted(one.games, 'game')} of {places[one.session]}, also in {places[one.other]}"
        for one in several[:_NAMED]
    ]
    more = f"; and {len(several) - _NAMED} more pairs" if len(several) > _NAMED else ""
    return "; ".join(texts) + more


def distinct_runs(sessions: Sequence[Session]) -> list[NDArray[np.bool_]]:
    """Return a mask of the runs of each session that no other one serves; log a warning of the rest."""
    doubled, several = find_doubled(gather_runs(sessions), sessions)
    if several:
        logging.getLogger("tape2048").warning("left out: %s", describe_doubled(several, sessions))
    return np.split(~doubled, np.cumsum([len(one.runs) for one in sessions])[:-1])
