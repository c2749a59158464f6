"""The players: what each is called, what it takes, and how it is made.

This module knows them by name only, so that settings can be checked without loading the compiler;
:func:`make_player` loads a player's module and its tables. What a player is to the game loop, and how
to add one, stands in :mod:`tape2048_recorder.players._api`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.errors import ConfigError, UnknownKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REGISTRY", "Parameter", "PlayerKind", "check_player", "make_player", "player_sha256"]

ArgValue = int | float | str | bool


class Parameter(NamedTuple):
    """One parameter of a player: an integer in a range."""

    default: int
    minimum: int
    maximum: int
    summary: str


class PlayerKind(NamedTuple):
    """One row of the registry.

    ``make`` names a function ``module:function`` in this package that takes the parameters by keyword.
    ``version`` is raised when the same parameters would choose other moves than before.
    """

    name: str
    summary: str
    parameters: dict[str, Parameter]
    make: str
    version: int


REGISTRY: dict[str, PlayerKind] = {
    kind.name: kind
    for kind in (
        PlayerKind(
            name="random",
            summary="uniformly random legal moves: a floor, and a test of the machinery",
            parameters={},
            make="random:make",
            version=1,
        ),
        PlayerKind(
            name="greedy",
            summary="the best immediate merge score, ties at random",
            parameters={},
            make="greedy:make",
            version=1,
        ),
        PlayerKind(
            name="expectimax",
            summary="expectation over the next spawns, lines of the board valued by hand-made features",
            parameters={"depth": Parameter(1, 1, 3, "spawns looked ahead; one more: 15 times the time")},
            make="expectimax:make",
            version=1,
        ),
    )
}


def check_player(name: str, args: Mapping[str, ArgValue]) -> dict[str, int]:
    """The parameters of a player, defaults filled in.

    Raises:
        UnknownKeyError: no such player, or no such parameter; the nearest one is named.
        ConfigError: a parameter is not an integer in its range.
    """
    kind = REGISTRY.get(name)
    if kind is None:
        raise UnknownKeyError(
            f"no player is called {name!r}{_nearest(name, REGISTRY)}", hint=f"one of: {', '.join(REGISTRY)}"
        )
    for key in args:
        if key not in kind.parameters:
            known = ", ".join(kind.parameters) or "none"
            raise UnknownKeyError(
                f"player {name!r} takes no {key!r}{_nearest(key, kind.parameters)}",
                hint=f"its parameters: {known}",
            )
    full = {key: parameter.default for key, parameter in kind.parameters.items()}
    for key, value in args.items():
        parameter = kind.parameters[key]
        if type(value) is not int or not parameter.minimum <= value <= parameter.maximum:
            raise ConfigError(
                f"player {name!r}: {key} is {value!r}; expected an integer from {parameter.minimum} to "
                f"{parameter.maximum} ({parameter.summary})"
            )
        full[key] = value
    return full


def _nearest(name: str, known: Mapping[str, object]) -> str:
    match = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def make_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """A player for the game loop: its module's ``NamedTuple``, tables included.

    Raises:
        ConfigError: as :func:`check_player`.
    """
    full = check_player(name, args)
    module, _, function = REGISTRY[name].make.partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)(**full)


def player_sha256(name: str, player: Any) -> str:
    """What tells this player from any that would choose otherwise: SHA-256 over name, version and tables.

    Fields called ``cache_...`` hold what was computed, and do not count.
    """
    import numpy as np

    digest = hashlib.sha256(f"{name}:{REGISTRY[name].version}\n".encode())
    for field, value in zip(player._fields, player, strict=True):
        if field.startswith("cache_"):
            continue
        array = np.ascontiguousarray(value)
        digest.update(f"{field}:{array.dtype.str}:{array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
