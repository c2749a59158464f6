"""The learning curves that a training leaves beside its critics, as far as they can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape2048.errors import StorageError
from tape2048.io.training_directory import METRICS

if TYPE_CHECKING:
    from pathlib import Path

#: Points of a curve that are drawn.
POINTS_MAX = 500


class Curves(NamedTuple):
    """Losses by optimizer step.

    Attributes:
        train: (step, loss).
        val: (step, loss).
        best_step: of the validation that was the best; None where none was.
    """

    train: list[tuple[int, float]]
    val: list[tuple[int, float]]
    best_step: int | None


class _Line(msgspec.Struct):
    kind: str
    step: int
    loss: float | None = None
    best: bool = False


def read_curves(critic: Path) -> Curves | None:
    """The curves of the training that made a critic, whose directory stands in the training's own.

    They are an ornament of a report: a file that is missing, or lines of it that are torn or not known, are
    passed over.

    Returns:
        None where there is no point of any.
    """
    for directory in (critic, critic.absolute().parent):
        path = directory / METRICS
        if path.is_file():
            return _curves(path)
    return None


def _curves(path: Path) -> Curves | None:
    from tape2048.io.reading import read_path

    try:
        lines = read_path(path).tobytes().splitlines()
    except StorageError:
        return None
    points: dict[str, dict[int, float]] = {"train": {}, "val": {}}
    best: int | None = None
    decoder: Any = msgspec.json.Decoder(_Line)
    for raw in lines:
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if line.kind in points and line.loss is not None:
            points[line.kind][line.step] = line.loss
            best = line.step if line.kind == "val" and line.best else best
    if not any(points.values()):
        return None
    train, val = (_thinned(sorted(points[kind].items())) for kind in ("train", "val"))
    return Curves(train, val, best)


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most so many points, the last one among them, each the mean of its stretch."""
    stretch = -(-len(points) // POINTS_MAX) or 1
    parts = [points[first : first + stretch] for first in range(0, len(points), stretch)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]
