"""Replay of recorded games: verification, unrecorded boards and moves, values, loss and luck of moves.

A program imports :class:`Judge` from here, and grades moves with :meth:`Judge.losses`.
"""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048_recorder.replay.judging import (
        GRADE_NAMES as GRADE_NAMES,
        Judge as Judge,
        Losses as Losses,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
