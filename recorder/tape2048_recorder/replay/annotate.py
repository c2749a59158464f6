"""Branch values: a player's values of all four moves, for runs recorded without them."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import ConfigError
from tape2048.game.rules import legal_masks
from tape2048.runs.a2run2 import RunV2
from tape2048_recorder.players.registry import check_player, make_player

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tape2048.runs.run import Run

#: Players whose module has ``move_values(player, boards)``, from ``u64[n]`` to ``f32[n, 4]`` (UDLR): greater
#: is better, on any scale.
VALUED = ("expectimax", "ntuple")


class Annotator:
    """Adds a player's branch values to runs; thread-safe."""

    def __init__(self, name: str, args: Mapping[str, Any], *, replace: bool = False) -> None:
        self._args = check_player(name, args)
        if name not in VALUED:
            raise ConfigError(f"player {name!r} has no move values", hint=f"one of: {', '.join(VALUED)}")
        self._name = name
        self._move_values = importlib.import_module(f"tape2048_recorder.players.{name}").move_values
        self._replace = replace
        self._local = threading.local()  # a player with a cache is for one thread

    def __call__(self, run: Run) -> RunV2:
        """Return the run with values at every step, normalised by :func:`tape2048.runs.a2run2.normalize`."""
        recorded = RunV2.from_run(run)
        if len(run) == 0 or (not self._replace and bool(recorded.has_branches.all())):
            return recorded
        if not hasattr(self._local, "player"):
            self._local.player = make_player(self._name, self._args)
        boards = np.array(run.boards, np.uint64)
        values = np.nan_to_num(self._move_values(self._local.player, boards), nan=0.0)
        everywhere = np.ones(len(run), np.bool_)
        computed = RunV2(run.states, run.moves, run.meta, values, legal_masks(boards), everywhere)
        computed = computed.normalize_branches()
        if self._replace:
            return computed
        has = recorded.has_branches
        values = np.where(has[:, None], recorded.branch_values, computed.branch_values)
        legal = np.where(has, recorded.branch_legal, computed.branch_legal)
        return RunV2(run.states, run.moves, run.meta, values, legal, everywhere)
