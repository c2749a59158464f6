"""JSON lines, against the json module; floats, against NumPy's shortest texts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tape2048.formats._jsonl_kernels import STEP_LINE_BYTES_MAX, float_text
from tape2048.formats.a2run2 import RunV2
from tape2048.formats.jsonl import run_line, step_lines

from . import run_builders as build
from .run_builders import ref

NAMES = ("UP", "DOWN", "LEFT", "RIGHT")


def text_of(bits: int) -> str:
    out = np.empty(64, np.uint8)
    return out[: float_text(np.uint32(bits), out)].tobytes().decode()


def digits(text: str) -> str:
    return text.split("e", maxsplit=1)[0].replace(".", "").replace("-", "").strip("0")


def check_float(bits: int) -> None:
    value = np.array(bits, np.uint32).view(np.float32)[()]
    text = text_of(bits)
    if not np.isfinite(value):
        assert text == "null"
        return
    assert isinstance(json.loads(text), float)
    assert np.float32(text).view(np.uint32) == bits, "it reads back as the same float"
    shortest = np.format_float_scientific(value, unique=True)
    assert len(digits(text)) == len(digits(shortest)), (text, shortest)
    assert float(text) == float(shortest), "of the shortest ones, the nearest"


@given(st.integers(0, 2**32 - 1))
def test_floats_of_any_bits(bits: int) -> None:
    check_float(bits)


def test_floats_at_the_edges() -> None:
    edges = [exponent << 23 for exponent in range(256)]
    around = [bits + delta for bits in edges for delta in (-2, -1, 0, 1, 2) if bits + delta >= 0]
    for bits in [*around, *range(64), 0x80000000, 0x80000001, 0xFF7FFFFF, 0x3F7FFFFE, 0x3F7FFFFF]:
        check_float(bits)


def test_floats_look_as_people_write_them() -> None:
    known = {0.5: "0.5", 1.0: "1.0", -2.5: "-2.5", 1e-7: "1e-7", 0.0001: "0.0001", 1234567.0: "1234567.0"}
    known |= {
        0.1: "0.1",
        1.5e-10: "1.5e-10",
        3.4028235e38: "3.4028235e38",
        0.0: "0.0",
        1e10: "10000000000.0",
    }
    for value, text in [*known.items(), (-0.0, "-0.0")]:
        assert text_of(int(np.float32(value).view(np.uint32))) == text


def wanted_steps(plain: build.PlainRun, run_idx: int) -> list[dict[str, Any]]:
    return [
        {
            "run_idx": run_idx,
            "step_idx": i,
            "pre_board": ref.unpack(board),
            "chosen": NAMES[move],
            "branches": None
            if values is None
            else [{"legal": value is not None, "value": value} for value in values],
        }
        for i, (board, move, values) in enumerate(
            zip(plain.states, plain.moves, plain.branches, strict=False)
        )
    ]


@given(st.integers(0, 2**32), st.integers(0, 2**64 - 1))
def test_one_line_a_step(seed: int, run_idx: int) -> None:
    plain = build.game(seed, steps_max=8)
    run = RunV2.from_bytes(build.a2run2_bytes(plain))
    text = bytes(step_lines(run, run_idx)).decode()
    assert text.endswith("\n")
    # The made-up values are multiples of 1/64: their shortest float32 text is exact.
    assert [json.loads(line) for line in text.splitlines()] == wanted_steps(plain, run_idx)
    assert max(len(line) + 1 for line in text.splitlines()) <= STEP_LINE_BYTES_MAX


def test_the_longest_line_fits() -> None:
    worst = -1.1754944e-38
    plain = build.PlainRun([2**64 - 1, 0], [3], [(worst,) * 4])
    text = bytes(step_lines(RunV2.from_bytes(build.a2run2_bytes(plain)), 2**64 - 1)).decode()
    assert json.loads(text)["pre_board"] == [15] * 16
    assert len(text) <= STEP_LINE_BYTES_MAX - 9  # step_idx has one digit of ten here


def test_values_that_json_has_no_number_for() -> None:
    plain = build.PlainRun([1, 2], [0], [(float("nan"), float("inf"), None, 0.25)])
    (line,) = bytes(step_lines(RunV2.from_bytes(build.a2run2_bytes(plain)), 0)).decode().splitlines()
    assert [branch["value"] for branch in json.loads(line)["branches"]] == [None, None, None, 0.25]
    assert [branch["legal"] for branch in json.loads(line)["branches"]] == [True, True, False, True]


@given(st.integers(0, 2**32), st.none() | st.text())
def test_one_line_a_run(seed: int, engine: str | None) -> None:
    plain = build.game(seed, steps_max=seed % 30, engine=engine, elapsed_s=float(np.float32(15.26)))
    line = bytes(run_line(RunV2.from_bytes(build.a2run2_bytes(plain)), 7)).decode()
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "run_idx": 7,
        "steps": len(plain.moves),
        "start_unix_s": plain.start_unix_s,
        "elapsed_s": 15.26,
        "max_score": plain.max_score,
        "highest_tile": plain.highest_tile,
        "engine": engine,
        "final_board": plain.states[-1],
        "states": plain.states,
        "moves": [NAMES[move] for move in plain.moves],
    }


def test_boards_keep_all_64_bits() -> None:
    plain = build.PlainRun([2**64 - 1, 0, 2**63 + 1], [1, 2], [None, None])
    line = json.loads(bytes(run_line(RunV2.from_bytes(build.a2run2_bytes(plain)), 0)))
    assert line["states"] == [2**64 - 1, 0, 2**63 + 1]
