import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus, Finding, Report, errors, validate_session
from tape2048.maintenance import validation
from tape2048.session.metadata import read_metadata
from tape2048.session.metadata_writer import write_metadata

from ..builders import (
    GAMES,
    NAME,
    Game,
    Spec,
    change_database,
    embed,
    npy_bytes,
    rows_of,
    write_foreign,
    write_manifest,
    write_ours,
)
from ..run_tables import pack

Change = Callable[[NDArray[np.void]], object]

ROWS = sum(game.steps for game in GAMES)


@pytest.fixture(autouse=True, params=[3, 1 << 18], ids=["small chunks", "one chunk"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: what is checked must not depend on where a chunk ends."""
    monkeypatch.setattr(validation, "CHUNK_ROWS", request.param)
    monkeypatch.setattr("tape2048.files.reading._CHUNK_BYTES", 1000 if request.param == 3 else 1 << 23)


def found(report: Report) -> list[str]:
    return [finding.error for finding in report.findings]


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def put(row: int, **values: object) -> Change:
    def change(rows: NDArray[np.void]) -> None:
        for name, value in values.items():
            rows[name][row] = value

    return change


def embedded(path: Path, rows: int = ROWS, **changes: object) -> None:
    embed(path, np.ones((rows, 4)), **changes)


class TestEmbeddings:
    """Each defect for which the loader refuses them is a finding."""

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rows": ROWS - 1}, "made of 19 rows"),
            ({"steps_crc32c": 7}, "with CRC-32C 7"),
            ({"dtype": "fp16"}, "dtype 'fp16'"),
            ({"D": 5}, r"expected \('<u2', \(5,\)\)"),
            ({"D": 0}, "malformed"),
        ],
        ids=str,
    )
    def test_wrong_facts(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        path = write_ours(tmp_path / NAME)
        embedded(path, **changes)
        finding = only(validate_session(path))
        assert finding.error == "ColumnError"
        assert re.search(message, finding.message)
        with pytest.raises(errors.ColumnError) as caught:
            Corpus.open(path).fetch([0], ("embeddings",))
        assert caught.value.message == finding.message

    def test_one_file_without_the_other(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        embedded(path)
        values = path / "embeddings.bf16.npy"
        content = values.read_bytes()
        values.write_bytes(content[:-1])
        assert only(validate_session(path)).path == str(values)
        values.unlink()
        assert only(validate_session(path)).error == "ColumnError"
        values.write_bytes(content)
        (path / "embeddings.json").unlink()
        assert "half-written" in only(validate_session(path)).message

    def test_of_a_foreign_session(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs")
        embedded(path)
        assert validate_session(path).ok
        embedded(path, rows=ROWS - 1)
        assert only(validate_session(path)).error == "ColumnError"
        lacking = write_foreign(tmp_path / "lacking", Spec(sql="DELETE FROM runs WHERE id = 13"))
        embedded(lacking)  # of all rows of the file, not of those that are served
        assert only(validate_session(lacking)).error == "ColumnError"


class TestSound:
    @pytest.mark.parametrize("action", [False, True])
    @pytest.mark.parametrize("sample_rate", [1, 3])
    @pytest.mark.parametrize("block_rows", [1, 6, 20])
    def test_ours(self, tmp_path: Path, action: bool, sample_rate: int, block_rows: int) -> None:
        spec = Spec(action=action, sample_rate=sample_rate, block_rows=block_rows)
        report = validate_session(write_ours(tmp_path / NAME, spec))
        assert report.ok, report.findings
        rows = sum(-(-game.steps // sample_rate) for game in GAMES)
        assert (report.path, report.rows, report.runs) == (str(tmp_path / NAME), rows, 5)
        assert report.checksums == 2 + -(-rows // block_rows)

    def test_no_rows_or_columns(self, tmp_path: Path) -> None:
        assert validate_session(write_ours(tmp_path / "empty", Spec(games=[]))).ok
        path = write_ours(tmp_path / NAME)
        embedded(path)
        assert validate_session(path).ok

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("shard_rows", [None, 7])
    @pytest.mark.parametrize("sample_rate", [1, 2])
    @pytest.mark.parametrize("signed", [False, True])
    def test_foreign(
        self, tmp_path: Path, interleaved: bool, shard_rows: int | None, sample_rate: int, signed: bool
    ) -> None:
        spec = Spec(interleaved=interleaved, sample_rate=sample_rate, signed_ids=signed)
        path = write_foreign(tmp_path / "theirs", spec, shard_rows=shard_rows)
        (path / "README.txt").write_bytes(b"notes of theirs")
        report = validate_session(path)
        assert report.ok, report.findings
        assert report.checksums == 0

    def test_sample_rate_from_facts_or_rows(self, tmp_path: Path) -> None:
        for name, facts in (("none", {}), ("fact", {"sample_rate": 2})):
            assert validate_session(write_ours(tmp_path / name, Spec(sample_rate=2, facts=facts))).ok

    def test_progress(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        seen: list[tuple[int, int]] = []
        assert validate_session(path, progress=lambda done, total: seen.append((done, total))).ok
        total = sum((path / name).stat().st_size for name in ("steps.npy", "metadata.db"))
        assert seen == sorted(seen)
        assert seen[-1] == (total, total)

    def test_a_path_that_sqlite_cannot_open(self, tmp_path: Path) -> None:
        root = tmp_path.joinpath(*["x" * 100] * 5)
        root.mkdir(parents=True)
        write_ours(tmp_path / NAME).rename(root / NAME)
        assert validate_session(root / NAME).findings == ()


class TestWhole:
    @pytest.mark.parametrize("name", [NAME, f".{NAME}.partial"])
    def test_not_a_session(self, tmp_path: Path, name: str) -> None:
        if name.startswith("."):
            write_ours(tmp_path / name)
        report = validate_session(tmp_path / name)
        assert only(report).error == ("NotASessionError" if name.startswith(".") else "MissingPathError")
        assert not report.ok

    @pytest.mark.parametrize(
        ("damage", "expected"),
        [
            (lambda path: (path / "steps.npy").unlink(), ["NotASessionError", "ManifestError"]),
            (lambda path: (path / "metadata.db").unlink(), ["NotASessionError", "ManifestError"]),
            (lambda path: (path / "manifest.json").unlink(), ["ManifestError"]),
            (lambda path: (path / "manifest.json").write_bytes(b"{}"), ["ManifestError"]),
            (
                lambda path: os.truncate(path / "steps.npy", 300),
                ["TruncatedError", "TruncatedError", "ChecksumError"],
            ),
            (
                lambda path: (path / "metadata.db").write_bytes(b"x" * 100),
                ["SchemaError", "TruncatedError", "ChecksumError"],
            ),
        ],
        ids=["steps", "metadata", "manifest", "bad manifest", "cut", "not sqlite"],
    )  # fmt: skip
    def test_every_finding_is_collected(
        self, tmp_path: Path, damage: Callable[[Path], object], expected: list[str]
    ) -> None:
        path = write_ours(tmp_path / NAME)
        damage(path)
        assert found(validate_session(path)) == expected

    def test_findings_of_independent_defects_all_come(self, tmp_path: Path) -> None:
        def change(rows: NDArray[np.void]) -> None:
            rows["exps"][3, 2] = 16
            rows["step_idx"][7] = 9
            rows["action"][[1, 2]] = 4

        spec = Spec(action=True, change_rows=change, sql="UPDATE runs SET highest_tile = 3 WHERE id = 12")
        report = validate_session(write_ours(tmp_path / NAME, spec))
        assert len(report.findings) == 5
        texts = " / ".join(finding.message for finding in report.findings)
        for part in ("row 3 has exponents", "row 7 has step_idx 9", "row 1 has action 4", "(2 rows like it)"):
            assert part in texts
        assert "run 12 has highest_tile 3" in texts
        assert "run 11 has highest_tile 8192, but its rows show a 65536" in texts

    def test_finding_says_class_path_offset_and_hint(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        os.truncate(path / "steps.npy", 300)
        finding = next(one for one in validate_session(path).findings if one.error == "TruncatedError")
        assert hasattr(errors, finding.error)
        assert (finding.path, finding.offset) == (str(path / "steps.npy"), 300)
        assert finding.hint is not None

    @pytest.mark.parametrize("write", [write_ours, write_foreign])
    def test_unknown_files_are_a_note(self, tmp_path: Path, write: Callable[[Path], Path]) -> None:
        path = write(tmp_path / NAME)
        (path / "@eaDir").mkdir()
        names = (".DS_Store", ".nfs0001", "Thumbs.db", "metadata.db-wal", "x.partial")
        for name in names:
            (path / name).write_bytes(b"")
        report = validate_session(path)
        assert report.ok
        assert report.notes == (f"not of this session: {', '.join(sorted([*names, '@eaDir']))}",)

    def test_impossible_dates_are_notes(self, tmp_path: Path) -> None:
        facts = {"started_at": "2999-01-01T00:00:00Z", "ended_at": "2025-01-01T00:00:00+02:00"}
        report = validate_session(write_ours(tmp_path / NAME, Spec(facts={"sample_rate": 1, **facts})))
        assert report.ok
        before, future = report.notes
        assert before.startswith("ended_at is 2025-01-01T00:00:00+02:00, before started_at, 2999")
        assert future.startswith("started_at is 2999-01-01T00:00:00Z, in the future")

    def test_counts_disagree(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME, Spec(facts={"rows": 19, "runs": "5"}))
        messages = [finding.message for finding in validate_session(path).findings]
        assert len(messages) == 2
        assert "rows in the table session is 19. The session has 20" in messages[0]
        assert "runs in the table session is '5'. The session has 5" in messages[1]
        path = write_ours(tmp_path / "manifest")
        write_manifest(path, rows=19, runs=6)
        assert found(validate_session(path)) == ["ManifestError", "ManifestError"]

    def test_sample_rate_that_is_none(self, tmp_path: Path) -> None:
        for number, rate in enumerate((0, -1, 2**32, 2**64, True, 1.0, "1")):
            path = write_ours(tmp_path / str(number), Spec(facts={"sample_rate": rate}))
            assert only(validate_session(path)).error == "SchemaError"


class TestChecksums:
    def test_any_changed_byte_of_the_rows(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        whole = (path / "steps.npy").read_bytes()
        for at in range(len(whole) - ROWS * 28, len(whole), 13):
            changed = bytearray(whole)
            changed[at] ^= 1
            (path / "steps.npy").write_bytes(changed)
            report = validate_session(path)
            block = (at - (len(whole) - ROWS * 28)) // 28 // 6
            sums = [finding for finding in report.findings if finding.error == "ChecksumError"]
            assert f"block {block} (rows {6 * block} to {min(6 * block + 5, 19)})" in sums[1].message
            assert sums[1].offset == len(whole) - ROWS * 28 + 6 * block * 28
            assert "The manifest says" in sums[0].message

    def test_any_changed_byte_of_header_or_metadata(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        for name in ("steps.npy", "metadata.db"):
            whole = (path / name).read_bytes()
            for at in (20, 60, 100, 27, 90):
                changed = bytearray(whole)
                changed[at] ^= 1
                (path / name).write_bytes(changed)
                assert "ChecksumError" in found(validate_session(path))
            (path / name).write_bytes(whole)
        assert validate_session(path).ok

    @pytest.mark.parametrize(
        ("sql", "message"),
        [
            ("UPDATE blocks SET rows = 5 WHERE first_row = 6", "block 2 starts at row 12. .* end at row 11"),
            ("UPDATE blocks SET rows = 7 WHERE first_row = 6", "block 2 starts at row 12. .* end at row 13"),
            ("UPDATE blocks SET rows = 3 WHERE first_row = 18", "cover 21 rows. The steps have 20"),
            ("DELETE FROM blocks WHERE first_row = 0", "block 0 starts at row 6. .* end at row 0"),
            ("DELETE FROM blocks WHERE first_row = 18", "cover 18 rows. The steps have 20"),
            ("DELETE FROM blocks", "the 0 blocks cover 0 rows"),
        ],
        ids=lambda value: value,
    )
    def test_blocks_cover_each_row_once(self, tmp_path: Path, sql: str, message: str) -> None:
        finding = only(validate_session(write_ours(tmp_path / NAME, Spec(sql=sql))))
        assert finding.error == "BookkeepingError"
        assert re.search(message, finding.message)

    def test_block_sum_in_the_table(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME, Spec(sql="UPDATE blocks SET crc32c = 1 WHERE first_row = 6"))
        assert "block 1 (rows 6 to 11) has CRC-32C" in only(validate_session(path)).message

    @pytest.mark.parametrize("outside", ["../outside", "x" * 5000])
    def test_file_that_only_the_manifest_knows(self, tmp_path: Path, outside: str) -> None:
        path = write_ours(tmp_path / NAME)
        content = json.loads((path / "manifest.json").read_text())
        content["files"]["extra"] = {"bytes": 3, "crc32c": 0}
        content["files"][outside] = {"bytes": 3, "crc32c": 0}
        (path / "extra").write_bytes(b"abc")
        (tmp_path / "outside").write_bytes(b"abc")
        (path / "manifest.json").write_text(json.dumps(content))
        read: list[tuple[int, int]] = []
        report = validate_session(path, progress=lambda done, total: read.append((done, total)))
        inside = sum((path / name).stat().st_size for name in ("steps.npy", "metadata.db", "extra"))
        assert read[-1] == (inside, inside)
        assert found(report) == ["ManifestError", "ChecksumError"]
        assert report.findings[1].path == str(path / "extra")


class TestRows:
    @pytest.mark.parametrize(
        ("change", "message", "row"),
        [
            (put(6, run_id=99), "row 6 has run_id 99, expected 13", 6),
            (put(6, run_id=15), "row 6 has run_id 15, expected 13", 6),
            (put(3, step_idx=4), "row 3 has step_idx 4, expected 3", 3),
            (put(0, step_idx=1), "row 0 has step_idx 1, expected 0", 0),
            (put(19, step_idx=2**32 - 1), "row 19 has step_idx 4294967295, expected 3", 19),
            (put(9, action=4), "row 9 has action 4, above 3", 9),
        ],
        ids=lambda value: str(value) if isinstance(value, str) else "",
    )
    def test_each_row_is_what_the_bookkeeping_says(
        self, tmp_path: Path, change: Change, message: str, row: int
    ) -> None:
        path = write_ours(tmp_path / NAME, Spec(action=True, change_rows=change))
        finding = only(validate_session(path))
        assert finding.error == "BookkeepingError"
        assert finding.message == message
        data_offset = (path / "steps.npy").stat().st_size - 29 * ROWS
        assert (finding.path, finding.offset) == (str(path / "steps.npy"), data_offset + 29 * row)

    def test_exponent(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME, Spec(change_rows=put(8, exps=[15] * 15 + [16])))
        messages = [finding.message for finding in validate_session(path).findings]
        assert messages[0].startswith("row 8 has exponents [15, 15,")
        assert messages[1] == "run 13 has highest_tile 32768, but its rows show a 65536"

    def test_empty_board(self, tmp_path: Path) -> None:
        """What a hole in the file would look like, if its other fields were right."""
        for number, board in enumerate(([0] * 16, [0] * 7 + [1] + [0] * 8, [0] * 15 + [1])):
            path = write_ours(tmp_path / str(number), Spec(change_rows=put(8, exps=board)))
            messages = [finding.message for finding in validate_session(path).findings]
            assert messages == ["row 8 has an empty board"] * (not any(board))

    @pytest.mark.parametrize("sample_rate", [1, 2])
    @pytest.mark.parametrize(
        ("tile", "message"),
        [
            (8192, None),
            (16384, "but its rows show at most a 4096"),
            (4096, None),
            (2048, "but its rows show a 4096"),
            (0, "expected a power of two"),
            (1, "expected a power of two"),
            (6000, "expected a power of two"),
        ],
    )
    def test_highest_tile(self, tmp_path: Path, tile: int, message: str | None, sample_rate: int) -> None:
        """The last board shows 4096: the move made there may still have doubled it."""
        sql = f"UPDATE runs SET highest_tile = {tile} WHERE id = 12"
        games = [Game(11, 5, 8192), Game(12, 6, 4096)]
        path = write_ours(tmp_path / NAME, Spec(games=games, sql=sql, sample_rate=sample_rate))
        report = validate_session(path)
        if message is None or (tile == 16384 and sample_rate == 2):
            assert report.ok
        else:
            assert only(report).message == f"run 12 has highest_tile {tile}, {message}"

    def test_tile_seen_in_a_row_of_any_chunk(self, tmp_path: Path) -> None:
        for row in range(6, 13):
            path = write_ours(tmp_path / str(row), Spec(change_rows=put(row, exps=[15] * 16)))
            change_database(path / "metadata.db", "UPDATE runs SET highest_tile = 16384 WHERE id = 13")
            write_manifest(path, rows=ROWS, runs=5)
            assert "its rows show a 32768" in only(validate_session(path)).message

    @pytest.mark.parametrize("sample_rate", [1, 2])
    def test_rows_of_steps(self, tmp_path: Path, sample_rate: int) -> None:
        spec = Spec(sample_rate=sample_rate, sql="UPDATE runs SET steps = 9 WHERE id = 11")
        finding = only(validate_session(write_ours(tmp_path / NAME, spec)))
        rows, expected = -(-5 // sample_rate), -(-9 // sample_rate)
        assert finding.message == (
            f"run 11 has {rows} rows for 9 steps at sample rate {sample_rate}, expected {expected}"
        )

    def test_a_copy_of_the_run_table_that_differs(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        metadata = path / "metadata.db"
        runs, blocks, facts, *_ = read_metadata(metadata)
        assert blocks is not None
        metadata.unlink()
        write_metadata(metadata, runs=runs, blocks=blocks, session=facts)
        write_manifest(path, rows=ROWS, runs=5)
        assert validate_session(path).ok
        runs["score"][2] += 1
        pack(metadata, runs)
        write_manifest(path, rows=ROWS, runs=5)
        finding = only(validate_session(path))
        assert finding.error == "BookkeepingError"
        assert "1 of 5 runs differ" in finding.message

    def test_foreign_runs_without_rows(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "none", Spec(sql="INSERT INTO runs VALUES (99, 0, 0, 0, 4)"))
        assert validate_session(path).ok
        path = write_foreign(tmp_path / "nine", Spec(sql="INSERT INTO runs VALUES (99, 0, 9, 9, 2)"))
        message = "run 99 has 0 rows for 9 steps at sample rate 1, expected 9"
        assert only(validate_session(path)).message == message

    def test_rows_of_part_of_a_run_do_not_bound_its_tile(self, tmp_path: Path) -> None:
        sql = "UPDATE runs SET steps = 9, highest_tile = 32768 WHERE id = 14"
        assert "for 9 steps" in only(validate_session(write_ours(tmp_path / NAME, Spec(sql=sql)))).message

    def test_rows_that_do_not_fit_the_sample_rate(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME, Spec(facts={"sample_rate": 2}))
        messages = [finding.message for finding in validate_session(path).findings]
        assert messages[0] == "row 1 has step_idx 1, expected 2 (15 rows like it)"
        assert "at sample rate 2, expected 3" in messages[1]

    def test_run_table_that_does_not_tile(self, tmp_path: Path) -> None:
        """Rows are then checked by the ids that they carry."""
        spec = Spec(sql="UPDATE runs SET rows = 4 WHERE id = 11", change_rows=put(14, step_idx=7))
        messages = [
            finding.message for finding in validate_session(write_ours(tmp_path / NAME, spec)).findings
        ]
        assert messages == [
            "run 12 starts at row 5. The runs before it end at row 4",
            "row 14 has step_idx 7, expected 1",
            "run 11 has 5 rows, expected 4 by the run table",
        ]

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_foreign_rows(self, tmp_path: Path, interleaved: bool) -> None:
        spec = Spec(interleaved=interleaved, sql="DELETE FROM runs WHERE id = 13")
        rows = rows_of(spec)
        bad = int(np.flatnonzero(rows["run_id"] == 14)[2])
        rows["step_idx"][bad] = 8
        path = write_foreign(tmp_path / "theirs", spec)
        (path / "steps.npy").write_bytes(npy_bytes(rows))
        report = validate_session(path)
        assert only(report).message == f"row {bad} has step_idx 8, expected 2"
        assert report.notes == ("7 rows of games that are not in the table runs: left out",)

    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("action", [False, True])
    def test_foreign_rows_against_the_rules(self, tmp_path: Path, action: bool, interleaved: bool) -> None:
        spec = Spec(action=action, interleaved=interleaved)
        rows = rows_of(spec)
        earlier, bad, following = np.flatnonzero(rows["run_id"] == 13)[2:5]
        rows["exps"][bad] = rows["exps"][earlier]
        path = write_foreign(tmp_path / "theirs", spec)
        (path / "steps.npy").write_bytes(npy_bytes(rows))
        found = only(validate_session(path))
        assert found.message.startswith(f"row {bad} has board 0x")
        assert "No move and new tile lead there from the previous row of its run, 0x" in found.message
        if action:
            rows = rows_of(spec)
            rows["action"][bad] = 1 ^ rows["action"][bad]  # the opposite direction
            (path / "steps.npy").write_bytes(npy_bytes(rows))
            assert only(validate_session(path)).message.startswith(f"row {following} has board 0x")

    def test_shard_of_another_type(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", shard_rows=10)
        (path / "steps-000002.npy").write_bytes(npy_bytes(rows_of(Spec(action=True))[10:]))
        assert only(validate_session(path)).error == "NpyError"

    def test_place_of_a_row_in_a_shard(self, tmp_path: Path) -> None:
        path = write_foreign(tmp_path / "theirs", Spec(change_rows=put(13, step_idx=9)), shard_rows=10)
        finding = only(validate_session(path))
        assert finding.path == str(path / "steps-000002.npy")
        assert finding.offset == (path / "steps-000002.npy").stat().st_size - 7 * 28
        assert finding.message.startswith("row 13 ")


class TestWhileItIsRead:
    def test_truncated(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)

        def cut(done: int, total: int) -> None:
            os.truncate(path / "steps.npy", 150)

        names = found(validate_session(path, progress=cut))
        if validation.CHUNK_ROWS == 3:
            assert "TruncatedError" in names
        assert names

    def test_replaced(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)
        shutil.copy2(path / "steps.npy", tmp_path / "other")
        calls: list[int] = []

        def replace(done: int, total: int) -> None:
            if not calls:
                (tmp_path / "other").rename(path / "steps.npy")
            calls.append(done)

        finding = only(validate_session(path, progress=replace))
        assert finding.error == "ChecksumError"
        assert "replaced" in finding.message

    def test_removed(self, tmp_path: Path) -> None:
        path = write_ours(tmp_path / NAME)

        def remove(done: int, total: int) -> None:
            shutil.rmtree(path, ignore_errors=True)

        assert "ChecksumError" in found(validate_session(path, progress=remove))
