"""The table of formats in `docs/how-to/convert.md`: each cell that claims something has a test, by name."""

import functools
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/how-to/convert.md"

A2T1, A2RUN2, A2PACK, PACKDAT, DATASET, SESSION, ROWS = (
    "A2T1 (`.a2run`)", "a2run2", "a2pack", "pack.dat", "data set directory", "session",
    "Parquet, JSON lines (one run a row)",
)  # fmt: skip
_CONVERT = "sdk/conversion/test_convert.py"
_EVERY = f"{_CONVERT}::test_every_target_from_every_source"
_WHOLE = f"{_CONVERT}::test_whole_formats_lose_nothing"
_LOSSES = f"{_CONVERT}::test_losses_are_said_and_nothing_is_written"

#: What each cell stands on.
CLAIMS: dict[tuple[str, str], tuple[str, ...]] = {
    (A2T1, "read"): (
        "sdk/runs/test_a2run.py::test_reading_in_place_of_mapping",
        "sdk/runs/test_a2run.py::test_the_arrays_are_views_of_the_map",
    ),
    (A2T1, "write"): (
        "sdk/runs/test_a2run.py::test_a_new_file_and_nothing_else",
        "sdk/runs/test_a2run.py::test_runs_are_kept_by_day",
    ),
    (A2T1, "convert"): (_EVERY, _LOSSES),
    (A2RUN2, "read"): (
        "sdk/runs/test_a2run2.py::test_same_as_the_plain_codec",
        "sdk/runs/test_a2run2.py::test_the_reference_encoders_first_bytes",
    ),
    (A2RUN2, "write"): ("sdk/runs/test_a2run2.py::test_a_new_file_and_nothing_else",),
    (A2RUN2, "convert"): (_EVERY, _WHOLE),
    (A2PACK, "read"): (
        "sdk/packs/test_a2pack.py::test_runs_are_what_was_packed",
        "sdk/packs/test_a2pack.py::test_batches",
        "sdk/packs/test_a2pack.py::test_shuffled_batches_have_a_stable_order",
    ),
    (A2PACK, "write"): (
        "sdk/packs/test_a2pack.py::test_the_bytes_are_those_of_the_description",
        "sdk/packs/test_a2pack.py::test_runs_in_memory",
        "sdk/packs/test_a2pack.py::test_payloads_come_back_byte_for_byte",
    ),
    (A2PACK, "convert"): (_EVERY, _WHOLE),
    (A2PACK, "filter"): ("tools/commands/test_a2pack.py::test_byte_for_byte",),
    (PACKDAT, "read"): ("sdk/datasets/test_packdat.py::test_load_and_save_give_the_same_bytes",),
    (PACKDAT, "write"): (
        "sdk/datasets/test_packdat.py::test_writes_the_described_bytes",
        "sdk/datasets/test_packdat.py::test_runs_come_back_as_they_went_in",
    ),
    (PACKDAT, "convert"): (
        _EVERY,
        f"{_CONVERT}::test_values_in_16_bits",
        "sdk/datasets/test_packdat.py::test_runs_come_back_as_they_went_in",
    ),
    (PACKDAT, "append"): ("sdk/datasets/test_packdat.py::test_ids_and_rows_go_on",),
    (PACKDAT, "filter"): (
        "sdk/datasets/test_packdat.py::test_bounds",
        "sdk/datasets/test_packdat.py::test_a_view_is_saved_with_ids_of_its_own",
    ),
    (DATASET, "read"): (
        "fuzz/test_fuzz_dataset.py::test_damaged_directories",
        "sdk/datasets/test_dataset.py::test_a_data_set_of_others",
        "sdk/datasets/test_dataset.py::test_several_have_ids_that_go_on",
    ),
    (DATASET, "write"): (
        "sdk/datasets/test_dataset.py::test_every_kind_of_source",
        "sdk/datasets/test_dataset.py::test_rows_are_cut_anywhere",
    ),
    (DATASET, "convert"): (_EVERY, f"{_CONVERT}::test_a_data_set_holds_what_is_normalised"),
    (DATASET, "append"): (
        "sdk/datasets/test_dataset.py::test_ids_go_on_and_match_the_table",
        "sdk/datasets/test_dataset_crash.py::",
    ),
    (DATASET, "filter"): (
        "sdk/datasets/test_table_rows.py::test_views_share_the_arrays_of_their_parent",
        "sdk/datasets/test_dataset.py::test_write_view",
    ),
    (SESSION, "read"): ("sdk/formats/test_npy.py::test_reads_what_was_written",),
    (SESSION, "write"): (f"{_CONVERT}::test_recorded_games_go_round_with_everything",),
    (SESSION, "convert"): (_EVERY, f"{_CONVERT}::test_without_moves", _LOSSES),
    (SESSION, "filter"): ("sdk/selection/test_filters.py::",),
    (ROWS, "read"): (f"{_CONVERT}::test_bad_lines_are_named", f"{_CONVERT}::test_parquet_of_others"),
    (ROWS, "write"): (f"{_CONVERT}::test_nothing_is_replaced",),
    (ROWS, "convert"): (_EVERY, _LOSSES),
}


@functools.cache
def table() -> dict[tuple[str, str], str]:
    """Cells that say something, by row and column."""
    lines = PAGE.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("| format | read"))
    columns = cells(lines[begin])
    found = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        name, *row = cells(line)
        found |= {(name, column): cell for column, cell in zip(columns[1:], row, strict=True) if cell}
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_every_cell_has_a_test_and_every_test_a_cell() -> None:
    assert set(table()) == set(CLAIMS)


@pytest.mark.parametrize("name", sorted({name for names in CLAIMS.values() for name in names}))
def test_the_tests_exist(name: str) -> None:
    path, _, function = name.partition("::")
    text = (TESTS / path).read_text()
    assert f"def {function or 'test_'}" + ("(" if function else "") in text
