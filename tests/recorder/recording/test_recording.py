"""The sessions of a recorder without its processes: where blocks go, when sessions close, when to pause."""

import errno
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from tape2048 import Session, validate_session
from tape2048.session.layout import METADATA_DB, RUN_DTYPE, STEP_DTYPE, STEPS_HEADER_BYTES, STEPS_NPY
from tape2048.session.session import sessions
from tape2048_recorder.ipc.protocol import BlockWritten, Range, WriteFailed
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recording.partial import Facts
from tape2048_recorder.recording.publish import PublishOutcome
from tape2048_recorder.recording.recording import (
    GAME_ROWS_MIN,
    RECOUNT_S,
    RETRY_S,
    RUN_BYTES,
    SESSION_BYTES,
    Recording,
)

from ..disks import files_end_at
from ..materials import Prepared
from ..processes import wait_until

GAME_ROWS = 10


def facts(_config: RecorderConfig, started_at: str, _generation: int = 0) -> Facts:
    return Facts(
        format_version=1,
        engine="test",  # no game of ours: its boards do not follow one another
        player="random",
        player_args={},
        player_sha256="0" * 64,
        seed=1,
        sample_rate=1,
        record_action=False,
        model_tag="test",
        host="here",
        instance="default",
        started_at=started_at,
        config={},
        config_sha256="0" * 64,
    )


class Blocks:
    """Writes blocks of games that look like games, with ids that go up."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.next_id = 0

    def write(self, place: Range, games: int) -> BlockWritten:
        rows = np.zeros(games * GAME_ROWS, dtype=STEP_DTYPE)
        ids = np.arange(self.next_id, self.next_id + games)
        self.next_id += games
        rows["run_id"] = ids.repeat(GAME_ROWS)
        rows["step_idx"] = np.tile(np.arange(GAME_ROWS), games)
        rows["exps"][:, :2] = 1
        with Path(place.path).open("r+b") as file:
            file.seek(STEPS_HEADER_BYTES + place.first_row * STEP_DTYPE.itemsize)
            file.write(rows.tobytes())
        runs = np.zeros(games, dtype=RUN_DTYPE)
        runs["run_id"] = ids
        runs["seed"] = ids + 1000
        runs["first_row"] = np.arange(games) * GAME_ROWS
        runs["rows"] = runs["steps"] = GAME_ROWS
        runs["score"], runs["highest_tile"] = 4, 4
        return BlockWritten(place.session, place.first_row, len(rows), crc32c(rows.tobytes()), runs.tobytes())


Make = Callable[..., Recording]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Recording] = []

    def recording(**settings: object) -> Recording:
        config = RecorderConfig(out_dir=str(tmp_path), min_free_mb=0, **settings)  # type: ignore[arg-type]
        made.append(Recording(tmp_path, config, facts))
        return made[-1]

    yield recording
    for each in made:
        each.publisher.close()


def published_by(recording: Recording) -> list[Path]:
    """Wait until every closed session is published; return their paths."""
    outcomes = list[PublishOutcome]()

    def idle() -> bool:
        outcomes.extend(recording.outcomes())
        return recording.idle

    wait_until(idle)
    return [each.published.path for each in outcomes if each.published and each.published.path]


def test_a_session_closes_at_rotate_steps(make: Make) -> None:
    recording = make(rotate_steps=100)
    blocks = Blocks(recording)
    for _ in range(4):
        recording.confirm(blocks.write(recording.place(50), 5))
    paths = published_by(recording)
    assert [len(Session.open(path)) for path in paths] == [100, 100]
    assert [validate_session(path).findings for path in paths] == [(), ()]


@pytest.mark.parametrize("how", ["released", "failed"])
def test_releasing_the_last_range_publishes(make: Make, how: str) -> None:
    recording = make()
    blocks = Blocks(recording)
    first, hole, last = (recording.place(50) for _ in range(3))
    recording.confirm(blocks.write(first, 5))
    recording.confirm(blocks.write(last, 5))
    recording.close_open()
    assert not recording.idle
    if how == "released":
        recording.release(hole)
    else:
        recording.write_failed(WriteFailed(hole.session, hole.first_row, errno.ENOSPC))
    (path,) = published_by(recording)
    session = Session.open(path)
    assert len(session) == 100
    assert session.runs["run_id"].tolist() == list(range(10))
    assert validate_session(path).findings == ()


def test_only_rows_at_the_end_are_reused(make: Make) -> None:
    recording = make()
    blocks = Blocks(recording)
    first, middle, last = (recording.place(50) for _ in range(3))
    recording.confirm(blocks.write(last, 5))
    recording.release(middle)
    behind = recording.place(50)
    assert behind.first_row == 150, "where the last one is written, nothing else is"
    recording.release(behind)
    again = recording.place(50)
    assert again == behind
    for place in (first, again):
        recording.confirm(blocks.write(place, 5))
    recording.close_open()
    (path,) = published_by(recording)
    assert len(Session.open(path)) == 150
    assert validate_session(path).findings == ()


def test_an_old_session_closes_if_it_holds_rows(make: Make) -> None:
    recording = make(rotate_s=0.05)
    blocks = Blocks(recording)
    place = recording.place(50)
    time.sleep(0.06)
    recording.rotate_if_due()
    assert not recording.idle
    recording.confirm(blocks.write(place, 5))
    (path,) = published_by(recording)
    assert len(Session.open(path)) == 50


@pytest.mark.parametrize("code", [errno.EFBIG, errno.ENOENT, errno.ESTALE])
def test_a_file_that_cannot_grow_ends_its_session(make: Make, code: int) -> None:
    recording = make()
    blocks = Blocks(recording)
    recording.confirm(blocks.write(recording.place(50), 5))
    refused = recording.place(50)
    recording.write_failed(WriteFailed(refused.session, refused.first_row, code))
    assert (recording.why_not(50) is None) is (code == errno.EFBIG), "another session has room at once"
    again = recording.place(50)
    assert (again.session, again.first_row) == (refused.session + 1, 0)
    recording.confirm(blocks.write(again, 5))
    recording.close_open()
    assert [len(Session.open(path)) for path in published_by(recording)] == [50, 50]


def test_metadata_near_the_largest_file_ends_its_session(make: Make) -> None:
    recording = make()
    blocks = Blocks(recording)
    with files_end_at(SESSION_BYTES + 9 * 2 * RUN_BYTES):
        for _ in range(4):
            recording.confirm(blocks.write(recording.place(50), 5))
        paths = published_by(recording)
    assert [len(Session.open(path)) for path in paths] == [100, 100]


def test_a_pause_for_publishing_says_what_the_last_session_took(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = make()
    blocks = Blocks(recording)
    recording.confirm(blocks.write(recording.place(50), 5))
    recording.close_open()
    published_by(recording)
    monkeypatch.setattr(recording.publisher, "queue", [None] * 3)
    why = recording.why_not(50)
    backlog, _, measured = why.partition("; ")
    assert backlog == "publishing is behind: 3 closed sessions are not published yet"
    assert re.fullmatch(r"the last one took \d+\.\d s for 0\.0 MB", measured)


def test_too_little_space_is_a_reason_with_figures(tmp_path: Path) -> None:
    config = RecorderConfig(out_dir=str(tmp_path), min_free_mb=10**9)
    recording = Recording(tmp_path, config, facts)
    why = recording.why_not(50)
    recording.publisher.close()
    assert "the disk is full" in why
    assert "min_free_mb = 1000000000" in why
    recording.draining = True
    assert recording.why_not(50) is None, "the last games take what is kept free"


def test_the_size_follows_what_other_processes_do(make: Make, tmp_path: Path) -> None:
    def others() -> Path:
        session = tmp_path / "20260101T000000Z_model=others"
        session.mkdir()
        (session / METADATA_DB).touch()
        with (session / STEPS_NPY).open("wb") as file:
            file.truncate(2_000_000)
        return session

    recording = make(max_disk_mb=1)
    session = others()
    assert recording.size_bytes(0.0) == 2_000_000
    shutil.rmtree(session)
    assert recording.size_bytes(1.0) == 0, "a limit was met by what is gone"
    others()
    assert recording.size_bytes(2.0) == 0
    assert recording.size_bytes(1.0 + RECOUNT_S) == 2_000_000

    shutil.rmtree(session)
    blocks = Blocks(recording)  # a session that is seen before its outcome is heard counts once
    recording.confirm(blocks.write(recording.place(50), 5))
    recording.close_open()
    wait_until(lambda: sessions(tmp_path))
    size = recording.size_bytes(1000.0)
    assert 0 < size < 1_000_000
    published_by(recording)
    assert recording.size_bytes(1001.0) == size
    row_bytes = STEP_DTYPE.itemsize + (5 + 1) / (50 + GAME_ROWS_MIN) * RUN_BYTES
    assert recording.size_bytes(1002.0, 50) == size + SESSION_BYTES + int(50 * row_bytes)
    recording.confirm(blocks.write(recording.place(50), 5))
    row_bytes = STEP_DTYPE.itemsize + (10 + 1) / (100 + GAME_ROWS_MIN) * RUN_BYTES
    assert recording.size_bytes(1003.0) == size + SESSION_BYTES + int(50 * row_bytes)


def test_a_full_spool_waits_until_sessions_are_removed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = make(spool_max_mb=1)
    now = 100.0
    monkeypatch.setattr(type(recording.world), "now", property(lambda _: now))
    rows = int((1_000_000 - SESSION_BYTES) / (STEP_DTYPE.itemsize + RUN_BYTES / GAME_ROWS_MIN))
    assert recording.why_not(rows + 1) is None, "nothing is there that could go"
    others = tmp_path / "20260101T000000Z_model=others"
    others.mkdir()
    (others / STEPS_NPY).write_bytes(bytes(500_000))
    now += RECOUNT_S
    rows = int((500_000 - SESSION_BYTES) / (STEP_DTYPE.itemsize + RUN_BYTES / GAME_ROWS_MIN))
    assert recording.why_not(rows) is None
    full = recording.why_not(rows + 2)
    assert full == f"the spool is full: 1 MB of sessions in {tmp_path} (spool_max_mb = 1)"
    shutil.rmtree(others)
    assert recording.why_not(rows + 2) == full, "looked again within a second"
    now += RETRY_S
    assert recording.why_not(rows + 2) is None
    others.mkdir()
    (others / STEPS_NPY).write_bytes(bytes(2_000_000))
    now += RECOUNT_S
    assert recording.why_not(1) is not None
    recording.draining = True
    assert recording.why_not(1) is None


def test_a_tape_counts_with_its_future_anchors(
    tmp_path: Path, tape_blocks: list[Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RecorderConfig(out_dir=str(tmp_path), min_free_mb=0, storage="tape", max_disk_mb=1000)

    def on_tape(config: RecorderConfig, started_at: str, _generation: int) -> Facts:
        return msgspec.structs.replace(facts(config, started_at), storage="tape")

    recording = Recording(tmp_path, config, on_tape)
    block = tape_blocks[0]
    try:
        place = recording.place(block.rows)
        assert Path(place.path).name == "tape.npy"
        with Path(place.path).open("r+b") as file:
            file.seek(128)
            file.write(block.data)
        recording.confirm(block.written(place.session, place.first_row))
        anchors = 8 * -(-block.rows // 16)
        metadata = 4 / (block.rows + GAME_ROWS_MIN) * RUN_BYTES * block.rows
        assert recording.size_bytes(0.0) == SESSION_BYTES + int(block.rows * 1.5 + metadata)
        needed = int(50 * (1.5 + metadata / block.rows)) + int(block.rows / 2 + metadata) + SESSION_BYTES
        for free, has_room in ((needed, True), (needed - 1, False)):
            monkeypatch.setattr(recording, "free_bytes", lambda free=free: free)
            assert (recording.why_not(50) is None) is has_room
        recording.close_open()
        (path,) = published_by(recording)
        files = {file.name: file.stat().st_size for file in path.iterdir()}
        assert files.pop("manifest.json") > 0
        assert recording.size_bytes(2 * RECOUNT_S) == sum(files.values())
        assert files["anchors.npy"] == 128 + anchors
    finally:
        recording.publisher.close()
