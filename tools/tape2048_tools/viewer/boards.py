"""Single boards: read from text, judged move by move, and played on from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.game.rules import boards_to_exps, exps_to_boards, legal_masks
from tape2048_tools.viewer.replay import Game

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048_recorder.replay.judging import Judge
    from tape2048_tools.viewer.judges import Judges

#: Moves that are played on at a time.
CONTINUED_MOVES = 1000

_P_FOUR = 0.1
_EXPONENT_MAX = 15


def parse_board(text: str) -> int:
    """Return the packed board that a text spells.

    16 hexadecimal digits, exponents cell by cell from the top left (with or without 0x); or 16 numbers, which
    are tiles if one of them is above 15, and else exponents. The tiles 2, 4 and 8 alone are no exponents that
    anyone means, if no odd number stands among them: then they are tiles.

    Raises:
        ValueError: anything else.
    """
    words = re.findall(r"[^\s/,;|\[\]()]+", text)
    if len(words) == 1 and (match := re.fullmatch(r"(?:0x)?([0-9a-fA-F]{16})", words[0])):
        return int(match[1], 16)
    if len(words) == 1 and (match := re.fullmatch(r"0x([0-9a-fA-F]{1,16})", words[0])):
        return int(match[1], 16)
    empty = {".", "-", "_"}
    if len(words) != 16 or not all(word in empty or re.fullmatch(r"\d{1,6}", word) for word in words):
        raise ValueError(
            f"found {text!r:.80}, expected 16 hexadecimal digits (0x0123456789abcdef), 16 tiles or exponents"
        )
    numbers = [0 if word in empty else int(word) for word in words]
    are_tiles = all(number == 0 or (number & (number - 1) == 0 and number > 1) for number in numbers)
    if are_tiles:
        exps = [max(number.bit_length() - 1, 0) for number in numbers]
    elif max(numbers) <= _EXPONENT_MAX:
        exps = numbers
    else:
        wrong = next(number for number in numbers if number & (number - 1) or number == 1)
        raise ValueError(
            f"found a tile of {wrong}; tiles are powers of two from 2 to 32768, and 0 is an empty cell"
        )
    if max(exps) > _EXPONENT_MAX:
        raise ValueError(f"found a tile of {max(numbers)}; the largest tile of a board is 32768")
    return sum(exp << (60 - 4 * cell) for cell, exp in enumerate(exps))


def board_document(board: int, judge: Judge, judges: Judges) -> dict[str, Any]:
    """Return a board with the values of its moves, the tree one level deep, and the critic's opinion.

    Args:
        board: packed.
        judge: values the moves.
        judges: has the critic.
    """
    options = judge.board(board)
    after = np.array([board, *(option.afterstate for option in options)], np.uint64)
    critic = judges.opinion(after[:1])
    best = max((option.value for option in options), default=None)
    return {
        "board": f"{board:016x}",
        "exps": boards_to_exps(after[:1])[0].tolist(),
        "best": best,
        "options": [
            {
                "move": option.move,
                "value": option.value,
                "reward": option.reward,
                "exps": exps.tolist(),
                "spawns": [
                    {"cell": one.cell, "tile": one.tile, "p": one.probability, "value": one.value}
                    for one in option.spawns
                ],
            }
            for option, exps in zip(options, boards_to_exps(after[1:]), strict=True)
        ],
        "critic": None if critic is None else critic[0].tolist(),
    }


def play_on(board: int, judge: Judge, seed: int) -> Game:
    """Play on from a board by the best of a judge's values, until the game ends or enough moves are made.

    Args:
        board: packed.
        judge: chooses the moves.
        seed: of the spawns.
    """
    random = np.random.default_rng(seed)
    states, moves = [board], list[int]()
    while len(moves) < CONTINUED_MOVES:
        options = judge.board(states[-1])
        if not options:
            break
        chosen = max(options, key=lambda option: option.value)
        exps = boards_to_exps(np.array([chosen.afterstate], np.uint64))[0]
        cell = random.choice(np.flatnonzero(exps == 0))
        exps[cell] = 2 if random.random() < _P_FOUR else 1
        states.append(int(exps_to_boards(exps[None])[0]))
        moves.append(chosen.move)
    ended = not int(legal_masks(np.array(states[-1:], np.uint64))[0])
    notes = () if ended else (f"played on for {len(moves)} moves; the game goes on",)
    packed: NDArray[np.uint64] = np.array(states, np.uint64)
    return Game(packed, np.array(moves, np.uint8), None, notes)
