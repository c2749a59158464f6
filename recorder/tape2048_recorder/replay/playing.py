"""The recorded player of a session, and games that it plays again. Importing this loads no compiler."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from tape2048.errors import ConfigError, FormatError, ReplayError
from tape2048.formats.session import SAMPLE_RATE_MAX
from tape2048_recorder.players.batch import is_batched
from tape2048_recorder.players.registry import make_player, own, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    #: As ``Play`` in :mod:`tape2048.conversion.session_runs`.
    Play = Callable[[int, int], tuple[NDArray[np.uint64], NDArray[np.uint8]]]

#: No game is longer: a move adds at least 2 to a sum of at most 16 x 32768.
_STEPS_MAX = 1 << 18


class PlayerFacts(msgspec.Struct, frozen=True):
    """Facts of a session that a replay needs."""

    player: str
    player_args: dict[str, int | float | str | bool]
    player_sha256: str
    sample_rate: Annotated[int, msgspec.Meta(ge=1, le=SAMPLE_RATE_MAX)]
    record_action: bool


def recorded_player(path: Path, facts: Mapping[str, Any]) -> tuple[PlayerFacts, Any]:
    """Return the checked facts of a session, and the player that recorded it.

    Args:
        path: the session, for errors.
        facts: its table ``session``.

    Raises:
        ReplayError: the session does not name its player, or the player here is another one.
    """
    try:
        meta = msgspec.convert(facts, PlayerFacts)
    except msgspec.ValidationError as error:
        raise ReplayError(
            f"the session does not say what played it: {error}",
            path=path,
            hint="only sessions of this project can be replayed",
        ) from error
    if is_batched(meta.player):
        raise ReplayError(
            f"it was played by {meta.player}, which is code that the session names",
            path=path,
            hint="only built-in players are replayed; record with the same seed, and compare",
        )
    try:
        player, here = _player(meta.player, tuple(sorted(meta.player_args.items())))
    except (ConfigError, FormatError) as error:
        raise ReplayError(f"its player cannot be made here: {error}", path=path, hint=error.hint) from error
    if here != meta.player_sha256:
        raise ReplayError(
            f"it was played by {meta.player} {meta.player_sha256[:12]}; here {meta.player} is {here[:12]}",
            path=path,
            hint="install the version that recorded it (`engine` in `tape2048 show --json`)",
        )
    return meta, player


@functools.cache
def _player(name: str, args: tuple[tuple[str, Any], ...]) -> tuple[Any, str]:
    """Return a player and its SHA-256; sessions of one directory mostly have the same."""
    player = make_player(name, dict(args))
    return player, player_sha256(name, player)


def replayer(path: Path, facts: Mapping[str, Any]) -> Play:
    """Return a function that plays games of a session again, on any thread.

    Args:
        path: the session, for errors.
        facts: its table ``session``.

    Raises:
        ReplayError: as :func:`recorded_player`.
    """
    _, made = recorded_player(path, facts)
    from tape2048_recorder.game.loop import Buffer, play_into

    local = threading.local()  # a player with a cache is for one thread

    def play(seed: int, steps: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        if not hasattr(local, "player"):
            local.player = own(made)
        buffer = Buffer(rows_max=min(steps, _STEPS_MAX) + 1, runs_max=1, record_action=True, sample_rate=1)
        buffer.give(np.zeros(1, np.uint64), np.array([seed], np.uint64))
        play_into(buffer, local.player, steps_max=buffer.rows_max)
        return buffer.boards_and_moves()

    return play
