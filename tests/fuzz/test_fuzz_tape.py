"""Fuzzing of sessions on tape: planted defects."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness
import tape_target
from tape_target import TAPE
from tests.mutants import Mutant, planted

pytestmark = pytest.mark.slow

CODEC = "tape2048.tape.codec"
READER = "tape2048.tape.reader"

PLANTED = {
    "wrong steps": (f"{CODEC}:judge", "wrong[game] or ", ""),
    "a game that does not end": (f"{CODEC}:judge", "or legal_mask(final) != U64(0) ", ""),
    "the count of anchors": (f"{READER}:check_anchor_count", "if anchors != expected:", "if False:"),
    "anchors": ("tape2048.maintenance.validation:TapeChecks.update", "if sound.any():", "if False:"),
    "steps on the way": (f"{READER}:Tape.boards", "np.flatnonzero(wrong)", "wrong[:0]"),
}


def fuzz() -> None:
    """A quarter of what the suite does."""
    harness.structured(TAPE, 5000, seed=1)
    harness.exhaustive(TAPE._replace(seeds=TAPE.seeds[1:2]))


@pytest.mark.parametrize("name", PLANTED)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    try:
        with planted(Mutant(*PLANTED[name])), pytest.raises(harness.FindingError):
            fuzz()
    finally:
        tape_target._header.cache_clear()  # of what the defect let through
