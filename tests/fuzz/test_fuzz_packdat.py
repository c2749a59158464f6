"""Fuzzing of pack.dat: planted defects."""

from pathlib import Path

import pytest
from tests.fuzz import harness
from tests.fuzz.set_targets import PACKDAT
from tests.mutants import Mutant, planted

from tape2048.errors import FormatError, TruncatedError
from tape2048.runs.packdat import DataPack

pytestmark = pytest.mark.slow

FILE = "tape2048.runs.packdat"
STEPS = f"{FILE}:check_steps"

#: Checks whose absence lets through what encodes to the same bytes: the check, where a file lies, and how.
SILENT = {
    "another run's rows":
        (STEPS, '"run_id"] != np.repeat(runs["run_id"], counts)', '"run_id"] > 9', 68, b"\x01"),
    "steps out of order": (STEPS, '"index_in_run"] != numbers', '"index_in_run"] > 99', 72, b"\x03"),
    "a move of 4": (STEPS, '"move_dir"] > 3', '"move_dir"] > 255', 44, b"\x04"),
    "a mask of 16": (STEPS, '"ev_mask"] > 15', '"ev_mask"] > 255', 45, b"\x10"),
    "elapsed": (
        f"{FILE}:parse_runs", "if not math.isfinite(tail[1]):", "if False:",
        28 + 6 * 32 + 26 + 1 + 8,  # six steps, the first run's head, its engine of one byte, its start
        b"\x00\x00\xc0\x7f",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_a_field_that_lies_is_refused_by_its_own_check(name: str) -> None:
    *mutant, offset, value = SILENT[name]
    data = bytearray(PACKDAT.seeds[0])
    data[offset : offset + len(value)] = value
    lie = harness.sealed(PACKDAT, data)
    assert harness.judge(PACKDAT, lie) in {"BookkeepingError", "FieldError"}
    with planted(Mutant(*mutant)):
        assert harness.judge(PACKDAT, lie) == "ok"


def test_a_length_that_lies_allocates_nothing(tmp_path: Path) -> None:
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
        pytest.raises(FormatError),
    ):
        DataPack.load(path)
