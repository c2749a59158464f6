"""An engine that plays the lowest legal move, and misbehaves as its arguments say: ``MODE AFTER BATCH``.

After so many boards of a process it does what the mode says: ``die``, ``abort``, ``hang``, ``deaf`` (it also
ignores SIGTERM), ``rubbish``, ``short``, ``chatty``, ``early`` or ``endless``; ``illegal`` once in so many
boards. ``poison`` dies at boards with a 128. ``mute``, ``strange``, ``huge`` and ``quit`` spoil the hello.
"""

import os
import signal
import sys
import time

MODE, AFTER, BATCH = [*sys.argv[1:], *["well", "0", "1"][len(sys.argv) - 1 :]]
counted = [0]  # boards until the last illegal move
COLUMNS = [[4 * i + line for i in range(4)] for line in range(4)]
ROWS = [[4 * line + i for i in range(4)] for line in range(4)]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def slides(line: str) -> bool:
    """Whether a move towards the first cell changes a line."""
    tiles = line.rstrip("0")
    return "0" in tiles or any(tiles[i] == tiles[i + 1] for i in range(len(tiles) - 1))


def moves(board: str) -> list[bool]:
    """Whether each move is legal."""
    found = []
    for cells in (COLUMNS, ROWS):
        lines = ["".join(board[cell] for cell in line) for line in cells]
        found += [any(map(slides, lines)), any(slides(line[::-1]) for line in lines)]
    return found


def answer(boards: list[str], asked: int) -> str:
    """The letters of the lowest legal moves, or something else."""
    legal = [moves(board) for board in boards]
    letters = "".join("UDLR"[each.index(True)] for each in legal)
    if MODE == "poison" and any("7" in board for board in boards):
        sys.exit("a 128 on the board")
    if MODE in ("well", "poison") or asked - counted[0] <= int(AFTER):
        return letters
    if MODE == "die":
        sys.stderr.write("no more of this")
        sys.exit(3)
    if MODE == "abort":
        os.abort()
    if MODE in ("hang", "deaf"):
        time.sleep(600)
    while MODE == "endless":
        sys.stdout.write("U" * 4096)
    if MODE == "illegal":
        counted[0] = asked if any(not all(each) for each in legal) else counted[0]
        return "".join("UDLR"[each.index(all(each))] for each in legal)
    wrong = {"rubbish": "hello\x1b[0m", "short": letters[1:], "chatty": f"{letters}\nthat was easy"}
    return wrong.get(MODE, letters)


def main() -> None:
    asked = 0
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        word, *boards = line.split()
        if word == "tape2048":
            if MODE == "quit":
                sys.exit("cannot find my weights")
            if MODE == "mute":
                time.sleep(600)
            hello = {"strange": "hello there", "huge": "engine fake 1.0 batch=99999"}
            say(hello.get(MODE, f"engine fake 1.0 batch={BATCH} unknown=option"))
        elif word == "move":
            asked += len(boards)
            say(answer(boards, asked))
            if MODE == "early" and asked > int(AFTER):
                say("U")


if __name__ == "__main__":
    main()
