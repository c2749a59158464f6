"""The critic's probabilities of games in lists: halfway through each game, from one row of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.conversion.session_runs import boards_of
from tape2048.errors import ModelError, TapeError
from tape2048.session.session import Session
from tape2048_tools.viewer.collection import find_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048_tools.viewer.collection import Entry
    from tape2048_tools.viewer.judges import Judges

#: Games of a session that stand for it.
SAMPLE_GAMES = 8


def opinions(wanted: Sequence[tuple[Entry, Sequence[int]]], judges: Judges) -> dict[str, Any]:
    """Return the mean probability of each tile over games halfway through.

    Args:
        wanted: for each answer a session, and the ids of its runs: at least one row of one is needed.
        judges: has the critic.

    Returns:
        ``thresholds``; ``odds``, for each of ``wanted`` a probability for each tile, or None; ``remark``: on
        players that the critic does not judge; ``unread``: the first session that could not be read.
    """
    runs: dict[str, list[int]] = {}
    entries: dict[str, Entry] = {}
    for entry, ids in wanted:
        entries[entry.id] = entry
        runs.setdefault(entry.id, []).extend(ids)
    found: dict[str, dict[int, NDArray[np.float32]]] = {}
    unread = None
    for key, entry in entries.items():
        try:
            ids, boards = middle_boards(entry, runs[key])
        except (TapeError, OSError) as error:
            unread = unread or str(error)
            continue
        found[key] = dict(zip(ids, require_opinion(judges, boards), strict=True))
    return {
        "thresholds": list(judges.critic.thresholds),
        "odds": [_mean(found.get(entry.id, {}), ids) for entry, ids in wanted],
        "remark": judges.remark([entry.meta for entry in entries.values()]),
        "unread": unread,
    }


def middle_boards(entry: Entry, ids: Sequence[int]) -> tuple[list[int], NDArray[np.uint64]]:
    """Return those of some runs that have rows, and the board in the middle of each, ``u64[n]``.

    Raises:
        TapeError: the session is damaged or gone, or has no such run.
    """
    session = Session.open(entry.path)
    order = np.argsort(session.runs["id"], kind="stable")
    table = session.runs[order]
    kept, rows = [], []
    for run in ids:
        owned = session.numbers_of(int(order[find_run(table, run)]))
        numbers = range(owned.start, owned.stop) if isinstance(owned, slice) else owned
        if len(numbers):
            kept.append(run)
            rows.append(numbers[len(numbers) // 2])
    records = session.get_batch(np.array(rows, np.int64))
    return kept, boards_of(records, "a row", session.path)


def require_opinion(judges: Judges, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return the critic's probabilities ``f32[n, T]``; raise ModelError where it takes no boards."""
    found = judges.opinion(boards)
    if found is None:
        raise ModelError("this critic takes embeddings, and the pages have boards")
    return found


def _mean(found: Mapping[int, NDArray[np.float32]], ids: Sequence[int]) -> list[float] | None:
    known = [found[run] for run in ids if run in found]
    return np.mean(known, axis=0).tolist() if known else None


def sample_of(runs: NDArray[np.void], *, newest: bool = False) -> list[int]:
    """Return the ids of a few runs of a table: evenly spread, or the last ones."""
    last = len(runs) - 1
    first = max(0, len(runs) - SAMPLE_GAMES) if newest else 0
    places = np.linspace(first, last, min(SAMPLE_GAMES, len(runs))).round().astype(np.int64)
    found: list[int] = runs["id"][places].tolist()
    return found
