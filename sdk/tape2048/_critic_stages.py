"""How the rows of an examination are divided; see :mod:`tape2048.critic_evaluation` for why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from tape2048._critic_results import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tape2048._critic_rows import Sample

__all__ = ["ALL", "UNDECIDED", "StageRows", "StagesBy", "check_by", "stages_of"]

#: How rows are divided into stages.
StagesBy: TypeAlias = Literal["moves", "tile", "progress"]

ALL, UNDECIDED = "all", "undecided"


class StageRows(NamedTuple):
    """A stage, and which rows it has.

    Attributes:
        stage: its name.
        rows: ``bool[N]``; None: those on which the tile in question does not stand yet.
    """

    stage: Stage
    rows: NDArray[np.bool_] | None


def check_by(by: str) -> None:
    """Raise ValueError unless ``by`` is one of :data:`StagesBy`."""
    if by not in get_args(StagesBy):
        raise ValueError(f"by={by!r}; expected 'moves', 'tile' or 'progress'")


def stages_of(sample: Sample, by: StagesBy) -> Iterator[StageRows]:
    """The stages in order, by what :func:`check_by` has checked."""
    yield StageRows(Stage(ALL, "all rows"), np.ones(len(sample.runs), np.bool_))
    if by == "moves":
        yield from _thirds(sample.steps)
    elif by == "progress":
        ends = np.array([1 / 3, 2 / 3])
        third = np.searchsorted(ends, sample.steps / sample.lengths[sample.runs], "right")
        for number, name in enumerate(("first third", "second third", "last third")):
            about = "of each game's moves; known only when it has ended"
            yield StageRows(Stage(name, about), third == number)
    else:
        for exponent in np.unique(sample.tiles).tolist():
            about = "highest tile on the board"
            yield StageRows(Stage(str(1 << exponent), about), sample.tiles == exponent)
    yield StageRows(Stage(UNDECIDED, "rows on which the tile does not stand yet"), None)


def _thirds(steps: NDArray[np.uint32]) -> Iterator[StageRows]:
    first, second = np.quantile(steps, [1 / 3, 2 / 3], method="inverted_cdf").astype(np.int64).tolist()
    last = int(steps.max())
    bounds = {"early": (0, first), "middle": (first + 1, second), "late": (second + 1, last)}
    for name, (low, high) in bounds.items():
        about = f"moves {low:,} to {high:,}" if low <= high else "no moves"
        yield StageRows(Stage(name, about), (steps >= low) & (steps <= high))
