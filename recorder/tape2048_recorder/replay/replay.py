"""Replay of recorded games: bit-for-bit verification.

Player and seed decide a game, and the session records both. Replay is the only check that does not trust the
recorder: it would find a bug in the buffers, a player that changed without a new version, and a session put
together by hand.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.findings import Finding
from tape2048.base.resources import available_cores
from tape2048.errors import FieldError, ReplayError
from tape2048.formats.session import step_dtype
from tape2048.session.session import Session
from tape2048.tape.layout import ROWS, TAPE
from tape2048_recorder.game.engine import start_boards
from tape2048_recorder.game.loop import Buffer, play_all
from tape2048_recorder.players.registry import own
from tape2048_recorder.replay.playing import recorded_player

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048_recorder.replay.playing import PlayerFacts

#: Rows and runs of one chunk.
_CHUNK_ROWS = 1 << 18
_CHUNK_RUNS = 4096

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
        ReplayError: the session cannot be replayed: it does not name its player, or the player here is
            another one.
        FieldError: the rows are not of the type that the session's facts claim.
        FormatError: the session cannot be opened.
    """
    session = Session.open(path)
    meta, player = recorded_player(path, session.meta)
    if session.dtype != step_dtype(record_action=meta.record_action):
        raise FieldError(f"record_action is {meta.record_action}, the rows are {session.dtype}", path=path)
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


def _chunks(runs: npt.NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Yield ranges of runs, in the order of their rows, of bounded size (or of one run)."""
    first = 0
    while first < len(runs):
        rows = np.cumsum(runs["rows"][first : first + _CHUNK_RUNS], dtype=np.int64)
        end = first + max(1, int(np.searchsorted(rows, _CHUNK_ROWS, side="right")))
        yield first, end
        first = end


def _differing(
    session: Session, meta: PlayerFacts, player: Any, first: int, end: int
) -> list[tuple[int, str]]:
    """Return the runs of a range that come out differently, each with its difference."""
    recorded = session.runs[first:end]
    rows: npt.NDArray[Any] = session.steps if session.tape is None else session.tape.data
    buffer = Buffer(
        rows_max=int(recorded["rows"].sum()) + 1,
        runs_max=end - first,
        record_action=meta.record_action,
        sample_rate=meta.sample_rate,
        storage=ROWS if session.tape is None else TAPE,
    )
    seeds = np.ascontiguousarray(recorded["seed"])
    buffer.give(np.ascontiguousarray(recorded["id"]), seeds)
    player = own(player)
    play_all(buffer, player)
    played, made = buffer.runs, buffer.rows
    starts = start_boards(seeds)
    recorded_starts = starts if session.tape is None else session.tape.starts[first:end]
    found = []
    for i in range(end - first):
        differs = [name for name in _COMPARED if played[name][i] != recorded[name][i]]
        if differs:
            what = ", ".join(f"{name} {recorded[name][i]}, not {played[name][i]}" for name in differs)
            found.append((first + i, what))
            continue
        if recorded_starts[i] != starts[i]:
            found.append((first + i, f"start_board {recorded_starts[i]:#018x}, not {starts[i]:#018x}"))
            continue
        here = made[int(played["first_row"][i]) :][: int(played["rows"][i])]
        there = rows[int(recorded["first_row"][i]) :][: int(recorded["rows"][i])]
        unequal = np.flatnonzero(here != there)
        if len(unequal):
            row = int(recorded["first_row"][i]) + int(unequal[0])
            found.append((first + i, f"row {row} is the first to differ"))
    return found
