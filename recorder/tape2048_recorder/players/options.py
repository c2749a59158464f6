"""The players and their options: names, parameters and factories.

It does not load the compiler, so settings can be checked without it; :func:`make_player` loads a player's
module and its tables. :mod:`tape2048_recorder.game.player_api` explains how to add a player.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from tape2048.critic.facts import critic_path
from tape2048.errors import ConfigError
from tape2048.formats.session import TOP_TILE
from tape2048.ntuple.network import TILES, network_path
from tape2048.settings.fields import Setting, Settings, Share, about, read_table, settings_of
from tape2048_recorder.players.batch import ArgValue, check_name, is_batched
from tape2048_recorder.players.engine import EXEC, EngineArgs

_CACHE = "cache_"  # prefix of the fields that hold a player's cache
_UNCUT_SPAWNS_MAX = 3  # most spawns to look ahead along all lines, whatever their probability

#: The ``downgrade`` that leaves the tile to the network.
OF_NETWORK = -1


class PlayerKind(NamedTuple):
    """One row of the registry.

    ``factory`` names a module of this package and the function in it that takes the parameters by keyword.
    Raise ``version`` when the same parameters choose other moves than before.
    """

    name: str
    summary: str
    factory: str
    args: type[Settings] = Settings
    version: int = 1
    valued: bool = False  # whether it values moves: choose_valued

    @property
    def parameters(self) -> dict[str, Setting]:
        """A mapping of the player's parameters."""
        return settings_of(self.args)


Spawns = Annotated[int, msgspec.Meta(ge=0, le=16)]
Points = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ExpectimaxArgs(Settings, frozen=True):
    """Parameters of ``expectimax``."""

    depth: Annotated[
        int, about("spawns to look ahead; each further spawn takes 15 times as long", ge=1, le=3)
    ] = 1


class NTupleArgs(Settings, frozen=True):
    """Parameters of ``ntuple``."""

    weights: Annotated[
        str, about("a shipped network (`strong`, `small`, `fast`), a file, or `tdl2048:FILE` of TDL2048")
    ] = "strong"
    look_below: Annotated[
        Spawns, about("search 2-ply with fewer empty cells than this; 0: never, 16: always")
    ] = 3
    look_twice_below: Annotated[
        Spawns,
        about("search 3-ply with fewer empty cells than this, among the moves that are searched; 0: never"),
    ] = 0
    look_spawns: Annotated[
        int,
        about(
            "spawns of the deeper search; above 3 (look_deeper_from adds one), it needs look_chance",
            ge=2,
            le=5,
        ),
    ] = 2
    look_chance: Annotated[
        Share, about("follow spawns that are less probable than about this, together, no further; 0: all")
    ] = 0.0
    look_deeper_from: Annotated[
        int,
        about("one ply deeper with this many different tiles from 1024 up; 0: never", ge=0, le=6),
    ] = 0
    look_unsure: Annotated[
        Points,
        about(
            "points of score: search one ply deeper, to look_spawns at most, while the last ply changed "
            "the best value by more than this; 0: never"
        ),
    ] = 0.0
    look_margin: Annotated[
        Points, about("points of score: search the moves this close to the best move; 0: all")
    ] = 1600.0
    downgrade: Annotated[
        int,
        about(
            "play boards from this highest tile on with smaller tiles; 0: never; -1: the network's value",
            ge=OF_NETWORK,
            le=TILES[-1],
        ),
    ] = OF_NETWORK
    mix: Annotated[
        str,
        about("look_below drawn for each game, with weights: `0:2+3:1` plays 2 games of 3 without search"),
    ] = ""
    epsilon: Annotated[Share, about("the chance of a random move")] = 0.0
    temperature: Annotated[Points, about("points of score; softmax over values where above 0")] = 0.0

    def check(self) -> None:
        """Raise ConfigError for a missing network, an invalid mixture or tile, or an endless look-ahead."""
        network_path(self.weights)
        if self.mix:
            parse_mix(self.mix)
        if self.look_spawns + (self.look_deeper_from > 0) > _UNCUT_SPAWNS_MAX and not self.look_chance:
            raise ConfigError(
                f"found look_spawns = {self.look_spawns}, look_deeper_from = {self.look_deeper_from} and "
                "look_chance = 0, which takes minutes for a move",
                hint="look_chance=0.001 follows no less probable spawns",
            )
        if self.downgrade not in {OF_NETWORK, 0, *TILES}:
            raise ConfigError(
                f"found downgrade = {self.downgrade}, expected 0 or a tile from {TILES[0]} to {TILES[-1]}",
                hint=f"0 changes no board; {OF_NETWORK}, the default, asks the network",
            )


class CriticArgs(Settings, frozen=True):
    """Parameters of ``critic``."""

    critic: Annotated[str, about("an n-tuple critic's file, or `default`, the critic that ships")] = "default"
    tile: Annotated[int, about("the tile to reach, among the critic's tiles", ge=4, le=TOP_TILE)] = 32768
    look_below: Annotated[
        Spawns, about("search one ply deeper with fewer empty cells than this; 16: always")
    ] = 0
    weights: Annotated[str, about("the n-tuple network of `margin`")] = "small"
    margin: Annotated[
        Points, about("points of score: allow the moves this close to the network's best move; 0: all")
    ] = 50.0

    def check(self) -> None:
        """Raise CriticError unless the critic's file exists, ConfigError unless the network's does."""
        critic_path(self.critic)
        network_path(self.weights)


def parse_mix(text: str) -> tuple[list[int], list[int]]:
    """Parse a mixture such as ``"0:2+1:1+16:0.5"`` (``look_below:weight``); ConfigError for another text.

    Returns ``(looks, ends)``: 64 random bits select the first part whose end is above them.
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
            "random", "uniformly random legal moves: a floor, and a test of the machinery", "simple:Random"
        ),
        PlayerKind("greedy", "the best immediate merge score, ties at random", "simple:Greedy"),
        PlayerKind(
            "expectimax",
            "expectation over the next spawns, lines of the board valued by hand-made features",
            "simple:make_expectimax",
            ExpectimaxArgs,
            valued=True,
        ),
        PlayerKind(
            "ntuple",
            "a trained n-tuple network, with a look ahead where the board is nearly full",
            "ntuple:make",
            NTupleArgs,
            valued=True,
        ),
        PlayerKind(
            "critic",
            "the move after which an n-tuple critic finds a tile likeliest to be reached",
            "critic:make",
            CriticArgs,
        ),
    )
}


def check_player(name: str, args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """Return the parameters of a player, with defaults."""
    if name == EXEC:
        return msgspec.structs.asdict(read_table(EngineArgs, dict(args), f"player {name!r}"))
    if is_batched(name):  # its factory knows its parameters, and only workers import it
        check_name(name)
        return dict(args)
    kind = REGISTRY.get(name)
    if kind is None:
        match = difflib.get_close_matches(name, REGISTRY, n=1)
        raise ConfigError(
            f"no player is called {name!r}" + (f"; did you mean {match[0]!r}?" if match else ""),
            hint=f"one of: {', '.join(REGISTRY)}, python:package.module:factory, exec:./program",
        )
    return msgspec.structs.asdict(read_table(kind.args, dict(args), f"player {name!r}"))


def with_defaults(name: str, args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """Return the parameters of a player, with defaults and without a check; of a Python player as given."""
    return {key: setting.default for key, setting in _parameters(name).items()} | dict(args)


def takes_text(name: str, key: str) -> bool:
    """Whether a player's parameter is text, even where its value reads as a number."""
    parameters = _parameters(name)
    return key in parameters and isinstance(parameters[key].default, str)


def _parameters(name: str) -> dict[str, Setting]:
    if name == EXEC:
        return settings_of(EngineArgs)
    return REGISTRY[name].parameters if name in REGISTRY else {}


def make_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Return a player for the game loop: its module's ``NamedTuple``, tables included."""
    if is_batched(name):
        raise ConfigError(
            f"{name} chooses for many boards at once, and this plays one game at a time",
            hint="`tape2048 record`, `player eval`, `player match` and `bench-player` play it",
        )
    full = check_player(name, args)
    module, _, function = REGISTRY[name].factory.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)(**full)


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
    """Return the SHA-256 over a player's name, its version, and named arrays and numbers.

    A list of arrays counts as one flat array.
    """
    import numpy as np

    digest = hashlib.sha256(f"{name}:{REGISTRY[name].version}\n".encode())
    for field, value in fields.items():
        parts = value if isinstance(value, list) else [np.ascontiguousarray(value)]
        shape = (sum(part.size for part in parts),) if isinstance(value, list) else parts[0].shape
        digest.update(f"{field}:{parts[0].dtype.str}:{shape}\n".encode())
        room = np.empty(max(part.size for part in parts), parts[0].dtype)
        for part in parts:
            flat = part if part.flags.c_contiguous else room[: part.size].reshape(part.shape)
            if flat is not part:
                flat[...] = part
            digest.update(flat.data)
    return digest.hexdigest()
