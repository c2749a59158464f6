"""The registry of players: names, parameters and factories.

It does not load the compiler, so settings can be checked without it; :func:`make_player` loads a player's
module and its tables. :mod:`tape2048_recorder.game.player_api` explains how to add a player.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.critic.facts import critic_path
from tape2048.errors import ConfigError
from tape2048.ntuple.files import network_path
from tape2048.ntuple.layout import TILES
from tape2048_recorder.players.batch import ArgValue, check_name, is_batched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Prefix of the fields that hold a player's cache.
_CACHE = "cache_"

#: Most spawns to look ahead along all lines, whatever their probability.
_UNCUT_SPAWNS_MAX = 3

#: The ``downgrade`` that leaves the tile to the network.
OF_NETWORK = -1


class Parameter(NamedTuple):
    """One parameter of a player: of its default's type, and for numbers within a range."""

    default: int | float | str
    minimum: float
    maximum: float
    summary: str

    @property
    def expected(self) -> str:
        """The accepted values, in words."""
        if isinstance(self.default, str):
            return "text"
        noun = "an integer" if isinstance(self.default, int) else "a number"
        return f"{noun} from {self.minimum:g} to {self.maximum:g}"

    def read(self, value: object) -> int | float | str | None:
        """Return the value in the parameter's type, or None where it is not valid."""
        if isinstance(self.default, str):
            return value if isinstance(value, str) else None
        kinds = int if isinstance(self.default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):  # a bool is an int to Python
            return None
        return type(self.default)(value) if self.minimum <= value <= self.maximum else None


class PlayerKind(NamedTuple):
    """One row of the registry.

    The factory is ``make`` of the room's module ``name`` and takes the parameters by keyword. Raise
    ``version`` when the same parameters choose other moves than before. ``check`` raises
    :class:`ConfigError` for parameters that are in range and still invalid.
    """

    name: str
    summary: str
    parameters: dict[str, Parameter]
    version: int = 1
    check: Callable[[Mapping[str, Any]], None] | None = None


def check_ntuple(args: Mapping[str, Any]) -> None:
    """Check parameters of ``ntuple``.

    Raises:
        ConfigError: no such network, an invalid mixture or tile, or a look-ahead without an end.
    """
    network_path(args["weights"])
    if args["mix"]:
        parse_mix(args["mix"])
    if args["look_spawns"] + (args["look_deeper_from"] > 0) > _UNCUT_SPAWNS_MAX and not args["look_chance"]:
        raise ConfigError(
            f"found look_spawns = {args['look_spawns']}, look_deeper_from = {args['look_deeper_from']} and "
            "look_chance = 0, which takes minutes for a move",
            hint="look_chance=0.001 follows no less probable spawns",
        )
    downgrade = args["downgrade"]
    if downgrade not in {OF_NETWORK, 0, *TILES}:
        raise ConfigError(
            f"found downgrade = {downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}",
            hint=f"0 takes all boards as they are; {OF_NETWORK}, the default, asks the network",
        )


def check_critic(args: Mapping[str, Any]) -> None:
    """Raise ModelError unless the critic's file exists, ConfigError unless the network's does."""
    critic_path(args["critic"])
    network_path(args["weights"])


def parse_mix(text: str) -> tuple[list[int], list[int]]:
    """Parse a mixture such as ``"0:2+1:1+16:0.5"`` (``look_below:weight``).

    Returns:
        ``(looks, ends)``: 64 random bits select the first part whose end is above them.

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
    total = sum(weight for _, weight in parts)
    if not all(0 <= look <= 16 and weight > 0 for look, weight in parts) or not math.isfinite(total):
        raise ConfigError(
            f"found the mixture {text!r}, expected look_below:weight joined by +, "
            "with 0 to 16 and weights above 0",
            hint='mix = "0:2+3:1" plays two games of three without look-ahead',
        )
    sums = itertools.accumulate(weight for _, weight in parts)
    return [look for look, _ in parts], [min(int(end / total * 2.0**64), 2**64 - 1) for end in sums]


REGISTRY: dict[str, PlayerKind] = {
    kind.name: kind
    for kind in (
        PlayerKind(
            name="random",
            summary="uniformly random legal moves: a floor, and a test of the machinery",
            parameters={},
        ),
        PlayerKind(
            name="greedy",
            summary="the best immediate merge score, ties at random",
            parameters={},
        ),
        PlayerKind(
            name="expectimax",
            summary="expectation over the next spawns, lines of the board valued by hand-made features",
            parameters={"depth": Parameter(1, 1, 3, "spawns looked ahead; one more: 15 times the time")},
        ),
        PlayerKind(
            name="ntuple",
            summary="a trained n-tuple network, with a look ahead where the board is nearly full",
            parameters={
                "weights": Parameter(
                    "default", 0, 0, "a network that ships (`default`, `fast`, `strong`), or a file"
                ),
                "look_below": Parameter(
                    3, 0, 16, "look a spawn ahead where fewer cells than this are empty; 0: never, 16: always"
                ),
                "look_twice_below": Parameter(
                    0, 0, 16, "look a second spawn ahead where it looks at all and fewer cells are empty"
                ),
                "look_spawns": Parameter(
                    2,
                    2,
                    5,
                    "spawns to look ahead where it looks a second one ahead; above 3 (look_deeper_from is "
                    "one): with look_chance",
                ),
                "look_chance": Parameter(
                    0.0,
                    0,
                    1,
                    "follow spawns that are less probable than about this, together, no further; 0: all",
                ),
                "look_deeper_from": Parameter(
                    0, 0, 6, "look_spawns and one more with this many different tiles from 1024 on; 0: never"
                ),
                "look_margin": Parameter(
                    6400.0, 0, 1e6, "points of score; look ahead at moves this close to the best one; 0: all"
                ),
                "downgrade": Parameter(
                    OF_NETWORK,
                    OF_NETWORK,
                    TILES[-1],
                    "take boards from this highest tile on for smaller ones; 0: no; -1: as its network says",
                ),
                "mix": Parameter(
                    "", 0, 0, "look_below by game, drawn with weights: `0:2+3:1` is never in 2 games of 3"
                ),
                "epsilon": Parameter(0.0, 0, 1, "the chance of a random move"),
                "temperature": Parameter(0.0, 0, 1e6, "points of score; softmax over values where above 0"),
            },
            check=check_ntuple,
        ),
        PlayerKind(
            name="critic",
            summary="the move after which an n-tuple critic finds a tile likeliest to be reached",
            parameters={
                "critic": Parameter(
                    "default", 0, 0, "an n-tuple critic's file, or the one that ships: `default`"
                ),
                "tile": Parameter(32768, 4, TILES[-1], "the tile to reach, one that the critic predicts"),
                "look_below": Parameter(
                    0, 0, 16, "look a second spawn ahead where fewer cells than this are empty; 16: always"
                ),
                "weights": Parameter("default", 0, 0, "the n-tuple network of `margin`"),
                "margin": Parameter(
                    50.0, 0, 1e6, "points of score; moves this close to the network's best one; 0: all"
                ),
            },
            check=check_critic,
        ),
    )
}


def check_player(name: str, args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """Return the parameters of a player, with defaults.

    Raises:
        ConfigError: no such player or parameter; the message names the nearest.
        ConfigError: a parameter has a wrong type, is out of range, or names a missing file.
    """
    if is_batched(name):  # its factory knows its parameters, and only workers import it
        check_name(name)
        return dict(args)
    kind = REGISTRY.get(name)
    if kind is None:
        raise ConfigError(
            f"no player is called {name!r}{_nearest(name, REGISTRY)}",
            hint=f"one of: {', '.join(REGISTRY)}, python:package.module:factory",
        )
    for key in args:
        if key not in kind.parameters:
            known = ", ".join(kind.parameters) or "none"
            raise ConfigError(
                f"player {name!r} takes no {key!r}{_nearest(key, kind.parameters)}",
                hint=f"its parameters: {known}",
            )
    full: dict[str, ArgValue] = {key: parameter.default for key, parameter in kind.parameters.items()}
    for key, value in args.items():
        parameter = kind.parameters[key]
        if (read := parameter.read(value)) is None:
            raise ConfigError(
                f"player {name!r}: {key} is {value!r}; expected {parameter.expected} ({parameter.summary})"
            )
        full[key] = read
    if kind.check is not None:
        kind.check(full)
    return full


def takes_text(name: str, key: str) -> bool:
    """Whether a player's parameter is text, even where its value reads as a number."""
    parameters = REGISTRY[name].parameters if name in REGISTRY else {}
    return key in parameters and isinstance(parameters[key].default, str)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    match = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def make_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Return a player for the game loop: its module's ``NamedTuple``, tables included.

    Raises:
        ConfigError: as :func:`check_player`, or a batched player.
        FormatError: the parameters name a file that is not a network.
    """
    if is_batched(name):
        raise ConfigError(
            f"{name} chooses for many boards at once, and this plays one game at a time",
            hint="`tape2048 record` and `tape2048 bench-player` play it in lanes",
        )
    full = check_player(name, args)
    return importlib.import_module(f"{__package__}.{name}").make(**full)


def own(player: Any) -> Any:
    """Return the player for another thread: it shares the tables and has its own cache."""
    caches = [field for field in player._fields if field.startswith(_CACHE)]
    return player._replace(**{field: getattr(player, field).copy() for field in caches})


def player_sha256(name: str, player: Any) -> str:
    """Return the SHA-256 over a player's name, version and tables: it differs where the moves could.

    Fields called ``cache_...`` do not count. A player that reorders its tables has this as its field
    ``identity``.
    """
    if "identity" in player._fields:
        return bytes(player.identity).hex()
    counted = {field: value for field, value in player._asdict().items() if not field.startswith(_CACHE)}
    return sha256_of(name, counted)


def sha256_of(name: str, fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 over a player's name, its version, and named arrays and numbers."""
    import numpy as np

    digest = hashlib.sha256(f"{name}:{REGISTRY[name].version}\n".encode())
    for field, value in fields.items():
        array = np.ascontiguousarray(value)
        digest.update(f"{field}:{array.dtype.str}:{array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
