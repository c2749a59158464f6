"""The state of recorders and trainings, from the files that they write: nothing is asked of them."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.errors import TapeError
from tape2048.training import METRICS, read_metrics
from tape2048_recorder.status.status_file import instances, judge, read_snapshot
from tape2048_tools.viewer.collection import Collection, Entry, id_of

if TYPE_CHECKING:
    from pathlib import Path


#: Points of a curve.
POINTS_MAX = 400

#: What can count the progress of a training: the first of these in a line is the axis of its curves.
AXES = ("step", "moves", "rows")

#: Bytes at the end of a file of metrics that hold its last line.
_TAIL_BYTES = 65_536


def live_document(collection: Collection) -> dict[str, Any]:
    """Return the present state of the recorders and trainings below some directories."""
    recorders: list[dict[str, Any]] = []
    for root in collection.roots:
        try:
            names = instances(root)
        except TapeError as error:
            recorders.append({"id": id_of(str(root)), "root": root.name, "error": str(error)})
            continue
        recorders += [_recorder(root, name) for name in names]
    trainings = [
        {"id": training_id, "name": path.name, **_last_line(path / METRICS)}
        for training_id, path in collection.trainings().items()
    ]
    return {"recorders": recorders, "trainings": trainings}


def recorder_of(entry: Entry) -> str:
    """Return the id of the recorder that wrote a session, as in :func:`live_document`."""
    return id_of(f"{entry.path.parent}\0{entry.meta.get('instance')}")


def _recorder(root: Path, instance: str) -> dict[str, Any]:

    named = {"id": id_of(f"{root}\0{instance}"), "root": root.name, "instance": instance}
    try:
        snapshot = read_snapshot(root, instance)
    except TapeError as error:
        return {**named, "error": str(error)}
    verdict, status = judge(snapshot), snapshot.status
    return {
        **named,
        "state": verdict.state,
        "running": verdict.running,
        "age_s": verdict.age_s,
        "text": verdict.text,
        "player": snapshot.config.get("player"),
        "host": snapshot.host,
        "started_at": snapshot.started_at,
        "status": msgspec.to_builtins(status, str_keys=True),
    }


def _last_line(path: Path) -> dict[str, Any]:
    """Return the last line of metrics, and the time of its writing."""
    try:
        written_at, lines = path.stat().st_mtime, read_metrics(path, _TAIL_BYTES)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    last = lines[-1] if lines else {}
    return {
        "written_at": written_at,
        "last": {name: value for name, value in last.items() if isinstance(value, int | float | str)},
    }


def training_document(path: Path) -> dict[str, Any]:
    """Return the curves of a training directory: each number of its metrics by step, thinned."""
    curves: dict[str, list[tuple[float, float]]] = {}
    lines = []
    with contextlib.suppress(OSError):
        lines = read_metrics(path / METRICS)
    for line in lines:
        at = next((line[name] for name in AXES if _is_number(line.get(name))), None)
        if at is None:
            continue
        kind = line.get("kind")
        for name, value in _numbers(line, f"{kind} " if isinstance(kind, str) else ""):
            if name not in AXES:
                curves.setdefault(name, []).append((float(at), value))
    thinned = {
        name: points[:: max(1, math.ceil(len(points) / POINTS_MAX))] for name, points in curves.items()
    }
    told = {name: points for name, points in thinned.items() if len({value for _, value in points}) > 1}
    return {"name": path.name, "curves": told}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(line: dict[str, Any], prefix: str) -> list[tuple[str, float]]:
    """Return the numbers of a line by name; those of a mapping as ``name key``."""
    found = []
    for name, value in line.items():
        if _is_number(value):
            found.append((prefix + name, float(value)))
        elif isinstance(value, dict):
            found += [(f"{prefix}{name} {key}", float(one)) for key, one in value.items() if _is_number(one)]
    return found
