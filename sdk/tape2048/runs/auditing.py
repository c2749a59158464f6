"""Audit of recordings: whether their games are 2048.

A single broken rule shows that they are not. Chi-square tests compare the values of the spawned tiles, and
their cells among the empty cells in reading order, with the probabilities of the game. Only spawns with at
least two empty cells count: they end no game, so it does not matter whether a source keeps final boards.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.base.intervals import chi_square_p
from tape2048.base.text import counted
from tape2048.errors import BookkeepingError, ReplayError, TapeError
from tape2048.runs.conversion import open_source
from tape2048.runs.engine_text import identity_of
from tape2048.runs.registry import kind_of
from tape2048.runs.run import SourceRun, check_rules
from tape2048.runs.sessions import SAMPLED
from tape2048.session.session import sessions

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tape2048.runs.run import SkippedRun

    Progress = Callable[[int, int], object] | None
    #: A game, the rule that it breaks, its counts, and its seed or boards with its player and outcome.
    Examined = tuple[SourceRun, str | None, NDArray[np.int64], tuple[int, str] | None]

#: Significance level: at most this share of the audits of real 2048 fails.
LEVEL = 0.001
#: Fewer spawns prove nothing. With this number, nine of ten audits detect a share of 4s of 0.12.
SPAWNS_MIN = 10_000
#: Expected count of each class that a chi-square test needs.
EXPECTED_MIN = 5

_RULES, _SCORES, _STARTS, _ROWS = "moves, merges, spawns", "scores", "starts", "sampled games"
# The last row of the counts: games, moves, games with a score, with a known end, without a move there, and
# from given boards.
_FACTS = 17


class AuditCheck(NamedTuple):
    """A check: its sample, whether it passed (None: not checked), its p-value, and the p-value after Holm."""

    name: str
    sample: int
    ok: bool | None
    text: str
    p: float | None = None
    p_holm: float | None = None


class Audit(NamedTuple):
    """The result of :func:`audit`. ``is_2048`` is None if there are too few spawns."""

    is_2048: bool | None
    verdict: str
    games: int
    moves: int
    checks: list[AuditCheck]
    skipped: list[SkippedRun]


def audit(
    path: str | os.PathLike[str],
    *,
    max_moves: int | None = None,
    workers: int | None = None,
    progress: Progress = None,
) -> Audit:
    """Tell whether the games of a source are 2048.

    A game that the source holds twice counts once, and a warning is logged. Of games with the same seed, only
    the first game's spawns count. Damaged runs, and damaged sessions of a directory, are skipped.

    Args:
        path: a source for :func:`tape2048.runs.open_source`, whose errors are raised.
        max_moves: number of moves after which no further game is read; None: all games.
        workers: number of threads; None: the number of cores.
        progress: function that is called with the part that was read, and the whole.

    Example:
        >>> from tape2048.runs import audit
        >>> audit("runs").verdict
        'too few to tell: 19 spawns; expected at least 10,000'
    """
    counts, doubled = np.zeros((18, 18), np.int64), 0
    broken: dict[str, list[str]] = {}  # the games that break each rule
    seen: set[int | tuple[int, str]] = set()  # games, and their seeds
    skipped: list[SkippedRun] = []
    for found, rule, game, key in _games(Path(path), workers, progress):
        if key in seen and rule is None and found.error is None:
            doubled += 1
            continue
        if rule is not None:
            text = f"{found.name}: {found.error.message}" if found.error else found.name
            broken.setdefault(rule, []).append(text)
        elif found.error is not None:
            skipped.append(found.skipped)
        counts[_FACTS] += game[_FACTS]
        if key is not None:
            if key[0] not in seen:
                counts[:_FACTS] += game[:_FACTS]
            seen |= {key, key[0]}
        if max_moves is not None and counts[_FACTS, 1] >= max_moves:
            break
    if doubled:
        text = "left out: %s that %s holds twice"
        logging.getLogger("tape2048").warning(text, counted(doubled, "game"), path)
    checks = _rules(broken, counts[_FACTS]) + _tests(counts)
    spawns = int(counts[2:16, 16].sum())
    wrong = next((check.text for check in checks if check.ok is False), None)
    verdict = "this is 2048" if wrong is None else f"this is not 2048: {wrong}"
    if wrong is None and spawns < SPAWNS_MIN:
        verdict = f"too few to tell: {spawns:,} spawns; expected at least {SPAWNS_MIN:,}"
    is_2048 = False if wrong else spawns >= SPAWNS_MIN or None
    games, moves = counts[_FACTS, :2].tolist()
    return Audit(is_2048, verdict, games, moves, checks, skipped)


def _games(path: Path, workers: int | None, progress: Progress) -> Iterator[Examined]:
    is_root = kind_of(path) == "sessions"
    paths = sessions(path) if is_root else [path]
    for number, one in enumerate(paths):
        try:
            source = open_source(one, lossy=True, final_boards=False)
        except TapeError as error:
            if not is_root and SAMPLED not in error.message:
                raise
            yield _examine(SourceRun(str(one), None, error=error.detach()))
            continue
        done = 0
        for games in source.every(lambda runs: [*map(_examine, runs)], workers, lambda run: run):
            yield from games
            done += len(games)
            if progress is not None:
                progress(number * source.count + done, len(paths) * source.count)


def _examine(found: SourceRun) -> Examined:
    from tape2048.game.moves import count_spawns
    from tape2048.game.rules import count_empty, legal_mask
    from tape2048.game.spawning import start_fault

    run, error, rule, key, counts = found.run, found.error, None, None, np.zeros((18, 18), np.int64)
    if isinstance(error, ReplayError) and error.offset is None:  # not a damaged tape
        rule = _ROWS if SAMPLED in error.message else _RULES
    elif run is not None and len(run):
        states, moves, given = np.array(run.states), np.array(run.moves), not found.lost
        ended = given and not legal_mask(states[-1])
        counts[_FACTS, 1:5] = len(run), run.meta.max_score > 0, given, ended
        identity = identity_of(run.meta.engine)
        outcome = f"{run.meta.max_score} {run.meta.highest_tile}"
        key = hash(states.tobytes()), outcome
        if identity is not None:
            key = identity.seed, f"{identity.player_sha256} {outcome}"
        rule = _STARTS if count_empty(states[0]) > 14 else None
        if found.given_start:
            rule = _STARTS if start_fault(states[0]) else None
        try:
            check_rules(run)
        except (ReplayError, BookkeepingError) as caught:
            if isinstance(caught, ReplayError) or run.meta.max_score:  # a score of 0 was not recorded
                rule, error = _RULES if isinstance(caught, ReplayError) else _SCORES, caught.detach()
        if rule != _RULES:
            count_spawns(states, moves if found.ending_known else moves[:-1], given, counts)
            counts[16] *= not found.given_start  # the rules do not determine a given start
            counts[_FACTS, 5] = found.given_start
    counts[_FACTS, 0] = rule != _ROWS and (rule is not None or error is None)
    return found._replace(error=error), rule, counts, key


def _rules(broken: dict[str, list[str]], facts: NDArray[np.int64]) -> list[AuditCheck]:
    games, _, scores, ends, ended, given = facts[:6].tolist()
    starts = "start with fewer than two tiles" + ", or from an impossible board" * bool(given)
    checks = []
    for name, sample, what in (
        (_RULES, games, "break the rules"),
        (_SCORES, scores, "have another score or highest tile"),
        (_STARTS, games, starts),
    ):
        bad = broken.get(name, [])
        text = f"{len(bad):,} of {sample:,} games {what}" + (f" ({bad[0]})" if bad else "")
        checks.append(
            AuditCheck(name, sample, not bad if sample else None, text if sample else "not checked")
        )
    if given:
        text = f"{given:,} of {games:,} games start from a given board"
        checks.append(AuditCheck("given starts", given, None, text))
    text = f"{ended:,} of {ends:,} games end without a legal move, {ends - ended:,} break off"
    checks.append(AuditCheck("ends", ends, True if ends else None, text if ends else "not checked"))
    if bad := broken.get(_ROWS, []):
        checks.append(AuditCheck(_ROWS, len(bad), None, f"not checked: {bad[0]}"))
    return checks


def _tests(counts: NDArray[np.int64]) -> list[AuditCheck]:
    (spawns, fours), (starts, in_starts) = counts[2:16, 16:].sum(axis=0), counts[16, 16:]
    samples = {
        "share of 4s": np.array([spawns - fours, fours]),
        **{f"{k} empty cells": counts[k, :k] for k in range(2, 16)},
        "cells of starts": counts[16, :16],
        "share of 4s in starts": np.array([2 * starts - in_starts, in_starts]),
    }
    checks = []
    for name, observed in samples.items():
        sample, k = int(observed.sum()), len(observed)
        shares = np.array([0.9, 0.1]) if "4s" in name else np.full(k, 1 / k)
        expected = sample * shares
        if expected.min() < EXPECTED_MIN:
            checks.append(AuditCheck(name, sample, None, f"not checked: {sample:,} spawns are too few"))
            continue
        worst = int(np.argmax(np.abs(observed - expected) / expected))
        what = name if "4s" in name else f"share of spawns in cell {worst + 1} of {k} empty cells"
        text = f"the {what} is {observed[worst] / sample:.4f}; expected {shares[worst]:.4g}"
        statistic = float(((observed - expected) ** 2 / expected).sum())
        # The tiles of a start board are in different cells, which lowers the variance to 14/15.
        p = chi_square_p(statistic * 15 / 14 if k == 16 else statistic, k - 1)
        checks.append(AuditCheck(name, sample, ok=True, text=text, p=p))
    tests = sorted((check.p, i) for i, check in enumerate(checks) if check.p is not None)
    p_holm = 0.0
    for rank, (p, i) in enumerate(tests):
        p_holm = max(p_holm, min(1.0, (len(tests) - rank) * p))
        checks[i] = checks[i]._replace(ok=p_holm > LEVEL, p_holm=p_holm)
    return checks
