"""The text of a run's engine, which holds the player and the seed of a recorded game.

A session identifies its games by player and seed; run files have no fields for these. A run from a recorded
session carries them in its engine's text ::

    tape2048 0.1.0 expectimax player_sha256=<64 hex digits> seed=<number>

and :func:`tape2048.runs.sessions.write_session` reads them back, so that a game keeps its identity
(which splits hash) through every format.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_IDENTITY = re.compile(
    r"(?P<engine>.*?) ?\bplayer_sha256=(?P<player>[0-9a-f]{64}) seed=(?P<seed>0|[1-9][0-9]{0,19})", re.DOTALL
)


class Identity(NamedTuple):
    """A game's player and seed, and the rest of its engine's text."""

    engine: str
    player_sha256: str
    seed: int


def engine_text(engine: str, player_sha256: str, seed: int) -> str:
    return f"{engine} player_sha256={player_sha256} seed={seed}".lstrip()


def identity_of(engine: str | None) -> Identity | None:
    match = _IDENTITY.fullmatch(engine) if engine is not None else None
    if match is None or int(match["seed"]) >= 2**64:
        return None
    return Identity(match["engine"], match["player"], int(match["seed"]))


def facts_of_engine(engine: str | None) -> dict[str, Any]:
    """Return the player of an engine's text (with or without a seed), as facts of a session."""
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
    return engine if seed is None else f"{engine} seed={seed}"
