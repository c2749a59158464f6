"""The machine instructions against what Python's integers say."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tape2048 import _bits
from tape2048._jit import kernel

CHECKOUT = Path(__file__).resolve().parents[2]

words = st.integers(0, 2**64 - 1)
#: Words with few bits set, or few not set.
sparse = st.lists(st.integers(0, 63)).map(lambda places: sum(1 << place for place in set(places)))


@kernel
def _count(value: Any) -> Any:
    return _bits.popcount(value)


@kernel
def _swap(value: Any) -> Any:
    return _bits.bswap64(value)


@kernel
def _high(a: Any, b: Any) -> Any:
    return _bits.high64(a, b)


@kernel
def _select(mask: Any, n: Any) -> Any:
    return _bits.select_bit(mask, n)


@kernel
def _select_by_loop(mask: Any, n: Any) -> Any:
    return _bits.select_bit_loop(mask, n)


@kernel
def _store8(buffer: Any, at: Any, value: Any) -> None:
    _bits.store8(buffer, at, value)


@kernel
def _store32(buffer: Any, at: Any, value: Any) -> None:
    _bits.store32(buffer, at, value)


@kernel
def _store64(buffer: Any, at: Any, value: Any) -> None:
    _bits.store64(buffer, at, value)


@given(words | sparse)
@example(0)
@example(2**64 - 1)
def test_popcount_counts_bits(value: int) -> None:
    assert _count(np.uint64(value)) == value.bit_count()


@given(words)
def test_bswap_turns_bytes_around(value: int) -> None:
    assert int(_swap(np.uint64(value))) == int.from_bytes(value.to_bytes(8, "little"), "big")


@given(words | sparse, words | sparse)
@example(2**64 - 1, 2**64 - 1)
def test_high64_is_the_upper_half_of_the_product(a: int, b: int) -> None:
    assert int(_high(np.uint64(a), np.uint64(b))) == a * b >> 64


def nth_bit(mask: int, n: int) -> int:
    return [1 << place for place in range(64) if mask >> place & 1][n]


@given((words | sparse).filter(bool), st.randoms(use_true_random=False))
@example(2**64 - 1, random.Random(0))
@example(1 << 63, random.Random(0))
def test_select_finds_the_nth_bit_either_way(mask: int, rng: random.Random) -> None:
    n = rng.randrange(mask.bit_count())
    assert int(_select_by_loop(np.uint64(mask), np.uint64(n))) == nth_bit(mask, n)
    assert int(_select(np.uint64(mask), np.uint64(n))) == nth_bit(mask, n)


@pytest.mark.parametrize("places", [range(16), range(1), range(15, 16), range(0, 16, 3)])
def test_select_finds_each_empty_cell(places: range) -> None:
    mask = np.uint64(sum(1 << 4 * place for place in places))
    for n, place in enumerate(places):
        for select in (_select, _select_by_loop):
            assert int(select(mask, np.uint64(n))) == 1 << 4 * place


@pytest.mark.parametrize(("store", "width"), [(_store8, 1), (_store32, 4), (_store64, 8)])
@given(value=words, at=st.integers(0, 24))
def test_a_store_writes_its_bytes_and_no_others(store: Any, width: int, value: int, at: int) -> None:
    before = bytes(range(100, 132))
    buffer: npt.NDArray[np.uint8] = np.frombuffer(before, dtype=np.uint8).copy()
    store(buffer, np.uint64(at), np.uint64(value))
    low = (value % (1 << 8 * width)).to_bytes(width, "little")
    assert buffer.tobytes() == before[:at] + low + before[at + width :]


# Which form select_bit takes is decided at import, for the processor that numba compiles for.
CHOICE = """
import llvmlite.binding as llvm
{before}
import numba
from tape2048 import _bits
select_bit = _bits.select_bit
select = numba.njit(lambda mask, n: select_bit(mask, n))
print(_bits.HAS_PDEP, select_bit is _bits.select_bit_loop, select(0b101100, 1))
"""
NO_BMI2 = """
features = llvm.get_host_cpu_features()
features["bmi2"] = False
llvm.get_host_cpu_features = lambda: features
"""
PRETENDED = {
    "no bmi2": (NO_BMI2, {}),
    "slow pdep": ("llvm.get_host_cpu_name = lambda: 'znver2'", {}),
    "numba told of another processor": ("", {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}),
    "numba told of fewer features": ("", {"NUMBA_CPU_FEATURES": "+sse2,-bmi2"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "env"), PRETENDED.values(), ids=list(PRETENDED))
def test_pdep_is_used_only_where_the_compiled_code_may_use_it(before: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHOICE.format(before=before)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "sdk"), **env},
    )  # fmt: skip
    assert done.stdout.split() == ["False", "True", "8"]
