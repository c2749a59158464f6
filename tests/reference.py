"""2048 as its rules read: lists of tiles, no tables, no bit tricks, no speed.

Written for the tests alone, from section 1 of the format's description and the papers that the recorder's
generator names, and not from the code under test. A board here is a list of 16 exponents, row-major, cell 0
at the top left.
"""

from __future__ import annotations

from typing import NamedTuple

UP, DOWN, LEFT, RIGHT = range(4)
TOP = 16  # 65536: a move that makes it ends the game

#: The lines of each move, every line from the wall that the tiles move to.
LINES = {
    UP: [[column + 4 * i for i in (0, 1, 2, 3)] for column in range(4)],
    DOWN: [[column + 4 * i for i in (3, 2, 1, 0)] for column in range(4)],
    LEFT: [[4 * row + i for i in (0, 1, 2, 3)] for row in range(4)],
    RIGHT: [[4 * row + i for i in (3, 2, 1, 0)] for row in range(4)],
}


def slide_line(line: list[int], top: int = TOP) -> tuple[list[int], int]:
    """One line, its first cell at the wall: what it becomes, and the value of the tiles that merging made.

    Under rules 1, ``top`` was 15: two tiles of 32768 did not merge.
    """
    tiles = [tile for tile in line if tile != 0]
    result = []
    score = 0
    i = 0
    while i < len(tiles):
        has_next = i + 1 < len(tiles)
        if has_next and tiles[i] == tiles[i + 1] and tiles[i] < top:
            result.append(tiles[i] + 1)
            score += 2 ** (tiles[i] + 1)
            i += 2
        else:
            result.append(tiles[i])
            i += 1
    return result + [0] * (4 - len(result)), score


def slide(cells: list[int], move: int, top: int = TOP) -> tuple[list[int], int]:
    """The board after a move and before the spawn, and the move's score."""
    after = [0] * 16
    score = 0
    for line in LINES[move]:
        moved, line_score = slide_line([cells[cell] for cell in line], top)
        score += line_score
        for cell, tile in zip(line, moved, strict=True):
            after[cell] = tile
    return after, score


def seen_slide(cells: list[int], move: int) -> tuple[list[int], int]:
    """As :func:`slide`, of a player, which takes a 65536 for a 32768."""
    after, score = slide(cells, move)
    return [min(tile, TOP - 1) for tile in after], score


def legal_moves(cells: list[int]) -> list[int]:
    """The moves that change the board."""
    return [move for move in range(4) if slide(cells, move)[0] != cells]


def empty_cells(cells: list[int]) -> list[int]:
    """The cells without a tile."""
    return [cell for cell in range(16) if cells[cell] == 0]


def board_score(cells: list[int]) -> int:
    """What the merges behind these tiles scored if every spawned tile was a 2."""
    return sum((tile - 1) * 2**tile for tile in cells if tile > 0)


def pack(cells: list[int]) -> int:
    """The board as an integer: cell ``i`` in bits ``60 - 4 * i`` to ``63 - 4 * i``; 0 with a 65536."""
    return 0 if TOP in cells else sum(tile << (60 - 4 * cell) for cell, tile in enumerate(cells))


def unpack(board: int) -> list[int]:
    """The opposite of :func:`pack`."""
    return [board >> (60 - 4 * cell) & 15 for cell in range(16)]


def rotate(cells: list[int]) -> list[int]:
    """A quarter turn clockwise."""
    return [cells[4 * (3 - column) + row] for row in range(4) for column in range(4)]


def mirror(cells: list[int]) -> list[int]:
    """Left and right swapped."""
    return [cells[4 * row + 3 - column] for row in range(4) for column in range(4)]


def symmetries(cells: list[int]) -> list[list[int]]:
    """The board turned four ways, and the mirrored board turned four ways."""
    images = []
    for image in (cells, mirror(cells)):
        for _ in range(4):
            images.append(image)
            image = rotate(image)  # noqa: PLW2901 - turned on and on
    return images


WORD = 2**64
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def mix64(z: int) -> int:
    """SplitMix64's finaliser, Stafford's variant 13 (Steele, Lea, Flood 2014)."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


class Generator:
    """SplitMix64: a state that grows by ``gamma``, and its mixed values."""

    def __init__(self, state: int, gamma: int) -> None:
        self.state = state
        self.gamma = gamma

    @classmethod
    def of_game(cls, seed: int) -> Generator:
        """The first two values of the golden sequence from ``seed``: the state, and (made odd) the gamma."""
        golden = cls(seed, GOLDEN_GAMMA)
        state = golden.next()
        gamma = golden.next() | 1
        if (gamma ^ gamma >> 1).bit_count() < 24:  # the paper's fig. 16
            gamma ^= 0xAAAAAAAAAAAAAAAA
        return cls(state, gamma)

    def next(self) -> int:
        """64 random bits."""
        self.state = (self.state + self.gamma) % WORD
        return mix64(self.state)

    def below(self, n: int) -> int:
        """A uniform draw from ``[0, n)`` (Lemire 2019, algorithm 5)."""
        product = self.next() * n
        while product % WORD < (WORD - n) % n:
            product = self.next() * n
        return product // WORD


def spawn(cells: list[int], generator: Generator) -> tuple[list[int], int]:
    """The board with a tile in an empty cell, and 1 if the tile is a 4.

    One draw of ten for each empty cell: its tens count the cells from the last, a unit of 0 is the 4.
    """
    empty = empty_cells(cells)[::-1]
    tens, unit = divmod(generator.below(10 * len(empty)), 10)
    after = list(cells)
    after[empty[tens]] = 2 if unit == 0 else 1
    return after, int(unit == 0)


class Move(NamedTuple):
    """A position of a game and what was done there."""

    cells: list[int]
    move: int
    afterstate: list[int]


class Game(NamedTuple):
    """A whole game."""

    moves: list[Move]
    final: list[int]
    score: int
    fours: int


def new_game(seed: int) -> tuple[list[int], int, Generator]:
    """The first board, how many of its tiles are 4s, and the generator."""
    generator = Generator.of_game(seed)
    cells, first = spawn([0] * 16, generator)
    cells, second = spawn(cells, generator)
    return cells, first + second, generator


#: The orders in which the random player may try the four moves, as ``itertools`` lists permutations.
ORDERS = [
    [a, b, c, d]
    for a in range(4)
    for b in range(4)
    for c in range(4)
    for d in range(4)
    if len({a, b, c, d}) == 4
]


def random_move(cells: list[int], generator: Generator) -> int | None:
    """The first legal move in a random order (drawn first); None where the game is over."""
    legal = legal_moves(cells)
    for move in ORDERS[generator.below(24)]:
        if move in legal:
            return move
    return None


def play_random(seed: int) -> Game:
    """The game that the random player makes of this seed."""
    cells, fours, generator = new_game(seed)
    moves = []
    score = 0
    while (move := random_move(cells, generator)) is not None:
        afterstate, gained = slide(cells, move)
        moves.append(Move(cells, move, afterstate))
        score += gained
        cells, is_four = spawn(afterstate, generator)
        fours += is_four
    return Game(moves, cells, score, fours)


def cornered() -> tuple[list[list[int]], list[int]]:
    """The 160 boards and moves of a game whose cell 0 keeps a large tile (128 or more for the rules).

    Each new tile is a 2 in the last empty cell. Moves go up and left by turns, where legal.
    """
    cells, boards, moves = unpack(0xF000_0000_0000_0001), [], []
    while legal := [move for move in (0, 2) if move in legal_moves(cells)]:
        move = legal[len(moves) % len(legal)]
        boards.append(cells)
        moves.append(move)
        cells, _ = slide(cells, move)
        cells[empty_cells(cells)[-1]] = 1
    return boards, moves
