"""The players: what each is called, what it takes, and how it is made.

This module knows them by name only, so that settings can be checked without loading the compiler;
:func:`make_player` loads a player's module and its tables. What a player is to the game loop, and how
to add one, stands in :mod:`tape2048_recorder.game.player_api`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.errors import ConfigError, UnknownKeyError
from tape2048_recorder.players.batch import check_name, is_batched

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "REGISTRY",
    "Parameter",
    "PlayerKind",
    "check_player",
    "make_player",
    "own",
    "player_sha256",
    "sha256_of",
    "takes_text",
]

ArgValue = int | float | str | bool

#: How the fields begin in which a player keeps what it computed.
_CACHE = "cache_"


class Parameter(NamedTuple):
    """One parameter of a player: of its default's type, in a range where it is a number."""

    default: int | float | str
    minimum: float
    maximum: float
    summary: str

    @property
    def expected(self) -> str:
        """The values it takes, in words."""
        if isinstance(self.default, str):
            return "text"
        noun = "an integer" if isinstance(self.default, int) else "a number"
        return f"{noun} from {self.minimum:g} to {self.maximum:g}"

    def read(self, value: object) -> int | float | str | None:
        """The value, or None where it is not one of this parameter's."""
        if isinstance(self.default, str):
            return value if isinstance(value, str) else None
        # A bool is an int to Python, and no number to anybody else.
        kinds = int if isinstance(self.default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return None
        return type(self.default)(value) if self.minimum <= value <= self.maximum else None


class PlayerKind(NamedTuple):
    """One row of the registry.

    ``make`` names a function ``module:function`` in this package that takes the parameters by keyword.
    ``version`` is raised when the same parameters would choose other moves than before. ``check`` names
    a function that refuses parameters by a :class:`ConfigError`, for what ranges cannot say; its module
    loads nothing heavy.
    """

    name: str
    summary: str
    parameters: dict[str, Parameter]
    make: str
    version: int
    check: str | None = None


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
        PlayerKind(
            name="ntuple",
            summary="a trained n-tuple network, with a look ahead where the board is nearly full",
            parameters={
                "weights": Parameter("default", 0, 0, "a network that ships (`default`, `fast`), or a file"),
                "look_below": Parameter(
                    3, 0, 16, "look a spawn ahead where fewer cells than this are empty; 0: never, 16: always"
                ),
                "look_twice_below": Parameter(
                    0, 0, 16, "look a second spawn ahead where it looks at all and fewer cells are empty"
                ),
                "look_margin": Parameter(
                    6400.0, 0, 1e6, "points of score; look ahead at moves this close to the best one; 0: all"
                ),
                "downgrade": Parameter(
                    -1,
                    -1,
                    32768,
                    "take boards from this highest tile on for smaller ones; 0: no; -1: as its network says",
                ),
                "mix": Parameter(
                    "", 0, 0, "look_below by game, drawn with weights: `0:2+3:1` is never in 2 games of 3"
                ),
                "epsilon": Parameter(0.0, 0, 1, "the chance of a random move"),
                "temperature": Parameter(0.0, 0, 1e6, "points of score; softmax over values where above 0"),
            },
            make="ntuple:make",
            version=1,
            check="tape2048_recorder.players.ntuple_arguments:check",
        ),
    )
}


def check_player(name: str, args: Mapping[str, ArgValue]) -> dict[str, ArgValue]:
    """The parameters of a player, defaults filled in.

    Raises:
        UnknownKeyError: no such player, or no such parameter; the nearest one is named.
        ConfigError: a parameter is not of its kind, not in its range, or names what is not there.
    """
    if is_batched(name):  # its factory knows its parameters, and is imported by the workers alone
        check_name(name)
        return dict(args)
    kind = REGISTRY.get(name)
    if kind is None:
        raise UnknownKeyError(
            f"no player is called {name!r}{_nearest(name, REGISTRY)}",
            hint=f"one of: {', '.join(REGISTRY)}, python:package.module:factory",
        )
    for key in args:
        if key not in kind.parameters:
            known = ", ".join(kind.parameters) or "none"
            raise UnknownKeyError(
                f"player {name!r} takes no {key!r}{_nearest(key, kind.parameters)}",
                hint=f"its parameters: {known}",
            )
    full: dict[str, ArgValue] = {key: parameter.default for key, parameter in kind.parameters.items()}
    for key, value in args.items():
        parameter = kind.parameters[key]
        read = parameter.read(value)
        if read is None:
            raise ConfigError(
                f"player {name!r}: {key} is {value!r}; expected {parameter.expected} ({parameter.summary})"
            )
        full[key] = read
    if kind.check is not None:
        module, _, function = kind.check.partition(":")
        getattr(importlib.import_module(module), function)(full)
    return full


def takes_text(name: str, key: str) -> bool:
    """Whether this parameter of a player is text, whatever else its value may look like."""
    kind = REGISTRY.get(name)
    return kind is not None and key in kind.parameters and isinstance(kind.parameters[key].default, str)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    match = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def make_player(name: str, args: Mapping[str, ArgValue]) -> Any:
    """A player for the game loop: its module's ``NamedTuple``, tables included.

    Raises:
        ConfigError: as :func:`check_player`.
    """
    if is_batched(name):
        raise ConfigError(
            f"{name} chooses for many boards at once, and this plays one game at a time",
            hint="`tape2048 record` and `tape2048 bench-player` play it in lanes",
        )
    full = check_player(name, args)
    module, _, function = REGISTRY[name].make.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)(**full)


def own(player: Any) -> Any:
    """The player for one more thread: tables are shared, and a cache, which is written, is its own."""
    caches = [field for field in player._fields if field.startswith(_CACHE)]
    return player._replace(**{field: getattr(player, field).copy() for field in caches})


def player_sha256(name: str, player: Any) -> str:
    """What tells this player from any that would choose otherwise: SHA-256 over name, version and tables.

    Fields called ``cache_...`` hold what was computed, and do not count. A player that keeps its tables in an
    order of its own has this as its field ``identity``.
    """
    if "identity" in player._fields:
        return bytes(player.identity).hex()
    counted = {field: value for field, value in player._asdict().items() if not field.startswith(_CACHE)}
    return sha256_of(name, counted)


def sha256_of(name: str, fields: Mapping[str, Any]) -> str:
    """SHA-256 over a player's name, its version, and named arrays and numbers."""
    import numpy as np

    digest = hashlib.sha256(f"{name}:{REGISTRY[name].version}\n".encode())
    for field, value in fields.items():
        array = np.ascontiguousarray(value)
        digest.update(f"{field}:{array.dtype.str}:{array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
