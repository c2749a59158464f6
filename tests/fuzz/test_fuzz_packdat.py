"""Fuzzing of pack.dat: planted defects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness
from set_targets import PACKDAT
from tests.mutants import Mutant, planted

from tape2048.datasets.packdat import DataPack
from tape2048.errors import TruncatedError

pytestmark = pytest.mark.slow

FILE = "tape2048.datasets.packdat"
TABLE = "tape2048.datasets.run_table"


PLANTED = {
    "version": Mutant(f"{FILE}:read_header", "if version != VERSION:", "if version > 200:"),
    "offset": Mutant(
        f"{FILE}:read_header", "if metadata_offset != HEADER_BYTES + ROW_BYTES * steps:", "if False:"
    ),
    "trailing bytes": Mutant(f"{FILE}:parse_runs", "if at != len(content):", "if False:"),
    "engine length": Mutant(f"{FILE}:parse_runs", "if tail_at + _RUN_TAIL.size > len(content):", "if False:"),
    "runs that do not tile": Mutant(f"{TABLE}:RunTable.check_tiles", "if wrong.size:", "if False:"),
    "runs that end early": Mutant(
        f"{TABLE}:RunTable.check_tiles", "if int(expected[-1]) != rows:", "if False:"
    ),
}

#: Checks whose absence lets through what encodes to the same bytes: the check, where a file lies, and how.
SILENT = {
    "another run's rows": (
        Mutant(
            f"{FILE}:check_steps", 'rows["run_id"] != np.repeat(runs["id"], counts)', 'rows["run_id"] > 99'
        ),
        28 + 8,
        b"\x01",
    ),
    "steps out of order": (
        Mutant(f"{FILE}:check_steps", 'rows["index_in_run"] != numbers', 'rows["index_in_run"] > 99'),
        28 + 12,
        b"\x01",
    ),
    "a move of 4": (
        Mutant(f"{FILE}:check_steps", 'rows["move_dir"] > 3', 'rows["move_dir"] > 255'),
        44,
        b"\x04",
    ),
    "a mask of 16": (
        Mutant(f"{FILE}:check_steps", 'rows["ev_mask"] > 15', 'rows["ev_mask"] > 255'),
        45,
        b"\x10",
    ),
    "elapsed": (
        Mutant(f"{FILE}:parse_runs", "if not math.isfinite(tail[1]):", "if False:"),
        28 + 6 * 32 + 26 + 1 + 8,  # six steps, the first run's head, its engine of one byte, its start
        b"\x00\x00\xc0\x7f",
    ),
}


def unnoticed(mutant: Mutant) -> bool:
    with planted(mutant):
        try:
            harness.structured(PACKDAT, 2000, seed=1)  # first, since most defects show there at once
            harness.exhaustive(PACKDAT)
        except harness.FindingError:
            return False
    return True


@pytest.mark.parametrize("name", PLANTED)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    assert not unnoticed(PLANTED[name])


@pytest.mark.parametrize("name", SILENT)
def test_a_field_that_lies_is_refused_by_its_own_check(name: str) -> None:
    mutant, offset, value = SILENT[name]
    data = bytearray(PACKDAT.seeds[0])
    data[offset : offset + len(value)] = value
    lie = harness.sealed(PACKDAT, data)
    assert harness.judge(PACKDAT, lie) in {"BookkeepingError", "FieldError"}
    with planted(mutant):
        assert harness.judge(PACKDAT, lie) == "ok"


def test_length_is_checked_before_allocation(tmp_path: Path) -> None:
    data = bytearray(PACKDAT.seeds[0])
    steps = 2**40  # 32 TiB
    data[12:28] = steps.to_bytes(8, "little") + (28 + 32 * steps).to_bytes(8, "little")
    path = tmp_path / "pack.dat"
    path.write_bytes(harness.sealed(PACKDAT, data))
    with pytest.raises(TruncatedError):
        DataPack.load(path)
    with (
        planted(Mutant(f"{FILE}:read_header", "if size < needed:", "if size < 28:")),
        harness.capped_memory(),
        pytest.raises(MemoryError),
    ):
        DataPack.load(path)
