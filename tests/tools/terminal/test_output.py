"""What people and programs read: escapes, numbers, shares, sizes, tables."""

import json
import re

import pytest

from tape2048.base.text import printable
from tape2048_tools.terminal import display, output


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\t", "two\\nlines\\t"),
        ("\udcff", "\\udcff"),
        ("\u202e", "\\u202e"),  # turns the direction of what follows
        (12, "12"),
        (None, "None"),
    ],
)
def test_printable(value: object, shown: str) -> None:
    assert printable(value) == shown


def test_json_escapes_what_json_cannot_hold(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a\udcff": ["\udcfe", float("nan"), {"b": 2**64 - 1}]})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a\\udcff": ["\\udcfe", None, {"b": 2**64 - 1}]}
    assert out.startswith('{\n  "a')
    assert out.endswith("\n}\n")


def test_piped_tables_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = output.table("name", ">n")
    table.add_row(output.cell("x" * 500 + "[red]:smile:"), "1")
    output.print_human(table)
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["x" * 500 + "[red]:smile:", "1"]


def test_a_finding_says_class_place_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_human(output.finding("ChecksumError", "/a: [b]x\x1b", "restore"))
    assert capsys.readouterr().out == "ChecksumError: /a: [b]x\\x1b\n  hint: restore\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (0, "0"), (1, "100%"), (0.5, "50%"), (0.834, "83%"), (0.042, "4.2%"), (0.0003, "0.03%"),
        (0.9999, "99.9%"), (0.995, "99.5%"), (0.00000001, "<0.01%"), (0.0999, "10.0%"),
    ],
)  # fmt: skip
def test_a_share_is_never_rounded_to_none_or_all(value: float | None, shown: str) -> None:
    assert display.share(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (28_500, "28 kB"), (9_960_000, "10 MB"),
        (280_000_192, "280 MB"), (999_499, "999 kB"), (999_500, "1.0 MB"), (1_500_000_000, "1.5 GB"),
        (2_000_000_000_000_000, "2,000.0 TB"),
    ],
)  # fmt: skip
def test_sizes(count: int, shown: str) -> None:
    assert display.size(count) == shown


def test_a_board_without_colours_is_a_grid_of_numbers() -> None:
    text = display.board([0, 1, 2, 3, *[0] * 11, 15]).plain
    assert [line.split() for line in text.splitlines()] == [
        [".", "2", "4", "8"], [".", ".", ".", "."], [".", ".", ".", "."], [".", ".", ".", "32768"]
    ]  # fmt: skip


def test_each_tile_has_a_colour_of_its_own() -> None:
    styles = {str(span.style) for span in display.board(range(16)).spans}
    assert len(styles) == 16


def test_wide_tables_keep_numbers_and_names_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    table = output.table("session", ">rows", ">mean score", "what")
    table.add_row(output.cell("20260101T000000Z_model=ntuple"), "37,142,417", "239,280 ±12", "a few words")
    table.add_row(output.cell("20260101T000000Z_model=greedy"), "1", "2", "")
    output.print_human(table, "no table")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1].startswith("20260101T000000Z_model=ntuple 37,142,417 239,280 ±12 ")
    assert lines[-2].split() == ["20260101T000000Z_model=greedy", "1", "2"]
    assert lines[-1] == "no table"
    assert all(line == line.rstrip() for line in lines)


def test_left_out_runs_are_summarised(capsys: pytest.CaptureFixture[str]) -> None:
    many = [(f"a: run {number}", f"ReplayError: run {number} has no moves") for number in range(30)]
    output.complain_left_out([*many, ("b", "FormatError: cut off")])
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        f"left out: a: run {number}: ReplayError: run {number} has no moves" for number in (0, 1)
    ]
    assert lines[-2:] == ["left out: b: FormatError: cut off", "left out: 25 more for this reason"]
    assert len(lines) == 7
