"""The one decoding of a session on tape: what it lets through, what it refuses, what it writes."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import reference

from tape2048.errors import BookkeepingError, FieldError, FormatError, ReplayError, TruncatedError
from tape2048.files.reading import crc32c_file
from tape2048.game.rules import exps_to_boards
from tape2048.session.layout import METADATA_DB, STEP_DTYPE, FileEntry
from tape2048.session.metadata import read_metadata
from tape2048.session.session import sessions
from tape2048.session.tape_layout import ANCHOR_ROWS, ANCHORS_NPY, TAPE_HEADER_BYTES, TAPE_NPY
from tape2048_recorder.recording import publish as tape_pass
from tape2048_recorder.recording.partial import PartialSession
from tape2048_recorder.recording.publish import decode_games
from tape2048_recorder.recording.world import REAL, at_once

from ..checks import published_runs
from ..materials import Blocks, Prepared, make_facts, publish


def written(root: Path, blocks: Blocks) -> PartialSession:
    """A partial session on tape with these blocks."""
    session = PartialSession(root, make_facts(storage="tape"), 1)
    for block in blocks:
        block.record(session)
    return session


def runs_of(session: PartialSession) -> NDArray[np.void]:
    return np.concatenate([block.runs for block in session.blocks])


def decoded(session: PartialSession) -> tuple[NDArray[np.uint64], bytes]:
    """What comes of a staged session, and the file of anchors."""
    entry, starts = at_once(decode_games(REAL, session.steps_path.parent, runs_of(session)))
    path = session.steps_path.with_name(ANCHORS_NPY)
    content = path.read_bytes()
    with path.open("rb") as file:
        assert entry == FileEntry(len(content), crc32c_file(file.fileno(), len(content), path))
    path.unlink()
    return starts, content


def boards_of(blocks: Blocks) -> NDArray[np.uint64]:
    rows = np.concatenate([np.frombuffer(block.data, STEP_DTYPE) for block in blocks])
    return exps_to_boards(rows["exps"])


def changed(block: Prepared, at: int, byte: int) -> Prepared:
    data = bytearray(block.data)
    data[at] = byte
    return block._replace(data=bytes(data))


def test_a_published_tape_holds_the_games_of_the_rows(
    root: Path, blocks: Blocks, tape_blocks: Blocks
) -> None:
    session = written(root, tape_blocks)
    published = publish(root, session)
    (path,) = sessions(root)
    boards = boards_of(blocks)
    tape = np.load(path / TAPE_NPY, allow_pickle=False)
    assert (tape.dtype, tape.tobytes()) == (np.uint8, b"".join(block.data for block in tape_blocks))
    anchors = np.load(path / ANCHORS_NPY, allow_pickle=False)
    assert (anchors.dtype, anchors.tolist()) == (np.uint64, boards[::ANCHOR_ROWS].tolist())
    found = read_metadata(path / METADATA_DB)
    assert found.start_boards.tolist() == boards[found.runs["first_row"]].tolist()
    assert (found.session["storage"], found.session["rows"]) == ("tape", len(boards))
    assert published.bytes == sum(file.stat().st_size for file in path.iterdir())
    assert len(published_runs(root)) == 18


@pytest.mark.parametrize("rows", [1, 130, 999, 1 << 17])
def test_pieces_of_any_size_give_the_same_anchors(
    root: Path, tape_blocks: Blocks, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    session = written(root, tape_blocks)
    whole, content = decoded(session)
    monkeypatch.setattr(tape_pass, "_PIECE_ROWS", rows)
    again, same = decoded(session)
    assert same == content
    assert again.tolist() == whole.tolist()
    first = reference.new_game(int(runs_of(session)["seed"][0]))[0]
    assert whole[0] == reference.pack(first)


@pytest.mark.parametrize("field", ["steps", "score", "highest_tile"])
def test_a_wrong_report_is_not_published(root: Path, tape_blocks: Blocks, field: str) -> None:
    runs = tape_blocks[1].runs.copy()
    runs[field][2] += 4
    session = written(root, [tape_blocks[0], tape_blocks[1]._replace(runs=runs), tape_blocks[2]])
    with pytest.raises(BookkeepingError, match=f"run {runs['run_id'][2]}.*{field} is") as caught:
        publish(root, session)
    assert caught.value.path == str(session.steps_path)
    assert sessions(root) == []
    assert session.steps_path.exists(), "the blocks stay"


def test_a_seed_of_another_game_is_not_published(root: Path, tape_blocks: Blocks) -> None:
    runs = tape_blocks[0].runs.copy()
    runs["seed"][1] += 1
    session = written(root, [tape_blocks[0]._replace(runs=runs)])
    with pytest.raises(FormatError, match=f"run {runs['run_id'][1]}"):
        publish(root, session)


@pytest.mark.parametrize(
    ("at", "bits", "kind"),
    [(0, 0x80, FieldError), (50, 0x80, FieldError), (-1, 0x3C, ReplayError)],
    ids=["first", "middle", "last tile elsewhere"],
)
def test_a_wrong_byte_is_not_published(
    root: Path, tape_blocks: Blocks, at: int, bits: int, kind: type[FormatError]
) -> None:
    block = tape_blocks[1]
    step = at % int(block.runs["rows"][1])
    row = int(block.runs["first_row"][1]) + step
    session = written(root, [tape_blocks[0], changed(block, row, block.data[row] ^ bits)])
    with pytest.raises(kind, match=f"run {block.runs['run_id'][1]}, step {step}: ") as caught:
        publish(root, session)
    assert caught.value.offset == TAPE_HEADER_BYTES + tape_blocks[0].rows + row
    assert sessions(root) == []


def test_a_tape_that_ends_too_early_is_named(root: Path, tape_blocks: Blocks) -> None:
    session = written(root, tape_blocks[:2])
    size = session.steps_path.stat().st_size
    os.truncate(session.steps_path, size - 1)
    with pytest.raises(TruncatedError) as caught:
        decoded(session)
    assert caught.value.offset == size - 1


def test_runs_that_leave_a_gap_are_refused(root: Path, tape_blocks: Blocks) -> None:
    session = written(root, tape_blocks[:2])
    with pytest.raises(BookkeepingError, match="one after the other"):
        at_once(decode_games(REAL, session.steps_path.parent, runs_of(session)[[0, 2]]))
