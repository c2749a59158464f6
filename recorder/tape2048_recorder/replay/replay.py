"""Replay of recorded games: playing them again, and comparing them with the recording.

Player and seed determine a game, and a session records both. Replay is the only check that does not trust the
recorder. It finds bugs in the buffers, a player that changed without a new version, and edited sessions.
Importing this module does not load the compiler.
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from tape2048.base.findings import Finding
from tape2048.base.resources import available_cores
from tape2048.errors import ConfigError, FieldError, FormatError, ReplayError
from tape2048.session.layout import ROWS, RULES, RULES_1, SAMPLE_RATE_MAX, TAPE, step_dtype
from tape2048.session.session import Session
from tape2048_recorder.players.options import is_batched, make_player, own, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    #: As ``Play`` in :mod:`tape2048.runs.run`.
    Play = Callable[[int, int, int], tuple[NDArray[np.uint64], NDArray[np.uint8]]]

_STEPS_MAX = 1 << 18  # longest game: each move adds at least 2 to a sum of at most 16 x 32768

_PIECE_ROWS = 1 << 18  # rows that a thread replays at a time

_FINDINGS_MAX = 20  # most findings that name a run. A last finding counts further runs

_COMPARED = ("rows", "steps", "score", "highest_tile")


class PlayerFacts(msgspec.Struct, frozen=True):
    player: str
    player_args: dict[str, int | float | str | bool]
    player_sha256: str
    sample_rate: Annotated[int, msgspec.Meta(ge=1, le=SAMPLE_RATE_MAX)]
    record_action: bool


def recorded_player(path: Path, facts: Mapping[str, Any]) -> tuple[PlayerFacts, Any]:
    """Return the checked facts of a session, and the player that recorded it."""
    try:
        meta = msgspec.convert(facts, PlayerFacts)
    except msgspec.ValidationError as error:
        raise ReplayError(
            f"the session's facts do not identify its player: {error}",
            path=path,
            hint="Replay only sessions that `tape2048 record` wrote.",
        ) from error
    if is_batched(meta.player):
        raise ReplayError(
            f"the games were played by {meta.player}, expected a built-in player: replay runs no other code",
            path=path,
            hint="Record games with the same seed, and compare them.",
        )
    try:
        player, here = _player(meta.player, tuple(sorted(meta.player_args.items())))
    except (ConfigError, FormatError) as error:
        raise ReplayError(f"its player is not available: {error}", path=path, hint=error.hint) from error
    if here != meta.player_sha256:
        raise ReplayError(
            f"found games by {meta.player} with SHA-256 {meta.player_sha256[:12]}, expected {here[:12]}, the "
            f"installed {meta.player}",
            path=path,
            hint="Install the version that recorded the session (`engine` in `tape2048 show --json`).",
        )
    return meta, player


@functools.cache
def _player(name: str, args: tuple[tuple[str, Any], ...]) -> tuple[Any, str]:
    """Return a player and its SHA-256. The sessions of a directory usually have the same player."""
    player = make_player(name, dict(args))
    return player, player_sha256(name, player)


def replayer(path: Path, facts: Mapping[str, Any]) -> Play:
    """Return a function that plays games of a session again, on any thread."""
    _, made = recorded_player(path, facts)
    from tape2048_recorder.game.game_loop import Buffer, play_into

    local = threading.local()  # a player's cache is not thread-safe

    def play(seed: int, steps: int, start: int = 0) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        if not hasattr(local, "player"):
            local.player = own(made)
        buffer = Buffer(rows_max=min(steps, _STEPS_MAX) + 1, runs_max=1, record_action=True, sample_rate=1)
        buffer.begin_at(start, seed)
        play_into(buffer, local.player, steps_max=buffer.rows_max)
        return buffer.boards_and_moves()

    return play


class Replay(msgspec.Struct, frozen=True):
    runs: int
    findings: tuple[Finding, ...]


def replay_session(path: Path, *, progress: Callable[[int, int], object] | None = None) -> Replay:
    from tape2048.ntuple.mapped import check_tables
    from tape2048.session.tape_reader import game_pieces

    session = Session.open(path)
    meta, player = recorded_player(path, session.meta)
    if session.tape is None and session.dtype != step_dtype(record_action=meta.record_action):
        raise FieldError(
            f"found rows {session.dtype}, expected {step_dtype(record_action=meta.record_action)} "
            f"(record_action = {meta.record_action})",
            path=path,
        )
    said: list[str] = []
    done = differing = 0
    pieces = [piece for piece, _ in game_pieces(session.runs, _PIECE_ROWS)]
    with ThreadPoolExecutor(available_cores()) as pool:
        differences = pool.map(lambda piece: _differing(session, meta, player, piece), pieces)
        for piece, found in zip(pieces, differences, strict=True):
            differing += len(found)
            for run, what in found[: _FINDINGS_MAX - len(said)]:
                named = f"run {session.runs['run_id'][run]} (seed {session.runs['seed'][run]})"
                old = session.meta.get("rules", 1) != RULES and session.runs["highest_tile"][run] >= 1 << 15
                said.append(f"{named} differs from its replay: {what}" + (f"; {RULES_1}" if old else ""))
            done += int(session.runs["rows"][piece].sum())
            if progress is not None:
                progress(done, len(session))
    check_tables()
    if differing > len(said):
        said.append(f"{differing - len(said)} more runs differ from their replay")
    return Replay(len(session.runs), tuple(Finding.of(ReplayError(text, path=path)) for text in said))


def _differing(session: Session, meta: PlayerFacts, player: Any, piece: slice) -> list[tuple[int, str]]:
    from tape2048_recorder.game.game_loop import Buffer, play_all
    from tape2048_recorder.game.rng import start_boards

    recorded = session.runs[piece]
    rows: NDArray[Any] = session.steps if session.tape is None else session.tape.data
    buffer = Buffer(
        rows_max=int(recorded["rows"].sum()) + 1,
        runs_max=len(recorded),
        record_action=meta.record_action,
        sample_rate=meta.sample_rate,
        storage=ROWS if session.tape is None else TAPE,
    )
    seeds = np.ascontiguousarray(recorded["seed"])
    given = None if session.start_boards is None else session.start_boards[piece]
    buffer.give(np.ascontiguousarray(recorded["run_id"]), seeds, given)
    player = own(player)
    play_all(buffer, player)
    played, made = buffer.runs, buffer.rows
    starts = start_boards(seeds) if given is None else given
    recorded_starts = starts if session.tape is None else session.tape.starts[piece]
    found = []
    for i in range(len(recorded)):
        differs = [name for name in _COMPARED if played[name][i] != recorded[name][i]]
        here, there = int(played["first_row"][i]), int(recorded["first_row"][i])
        count = int(played["rows"][i])
        if differs:
            what = ", ".join(
                f"found {name} {recorded[name][i]}, expected {played[name][i]}" for name in differs
            )
        elif recorded_starts[i] != starts[i]:
            what = f"found start_board {recorded_starts[i]:#018x}, expected {starts[i]:#018x}"
        elif (unequal := made[here : here + count] != rows[there : there + count]).any():
            what = f"row {there + int(unequal.argmax())} is the first to differ"
        else:
            continue
        found.append((piece.start + i, what))
    return found
