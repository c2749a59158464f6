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
from tape2048.errors import MaintenanceError
from tape2048.files.durable import Draft, fsync_dir, rename_numbered, write_file
from tape2048.files.opening import storage_errors
from tape2048.files.sqlite_writer import fresh_database, insert_rows
from tape2048.loader.column_fields import join_names, names_of, renumbered
from tape2048.maintenance.merging import Merged, columns_to_join, join_columns
from tape2048.maintenance.validation import check_draft
from tape2048.runs.a2run2 import legal_bits
from tape2048.runs.sessions import run_record, session_facts
from tape2048.runs.tables import ShardWriter
from tape2048.session.layout import METADATA_DB, RUN_DTYPE
from tape2048.session.metadata import read_metadata
from tape2048.session.metadata_writer import flush_entry
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import Run
    from tape2048.session.foreign import ForeignRows

    #: Runs, ``RUN_DTYPE[R]``; facts; the names of the numbers in a field.
    Facts = tuple[NDArray[np.void], dict[str, Any], dict[str, dict[str, int]]]

#: Most rows of a shard, which then has 480 MB.
SHARD_ROWS = 10_000_000
_PIECE_ROWS = 1 << 18  # rows that are copied together

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


def _write_pack(
    directory: Path, dtype: np.dtype[Any], pieces: Iterable[NDArray[np.void]], tables: Callable[[], Facts]
) -> int:
    """Write and flush all files; ``tables`` returns runs, facts and names after the last piece."""
    header_bytes = 128 + -(-len(repr(dtype.descr)) // 64) * 64
    writer = ShardWriter(directory, "steps-{:05d}.npy", dtype, header_bytes, SHARD_ROWS)
    with contextlib.closing(writer):
        for piece in pieces:
            writer.write(piece)
        writer.finish()
    (runs, facts, names), database = tables(), directory / METADATA_DB
    with fresh_database(database) as connection:
        columns = ("id", "seed", "steps", "max_score", "highest_tile")
        connection.execute(
            "CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT NOT NULL, steps INT NOT NULL, "
            "max_score INT NOT NULL, highest_tile INT NOT NULL)"
        )
        connection.execute("CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT NOT NULL)")
        rows = zip(*(runs[name].astype(np.int64).tolist() for name in columns), strict=True)
        insert_rows(connection, "runs", columns, rows)
        texts = [(key, json_bytes(value).decode()) for key, value in facts.items()]
        insert_rows(connection, "session", ("meta_key", "meta_value"), texts)
    flush_entry(database)
    for field, numbers in names.items():
        write_file(directory / f"{field}s.json", pretty_json(numbers))
    fsync_dir(directory)
    return writer.rows


def pack48_rows(run: Run, run_id: int) -> NDArray[np.void]:
    from tape2048.game.rules import boards_to_exps

    rows = np.zeros(len(run), PACK48_DTYPE)
    rows["run_id"], rows["step_index"] = run_id, np.arange(len(run))
    rows["board"], rows["move_dir"] = run.boards, run.moves
    rows["max_rank"] = boards_to_exps(run.boards).max(axis=1, initial=0)
    if run.has_branches is not None and run.branch_legal is not None and run.branch_values is not None:
        rows["ev_legal"] = np.where(run.has_branches, run.branch_legal, 0)
        rows["branch_evs"] = np.where(legal_bits(rows["ev_legal"]), run.branch_values, 0)
    return rows


def write(flow: Conversion) -> None:
    """Write the runs of a conversion."""
    table: list[tuple[int, ...]] = []
    players: dict[tuple[str, str | None], None] = {}
    starts: set[int] = set()

    def pieces() -> Iterator[NDArray[np.void]]:
        for run_id, run in enumerate(flow.runs()):
            table.append(run_record(run, run_id, 0, players))
            starts.add(run.meta.start_unix_s)
            yield pack48_rows(run, run_id)

    def tables() -> Facts:
        given = {"player": flow.player} if flow.player else {}
        facts = {**session_facts(players, starts), "converted_from": flow.source.kind, **given}
        return np.array(table, RUN_DTYPE), facts, {"valuation_type": {"converted": 0}}

    with storage_errors(flow.target, "writing it"), Draft(flow.target) as draft:
        _write_pack(draft.path, PACK48_DTYPE, pieces(), tables)
        draft.publish()


def merge_pack48(
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
        paths: the packs.
        out_dir: as for :func:`tape2048.maintenance.merge_sessions`.
        all_columns: as for :func:`tape2048.maintenance.merge_sessions`.
        progress: as for :func:`tape2048.maintenance.merge_sessions`.

    Raises:
        MaintenanceError: rows have different types, a run is in two packs, or names cannot be joined.

    Example:
        >>> from tape2048.runs import convert, merge_pack48
        >>> for name in ("a2run", "a2run2"):
        ...     done = convert(f"runs/golden.{name}", f"packs-{name}", "pack48", lossy=True)
        >>> merge_pack48(["packs-a2run", "packs-a2run2"], "merged").runs
        2
    """
    root, parts = Path(os.path.abspath(out_dir)), [Session.open(path) for path in paths]
    given = [_rows_of(part, parts[:number], parts[0]) for number, part in enumerate(parts)]
    if len(parts) < 2:
        raise MaintenanceError(f"found {counted(len(parts), 'pack')}, expected at least two")
    tables = [read_metadata(part.path / METADATA_DB).runs for part in parts]  # before runs are cut at 65536
    runs = np.concatenate(tables)
    known = runs[["seed", "steps", "max_score", "highest_tile"]][runs["seed"] != 0]
    values, counts = np.unique(known, return_counts=True)
    if (counts > 1).any():
        seed, steps, *_ = values[counts.argmax()]
        text = f"{counts.max()} runs have seed {seed} and {steps} steps; expected each run once"
        raise MaintenanceError(text, hint="leave the pack with copies out")
    fields = {name for part in parts for name in part.columns if part.columns.is_field(name)}
    names = {field: joint for field in sorted(fields) if (joint := _joint_names(parts, field))}
    columns = columns_to_join(parts, all_columns=all_columns, skip=fields)
    runs["id"] = np.arange(len(runs))
    total = sum(int(rows.counts.sum()) for rows in given)

    def pieces() -> Iterator[NDArray[np.void]]:
        first = done = 0
        for part, rows, table in zip(parts, given, tables, strict=True):
            for piece in _pieces(part, rows, table["id"], first, names):
                yield piece
                done += len(piece)
                if progress is not None:
                    progress(done, total)
            first += len(table)

    every = [part.meta for part in parts]
    shared = {key: each for key, each in every[0].items() if all(meta.get(key) == each for meta in every)}
    own = [{"name": part.path.name, "runs": len(part.runs), **part.meta} for part in parts]
    with storage_errors(root, "writing the merged pack"):
        root.mkdir(parents=True, exist_ok=True)
        target = root / parts[0].path.name
        with Draft(target) as hidden:
            draft = hidden.path / "session"
            draft.mkdir()
            facts = runs, {**shared, "merged_from": own}, names
            count = _write_pack(draft, given[0].layout.dtype, pieces(), lambda: facts)
            join_columns(draft, parts, columns)
            check_draft(draft, MaintenanceError)
            size = sum(path.stat().st_size for path in draft.iterdir())
            published = rename_numbered(draft, target)
            fsync_dir(root)
    return Merged(published, len(parts), count, len(runs), size, renumbered=True)


def _rows_of(part: Session, before: Sequence[Session], first: Session) -> ForeignRows:
    """Return the rows of a pack that can be merged with those before it."""
    if part.foreign is None or part.manifest is not None:
        message = "a session of a recorder; expected a pack of another program"
        raise MaintenanceError(message, path=part.path, hint="merge packs and sessions separately")
    if any(part.path.samefile(other.path) for other in before):
        raise MaintenanceError("this pack is given twice", path=part.path, hint="its games would count twice")
    assert first.foreign is not None
    found, expected = part.foreign.layout.dtype, first.foreign.layout.dtype
    if found != expected:
        text = f"rows of type {found.descr}; expected {expected.descr}, as in {first.path.name}"
        hint = "convert both: tape2048 convert PACK --to pack48 --out NEW"
        raise MaintenanceError(text, path=part.path, hint=hint)
    return part.foreign


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
            text = f"found the names {str(info.facts.get('names'))[:80]}; expected a different {info.dtype} "
            text += "number for each name, and few enough names in all packs"
            raise MaintenanceError(text, path=part.path / f"{field}s.json")
        joint = found
    return joint


def _pieces(
    part: Session, rows: ForeignRows, ids: NDArray[np.uint64], first: int, names: dict[str, dict[str, int]]
) -> Iterator[NDArray[np.void]]:
    """Yield the rows of a pack, with new ids from ``first``, and with the numbers of the joint names."""
    order, run, left_out = np.argsort(ids), rows.layout.run, 0
    ordered = ids[order]
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
