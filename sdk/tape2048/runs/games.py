"""Detection of games that sources of runs hold more than once.

A game of this program has its player and its seed in its engine's text: copies have the same player, seed,
score and highest tile. Other games are the same if all their boards are. If they have fewer than 32 moves,
their moves and their metadata must be the same, too.

:mod:`tape2048.loader.duplicates` compares run tables, without reading a board.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.loader.duplicates import Doubled, warn_of_doubled
from tape2048.runs.engine_text import identity_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

#: Different games can have the same boards for a few moves, if they start from the same given board.
_MOVES_MIN = 32


class GameKey(NamedTuple):
    """Hashes of a run's player, seed and outcome (None if player or seed is unknown), and of its boards."""

    identity: int | None
    boards: int

    @classmethod
    def of(cls, run: Any) -> GameKey:
        """Return the key of a :class:`tape2048.runs.Run`."""
        meta, known = run.meta, identity_of(run.meta.engine)
        game = None if known is None else (known.player_sha256, known.seed, meta.max_score, meta.highest_tile)
        facts = b"" if len(run) >= _MOVES_MIN else run.moves.tobytes() + repr(meta).encode()
        # Without the final board, which may be a guess.
        boards = _hash(np.ascontiguousarray(run.boards), facts)
        return cls(None if game is None else _hash(repr(game).encode()), boards)


def _hash(content: Any, more: bytes = b"") -> int:
    digest = hashlib.sha256(content)
    digest.update(more)
    return int.from_bytes(digest.digest()[:12], "little")


class SeenGames:
    """The games of several sources, each with the first run that holds it.

    Args:
        names: names of the sources for people.
        held: a data set or pack.dat that holds games already: their copies in the sources are left out.

    Attributes:
        left_out: number of runs of all sources that were left out.
    """

    def __init__(self, names: Sequence[str], held: Any = None) -> None:
        self._names, self._held = [*names, "" if held is None else str(held.sessions[0].path)], held
        self._first: dict[int, tuple[int, int]] = {}  # source and number of a game's first run
        self._waiting: dict[tuple[int, ...], list[int]] = {}  # held runs that have no key yet, by outcome
        if held is not None:
            for ordinal, outcome in enumerate(
                held.run_table.rows[["steps", "score", "highest_tile"]].tolist()
            ):
                self._waiting.setdefault(outcome, []).append(ordinal)
        self.left_out = 0

    def source_of(self, source: int, number: int, run: Any, key: GameKey) -> int:
        """Return the source of the first run of this game, and -1 if this run is the first."""
        outcome = run.meta.steps, run.meta.max_score, run.meta.highest_tile
        for ordinal in self._waiting.pop(outcome, ()):
            assert self._held is not None
            held = self._held.run(ordinal)
            self._find((len(self._names) - 1, ordinal), GameKey.of(held))
        first = self._find((source, number), key)
        return -1 if first == (source, number) else first[0]

    def _find(self, me: tuple[int, int], key: GameKey) -> tuple[int, int]:
        # Equal boards prove nothing if both identities are known.
        unknown, known = 2 * key.boards, 2 * key.boards + 1
        own, others = [unknown], [unknown, known]
        if key.identity is not None:
            own, others = [known, -key.identity], [unknown, -key.identity]
        for each in others:
            if self._first.get(each, me) != me:
                return self._first[each]
        for each in own:
            self._first.setdefault(each, me)
        return me

    def report(self, source: int, found: Counter[int]) -> None:
        """Log a warning of a source's copies, with their number by the source of the first run."""
        self.left_out += found.total()
        last = len(self._names) - 1
        warn_of_doubled(
            [
                Doubled(self._names[source], self._names[first], games, _WHY[first == last])
                for first, games in found.items()
            ]
        )


_WHY = {False: "comes first", True: "has them already"}
