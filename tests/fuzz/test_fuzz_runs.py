"""Fuzzing of the run formats and packs: planted defects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness
from run_targets import TARGETS
from tests.mutants import Mutant, planted

pytestmark = pytest.mark.slow

LAYOUT = "tape2048.packs.a2pack"
KERNELS = "tape2048.runs.a2run2_codec"

#: Checks taken out, one at a time, and the format whose fuzzing has to notice.
PLANTED = {
    "a2t1 length": (
        "a2t1",
        Mutant("tape2048.runs.a2run:parse_run", "if len(data) != end:", "if len(data) < end:"),
    ),
    "a2t1 moves": (
        "a2t1",
        Mutant("tape2048.runs.a2run:parse_run", "int(moves.max()) > 3", "int(moves.max()) > 255"),
    ),
    "a2t1 elapsed": (
        "a2t1",
        Mutant("tape2048.runs.a2run:parse_run", "if not math.isfinite(elapsed):", "if False:"),
    ),
    "a2t1 version": ("a2t1", Mutant("tape2048.runs.a2run:parse_run", "version != VERSION", "version > 200")),
    "a2t1 byte order": ("a2t1", Mutant("tape2048.runs.a2run:parse_run", "order != 0", "order > 1")),
    "a2run2 count": (
        "a2run2",
        Mutant("tape2048.runs.a2run2:RunV2.from_bytes", "if steps != meta.steps:", "if False:"),
    ),
    "a2run2 count before allocation": (
        "a2run2",
        Mutant(
            "tape2048.runs.a2run2:RunV2.from_bytes", "if steps * _STEP_BYTES_MIN > cursor.left:", "if False:"
        ),
    ),
    "a2run2 trailing bytes": (
        "a2run2",
        Mutant("tape2048.runs.a2run2:RunV2.from_bytes", "if cursor.left:", "if cursor.left > 1:"),
    ),
    "a2run2 engine length": (
        "a2run2",
        Mutant("tape2048.runs.a2run2:Cursor.take", "if count > self.left:", "if count > self.left + 1:"),
    ),
    "a2run2 over-long varint": (
        "a2run2",
        Mutant("tape2048.runs.a2run2:Cursor.varint", "(byte == 0 and place)", "False"),
    ),
    "a2run2 varint too large": (
        "a2run2",
        Mutant("tape2048.runs.a2run2:Cursor.varint", "value >> bits or", "value >> bits + 9 or"),
    ),
    "a2run2 over-long board": (
        "a2run2",
        Mutant(f"{KERNELS}:decode_steps", "byte == U64(0) and shift > U64(0)", "shift > U64(70)"),
    ),
    "a2run2 board of 65 bits": (
        "a2run2",
        Mutant(f"{KERNELS}:decode_steps", "shift == U64(63) and byte > U64(1)", "shift > U64(63)"),
    ),
    "a2run2 move": (
        "a2run2",
        Mutant(f"{KERNELS}:decode_steps", "if data[at] > U8(3):", "if data[at] > U8(254):"),
    ),
    "a2run2 option": (
        "a2run2",
        Mutant(f"{KERNELS}:decode_steps", "if option > U8(1):", "if option > U8(2):"),
    ),
    "a2run2 variant": (
        "a2run2",
        Mutant(f"{KERNELS}:decode_steps", "if variant > U8(1):", "if variant > U8(2):"),
    ),
    "a2pack overlap": (
        "a2pack-index",
        Mutant(f"{LAYOUT}:_check_index", "overlaps[1:] = offsets[1:] < ends[:-1]", "pass"),
    ),
    "a2pack entry past the end": (
        "a2pack-index",
        Mutant(f"{LAYOUT}:_check_index", "(ends > data_end,", "(ends > data_end + 64,"),
    ),
    "a2pack entry in the index": (
        "a2pack-index",
        Mutant(f"{LAYOUT}:_check_index", "(offsets < index_end,", "(offsets < 0,"),
    ),
    "a2pack kind": ("a2pack", Mutant(f"{LAYOUT}:_check_index", "(kinds > len(KINDS))", "(kinds > 9)")),
    "a2pack reserved": (
        "a2pack",
        Mutant(f"{LAYOUT}:_check_index", '(index["reserved"] != 0,', '(index["reserved"] > 2**40,'),
    ),
    "a2pack header flags": ("a2pack", Mutant(f"{LAYOUT}:_read_header", "if flags:", "if flags > 1:")),
    "a2pack version": ("a2pack", Mutant(f"{LAYOUT}:_read_header", "version != VERSION", "version > 9")),
    "a2pack stats length": (
        "a2pack",
        Mutant(f"{LAYOUT}:_read_tail", "if begin + length != footer_at:", "if begin + length > footer_at:"),
    ),
    "a2pack data end": ("a2pack", Mutant(f"{LAYOUT}:_read_tail", "if data_end != footer_at:", "if False:")),
    "a2pack padding": (
        "a2pack",
        Mutant("tape2048.packs.reader:PackReader._check_zeros", "if padding.any():", "if False:"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    format_name, mutant = PLANTED[name]
    target = TARGETS[format_name]
    with planted(mutant), pytest.raises(harness.FindingError):
        fuzz(target)


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
