"""Playing recorded games again: what was recorded is what the player plays, bit for bit.

A game is decided by its player and its seed, and both stand in the session. This is the one check that
does not trust the recorder: it would find a bug in the buffers, a player that changed without saying
so, and a session put together by hand.
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
from tape2048.session.session import Session
from tape2048_recorder.game.loop import GAMES_PLAYED, Buffer, play_into
from tape2048_recorder.players.batch import is_batched
from tape2048_recorder.players.registry import make_player, own, player_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Replay", "replay_session"]

#: Rows and runs that are played again at once.
_CHUNK_ROWS = 1 << 18
_CHUNK_RUNS = 4096

#: A run that differs is named; beyond this many, counting them is enough.
_FINDINGS_MAX = 20

_COMPARED = ("rows", "steps", "max_score", "highest_tile")

Runs = npt.NDArray[np.void]


class Replay(msgspec.Struct, frozen=True):
    """How many runs were played again, and each that came out differently."""

    runs: int
    findings: tuple[Finding, ...]


def replay_session(path: Path, *, progress: Callable[[int, int], object] | None = None) -> Replay:
    """Play every run of a session again, on all cores.

    Args:
        path: a session that this project recorded.
        progress: called with the rows compared so far, and all.

    Raises:
        ReplayError: the session does not say what played it, or it was another player than the one
            that has its name here.
        FormatError: the session cannot be opened.
    """
    session = Session.open(path)
    meta = _meta(session, path)
    player = _player(meta, path)
    findings: list[Finding] = []
    done = differing = 0
    with ThreadPoolExecutor(available_cores()) as pool:
        chunks = list(_chunks(session.runs))
        for (first, end), found in zip(
            chunks, pool.map(lambda chunk: _differing(session, meta, player, *chunk), chunks), strict=True
        ):
            differing += len(found)
            findings += [
                _finding(path, session.runs[run], what)
                for run, what in found[: _FINDINGS_MAX - len(findings)]
            ]
            done += int(session.runs["rows"][first:end].sum())
            if progress is not None:
                progress(done, len(session))
    if differing > len(findings):
        more = f"{differing - len(findings)} more runs came out differently"
        findings.append(Finding.of(ReplayError(more, path=path)))
    return Replay(len(session.runs), tuple(findings))


class _Meta(msgspec.Struct, frozen=True):
    """What a session says of how it was played."""

    player: str
    player_args: dict[str, int | float | str | bool]
    player_sha256: str
    sample_rate: Annotated[int, msgspec.Meta(ge=1, le=SAMPLE_RATE_MAX)]
    record_action: bool


def _meta(session: Session, path: Path) -> _Meta:
    try:
        meta = msgspec.convert(session.meta, _Meta)
    except msgspec.ValidationError as error:
        raise ReplayError(
            f"the session does not say what played it: {error}",
            path=path,
            hint="only what this project recorded can be played again",
        ) from error
    if session.steps.dtype != step_dtype(record_action=meta.record_action):
        raise ReplayError(
            f"record_action is {meta.record_action}, the rows are {session.steps.dtype}", path=path
        )
    return meta


def _player(meta: _Meta, path: Path) -> Any:
    """The player that recorded the session, if it is the same here."""
    if is_batched(meta.player):
        raise ReplayError(
            f"it was played by {meta.player}, which runs code that the session names",
            path=path,
            hint="only players that ship are played again; record with the same seed, and compare",
        )
    try:
        player = make_player(meta.player, meta.player_args)
    except (ConfigError, FormatError) as error:
        raise ReplayError(
            f"what played it cannot be made here: {error}", path=path, hint=error.hint
        ) from error
    here = player_sha256(meta.player, player)
    if here != meta.player_sha256:
        raise ReplayError(
            f"it was played by {meta.player} {meta.player_sha256[:12]}; here {meta.player} is {here[:12]}",
            path=path,
            hint="install the version that recorded it (`engine` in `tape2048 show --json`)",
        )
    return player


def _chunks(runs: Runs) -> Iterator[tuple[int, int]]:
    """Ranges of runs, in the order of their rows, of bounded size (or of one run)."""
    first = 0
    while first < len(runs):
        rows = np.cumsum(runs["rows"][first : first + _CHUNK_RUNS], dtype=np.int64)
        end = first + max(1, int(np.searchsorted(rows, _CHUNK_ROWS, side="right")))
        yield first, end
        first = end


def _differing(session: Session, meta: _Meta, player: Any, first: int, end: int) -> list[tuple[int, str]]:
    """The runs of a range that come out differently, and in what."""
    recorded = session.runs[first:end]
    rows = int(recorded["rows"].sum())
    buffer = Buffer(
        rows_max=rows + 1,
        runs_max=end - first,
        record_action=meta.record_action,
        sample_rate=meta.sample_rate,
    )
    buffer.give(np.ascontiguousarray(recorded["id"]), np.ascontiguousarray(recorded["seed"]))
    player = own(player)  # chunks are played at the same time
    while play_into(buffer, player, steps_max=1 << 30) != GAMES_PLAYED:
        buffer.grow()
    played, made = buffer.runs, buffer.rows
    found = []
    for i in range(end - first):
        differs = [name for name in _COMPARED if played[name][i] != recorded[name][i]]
        if differs:
            found.append(
                (
                    first + i,
                    ", ".join(f"{name} {recorded[name][i]}, not {played[name][i]}" for name in differs),
                )
            )
            continue
        here = made[int(played["first_row"][i]) :][: int(played["rows"][i])]
        there = session.steps[int(recorded["first_row"][i]) :][: int(recorded["rows"][i])]
        unequal = np.flatnonzero(here != there)
        if len(unequal):
            found.append(
                (first + i, f"row {int(recorded['first_row'][i]) + int(unequal[0])} is the first to differ")
            )
    return found


def _finding(path: Path, run: np.void, what: str) -> Finding:
    error = ReplayError(f"run {run['id']} (seed {run['seed']}) comes out differently: {what}", path=path)
    return Finding.of(error)
