"""The machine instructions against what Python's integers say."""

# ruff: noqa: PLW0108 - an intrinsic can be called only in compiled code

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, strategies as st

from tape2048.jit import intrinsics, memory
from tape2048.jit.compiler import kernel

CHECKOUT = Path(__file__).resolve().parents[3]

words = st.integers(0, 2**64 - 1)
#: Words with few bits set, or few not set.
sparse = st.lists(st.integers(0, 63)).map(lambda places: sum(1 << place for place in set(places)))


_count = kernel(lambda value: intrinsics.popcount(value))
_swap = kernel(lambda value: intrinsics.bswap64(value))
_high = kernel(lambda a, b: intrinsics.high64(a, b))
_select = kernel(lambda mask, n: intrinsics.select_bit(mask, n))
_select_by_loop = kernel(lambda mask, n: intrinsics.select_bit_loop(mask, n))
_store8 = kernel(lambda buffer, at, value: memory.store8(buffer, at, value))
_store32 = kernel(lambda buffer, at, value: memory.store32(buffer, at, value))
_store64 = kernel(lambda buffer, at, value: memory.store64(buffer, at, value))
_load_each = kernel(lambda at: (memory.load8(at), memory.load32(at), memory.load64(at)))
_store_at8 = kernel(lambda address, value: memory.store8_at(address, value))
_store_at32 = kernel(lambda address, value: memory.store32_at(address, value))
_store_at64 = kernel(lambda address, value: memory.store64_at(address, value))
_turn = kernel(lambda source, target, k: memory.copy_symmetry(source, target, k))
_unpack = kernel(lambda board, target, k: memory.unpack_symmetry(board, target, k))


def address(array: npt.NDArray[Any], at: int = 0) -> np.uint64:
    return np.uint64(array.ctypes.data + at)


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


STORES = [(_store8, _store_at8, 1), (_store32, _store_at32, 4), (_store64, _store_at64, 8)]


@pytest.mark.parametrize("by_address", [False, True])
@pytest.mark.parametrize(("store", "store_at", "width"), STORES, ids=["8", "32", "64"])
@given(value=words, at=st.integers(0, 24))
def test_a_store_writes_its_bytes_and_no_others(
    *, store: Any, store_at: Any, width: int, by_address: bool, value: int, at: int
) -> None:
    before = bytes(range(100, 132))
    buffer: npt.NDArray[np.uint8] = np.frombuffer(before, dtype=np.uint8).copy()
    if by_address:
        store_at(address(buffer, at), np.uint64(value))
    else:
        store(buffer, np.uint64(at), np.uint64(value))
    low = (value % (1 << 8 * width)).to_bytes(width, "little")
    assert buffer.tobytes() == before[:at] + low + before[at + width :]


@given(content=st.binary(min_size=32, max_size=32), at=st.integers(0, 24))
def test_a_load_reads_its_bytes_wherever_they_begin(content: bytes, at: int) -> None:
    buffer = np.frombuffer(content, np.uint8)
    found = [int(value) for value in _load_each(address(buffer, at))]
    assert found == [int.from_bytes(content[at : at + width], "little") for width in (1, 4, 8)]


@given(st.binary(min_size=16, max_size=16), st.integers(0, 7), st.integers(0, 2**61 - 1))
def test_a_board_is_copied_turned(cells: bytes, k: int, ignored: int) -> None:
    """By the low three bits of k: swap left and right, top and bottom, then transpose."""
    source = np.frombuffer(b"." + cells, np.uint8)
    target = np.full(18, 200, np.uint8)
    _turn(address(source, 1), address(target, 1), np.uint64(ignored << 3 | k))
    board = np.frombuffer(cells, np.uint8).reshape(4, 4)
    board = board[:, ::-1] if k & 1 else board
    board = board[::-1] if k & 2 else board
    board = board.T if k & 4 else board
    assert target.tolist() == [200, *board.reshape(-1).tolist(), 200]


@given(st.lists(st.integers(0, 15), min_size=16, max_size=16), st.integers(0, 7))
def test_a_packed_board_is_written_turned(cells: list[int], k: int) -> None:
    """Cell 0 is in the highest four bits."""
    target, copied = np.full(18, 200, np.uint8), np.full(18, 200, np.uint8)
    _unpack(np.uint64(int("".join(f"{cell:x}" for cell in cells), 16)), address(target, 1), np.uint64(k))
    _turn(address(np.array(cells, np.uint8)), address(copied, 1), np.uint64(k))
    assert target.tolist() == copied.tolist()


# Which form select_bit takes is decided at import, for the processor that numba compiles for.
CHOICE = """
import llvmlite.binding as llvm
{before}
import numba
from tape2048.jit import intrinsics, memory
select_bit = intrinsics.select_bit
select = numba.njit(lambda mask, n: select_bit(mask, n))
print(intrinsics.HAS_PDEP, select_bit is intrinsics.select_bit_loop, select(0b101100, 1))
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
def test_pdep_is_used_only_where_allowed(before: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHOICE.format(before=before)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "sdk"), **env},
    )  # fmt: skip
    assert done.stdout.split() == ["False", "True", "8"]
