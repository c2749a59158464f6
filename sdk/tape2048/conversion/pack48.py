"""Packs of 48-byte rows: conversion of runs to a pack, and merging of packs of any row type.

::

    <pack>/
        steps-00000.npy, ...    rows, in shards of at most 10,000,000
        metadata.db             runs(id, seed, steps, max_score, highest_tile), session(meta_key, meta_value)
        <field>s.json           names of a field's numbers, such as valuation_types.json: {"search": 0}

The loaders of 2048former look for these names: they ``np.load`` each ``steps-*.npy``, and read the run table.
:mod:`tape2048.session.foreign` reads them. A row of a converted run has the fields of :data:`PACK48_DTYPE`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import counted, json_bytes, pretty_json
from tape2048.conversion.session_runs import run_record, session_facts
from tape2048.errors import MaintenanceError
from tape2048.files.durable import Draft, fsync_dir, rename_numbered, write_file
from tape2048.files.opening import storage_errors
from tape2048.files.sqlite_writer import fresh_database
from tape2048.loader.column_fields import join_names, names_of, renumbered
from tape2048.maintenance.merging import Merged, columns_to_join, join_columns
from tape2048.maintenance.validation import check_draft
from tape2048.session.layout import METADATA_DB, RUN_DTYPE
from tape2048.session.metadata import read_metadata
from tape2048.session.metadata_writer import flush_entry
from tape2048.session.npy_writer import NpyWriter
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.conversion.targets import Conversion
    from tape2048.runs.run import Run
    from tape2048.session.foreign import ForeignRows

#: Most rows of a shard, which then has 480 MB.
SHARD_ROWS = 10_000_000

#: A row: with two bytes of padding after ``max_rank``, 48 bytes.
PACK48_DTYPE = np.dtype(
    [
        ("run_id", "<u4"),
        ("step_index", "<u4"),  # from 0
        ("board", "<u8"),  # packed, before the move
        ("board_eval", "<i4"),  # 0 in converted runs, as all fields that runs lack
        ("tile_65536_mask", "<u2"),  # 0: games end with the first 65536
        ("move_dir", "u1"),
        ("valuation_type", "u1"),  # 0, named `converted`
        ("ev_legal", "u1"),  # bit m: move m has a value; 0: no values
        ("max_rank", "u1"),  # exponent of the highest tile
        ("seed", "<u4"),  # 0. The run table has the seed
        ("branch_evs", "<f4", (4,)),  # values of the moves, 0 without a value
    ],
    align=True,
)
assert PACK48_DTYPE.itemsize == 48

_SCHEMA = (
    """CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT NOT NULL, steps INT NOT NULL,
                         max_score INT NOT NULL, highest_tile INT NOT NULL)""",
    "CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT NOT NULL)",
)
_PIECE_ROWS = 1 << 18  # rows that are copied together


def _write_shards(directory: Path, dtype: np.dtype[Any], pieces: Iterable[NDArray[np.void]]) -> int:
    header_bytes = 128 + -(-len(repr(dtype.descr)) // 64) * 64
    number = total = 0
    with contextlib.ExitStack() as stack:
        file: NpyWriter | None = None
        for piece in pieces:
            total += len(piece)
            while len(piece):
                if file is None or file.rows == SHARD_ROWS:
                    if file is not None:
                        file.finish()
                    path = directory / f"steps-{number:05d}.npy"
                    file, number = stack.enter_context(NpyWriter(path, dtype, header_bytes)), number + 1
                room = SHARD_ROWS - file.rows
                file.append(piece[:room])
                piece = piece[room:]  # noqa: PLW2901
        if file is not None:
            file.finish()
    return total


def _write_tables(
    directory: Path, runs: NDArray[np.void], facts: dict[str, Any], names: dict[str, dict[str, int]]
) -> None:
    database = directory / METADATA_DB
    with fresh_database(database) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        columns = ("id", "seed", "steps", "max_score", "highest_tile")
        rows = zip(*(runs[name].astype(np.int64).tolist() for name in columns), strict=True)
        connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", rows)
        texts = [(key, json_bytes(value).decode()) for key, value in facts.items()]
        connection.executemany("INSERT INTO session VALUES (?, ?)", texts)
    flush_entry(database)
    for field, numbers in names.items():
        write_file(directory / f"{field}s.json", pretty_json(numbers))
    fsync_dir(directory)


def pack48_rows(run: Run, run_id: int) -> NDArray[np.void]:
    from tape2048.game.rules import boards_to_exps

    rows = np.zeros(len(run), PACK48_DTYPE)
    rows["run_id"], rows["step_index"] = run_id, np.arange(len(run))
    rows["board"], rows["move_dir"] = run.boards, run.moves
    rows["max_rank"] = boards_to_exps(run.boards).max(axis=1, initial=0)
    if run.has_branches is not None and run.branch_legal is not None and run.branch_values is not None:
        has = run.has_branches
        rows["ev_legal"] = np.where(has, run.branch_legal, 0)
        legal = rows["ev_legal"][:, None] >> np.arange(4, dtype=np.uint8) & 1
        rows["branch_evs"] = np.where(legal, run.branch_values, 0)
    return rows


def write_pack48(flow: Conversion) -> None:
    table: list[tuple[int, ...]] = []
    players: dict[tuple[str, str | None], None] = {}
    starts: set[int] = set()

    def pieces() -> Iterator[NDArray[np.void]]:
        for run_id, run in enumerate(flow.runs()):
            table.append(run_record(run, run_id, 0, players))
            starts.add(run.meta.start_unix_s)
            yield pack48_rows(run, run_id)

    with storage_errors(flow.target, "writing it"), Draft(flow.target) as draft:
        _write_shards(draft.path, PACK48_DTYPE, pieces())
        given = {"player": flow.player} if flow.player else {}
        facts = {**session_facts(players, starts), "converted_from": flow.source.kind, **given}
        _write_tables(draft.path, np.array(table, RUN_DTYPE), facts, {"valuation_type": {"converted": 0}})
        draft.publish()


def merge_packs(
    paths: Sequence[str | os.PathLike[str]],
    out_dir: str | os.PathLike[str],
    *,
    all_columns: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Merged:
    """Merge packs of other programs into a new one, and leave the originals unchanged.

    Rows keep every field, and runs get new ids from 0. If two packs number the names of a field differently,
    such as ``valuation_type``, its numbers change, and its names stay. The new pack has the name of the first
    one. Columns in files and other errors are as for :func:`tape2048.maintenance.merge_sessions`.

    Args:
        paths: the packs, at least two.
        out_dir: the directory that gets the new pack.
        all_columns: whether a column that would be left out is an error.
        progress: function that is called with the rows copied so far, and all rows.

    Raises:
        MaintenanceError: rows have different types, a run is in two packs, or names cannot be joined; also
            as for :func:`tape2048.maintenance.merge_sessions`.

    Example:
        >>> from tape2048.conversion import convert, merge_packs
        >>> from tape2048.runs import Run, read_run
        >>> for name in ("a2run", "a2run2"):
        ...     done = convert(f"runs/golden.{name}", f"packs-{name}", "pack48", lossy=True)
        >>> merge_packs(["packs-a2run", "packs-a2run2"], "merged").runs
        2
    """
    report, root = progress or (lambda *_: None), Path(os.path.abspath(out_dir))
    parts = _open_packs(paths)
    tables = [read_metadata(part.path / METADATA_DB).runs for part in parts]  # before runs are cut at 65536
    runs = np.concatenate(tables)
    _check_distinct(runs)
    fields = {name for part in parts for name in part.columns if part.columns.is_field(name)}
    names = {field: joint for field in sorted(fields) if (joint := _joint_names(parts, field))}
    columns = columns_to_join(parts, all_columns=all_columns, skip=fields)
    runs["id"] = np.arange(len(runs))
    total, done = sum(int(_rows_of(part).counts.sum()) for part in parts), 0

    def pieces() -> Iterator[NDArray[np.void]]:
        nonlocal done
        first = 0
        for part, table in zip(parts, tables, strict=True):
            for piece in _pieces(part, table["id"], first, names):
                yield piece
                done += len(piece)
                report(done, total)
            first += len(table)

    shared = {
        key: value
        for key, value in parts[0].meta.items()
        if all(part.meta.get(key) == value for part in parts)
    }
    own = [{"name": part.path.name, "runs": len(part.runs), **part.meta} for part in parts]
    with storage_errors(root, "writing the merged pack"):
        root.mkdir(parents=True, exist_ok=True)
        target = root / parts[0].path.name
        with Draft(target) as hidden:
            draft = hidden.path / "session"
            draft.mkdir()
            rows = _write_shards(draft, _rows_of(parts[0]).layout.dtype, pieces())
            _write_tables(draft, runs, {**shared, "merged_from": own}, names)
            join_columns(draft, parts, columns)
            check_draft(draft, MaintenanceError)
            size = sum(path.stat().st_size for path in draft.iterdir())
            published = rename_numbered(draft, target)
            fsync_dir(root)
    return Merged(published, len(parts), rows, len(runs), size, renumbered=True)


def _rows_of(part: Session) -> ForeignRows:
    assert part.foreign is not None
    return part.foreign


def _open_packs(paths: Sequence[str | os.PathLike[str]]) -> list[Session]:
    parts = [Session.open(path) for path in paths]
    if len(parts) < 2:
        raise MaintenanceError(f"found {counted(len(parts), 'pack')}, expected at least two")
    for number, part in enumerate(parts):
        if part.foreign is None or part.manifest is not None:
            message = "a session of a recorder; expected a pack of another program"
            raise MaintenanceError(message, path=part.path, hint="merge packs and sessions separately")
        if any(part.path.samefile(other.path) for other in parts[:number]):
            hint = "its games would count twice"
            raise MaintenanceError("this pack is given twice", path=part.path, hint=hint)
        found, first = part.foreign.layout.dtype, _rows_of(parts[0]).layout.dtype
        if found != first:
            raise MaintenanceError(
                f"rows of type {found.descr}; expected {first.descr}, as in {parts[0].path.name}",
                path=part.path,
                hint="convert both: tape2048 convert PACK --to pack48 --out NEW",
            )
    return parts


def _check_distinct(runs: NDArray[np.void]) -> None:
    known = runs[["seed", "steps", "max_score", "highest_tile"]][runs["seed"] != 0]
    values, counts = np.unique(known, return_counts=True)
    if (counts > 1).any():
        seed, steps, *_ = values[counts.argmax()]
        text = f"{counts.max()} runs have seed {seed} and {steps} steps; expected each run once"
        raise MaintenanceError(text, hint="leave the pack with copies out")


def _joint_names(parts: list[Session], field: str) -> dict[str, int]:
    """Return the names of a field's numbers in the new pack; empty without names."""
    infos = [part.columns[field] for part in parts]
    if all(info.facts.get("names") is None for info in infos):
        return {}
    joint: dict[str, int] = {}
    for part, info in zip(parts, infos, strict=True):
        own = names_of(msgspec.structs.replace(info, facts={"names": None, **info.facts}))
        found = None if own is None else join_names(joint, own, np.iinfo(info.numpy_dtype).max + 1)
        if found is None:
            raise MaintenanceError(
                f"found the names {str(info.facts.get('names'))[:80]}; expected a different {info.dtype} "
                "number for each name, and few enough names in all packs",
                path=part.path / f"{field}s.json",
            )
        joint = found
    return joint


def _pieces(
    part: Session, ids: NDArray[np.uint64], first: int, names: dict[str, dict[str, int]]
) -> Iterator[NDArray[np.void]]:
    """Yield the rows of a pack, with new ids from ``first``, and with the numbers of the joint names."""
    rows, order, left_out = _rows_of(part), np.argsort(ids), 0
    ordered, run = ids[order], rows.layout.run
    for place, count in zip(rows.file_begins.tolist(), rows.counts.tolist(), strict=True):
        for at in range(place, place + count, _PIECE_ROWS):
            piece = rows.take(np.arange(at, min(at + _PIECE_ROWS, place + count)))
            found = np.minimum(np.searchsorted(ordered, piece[run].astype(np.uint64)), len(ids) - 1)
            known = ordered[found] == piece[run]
            piece, found = piece[known], found[known]
            left_out += int((~known).sum())
            piece[run] = first + order[found]
            for field, joint in names.items():
                if (own := part.columns[field].facts["names"]) != joint:
                    piece[field] = renumbered(piece[field], own, joint, part.path / f"{field}s.json")
            yield piece
    if left_out:
        text = "%s: left out %s of runs that are not in the run table"
        logging.getLogger("tape2048").warning(text, part.path, counted(left_out, "row"))
