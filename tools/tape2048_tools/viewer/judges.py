"""The judges and the critic of a viewer, made at first use; and the critic's opinions of games in lists."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.conversion.session_runs import boards_of
from tape2048.critic.facts import PlayedBy, strangers
from tape2048.errors import MissingPathError, ModelError, TapeError
from tape2048.session.session import Session
from tape2048_recorder.replay.judging import Judge
from tape2048_tools.options.critic import open_critic
from tape2048_tools.options.recorder import parse_player
from tape2048_tools.viewer.collection import Entry, brief_player, find_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_tools.options.critic import AnyCritic


#: The judge unless told.
DEFAULT_JUDGE = "ntuple"

#: Players that a remark names.
_NAMED = 3


class Judges:
    """Judges by number: the named players, then the critic for each of its tiles."""

    def __init__(self, players: Sequence[str], critic: Path) -> None:
        self._players = [parse_player(text) for text in players]
        self._critic_path = critic
        self._lock = threading.RLock()
        self._made: dict[int, Judge] = {}

    @functools.cached_property
    def critic(self) -> AnyCritic:
        """The critic; ModelError if it is missing or damaged."""
        with self._lock:
            return open_critic(self._critic_path, "cpu")

    def __len__(self) -> int:
        """Number of judges."""
        return len(self._players) + len(self.critic.thresholds)

    def __getitem__(self, number: int) -> Judge:
        """Return a judge; MissingPathError for an unknown number, ConfigError for another player."""
        if not 0 <= number < len(self):
            raise MissingPathError(f"no judge has the number {number}", hint=f"there are {len(self)}")
        with self._lock:
            if number not in self._made:
                if number < len(self._players):
                    name, args = self._players[number]
                    ahead = int(args.get("ahead", 1))
                    rest = {key: value for key, value in args.items() if key != "ahead"}
                    self._made[number] = Judge.of_player(name, rest, ahead=ahead)
                else:
                    tile = self.critic.thresholds[number - len(self._players)]
                    self._made[number] = Judge.of_critic(
                        self.critic, tile, thresholds=self.critic.thresholds, sha256=self.critic.sha256,
                        name=f"the critic {self._critic_path.name}",
                    )  # fmt: skip
            return self._made[number]

    def all(self) -> list[Judge]:
        """Return all judges."""
        return [self[number] for number in range(len(self))]

    def documents(self) -> list[dict[str, Any]]:
        """Return what pages show of each judge."""
        players: list[dict[str, Any]] = [
            {"name": _named(name, args), "unit": "points", "tile": None} for name, args in self._players
        ]
        critics: list[dict[str, Any]] = [
            {"name": f"critic: {tile}", "unit": "probability", "tile": tile}
            for tile in self.critic.thresholds
        ]
        return [{"number": number, **one} for number, one in enumerate(players + critics)]

    def critic_document(self) -> dict[str, Any]:
        """Return what pages show of the critic."""
        facts = self.critic.info
        return {
            "kind": self.critic.kind,
            "sha256": self.critic.sha256,
            "thresholds": list(self.critic.thresholds),
            "players": [player.name for player in facts.players],
            "step": facts.step,
            "where": facts.where,
            "metrics": facts.metrics,
            "training": facts.training,
        }

    def remark(self, sessions: Iterable[Mapping[str, Any]]) -> str | None:
        """Return a remark if the critic does not judge the players of all sessions' facts; else None."""
        played = {}
        for meta in sessions:
            sha256 = meta.get("player_sha256")
            player = PlayedBy(brief_player(meta), sha256 if isinstance(sha256, str) else "", 0)
            played[player.sha256, player.name] = player
        others = strangers(self.critic.info, list(played.values()))
        if not others:
            return None
        judged = [one.name for one in self.critic.info.players]
        named = (f"another {one.name}" if one.name in judged else one.name for one in others)
        names = list(dict.fromkeys(named))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        its = ", ".join(judged)
        return (
            f"The critic judges {its}, and not {', '.join(names[:_NAMED])}{more}: "
            f"its probabilities say how far {its} would come."
        )

    def opinion(self, boards: NDArray[np.uint64]) -> NDArray[np.float32] | None:
        """Return the critic's probabilities of boards, ``f32[n, T]``; None if it takes embeddings."""
        if self.critic.needs_embeddings:
            return None
        return np.asarray(self.critic(boards), np.float32)


def _named(name: str, args: Mapping[str, Any]) -> str:
    ahead = args.get("ahead", 1)
    given = ",".join(f"{key}={value}" for key, value in args.items() if key != "ahead")
    spawns = "a spawn" if ahead == 1 else f"{ahead} spawns"
    return f"{name}{':' if given else ''}{given}, {spawns} ahead"


# --- opinions of games in lists

#: Games of a session that stand for it.
SAMPLE_GAMES = 8


def opinions(wanted: Sequence[tuple[Entry, Sequence[int]]], judges: Judges) -> dict[str, Any]:
    """Return the mean probability of each tile over games halfway through.

    Returns:
        ``thresholds``; ``odds``, for each of ``wanted`` a probability for each tile, or None; ``remark`` on
        players that the critic does not judge; ``unread``: the error of the first unreadable session.
    """
    runs: dict[Entry, list[int]] = {}
    for entry, ids in wanted:
        runs.setdefault(entry, []).extend(ids)
    found: dict[Entry, dict[int, NDArray[np.float32]]] = {}
    unread = None
    for entry, every in runs.items():
        try:
            ids, boards = _middle_boards(entry, every)
        except (TapeError, OSError) as error:
            unread = unread or str(error)
            continue
        found[entry] = dict(zip(ids, require_opinion(judges, boards), strict=True))
    return {
        "thresholds": list(judges.critic.thresholds),
        "odds": [_mean(found.get(entry, {}), ids) for entry, ids in wanted],
        "remark": judges.remark([entry.meta for entry in runs]),
        "unread": unread,
    }


def _middle_boards(entry: Entry, ids: Sequence[int]) -> tuple[list[int], NDArray[np.uint64]]:
    """Return those of some runs that have rows, and the board in the middle of each, ``u64[n]``."""
    session = Session.open(entry.path)
    order = np.argsort(session.runs["id"], kind="stable")
    table = session.runs[order]
    kept, rows = [], []
    for run in ids:
        owned = session.numbers_of(int(order[find_run(table, run)]))
        numbers = range(owned.start, owned.stop) if isinstance(owned, slice) else owned
        if len(numbers):
            kept.append(run)
            rows.append(numbers[len(numbers) // 2])
    records = session.get_batch(np.array(rows, np.int64))
    return kept, boards_of(records, "a row", session.path)


def require_opinion(judges: Judges, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return the critic's probabilities ``f32[n, T]``; raise ModelError where it takes no boards."""
    found = judges.opinion(boards)
    if found is None:
        raise ModelError("this critic takes embeddings, and the pages have boards")
    return found


def _mean(found: Mapping[int, NDArray[np.float32]], ids: Sequence[int]) -> list[float] | None:
    known = [found[run] for run in ids if run in found]
    return np.mean(known, axis=0).tolist() if known else None


def sample_of(runs: NDArray[np.void], *, newest: bool = False) -> list[int]:
    """Return the ids of a few runs of a table: evenly spread, or the last ones."""
    last = len(runs) - 1
    first = max(0, len(runs) - SAMPLE_GAMES) if newest else 0
    places = np.linspace(first, last, min(SAMPLE_GAMES, len(runs))).round().astype(np.int64)
    found: list[int] = runs["id"][places].tolist()
    return found
