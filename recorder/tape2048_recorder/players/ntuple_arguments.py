"""Checks of the ``ntuple`` player's parameters that need no network and no compiler."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from tape2048.errors import ConfigError
from tape2048.ntuple.files import network_path
from tape2048.ntuple.layout import TILES

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The ``downgrade`` that leaves it to the network.
OF_NETWORK = -1


def check(args: Mapping[str, Any]) -> None:
    """Refuse parameters with which the player cannot be made.

    Raises:
        ConfigError: found and expected.
    """
    network_path(args["weights"])
    if args["mix"]:
        parse_mix(args["mix"])
    downgrade = args["downgrade"]
    if downgrade not in {OF_NETWORK, 0, *TILES}:
        raise ConfigError(
            f"found downgrade = {downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}",
            hint=f"0 takes all boards as they are; {OF_NETWORK}, the default, asks the network",
        )


def parse_mix(text: str) -> tuple[list[int], list[int]]:
    """The parts of a mixture such as ``"0:2+1:1+16:0.5"`` (``look_below:weight``).

    Returns:
        ``(looks, ends)``: the ``i``-th part is drawn where 64 random bits lie below the ``i``-th end, and
        in no part before.

    Raises:
        ConfigError: found and expected.
    """
    parts = []
    for part in text.split("+"):
        look, colon, weight = part.partition(":")
        try:
            parts.append((int(look), float(weight) if colon else 1.0))
        except ValueError:
            parts.append((-1, 0.0))
    whole = sum(weight for _, weight in parts)
    if not all(0 <= look <= 16 and weight > 0 for look, weight in parts) or not math.isfinite(whole):
        raise ConfigError(
            f"found the mixture {text!r}, expected look_below:weight joined by +, "
            "with 0 to 16 and weights above 0",
            hint='mix = "0:2+3:1" plays two games of three without look-ahead',
        )
    sums = itertools.accumulate(weight for _, weight in parts)
    ends = [min(int(end / whole * 2.0**64), 2**64 - 1) for end in sums]
    return [look for look, _ in parts], ends
