"""Replay of recorded games: bit-for-bit verification, and final boards.

Player and seed decide a game, and the session records both. Replay is the only check that does not trust the
recorder: it would find a bug in the buffers, a player that changed without a new version, and a session put
together by hand.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.findings import Finding
from tape2048.base.resources import available_cores
from tape2048.errors import ConfigError, FormatError, ReplayError
from tape2048.formats.session import SAMPLE_RATE_MAX, step_dtype
from tape2048.game.rules import boards_to_exps
from tape2048.jit.compiler import kernel
from tape2048.session.session import Session
from tape2048_recorder.game.engine import new_game, spawn
from tape2048_recorder.game.loop import GAMES_PLAYED, Buffer, play_into
from tape2048_recorder.game.player_api import NO_MOVE, choose
from tape2048_recorder.players.batch import is_batched
from tape2048_recorder.players.registry import make_player, own, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Rows and runs of one chunk.
_CHUNK_ROWS = 1 << 18
_CHUNK_RUNS = 4096

#: Runs of one chunk without rows.
_CHUNK_FINALS = 256

#: Findings that name their run; the last finding counts the others.
_FINDINGS_MAX = 20

_COMPARED = ("rows", "steps", "max_score", "highest_tile")


class Replay(msgspec.Struct, frozen=True):
    """The number of replayed runs, and a finding for each that differs."""

    runs: int
    findings: tuple[Finding, ...]


def replay_session(path: Path, *, progress: Callable[[int, int], object] | None = None) -> Replay:
    """Replay every run of a session on all cores, and compare.

    Args:
        path: a session that this project recorded.
        progress: called with the number of rows compared so far, and of all.

    Raises:
        ReplayError: the session does not name its player, or the player here is another one.
        FormatError: the session cannot be opened.
    """
    session = Session.open(path)
    meta, player = _played_by(session)
    findings: list[Finding] = []
    done = differing = 0
    with ThreadPoolExecutor(available_cores()) as pool:
        chunks = list(_chunks(session.runs))
        for (first, end), found in zip(
            chunks, pool.map(lambda chunk: _differing(session, meta, player, *chunk), chunks), strict=True
        ):
            differing += len(found)
            for run, what in found[: _FINDINGS_MAX - len(findings)]:
                named = f"run {session.runs['id'][run]} (seed {session.runs['seed'][run]})"
                findings.append(Finding.of(ReplayError(f"{named} comes out differently: {what}", path=path)))
            done += int(session.runs["rows"][first:end].sum())
            if progress is not None:
                progress(done, len(session))
    if differing > len(findings):
        more = f"{differing - len(findings)} more runs came out differently"
        findings.append(Finding.of(ReplayError(more, path=path)))
    return Replay(len(session.runs), tuple(findings))


def final_boards(session: Session) -> npt.NDArray[np.uint64] | None:
    """Replay a session, and return the board after the last move of each run, which it does not record.

    Returns:
        ``u64[R]``; None where the session does not name its player, or the player here is another one
        (of another version, or without its network's file).

    Raises:
        ReplayError: a game comes out differently.
    """
    try:
        _, made = _played_by(session)
    except ReplayError:
        return None
    runs = session.runs
    seeds = np.ascontiguousarray(runs["seed"])
    lasts, finals, steps = np.zeros((3, len(runs)), np.uint64)

    def play(first: int) -> None:
        part = slice(first, first + _CHUNK_FINALS)
        _play_to_the_end(own(made), seeds[part], lasts[part], finals[part], steps[part])

    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(play, range(0, len(runs), _CHUNK_FINALS)))
    for i in np.flatnonzero(runs["rows"]).tolist():
        rows = session.steps[session.rows_of(i)]
        same = steps[i] == runs["steps"][i]
        if same and int(rows["step_idx"][-1]) + 1 == int(steps[i]):
            same = np.array_equal(rows["exps"][-1], boards_to_exps(lasts[i]))
        if not same:
            raise ReplayError(
                f"run {runs['id'][i]} (seed {runs['seed'][i]}) comes out differently: its final board is "
                "not known",
                path=session.path,
                hint="tape2048 validate --replay lists all games that differ",
            )
    return finals


@kernel
def _play_to_the_end(player: Any, seeds: Any, lasts: Any, finals: Any, steps: Any) -> None:
    """Play games; fill in the board before the last move, the final one, and the number of moves."""
    for i in range(len(seeds)):
        board, _, state, gamma = new_game(seeds[i])
        steps[i] = 0
        while True:
            move, after, state = choose(player, board, state, gamma)
            if move == NO_MOVE:
                break
            lasts[i] = board
            board, _, state = spawn(after, state, gamma)
            steps[i] += 1
        finals[i] = board


class Played(msgspec.Struct, frozen=True):
    """Metadata that a replay needs."""

    player: str
    player_args: dict[str, int | float | str | bool]
    player_sha256: str
    sample_rate: Annotated[int, msgspec.Meta(ge=1, le=SAMPLE_RATE_MAX)]
    record_action: bool


def player_of(session: Session) -> tuple[Played, Any]:
    """Return how a session was played, and the player that recorded it.

    Raises:
        ReplayError: the session does not name its player, or the player here is another one (of another
            version, or without its network's file), or one that is not built in.
    """
    path = session.path
    try:
        meta = msgspec.convert(session.meta, Played)
    except msgspec.ValidationError as error:
        raise ReplayError(
            f"the session does not say what played it: {error}",
            path=path,
            hint="only sessions of this project can be replayed or played on",
        ) from error
    if is_batched(meta.player):
        raise ReplayError(
            f"it was played by {meta.player}, which runs code that the session names",
            path=path,
            hint="only built-in players replay games and play on; record with the same seed, and compare",
        )
    try:
        player = make_player(meta.player, meta.player_args)
    except (ConfigError, FormatError) as error:
        raise ReplayError(f"its player cannot be made here: {error}", path=path, hint=error.hint) from error
    here = player_sha256(meta.player, player)
    if here != meta.player_sha256:
        raise ReplayError(
            f"it was played by {meta.player} {meta.player_sha256[:12]}; here {meta.player} is {here[:12]}",
            path=path,
            hint="install the version that recorded it (`engine` in `tape2048 show --json`)",
        )
    return meta, player


def _played_by(session: Session) -> tuple[Played, Any]:
    """Return :func:`player_of` a session whose rows are as its metadata says."""
    meta, player = player_of(session)
    if session.steps.dtype != step_dtype(record_action=meta.record_action):
        raise ReplayError(
            f"record_action is {meta.record_action}, the rows are {session.steps.dtype}", path=session.path
        )
    return meta, player


def _chunks(runs: npt.NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Yield ranges of runs, in the order of their rows, of bounded size (or of one run)."""
    first = 0
    while first < len(runs):
        rows = np.cumsum(runs["rows"][first : first + _CHUNK_RUNS], dtype=np.int64)
        end = first + max(1, int(np.searchsorted(rows, _CHUNK_ROWS, side="right")))
        yield first, end
        first = end


def _differing(session: Session, meta: Played, player: Any, first: int, end: int) -> list[tuple[int, str]]:
    """Return the runs of a range that come out differently, each with its difference."""
    recorded = session.runs[first:end]
    buffer = Buffer(
        rows_max=int(recorded["rows"].sum()) + 1,
        runs_max=end - first,
        record_action=meta.record_action,
        sample_rate=meta.sample_rate,
    )
    buffer.give(np.ascontiguousarray(recorded["id"]), np.ascontiguousarray(recorded["seed"]))
    player = own(player)
    while play_into(buffer, player, steps_max=1 << 30) != GAMES_PLAYED:
        buffer.grow()
    played, made = buffer.runs, buffer.rows
    found = []
    for i in range(end - first):
        differs = [name for name in _COMPARED if played[name][i] != recorded[name][i]]
        if differs:
            what = ", ".join(f"{name} {recorded[name][i]}, not {played[name][i]}" for name in differs)
            found.append((first + i, what))
            continue
        here = made[int(played["first_row"][i]) :][: int(played["rows"][i])]
        there = session.steps[int(recorded["first_row"][i]) :][: int(recorded["rows"][i])]
        unequal = np.flatnonzero(here != there)
        if len(unequal):
            row = int(recorded["first_row"][i]) + int(unequal[0])
            found.append((first + i, f"row {row} is the first to differ"))
    return found
