"""Fuzzing of the run formats and packs: planted defects."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness
from run_targets import TARGETS
from tests.mutants import Mutant, planted

pytestmark = pytest.mark.slow

PARSE = "tape2048.runs.a2run:parse_run"
RUN, CURSOR = "tape2048.runs.a2run2:RunV2.from_bytes", "tape2048.runs.a2run2:Cursor"
STEPS = "tape2048.runs.a2run2_codec:decode_steps"
LAYOUT = "tape2048.packs.a2pack"
INDEX, TAIL = f"{LAYOUT}:_check_index", f"{LAYOUT}:_read_tail"

#: Checks taken out, one at a time; a name begins with the format whose fuzzing has to notice.
PLANTED = {
    "a2t1 length": (PARSE, "if len(data) != end:", "if len(data) < end:"),
    "a2t1 moves": (PARSE, "int(moves.max()) > 3", "int(moves.max()) > 255"),
    "a2run2 count before allocation": (RUN, "if steps * _STEP_BYTES_MIN > cursor.left:", "if False:"),
    "a2run2 engine length": (f"{CURSOR}.take", "if count > self.left:", "if count > self.left + 1:"),
    "a2run2 over-long varint": (f"{CURSOR}.varint", "(byte == 0 and place)", "False"),
    "a2run2 board of 65 bits": (STEPS, "shift == U64(63) and byte > U64(1)", "shift > U64(63)"),
    "a2run2 variant": (STEPS, "if variant > U8(1):", "if variant > U8(2):"),
    "a2pack-index overlap": (INDEX, "overlaps[1:] = offsets[1:] < ends[:-1]", "pass"),
    "a2pack-index entry past the end": (INDEX, "(ends > data_end,", "(ends > data_end + 64,"),
    "a2pack reserved": (INDEX, '(index["reserved"] != 0,', '(index["reserved"] > 2**40,'),
    "a2pack stats length": (TAIL, "begin + length != footer_at", "begin + length > footer_at"),
    "a2pack padding": ("tape2048.packs.reader:PackReader._check_zeros", "if padding.any():", "if False:"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    with planted(Mutant(*PLANTED[name])), pytest.raises(harness.FindingError):
        fuzz(TARGETS[name.partition(" ")[0]])


def fuzz(target: harness.Target) -> None:
    """As much as the suite does."""
    harness.structured(target, 3_000, seed=1)  # first, since most defects show there at once
    harness.exhaustive(target)
    harness.structured(target, 20_000, seed=2)


def test_the_oracle_notices_what_it_is_for() -> None:
    """A decoder that crashes, allocates the world, loses bytes, or points past the file."""
    from tape2048.errors import TruncatedError

    def lost(data: bytes) -> bytes:
        return data[:-1]

    def crashes(data: bytes) -> bytes:
        raise IndexError(len(data))

    def allocates(data: bytes) -> bytes:
        import numpy as np

        return bytes(np.empty(1 << 40, np.uint8)[: len(data)])

    def points_away(data: bytes) -> bytes:
        raise TruncatedError("it ends", offset=len(data) + 1)

    for decode in (lost, crashes, allocates, points_away):
        bad = harness.Target("toy", [b"abc"], decode, bytes, None, lambda _: [])
        with harness.capped_memory(), pytest.raises(harness.FindingError):
            harness.judge(bad, b"abc")
