"""The example ``grade_moves.py``: lines in, the same lines with grades out."""

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tape2048_recorder.replay import Judge

EXAMPLE = Path(__file__).parents[3] / "examples/grade_moves.py"
BOARD = [[0, 2, 0, 0], [0, 4, 2, 0], [8, 16, 4, 2], [1024, 512, 256, 128]]
EXPONENTS = [0, 1, 0, 0, 0, 2, 1, 0, 3, 4, 2, 1, 10, 9, 8, 7]


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("grade_moves", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def run(
    example: Any, lines: list[Any], args: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[dict[str, Any]]:
    file = tmp_path / "moves.jsonl"
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("sys.argv", ["grade_moves.py", str(file), "--weights", "fast", *args.split()])
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    example.main()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_boards_and_moves_are_read_as_programs_write_them(
    example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boards = [
        BOARD,
        [tile for row in BOARD for tile in row],
        "0x010002103421a987",
        0x010002103421A987,
        EXPONENTS,
    ]
    lines = [
        {"id": number, "board": board, "move": move}
        for number, (board, move) in enumerate(zip(boards, ["up", "U", 0, "0", "Up "], strict=True))
    ]
    found = run(example, lines, "", monkeypatch, tmp_path)
    losses = Judge.of_network("fast").losses([0x010002103421A987], [0])
    for line, graded in zip(lines, found, strict=True):
        assert graded == line | {
            "grade": "mistake",
            "legal": ["up", "left", "right"],
            "best": "left",
            "loss": round(float(losses.loss[0]), 1),
            "standard_error": round(float(losses.standard_error[0]), 1),
            "reach_before": 0.989,
            "reach_after": 0.9259,
        }
    powers = {"board": [2, 4, 8, 2, 0, 0, 0, 0, 4, 8, 2, 4, 8, 4, 8, 2], "move": 1}
    (tiles,) = run(example, [powers], "", monkeypatch, tmp_path)
    (exponents,) = run(example, [powers], "--exponents", monkeypatch, tmp_path)
    assert tiles["loss"] != exponents["loss"] or tiles["reach_before"] != exponents["reach_before"]


def test_the_page_shows_its_output(
    example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (EXAMPLE.parents[1] / "docs/how-to/grade-moves.md").read_text()
    lines = page.partition('"""\\\n')[2].partition('"""')[0].splitlines(keepends=True)
    found = run(example, lines, "--by model --weights strong", monkeypatch, tmp_path)
    table = page.partition("> graded.jsonl\n")[2].partition("```")[0]
    shown = capsys.readouterr().err
    assert [line.rstrip() for line in shown.splitlines()] == table.splitlines()
    assert json.loads(page.partition("```json\n")[2].partition("```")[0]) == found[1]


def test_illegal_moves_are_counted_and_other_lines_named(
    example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"board": BOARD, "move": "left", "model": "a"},
        "\n",
        {"board": BOARD, "move": "down", "model": "b"},
        {"board": BOARD, "move": "up", "model": "b"},
    ]
    found = run(example, lines, "--by model", monkeypatch, tmp_path)
    assert [record["grade"] for record in found] == ["good", "illegal", "mistake"]
    table = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert table[1][:7] == ["a", "1", "100.0%", "0.0%", "0.0%", "0.0%", "0.0%"]
    assert table[2][:7] == ["b", "2", "0.0%", "0.0%", "50.0%", "0.0%", "50.0%"]
    wrong = [
        "nothing\n",
        [1],
        {"board": BOARD},
        {"board": [3] * 16, "move": "up", "id": 5},
        {"board": BOARD, "move": "jump"},
        {"board": [2, 4, 2, 4, 4, 2, 4, 2] * 2, "move": "up"},
    ]
    with pytest.raises(
        SystemExit, match=r"moves.jsonl: 5 of 7 lines have no grade; the first is line 2: Expec"
    ):
        run(example, [lines[0], *wrong[:2], *wrong[2:]], "", monkeypatch, tmp_path)
