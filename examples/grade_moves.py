"""Grade the moves of any program: a language model, a bot or a person.

A line of the input is a JSON object with a board and a move. All its other keys are kept::

    {"board": [[0, 2, 0, 0], [0, 4, 2, 0], [8, 16, 4, 2], [1024, 512, 256, 128]], "move": "left"}

    python examples/grade_moves.py moves.jsonl > graded.jsonl
    my_program | python examples/grade_moves.py --by model > graded.jsonl

A board is tiles (nested or flat), exponents, text, 16 hexadecimal digits, or a packed integer. A move is
up, down, left or right, its first letter, or 0 to 3 in this order. docs/how-to/grade-moves.md explains the
output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import TapeError
from tape2048.game import MOVE_NAMES, exps_to_boards, legal, parse_board
from tape2048_recorder.replay import GRADE_NAMES, Judge

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Grades of the summary, the best first.
GRADES = ("good", *GRADE_NAMES[1:], "illegal")


def read_board(given: Any, *, exponents: bool = False) -> int:
    """Return a packed board; ValueError if it is none."""
    if exponents:
        return int(exps_to_boards(np.reshape(given, 16)))
    if isinstance(given, int) and 0 <= given < 1 << 64:
        return given
    return parse_board(str(given))


def read_move(given: Any) -> int:
    """Return 0 up, 1 down, 2 left, 3 right; ValueError for anything else."""
    text = str(given).strip().lower()
    for move, name in enumerate(MOVE_NAMES):
        if text in (name, name[0], str(move)):
            return move
    raise ValueError(f"found the move {given!r}; expected up, down, left, right, or 0 to 3")


def read_line(line: str) -> dict[str, Any]:
    """Return the object of a line; ValueError if it has no board or no move."""
    found = json.loads(line)
    if not isinstance(found, dict) or not found.keys() >= {"board", "move"}:
        given = f"the keys {[*found]}" if isinstance(found, dict) else f"a {type(found).__name__}"
        raise ValueError(f"found {given}; expected an object with the keys board and move")
    return found


def legal_names(board: int) -> list[str]:
    """Return the legal moves of a board; ValueError if there is none."""
    if not (found := [MOVE_NAMES[move] for move in np.flatnonzero(legal(board))]):
        raise ValueError("found a board without a legal move; expected the board before the move")
    return found


def grade(lines: Iterable[str], judge: Judge, *, exponents: bool = False) -> list[dict[str, Any]]:
    """Return the objects of all lines with their grades, or with an error."""
    found: list[dict[str, Any]] = []
    graded, boards, moves = [], [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found.append({})
        try:
            found[-1] = record = read_line(line)
            board = read_board(record["board"], exponents=exponents)
            move = read_move(record["move"])
            allowed = legal_names(board)
        except (ValueError, TypeError) as error:
            found[-1] |= {"line": number, "error": str(error)}
            continue
        record |= {"grade": "illegal", "legal": allowed}
        if MOVE_NAMES[move] in allowed:
            graded.append(record)
            boards.append(board)
            moves.append(move)
    losses = judge.losses(boards, moves)
    for i, record in enumerate(graded):
        record["grade"] = GRADES[losses.grade[i]]
        record["best"] = MOVE_NAMES[losses.best[i]]
        for name in ("loss", "standard_error", "reach_before", "reach_after"):
            value = float(getattr(losses, name)[i])
            record[name] = round(value, 4) if name.startswith("reach") else round(value, 1)
    return found


def summary(records: list[dict[str, Any]], by: str | None = None) -> str:
    """Return a table of grades and mean losses, a row for each value of the key ``by``."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if "grade" in record:
            groups.setdefault(str(record.get(by, "")) if by else "all", []).append(record)
    head = ["", "moves", *GRADES, "mean loss"]
    rows = [head]
    for name, group in groups.items():
        counts = Counter(record["grade"] for record in group)
        losses = [record["loss"] for record in group if "loss" in record]
        mean = f"{np.mean(losses):,.0f}" if losses else "-"
        rows.append([name, str(len(group)), *(f"{counts[each] / len(group):.1%}" for each in GRADES), mean])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[text.rjust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join([row[0].strip().ljust(widths[0]), *row[1:]]) for row in lines)


def main() -> None:
    """Grade the lines of a file or of standard input; exit with 1 if a line has an error."""
    parser = argparse.ArgumentParser(description="Grade moves of 2048, given as JSON lines.")
    parser.add_argument("file", nargs="?", default="-", help="JSON lines (standard input)")
    parser.add_argument("--by", metavar="KEY", help="a key of the input: summarise each of its values")
    parser.add_argument("--exponents", action="store_true", help="boards are lists of exponents")
    parser.add_argument("--weights", default="strong", help="network that judges (%(default)s)")
    args = parser.parse_args()
    try:
        judge = Judge.of_network(args.weights)
        with open(0 if args.file == "-" else args.file, encoding="utf-8") as file:  # noqa: PTH123
            records = grade(file, judge, exponents=args.exponents)
    except (TapeError, OSError, UnicodeDecodeError) as error:
        sys.exit(str(error))
    for record in records:
        print(json.dumps(record))
    print(f"{summary(records, args.by)}\nloss in points, by {judge.name}", file=sys.stderr)
    if wrong := [record for record in records if "error" in record]:
        first = f"the first is line {wrong[0]['line']}: {wrong[0]['error']}"
        name = "standard input" if args.file == "-" else args.file
        sys.exit(f"{name}: {len(wrong)} of {len(records)} lines have no grade; {first}")


if __name__ == "__main__":
    main()
