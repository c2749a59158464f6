"""The documents of the pages: what the server answers, and what a report holds."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048._version import __version__
from tape2048.errors import MissingPathError
from tape2048.session.labels import REACH_TILES
from tape2048_tools.sessions.summary import reach
from tape2048_tools.viewer.boards import (
    MOVES,
    MOVES_MAX,
    board_document,
    choices,
    parse_board,
    play_on,
    player_documents,
    player_of,
)
from tape2048_tools.viewer.collection import facts_of, find_run
from tape2048_tools.viewer.live import live_document, recorder_of, training_document
from tape2048_tools.viewer.opinions import opinions, sample_of
from tape2048_tools.viewer.overview import overview, sample
from tape2048_tools.viewer.replay import Game, pack, read_game
from tape2048_tools.viewer.selection import PAGE_ROWS, SORTS, Selection, choose, page_of_games

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from numpy.typing import NDArray

    from tape2048_recorder.replay.judging import Judged
    from tape2048_tools.viewer.collection import Collection, Entry, Games
    from tape2048_tools.viewer.judges import Judges

    T = TypeVar("T")

#: Answers kept, since pages ask for them again: of selections (with 10 MB for ten million games), and games.
_TABLES_MAX, _REPLAYS_MAX = 12, 64

_SESSION_SORTS = {
    "name": lambda entry: entry.name,
    "games": lambda entry: len(entry.runs),
    "rows": lambda entry: int(entry.runs["rows"].sum(dtype=np.uint64)),
    "mean_score": lambda entry: float(entry.runs["max_score"].mean()) if len(entry.runs) else -1.0,
    "best_score": lambda entry: int(entry.runs["max_score"].max(initial=0)),
    "player": lambda entry: entry.player,
    "bytes": lambda entry: entry.bytes,
}


class _Kept:
    """The answers that were asked for last, by what they depend on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return a kept answer, or make it, and forget the oldest one."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                found: T = self._kept[key]
                return found
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


class Data:
    """What the pages show of a collection.

    Args:
        collection: the sessions.
        judges: the judges and the critic.
        examine: examines the critic on the sessions and returns the document; None: no page of it.
    """

    def __init__(
        self,
        collection: Collection,
        judges: Judges,
        examine: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self.collection = collection
        self.judges = judges
        self._examine = examine
        self._tables: tuple[Games, _Kept] | None = None
        self._replays = _Kept(_REPLAYS_MAX)
        self._examining = threading.Lock()

    def _of(self, games: Games) -> _Kept:
        """Return the answers that depend on these games; those of earlier ones are forgotten."""
        if self._tables is None or self._tables[0] is not games:
            self._tables = games, _Kept(_TABLES_MAX)
        return self._tables[1]

    def warm_up(self) -> None:
        """Judge the shortest game, which loads all that a replay takes.

        Raises:
            TapeError: the judge, the critic or the game cannot be read.
            OSError: the game is gone.
        """
        games = self.collection.games()
        if not len(games):
            _ = self.judges[0].name, self.judges.critic
            return
        number = int(games["steps"].argmin())
        self.packed(games.sessions[games["session"][number]], int(games["id"][number]), 0)

    # ---------------------------------------------------------------------------------- run tables

    def about(self, _: Mapping[str, str]) -> dict[str, Any]:
        """Return what every page needs."""
        return {
            "version": __version__,
            "roots": [root.name or str(root) for root in self.collection.roots],
            "page_rows": PAGE_ROWS,
            "reach_tiles": list(REACH_TILES),
        }

    def overview(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the overview of one selection, or of two (``b.where`` and so on, with ``two=1``)."""
        games = self.collection.games()
        selections = [Selection.of(given)]
        if given.get("two"):
            selections.append(Selection.of(given, "b."))
        return self._of(games).get(
            ("overview", *selections),
            lambda: overview(games, [choose(games, one) for one in selections]),
        )

    def sample(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return what a few games tell: when tiles appear, and the shares of the moves."""
        games, selection = self.collection.games(), Selection.of(given)
        return self._of(games).get(
            ("sample", selection), lambda: sample(games, choose(games, selection), self.judges)
        )

    def sessions(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of the sessions: sorted (``sort``, ``desc``), named like ``q``, page ``page``."""
        games = self.collection.games()
        sort, query = given.get("sort", "name"), given.get("q", "").lower()
        found = [one for one in games.sessions if query in one.name.lower() or query in one.player.lower()]
        found.sort(key=_SESSION_SORTS.get(sort, _SESSION_SORTS["name"]), reverse=given.get("desc") == "1")
        first = _number(given, "page") * PAGE_ROWS
        rows = [_session_row(one) for one in found[first : first + PAGE_ROWS]]
        return {
            "total": len(found), "rows": rows, "waiting": games.waiting, "broken": list(games.broken),
        }  # fmt: skip

    def games(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of the games of a selection: sorted (``sort``, ``desc``), page ``page``."""
        games, selection = self.collection.games(), Selection.of(given)
        sort = given.get("sort", "max_score")
        if sort not in SORTS:
            raise ValueError(f"sort: found {sort!r:.40}, expected one of {', '.join(SORTS)}")
        chosen = self._of(games).get(("chosen", selection), lambda: choose(games, selection))
        total = len(games) if chosen is None else int(np.count_nonzero(chosen))
        numbers = page_of_games(
            games, chosen, sort, _number(given, "page"), descending=given.get("desc", "1") == "1"
        )
        return {"total": total, "rows": _game_rows(games, numbers), "waiting": games.waiting}

    def opinions(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return what the critic says of games halfway through, or of some games of sessions.

        Args:
            given: ``of``: ids of sessions, or session/run for a game, at most a page of them, with commas.
        """
        keys = given.get("of", "").split(",")
        if len(keys) > PAGE_ROWS:
            raise ValueError(f"of: found {len(keys)} games, expected at most {PAGE_ROWS}")
        wanted = []
        for key in keys:
            session_id, _, run = key.partition("/")
            entry = self.collection.session(session_id)
            wanted.append((entry, [_number({"run": run}, "run")] if run else sample_of(entry.runs)))
        made = ("opinions", *keys, *(entry.stamp for entry, _ in wanted))
        return self._of(self.collection.games()).get(made, lambda: opinions(wanted, self.judges))

    def latest(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return what the critic says of the games that a recorder (``id``) published last, and their end."""
        games = self.collection.games()
        for entry in reversed(games.sessions):
            if len(entry.runs) and recorder_of(entry) == given.get("id", ""):
                break
        else:
            return {"waiting": games.waiting}
        ids = sample_of(entry.runs, newest=True)
        tiles = entry.runs["highest_tile"][np.isin(entry.runs["id"], ids)]
        found = opinions([(entry, ids)], self.judges)
        reached = [int(np.count_nonzero(tiles >= tile)) for tile in found["thresholds"]]
        return {
            "waiting": games.waiting, "session": entry.id, "name": entry.name, "games": len(ids),
            "reached": reached, **found,
        }  # fmt: skip

    # --------------------------------------------------------------------------------------- games

    def replay(self, given: Mapping[str, str]) -> bytes:
        """Return a game for the page that replays it: ``session`` (id), ``run`` (id), ``judge`` (number)."""
        entry = self.collection.session(given.get("session", ""))
        run, number = _number(given, "run"), _number(given, "judge")
        key = ("replay", entry.id, entry.stamp, run, number)
        return self._replays.get(key, lambda: self.packed(entry, run, number))

    def choices(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the moves that a player (``player``) would make in a game (``session``, ``run``)."""
        player = player_of(given.get("player", ""))
        entry = self.collection.session(given.get("session", ""))
        (game,) = read_game(entry.path, [_number(given, "run")], replayed=True)
        return {"moves": choices(game.states[:-1], player).tolist()}

    def twins(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the other games with the seed of a game (``session``, ``run``): of other players."""
        games = self.collection.games()
        entry = self.collection.session(given.get("session", ""))
        row = entry.runs[find_run(entry.runs, _number(given, "run"))]
        found = _game_rows(games, np.flatnonzero(games["seed"] == row["seed"])[: PAGE_ROWS + 1])
        own = (entry.id, str(row["id"]))
        return {"rows": [one for one in found if (one["session"], one["run"]) != own]}

    def packed(self, entry: Entry, run: int, number: int, *, small: bool = False) -> bytes:
        """Return a game of a session, packed; see :func:`tape2048_tools.viewer.replay.pack`."""
        game, judged, facts = self.judged(entry, run, number)
        critic = self.judges.opinion(game.states)
        return pack(facts, game, judged, critic, small=small)

    def judged(self, entry: Entry, run: int, number: int) -> tuple[Game, Judged | None, dict[str, Any]]:
        """Return a game of a session, its judgement, and the facts for its page."""
        row = entry.runs[find_run(entry.runs, run)]
        (game,) = read_game(entry.path, [run], replayed=True)
        facts = {
            "session": entry.id,
            "name": entry.name,
            "player": entry.player,
            "run": run,
            "seed": str(row["seed"]),
            "score": int(row["max_score"]),
            "length": int(row["steps"]),
            "highest": int(row["highest_tile"]),
            "strange": self.judges.remark([entry.meta]),
        }
        return game, *self._judged(game, number, facts)

    def _judged(self, game: Game, number: int, facts: dict[str, Any]) -> tuple[Judged | None, dict[str, Any]]:
        judge = self.judges[number]
        facts |= {
            "judge": self.judges.documents()[number],
            "thresholds": list(self.judges.critic.thresholds),
        }
        return (judge.game(game.states, game.moves) if game.is_whole else None), facts

    def judge_list(self, _: Mapping[str, str]) -> dict[str, Any]:
        """Return the judges, the critic, and the players that can be chosen."""
        return {
            "judges": self.judges.documents(),
            "critic": self.judges.critic_document(),
            "players": player_documents(),
        }

    # --------------------------------------------------------------------------------------- board

    def board(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of a board (``board``, as text) by a judge (``judge``, its number)."""
        board = parse_board(given.get("board", ""))
        return board_document(board, self.judges[_number(given, "judge")], self.judges)

    def play_on(self, given: Mapping[str, str]) -> bytes:
        """Return the game that is played on from a board (``board``, ``seed``, ``moves``), packed.

        By ``player``, as ``record`` takes it; without one by the best of the values of ``judge``, who judges
        the game in any case.
        """
        number, text = _number(given, "judge"), given.get("player", "").strip()
        moves = _number(given, "moves") or MOVES
        if moves > MOVES_MAX:
            raise ValueError(f"moves: found {moves}, expected at most {MOVES_MAX}")
        player = player_of(text) if text else self.judges[number]
        game = play_on(parse_board(given.get("board", "")), player, _number(given, "seed"), moves)
        judged, facts = self._judged(game, number, {"name": "played on from a board", "strange": None})
        facts["player"] = text or facts["judge"]["name"]
        return pack(facts, game, judged, self.judges.opinion(game.states))

    # --------------------------------------------------------------------------- live, and the critic

    def live(self) -> dict[str, Any]:
        """Return the state of recorders and trainings."""
        return live_document(self.collection)

    def training(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the curves of a training (``id``)."""
        trainings = self.collection.trainings()
        if given.get("id", "") not in trainings:
            raise MissingPathError("no training has this id", hint="it was removed")
        return training_document(trainings[given["id"]])

    def examination(self, _: Mapping[str, str]) -> dict[str, Any]:
        """Return the examination of the critic on the sessions; computed once."""
        if self._examine is None:
            raise ValueError("the critic is not examined here")
        with self._examining:
            return self._examination

    @functools.cached_property
    def _examination(self) -> dict[str, Any]:
        assert self._examine is not None
        return self._examine()


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(f"{name}: found {text!r:.40}, expected a number")
    return int(text)


def _session_row(entry: Entry) -> dict[str, Any]:
    runs = entry.runs
    return {
        "id": entry.id,
        "name": entry.name,
        "player": entry.player,
        "player_id": entry.player_id,
        "games": len(runs),
        "rows": int(runs["rows"].sum(dtype=np.uint64)),
        "mean_score": float(runs["max_score"].mean()) if len(runs) else None,
        "best_score": int(runs["max_score"].max()) if len(runs) else None,
        "reach": {str(tile): share for tile, share in reach(runs, REACH_TILES).items()},
        "bytes": entry.bytes,
        **facts_of(entry),
    }


def _game_rows(games: Games, numbers: NDArray[np.int64]) -> list[dict[str, Any]]:
    owners = np.searchsorted(games.starts, numbers, "right") - 1
    found = []
    for number, owner in zip(numbers.tolist(), owners.tolist(), strict=True):
        entry = games.sessions[owner]
        row = entry.runs[number - int(games.starts[owner])]
        found.append(
            {
                "session": entry.id,
                "name": entry.name,
                "player": entry.player,
                "run": str(row["id"]),
                "score": int(row["max_score"]),
                "steps": int(row["steps"]),
                "tile": int(row["highest_tile"]),
            }
        )
    return found
