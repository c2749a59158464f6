"""Players of recorded games: their names for people, the labels that select their games, and identities.

A session identifies its games by player and seed; run files have no fields for these. A run from a recorded
session carries them in its engine's text ::

    tape2048 0.1.0 expectimax player_sha256=<64 hex digits> seed=<number>

and :func:`tape2048.conversion.session_runs.write_session` reads them back, so that a game keeps its identity
(which splits hash) through every format.
"""

from __future__ import annotations

import collections
import hashlib
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from tape2048.base.text import counted, printable
from tape2048.settings.fields import show_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray


class Named(Protocol):
    """A session: its name and its facts."""

    @property
    def name(self) -> str:
        """The name of its directory."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The facts."""


_NAMED = 8  # players that a message names
_NAME_CHARS = 40  # of a player's short name
_SPAWNS = ("look_below", "depth")  # parameters of players that look spawns ahead


def player_text(facts: Mapping[str, Any]) -> str:
    """Return the player of a session's facts with its parameters, as ``record`` takes it; empty for none."""
    name, args = _player_args(facts)
    return f"{name}:{','.join(f'{key}={show_plain(each)}' for key, each in args.items())}" if args else name


def _player_args(facts: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name, config = facts.get("player"), facts.get("config")
    args = facts.get("player_args", config.get("player_args") if isinstance(config, dict) else None)
    return (name, args if isinstance(args, dict) else {}) if isinstance(name, str) else ("", {})


def player_name(facts: Mapping[str, Any]) -> str:
    """Return the short name of a session's player: kind, network and look-ahead, as ``ntuple fast, 2-ply``.

    A ply is a move with the spawn before it: ``1-ply`` compares the boards after each move, and every spawn
    that the player looks ahead adds a ply. The name tells the deepest search of the player.

    Args:
        facts: A session's facts.

    Returns:
        At most 40 characters; ``unknown player`` if the facts have no player.

    Example:
        >>> player_name({"player": "ntuple", "player_args": {"weights": "nets/my.npz", "look_below": 0}})
        'ntuple my, 1-ply'
    """
    kind, args = _player_args(facts)
    words = [":".join(kind.split(":")[-2:]) or "unknown player"]
    networks = [args[key] for key in ("critic", "weights") if isinstance(args.get(key), str)]
    words += [re.split(r"[/\\]", each)[-1].split(".")[0] for each in networks[:1]]
    spawns = [args[key] for key in _SPAWNS if isinstance(args.get(key), int)]
    name, plies = " ".join(words), "" if not spawns else f", {plies_of(kind, args)}-ply"
    return (
        f"{name[: _NAME_CHARS - len(plies) - 1]}…{plies}" if len(name + plies) > _NAME_CHARS else name + plies
    )


def plies_of(kind: str, args: Mapping[str, Any]) -> int:
    """Return the plies of the deepest search of a player; see :func:`player_name`."""

    def of(key: str) -> int:
        value = args.get(key)
        return value if isinstance(value, int) else 0

    if not of("look_below"):
        return 1 + of("depth") + (kind == "critic")
    deeper = of("look_spawns") + (of("look_deeper_from") > 0) if of("look_twice_below") else 1
    return 1 + deeper + (kind == "critic")


def player_names(several: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the short name of each player by its label, with some digits of the SHA-256 where two share one.

    Args:
        several: The facts of sessions.

    Returns:
        Names by :func:`player_label`, in the order of the facts.
    """
    found = {player_label(facts): player_name(facts) for facts in several}
    shared = collections.Counter(found.values())
    return {label: f"{name} @{_digits(label)}" if shared[name] > 1 else name for label, name in found.items()}


def _digits(label: str) -> str:
    return (label.rpartition("@")[2] if "@" in label else hashlib.sha256(label.encode()).hexdigest())[:6]


def player_label(facts: Mapping[str, Any]) -> str:
    """Return the player of a session's facts for the column ``player``, as ``ntuple@0123456789ab``.

    That is a short name and 12 digits of the SHA-256; without a SHA-256 it is :func:`player_text`.
    """
    text, sha256 = player_text(facts), facts.get("player_sha256")
    if not isinstance(sha256, str) or not sha256:
        return text
    words = text.split(":")
    name = ":".join(words[1:3]).rpartition("/")[2] if words[0] == "python" else words[0]
    return f"{name}@{sha256[:12]}"


class PlayedBy(msgspec.Struct, frozen=True):
    """A player whose games are in a corpus."""

    name: str  # with its parameters, as its sessions say; empty where they do not
    sha256: str  # of the player; empty in sessions without it, which are taken for one player's by name
    games: int  # number of its games

    @property
    def label(self) -> str:
        """The player in the column ``player``."""
        return player_label({"player": self.name, "player_sha256": self.sha256})

    def __str__(self) -> str:
        return f"{printable(self.label)[:99] or 'a player without a name'} ({counted(self.games, 'game')})"


def facts_of_runs(
    runs: NDArray[np.void], sessions: Sequence[Named]
) -> tuple[list[Mapping[str, Any]], NDArray[np.int64]]:
    """Return the facts of players, and the index in them of each run's player, ``i64[R]``.

    A session has one player, a data set one for each engine.
    """
    facts, index = [session.meta for session in sessions], runs["session"].astype(np.int64)
    for ordinal, session in enumerate(sessions):
        if (dataset := getattr(session, "dataset", None)) is not None:
            mine = runs["session"] == ordinal
            identities = dataset.table.identities
            index[mine] = len(facts) + identities.player[dataset.table.ordinals(runs["id"][mine])]
            facts += identities.facts
    return facts, index


def players_of(runs: NDArray[np.void], sessions: Sequence[Named]) -> list[PlayedBy]:
    """Return the players of the games of a run table, starting with the player of the most games."""
    several, index = facts_of_runs(runs, sessions)
    games = np.bincount(index, minlength=len(several))
    found: dict[str, PlayedBy] = {}
    for facts, count in zip(several, games.tolist(), strict=True):
        if count:
            given, name = facts.get("player_sha256"), player_text(facts)
            sha256 = given if isinstance(given, str) else ""
            before = found.setdefault(sha256 or name, PlayedBy(name, sha256, 0))
            found[sha256 or name] = PlayedBy(before.name, sha256, before.games + count)
    return sorted(found.values(), key=lambda player: -player.games)


def only_player(player: PlayedBy) -> str:
    """Return the condition in SQL that selects a player's games."""
    quoted = player.label.replace("'", "''")
    return f"player = '{quoted}'"


def name_players(players: Sequence[PlayedBy], names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the number of players, and the first of them with their games, as short ``names`` by label."""
    more = f" and {len(players) - _NAMED} more" if len(players) > _NAMED else ""
    shown = [
        f"{names[one.label]} ({counted(one.games, 'game')})" if one.label in names else str(one)
        for one in players[:_NAMED]
    ]
    return f"{counted(len(players), 'player')}: {'; '.join(shown)}{more}"


_IDENTITY = re.compile(
    r"(?P<engine>.*?) ?\bplayer_sha256=(?P<player>[0-9a-f]{64}) seed=(?P<seed>0|[1-9][0-9]{0,19})", re.DOTALL
)


class Identity(NamedTuple):
    """A game's player and seed, and the rest of its engine's text."""

    engine: str
    player_sha256: str
    seed: int


def engine_text(engine: str, player_sha256: str, seed: int) -> str:
    """Return an engine's text that carries a game's identity; :func:`identity_of` reads it."""
    return f"{engine} player_sha256={player_sha256} seed={seed}".lstrip()


def identity_of(engine: str | None) -> Identity | None:
    """Return the identity that an engine's text carries, or None."""
    match = _IDENTITY.fullmatch(engine) if engine is not None else None
    if match is None or int(match["seed"]) >= 2**64:
        return None
    return Identity(match["engine"], match["player"], int(match["seed"]))


def facts_of_engine(engine: str | None) -> dict[str, Any]:
    """Return the player of an engine's text, with or without a seed, as the facts of a session have it."""
    identity = identity_of(engine) or identity_of(f"{engine} seed=0")
    if identity is None:
        return {"player": engine or ""}
    return {"player": identity.engine.rpartition(" ")[2], "player_sha256": identity.player_sha256}


def split_seed(engine: str | None) -> tuple[str | None, int | None]:
    """Split the seed off an engine's text; thousands of runs share the rest."""
    if engine is None or identity_of(engine) is None:
        return engine, None
    text, _, seed = engine.rpartition(" seed=")
    return text, int(seed)


def join_seed(engine: str | None, seed: int | None) -> str | None:
    """Undo :func:`split_seed`."""
    return engine if seed is None else f"{engine} seed={seed}"
