"""The guide against a binary search; maps of more rows than 32 bits count."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, strategies as st

from tape2048.base.guide import make_guide
from tape2048.jit.compiler import kernel
from tape2048.jit.memory import find
from tape2048.loader import gather_kernel
from tape2048.loader.batch import Outputs
from tape2048.loader.order import Order
from tape2048.loader.plan import NO_CAP, PLAN_WORDS, Labels, Plan, read_plan
from tape2048.loader.row_map import RowMap, Segments, address_of, make_label_guide


@kernel
def _find_all(numbers: Any, entries: Any, starts: Any, shift: Any, out: Any) -> None:
    for i in range(numbers.shape[0]):
        out[i] = find(numbers[i], entries, starts, shift)


def found(lengths: list[int], numbers: npt.NDArray[np.uint64]) -> list[int]:
    guide = make_guide(np.cumsum([0, *lengths]))
    out = np.empty(len(numbers), np.uint64)
    _find_all(
        numbers, np.uint64(address_of(guide.entries)), np.uint64(address_of(guide.starts)), guide.shift, out
    )
    return out.tolist()


@given(st.lists(st.integers(0, 9) | st.sampled_from([0, 0, 0, 1, 500]), min_size=1, max_size=60))
@example([1])
@example([0, 0, 3, 0, 0])
@example([1000, *[0] * 20, 1, 1, 1, 1000])
@example([1] * 60)
def test_every_number_is_found_in_its_range(lengths: list[int]) -> None:
    """Ranges of any lengths, empty ones too: many in a bucket, and many buckets to one."""
    expected = np.repeat(np.arange(len(lengths)), lengths)
    assert found(lengths, np.arange(len(expected), dtype=np.uint64)) == expected.tolist()


@pytest.mark.parametrize("lengths", [[2**33, 1, 2**33, 5], [2**40], [1, 2**35, 1]])
def test_more_numbers_than_32_bits_count(lengths: list[int]) -> None:
    ends = np.cumsum(lengths)
    edges = np.concatenate([[0], ends - 1, ends, ends + 1, ends // 2])
    numbers = np.unique(edges[edges < ends[-1]]).astype(np.uint64)
    assert found(lengths, numbers) == np.searchsorted(ends, numbers, "right").tolist()


def test_runs_of_a_map_of_more_rows_than_32_bits_count() -> None:
    """Of rows that do not exist: their runs are told without reading them."""
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 20_000, 600_000)
    rows[rng.random(len(rows)) < 0.05] *= 50
    nothing = np.zeros(len(rows), np.int64)
    address = np.full(len(rows), 1 << 40, np.uint64)
    segments = Segments(
        address, rows, np.arange(len(rows)), address, nothing, nothing, nothing + 28, address * 0
    )
    rowmap = RowMap.of([(segments, None, None)], len(rows), 28)
    assert rowmap.rows > 2**33
    labels = Labels.of(np.zeros(len(rows), np.uint8), np.zeros(1, np.uint8))
    words = Plan.of(rowmap, labels, NO_CAP).words
    numbers = rng.integers(0, rowmap.rows, 50_000)
    run = np.empty(len(numbers), np.uint32)
    order, target = Order.listed(numbers), np.array(Outputs(run=address_of(run)), np.uint64)
    done = gather_kernel.fill(words, order.words, (0, len(numbers)), order.keys, target)
    assert done == len(numbers)
    np.testing.assert_array_equal(run, np.searchsorted(np.cumsum(rows), numbers, "right"))


@pytest.mark.parametrize(
    ("lengths", "guided"),
    [([5], True), ([1] * 300, True), ([37, 61, 53, 100] * 40, True), ([1000, *[1] * 20, 7, 900], True),
     ([2**36, 1, 2**35, 9], False)],
)  # fmt: skip
def test_labels_of_runs_of_any_lengths(lengths: list[int], guided: bool) -> None:
    """Of rows that do not exist: many runs in a bucket, and buckets too large for a guide of labels."""
    rng = np.random.default_rng(1)
    exponents = rng.integers(10, 18, len(lengths)).astype(np.uint8)
    rows, nothing = np.array(lengths), np.zeros(len(lengths), np.int64)
    address = np.zeros(len(lengths), np.uint64)
    segments = Segments(
        address, rows, np.arange(len(rows)), address, nothing, nothing, nothing + 28, address * 0
    )
    rowmap = RowMap.of([(segments, None, None)], len(rows), 28)
    thresholds = np.array([13, 15, 17], np.uint8)
    labels = make_label_guide(rowmap.guide, exponents)
    assert bool(len(labels)) == guided
    plan = Plan.of(rowmap, Labels.of(exponents, thresholds, labels), NO_CAP)
    ends = np.cumsum(rows)
    near = np.concatenate([ends - rows, ends - 1, ends - rows // 2 - 1])
    numbers = np.concatenate([near, rng.integers(0, rowmap.rows, 500)])
    flags = np.zeros((len(numbers), 3), np.bool_)
    targets = np.zeros((len(numbers), 3), np.float32)
    order = Order.listed(numbers)
    target = np.array(Outputs(flags=address_of(flags), targets=address_of(targets)), np.uint64)
    done = gather_kernel.fill(plan.words, order.words, (0, len(numbers)), order.keys, target)
    assert done == len(numbers)
    expected = exponents[np.searchsorted(ends, numbers, "right")][:, None] >= thresholds
    np.testing.assert_array_equal(flags, expected)
    np.testing.assert_array_equal(targets, expected)


def test_rows_in_one_line_need_no_look_up() -> None:
    rows = np.array([3, 1, 4])
    address = np.uint64(1000) + np.array([0, 3, 4], np.uint64) * np.uint64(28)
    end = np.full(3, 1000 + 8 * 28, np.uint64)
    nothing = np.zeros(3, np.int64)
    line = Segments(address, rows, np.arange(3), end, nothing, nothing, nothing + 28, address * 0)
    for kept, expected in (([0, 1, 2], 1000), ([0, 2], 0), ([], 0)):
        some = line.take(np.array(kept, np.int64))._replace(run=np.arange(len(kept)))
        assert RowMap.of([(some, None, None)], len(kept), 28).row_line == expected


def test_a_plan_is_read_in_the_order_of_its_words() -> None:
    def leaves(part: Any) -> list[Any]:
        return [leaf for each in part for leaf in (leaves(each) if isinstance(each, tuple) else [each])]

    assert leaves(read_plan(range(PLAN_WORDS))) == list(range(PLAN_WORDS))
