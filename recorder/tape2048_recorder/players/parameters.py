"""The parameters of the players, which :data:`tape2048_recorder.players.options.REGISTRY` names.

Importing it does not load the compiler, so settings are checked quickly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from tape2048.base.settings import Settings, Share, about
from tape2048.critic.shipped import critic_path
from tape2048.errors import ConfigError
from tape2048.files.known_files import named_file
from tape2048.ntuple.network import TILES, network_path
from tape2048.ntuple.tdl2048 import split_name
from tape2048.search_depth import FORMER, SearchPhase, parse_look
from tape2048.session.layout import TOP_TILE

_UNCUT_SPAWNS_MAX = 3  # deepest search without look_chance, in spawns

#: The value of ``downgrade`` that stands for the tile in the network's file.
OF_NETWORK = -1

#: The parameters that name files, with the function that finds the file.
_FILES: dict[str, dict[str, Callable[[str], Path]]] = {
    "ntuple": {"weights": network_path},
    "critic": {"critic": critic_path, "weights": network_path},
}

Cells = Annotated[int, msgspec.Meta(ge=0, le=16)]
Points = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ExpectimaxArgs(Settings, frozen=True):
    """Parameters of ``expectimax``."""

    depth: Annotated[int, about("spawns to look ahead", ge=1, le=3)] = 1


class NTupleArgs(Settings, frozen=True):
    """Parameters of ``ntuple``."""

    removed = MappingProxyType(dict.fromkeys(FORMER, "`look` sets the depth of the search"))

    weights: Annotated[
        str,
        about("a shipped network (`strong`, `small` or `fast`), a network's file, or `tdl2048:FILE`"),
    ] = "strong"
    look: Annotated[
        str,
        about(
            "where to search ahead: `BELOW` looks one spawn ahead (2-ply) on boards with fewer empty cells "
            "than this (0: never, 16: always), `BELOW/BELOW` two spawns (3-ply) below the second number, and "
            "so on. `3+4:16/2` is `16/2` on boards with at least 4 different tiles from 1024 up, else `3`",
            form="[TILES:]BELOW[/BELOW...], joined by +",
        ),
    ] = "3"
    look_chance: Annotated[
        Share,
        about(
            "in a search of two or more spawns, skip sequences of spawns less probable than about this; 0: "
            "skip none"
        ),
    ] = 0.0
    look_unsure: Annotated[
        Points,
        about(
            "search one more spawn ahead, up to as many as the first phase of `look` has numbers, while the "
            "last one changed the best value by more than this, in points of score; 0: never"
        ),
    ] = 0.0
    look_margin: Annotated[
        Points,
        about("search only moves valued within this many points of score of the best move; 0: all moves"),
    ] = 1600.0
    downgrade: Annotated[
        int,
        about(
            "with a highest tile of this or more, choose the move on a board with smaller tiles; 0: never; "
            "-1: the tile in the network's file",
            ge=OF_NETWORK,
            le=TILES[-1],
        ),
    ] = OF_NETWORK
    mix: Annotated[
        str,
        about(
            "numbers of empty cells with weights, from which each game draws the first of each phase of "
            "`look`: `0:2+3:1` plays 2 games of 3 without search; empty: none"
        ),
    ] = ""
    epsilon: Annotated[Share, about("probability of a random legal move")] = 0.0
    temperature: Annotated[
        Points,
        about("softmax temperature, in points of score, to draw moves by their values; 0: best move"),
    ] = 0.0

    def check(self) -> None:
        """Raise ConfigError for a missing network, an invalid mixture or tile, or an endless search."""
        network_path(self.weights)
        if self.mix:
            parse_mix(self.mix)
        phases = phases_of(self.look)
        if max(len(phase.below) for phase in phases) > _UNCUT_SPAWNS_MAX and not self.look_chance:
            raise ConfigError(
                f"found look = {self.look!r} and look_chance = 0, expected at most {_UNCUT_SPAWNS_MAX} "
                "numbers in a phase: more spawns take minutes per move",
                hint="Set look_chance=0.001 to skip improbable sequences of spawns.",
            )
        if self.downgrade not in {OF_NETWORK, 0, *TILES}:
            raise ConfigError(
                f"found downgrade = {self.downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}",
                hint=f"Set 0 to change no board, or {OF_NETWORK} (the default) for the network's tile.",
            )


class CriticArgs(Settings, frozen=True):
    """Parameters of ``critic``."""

    critic: Annotated[str, about("an n-tuple critic's file, or `default`: the shipped critic")] = "default"
    tile: Annotated[int, about("the tile to reach: a tile of the critic", ge=4, le=TOP_TILE)] = 32768
    look: Annotated[
        Cells,
        about(
            "look two spawns ahead instead of one on boards with fewer empty cells than this; 0: never, 16: "
            "always"
        ),
    ] = 0
    weights: Annotated[str, about("the n-tuple network that values moves for `margin`")] = "small"
    margin: Annotated[
        Points,
        about("choose among moves within this many points of the network's best move; 0: all moves"),
    ] = 50.0

    def check(self) -> None:
        """Raise CriticError if the critic's file does not exist, ConfigError if the network's does not."""
        critic_path(self.critic)
        network_path(self.weights)


def with_digests(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a player's parameters with files by name and digest, for publication.

    Raises:
        ConfigError: there is no such network.
        ModelError: there is no such critic.
        StorageError: a file cannot be read.
    """
    found = dict(args)
    for key, find in _FILES.get(name, {}).items():
        if isinstance(text := args.get(key), str) and text.endswith((path := find(text)).name):  # not shipped
            form = f"{text.partition(':')[0]}:" if split_name(text) else ""
            found[key] = form + named_file(path)
    return found


def phases_of(look: str) -> list[SearchPhase]:
    """Return the phases of ``look``; ConfigError for other text."""
    try:
        return parse_look(look)
    except ValueError as error:
        raise ConfigError(
            f"found look = {look!r}, expected {error}",
            hint="Write look=16/4, for example: 3-ply with fewer than 4 empty cells, and else 2-ply.",
        ) from error


def parse_mix(text: str) -> tuple[list[int], list[int]]:
    """Parse a mixture such as ``"0:2+1:1+16:0.5"`` (``cells:weight``); ConfigError for other text.

    Returns ``(looks, ends)``: a random ``r`` of 64 bits selects the first part with ``r < ends[i]``.
    """
    parts = []
    for part in text.split("+"):
        look, colon, weight = part.partition(":")
        try:
            parts.append((int(look), float(weight) if colon else 1.0))
        except ValueError:
            parts.append((-1, 0.0))
    total = sum(weight for _, weight in parts)
    if not all(0 <= look <= 16 and weight > 0 for look, weight in parts) or not math.isfinite(total):
        raise ConfigError(
            f"found mix = {text!r}, expected cells:weight joined by +, with cells from 0 to 16 and weights "
            "above 0",
            hint='Write mix = "0:2+3:1", for example, to play two games of three without look-ahead.',
        )
    sums = itertools.accumulate(weight for _, weight in parts)
    return [look for look, _ in parts], [min(int(end / total * 2.0**64), 2**64 - 1) for end in sums]
