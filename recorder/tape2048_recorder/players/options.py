"""The registry of players: names, parameters and factories.

Importing it loads no player. The parameters of a player are imported when it is named, and its module and
tables by :func:`make_player`. :mod:`tape2048_recorder.game.player_api` explains how to add a player.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tape2048.base.lazy import load_named
from tape2048.base.settings import Setting, Settings, read_table, settings_of
from tape2048.errors import ConfigError
from tape2048.search_depth import with_look

ArgValue = int | float | str | bool

#: The name of the player whose moves another program chooses, and the prefix of Python's batched players.
EXEC = "exec"
PREFIX = "python:"
_NAME = re.compile(r"python:(?P<module>[A-Za-z_][\w.]*|[^:]+\.py):(?P<factory>[A-Za-z_]\w*)")

_CACHE = "cache_"  # prefix of the fields that hold a player's cache


class PlayerKind(NamedTuple):
    """One row of the registry.

    ``factory`` and ``args`` are ``MODULE:NAME``, in a module of this package: the function that takes the
    parameters by keyword, and the class of the parameters. Raise ``version`` when a change makes the same
    parameters choose different moves.
    """

    name: str
    summary: str
    factory: str
    args: str = ""
    version: int = 1
    valued: bool = False  # whether it computes values of moves (choose_valued)

    @property
    def parameters(self) -> dict[str, Setting]:
        return settings_of(self.settings)

    @property
    def settings(self) -> type[Settings]:
        """The class of the parameters."""
        return load_named(f"{__package__}.{self.args}") if self.args else Settings


REGISTRY: dict[str, PlayerKind] = {
    kind.name: kind
    for kind in (
        PlayerKind("random", "uniformly random legal moves, as a baseline and for tests", "simple:Random"),
        PlayerKind("greedy", "the move with the highest merge score, ties at random", "simple:Greedy"),
        PlayerKind(
            "expectimax",
            "the best expected value over the next spawns, by hand-made features of rows and columns",
            "simple:make_expectimax",
            "parameters:ExpectimaxArgs",
            valued=True,
        ),
        PlayerKind(
            "ntuple",
            "a trained n-tuple network that searches ahead on nearly full boards",
            "ntuple:make",
            "parameters:NTupleArgs",
            valued=True,
        ),
        PlayerKind(
            "critic",
            "the move that is likeliest to reach a tile, by an n-tuple critic",
            "critic_player:make",
            "parameters:CriticArgs",
        ),
    )
}

_ENGINE = PlayerKind(EXEC, "a program", "engine:EnginePlayer", "engine:EngineArgs")


def is_batched(name: str) -> bool:
    """Whether a player's name names a factory of batched players or an engine."""
    return name.startswith(PREFIX) or name == EXEC


def check_name(name: str) -> tuple[str, str]:
    """Split a player's name into module (or file) and factory; ConfigError for an invalid name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"found player = {name!r}, expected python:package.module:factory or python:path/file.py:factory",
            hint="Name a function that takes player_args by keyword and returns the player.",
        )
    return match["module"], match["factory"]


def check_player(name: str, args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """Return the parameters of a player, with defaults; ConfigError for an unknown player or parameter."""
    if is_batched(name) and name != EXEC:  # its factory knows its parameters, and only workers import it
        check_name(name)
        return dict(args)
    kind = _ENGINE if name == EXEC else REGISTRY.get(name)
    if kind is None:
        match = difflib.get_close_matches(name, REGISTRY, n=1)
        raise ConfigError(
            f"no player is called {name!r}" + (f"; did you mean {match[0]!r}?" if match else ""),
            hint=f"Use one of: {', '.join(REGISTRY)}, python:package.module:factory, exec:./program.",
        )
    return msgspec.structs.asdict(read_table(kind.settings, with_look(name, args), f"player {name!r}"))


def with_defaults(name: str, args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """Return the parameters of a player, with defaults and unchecked. A Python player has no defaults."""
    return {key: setting.default for key, setting in _parameters(name).items()} | with_look(name, args)


def takes_text(name: str, key: str) -> bool:
    """Whether a player's parameter is text, even if its value looks like a number."""
    parameters = _parameters(name)
    return key in parameters and isinstance(parameters[key].default, str)


def _parameters(name: str) -> dict[str, Setting]:
    kind = _ENGINE if name == EXEC else REGISTRY.get(name)
    return kind.parameters if kind is not None else {}


def make_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Return a player for the game loop: its module's ``NamedTuple``, tables included."""
    if is_batched(name):
        raise ConfigError(
            f"found the batched player {name}, expected a player that plays one game at a time",
            hint="Use it with `tape2048 record`, `player eval`, `player match` or `bench-player`.",
        )
    full = check_player(name, args)
    return load_named(f"{__package__}.{REGISTRY[name].factory}")(**full)


def make_stand_in(name: str, args: Mapping[str, ArgValue]) -> Any:
    """Return a player of the type of :func:`make_player`'s, which is made sooner; None if there is none."""
    full = check_player(name, args)
    module, _, _ = REGISTRY[name].factory.partition(":")
    make = getattr(importlib.import_module(f"{__package__}.{module}"), "stand_in", None)
    return None if make is None else make(**full)


def own(player: Any) -> Any:
    """Return the player for another thread, with shared tables and a separate cache."""
    caches = [field for field in player._fields if field.startswith(_CACHE)]
    return player._replace(**{field: getattr(player, field).copy() for field in caches})


def player_sha256(name: str, player: Any) -> str:
    """Return the SHA-256 (hex) of a player's name, version, parameters and tables.

    Two players with the same hash choose the same moves. Fields called ``cache_...`` are not hashed. If a
    player has a field ``identity``, the field is the hash. Players whose tables in memory have a different
    order than in the file have this field.
    """
    if "identity" in player._fields:
        return bytes(player.identity).hex()
    counted = {field: value for field, value in player._asdict().items() if not field.startswith(_CACHE)}
    return sha256_of(name, counted)


def sha256_of(name: str, fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of name, version, arrays and numbers; a list of arrays is hashed flat."""
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
