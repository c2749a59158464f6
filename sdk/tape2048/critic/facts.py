"""Facts of a critic: what it predicts, whose games it learned from, and which of them it never saw."""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ColumnError, ConfigError, ModelError
from tape2048.session.session import open_embeddings

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.config import LearningConfig


#: The files of the critics that ship with the package, by name.
SHIPPED = {"default": "default.critic"}


class Critic(Protocol):
    """The interface of critics; :class:`tape2048.torch.critic.TorchCritic` has it."""

    @property
    def thresholds(self) -> tuple[int, ...]:
        """The T tiles."""

    @property
    def needs_embeddings(self) -> bool:
        """Whether it takes embeddings and no boards."""

    def __call__(self, boards: NDArray[np.uint64], /) -> NDArray[np.float32]:
        """Return probabilities ``f32[n, T]`` of boards ``u64[n]``."""

    def from_embeddings(self, x: NDArray[np.uint16], /) -> NDArray[np.float32]:
        """Return probabilities ``f32[n, T]`` of embeddings ``u16[n, D]``."""


class SplitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The split by runs: ``corpus.split(salt=salt, **fractions)`` gives the same parts again."""

    fractions: dict[str, float]
    salt: str = ""


class PlayedBy(msgspec.Struct, frozen=True):
    """A player whose games are in a corpus."""

    name: str  # with its parameters, as its sessions say; empty where they do not
    sha256: str  # of the player; empty in sessions without it, which are taken for one player's by name
    games: int  # number of its games

    def __str__(self) -> str:
        named = self.name or "a player without a name"
        known = f"SHA-256 {self.sha256[:16]}..." if self.sha256 else "no SHA-256"
        return f"{named} ({known}; {counted(self.games, 'game')})"


class CriticFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that all kinds of critics state."""

    thresholds: list[int]  # tiles, in the order of the probabilities
    corpus_hash: str = ""  # `Corpus.identity` of all rows before the split
    where: str = ""  # the condition that selected the runs; empty for none
    split: SplitInfo  # the split of the runs
    players: list[PlayedBy] = []  # whose games it learned from: it judges these players
    seed: int = 0  # of the training
    step: int = 0  # number of steps of the training before these parameters
    metrics: dict[str, Any] = {}  # on the validation part, at this step
    training: dict[str, Any] = {}  # the training's configuration


def players_of(corpus: Corpus) -> list[PlayedBy]:
    """Return the players of a corpus's games, the one with the most games first."""
    games = np.bincount(corpus.runs["session"], minlength=len(corpus.sessions))
    found: dict[str, PlayedBy] = {}
    for session, count in zip(corpus.sessions, games.tolist(), strict=True):
        if count:
            given, name = session.meta.get("player_sha256"), _named(session.meta)
            sha256 = given if isinstance(given, str) else ""
            before = found.setdefault(sha256 or name, PlayedBy(name, sha256, 0))
            found[sha256 or name] = PlayedBy(before.name, sha256, before.games + count)
    return sorted(found.values(), key=lambda player: -player.games)


def _named(meta: dict[str, Any]) -> str:
    """Return a session's player with its parameters; empty where the session does not name it."""
    name, config = meta.get("player"), meta.get("config")
    args = config.get("player_args") if isinstance(config, dict) else None
    given = ",".join(f"{key}={value}" for key, value in args.items()) if isinstance(args, dict) else ""
    return "" if not isinstance(name, str) else f"{name}:{given}" if given else name


def training_facts(
    config: LearningConfig, corpus_hash: str, players: list[PlayedBy], step: int, metrics: dict[str, Any]
) -> dict[str, Any]:
    """Return the facts of a critic that its training knows, but for ``training`` itself."""
    return {
        "thresholds": list(config.tiles), "corpus_hash": corpus_hash, "where": config.where,
        "split": SplitInfo(fractions=config.fractions, salt=config.split_salt), "players": players,
        "seed": config.seed, "step": step, "metrics": metrics,
    }  # fmt: skip


def open_parts(config: LearningConfig, load: Any) -> tuple[Corpus, list[PlayedBy], dict[str, Corpus]]:
    """Open the sessions of a training: all rows, whose games they are, and the parts of the split.

    Raises an EmptyCorpusError where there is no session, no run, or a part without runs; a ConfigError for
    an invalid share or games of several players; and the errors of ``Corpus.open``.
    """
    from tape2048.corpus import Corpus

    corpus = Corpus.open(
        config.data, config.where or None, load=load, cache=config.cache or None,
        cache_max_mb=config.cache_max_mb, progress=False,
    )  # fmt: skip
    players = players_of(corpus)
    if len(players) > 1 and not config.mixed_players:
        raise ConfigError(
            f"found games of {len(players)} players: {'; '.join(map(str, players))}",
            hint="a critic judges one player: name its sessions (--data, --where), or learn from all "
            "together with --mixed-players",
        )
    try:
        return corpus, players, corpus.split(salt=config.split_salt, **config.fractions)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def doubts(players: Sequence[PlayedBy]) -> list[str]:
    """Return remarks on players whose sessions do not say exactly what played them."""
    return [
        f"games of {player}: their sessions have no SHA-256 of what played them; taken for one player's"
        for player in players
        if not player.sha256
    ]


def strangers(facts: CriticFacts, players: Sequence[PlayedBy]) -> list[PlayedBy]:
    """Return the players that a critic does not judge; none for a critic that does not say whom it judges."""
    judged = {player.sha256 for player in facts.players}
    return [player for player in players if judged and player.sha256 not in judged]


def critic_path(path: str | os.PathLike[str]) -> Path:
    """Return the file of the critic that ships under this name, or the path; raise ModelError."""
    file = Path(path)
    if str(path) in SHIPPED:
        file = Path(str(importlib.resources.files(__package__))) / "ntuple/weights" / SHIPPED[str(path)]
    if not file.is_file():
        is_neural = (file / "critic.json").exists()
        hint = f"a path, or one that ships: {', '.join(SHIPPED)}"
        raise ModelError(
            "a neural critic" if is_neural else "no such file", path=file,
            hint="from tape2048.torch import TorchCritic" if is_neural else hint,
        )  # fmt: skip
    return file


def check_embeddings(corpus: Corpus, tower_sha256: str) -> None:
    """Raise ColumnError unless all sessions of a corpus have embeddings of this tower."""
    for number in np.unique(corpus.runs["session"]).tolist():
        session = corpus.sessions[number]
        found = open_embeddings(session)
        if found.model_sha != tower_sha256:
            raise ColumnError(
                f"found embeddings of the tower {found.model_sha[:16]}..., and the critic learned from those "
                f"of {tower_sha256[:16]}...",
                path=session.path,
                hint="name the critic's tower (--tower), or make embeddings with it",
            )
