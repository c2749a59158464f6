"""Short names of players that are shown together."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHARS_MAX = 32  # without the digits
_DIGITS = re.compile(r" @[0-9a-f]{6}$")  # of the SHA-256 in a name


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return short names of players that are shown together, by their names (``player_name``).

    A short name is the network, or else the kind of player. Players that share it also have the words in
    which they differ, or else the digits of their names. A short name has at most 40 characters.

    Example:
        >>> from tape2048.short_names import short_names
        >>> short_names(["greedy @e0d432", "ntuple strong, 2-ply below 3 empty cells @b658c6"]).values()
        dict_values(['greedy', 'strong'])
    """
    words = {
        name: [one.removeprefix("ntuple ") for one in _DIGITS.sub("", name).split(", ")] for name in names
    }
    alike: dict[str, list[list[str]]] = {}
    for each in words.values():
        alike.setdefault(each[0], []).append(each)
    found = {}
    for name, (first, *others) in words.items():
        differing = [one for one in others if not all(one in each for each in alike[first])]
        text = re.sub(r" empty cells?\b", "", ", ".join([first, *differing]))
        found[name] = f"{text[: _CHARS_MAX - 1]}…" if len(text) > _CHARS_MAX else text
    times = collections.Counter(found.values())
    digits = {name: _DIGITS.search(name) for name in found}
    return {
        name: text + match[0] if times[text] > 1 and (match := digits[name]) else text
        for name, text in found.items()
    }
