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
from tape2048.runs.a2run2 import Branch, Move, RunV2
from tape2048.runs.files import read_run_file, scan
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

    @pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0x80000000, 1])
    def test_values_keep_their_bits(self, bits: int) -> None:
        data = bytearray(
            build.a2run2_bytes(build.PlainRun([1, 2], [0], [(0.5, None, None, None)], engine=None))
        )
        at = data.index(struct.pack("<f", 0.5))
        data[at : at + 4] = bits.to_bytes(4, "little")
        run = RunV2.from_bytes(bytes(data))
        assert run.branch_values.view(np.uint32)[0].tolist() == [bits, 0, 0, 0]
        assert run.to_bytes() == data

    def test_legal_zero_stays_what_the_file_says(self) -> None:
        # A full board of different tiles has no legal move; files in the wild say Legal(0.0) all the same.
        run = RunV2.from_bytes(
            build.a2run2_bytes(build.PlainRun([0x1212212112122121, 1], [0], [(0.0, 0.0, 0.0, 0.0)]))
        )
        assert run.branch_legal.tolist() == [15]
        assert run.steps[0].branches == (Branch(True, 0.0),) * 4

    def test_any_buffer(self) -> None:
        data = build.a2run2_bytes(GAME)
        for buffer in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
            assert RunV2.from_bytes(buffer).equals(RunV2.from_bytes(data))
        strided = np.repeat(np.frombuffer(data, np.uint8), 2)[::2]
        assert RunV2.from_bytes(strided).equals(RunV2.from_bytes(data))

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

    def test_the_content_says_what_a_file_is(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(build.a2t1_bytes(GAME))
        (tmp_path / "b").write_bytes(build.a2run2_bytes(GAME))
        assert not isinstance(read_run_file(tmp_path / "a"), RunV2)
        assert isinstance(read_run_file(tmp_path / "b"), RunV2)

    def test_a_directory_of_both(self, tmp_path: Path) -> None:
        for name, content in {
            "a.a2run2": build.a2t1_bytes(GAME),  # in older collections both have this extension
            "b.a2run2": build.a2run2_bytes(GAME),
            "c.a2run2": build.a2run2_bytes(GAME)[:-1],
            "d.a2run": build.a2t1_bytes(GAME),
        }.items():
            (tmp_path / name).write_bytes(content)
        found = list(scan(tmp_path))
        assert [isinstance(item.run, RunV2) for item in found] == [False, True, False, False]
        assert [item.run is None for item in found] == [False, False, True, False]
        assert isinstance(found[2].error, errors.TruncatedError)
        assert [item.path.name for item in scan(tmp_path, suffixes=(".a2run",))] == ["d.a2run"]


class TestFromV1:
    def test_everything_but_branches(self) -> None:
        v1 = read_run(DATA / "golden.a2run")
        run = RunV2.from_v1(v1)
        assert run.meta == v1.meta
        assert run.states.tolist() == v1.states.tolist()
        assert not run.has_branches.any()
        again = RunV2.from_bytes(run.to_bytes())
        assert again.equals(run)
        plain = build.game(1, steps_max=12, engine="tape2048 golden é")
        same(again, dataclasses.replace(plain, branches=[None] * 12))

    def test_costs_no_memory_for_values(self) -> None:
        steps = 100_000
        run = Run(np.zeros(steps + 1, np.uint64), np.zeros(steps, np.uint8), RunMeta(steps))
        with memory_below(100_000):
            RunV2.from_v1(run)

    def test_from_run_keeps_what_there_is(self) -> None:
        run = RunV2.from_bytes(build.a2run2_bytes(GAME))
        plain = Run(run.states, run.moves, run.meta, run.branch_values, run.branch_legal, run.has_branches)
        assert RunV2.from_run(plain).to_bytes() == build.a2run2_bytes(GAME)


class TestSteps:
    def test_steps_as_objects(self) -> None:
        run = RunV2.from_bytes(build.a2run2_bytes(GAME))
        steps = run.steps
        assert len(steps) == 9
        assert steps[0].pre_board == GAME.states[0]
        assert steps[-1].chosen is Move(GAME.moves[-1])
        assert [step.pre_board for step in steps] == GAME.states[:-1]


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

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3.4e38])
    def test_values_that_cannot_be_scaled(self, value: float) -> None:
        plain = build.PlainRun([0x1111111111111111, 1], [0], [(value, -3.4e38, 1.0, 2.0)])
        with pytest.raises(errors.FieldError, match="step 0"):
            RunV2.from_bytes(build.a2run2_bytes(plain)).normalize_branches()

    def test_a_value_that_does_not_count_may_be_anything(self) -> None:
        plain = build.PlainRun([0x1212212112122120, 1], [1], [(math.nan, 1.0, math.nan, 2.0)])
        run = RunV2.from_bytes(build.a2run2_bytes(plain)).normalize_branches()
        assert run.branch_values[0, [0, 2]].tolist() == [0, 0]


class TestBadInput:
    def test_trailing_bytes(self) -> None:
        data = build.a2run2_bytes(GAME)
        with pytest.raises(errors.FormatError, match="found 1 byte after") as caught:
            RunV2.from_bytes(data + b"\0")
        assert caught.value.offset == len(data)

    def test_steps_that_disagree(self) -> None:
        data = build.a2run2_bytes(GAME)
        with pytest.raises(errors.FieldError, match=r"9 steps. The metadata says 8"):
            RunV2.from_bytes(bytes([8]) + data[1:])

    @pytest.mark.parametrize("count", [10, 2**20, 2**32 - 1])
    def test_counts_allocate_nothing(self, count: int) -> None:
        head = build.a2run2_meta(GAME, steps=count) + build.varint(count)
        with memory_below(1_000_000), pytest.raises(errors.TruncatedError):
            RunV2.from_bytes(head + bytes(3 * 9))

    @pytest.mark.parametrize("count", [2**32, 2**63, 2**64 - 1])
    def test_a_count_past_its_field(self, count: int) -> None:
        head = build.a2run2_meta(GAME)
        with pytest.raises(errors.FieldError):
            RunV2.from_bytes(head + build.varint(count) + bytes(100))
        with pytest.raises(errors.FieldError):
            RunV2.from_bytes(build.varint(count) + head[1:] + bytes(100))

    @pytest.mark.parametrize("length", [5, 2**63, 2**64 - 1])
    def test_an_engine_longer_than_the_file(self, length: int) -> None:
        data = build.varint(0) * 2 + bytes(4) + build.varint(0) * 2 + b"\1" + build.varint(length) + b"abcd"
        with pytest.raises(errors.TruncatedError, match="engine"):
            RunV2.from_bytes(data)

    def test_an_engine_that_is_not_utf8(self) -> None:
        data = build.a2run2_bytes(GAME).replace("né".encode(), b"n\xff\xff")
        with pytest.raises(errors.FieldError, match="UTF-8"):
            RunV2.from_bytes(data)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            # the step of a run with one: board 1, move 2, branches of which the first is legal
            (b"\x01\x02\x01\x00", b"\x81\x00\x02\x01\x00", "varint"),
            (b"\x01\x02\x01\x00", b"\xff" * 9 + b"\x02\x02\x01\x00", "varint"),
            (b"\x01\x02\x01\x00", b"\xff" * 10 + b"\x00\x02\x01\x00", "varint"),
            (b"\x01\x02\x01\x00", b"\x01\x04\x01\x00", "move 4"),
            (b"\x01\x02\x01\x00", b"\x01\x82\x00\x01\x00", "move 130"),
            (b"\x01\x02\x01\x00", b"\x01\x02\x02\x00", "option"),
            (b"\x01\x02\x01\x00", b"\x01\x02\x01\x02", "variant 2"),
        ],
    )
    def test_steps_that_no_encoder_writes(self, old: bytes, new: bytes, message: str) -> None:
        data = build.a2run2_bytes(build.PlainRun([1, 3], [2], [(0.5, None, None, None)], engine=None))
        assert data.count(old) == 1
        with pytest.raises(errors.FieldError, match=message) as caught:
            RunV2.from_bytes(data.replace(old, new))
        assert caught.value.offset is not None

    @pytest.mark.parametrize("overlong", [b"\x89\x00", b"\x89\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f"])
    def test_metadata_that_no_encoder_writes(self, overlong: bytes) -> None:
        with pytest.raises(errors.FieldError, match="varint"):
            RunV2.from_bytes(overlong + build.a2run2_bytes(GAME)[1:])

    def test_an_option_of_the_engine_that_there_is_not(self) -> None:
        data = bytearray(build.a2run2_bytes(dataclasses.replace(GAME, engine=None)))
        at = len(build.a2run2_meta(dataclasses.replace(GAME, engine=None))) - 1
        data[at] = 2
        with pytest.raises(errors.FieldError, match="option") as caught:
            RunV2.from_bytes(bytes(data))
        assert caught.value.offset == at

    def test_a_time_that_is_not_finite(self) -> None:
        with pytest.raises(errors.FieldError, match="elapsed_s"):
            RunV2.from_bytes(build.a2run2_bytes(dataclasses.replace(GAME, elapsed_s=math.nan)))

    def test_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(errors.TruncatedError):
            RunV2.from_bytes(b"")
        (tmp_path / "empty").touch()
        with pytest.raises(errors.TruncatedError):
            RunV2.load(tmp_path / "empty")
