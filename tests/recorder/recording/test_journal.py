"""The journal: its bytes, and what is read from one that was cut off or changed."""

import struct
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from tests.mutants import Mutant, planted
from tests.sdk.builders import open_files, raising

from tape2048.errors import FormatError
from tape2048.session.layout import RUN_DTYPE
from tape2048_recorder.recording.partial import Block, Journal, read_journal

from ..disks import files_end_at

ROW_BYTES = 28


def make_block(
    first_row: int, rows_of_runs: list[int], crc: int = 7, columns_crc: int | None = None
) -> Block:
    runs = np.zeros(len(rows_of_runs), dtype=RUN_DTYPE)
    runs["run_id"] = np.arange(len(runs)) + first_row
    runs["rows"] = runs["steps"] = rows_of_runs
    runs["first_row"] = first_row + np.cumsum([0, *rows_of_runs[:-1]])
    runs["seed"] = np.uint64(2**64 - 1) - runs["run_id"]
    runs["score"], runs["highest_tile"] = 1000, 64
    return Block(first_row, sum(rows_of_runs), crc, runs, columns_crc)


BLOCKS = [
    make_block(0, [5, 6], 0xDEADBEEF), make_block(11, [7]),
    make_block(30, [1, 2, 3], 2**32 - 1, columns_crc=0xC01D),
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    write(path, BLOCKS)
    return path


def write(path: Path, blocks: list[Block]) -> None:
    journal = Journal(path, ROW_BYTES)
    for block in blocks:
        journal.append(block)
    journal.close()


def assert_same(found: list[Block], expected: list[Block]) -> None:
    assert [block[:3] for block in found] == [block[:3] for block in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.runs, other.runs)
        assert one.columns_crc32c == other.columns_crc32c


def ends(blocks: list[Block]) -> list[int]:
    """Where each record ends."""
    sizes = [24 + 40 * len(block.runs) + 4 * (1 + (block.columns_crc32c is not None)) for block in blocks]
    return [int(end) for end in 16 + np.cumsum(sizes)]


def test_golden_bytes(tmp_path: Path) -> None:
    write(tmp_path / "journal", BLOCKS[1:2])
    run = struct.pack("<QQQIIII", 11, 2**64 - 12, 11, 7, 7, 1000, 64)
    record = b"BLCK" + struct.pack("<IQII", 1, 11, 7, 7) + run
    expected = b"T2KJRNL1" + struct.pack("<Q", ROW_BYTES) + record + struct.pack("<I", crc32c(record))
    assert (tmp_path / "journal").read_bytes() == expected
    (tmp_path / "journal").unlink()
    write(tmp_path / "journal", [BLOCKS[1]._replace(columns_crc32c=0xC01D)])
    record = b"BLCV" + record[4:] + struct.pack("<I", 0xC01D)
    expected = expected[:16] + record + struct.pack("<I", crc32c(record))
    assert (tmp_path / "journal").read_bytes() == expected


def test_an_empty_one_and_one_without_its_header(tmp_path: Path) -> None:
    write(tmp_path / "journal", [])
    assert read_journal(tmp_path / "journal", ROW_BYTES) == []
    (tmp_path / "journal").write_bytes(b"T2KJ")
    assert read_journal(tmp_path / "journal", ROW_BYTES) == []


def test_cut_off_anywhere_it_holds_the_records_before(path: Path) -> None:
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends(BLOCKS))
        assert_same(read_journal(path, ROW_BYTES), BLOCKS[:whole])


def assert_flips_are_seen(path: Path) -> None:
    data = path.read_bytes()
    for at in range(16, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        assert_same(read_journal(path, ROW_BYTES), BLOCKS[: sum(end <= at for end in ends(BLOCKS))])


def test_a_flipped_bit_ends_it_before_the_record(path: Path) -> None:
    assert_flips_are_seen(path)


def test_the_checksum_finds_a_flipped_bit(path: Path) -> None:
    check = "_CHECK.unpack_from(data, end)[0] != crc32c(data[at:end])"
    mutant = Mutant("tape2048_recorder.recording.partial:read_journal", check, "False")
    with planted(mutant), pytest.raises((AssertionError, FormatError)):
        assert_flips_are_seen(path)


@pytest.mark.parametrize("at", range(16))
def test_a_flipped_bit_of_the_header_is_an_error(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"rows of|with the magic") as caught:
        read_journal(path, ROW_BYTES)
    assert (caught.value.path, caught.value.offset) == (str(path), 0)


def test_rows_of_another_size_are_refused(path: Path) -> None:
    with pytest.raises(FormatError, match="found rows of 28 bytes, expected 29"):
        read_journal(path, ROW_BYTES + 1)


def test_one_is_never_written_over(path: Path) -> None:
    with pytest.raises(FileExistsError):
        Journal(path, ROW_BYTES)


@pytest.mark.parametrize("fits", [0, 1, 23, 24, 60, 107])
def test_a_record_that_does_not_fit_changes_nothing(tmp_path: Path, fits: int) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, ROW_BYTES)
    journal.append(BLOCKS[0])
    before = path.read_bytes()
    for _ in range(2):
        with files_end_at(len(before) + fits), pytest.raises(OSError, match="File too large"):
            journal.append(BLOCKS[2])
        assert path.read_bytes() == before
    journal.append(BLOCKS[1])
    journal.append(BLOCKS[2])
    journal.close()
    assert_same(read_journal(path, ROW_BYTES), BLOCKS)


def test_a_torn_record_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, ROW_BYTES)
    journal.append(BLOCKS[0])
    with monkeypatch.context() as patch:
        patch.setattr("os.ftruncate", raising(OSError(5, "Input/output error")))
        with files_end_at(path.stat().st_size + 70), pytest.raises(OSError, match="File too large"):
            journal.append(BLOCKS[2])
    assert_same(read_journal(path, ROW_BYTES), BLOCKS[:1])
    journal.append(BLOCKS[1])  # shorter than what was left of the torn one
    assert_same(read_journal(path, ROW_BYTES), BLOCKS[:2])
    journal.append(BLOCKS[2])
    journal.close()
    assert_same(read_journal(path, ROW_BYTES), BLOCKS)


def test_no_header_no_open_file(tmp_path: Path) -> None:
    before = open_files()
    with files_end_at(10), pytest.raises(OSError, match="File too large"):
        Journal(tmp_path / "journal", ROW_BYTES)
    assert open_files() == before
    Journal(tmp_path / "whole", ROW_BYTES).close()
    assert open_files() == before
