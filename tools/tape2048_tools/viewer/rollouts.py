"""Whole games from legal moves of a board, played in the background while a page asks for them."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from tape2048.base.intervals import Z95, wilson
from tape2048.base.resources import available_cores
from tape2048_recorder.evaluation.calibrating import play_moves_on

if TYPE_CHECKING:
    from collections.abc import Collection

#: Most games to add at a time.
MORE_MAX = 1000

#: Games that are played between two looks at the clock.
_AT_ONCE = 10

#: Longest time to play after a request for more games, and after the last question for them, in seconds.
_PLAY_S, _ASKED_S = 120.0, 10.0

_MOVES = "Up", "Down", "Left", "Right"

_one_at_a_time = threading.Lock()


def _difference(best: dict[str, Any], other: dict[str, Any]) -> str:
    more, error = best["score"] - other["score"], Z95 * math.hypot(best["error"], other["error"])
    chance = "" if more > error else ", which can be chance"
    return f"{_MOVES[best['move']]} scores {more:,.0f} ± {error:,.0f} more{chance}."


class PlayingOn:
    """Whole games from legal moves of a packed board by a compiled player; without ``moves``, from all."""

    def __init__(self, board: int, player: Any, moves: Collection[int] = ()) -> None:
        self._board, self._player, self._moves = board, player, moves or range(4)
        self._lock = threading.Lock()
        self._sums: dict[int, list[float]] = {}  # by move: scores, their squares, games that reached the tile
        self._games = self._wanted = 0
        self._running = False
        self._until = self._asked = self._played_s = 0.0
        self._error: Exception | None = None

    def document(self, more: int = 0) -> dict[str, Any]:
        """Return the results so far, and start ``more`` games from each move."""
        with self._lock:
            self._asked = time.monotonic()
            error, self._error = self._error, None
            if error is not None:
                raise error
            if more:
                self._wanted, self._until = self._games + more, self._asked + _PLAY_S
                if not self._running:
                    self._running = True
                    threading.Thread(target=self._play, daemon=True).start()
            moves = [self._result(move, *sums) for move, sums in self._sums.items()]
            moves.sort(key=lambda one: -one["score"])
            return {
                "moves": moves, "difference": _difference(*moves) if len(moves) == 2 else "",
                "games": self._games, "wanted": self._wanted, "running": self._running,
                "seconds": self._played_s,
                "tile": 2 << max(self._board >> 4 * cell & 15 for cell in range(16)),
            }  # fmt: skip

    def _result(self, move: int, total: float, squares: float, reached: float) -> dict[str, Any]:
        games, score = self._games, total / self._games
        error = (max(squares / games - score**2, 0.0) / (games - 1)) ** 0.5
        return {"move": move, "score": score, "error": error, **wilson(int(reached), games)._asdict()}

    def _play(self) -> None:
        try:
            with _one_at_a_time:
                while self._goes_on():
                    began = time.monotonic()
                    games = min(_AT_ONCE, max(2, self._wanted - self._games))
                    found = play_moves_on(
                        self._board, self._player, games=games, seed=self._games, threads=available_cores(),
                        moves=self._moves,
                    )  # fmt: skip
                    with self._lock:
                        for one in found:
                            squares = one.error**2 * games * (games - 1) + games * one.score**2
                            new = one.score * games, squares, one.reached
                            known = self._sums.get(one.move, [0.0] * 3)
                            self._sums[one.move] = [a + b for a, b in zip(known, new, strict=True)]
                        self._games += games
                        self._played_s += time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - the next question reports it
            with self._lock:
                self._error, self._running = error, False

    def _goes_on(self) -> bool:
        with self._lock:
            now = time.monotonic()
            goes_on = self._games < self._wanted and now < self._until and now - self._asked < _ASKED_S
            self._running = goes_on
        return goes_on
