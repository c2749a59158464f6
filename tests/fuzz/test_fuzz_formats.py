"""Fuzzing of every format: the exhaustive and the structured layer, the corpus, and planted defects."""

import os
from typing import NamedTuple

import numpy as np
import pytest
from tests.fuzz import harness, tape_target
from tests.fuzz.corpus import check_corpus, corpus_files
from tests.fuzz.targets import ALL
from tests.mutants import Mutant, planted

from tape2048.errors import TruncatedError

#: Cases of the structured layer, as many as find each planted defect; ``make fuzz`` asks for more.
CASES = int(os.environ.get("FUZZ_CASES", "20000"))

pytestmark = pytest.mark.slow


class Expected(NamedTuple):
    """What fuzzing a format has to show.

    Attributes:
        verdicts_min: so many verdicts of the structured layer, at least.
        corpus: verdicts of its corpus; those of the formats of runs are many and small.
        small: the seeds that are damaged exhaustively, where one is like the others and takes long.
    """

    verdicts_min: int
    corpus: str
    small: slice = slice(None)


FORMATS = {
    "a2t1": Expected(5, "MagicError VersionError TruncatedError FormatError ChecksumError FieldError"),
    "a2run2": Expected(4, "TruncatedError FormatError FieldError"),
    "a2pack": Expected(
        5,
        "MagicError VersionError TruncatedError FormatError ChecksumError FieldError FieldError "
        "FieldError FieldError BookkeepingError",
    ),
    "packdat": Expected(
        6, "MagicError VersionError TruncatedError FormatError ChecksumError FieldError BookkeepingError"
    ),
    "tape": Expected(
        7,
        "NpyError NpyError TruncatedError FormatError ManifestError BookkeepingError "
        "FieldError FieldError ReplayError",
        slice(1, 2),
    ),
}


def small(name: str) -> harness.Target:
    """A format with the seeds that are damaged exhaustively."""
    seeds = ALL[name].seeds
    return ALL[name]._replace(seeds=seeds[FORMATS[name].small] if name in FORMATS else seeds)


def test_every_format_is_fuzzed() -> None:
    """That of a pack's index is part of that of packs."""
    assert {*FORMATS, "a2pack-index"} == ALL.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_the_seeds_are_valid_and_their_seals_fit(name: str) -> None:
    for seed in ALL[name].seeds:
        assert harness.judge(ALL[name], seed) == "ok"
        assert harness.sealed(ALL[name], seed) == seed


@pytest.mark.parametrize("name", FORMATS)
def test_every_small_damage(name: str) -> None:
    verdicts = harness.exhaustive(small(name))
    assert sum(verdicts.values()) > 5000
    assert 0 < verdicts["ok"] < 0.7 * sum(verdicts.values())


@pytest.mark.parametrize("name", FORMATS)
def test_damage_with_seals_that_fit(name: str) -> None:
    corpus = [path.read_bytes() for path in corpus_files(name)]
    verdicts = harness.structured(ALL[name], CASES, seed=2048, corpus=corpus)
    # Neither is everything refused at the door, nor does everything get through.
    assert len(verdicts) >= FORMATS[name].verdicts_min
    assert 0.005 * CASES < verdicts["ok"] < 0.7 * CASES


@pytest.mark.parametrize("name", ALL)
def test_the_corpus_keeps_its_verdicts(name: str) -> None:
    found = check_corpus(ALL[name])
    if name in FORMATS:
        assert found >= {"ok", *FORMATS[name].corpus.split()}


A2RUN2, A2PACK, TAPE = "tape2048.runs.a2run2", "tape2048.runs.a2pack", "tape2048.session"
PACKDAT = "tape2048.runs.packdat"
SESSION, NPY = "tape2048.session.layout", "tape2048.files.npy"
TILES = "tape2048.session.run_table:check_tiles"

#: Checks taken out, one at a time; a name begins with the format whose fuzzing has to notice.
PLANTED = {
    "a2t1 length": ("tape2048.runs.a2run:parse_run", "if len(data) != end:", "if len(data) < end:"),
    "a2t1 moves": ("tape2048.runs.a2run:parse_run", "int(moves.max()) > 3", "int(moves.max()) > 255"),
    "a2run2 count before allocation": (
        f"{A2RUN2}:RunV2.from_bytes",
        "if steps * _STEP_BYTES_MIN > cursor.left:",
        "if (check_step_count := lambda *_: None) is None:",  # without either bound
    ),
    "a2run2 engine length": (
        f"{A2RUN2}:Cursor.take", "if count > self.left:", "if count > self.left + 1:"
    ),
    "a2run2 over-long varint": (f"{A2RUN2}:Cursor.varint", "(byte == 0 and place)", "False"),
    "a2run2 board of 65 bits": (
        f"{A2RUN2}_codec:decode_steps", "shift == U64(63) and byte > U64(1)", "shift > U64(63)"
    ),
    "a2run2 variant": (f"{A2RUN2}_codec:decode_steps", "if variant > U8(1):", "if variant > U8(2):"),
    "a2pack-index overlap": (f"{A2PACK}:_check_index", "overlaps[1:] = offsets[1:] < ends[:-1]", "pass"),
    "a2pack-index entry past the end": (
        f"{A2PACK}:_check_index", "(ends > data_end),", "(ends > data_end + 64),"
    ),
    "a2pack reserved": (
        f"{A2PACK}:_check_index", '(index["reserved"] != 0,', '(index["reserved"] > 2**40,'
    ),
    "a2pack stats length": (
        f"{A2PACK}:_read_layout", "begin + length == footer_at", "begin + length <= footer_at"
    ),
    "a2pack padding": (f"{A2PACK}:PackReader._check_zeros", "if padding.any():", "if False:"),
    "packdat version": (f"{PACKDAT}:read_header", "if version != VERSION:", "if version > 200:"),
    "packdat trailing bytes": (f"{PACKDAT}:parse_runs", "if at != len(content):", "if False:"),
    "packdat engine length": (
        f"{PACKDAT}:parse_runs", "except struct.error as error:", "except KeyError as error:"
    ),
    "packdat runs that do not tile": (TILES, "if wrong.size:", "if False:"),
    "packdat runs that end early": (TILES, "if ends[-1] != rows:", "if False:"),
    "tape length": (f"{NPY}:check_header", "if bytes_found < header.end_offset:", "if False:"),
    "tape trailing bytes": (f"{NPY}:check_header", "if bytes_found > header.end_offset:", "if False:"),
    "tape row type": (f"{NPY}:check_header", "if known is None:", "if known == 0:"),
    "tape manifest's version": (
        f"{SESSION}:parse_manifest", "head.version != version", "head.version < 0"
    ),
    "tape wrong steps": (f"{TAPE}.tape_codec:judge", "wrong[game] or ", ""),
    "tape a game that does not end": (f"{TAPE}.tape_codec:judge", "or legal_mask(final) != U64(0) ", ""),
    "tape count of anchors": (
        f"{TAPE}.tape_reader:check_anchor_count", "if anchors != expected:", "if False:"
    ),
    "tape anchors": ("tape2048.maintenance.validation:TapeChecks.update", "if sound.any():", "if False:"),
    "tape steps on the way": (f"{TAPE}.tape_reader:Tape.boards", "np.flatnonzero(wrong)", "wrong[:0]"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    try:
        with planted(Mutant(*PLANTED[name])), pytest.raises(harness.FindingError):
            fuzz(name.partition(" ")[0])
    finally:
        tape_target._header.cache_clear()  # of what the defect let through


def fuzz(name: str) -> None:
    """As much as the suite does."""
    harness.structured(ALL[name], 5_000, seed=1)  # first, since most defects show there at once
    harness.exhaustive(small(name))
    harness.structured(ALL[name], 20_000, seed=2)


def test_the_oracle_notices_what_it_is_for() -> None:
    """A decoder that crashes, allocates the world, loses bytes, or points past the file."""

    def lost(data: bytes) -> bytes:
        return data[:-1]

    def crashes(data: bytes) -> bytes:
        raise IndexError(len(data))

    def allocates(data: bytes) -> bytes:
        return bytes(np.empty(1 << 40, np.uint8)[: len(data)])

    def points_away(data: bytes) -> bytes:
        raise TruncatedError("it ends", offset=len(data) + 1)

    for decode in (lost, crashes, allocates, points_away):
        bad = harness.Target("toy", [b"abc"], decode, bytes, None, lambda _: [])
        with harness.capped_memory(), pytest.raises(harness.FindingError):
            harness.judge(bad, b"abc")
