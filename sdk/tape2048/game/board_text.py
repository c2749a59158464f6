"""Boards as people write them: 16 hexadecimal digits, tiles or exponents, or a packed board in decimal."""

from __future__ import annotations

import re

_EXPONENT_MAX = 15

_HEXADECIMAL = re.compile(r"(?:0x)?([0-9a-fA-F]{16})|0x([0-9a-fA-F]{1,16})")


def parse_board(text: str) -> int:
    """Return the packed board of a text, read in the likeliest way; ValueError for another text."""
    return readings(text)[0][1]


def readings(text: str) -> list[tuple[str, int]]:
    """Return the ways to read a text as a board, each with the packed board, the likelier way first.

    The text is 16 hexadecimal digits, exponents cell by cell from the top left (with or without 0x), or 16
    numbers: tiles if each number is 0 or a tile, exponents if each is at most 15. A number of 17 to 20 digits
    is a packed board in decimal.
    """
    words = re.findall(r"[^\s/,;|\[\]()]+", text)
    if len(words) == 1 and (match := _HEXADECIMAL.fullmatch(words[0])):
        return [("hexadecimal exponents", int(match[1] or match[2], 16))]
    if len(words) == 1 and re.fullmatch(r"[0-9]{17,20}", words[0]) and int(words[0]) < 1 << 64:
        return [("a packed board in decimal", int(words[0]))]
    empty = {".", "-", "_"}
    if len(words) != 16 or not all(word in empty or re.fullmatch(r"\d{1,6}", word) for word in words):
        raise ValueError(
            f"found {text!r:.80}, expected 16 hexadecimal digits (0x0123456789abcdef), 16 tiles or exponents"
        )
    numbers = [0 if word in empty else int(word) for word in words]
    wrong = [number for number in numbers if number == 1 or number & (number - 1)]
    found = []
    if not wrong and max(numbers) < 2 << _EXPONENT_MAX:
        found.append(("tiles", [max(number.bit_length() - 1, 0) for number in numbers]))
    if max(numbers) <= _EXPONENT_MAX:
        found.append(("exponents", numbers))
    if not found and wrong:
        raise ValueError(
            f"found a tile of {wrong[0]}, expected powers of 2 from 2 to 32768, and 0 for an empty cell"
        )
    if not found:
        raise ValueError(f"found a tile of {max(numbers)}, expected at most 32768")
    return [(name, sum(exp << (60 - 4 * cell) for cell, exp in enumerate(exps))) for name, exps in found]
