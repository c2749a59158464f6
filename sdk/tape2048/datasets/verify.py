"""Full verification of a data set.

Opening makes the checks whose cost is in proportion to the runs; this module makes the others: every checksum
of the manifest, and every row against the run table and the rules of the game.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from tape2048.base.findings import Finding, Report
from tape2048.base.threads import map_ordered
from tape2048.datasets.dataset import Dataset
from tape2048.datasets.directory import is_packdat, open_directory
from tape2048.datasets.packdat import DataPack
from tape2048.errors import BookkeepingError, ChecksumError, FieldError, TapeError
from tape2048.formats.dataset_layout import METADATA_DB
from tape2048.game.rules import empty_mask, legal_mask, legal_masks, slide
from tape2048.io.crc import crc32c_file
from tape2048.io.reading import open_regular
from tape2048.jit.compiler import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

U64 = np.uint64

#: Runs that are checked together, on one thread.
_JOB_RUNS = 32

#: Rows that are named of each kind of defect; others are counted.
_NAMED_MAX = 5

_RUN_ID, _STEP_INDEX, _MOVE, _LEGAL, _VALUES, _NEXT = range(1, 7)
_DEFECTS = {
    _RUN_ID: (BookkeepingError, "belongs to another run"),
    _STEP_INDEX: (BookkeepingError, "has another step_index than its place in the run"),
    _MOVE: (FieldError, "has a move that is not legal on its board"),
    _LEGAL: (FieldError, "has an ev_legal that is not the board's"),
    _VALUES: (FieldError, "has ev_values that are neither all 0, nor in [0, 1] with the chosen one 1"),
    _NEXT: (FieldError, "does not lead to the next row's board by one spawn"),
}


@register_jitable
def _values_fit(values: Any, mask: Any, move: Any) -> Any:
    """Check that values are in [0, 1], 0 for illegal moves, and either all 0 or 1 for the chosen move."""
    any_value = False
    for m in range(4):
        value = values[m]
        any_value |= value != np.float32(0)
        legal = mask >> U64(m) & U64(1)
        if not (value == np.float32(0) or (legal and np.float32(0) <= value <= np.float32(1))):
            return False
    return not any_value or values[move] == np.float32(1)


@register_jitable
def _leads_to(after: Any, board: Any) -> Any:
    """Check that a board is an afterstate and one spawned tile, a 2 or a 4."""
    spawn = board ^ after
    empty = empty_mask(after)
    return (
        spawn != U64(0)
        and spawn & (spawn - U64(1)) == U64(0)
        and (spawn & (empty | empty << U64(1)) == spawn)
    )


@kernel
def _defect(rows: Any, i: int, last: Any) -> int:
    """Return the kind of defect of row ``i`` of a run, or 0."""
    boards, moves, legal, values = rows
    mask = legal_mask(boards[i])
    move = U64(moves[i])
    if move > U64(3) or not mask >> move & U64(1):
        return _MOVE
    if U64(legal[i]) != mask:
        return _LEGAL
    if not _values_fit(values[i], mask, move):
        return _VALUES
    if not last and not _leads_to(slide(boards[i], move), boards[i + 1]):
        return _NEXT
    return 0


@kernel
def _check_rows(rows: Any, places: Any, runs: Any, found: Any) -> int:
    """Check whole runs: fill ``found`` with (kind, row, run ordinal) of bad rows, return their number."""
    ids, steps = places
    run_ids, lengths = runs
    row = 0
    count = 0
    for run in range(len(run_ids)):
        for step in range(lengths[run]):
            kind = 0
            if ids[row] != run_ids[run]:
                kind = _RUN_ID
            elif steps[row] != step:
                kind = _STEP_INDEX
            else:
                kind = _defect(rows, row, step + 1 == lengths[run])
            if kind:
                if count < len(found):
                    found[count, 0] = kind
                    found[count, 1] = row
                    found[count, 2] = run
                count += 1
            row += 1
    return count


def verify_dataset(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> Report:
    """Check a data set or a pack.dat completely.

    The checks: the manifest's counts, sizes and checksums; the runs cover the rows; each row's ``run_id`` and
    ``step_index``; its move is legal, its ``ev_legal`` the board's, its ``ev_values`` normalised; move and
    one spawn lead to the next row's board; each run's ``highest_tile`` is not below the tiles of its rows.

    Args:
        path: the directory, or the pack.dat.
        progress: called with the bytes read and all bytes; of a pack.dat, with the rows.

    Returns:
        All findings; a defect does not raise.

    Example:
        >>> from tape2048.conversion import build_dataset
        >>> from tape2048.datasets import verify_dataset
        >>> _ = build_dataset("verified", "runs")
        >>> verify_dataset("verified").findings
        ()
    """
    directory = Path(os.path.abspath(path))
    findings: list[Finding] = []
    checksums = 0
    try:
        if is_packdat(directory):
            pack = DataPack.load(directory, "mmap")
            found_rows = tuple(row_findings(pack, directory, directory, progress))
            return Report(str(directory), len(pack), len(pack.runs), 1, found_rows)
        dataset = Dataset.open(directory, load="mmap")
    except TapeError as error:
        return Report(str(directory), 0, 0, 0, (Finding.of(error),))
    total = sum(part.stat().st_size for part in directory.rglob("*") if part.is_file())
    done = 0

    def advance(chunk: NDArray[np.uint8]) -> None:
        nonlocal done
        done += len(chunk)
        if progress is not None:
            progress(min(done, total), total)

    try:
        with ExitStack() as stack:
            opened = open_directory(directory, stack)  # keeps the files open, whatever happens to their names
            files = opened.manifest.files if opened.manifest is not None else {}
            by_name = {str(file.path.relative_to(directory)): file.fd for file in opened.files}
            for name, entry in files.items():
                fd = by_name.get(name)
                if fd is None:
                    fd = stack.enter_context(open_regular(directory / name))
                found = crc32c_file(fd, entry.bytes, directory / name, on_chunk=advance)
                checksums += 1
                if found != entry.crc32c:
                    message = f"has CRC-32C {found:08x}; the manifest says {entry.crc32c:08x}"
                    findings.append(Finding.of(ChecksumError(message, path=directory / name)))
    except TapeError as error:
        findings.append(Finding.of(error))
    findings += row_findings(dataset, directory, directory / METADATA_DB)
    return Report(str(directory), len(dataset), len(dataset.runs), checksums, tuple(findings))


def row_findings(
    source: Dataset | DataPack, path: Path, table: Path, progress: Callable[[int, int], object] | None = None
) -> Iterator[Finding]:
    """Check every row against the run table and the rules.

    Args:
        source: whole, not a view.
        path: of the source, named in findings.
        table: file of the run table, named in findings.
        progress: called with the rows checked and all rows.
    """
    runs = source.runs
    done = 0
    counts = dict.fromkeys(_DEFECTS, 0)
    jobs = [range(first, min(first + _JOB_RUNS, len(runs))) for first in range(0, len(runs), _JOB_RUNS)]
    for job, (bad, total, tiles) in zip(
        jobs, map_ordered(lambda job: _check_job(source, job), jobs), strict=True
    ):
        done += int(runs["steps"][job.start : job.stop].sum())
        if progress is not None:
            progress(done, len(source))
        for kind, row, run in bad:
            counts[kind] += 1
            if counts[kind] <= _NAMED_MAX:
                error, text = _DEFECTS[kind]
                where = f"run {runs['id'][run]}, from row {runs['first_row'][run]}"
                yield Finding.of(error(f"row {row} {text} ({where})", path=path))
        if total > len(bad):
            yield Finding.of(FieldError(f"{total - len(bad)} more bad rows", path=path))
        for run, tile in tiles:
            claimed = runs["highest_tile"][run]
            text = f"run {runs['id'][run]} has highest_tile {claimed}, but its rows show a {tile}"
            yield Finding.of(BookkeepingError(text, path=table))
    for kind, count in counts.items():
        if count > _NAMED_MAX:
            error, text = _DEFECTS[kind]
            yield Finding.of(error(f"{count} rows, each of which {text}", path=path))


def _check_job(
    source: Dataset | DataPack, job: range
) -> tuple[list[tuple[int, int, int]], int, list[tuple[int, int]]]:
    """Check some runs: bad rows, their number, and the runs with a higher tile than they claim."""
    runs = source.runs[job.start : job.stop]
    first, last = source.rows_of(job.start).start, source.rows_of(job.stop - 1).stop
    rows = source.get_batch(np.arange(first, last))
    if isinstance(source, DataPack):  # has no mask of all legal moves, and values of 16 bits
        rows["ev_legal"], rows["ev_values"] = legal_masks(rows["board"]), 0
    lengths = runs["steps"].astype(np.int64)
    columns: tuple[NDArray[Any], ...] = tuple(
        np.ascontiguousarray(rows[name]) for name in ("board", "move", "ev_legal", "ev_values")
    )
    found = np.zeros((1000, 3), np.int64)
    ids, steps = (rows[name].astype(np.uint32) for name in ("run_id", "step_index"))
    count = int(_check_rows(columns, (ids, steps), (runs["id"].astype(np.uint32), lengths), found))
    bad = [(int(kind), first + int(row), job.start + int(run)) for kind, row, run in found[:count].tolist()]
    tiles = []
    if len(rows):
        boards = columns[0]
        nibbles = [(boards >> U64(4 * cell) & U64(15)).astype(np.uint8) for cell in range(16)]
        highest = np.maximum.reduce(nibbles)
        filled = np.flatnonzero(lengths)
        begins = (np.cumsum(lengths) - lengths)[filled]
        shown = 1 << np.maximum.reduceat(highest, begins).astype(np.int64)
        for run, tile in zip(filled.tolist(), shown.tolist(), strict=True):
            if tile > int(runs["highest_tile"][run]):
                tiles.append((job.start + run, tile))
    return bad, count, tiles
