"""Full verification of a data set or a pack.dat.

Opening a data set makes the checks whose cost grows with the number of runs. This module makes the others: it
compares every checksum with the manifest, and every row with the run table and the rules of the game.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.findings import Finding, Report
from tape2048.base.threads import map_ordered
from tape2048.errors import BookkeepingError, ChecksumError, FieldError, TapeError
from tape2048.files.reading import crc32c_file, open_regular
from tape2048.game.moves import recover
from tape2048.game.rules import EXPONENT_MAX, boards_to_exps, legal_masks, wins
from tape2048.runs.a2run2 import legal_bits
from tape2048.runs.dataset import OPEN_TRIES, Dataset
from tape2048.runs.packdat import DataPack
from tape2048.session.directory import is_packdat
from tape2048.session.layout import METADATA_DB, RULES_1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_JOB_RUNS = 32  # checked together, on one thread
_NAMED_MAX = 5  # rows that are listed for each kind of defect; further rows are only counted

#: The defects of a row, by number. Of several, the first is reported.
_DEFECTS = {
    1: (BookkeepingError, "belongs to another run"),
    2: (BookkeepingError, "has another step_index than its place in the run"),
    3: (FieldError, f"breaks the rules: {RULES_1}"),
    4: (FieldError, "has a move that is not legal on its board"),
    5: (FieldError, "has an ev_legal that differs from the legal moves of its board"),
    6: (FieldError, "has ev_values that are neither all 0, nor in [0, 1] with 1 for the chosen move"),
    7: (FieldError, "does not lead to the next row's board by one spawn"),
}


def verify_dataset(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> Report:
    """Check a data set or a pack.dat completely.

    Counts, sizes and checksums must match the manifest, and the runs must cover the rows. Each row must have
    the right ``run_id`` and ``step_index``, a legal move, the ``ev_legal`` of its board and normalised
    ``ev_values``. The move and one spawn must lead to the next row's board. No row can have a tile above its
    run's ``highest_tile``.

    Args:
        path: the directory, or the pack.dat.
        progress: function that is called with the bytes read and all bytes; for a pack.dat, with rows.

    Returns:
        All findings. A defect does not raise.

    Example:
        >>> from tape2048.runs import build_dataset, verify_dataset
        >>> _ = build_dataset("verified", "runs")
        >>> verify_dataset("verified").findings
        ()
    """
    place = Path(os.path.abspath(path))
    try:
        if is_packdat(place):
            pack = DataPack.load(place, "mmap")
            found_rows = tuple(row_findings(pack, place, place, progress))
            return Report(str(place), len(pack), len(pack.runs), 1, found_rows)
        for _ in range(OPEN_TRIES):
            dataset = Dataset(place, "mmap")
            findings, checksums = _checksum_findings(dataset, place, progress)
            if (rows := dataset.sessions[0].foreign) is not None and rows.in_place():
                break  # otherwise, the files were exchanged since the data set was opened
    except TapeError as error:
        return Report(str(place), 0, 0, 0, (Finding.of(error),))
    findings += row_findings(dataset, place, place / METADATA_DB)
    return Report(str(place), len(dataset), len(dataset.runs), checksums, tuple(findings))


def _checksum_findings(
    dataset: Dataset, directory: Path, progress: Callable[[int, int], object] | None
) -> tuple[list[Finding], int]:
    files = dataset.sessions[0].files
    total, done = sum(entry.bytes for entry in files.values()), 0
    findings: list[Finding] = []

    def advance(chunk: NDArray[np.uint8]) -> None:
        nonlocal done
        done += len(chunk)
        if progress is not None:
            progress(done, total)

    for number, (name, entry) in enumerate(files.items()):
        path = directory / name
        try:
            with open_regular(path) as fd:
                found = crc32c_file(fd, entry.bytes, path, on_chunk=advance)
        except TapeError as error:
            return [*findings, Finding.of(error)], number
        if found != entry.crc32c:
            message = f"has CRC-32C {found:08x}. The manifest says {entry.crc32c:08x}"
            findings.append(Finding.of(ChecksumError(message, path=path)))
    return findings, len(files)


def row_findings(
    source: Dataset | DataPack, path: Path, table: Path, progress: Callable[[int, int], object] | None = None
) -> Iterator[Finding]:
    """Check every row against the run table and the rules of the game, and yield the findings.

    ``source`` is not a view. Findings about rows name ``path``, and findings about the run table ``table``.
    """
    runs, done, counts = source.runs, 0, dict.fromkeys(_DEFECTS, 0)
    jobs = [runs[first : first + _JOB_RUNS] for first in range(0, len(runs), _JOB_RUNS)]
    for job, (kinds, owners, tiles) in zip(
        jobs, map_ordered(lambda job: _check_job(source, job), jobs), strict=True
    ):
        for row in np.flatnonzero(kinds).tolist():
            error, text = _DEFECTS[kind := int(kinds[row])]
            counts[kind] += 1
            if counts[kind] <= _NAMED_MAX:
                run = job[owners[row]]
                where = f"run {run['run_id']}, from row {run['first_row']}"
                yield Finding.of(error(f"row {job['first_row'][0] + row} {text} ({where})", path=path))
        for run, tile in zip(job, tiles.tolist(), strict=True):
            if tile > run["highest_tile"]:
                found = f"run {run['run_id']} has highest_tile {run['highest_tile']}"
                text = f"{found}, but its rows show a {tile}"
                yield Finding.of(BookkeepingError(text, path=table))
        done += len(kinds)
        if progress is not None:
            progress(done, len(source))
    for kind, (error, text) in _DEFECTS.items():
        if counts[kind] > _NAMED_MAX:
            yield Finding.of(error(f"each of {counts[kind]} rows {text}", path=path))


def _check_job(source: Dataset | DataPack, runs: NDArray[np.void]) -> tuple[NDArray[np.int64], ...]:
    """Check some runs; return each row's defect (0: none) and run, and each run's highest tile on boards."""
    first, lengths = int(runs["first_row"][0]), runs["steps"].astype(np.int64)
    owners = np.repeat(np.arange(len(runs)), lengths)
    rows = source.get_batch(np.arange(first, first + len(owners)))
    boards, moves = np.ascontiguousarray(rows["board"]), np.minimum(rows["move"], 3)
    masks, exps = legal_masks(boards), boards_to_exps(boards)
    legal, values = rows["ev_legal"], rows["ev_values"]
    if isinstance(source, DataPack):  # it has no mask of all legal moves, and its values have 16 bits
        legal, values = masks, np.zeros((len(rows), 4), np.float32)
    unfit = ~((values == 0) | (legal_bits(masks) & (values >= 0) & (values <= 1))).all(axis=1)
    unfit |= (values != 0).any(axis=1) & (values[np.arange(len(rows)), moves] != 1)
    astray = np.zeros(len(rows), np.bool_)
    if len(rows) > 1:
        astray[:-1] = (recover(boards, moves[:-1]).moves != moves[:-1]) & (owners[1:] == owners[:-1])
    illegal = (rows["move"] > 3) | (masks >> moves & 1 == 0)
    old = (illegal | (legal != masks) | astray) & ((exps == EXPONENT_MAX).sum(axis=1) > 1)
    for row in np.flatnonzero(old).tolist():
        old[row] = any(wins(boards[row], move) for move in range(4))
    misplaced = rows["step_index"] != np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[owners]
    other = rows["run_id"] != runs["run_id"][owners]
    defects = [other, misplaced, old, illegal, legal != masks, unfit, astray]
    tiles = np.zeros(len(runs), np.int64)
    np.maximum.at(tiles, owners, 1 << exps.max(axis=1, initial=0).astype(np.int64))
    return np.select(defects, list(_DEFECTS), 0), owners, tiles
