"""An engine for tape2048 in Python. It chooses the move with the most points and empty cells.

Run it as a player::

    tape2048 player eval "exec:python engine.py" --games 10
"""

import sys


def lines(board: list[int], move: str) -> list[list[int]]:
    """Return the lines of a board, each starting at the edge to which a move slides it."""
    rows = [board[i : i + 4] for i in range(0, 16, 4)]
    found = rows if move in "LR" else [list(column) for column in zip(*rows, strict=True)]
    return [line[::-1] for line in found] if move in "DR" else found


def value(board: list[int], move: str) -> int:
    """Return the value of a move: its points plus 100 per empty cell; -1 if no tile moves."""
    points, before, after = 0, lines(board, move), list[list[int]]()
    for line in before:
        slid, last = list[int](), 0
        for tile in filter(None, line):
            if tile == last:
                slid[-1] += 1
                points += 2 << tile
                last = 0
            else:
                slid.append(tile)
                last = tile
        after.append(slid + [0] * (4 - len(slid)))
    return -1 if after == before else points + 100 * sum(line.count(0) for line in after)


for request in sys.stdin:
    word, *boards = request.split()
    if word == "tape2048":
        print("engine example-python 1 batch=64", flush=True)
    if word == "move":
        exponents = [[int(digit, 16) for digit in board] for board in boards]
        print("".join(max("UDLR", key=lambda move: value(board, move)) for board in exponents), flush=True)
