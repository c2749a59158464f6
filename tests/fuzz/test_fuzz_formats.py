"""Fuzzing of every format: the exhaustive and the structured layer, and the corpus."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness
from corpus import check_corpus, corpus_files
from targets import ALL

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
    "dataset": Expected(
        8,
        "NpyError NpyError TruncatedError FormatError ManifestError BookkeepingError FieldError SchemaError",
        slice(2, 3),
    ),
    "tape": Expected(
        7,
        "NpyError NpyError TruncatedError FormatError ManifestError BookkeepingError "
        "FieldError FieldError ReplayError",
        slice(1, 2),
    ),
}


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
    target = ALL[name]
    verdicts = harness.exhaustive(target._replace(seeds=target.seeds[FORMATS[name].small]))
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
