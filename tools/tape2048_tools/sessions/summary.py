"""Directories of sessions, and summaries of sessions from manifests and run tables: no rows are read."""

from __future__ import annotations

import datetime as dt
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from tape2048.base.intervals import mean_error, wilson
from tape2048.base.text import unix_s
from tape2048.errors import NotASessionError, StorageError, TapeError
from tape2048.files.reading import reading
from tape2048.loader.duplicates import Copies, Doubled, describe_doubled
from tape2048.loader.run_columns import RunColumns
from tape2048.players import player_label, player_name, player_text
from tape2048.session.columns import Columns
from tape2048.session.directory import (
    MANIFEST_BYTES_MAX,
    is_session,
    kind_of_table,
    list_names,
    refuse_dataset,
)
from tape2048.session.layout import (
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    ROWS,
    SESSION_NAME,
    START_BOARDS,
    STEPS_NPY,
    TAPE,
    Manifest,
)
from tape2048.session.run_table import REACH_TILES
from tape2048.session.stored import session_paths
from tape2048.session.tape_layout import TAPE_NPY
from tape2048.session.tiles_shown import tiles_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tape2048.session.session import Session

    T = TypeVar("T")

_FILES = (STEPS_NPY, TAPE_NPY, METADATA_DB, MANIFEST)  # every session has at least one of these

_EXPECTED = "Give a session, or a directory of sessions."


def default_root(config_path: Path | None = None) -> Path:
    from tape2048_recorder.record_options import load_config

    return Path(load_config({}, os.environ, config_path).config.out_dir)


def refuse_session(root: Path, hint: str) -> None:
    with reading(root):
        is_session = any((root / name).is_file() for name in _FILES)
    if is_session:
        raise StorageError("found a session, expected a directory of sessions", path=root, hint=hint)


def expand_sources(path: Path, *, may_be_empty: bool = False, may_be_dataset: bool = False) -> list[Path]:
    with reading(path):
        is_directory = path.is_dir()
    if may_be_dataset and kind_of_table(path):
        return [path]
    if not is_directory:
        raise NotASessionError("found a file, expected a directory", path=path, hint=_EXPECTED)
    names = list_names(path)
    if SESSION_NAME.fullmatch(path.resolve().name) or is_session(names) or MANIFEST in names:
        refuse_dataset(path)
        return [path]
    if found := session_paths(path):
        return [*map(Path, found)]
    if may_be_empty and all(name.startswith(".") for name in names):
        return []  # a recorder's directory before its first session
    raise NotASessionError("neither a session nor a directory of sessions", path=path, hint=_EXPECTED)


def expand_all(paths: Sequence[Path]) -> list[Path]:
    return [session for path in paths for session in expand_sources(path)]


def described(path: Path | str, error: TapeError) -> dict[str, str | None]:
    return {
        "name": str(path).rpartition("/")[2],
        "path": str(path),
        "error": type(error).__name__,
        "message": str(error),
        "hint": error.advice,
    }


def directory_bytes(path: Path) -> int:
    """Return the size of a directory's own files."""
    with os.scandir(path) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


_decode_manifest = msgspec.json.Decoder(Manifest).decode


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one session; None for values that it lacks.

    ``reach`` is the share of games that reached each tile. ``recovered``: crash recovery published it.
    ``storage`` is None for several sessions.
    """

    name: str = ""
    path: str = ""
    player: str | None = None
    player_name: str | None = None
    rows: int
    games: int
    mean_score: float | None = None
    mean_score_error: float | None = None  # half the width of its 95% interval
    best_score: int | None = None
    highest_tile: int | None = None
    reach: dict[int, float | None] = msgspec.field(default_factory=lambda: dict.fromkeys(REACH_TILES))
    bytes: int
    recovered: bool | None = None
    storage: str | None = None
    columns: list[dict[str, Any]] = []


def brief(path: str, name: str) -> Summary | None:
    """Summarize a session from its manifest alone; None if that is invalid, or file sizes differ."""
    # Plain strings and calls: paths and context managers would take three times as long.
    sizes = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                sizes[entry.name] = entry.stat().st_size
        # A buffer for the largest manifest would take longer to allocate than all the rest.
        length = sizes.get(MANIFEST, 0)
        if length > MANIFEST_BYTES_MAX:
            return None
        fd = os.open(f"{path}/{MANIFEST}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            manifest = _decode_manifest(os.read(fd, length))
        finally:
            os.close(fd)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    files = manifest.files
    rows_file = TAPE_NPY if TAPE_NPY in files else STEPS_NPY
    if manifest.version != FORMAT_VERSION or not files.keys() >= {rows_file, METADATA_DB}:
        return None
    for file, listed in files.items():
        if sizes.get(file) != listed.bytes:
            return None
    storage = TAPE if rows_file == TAPE_NPY else ROWS
    size = sum(sizes.values())
    found = Summary(
        name=name, path=path, rows=manifest.rows, games=manifest.runs, bytes=size, storage=storage
    )
    if len(sizes) > len(files) + 1:
        columns = Columns((Path(path),), manifest.rows, manifest)
        found = msgspec.structs.replace(found, columns=column_facts(columns))
    return found


def column_facts(columns: Columns) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in columns:
        one: dict[str, Any] = dict.fromkeys(("name", "dtype", "shape", "maker", "error")) | {"name": name}
        try:
            info = columns.open(name, check=False).info
            one |= {"dtype": info.dtype, "shape": info.shape, "maker": info.facts.get("maker")}
        except TapeError as error:
            one["error"] = str(error)
        found.append(one)
    return found


def session_bytes(session: Session) -> int:
    if session.path.is_file():  # a pack.dat
        return session.path.stat().st_size
    return session.bytes if session.is_remote else directory_bytes(session.path)


def session_place(session: Session) -> str:
    return session.address if session.is_remote else str(session.path)


def scores(runs: NDArray[np.void]) -> dict[str, Any]:
    values, count = runs["score"], len(runs)
    mean, best = (float(values.mean()), int(values.max())) if count else (None, None)
    error = mean_error(count, float(values.sum()), float(np.square(values, dtype=np.float64).sum()))
    return {
        "games": count, "mean_score": mean, "mean_score_error": None if math.isnan(error) else error,
        "best_score": best,
    }  # fmt: skip


def total_of(runs: NDArray[np.void]) -> dict[str, Any]:
    return {
        "rows": int(runs["rows"].sum(dtype=np.uint64)),
        **scores(runs),
        "highest_tile": int(runs["highest_tile"].max()) if len(runs) else None,
        "reach": reach(runs, REACH_TILES),
    }


def summarize(session: Session) -> Summary:
    recovered = session.meta.get("recovered")
    return Summary(
        name=session.path.name,
        path=session_place(session),
        player=player_label(session.meta) or None,
        player_name=player_name(session.meta),
        **total_of(session.runs),
        bytes=session_bytes(session),
        recovered=recovered if isinstance(recovered, bool) else None,
        storage=ROWS if session.tape is None else TAPE,
        columns=column_facts(session.columns),
    )


def read_each(root: Path, read: Callable[[Path], T]) -> list[tuple[Path, T | TapeError]]:
    found: list[tuple[Path, T | TapeError]] = []
    for path in map(Path, session_paths(root)):
        try:
            found.append((path, read(path)))
        except TapeError as error:
            if os.path.lexists(path):  # otherwise another process removed it
                found.append((path, error))
        except FileNotFoundError:
            continue
    return found


def reach(runs: NDArray[np.void], thresholds: Sequence[int]) -> dict[int, float | None]:
    return {
        threshold: float((runs["highest_tile"] >= threshold).mean()) if len(runs) else None
        for threshold in thresholds
    }


def distribution(runs: NDArray[np.void]) -> dict[str, Any]:
    """Return quantiles of scores and lengths, and ``tiles``: the highest tiles of games, the lowest first.

    For each tile: the number and the share of games with this highest tile, and the share of games that
    reached the tile.
    """
    values, counts = np.unique(runs["highest_tile"], return_counts=True)
    at_least = counts[::-1].cumsum()[::-1]
    return {
        "score": quantiles(runs["score"]),
        "steps": quantiles(runs["steps"]),
        "tiles": [
            {"tile": int(tile), "games": int(games), "share": games / len(runs), "reach": up / len(runs)}
            for tile, games, up in zip(values, counts.tolist(), at_least.tolist(), strict=True)
        ],
    }


def quantiles(values: NDArray[Any]) -> dict[str, float]:
    if not len(values):
        return {}
    p10, p50, p90 = np.quantile(values, (0.1, 0.5, 0.9), method="inverted_cdf")
    found = {"mean": values.mean(), "p10": p10, "p50": p50, "p90": p90, "max": values.max()}
    return {name: float(value) for name, value in found.items()}


def label_prevalence(runs: NDArray[np.void]) -> list[dict[str, float | int | None]]:
    rows = int(runs["rows"].sum(dtype=np.uint64))
    return [
        {
            "threshold": threshold,
            "games": int(positive.sum()),
            "game_share": float(positive.mean()) if len(runs) else None,
            "row_share": int(runs["rows"][positive].sum(dtype=np.uint64)) / rows if rows else None,
        }
        for threshold in tiles_shown([reach(runs, REACH_TILES)])
        for positive in [runs["highest_tile"] >= threshold]
    ]


def find_twice(several: Sequence[Session]) -> tuple[NDArray[np.void], list[Doubled]]:
    runs = RunColumns.of(several).table
    is_doubled, pairs = Copies(runs, several).left_out()
    return runs[~is_doubled], pairs


def twice_lines(pairs: Sequence[Doubled]) -> list[str]:
    return [f"left out: {describe_doubled(pairs)}"] if pairs else []


def sum_up(several: Sequence[Session]) -> dict[str, Any]:
    runs, twice = find_twice(several)
    started, ended = (
        [unix_s(session.meta.get(key)) for session in several] for key in ("started_at", "ended_at")
    )
    return {
        "sessions": len(several),
        "rows": int(runs["rows"].sum(dtype=np.uint64)),
        "games": len(runs),
        "twice": twice,
        "bytes": sum(map(session_bytes, several)),
        "on_tape": sum(session.tape is not None for session in several),
        "given_starts": sum(START_BOARDS in session.meta for session in several),
        "started_at": _iso(np.fmin.reduce(started)),
        "ended_at": _iso(np.fmax.reduce(ended)),
        "players": players_of(several, runs),
        **distribution(runs),
        "labels": label_prevalence(runs),
    }


def players_of(several: Sequence[Session], runs: NDArray[np.void]) -> list[dict[str, Any]]:
    """Summarize the games of each player."""
    by_player: dict[str, list[int]] = {}
    for number, session in enumerate(several):
        by_player.setdefault(player_label(session.meta), []).append(number)
    return [_of_player(label, its, several, runs) for label, its in by_player.items()]


def _iso(moment_s: float) -> str | None:
    return None if np.isnan(moment_s) else dt.datetime.fromtimestamp(moment_s, dt.UTC).isoformat()


def _of_player(
    label: str, its: Sequence[int], several: Sequence[Session], runs: NDArray[np.void]
) -> dict[str, Any]:
    runs, facts = runs[np.isin(runs["session"], its)], several[its[0]].meta
    reached = {tile: int((runs["highest_tile"] >= tile).sum()) for tile in REACH_TILES}
    return {
        "player_name": player_name(facts),
        "player": label or "unknown",
        "recorded_as": player_text(facts),
        "player_sha256": facts.get("player_sha256"),
        "sessions": len(its),
        "rows": int(runs["rows"].sum(dtype=np.uint64)),
        **scores(runs),
        "reach": {str(tile): wilson(count, len(runs))._asdict() for tile, count in reached.items()}
        if len(runs)
        else {},
    }
