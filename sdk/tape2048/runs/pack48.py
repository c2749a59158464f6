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
from tape2048.errors import FieldError, MaintenanceError
from tape2048.files.durable import Draft, fsync_dir, rename_numbered, write_file
from tape2048.files.opening import storage_errors
from tape2048.files.sqlite_writer import fresh_database, insert_rows
from tape2048.loader.column_fields import join_names, names_of, renumbered
from tape2048.maintenance.merging import Merged, columns_to_join, join_columns
from tape2048.maintenance.validation import check_draft
from tape2048.runs.a2run2 import legal_bits
from tape2048.runs.sessions import run_record, session_facts
from tape2048.runs.tables import ShardWriter
from tape2048.session.columns import ColumnInfo
from tape2048.session.layout import METADATA_DB, RUN_DTYPE
from tape2048.session.metadata import read_metadata
from tape2048.session.metadata_writer import flush_entry
from tape2048.session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import Run, SourceRun
    from tape2048.session.foreign import ForeignRows

#: Most rows of a shard, which then has 480 MB.
SHARD_ROWS = 10_000_000
_PIECE_ROWS = 1 << 18  # rows that are copied together
_RUN_FACTS = ("seed", "steps", "score", "highest_tile")

#: A row, of 48 bytes with the padding: ``board`` before the move; bit m of ``ev_legal`` if move m has a value
#: in ``branch_evs``; ``max_rank``, the exponent of the highest tile. ``tile_65536_mask`` is 0, since games
#: end with the first 65536. Runs of a pack keep ``board_eval``, ``valuation_type`` and ``seed``. Other runs
#: have 0 there: ``valuation_type`` names it ``converted``, and the run table has the seed.
PACK48_DTYPE = np.dtype(
    [
        ("run_id", "<u4"), ("step_index", "<u4"), ("board", "<u8"), ("board_eval", "<i4"),
        ("tile_65536_mask", "<u2"), ("move_dir", "u1"), ("valuation_type", "u1"), ("ev_legal", "u1"),
        ("max_rank", "u1"), ("seed", "<u4"), ("branch_evs", "<f4", (4,)),
    ],
    align=True,
)  # fmt: skip
assert PACK48_DTYPE.itemsize == 48
_TYPE, _CONVERTED = "valuation_type", {"converted": 0}
_KEPT = ("board_eval", "seed", _TYPE)


def _write_rows(directory: Path, dtype: np.dtype[Any], pieces: Iterable[NDArray[np.void]]) -> int:
    header_bytes = 128 + -(-len(repr(dtype.descr)) // 64) * 64
    writer = ShardWriter(directory, "steps-{:05d}.npy", dtype, header_bytes, SHARD_ROWS)
    with contextlib.closing(writer):
        for piece in pieces:
            writer.write(piece)
        writer.finish()
    return writer.rows


def _write_facts(
    directory: Path, runs: NDArray[np.void], facts: dict[str, Any], names: Mapping[str, dict[str, int]]
) -> None:
    with fresh_database(directory / METADATA_DB) as connection:
        connection.execute(
            "CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT NOT NULL, steps INT NOT NULL, "
            "max_score INT NOT NULL, highest_tile INT NOT NULL)"
        )
        connection.execute("CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT NOT NULL)")
        columns = ("id", "seed", "steps", "max_score", "highest_tile")
        rows = zip(*(runs[name].astype(np.int64).tolist() for name in ("run_id", *_RUN_FACTS)), strict=True)
        insert_rows(connection, "runs", columns, rows)
        texts = [(key, json_bytes(value).decode()) for key, value in facts.items()]
        insert_rows(connection, "session", ("meta_key", "meta_value"), texts)
    flush_entry(directory / METADATA_DB)
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
        rows["ev_legal"] = np.where(run.has_branches, run.branch_legal, 0)
        rows["branch_evs"] = np.where(legal_bits(rows["ev_legal"]), run.branch_values, 0)
    return rows


def write(flow: Conversion) -> None:
    """Write the runs of a conversion."""
    table: list[tuple[int, ...]] = []
    players: dict[tuple[str, str | None], None] = {}
    starts: set[int] = set()
    sessions = flow.source.sessions
    names = _joint_names(sessions, _TYPE) or ({} if sessions else _CONVERTED)
    own_names = [_names_in(one, _TYPE).facts.get("names") for one in sessions]

    def keep(found: SourceRun) -> tuple[Run, dict[str, NDArray[Any]], int | None]:
        """Return a run, the fields that its pack has, and its seed there."""
        run, seed = found.checked(), None
        fields: dict[str, NDArray[Any]] = {}
        if found.place is not None:
            number, ordinal = found.place
            session, own = sessions[number], own_names[number]
            if (foreign := session.foreign) is not None:
                rows = foreign.take(foreign.index_of(np.r_[session.numbers_of(ordinal)][: len(run)]))
                fields = {name: rows[name] for name in _KEPT if name in (rows.dtype.names or ())}
                seed = int(session.runs["seed"][ordinal])
            if own and own != names:
                given = fields.get(_TYPE, np.zeros(len(run), np.uint8))
                fields[_TYPE] = renumbered(given, own, names, session.path / f"{_TYPE}s.json")
        return run, fields, seed

    def pieces() -> Iterator[NDArray[np.void]]:
        for run_id, (_, _, (run, fields, seed)) in enumerate(flow.each(keep)):
            record = run_record(run, run_id, 0, players)
            table.append(record if seed is None else (run_id, seed, *record[2:]))
            starts.add(run.meta.start_unix_s)
            rows = pack48_rows(run, run_id)
            for name, values in fields.items():
                rows[name] = values if values.ndim == 1 else 0
                if not np.array_equal(rows[name], values):
                    text = f"its field {name} is {values.dtype} {list(values.shape)}"
                    raise FieldError(f"{text}; expected numbers that {PACK48_DTYPE[name]} can hold")
            yield rows

    with storage_errors(flow.target, "writing it"), Draft(flow.target) as draft:
        _write_rows(draft.path, PACK48_DTYPE, pieces())
        facts = {**session_facts(players, starts), "converted_from": flow.source.kind}
        facts |= {"player": flow.player} if flow.player else {}
        _write_facts(draft.path, np.array(table, RUN_DTYPE), facts, {_TYPE: names} if names else {})
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
    root, parts = Path(os.path.abspath(out_dir)), [Session.open(path, "mmap") for path in paths]
    given = _rows_of(parts)
    tables = [read_metadata(part.path / METADATA_DB).runs for part in parts]  # before runs are cut at 65536
    runs = np.concatenate(tables)
    values, counts = np.unique(runs[[*_RUN_FACTS]][runs["seed"] != 0], return_counts=True)
    if (counts > 1).any():
        seed, steps, *_ = values[counts.argmax()]
        text = f"{counts.max()} runs have seed {seed} and {steps} steps; expected each run once"
        raise MaintenanceError(text)
    fields = {name for part in parts for name in part.columns if part.columns.is_field(name)}
    names = {field: joint for field in sorted(fields) if (joint := _joint_names(parts, field))}
    columns = columns_to_join(parts, all_columns=all_columns, skip=fields)
    runs["run_id"] = np.arange(len(runs))
    every = [part.meta for part in parts]
    facts = {key: each for key, each in every[0].items() if all(meta.get(key) == each for meta in every)}
    facts["merged_from"] = [{"name": part.path.name, "runs": len(part.runs), **part.meta} for part in parts]

    advance = progress or (lambda _done, _total: None)
    with storage_errors(root, "writing the merged pack"):
        root.mkdir(parents=True, exist_ok=True)
        target = root / parts[0].path.name
        with Draft(target) as hidden:
            draft = hidden.path / "session"
            draft.mkdir()
            count = _write_rows(draft, given[0].layout.dtype, _pieces(parts, given, tables, names, advance))
            _write_facts(draft, runs, facts, names)
            join_columns(draft, parts, columns)
            check_draft(draft, MaintenanceError)
            size = sum(path.stat().st_size for path in draft.iterdir())
            published = rename_numbered(draft, target)
            fsync_dir(root)
    return Merged(published, len(parts), count, len(runs), size, renumbered=True)


def _rows_of(parts: Sequence[Session]) -> list[ForeignRows]:
    given: list[ForeignRows] = []
    for part in parts:
        if part.foreign is None or part.manifest is not None:
            text = "a session of a recorder; expected a pack of another program"
            raise MaintenanceError(text, path=part.path, hint="merge packs and sessions separately")
        if any(part.path.samefile(other.path) for other in parts[: len(given)]):
            raise MaintenanceError("this pack is given twice", path=part.path)
        given.append(part.foreign)
        found, expected = (one.layout.dtype for one in (part.foreign, given[0]))
        if found != expected:
            text = f"rows of type {found.descr}; expected {expected.descr}, as in {parts[0].path.name}"
            raise MaintenanceError(text, path=part.path, hint="convert both: tape2048 convert --to pack48")
    if len(parts) < 2:
        raise MaintenanceError(f"found {counted(len(parts), 'pack')}, expected at least two")
    return given


def _joint_names(parts: Sequence[Session], field: str) -> dict[str, int]:
    infos = [_names_in(part, field) for part in parts]
    if all(info.facts.get("names") is None for info in infos):
        return {}
    joint: dict[str, int] = {}
    for part, info in zip(parts, infos, strict=True):
        own = names_of(msgspec.structs.replace(info, facts={"names": None, **info.facts}))
        if own is None:
            text = (
                f"found {info.facts.get('names')!s:.80}; expected another {info.dtype} number for each name"
            )
            hint = 'Write it as {"search": 0}, {"0": "search"} or ["search"].'
            raise MaintenanceError(text, path=part.path / f"{field}s.json", hint=hint)
        most = np.iinfo(info.numpy_dtype).max + 1
        found = join_names(joint, own, most)
        if found is None:
            text = f"found {len({*joint, *own})} names; expected at most {most} for {info.dtype} numbers"
            raise MaintenanceError(text, path=part.path / f"{field}s.json", hint="Merge fewer packs.")
        joint = found
    return joint


def _names_in(part: Session, field: str) -> ColumnInfo:
    """Describe a field of a session's rows; rows without it get the name of converted runs."""
    if part.foreign is not None and part.columns.is_field(field):
        return part.columns[field]
    return ColumnInfo(field, "u8", facts={"names": _CONVERTED})


def _pieces(
    parts: Sequence[Session],
    given: Sequence[ForeignRows],
    tables: Sequence[NDArray[np.void]],
    names: dict[str, dict[str, int]],
    progress: Callable[[int, int], object],
) -> Iterator[NDArray[np.void]]:
    first, done, total = 0, 0, sum(int(rows.counts.sum()) for rows in given)
    for part, rows, table in zip(parts, given, tables, strict=True):
        ids, run = table["run_id"], rows.layout.run
        order = np.argsort(ids)
        for place, count in zip(rows.file_begins.tolist(), rows.counts.tolist(), strict=True):
            for at in range(place, place + count, _PIECE_ROWS):
                piece = rows.take(np.arange(at, min(at + _PIECE_ROWS, place + count)))
                places = np.searchsorted(ids, piece[run].astype(np.uint64), sorter=order)
                found = order[np.minimum(places, len(ids) - 1)]
                known = ids[found] == piece[run]
                piece = piece[known]
                piece[run] = first + found[known]
                for field, joint in names.items():
                    if (own := part.columns[field].facts["names"]) != joint:
                        piece[field] = renumbered(piece[field], own, joint, part.path / f"{field}s.json")
                yield piece
                done += len(piece)
                progress(done, total)
        first += len(table)
        if rows.without_run:
            text = "%s: left out %s of runs that are not in the run table"
            logging.getLogger("tape2048").warning(text, part.path, counted(rows.without_run, "row"))
