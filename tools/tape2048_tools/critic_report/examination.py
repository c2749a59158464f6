"""The inputs of an examination: games that the critic has not seen, the player's value, the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape2048.critic.facts import players_of, strangers
from tape2048.errors import ConfigError, CorpusError, EmptyCorpusError, StorageError
from tape2048.io.training_directory import METRICS
from tape2048.rows.splits import assign
from tape2048_tools.options.recorder import parse_player

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.baselines import Baseline
    from tape2048.critic.facts import CriticFacts
    from tape2048.critic.oracle import Oracle

#: The name of the part with all games.
ALL = "all"

#: Other names of the parts.
_ALIASES = {"validation": "val"}

#: Most points of a learning curve.
POINTS_MAX = 500

#: Rows of a game if the critic does not name the number of its training.
_PER_RUN = 512


class Parts(NamedTuple):
    """The games to examine, and those that the critic learned from.

    Attributes:
        name: name of the part.
        chosen: its games.
        train: the games of these sessions that the critic learned from; None if there are none.
        notes: remarks on the choice for readers.
    """

    name: str
    chosen: Corpus
    train: Corpus | None
    notes: list[str]


def choose_parts(corpus: Corpus, info: CriticFacts, name: str | None) -> Parts:
    """Choose the part of a corpus on which to examine a critic.

    A game's part follows from its identity, so that the critic's games are recognised in any session.

    Args:
        corpus: all games that meet the critic's condition.
        info: the critic's facts.
        name: name of the part; None: ``test`` if the critic's split has it, else ``val``.

    Raises:
        CorpusError: the critic's split has no such part.
        EmptyCorpusError: no game belongs to the part.
    """
    shares = info.split.fractions
    wanted = _ALIASES.get(name, name) if name is not None else ("test" if "test" in shares else "val")
    if wanted != ALL and wanted not in shares:
        known = ", ".join([*shares, ALL])
        raise CorpusError(
            f"found the part {name or wanted!r}, expected one of the critic's split: {known}",
            hint="--split all examines every game",
        )
    notes = [
        f"The critic judges another player: these are games of {player}."
        for player in strangers(info, players_of(corpus))
    ]
    if corpus.identity == info.corpus_hash:
        notes.append("These are the sessions that the critic was trained on, split as in its training.")
    elif info.corpus_hash:
        notes.append("Not the sessions of the training; a game's part follows from its seed and player.")
    if wanted in {ALL, "train"}:
        notes.append("The critic may have learned from some of these games: the figures may flatter it.")
    train = _part(corpus, info, "train")
    if train is None:
        notes.append("The critic learned from none of these games: baselines are not calibrated.")
    if wanted == ALL:
        return Parts(ALL, corpus, train, notes)
    chosen = _part(corpus, info, wanted)
    if chosen is None:
        raise EmptyCorpusError(
            f"none of {len(corpus.runs):,} runs belongs to the part {wanted} ({shares[wanted]:.0%} of all)",
            hint="more games, or another part (--split)",
        )
    return Parts(wanted, chosen, train, notes)


def _part(corpus: Corpus, info: CriticFacts, name: str) -> Corpus | None:
    """Return the games of one part, or None; unlike for ``Corpus.split``, other parts may be empty."""
    names = list(info.split.fractions)
    if name not in names:
        return None
    shares = list(info.split.fractions.values())
    mine = assign(corpus.runs, corpus.sessions, shares, info.split.salt) == names.index(name)
    return corpus.where(mine) if corpus.row_counts[mine].sum() else None


def rows_per_run(info: CriticFacts, runs: int, asked: int | None, rows_max: int) -> int | None:
    """Return the maximum of rows of each game to examine; None: all.

    Args:
        info: the critic's facts.
        runs: number of games.
        asked: the wanted maximum; 0: all; None: as in the critic's training.
        rows_max: maximum for all games together; 0: no bound.
    """
    trained: Any = info.training.get("per_run", _PER_RUN) if info.training else _PER_RUN
    per_run = (trained if isinstance(trained, int) else 0) if asked is None else asked
    if rows_max:
        bound = max(1, rows_max // runs)
        per_run = min(per_run or bound, bound)
    return per_run or None


def rollouts_of(corpus: Corpus, rollouts: int, seed: int) -> Oracle:
    """Return the oracle that plays games of a corpus on with the player that recorded them, on all cores.

    Args:
        corpus: recorded games.
        rollouts: games from each position.
        seed: of the rollouts.

    Raises:
        CorpusError: the games are of several players.
        ReplayError: their player is not known, not built in, or another one here.
    """
    from tape2048.base.resources import available_cores
    from tape2048.critic.oracle import Oracle
    from tape2048_recorder.evaluation.rollouts import play_rollouts
    from tape2048_recorder.replay.playing import recorded_player

    sessions = [corpus.sessions[number] for number in sorted(set(corpus.runs["session"].tolist()))]
    players = players_of(corpus)
    if len(players) > 1:
        raise CorpusError(
            f"found games of {len(players)} players ({'; '.join(map(str, players))}), expected one: "
            "the oracle plays on with it",
            path=corpus.sessions[0].path.parent,
            hint="examine the sessions of one player: ROOT may be a single session",
        )
    meta, player = recorded_player(sessions[0].path, sessions[0].meta)

    def play(
        boards: NDArray[np.uint64], *, first: int, progress: Callable[[int, int], object] | None
    ) -> NDArray[np.uint16]:
        return play_rollouts(
            player, boards, rollouts=rollouts, seed=seed, threads=available_cores(), first=first,
            progress=progress,
        )  # fmt: skip

    return Oracle(play, player_sha256=meta.player_sha256, rollouts=rollouts, seed=seed)


def expected_score(player: str) -> Baseline:
    """Return the baseline of the final score that an n-tuple player expects: score so far plus best value.

    Args:
        player: ``ntuple``, with or without parameters.

    Raises:
        ConfigError: another player, or an invalid parameter.
    """
    import numpy as np

    from tape2048.critic.baselines import score_so_far
    from tape2048_recorder.players.ntuple import move_values
    from tape2048_recorder.players.registry import check_player, make_player

    name, args = parse_player(player)
    if name != "ntuple":
        raise ConfigError(
            f"found the player {name!r}, expected ntuple: no other player estimates a score",
            hint="--player none leaves this baseline out",
        )
    made: Any = make_player(name, check_player(name, args))

    def value(boards: NDArray[np.uint64], steps: NDArray[np.uint32]) -> NDArray[np.float64]:
        best = np.nan_to_num(move_values(made, boards), nan=-np.inf).max(axis=1)
        # Without a legal move the game adds nothing.
        to_come = np.where(np.isinf(best), 0.0, best).astype(np.float64)
        return np.asarray(score_so_far(boards, steps) + to_come, np.float64)

    return value


class Curves(NamedTuple):
    """The learning curves of a training: losses by optimizer step.

    Attributes:
        train: (step, loss).
        val: (step, loss).
        best_step: step of the best validation, or None.
    """

    train: list[tuple[int, float]]
    val: list[tuple[int, float]]
    best_step: int | None


class _Line(msgspec.Struct):
    kind: str
    step: int
    loss: float | None = None
    best: bool = False


def read_curves(critic: Path) -> Curves | None:
    """Read the learning curves from the training directory, which is the critic's own or its parent.

    They are optional in a report: unreadable files and lines are skipped.

    Returns:
        None if there are no points.
    """
    from tape2048.io.reading import read_path

    paths = [directory / METRICS for directory in (critic, critic.absolute().parent)]
    try:
        lines = next(read_path(path).tobytes().splitlines() for path in paths if path.is_file())
    except (StopIteration, StorageError):
        return None
    points: dict[str, dict[int, float]] = {"train": {}, "val": {}}
    best: int | None = None
    decoder: Any = msgspec.json.Decoder(_Line)
    for raw in lines:
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if line.kind in points and line.loss is not None:
            points[line.kind][line.step] = line.loss
            best = line.step if line.kind == "val" and line.best else best
    if not any(points.values()):
        return None
    train, val = (_thinned(sorted(points[kind].items())) for kind in ("train", "val"))
    return Curves(train, val, best)


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Reduce the points to at most :data:`POINTS_MAX`, each the mean of its stretch."""
    stretch = -(-len(points) // POINTS_MAX) or 1
    parts = [points[first : first + stretch] for first in range(0, len(points), stretch)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]
