"""a2run2 files, against the plain encoder and decoder that follow the format's description."""

import dataclasses
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tape2048 import errors
from tape2048.runs.a2run import read_run
from tape2048.runs.a2run2 import Branch, RunV2
from tape2048.runs.run import Run, RunMeta

from .. import run_builders as build
from ..builders import memory_below, names

DATA = Path(__file__).parents[2] / "data"
GAME = build.game(7, steps_max=9, engine="né")

#: The first bytes that the reference encoder wrote for a run of 959 steps (the format's section 3).
REFERENCE = bytes.fromhex("bf07 caa9a5c506 d3267441 98a001 8010 00 bf07".replace(" ", ""))

floats32 = st.floats(width=32)
branches = st.none() | st.tuples(*[st.none() | floats32] * 4)
steps = st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 300), st.integers(0, 3), branches)
plain_runs = st.builds(
    lambda rows, final, *facts: build.PlainRun(
        [row[0] for row in rows] + [final], [row[1] for row in rows], [row[2] for row in rows], *facts
    ),
    st.lists(steps, max_size=12),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.text(max_size=200),
)


def same(run: RunV2, plain: build.PlainRun) -> None:
    """Every value of both is equal; floats by their bits."""
    assert run.states.tolist() == plain.states
    assert run.moves.tolist() == plain.moves
    meta = run.meta
    facts = len(plain.moves), plain.start_unix_s, plain.max_score, plain.highest_tile, plain.engine
    assert (meta.steps, meta.start_unix_s, meta.max_score, meta.highest_tile, meta.engine) == facts
    assert struct.pack("<f", meta.elapsed_s) == struct.pack("<f", plain.elapsed_s)
    for step, expected in zip(run.steps, plain.branches, strict=True):
        if expected is None:
            assert step.branches is None
            continue
        assert [branch.legal for branch in step.branches] == [value is not None for value in expected]
        found = [branch.value for branch in step.branches if branch.value is not None]
        wanted = [value for value in expected if value is not None]
        assert np.array(found, "<f4").tobytes() == np.array(wanted, "<f4").tobytes()


class TestReadAndWrite:
    def test_golden(self) -> None:
        data = (DATA / "golden.a2run2").read_bytes()
        run = RunV2.load(DATA / "golden.a2run2")
        same(run, build.game(2, steps_max=7, engine=None))
        assert run.to_bytes() == data

    def test_the_reference_encoders_first_bytes(self) -> None:
        (elapsed,) = struct.unpack("<f", REFERENCE[7:11])
        meta = RunMeta(959, 1_755_927_754, elapsed, 20_504, 2048, None)
        assert round(elapsed, 2) == 15.26
        run = RunV2.from_v1(Run(np.zeros(960, np.uint64), np.zeros(959, np.uint8), meta))
        data = run.to_bytes()
        assert data[: len(REFERENCE)] == REFERENCE
        assert data == REFERENCE + b"\0\0\0" * 959 + b"\0"
        assert RunV2.from_bytes(data).meta == meta

    @given(plain_runs)
    def test_same_as_the_plain_codec(self, plain: build.PlainRun) -> None:
        """Decodes as the plain decoder, and encodes to the same bytes."""
        data = build.a2run2_bytes(plain)
        run = RunV2.from_bytes(data)
        same(run, plain)
        same(run, build.decode_a2run2(data))
        assert run.to_bytes() == data

    def test_values_keep_their_bits(self) -> None:
        """Also ``Legal(0.0)``, which files in the wild say of moves that are illegal."""
        plain = build.PlainRun([0x1212212112122121, 2], [0], [(0.5, 0.0, None, None)], engine=None)
        for bits in (0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0x80000000, 1):
            new = bits.to_bytes(4, "little")
            data = build.a2run2_bytes(plain).replace(struct.pack("<f", 0.5), new)
            run = RunV2.from_bytes(data)
            assert run.branch_values.view(np.uint32)[0].tolist() == [bits, 0, 0, 0]
            assert run.branch_legal.tolist() == [3]
            assert run.steps[0].branches[1:] == (Branch(True, 0.0), Branch(False, None), Branch(False, None))
            assert run.to_bytes() == data

    def test_any_buffer(self) -> None:
        data = build.a2run2_bytes(GAME)
        array = np.frombuffer(data, np.uint8)
        for buffer in (bytearray(data), memoryview(data), array, np.repeat(array, 2)[::2]):
            assert RunV2.from_bytes(buffer).equals(RunV2.from_bytes(data))

    def test_a_new_file_and_nothing_else(self, tmp_path: Path) -> None:
        run = RunV2.from_bytes(build.a2run2_bytes(GAME))
        run.save(tmp_path / "a.a2run2")
        assert RunV2.load(tmp_path / "a.a2run2").equals(run)
        with pytest.raises(errors.NameTakenError):
            run.save(tmp_path / "a.a2run2")
        assert names(tmp_path) == ["a.a2run2"]

    def test_facts_that_do_not_fit_are_refused(self) -> None:
        run = RunV2.from_bytes(build.a2run2_bytes(GAME))
        meta = RunMeta(len(run), max_score=2**64)
        with pytest.raises(errors.FieldError, match="max_score"):
            dataclasses.replace(run, meta=meta).to_bytes()
        with pytest.raises(errors.FieldError, match="move"):
            dataclasses.replace(run, moves=run.moves + np.uint8(4)).to_bytes()


def test_from_other_runs() -> None:
    """All but the branches, which take no memory; and branches that there are."""
    v1 = read_run(DATA / "golden.a2run")
    again = RunV2.from_bytes(RunV2.from_v1(v1).to_bytes())
    assert again.equals(RunV2.from_v1(v1))
    plain = build.game(1, steps_max=12, engine="tape2048 golden é")
    same(again, dataclasses.replace(plain, branches=[None] * 12))
    steps = 100_000
    run = Run(np.zeros(steps + 1, np.uint64), np.zeros(steps, np.uint8), RunMeta(steps))
    with memory_below(100_000):
        RunV2.from_v1(run)
    full = RunV2.from_bytes(build.a2run2_bytes(GAME))
    base = Run(full.states, full.moves, full.meta, full.branch_values, full.branch_legal, full.has_branches)
    assert RunV2.from_run(base).to_bytes() == build.a2run2_bytes(GAME)


class TestNormalize:
    def test_as_the_page_says(self) -> None:
        full = 0x1111111111111111  # every move is legal
        one = 0x1212212112122120  # only the last cell is empty: down and right
        rows = [
            (full, 0, (10.0, 20.0, 15.0, 12.5)), (full, 0, (7.0, 7.0, 7.0, 7.0)),
            (one, 1, (5.0, 1.0, 5.0, None)), (full, 0, None),
        ]  # fmt: skip
        plain = build.PlainRun(
            [row[0] for row in rows] + [1], [row[1] for row in rows], [row[2] for row in rows]
        )
        run = RunV2.from_bytes(build.a2run2_bytes(plain)).normalize_branches()
        top = np.float32(1) - np.float32(2**-23)
        assert run.branch_values.tolist() == [
            [0, top, 0.5, 0.25],
            [0.5] * 4,
            [0, top, 0, 0],  # Legal(5.0) of moves that are not legal is dropped; one move is left
            [0] * 4,
        ]
        assert run.branch_legal.tolist() == [15, 15, 2, 0]
        assert run.has_branches.tolist() == [True, True, True, False]

    @given(st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 4), min_size=1, max_size=5))
    def test_against_one_value_at_a_time(self, rows: list[tuple[float, ...]]) -> None:
        board = 0x1111111111111111
        plain = build.PlainRun([board] * (len(rows) + 1), [0] * len(rows), list(rows))
        found = RunV2.from_bytes(build.a2run2_bytes(plain)).normalize_branches().branch_values
        for row, values in zip(rows, found, strict=True):
            low, high = np.float32(min(row)), np.float32(max(row))
            for value, normal in zip(row, values, strict=True):
                wanted = (
                    np.float32(0.5)
                    if low == high
                    else min((np.float32(value) - low) / (high - low), np.float32(1 - 2**-23))
                )
                assert normal == wanted

    def test_values_that_are_not_finite(self) -> None:
        """An error, unless they do not count."""
        for value in (math.nan, math.inf, -math.inf, 3.4e38):
            plain = build.PlainRun([0x1111111111111111, 1], [0], [(value, -3.4e38, 1.0, 2.0)])
            with pytest.raises(errors.FieldError, match="step 0"):
                RunV2.from_bytes(build.a2run2_bytes(plain)).normalize_branches()
        plain = build.PlainRun([0x1212212112122120, 1], [1], [(math.nan, 1.0, math.nan, 2.0)])
        run = RunV2.from_bytes(build.a2run2_bytes(plain)).normalize_branches()
        assert run.branch_values[0, [0, 2]].tolist() == [0, 0]


#: A run with one step: board 1, move 2, branches of which the first is legal.
ONE = build.a2run2_bytes(build.PlainRun([1, 3], [2], [(0.5, None, None, None)], engine=None))
STEP = b"\x01\x02\x01\x00"


def bad_input() -> list[tuple[bytes, type[errors.FormatError], str]]:
    data, field, short = build.a2run2_bytes(GAME), errors.FieldError, errors.TruncatedError
    head, no_engine = build.a2run2_meta(GAME), dataclasses.replace(GAME, engine=None)
    option = bytearray(build.a2run2_bytes(no_engine))
    option[len(build.a2run2_meta(no_engine)) - 1] = 2
    nothing = build.varint(0) * 2 + bytes(4) + build.varint(0) * 2 + b"\1"
    not_finite = dataclasses.replace(GAME, elapsed_s=math.nan)
    steps = {
        b"\x81\x00\x02\x01\x00": "varint",
        b"\xff" * 9 + b"\x02\x02\x01\x00": "varint",
        b"\xff" * 10 + b"\x00\x02\x01\x00": "varint",
        b"\x01\x04\x01\x00": "move 4",
        b"\x01\x82\x00\x01\x00": "move 130",
        b"\x01\x02\x02\x00": "option",
        b"\x01\x02\x01\x02": "variant 2",
    }
    assert ONE.count(STEP) == 1
    return [
        (b"", short, "varint"),
        (data + b"\0", errors.FormatError, "found 1 byte after"),
        (bytes([8]) + data[1:], field, r"9 steps. The metadata says 8"),
        (data.replace("né".encode(), b"n\xff\xff"), field, "UTF-8"),
        (bytes(option), field, "option"),
        (build.a2run2_bytes(not_finite), field, "elapsed_s"),
        *((ONE.replace(STEP, new), field, message) for new, message in steps.items()),
        *(
            (overlong + data[1:], field, "varint")
            for overlong in (b"\x89\x00", b"\x89\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f")
        ),
        *(
            (head + build.varint(count) + bytes(100), field, "metadata says 9")
            for count in (2**32, 2**63, 2**64 - 1)
        ),
        *(
            (build.varint(count) + head[1:] + bytes(100), field, "shortest form")
            for count in (2**32, 2**64 - 1)
        ),
        *((nothing + build.varint(size) + b"abcd", short, "engine") for size in (5, 2**63, 2**64 - 1)),
        *(
            (
                build.a2run2_meta(GAME, steps=count) + build.varint(count) + bytes(27),
                short,
                r"expected at least \d+ for \d+ steps",
            )
            for count in (10, 2**20, 2**32 - 1)
        ),
    ]


def test_bad_input(tmp_path: Path) -> None:
    """No encoder writes these; each is an error with an offset, before memory is allocated."""
    RunV2.from_bytes(ONE)  # what the first reading imports and compiles takes memory, too
    for data, error, message in bad_input():
        with memory_below(1_000_000), pytest.raises(error, match=message) as caught:
            RunV2.from_bytes(data)
        assert caught.value.offset is not None
        assert 0 <= caught.value.offset <= len(data)
    (tmp_path / "empty").touch()
    with pytest.raises(errors.TruncatedError):
        RunV2.load(tmp_path / "empty")
