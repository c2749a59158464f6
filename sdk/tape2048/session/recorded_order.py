"""The order in which sessions were recorded.

A session's start is the time of the machine's clock, which can jump. Within a lease, a recorder starts games
in the order of their ids. A session whose ids are all above another session's was therefore recorded later,
even if its start is earlier. If the ids overlap, as those of games that were in progress when one session
followed another, the start decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.base.text import unix_s
from tape2048.session.layout import NUMBER_BITS, SESSION_NAME, name_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tape2048.players import Named


class Recorded(NamedTuple):
    """A session's name, its start (Unix seconds, or NaN) and the first and the last id of its games.

    ``lease`` is the instance, the seed and the number of the lease; None if the session has no games, or does
    not have all three.
    """

    name: str
    start_s: float
    lease: tuple[str, int, int] | None
    first_id: int
    last_id: int

    @classmethod
    def of(cls, name: str, start_s: float, facts: Mapping[str, Any], ids: tuple[int, int] | None) -> Recorded:
        """Return the place of a session with these facts; ``ids`` are the first and the last id, or None."""
        instance, seed = facts.get("instance"), facts.get("seed")
        if ids is None or ids[0] >> NUMBER_BITS != ids[1] >> NUMBER_BITS:
            return cls(name, start_s, None, 0, 0)
        is_known = isinstance(instance, str) and isinstance(seed, int)
        lease = (str(instance), int(seed or 0), ids[0] >> NUMBER_BITS) if is_known else None
        return cls(name, start_s, lease, *ids)


def session_start(session: Named) -> float:
    """Return the start from the session's facts or, without it, from its name; NaN if unknown."""
    match, told = SESSION_NAME.fullmatch(session.name), unix_s(session.meta.get("started_at"))
    return unix_s(match["ts"]) if match and math.isnan(told) else told


def order_of(sessions: Sequence[Named], ids: Sequence[NDArray[np.uint64]]) -> list[int]:
    """Return the ordinals of sessions with these ids of games, as :func:`recorded_order` does."""
    limits = [(int(mine.min()), int(mine.max())) if len(mine) else None for mine in ids]
    pairs = zip(sessions, limits, strict=True)
    return recorded_order([Recorded.of(one.name, session_start(one), one.meta, ends) for one, ends in pairs])


def recorded_order(sessions: Sequence[Recorded]) -> list[int]:
    """Return the ordinals of sessions, the session that was recorded first coming first.

    Example:
        >>> from tape2048.session.recorded_order import Recorded, recorded_order
        >>> facts = {"instance": "default", "seed": 1}
        >>> before = Recorded.of("20260101T120000Z_model=a", 3600.0, facts, (0, 9))
        >>> after = Recorded.of("20260101T110000Z_model=a", 0.0, facts, (10, 19))  # the clock was set back
        >>> recorded_order([after, before])
        [1, 0]
    """
    of_lease: dict[object, list[int]] = {}
    for ordinal, one in enumerate(sessions):
        of_lease.setdefault(one.lease or ordinal, []).append(ordinal)
    starts = [-math.inf if math.isnan(one.start_s) else one.start_s for one in sessions]
    for mine in of_lease.values():
        mine.sort(key=lambda i: (sessions[i].first_id, sessions[i].last_id))
        ended = sorted(mine, key=lambda i: sessions[i].last_id)
        latest, done = -math.inf, 0
        for i in mine:
            while sessions[ended[done]].last_id < sessions[i].first_id:
                latest, done = max(latest, starts[ended[done]]), done + 1
            starts[i] = max(starts[i], latest)

    def place(i: int) -> tuple[Any, ...]:
        one = sessions[i]
        return starts[i], one.lease or ("", 0, 0), one.first_id, name_key(one.name)

    return sorted(range(len(sessions)), key=place)
