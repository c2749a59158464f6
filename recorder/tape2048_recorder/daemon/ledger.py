"""The ledger of games: which worker holds which, so that each is recorded once, whichever workers die.

A game's id determines it (through its seed), so a dead worker's game goes to another worker and turns out the
same.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from tape2048_recorder.daemon.instance import GameState

Range = tuple[int, int]


class Ledger:
    """Hands out ids of one lease, in ranges ``[first, end)``."""

    def __init__(
        self, state: GameState, *, games_max: int | None, workers: int, in_order: bool = True
    ) -> None:
        self._in_order = in_order
        self._state = state
        self._next = state.next_id
        self._free: deque[Range] = deque(state.free)
        self._left = games_max
        self._workers = workers
        self._held: dict[int, deque[Range]] = {}
        self.confirmed = 0

    def limit(self, games_max: int | None) -> None:
        """Limit the total of games, including those handed out so far; None: no limit."""
        held = sum(end - first for ranges in self._held.values() for first, end in ranges)
        self._left = None if games_max is None else max(games_max - self.confirmed - held, 0)

    def take(self, worker: int, want: int) -> Range | None:
        """Hand up to ``want`` games to a worker, as ``(first_id, count)``; None where none are left."""
        if self._left is not None:
            want = min(want, -(-self._left // (2 * self._workers)))
        if not self._free:
            want = min(want, max(self._state.end - self._next, 0))
        if want == 0:
            return None
        if self._free:
            first, end = self._free.popleft()
            if end - first > want:
                self._free.appendleft((first + want, end))
            count = min(want, end - first)
        else:
            first, count = self._next, want
            self._next += count
        if self._left is not None:
            self._left -= count
        self._held.setdefault(worker, deque()).append((first, first + count))
        return first, count

    def confirm(self, worker: int, ids: npt.NDArray[np.uint64]) -> bool:
        """Remove games that a worker has recorded; return False if they are not the next ones it held."""
        held = self._held.get(worker, deque())
        if not self._in_order:
            return self._confirm_any(held, ids)
        at = 0
        while at < len(ids):
            if not held:
                return False
            first, end = held.popleft()
            count = min(end - first, len(ids) - at)
            if not np.array_equal(ids[at : at + count], np.arange(first, first + count, dtype=np.uint64)):
                return False
            if first + count < end:
                held.appendleft((first + count, end))
            at += count
        self.confirmed += len(ids)
        return True

    def _confirm_any(self, held: deque[Range], ids: npt.NDArray[np.uint64]) -> bool:
        """Remove games that ended in any order; return False if one was not held, or is repeated."""
        have = np.concatenate(
            [np.empty(0, dtype=np.uint64), *(np.arange(*span, dtype=np.uint64) for span in held)]
        )
        left = np.setdiff1d(have, ids)
        if len(left) + len(ids) != len(have):
            return False
        breaks = np.flatnonzero(np.diff(left) != 1) + 1
        held.clear()
        held.extend((int(part[0]), int(part[-1]) + 1) for part in np.split(left, breaks) if len(part))
        self.confirmed += len(ids)
        return True

    def release(self, worker: int) -> int:
        """Take back a worker's unrecorded games; return their number."""
        back = self._held.pop(worker, deque())
        self._free.extendleft(reversed(back))
        count = sum(end - first for first, end in back)
        if self._left is not None:
            self._left += count
        return count

    @property
    def next_id(self) -> int:
        """The first id that was never handed out."""
        return self._next

    @property
    def exhausted(self) -> bool:
        """Whether no game is left to hand out (some may still be in play)."""
        return self._left == 0 or self.used_up

    @property
    def used_up(self) -> bool:
        """Whether every id of the lease is handed out."""
        return not self._free and self._next >= self._state.end

    def why_exhausted(self, games_max: int | None) -> str:
        """Return which limit left no game, in words."""
        if self.used_up:
            return f"lease {self._state.lease} is used up: no id is left"
        return f"max_games = {games_max} was reached"

    def state(self) -> GameState:
        """Return the progress to remember: exact where no worker holds games."""
        return GameState(self._state.seed, self._next, tuple(self._free), self._state.lease)
