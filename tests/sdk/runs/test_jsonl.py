"""JSON lines, against the json module."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tape2048.errors import FieldError, FormatError
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.jsonl import parse_line, run_line, step_lines
from tape2048.runs.run import Run

from .. import run_builders as build
from ..run_builders import ref

NAMES = ("UP", "DOWN", "LEFT", "RIGHT")


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
    text = step_lines(run, run_idx).decode()
    assert text.endswith("\n")
    # The made-up values are multiples of 1/64: their shortest float32 text is exact.
    assert [json.loads(line) for line in text.splitlines()] == wanted_steps(plain, run_idx)


@given(st.integers(0, 2**32 - 1))
def test_floats_read_back_as_the_same_float32(bits: int) -> None:
    value = np.array(bits, np.uint32).view(np.float32)[()]
    plain = build.PlainRun([2**64 - 1, 0], [3], [(float(value),) * 4])
    line = json.loads(step_lines(RunV2.from_bytes(build.a2run2_bytes(plain)), 2**64 - 1))
    assert line["pre_board"] == [15] * 16
    found = line["branches"][3]["value"]
    if np.isfinite(value):
        assert np.float32(found).view(np.uint32) == bits
    else:
        assert found is None


def test_lines_of_many_steps() -> None:
    plain = build.PlainRun(list(range(3001)), [1] * 3000, [None] * 3000)
    lines = step_lines(RunV2.from_bytes(build.a2run2_bytes(plain)), 0).splitlines()
    assert [json.loads(line) for line in lines] == wanted_steps(plain, 0)


def test_values_that_json_has_no_number_for() -> None:
    plain = build.PlainRun([1, 2], [0], [(float("nan"), float("inf"), None, 0.25)])
    (line,) = step_lines(RunV2.from_bytes(build.a2run2_bytes(plain)), 0).decode().splitlines()
    assert [branch["value"] for branch in json.loads(line)["branches"]] == [None, None, None, 0.25]
    assert [branch["legal"] for branch in json.loads(line)["branches"]] == [True, True, False, True]


@given(st.integers(0, 2**32), st.none() | st.text())
def test_one_line_a_run(seed: int, engine: str | None) -> None:
    plain = build.game(seed, steps_max=seed % 30, engine=engine, elapsed_s=float(np.float32(15.26)))
    line = run_line(RunV2.from_bytes(build.a2run2_bytes(plain)), 7).decode()
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "run_idx": 7, "steps": len(plain.moves), "start_unix_s": plain.start_unix_s, "elapsed_s": 15.26,
        "max_score": plain.max_score, "highest_tile": plain.highest_tile, "engine": engine,
        "final_board": plain.states[-1], "states": plain.states,
        "moves": [NAMES[move] for move in plain.moves],
    }  # fmt: skip


HIGH = build.PlainRun([2**64 - 1, 2**63, 2**53 + 1], [0, 1], [None, None])


def test_boards_as_text_read_back(tmp_path: Path) -> None:
    full = RunV2.from_bytes(build.a2run2_bytes(HIGH))
    run = Run(full.states, full.moves, full.meta)
    line = run_line(run, 3, "text")
    found = json.loads(line)
    assert found["states"] == [str(state) for state in HIGH.states]
    assert found["final_board"] == str(HIGH.states[-1])
    assert found["steps"] == 2
    assert json.loads(run_line(run, 3))["states"] == HIGH.states
    assert parse_line(line, tmp_path, 1).equals(run)
    assert parse_line(run_line(run, 3), tmp_path, 1).equals(run)
    for wrong in (b'"x"', b'""', b'"1.5"', b'"-1"', b'"18446744073709551616"', b"1.5", b"null", b"true"):
        for part in (b'"18446744073709551615"', b'"9007199254740993"'):
            with pytest.raises((FormatError, FieldError)):
                parse_line(line.replace(part, wrong), tmp_path, 1)


def test_which_readers_are_exact() -> None:
    """What the documentation says of them; Polars reads wide integers, or refuses."""
    run = RunV2.from_bytes(build.a2run2_bytes(HIGH))
    number, text = run_line(run, 0), run_line(run, 0, "text")
    pyarrow_json = pytest.importorskip("pyarrow.json")
    import pyarrow as pa

    read = lambda line, **how: pyarrow_json.read_json(io.BytesIO(line), **how)["states"].to_pylist()[0]  # noqa: E731
    assert read(number) == [float(state) for state in HIGH.states]
    assert [int(state) for state in read(number)] != HIGH.states
    schema = pa.schema([("states", pa.list_(pa.uint64()))])
    assert read(number, parse_options=pyarrow_json.ParseOptions(explicit_schema=schema)) == HIGH.states
    assert [int(state) for state in read(text)] == HIGH.states
