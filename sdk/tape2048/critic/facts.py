"""Facts of a critic: the tiles that it predicts, the players that it judges, and the split of its games."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tape2048.base.text import printable
from tape2048.errors import ColumnError, ConfigError
from tape2048.jit.mix import hashes
from tape2048.loader.row_view import tables_of
from tape2048.loader.splits import parts_of_hashes, split_identities
from tape2048.players import PlayedBy, file_names, is_called, name_players, only_player
from tape2048.short_names import short_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.critic_config import LearningConfig
    from tape2048.session.session import Session
    from tape2048.stores.remote_session import RemoteSession


_SAMPLE_ROWS = 1 << 20  # rows that show the range of targets and the mean weight


class Critic(Protocol):
    """The interface of critics; :class:`tape2048.torch.torch_critic.TorchCritic` has it."""

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
    """The split of the runs. ``corpus.split(salt=salt, **fractions)`` makes the same parts again."""

    fractions: dict[str, float]
    salt: str = ""


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


def training_facts(
    config: LearningConfig, corpus_hash: str, players: list[PlayedBy], step: int, metrics: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of :class:`CriticFacts` that a training knows, except ``training``."""
    conditions = [config.where, only_player(players[0]) if config.player_name else ""]
    where = " AND ".join(f"({one})" for one in conditions if one) if config.player_name else config.where
    return {
        "thresholds": list(config.tiles), "corpus_hash": corpus_hash, "where": where,
        "split": SplitInfo(fractions=config.fractions, salt=config.split_salt), "players": players,
        "seed": config.seed, "step": step, "metrics": metrics,
    }  # fmt: skip


def public_settings(config: LearningConfig) -> dict[str, Any]:
    """Return a training's settings for a critic's file, without directories of this machine."""
    return {
        name: file_names(value) if isinstance(value, str) and name != "where" else value
        for name, value in msgspec.structs.asdict(config).items()
        if name not in {"cache", "out"}
    }


def open_parts(config: LearningConfig, load: Any) -> tuple[Corpus, list[PlayedBy], dict[str, Corpus]]:
    """Open a training's rows, players and parts; EmptyCorpusError without runs, or ConfigError."""
    from tape2048.corpus import Corpus

    corpus = Corpus.open(
        config.data, config.where or None, load=load, cache=config.cache or None,
        cache_max_mb=config.cache_max_mb, columns=config.columns or None, progress=False,
    )  # fmt: skip
    players = tables_of(corpus).runs.players()
    if config.player_name:
        name = config.player_name
        chosen = [one for one in players if name in {one.label, one.player_name}]
        chosen = chosen or [one for one in players if is_called(name, one.label, one.player_name)]
        if len(chosen) != 1:
            raise ConfigError(
                f"player_name is {config.player_name!r}; found games of {name_players(players)}",
                hint="Pass the name of a player in this list.",
            )
        corpus, players = corpus.where(only_player(chosen[0])), chosen
    elif len(players) > 1 and not config.mixed_players:
        raise ConfigError(
            f"found games of {name_players(players)}. A critic judges one player",
            hint=f'Choose one with --player-name "{printable(players[0].player_name)}", or learn from all of '
            "them with --mixed-players.",
        )
    try:
        return corpus, players, corpus.split(salt=config.split_salt, **config.fractions)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_columns(part: Corpus, config: LearningConfig) -> tuple[float, str | None]:
    """Return the mean weight of a sample, and the SHA-256 of the columns' facts; 1 and None without."""
    names = [name for name in (config.targets, config.weight) if name]
    if not names:
        return 1.0, None
    how: Any = {"fields": ("labels", "weight"), "rank": 0, "world_size": 1, **config.column_options}
    try:
        sample = next(iter(part.batches(_SAMPLE_ROWS, **how)))
    except ValueError as error:
        raise ConfigError(str(error), path=config.data) from error
    sessions = [part.sessions[number] for number in np.unique(part.runs["session"])]
    facts = [session.columns[name].document for session in sessions for name in names]
    digest = hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()
    return float(sample.weight.mean()) or 1.0, digest


def doubts(players: Sequence[PlayedBy]) -> list[str]:
    """Return a remark on each player that sessions name without a SHA-256."""
    return [
        f"games of {player}: their sessions lack the player's SHA-256; assumed to be of one player"
        for player in players
        if not player.sha256
    ]


def strangers(facts: CriticFacts, players: Sequence[PlayedBy]) -> list[PlayedBy]:
    """Return the players that a critic does not judge; none if the critic names no players."""
    judged = {player.sha256 for player in facts.players}
    return [player for player in players if judged and player.sha256 not in judged]


def stranger_remarks(facts: CriticFacts, players: Sequence[PlayedBy]) -> list[str]:
    """Return a remark on each player that a critic does not judge."""
    others = strangers(facts, players)
    short = short_names(player.player_name for player in (*facts.players, *others))
    judged = " and ".join(short[player.player_name] for player in facts.players)
    return [
        f"The critic judges {judged}. These are games of {short[player.player_name]}." for player in others
    ]


def unseen_games(facts: CriticFacts, corpus: Corpus) -> NDArray[np.bool_]:
    """Find the games of a corpus that a critic has not learned from.

    A critic whose training played its own games, such as the shipped critic, has seen the seeds of these
    games only. A critic that learned from recorded games has not seen the games of other players, and not
    the test part of its split. If its split has no test part, the validation part counts as unseen.

    Args:
        facts: the facts of the critic, its ``info``.
        corpus: games, recorded or played by anybody.

    Returns:
        ``bool[R]``, for ``corpus.where``.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.critic import NTupleCritic, unseen_games
        >>> critic, corpus = NTupleCritic.load("default"), Corpus.open("selfplay")
        >>> len(corpus.where(unseen_games(critic.info, corpus)).runs) == len(corpus.runs)
        True
    """
    found, shares = split_identities(corpus.runs, corpus.sessions), facts.split.fractions
    judged = {one.sha256 for one in facts.players} or {""}
    strangers = [sha256 != "" and not judged & {sha256, ""} for sha256 in found.players]
    if facts.training.get("player"):
        unseen = ~np.isin(found.seeds, hashes(int(facts.training["games"]), facts.seed))
    else:
        parts = parts_of_hashes(found.hash(facts.split.salt), list(shares.values()))
        unseen = np.array(list(shares))[parts] == ("test" if "test" in shares else "val")
    return unseen | np.array(strangers, np.bool_)[found.player]


def check_embeddings(corpus: Corpus, tower_sha256: str) -> None:
    """Raise ColumnError unless all sessions of a corpus have embeddings of this tower."""
    for number in np.unique(corpus.runs["session"]).tolist():
        embeddings_of(corpus.sessions[number], tower_sha256)


def embeddings_of(session: Session | RemoteSession, tower_sha256: str) -> NDArray[np.uint16]:
    """Map a session's embeddings, ``u16[N, D]``; ColumnError unless they are of this tower."""
    values, info, path = session.column("embeddings")
    made_by = str(info.facts.get("model_sha"))
    if made_by != tower_sha256:
        raise ColumnError(
            f"found embeddings of the tower {made_by[:16]}...; expected embeddings of the critic's tower "
            f"{tower_sha256[:16]}...",
            path=path.parent,
            hint="Pass the critic's tower as --tower, or make embeddings with that tower: "
            "tape2048 embed --tower TOWER --force",
        )
    return values
