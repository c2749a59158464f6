"""The current state of recorders and trainings, from the files that they write."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.intervals import mean_error, wilson
from tape2048.errors import TapeError
from tape2048.files.durable import is_locked
from tape2048.files.training_directory import METRICS, read_metrics
from tape2048.game.moves import recover
from tape2048.game.rules import exps_to_boards
from tape2048.players import player_text
from tape2048.session.layout import name_key
from tape2048.session.tiles_shown import tiles_shown
from tape2048_recorder.game.kept_starts import load_starts
from tape2048_recorder.recording.partial import (
    JOURNAL,
    PARTIAL_SUFFIX,
    STAGED,
    read_facts,
    read_journal,
    staging_of,
)
from tape2048_recorder.replay.recorded_games import RecordedGame
from tape2048_recorder.status.status_report import judge, read_snapshot
from tape2048_tools.viewer.collection import id_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

#: Boards at the end of a recorder's newest game that the page shows.
LIVE_BOARDS = 300

#: Points of a curve.
POINTS_MAX = 400

#: Figures that count a training's progress, with their totals. The first of ``AXES`` in a line is the axis of
#: its curves.
_COUNTS = {"step": "steps", "moves": "moves_in_all", "games": "games_in_all"}
AXES = ("step", "moves", "rows")

#: The figures of trainings that pages show, with titles, the most important first. Lower is better where
#: the title has "loss" or "error".
FIGURES = {
    "val loss": "validation loss", "loss": "validation loss", "mean_score": "mean score, points",
    "train loss": "training loss", "mean_error": "mean error, points", "reach": "reach",
    "val auroc": "validation AUROC", "train learning_rate": "learning rate",
    "train rows_per_s": "rows per second", "rows_per_s": "rows per second", "moves_per_s": "moves per second",
    "train data_wait": "share of time waiting for data",
}  # fmt: skip

#: Bytes at the end of a file of metrics that the page of all trainings reads.
_TAIL_BYTES = 65_536


def recorder_id(root: Path, instance: Any) -> str:
    return id_of(f"{root}\0{instance}")


def recorder(root: Path, instance: str) -> dict[str, Any]:
    named = {"id": recorder_id(root, instance), "root": root.name, "instance": instance}
    try:
        snapshot = read_snapshot(root, instance)
    except TapeError as error:
        return {**named, "error": str(error)}
    verdict, config, status = judge(snapshot), snapshot.config, snapshot.status
    text, games = player_text(config), status.recorded_games
    tiles = tiles_shown([status.reach]) if games else []
    reach = {str(tile): wilson(round(status.reach[tile] * games), games)._asdict() for tile in tiles}
    return {
        **named,
        "state": verdict.state,
        "running": verdict.running,
        "age_s": verdict.age_s,
        "text": verdict.text,
        "player": status.player or text,
        "mean_error": mean_error(games, (status.mean_score or 0.0) * games, status.score_squares),
        "reach": reach,
        "full": text,
        "rotate_steps": config.get("rotate_steps"),
        "host": snapshot.host,
        "started_at": snapshot.started_at,
        "status": msgspec.to_builtins(status, str_keys=True),
    }


def newest_game(root: Path, instance: str) -> dict[str, Any] | None:
    """Return the end of the last committed game, of the unpublished session; None without a block."""
    end = f".{instance}{PARTIAL_SUFFIX}"
    partials = sorted(root.glob(f".*{end}"), key=lambda path: name_key(path.name.removesuffix(end)))
    for partial in reversed(partials):
        with contextlib.suppress(TapeError, OSError):  # published meanwhile, or damaged: try the next session
            facts, stage = read_facts(partial), staging_of(partial)
            blocks = read_journal(stage / JOURNAL, facts.file.row_bytes)
            if not blocks:
                continue
            run = blocks[-1].runs[-1]
            with (stage / STAGED / facts.file.name).open("rb") as file:
                file.seek(facts.file.at(int(run["first_row"])))
                rows = np.frombuffer(file.read(int(run["rows"]) * facts.file.row_bytes), facts.file.dtype)
            if len(rows) == int(run["rows"]):
                known = facts.start_boards
                starts = None if known is None else load_starts(known.path(root))
                return game_document(run, _game(run, rows, starts))
    return None


def _game(run: np.void, rows: NDArray[Any], given: NDArray[np.uint64] | None) -> RecordedGame:
    if rows.dtype.names:
        states = exps_to_boards(rows["exps"])
        return RecordedGame(states, recover(states).moves, rows["step_idx"].astype(np.int64))
    from tape2048.session.tape_codec import decode
    from tape2048_recorder.game.rng import start_boards

    boards, finals = np.empty(len(rows), np.uint64), np.empty(1, np.uint64)
    starts = start_boards(np.array([run["seed"]], np.uint64), given)
    decode(rows, np.array([0]), np.array([len(rows)]), starts, boards, finals, np.empty(1, np.uint8))
    return RecordedGame(np.append(boards, finals), (rows & 3).astype(np.uint8))  # the bits of the move


def game_document(run: np.void, game: RecordedGame) -> dict[str, Any]:
    first = max(0, len(game.states) - LIVE_BOARDS)
    numbers = np.arange(len(game.states)) if game.numbers is None else game.numbers
    shown = RecordedGame(game.states[first:], game.moves[first:])
    return {
        "run": str(run["run_id"]), "score": int(run["score"]), "steps": int(run["steps"]),
        "numbers": numbers[first:].tolist(), "exps": shown.exps.tolist(), "moves": shown.moves.tolist(),
    }  # fmt: skip


def training(path: Path) -> dict[str, Any]:
    try:
        written_at, lines = (path / METRICS).stat().st_mtime, read_metrics(path / METRICS, _TAIL_BYTES)
        running = is_locked(path)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"written_at": written_at, "running": running, **_progress(lines)}


def _progress(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for count, total in _COUNTS.items():
        known = [one for one in lines if all(_is_number(one.get(key)) for key in (count, total, "elapsed_s"))]
        if known:
            first, last = known[0], known[-1]
            done, took = last[count] - first[count], last["elapsed_s"] - first["elapsed_s"]
            if done <= 0 or took <= 0:  # a single line, or a training that was resumed
                done, took = last[count], last["elapsed_s"]
            left = max(0, last[total] - last[count]) * took / done if done else None
            return {"unit": count.rstrip("s") + "s", "done": last[count], "of": last[total], "left_s": left}
    return {}


def training_document(path: Path) -> dict[str, Any]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    lines, axis = [], ""
    with contextlib.suppress(OSError):
        lines = read_metrics(path / METRICS)
    for line in lines:
        here = next((name for name in AXES if _is_number(line.get(name))), None)
        if here is None:
            continue
        axis = axis or here
        prefix = f"{line['kind']} " if isinstance(line.get("kind"), str) else ""
        for name, value in line.items():
            if title := FIGURES.get(prefix + name):
                each = value.items() if isinstance(value, dict) else [("", value)]
                for key, one in each:
                    if _is_number(one):
                        found.setdefault(title, {}).setdefault(key, []).append(
                            (float(line[here]), float(one))
                        )
    order = list(dict.fromkeys(FIGURES.values()))
    return {
        "name": path.name,
        "x": axis,
        "figures": [
            {
                "title": title,
                "series": {name: _thinned(points, title) for name, points in found[title].items()},
            }
            for title in order
            if title in found
        ],
    }


def _thinned(points: list[tuple[float, float]], title: str) -> dict[str, Any]:
    best = (min if "loss" in title or "error" in title else max)(points, key=lambda one: one[1])
    return {
        "points": points[:: max(1, math.ceil(len(points) / POINTS_MAX))],
        "last": points[-1],
        "best": best,
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
