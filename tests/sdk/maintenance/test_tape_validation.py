"""Validation of sessions on tape: every game is decoded, in pieces, and each defect named."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from tests import reference as ref

from tape2048.base.findings import Finding
from tape2048.maintenance import validation as module
from tape2048.maintenance.removal import explain_refusal
from tape2048.maintenance.validation import validate_session

from ..builders import NAME, change_database, write_manifest
from ..tapes import games_on_tape, write_tape

GAMES = games_on_tape(3, 1, 4, 15, 9, 2, 6)
ROWS = len(GAMES.tape)
FIRST = GAMES.runs["first_row"].astype(int)


@pytest.fixture(autouse=True, params=[1, 150, 1 << 18], ids=["game by game", "small pieces", "one piece"])
def piece_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", request.param)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_tape(tmp_path / NAME, GAMES)


def seal(directory: Path, **changes: object) -> None:
    """Write block checksums and a manifest that fit the changed files."""
    write_manifest(directory, rows=ROWS, runs=len(GAMES.runs), **changes)


def put(directory: Path, name: str, at: int, values: bytes) -> None:
    """Change bytes, and all checksums with them."""
    path = directory / name
    data = bytearray(path.read_bytes())
    data[at : at + len(values)] = values
    path.write_bytes(data)
    checksum = crc32c((directory / "tape.npy").read_bytes()[128:])
    change_database(
        directory / "metadata.db",
        f"DELETE FROM blocks; INSERT INTO blocks VALUES (0, {ROWS}, {checksum})",
    )
    seal(directory)


def only(directory: Path) -> Finding:
    (finding,) = validate_session(directory).findings
    return finding


def test_a_sparse_tape_is_not_read(own: Path) -> None:
    """Its header contradicts its length, whatever the manifest says."""
    os.truncate(own / "tape.npy", 1 << 40)
    assert str(own / "tape.npy") in {found.path for found in validate_session(own).findings}


class TestSound:
    def test_a_sound_session(self, own: Path) -> None:
        seen: list[tuple[int, int]] = []
        report = validate_session(own, progress=lambda done, total: seen.append((done, total)))
        assert report.ok
        assert (report.rows, report.runs) == (ROWS, len(GAMES.runs))
        assert report.checksums == 3 + -(-ROWS // 100)
        total = sum((own / name).stat().st_size for name in ("tape.npy", "anchors.npy", "metadata.db"))
        assert seen[-1] == (total, total)

    @pytest.mark.parametrize("anchor_rows", [1, 4, 1024])
    def test_any_distance_of_anchors(self, tmp_path: Path, anchor_rows: int) -> None:
        assert validate_session(write_tape(tmp_path / NAME, GAMES, anchor_rows=anchor_rows)).ok

    def test_no_games(self, tmp_path: Path) -> None:
        assert validate_session(write_tape(tmp_path / NAME, games_on_tape())).ok


class TestGames:
    def test_a_byte_with_bit_7(self, own: Path) -> None:
        at = FIRST[2] + 11
        put(own, "tape.npy", 128 + at, bytes([GAMES.tape[at] | 128]))
        finding = only(own)
        assert finding.error == "FieldError"
        assert finding.message.startswith("run 9, step 11: byte 0x")
        assert (finding.path, finding.offset) == (str(own / "tape.npy"), 128 + at)

    def test_defects_of_a_kind_are_counted(self, own: Path) -> None:
        data = bytearray((own / "tape.npy").read_bytes())
        for game in (1, 2, 5):
            data[128 + FIRST[game] + 3] |= 128
        put(own, "tape.npy", 0, bytes(data))
        assert only(own).message.endswith("(3 runs like it)")

    def test_an_illegal_move(self, own: Path) -> None:
        at = next(
            i for i in range(FIRST[4], ROWS) if len(ref.legal_moves(ref.unpack(int(GAMES.boards[i])))) < 4
        )
        cells = ref.unpack(int(GAMES.boards[at]))
        move = next(move for move in range(4) if move not in ref.legal_moves(cells))
        put(own, "tape.npy", 128 + at, bytes([(int(GAMES.tape[at]) & ~3) | move]))
        finding = only(own)
        assert finding.error == "ReplayError"
        assert f": move {move} is illegal on board {int(GAMES.boards[at]):#018x}" in finding.message
        assert finding.offset == 128 + at

    def test_a_spawn_on_a_full_cell(self, own: Path) -> None:
        at = FIRST[6]
        after, _ = ref.slide(ref.unpack(int(GAMES.boards[at])), int(GAMES.moves[at]))
        cell = next(cell for cell in range(16) if after[cell])
        put(own, "tape.npy", 128 + at, bytes([int(GAMES.moves[at]) | cell << 2]))
        finding = only(own)
        assert finding.error == "ReplayError"
        assert f"run 13, step 0: a tile appears in cell {cell}, which is full" in finding.message

    def test_a_game_that_goes_on_and_one_that_stops(self, own: Path) -> None:
        """A border between two games that lies one row too late."""
        change_database(
            own / "metadata.db",
            "UPDATE runs SET rows = rows + 1, steps = steps + 1 WHERE id = 8;"
            "UPDATE runs SET rows = rows - 1, steps = steps - 1, first_row = first_row + 1 WHERE id = 9",
        )
        seal(own)
        messages = [finding.message for finding in validate_session(own).findings]
        steps = int(GAMES.runs["rows"][1])
        assert any(m.startswith(f"run 8, step {steps}: the game continues after its end") for m in messages)
        assert any(m.startswith("run 9, step ") for m in messages)

    def test_a_game_that_stops_before_its_end(self, tmp_path: Path) -> None:
        runs = GAMES.runs.copy()
        runs["rows"][-1] = runs["steps"][-1] = runs["rows"][-1] - 1
        games = GAMES._replace(runs=runs, tape=GAMES.tape[:-1], boards=GAMES.boards[:-1])
        finding = only(write_tape(tmp_path / NAME, games))
        assert finding.error == "ReplayError"
        assert f"run 13, step {runs['rows'][-1]}: the game stops on board" in finding.message
        assert finding.offset == 128 + ROWS - 1

    @pytest.mark.parametrize("column", ["max_score", "highest_tile"])
    def test_a_number_of_the_run_table(self, own: Path, column: str) -> None:
        change_database(own / "metadata.db", f"UPDATE runs SET {column} = 2 * {column} WHERE id = 10")
        seal(own)
        finding = only(own)
        name = column.removeprefix("max_")
        value = GAMES.runs[name][3]
        assert finding.error == "BookkeepingError"
        assert f": {name} is {value}. The run table says {2 * value}" in finding.message

    def test_another_start(self, own: Path) -> None:
        """A start that is one, but not that of this game."""
        other = int(GAMES.starts[1]) ^ 3 << 60 if GAMES.starts[1] >> np.uint64(60) else 0x1200 << 16
        change_database(
            own / "metadata.db",
            f"UPDATE runs SET start_board = {other - 2**64 if other >> 63 else other} WHERE id = 8",
        )
        seal(own)
        findings = validate_session(own).findings
        assert findings
        assert all("run 8, step " in finding.message for finding in findings)


class TestAnchors:
    @pytest.mark.parametrize("anchor", [1, 5, -(-ROWS // 16) - 1])
    def test_one_that_differs(self, own: Path, anchor: int) -> None:
        put(own, "anchors.npy", 128 + 8 * anchor, b"\0" * 8)
        finding = only(own)
        row = 16 * anchor
        owner = int(np.searchsorted(FIRST, row, "right")) - 1
        assert finding.error == "BookkeepingError"
        where = f"run {GAMES.runs['run_id'][owner]}, step {row - FIRST[owner]}: the anchor of row {row}"
        due = f"The tape leads to {int(GAMES.boards[row]):#018x}"
        assert finding.message == f"{where} is {0:#018x}. {due}"
        assert (finding.path, finding.offset) == (str(own / "anchors.npy"), 128 + 8 * anchor)

    def test_all_but_the_first(self, own: Path) -> None:
        count = -(-ROWS // 16) - 1
        put(own, "anchors.npy", 136, b"\1" * 8 * count)
        assert only(own).message.endswith(f"({count} anchors like it)")


class TestBytes:
    @pytest.mark.parametrize("name", ["tape.npy", "anchors.npy"])
    def test_every_changed_byte_is_found(self, own: Path, name: str) -> None:
        content = (own / name).read_bytes()
        for at in (*range(0, 128, 9), *range(128, len(content), 61)):
            changed = bytearray(content)
            changed[at] ^= 1
            (own / name).write_bytes(changed)
            assert not validate_session(own).ok, at

    def test_a_block_is_named(self, own: Path) -> None:
        change_database(own / "metadata.db", "UPDATE blocks SET crc32c = crc32c + 1 WHERE first_row = 100")
        seal(own)
        finding = only(own)
        assert finding.error == "ChecksumError"
        assert finding.message.startswith("block 1 (rows 100 to 199)")
        assert finding.offset == 228

    def test_checksums_without_a_valid_run_table(self, own: Path) -> None:
        change_database(own / "metadata.db", "UPDATE runs SET steps = steps + 1 WHERE id = 9")
        seal(own)
        report = validate_session(own)
        assert [finding.error for finding in report.findings] == ["BookkeepingError"]
        assert report.checksums == 3


def test_a_session_on_tape_may_be_removed(own: Path) -> None:
    assert explain_refusal(own) is None
    (own / "notes.txt").touch()
    assert "notes.txt" in str(explain_refusal(own))
    (own / "notes.txt").unlink()
    link = own.with_name(f"{own.name}-2")
    link.symlink_to(own)
    assert explain_refusal(link) == "it is a link or a file"
    link.unlink()
    for name, said in (("tape.npy", "steps.npy"), ("anchors.npy", "anchors.npy"), ("metadata.db",) * 2):
        copy = Path(shutil.copytree(own, own.parent / "copies" / NAME))
        (copy / name).unlink()
        assert explain_refusal(copy) == f"it lacks {said}"
        shutil.rmtree(copy)
