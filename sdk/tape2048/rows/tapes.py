"""Tapes of many sessions: in the mappings of their files, read into memory, or decoded to packed boards."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.formats.npy import read_header
from tape2048.formats.session import ANCHOR_DTYPE, ANCHORS_NPY, TAPE_DTYPE, TAPE_NPY
from tape2048.io.bulk_read import Stretch, allocate, read_rows
from tape2048.io.reading import open_regular, read_exactly
from tape2048.rows.row_map import BOARD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.rows.row_map import Segments
    from tape2048.session.session import Session

_U64 = np.uint64

#: Rows that are decoded together, some hundred long games, and most rows of a file between the first and the
#: last of them.
_JOB_ROWS = 1 << 21
_JOB_SPAN_SHIFT = 24


class Tapes(NamedTuple):
    """What decodes the rows of a store's sessions on tape.

    Attributes:
        spans: as in ``row_map.TapeMap``.
        starts: the first board of each run, ``u64[R]``; 0 for a run that is not on tape.
    """

    spans: NDArray[np.uint64]
    starts: NDArray[np.uint64]


def stored_rows(session: Session) -> NDArray[Any]:
    """Return the array of a session's rows, or of their bytes on tape."""
    return session.stored


def map_tapes(sessions: Sequence[Session], chosen: NDArray[np.bool_] | None) -> Tapes:
    """Find the tapes of sessions where they are mapped, and the first boards of the chosen runs."""
    starts = [
        np.zeros(len(session.runs), _U64) if session.tape is None else session.tape.starts
        for session in sessions
    ]
    joined = np.concatenate(starts)
    tapes = [session.tape for session in sessions if session.tape is not None]
    spans = [(*(m.ctypes.data for m in t.memory), t.anchor_rows.bit_length() - 1) for t in tapes]
    return Tapes(np.array(sorted(spans), _U64), joined if chosen is None else joined[chosen])


def read_tapes(
    sessions: Sequence[Session], segments: Segments, report: Callable[[int], object]
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Read the bytes and anchors of segments on tape into one array, and set the segments' addresses in it.

    Returns:
        The array and its spans, one for each stretch of adjacent segments; a stretch begins at an anchor.
    """
    order, begins = segments.in_file_order()
    first = segments.place[order[begins]]
    end = (segments.place + segments.rows)[order[np.append(begins[1:], len(order)) - 1]]
    owner = segments.session[order[begins]]
    tapes = [session.tape for session in sessions]
    shift = np.array([0 if t is None else t.anchor_rows.bit_length() - 1 for t in tapes])[owner]
    anchor = first >> shift
    first = anchor << shift
    sizes = end - first, BOARD_BYTES * (-(-end >> shift) - anchor)
    offsets = {
        (each, name): _data_offset(sessions[each].path / name, dtype)
        for each in np.unique(owner).tolist()
        for name, dtype in ((TAPE_NPY, TAPE_DTYPE), (ANCHORS_NPY, ANCHOR_DTYPE))
    }
    columns = (TAPE_NPY, first, sizes[0]), (ANCHORS_NPY, anchor * BOARD_BYTES, sizes[1])
    array = read_rows(
        [
            Stretch(sessions[each].path / name, offsets[each, name] + offset, size)
            for name, *places in columns
            for each, offset, size in zip(owner.tolist(), *(p.tolist() for p in places), strict=True)
        ],
        progress=report,
    )
    ends = np.cumsum(np.concatenate(sizes))
    address = array.ctypes.data + (ends - np.concatenate(sizes)).reshape(2, -1)
    # Of each segment, the stretch that it lies in.
    which = np.empty(len(order), np.int64)
    which[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
    segments.address[:] = address[0][which] + segments.place - first[which]
    segments.end[:] = (address[0] + sizes[0])[which]
    return array, np.stack([*address, shift], axis=1).astype(_U64)


def _data_offset(path: Path, dtype: np.dtype[Any]) -> int:
    with open_regular(path) as fd:
        return read_header(fd, path, [dtype]).data_offset


def decode_tapes(
    sessions: Sequence[Session],
    segments: Segments,
    runs: NDArray[np.void],
    starts: NDArray[np.uint64],
    report: Callable[[int], object],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Decode whole runs on tape on all cores, and compare them with the rules and with their run table.

    Returns:
        Their boards, and the address of each segment's first board.
    """
    from tape2048.tape.reader import check_games  # loads the compiler

    order, _ = segments.in_file_order()
    place, rows, owner = (column[order] for column in (segments.place, segments.rows, segments.session))
    ends = np.append(0, np.cumsum(rows))
    boards = allocate(int(ends[-1]) * BOARD_BYTES).view(_U64)
    jobs = np.stack([owner, place >> _JOB_SPAN_SHIFT, ends[:-1] // _JOB_ROWS])
    cuts = np.flatnonzero((jobs[:, 1:] != jobs[:, :-1]).any(axis=0)) + 1
    bounds = [0, *cuts.tolist(), len(order)]

    def decode(job: tuple[int, int]) -> int:
        mine = slice(*job)
        session, which = sessions[int(owner[job[0]])], segments.run[order[mine]]
        begin, end = int(place[mine][0]), int(place[mine][-1] + rows[mine][-1])
        path = session.path / TAPE_NPY
        tape = np.empty(end - begin, np.uint8)
        with open_regular(path) as fd:
            offset = read_header(fd, path, [TAPE_DTYPE]).data_offset
            # The disk reads what the next jobs decode, while this one does.
            os.posix_fadvise(fd, offset + end, 2 * len(tape), os.POSIX_FADV_WILLNEED)
            read_exactly(fd, tape, offset + begin, path)
        if len(tape) > rows[mine].sum():  # other runs lie between them
            gaps = place[mine] - begin - np.append(0, place[mine][:-1] + rows[mine][:-1] - begin)
            lengths = np.stack([gaps, rows[mine]], axis=1).reshape(-1)
            tape = tape[np.repeat(np.tile([False, True], len(which)), lengths)]
        table = runs[which]
        table["first_row"] = ends[mine] - ends[job[0]]
        out = boards[ends[job[0]] : ends[job[1]]]
        for defect in check_games(tape, table, starts[which], out).defects:
            raise defect.error(runs[which[defect.game]], path, offset)
        return end - begin

    for done in map_ordered(decode, itertools.pairwise(bounds)):
        report(done)
    addresses = np.empty(len(order), _U64)
    addresses[order] = _U64(boards.ctypes.data) + ends[:-1].astype(_U64) * _U64(BOARD_BYTES)
    boards.flags.writeable = False
    return boards, addresses
