"""What `tape2048 critic eval` puts together: games that the critic did not learn from, the player's value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.errors import ConfigError, EmptyCorpusError, EvaluationError
from tape2048.store.splits import assign

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.baselines import Baseline
    from tape2048.torch.critic import CriticInfo

__all__ = ["ALL", "Parts", "choose_parts", "expected_score", "rows_per_run"]

#: The part that is all games.
ALL = "all"

#: Other names of the parts.
_ALIASES = {"validation": "val"}

#: Rows of a game, where the critic does not say how many it was trained on.
_PER_RUN = 512


class Parts(NamedTuple):
    """Which games are examined, and which ones the critic learned from.

    Attributes:
        name: of the part.
        chosen: its games.
        train: the games of these sessions that it learned from; None where they have none of them.
        notes: what a reader has to know about the choice.
    """

    name: str
    chosen: Corpus
    train: Corpus | None
    notes: list[str]


def choose_parts(corpus: Corpus, info: CriticInfo, name: str | None) -> Parts:
    """The part of a corpus that a critic is examined on.

    A game's part follows from its own identity: the critic's games are known wherever they are found again.

    Args:
        corpus: all games that meet the critic's condition.
        info: the critic's facts.
        name: of the part; None: ``test`` where the critic's split has one, else ``val``.

    Raises:
        EvaluationError: the critic's split has no such part.
        EmptyCorpusError: no game of these sessions belongs to it.
    """
    shares = info.split.fractions
    wanted = _ALIASES.get(name, name) if name is not None else ("test" if "test" in shares else "val")
    if wanted != ALL and wanted not in shares:
        known = ", ".join([*shares, ALL])
        raise EvaluationError(
            f"found the part {name or wanted!r}, expected one of the critic's split: {known}",
            hint="--split all examines every game",
        )
    notes = []
    if corpus.identity == info.corpus_hash:
        notes.append("These are the sessions that the critic was trained on, split as in its training.")
    elif info.corpus_hash:
        notes.append(
            "Other sessions than those of the training; a game's part follows from its seed and player."
        )
    if wanted in {ALL, "train"}:
        notes.append("Games that the critic learned from may be among these: the figures flatter it.")
    train = _part(corpus, info, "train")
    if train is None:
        notes.append("No game here is one that the critic learned from: baselines are not calibrated.")
    if wanted == ALL:
        return Parts(ALL, corpus, train, notes)
    chosen = _part(corpus, info, wanted)
    if chosen is None:
        raise EmptyCorpusError(
            f"none of {len(corpus.runs):,} runs belongs to the part {wanted} ({shares[wanted]:.0%} of all)",
            hint="more games, or another part (--split)",
        )
    return Parts(wanted, chosen, train, notes)


def _part(corpus: Corpus, info: CriticInfo, name: str) -> Corpus | None:
    """The games of one part, or None; the other parts may be empty, unlike for ``Corpus.split``."""
    names = list(info.split.fractions)
    if name not in names:
        return None
    shares = list(info.split.fractions.values())
    mine = assign(corpus.runs, corpus.sessions, shares, info.split.salt) == names.index(name)
    return corpus.where(mine) if corpus.row_counts[mine].sum() else None


def rows_per_run(info: CriticInfo, runs: int, asked: int | None, rows_max: int) -> int | None:
    """How many rows of each game are examined at most; None: all.

    Args:
        info: the critic's facts: as many as in its training, unless asked otherwise.
        runs: games.
        asked: 0: all; None: as in training.
        rows_max: of all games together; 0: no bound.
    """
    trained: Any = info.training.get("per_run", _PER_RUN) if info.training else _PER_RUN
    per_run = (trained if isinstance(trained, int) else 0) if asked is None else asked
    if rows_max:
        bound = max(1, rows_max // runs)
        per_run = min(per_run or bound, bound)
    return per_run or None


def expected_score(player: str) -> Baseline:
    """The score that an n-tuple player expects at the end: that of now, and its value of the best move.

    Args:
        player: ``ntuple``, parameters included.

    Raises:
        ConfigError: another player, or a parameter that cannot be.
    """
    import numpy as np

    from tape2048.critic.baselines import score_so_far
    from tape2048_recorder.config.loading import split_player
    from tape2048_recorder.players.ntuple import move_values
    from tape2048_recorder.players.registry import check_player, make_player

    try:
        name, args = split_player(player)
    except ValueError as error:
        raise ConfigError(f"found the player {player!r}, expected NAME:key=value,... ({error})") from error
    if name != "ntuple":
        raise ConfigError(
            f"found the player {name!r}, expected ntuple: no other one expects a score",
            hint="--player none leaves this baseline out",
        )
    made: Any = make_player(name, check_player(name, args or {}))

    def value(boards: NDArray[np.uint64], steps: NDArray[np.uint32]) -> NDArray[np.float64]:
        best = np.nan_to_num(move_values(made, boards), nan=-np.inf).max(axis=1)
        # Where no move is left, nothing is to come.
        to_come = np.where(np.isinf(best), 0.0, best).astype(np.float64)
        return np.asarray(score_so_far(boards, steps) + to_come, np.float64)

    return value
