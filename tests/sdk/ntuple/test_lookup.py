"""The value of a board, compiled, against the sum that its formula writes down."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests import reference

from tape2048.errors import ConfigError
from tape2048.jit import intrinsics
from tape2048.jit.compiler import kernel
from tape2048.ntuple.lookup import indices_of, stage_of
from tape2048.ntuple.network import Network, NetworkLayout, parse_tuple, place, stage_begins, tuple_text

from ...recorder.ntuple_training import slow

words = st.integers(0, 2**64 - 1)
boards = st.lists(st.integers(0, 15), min_size=16, max_size=16)


@kernel
def _extract(board: Any, mask: Any) -> Any:
    return intrinsics.extract_nibbles(board, mask)


@kernel
def _extract_by_loop(board: Any, mask: Any) -> Any:
    return intrinsics.extract_nibbles_loop(board, mask)


@kernel
def _stage(reaches: Any, board: Any) -> Any:
    return stage_of(reaches, board)


@kernel
def _indices(masks: Any, offsets: Any, base: Any, board: Any, out: Any) -> None:
    indices_of(masks, offsets, base, board, out)


@given(words, st.sets(st.integers(0, 15)))
def test_nibbles_are_extracted_either_way(board: int, places: set[int]) -> None:
    mask = sum(15 << 4 * place for place in places)
    expected = sum((board >> 4 * place & 15) << 4 * i for i, place in enumerate(sorted(places)))
    assert int(_extract(np.uint64(board), np.uint64(mask))) == expected
    assert int(_extract_by_loop(np.uint64(board), np.uint64(mask))) == expected


LAYOUTS = [
    NetworkLayout.of(["0123"]),
    NetworkLayout.of(["0145", "01245", "9abcde"]),
    NetworkLayout.of(["01234", "cdef", "048c"], [2048]),
    NetworkLayout.of(["0145", "0aef"], [4, 64, 8192, 32768]),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@settings(max_examples=40)
@given(cells=boards)
def test_entries_are_those_of_eight_images(layout: NetworkLayout, cells: list[int]) -> None:
    base = np.uint64(slow.stage_of(layout, cells) * layout.stage_size)
    out = np.empty(8 * len(layout.tuples), dtype=np.uint64)
    _indices(layout.masks, layout.offsets, base, np.uint64(reference.pack(cells)), out)
    expected = [sorted(places) for places in slow.entries_of(layout, cells)]
    assert [sorted(places) for places in out.reshape(-1, 8).tolist()] == expected
    assert max(itertools.chain(*expected)) < layout.entries


@pytest.mark.parametrize("stages", [(), (4,), (32768,), (8192, 16384), tuple(2**e for e in range(2, 16))])
def test_a_stage_begins_with_its_tile(stages: tuple[int, ...]) -> None:
    layout = NetworkLayout.of(["0123"], stages)
    rng = random.Random(3)
    for highest in range(16):
        for _ in range(20):
            cells = [rng.randint(0, highest) for _ in range(16)]
            cells[rng.randrange(16)] = highest  # in odd cells and in even ones
            found = int(_stage(stage_begins(layout), np.uint64(reference.pack(cells))))
            assert found == sum(2**highest >= tile for tile in stages)


@settings(max_examples=300)
@given(
    stages=st.sets(st.integers(1, 0x3FFF).map(lambda number: 4 * number), max_size=8),
    cells=st.lists(st.sampled_from([0, 1, 9, *range(11, 16)]), min_size=16, max_size=16),
)
def test_a_stage_begins_with_a_sum_of_different_tiles(stages: set[int], cells: list[int]) -> None:
    layout = NetworkLayout.of(["0123"], sorted(stages))
    assert int(_stage(stage_begins(layout), np.uint64(reference.pack(cells)))) == slow.stage_of(layout, cells)


def test_equal_tiles_count_once() -> None:
    begins = stage_begins(NetworkLayout.of(["0123"], [8192, 12288, 16384]))
    for board, stage in ((0xCC, 0), (0xDDD, 1), (0xDCC, 2), (0xE, 3), (0xEDC, 3), (0xF, 3)):
        assert int(_stage(begins, np.uint64(board))) == stage


@pytest.mark.parametrize(
    ("tuples", "stages", "dtype"),
    [
        (("0123", "4567", "0145"), (), np.float32),
        (("0123", "4567", "0145"), (), np.int16),
        (("01234", "0145"), (256, 8192), np.float32),
        (("01234", "0145"), (256, 8192), np.int16),
        (("012456",), (), np.int16),
        (("0145", "0146", "bcde", "bcdf", "0aef"), (64,), np.int16),
        (("01234", "45678", "01245", "45689"), (256, 8192), np.int16),
        (("01245", "0178", "01345", "0123", "0128"), (), np.int16),
    ],
)
def test_a_value_is_the_sum_over_tuples_and_symmetries(
    tuples: tuple[str, ...], stages: tuple[int, ...], dtype: type
) -> None:
    network = slow.random_network(*tuples, stages=stages, dtype=dtype)
    positions = slow.random_boards(340, seed=5)
    assert {16 - cells.count(0) for cells in positions} == set(range(17))
    found = network.values(slow.packed(positions))
    assert found.dtype == np.float32
    assert found.tolist() == [slow.value(network, cells) for cells in positions]


@pytest.mark.parametrize("tuples", [("0123",), ("0123", "0124")])
def test_int16_tables_are_summed_without_overflow(tuples: tuple[str, ...]) -> None:
    for value in (-32768, 32767):
        network = slow.random_network(*tuples, dtype=np.int16)
        network.table[:] = value
        network.scales[:] = 16
        assert network.values(slow.packed([[1] * 16])).tolist() == [8 * 16 * value * len(tuples)]


def place_in(board: int, fields: tuple[np.uint64, ...]) -> int:
    """The sum of a board's fields, as rotations and masks say them."""
    numbers = [int(number) for number in fields]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return sum((board >> turn | board << 64 - turn & 2**64 - 1) & mask for turn, mask in pairs)


def test_paired_tuples_share_cache_lines() -> None:
    network = slow.random_network("01234", "45678", "0123", "01245", "45689", stages=(256,), dtype=np.int16)
    places, table, scales = place(network.layout, network.table, network.scales)
    words = table.view(np.int32)
    assert scales.tolist() == network.scales[:, [0, 1, 3, 4, 2]].tolist()
    assert table.ctypes.data % 64 == 0
    assert sorted(table.tolist()) == sorted(network.table.tolist())
    for cells in slow.random_boards(100, seed=8):
        board = reference.pack(cells)
        begin = slow.stage_of(network.layout, cells)
        entries = [begin * network.layout.stage_size + int(begin_) for begin_ in network.layout.offsets]
        digits = [slow.index_of(cells, tuple_) for tuple_ in network.layout.tuples]
        for (offset, *numbers), first, second in zip(places.pairs, (0, 1), (3, 4), strict=True):
            line = begin * int(places.stage_bytes) + int(offset) + place_in(board, tuple(numbers[4:]))
            assert line % 64 == 0
            own = [place_in(board, tuple(numbers[i : i + 2])) for i in (0, 2)]
            assert max(own) < 64
            found = words[(line + own[0]) // 4] << 16 >> 16, words[(line + own[1]) // 4] >> 16
            assert found == tuple(network.table[entries[t] + digits[t]] for t in (first, second))
        ((offset, *numbers),) = places.singles
        at = begin * int(places.stage_bytes) + int(offset) + place_in(board, tuple(numbers))
        assert table[at // 2] == network.table[entries[2] + digits[2]]


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_every_image_of_a_board_has_its_value(dtype: type) -> None:
    network = slow.random_network("01245", "0126", stages=(64,), dtype=dtype)
    for cells in slow.random_boards(100, seed=6):
        images = reference.symmetries(cells)
        assert len(set(network.values(slow.packed(images)).tolist())) == 1, cells


def test_an_empty_network_values_all_boards_alike() -> None:
    network = Network.empty(NetworkLayout.of(["0123", "4567"], [64]), initial_value=320_000)
    assert set(network.values(slow.packed(slow.random_boards(50, seed=1))).tolist()) == {320_000}


def test_a_tuple_is_text_and_back() -> None:
    for text in ("0123", "01245", "abcdef"):
        assert tuple_text(parse_tuple(text)) == text
    assert parse_tuple("0BCF") == (0, 11, 12, 15)


@pytest.mark.parametrize("text", ["", "012", "0123456", "0132", "0012", "012g", "01 2", "-123", "0123\n"])
def test_what_is_no_tuple_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected 4 to 6 different cells"):
        parse_tuple(text)


@pytest.mark.parametrize(
    ("tuples", "stages", "said"),
    [
        ([], [], "at least one"),
        (["0123", "0123"], [], "each once"),
        (["0123"], [0], "in ascending order"),
        (["0123"], [2], "in ascending order"),
        (["0123"], [-4], "in ascending order"),
        (["0123"], [102], "in ascending order"),
        (["0123"], [65536], "in ascending order"),
        (["0123"], [2**80], "in ascending order"),
        (["0123"], [64, 64], "in ascending order"),
        (["0123"], [128, 64], "in ascending order"),
    ],
)
def test_what_is_no_layout_is_refused(tuples: list[str], stages: list[int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NetworkLayout.of(tuples, stages)


def test_quantising_rounds_to_steps() -> None:
    network = slow.random_network("0123", "4567")
    network.table[:65536] *= np.float32(0.37)
    network.table[65536:] *= 2000.0  # up to a million: 16 times 32,767 is half of that
    quantised = network.quantised(16)
    assert quantised.table.dtype == np.int16
    assert quantised.scales.dtype == np.float32
    assert quantised.scales[0, 0] == 16
    assert quantised.scales[0, 1] == np.float32(1_000_000 / 32767)
    quantised_tables = quantised.layout.tables(quantised.table)
    for table_of, values in network.layout.tables(network.table).items():
        scale, back = quantised.scales[table_of], quantised_tables[table_of]
        assert np.abs(values - back * scale).max() <= 0.5001 * scale
    assert quantised.facts["quantised_step"] == 16
    assert network.table.dtype == np.float32


@pytest.mark.parametrize("step", [0, -1, float("nan")])
def test_a_step_that_cannot_be_is_refused(step: float) -> None:
    with pytest.raises(ConfigError, match="a step above 0"):
        slow.random_network("0123").quantised(step)


def test_a_network_is_quantised_once() -> None:
    with pytest.raises(ConfigError, match="found tables of int16"):
        slow.random_network("0123").quantised(16).quantised(16)
