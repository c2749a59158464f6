"""The parameter ``look``: how many spawns a player looks ahead on which boards.

``3+4:16/2`` lists phases, joined by ``+``. A phase is ``[TILES:]BELOW[/BELOW...]``. It replaces the one
before it on boards with at least ``TILES`` different tiles from 1024 up; the first has no ``TILES``. A player
looks one spawn ahead (2-ply) with fewer empty cells than the first ``BELOW``, two spawns (3-ply) with also
fewer than the second, and so on. 0 is never, and 16 is always.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.base.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALWAYS = 16  # a board has fewer empty cells
_CELLS = r"(?:1[0-6]|[0-9])"
_PHASE = re.compile(rf"(?:([1-6]):)?({_CELLS}(?:/{_CELLS}){{0,5}})")

#: The parameters that ``look`` replaced, with their defaults.
FORMER = {"look_below": 3, "look_twice_below": 0, "look_spawns": 2, "look_deeper_from": 0}


class SearchPhase(NamedTuple):
    tiles: int  #: fewest different tiles from 1024 up
    below: tuple[int, ...]  #: numbers of empty cells

    @property
    def depths(self) -> list[int]:
        """The number of empty cells below which the player looks 1, 2, ... spawns ahead."""
        return [cells for cells in itertools.accumulate(self.below, min) if cells]


def parse_look(text: str) -> list[SearchPhase]:
    """Return the phases of a text; ValueError, with what was expected, for an invalid text."""
    found = [_PHASE.fullmatch(part) for part in text.split("+")]
    phases = [SearchPhase(int(one[1] or 0), tuple(map(int, one[2].split("/")))) for one in found if one]
    if len(phases) < len(found):
        raise ValueError(
            "[TILES:]BELOW[/BELOW...] joined by +, with TILES from 1 to 6 and one to six BELOW from 0 to 16"
        )
    starts = [phase.tiles for phase in phases]
    if starts[0] or starts != sorted(set(starts)):
        raise ValueError("a first phase without TILES, and then ascending TILES")
    return phases


def look_of(player: str, args: Mapping[str, Any]) -> list[SearchPhase]:
    """Return the phases of a recorded player's parameters; none if they have no depth, or an unknown one."""
    try:
        return parse_look(str(with_look(player, args)["look"]))
    except (KeyError, ValueError):
        return []


def with_look(player: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a player's parameters, with ``look`` in place of the parameters of earlier versions."""
    if player == "critic":
        return {"look" if name == "look_below" else name: each for name, each in args.items()}
    if player == "ntuple" and "look" in args:
        return {**args, "look": str(args["look"])}
    if player != "ntuple" or not FORMER.keys() & args.keys():
        return dict(args)
    given = {name: args.get(name, usual) for name, usual in FORMER.items()}
    if not all(isinstance(each, int) and 0 <= each <= ALWAYS for each in given.values()):
        return dict(args)
    below, twice, spawns, tiles = given.values()
    known = bool(twice or spawns != FORMER["look_spawns"] or args.get("look_unsure"))
    look = "/".join(map(str, [below, *[twice] * (spawns - 1) * known]))
    if tiles:
        look += f"+{tiles}:" + "/".join(map(str, [below, *[twice] * spawns]))
    present = {"look" if name in FORMER else name: each for name, each in args.items()}
    return {**present, "look": look}


def depth_words(phases: Iterable[SearchPhase], plies: int = 1) -> list[str]:
    """Return the depths of a search in words; ``plies`` is the number without looking ahead."""
    words = []
    for phase in phases:
        depths = phase.depths
        found = [
            f"{plies + ahead}-ply {_boards(cells)}"
            for ahead, cells in enumerate(depths, 1)
            if cells not in depths[ahead:]
        ] or [f"{plies}-ply"]
        if phase.tiles:
            found[0] = f"from {counted(phase.tiles, 'large tile')} {found[0]}"
        words += found
    return words


def _boards(below: int) -> str:
    return "always" if below == ALWAYS else f"below {counted(below, 'empty cell')}"
