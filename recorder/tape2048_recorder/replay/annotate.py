"""What a player thinks of all four moves: branch values for runs that were recorded without.

A kind of player takes part by one entry of :data:`VALUERS`: a function that makes, from the player's
parameters, something that values boards. It is called on one thread; each thread makes its own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tape2048.errors import ConfigError
from tape2048.game.rules import legal_masks
from tape2048.runs.a2run2 import RunV2
from tape2048_recorder.players.registry import check_player, make_player

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tape2048.runs.run import Run

__all__ = ["VALUERS", "Annotator", "Valuer"]


class Valuer(Protocol):
    """Values the moves of boards."""

    def __call__(self, boards: NDArray[np.uint64], /) -> NDArray[np.float32]:
        """``f32[n, 4]`` (UDLR) for ``u64[n]``: on any scale, the greater the better; 0 for illegal moves."""


def _expectimax(args: Mapping[str, Any]) -> Valuer:
    from tape2048_recorder.players.expectimax import move_values

    player = make_player("expectimax", args)
    return lambda boards: move_values(player, boards)


def _ntuple(args: Mapping[str, Any]) -> Valuer:
    from tape2048_recorder.players.ntuple import move_values

    player = make_player("ntuple", args)
    return lambda boards: np.nan_to_num(move_values(player, boards), nan=0.0)


#: The kinds of player whose values are known, and what makes a :class:`Valuer` of their parameters.
VALUERS: dict[str, Callable[[Mapping[str, Any]], Valuer]] = {"expectimax": _expectimax, "ntuple": _ntuple}


class Annotator:
    """Gives runs the branch values of a player; safe to be called on several threads.

    Args:
        name: of the player, one of :data:`VALUERS`.
        args: its parameters.
        replace: compute anew what a run has already.

    Raises:
        ConfigError: no such player, or one that values no moves; a parameter is wrong.
    """

    def __init__(self, name: str, args: Mapping[str, Any], *, replace: bool = False) -> None:
        self._args = check_player(name, args)
        if name not in VALUERS:
            raise ConfigError(
                f"player {name!r} chooses moves and values none", hint=f"one of: {', '.join(VALUERS)}"
            )
        self._make = VALUERS[name]
        self._replace = replace
        self._local = threading.local()

    def __call__(self, run: Run) -> RunV2:
        """The run with values at every step, normalized as by :func:`tape2048.runs.a2run2.normalize`."""
        whole = RunV2.from_run(run)
        if len(run) == 0 or (not self._replace and bool(whole.has_branches.all())):
            return whole
        valuer = getattr(self._local, "valuer", None)
        if valuer is None:
            valuer = self._local.valuer = self._make(self._args)
        boards = np.array(run.boards, np.uint64)
        legal = legal_masks(boards)
        fresh = RunV2(
            run.states, run.moves, run.meta, valuer(boards), legal, np.ones(len(run), np.bool_)
        ).normalize_branches()
        if self._replace or not whole.has_branches.any():
            return fresh
        has = whole.has_branches
        return RunV2(
            run.states,
            run.moves,
            run.meta,
            np.where(has[:, None], whole.branch_values, fresh.branch_values),
            np.where(has, whole.branch_legal, fresh.branch_legal),
            np.ones(len(run), np.bool_),
        )
