"""The documents of the pages: what the server answers, and what a report holds."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.errors import MissingPathError, TapeError
from tape2048.session.run_table import REACH_TILES
from tape2048.training import METRICS, read_metrics
from tape2048_recorder.status.report import instances, judge, read_snapshot
from tape2048_tools.sessions.summary import reach, scores
from tape2048_tools.viewer.collection import (
    PAGE_ROWS,
    SORTS,
    Collection,
    Entry,
    Games,
    Selection,
    choose,
    id_of,
    page_of_games,
)
from tape2048_tools.viewer.games import (
    MOVES,
    MOVES_MAX,
    Game,
    Judges,
    board_document,
    choices,
    opinions,
    pack,
    parse_board,
    play_on,
    player_documents,
    player_of,
    read_game,
    sample_of,
)
from tape2048_tools.viewer.overview import overview, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_recorder.replay.judging import Judged

#: Cached answers: of selections (each takes 10 MB for ten million games), and packed games.
_TABLES_MAX, _REPLAYS_MAX = 12, 64


class Data:
    """The documents of a collection."""

    def __init__(
        self, collection: Collection, judges: Judges, examine: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        self.collection = collection
        self.judges = judges
        self._examine = None if examine is None else functools.cache(examine)
        self._examining = threading.Lock()
        self._last: Games | None = None
        self._chosen = functools.lru_cache(_TABLES_MAX)(choose)
        self._overview = functools.lru_cache(_TABLES_MAX)(
            lambda games, selections: overview(games, [self._chosen(games, one) for one in selections])
        )
        self._sample = functools.lru_cache(_TABLES_MAX)(
            lambda games, selection: sample(games, self._chosen(games, selection), self.judges)
        )
        self._opinions = functools.lru_cache(_TABLES_MAX)(lambda wanted: opinions(wanted, self.judges))
        self._packed = functools.lru_cache(_REPLAYS_MAX)(self.packed)

    def _games(self) -> Games:
        """Return the games; clear the caches after a change, as old run tables take much memory."""
        games = self.collection.games()
        if games is not self._last:
            for cached in (self._chosen, self._overview, self._sample, self._opinions):
                cached.cache_clear()
            self._last = games
        return games

    def warm_up(self) -> None:
        """Judge the shortest game, which loads all that a replay needs; TapeError or OSError if it fails."""
        games = self.collection.games()
        if not len(games):
            _ = self.judges[0].name, self.judges.critic
            return
        entry, row = games.at(int(games["steps"].argmin()))
        self.packed(entry, int(row["id"]), 0)

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
        prefixes = ("", "b.") if given.get("two") else ("",)
        return self._overview(self._games(), tuple(Selection.of(given, prefix) for prefix in prefixes))

    def sample(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return statistics of a few games: when tiles appear, and the shares of the moves."""
        return self._sample(self._games(), Selection.of(given))

    def sessions(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of the sessions: sorted (``sort``, ``desc``), named like ``q``, page ``page``."""
        games = self.collection.games()
        query, sort = given.get("q", "").lower(), given.get("sort", "name")
        found = [one for one in games.sessions if query in one.name.lower() or query in one.player.lower()]
        if sort in {"rows", "games", "mean_score", "best_score"}:
            found.sort(key=lambda one: _totals(one)[sort] or 0, reverse=given.get("desc") == "1")
        else:
            name = sort if sort in {"player", "bytes"} else "name"
            found.sort(key=operator.attrgetter(name), reverse=given.get("desc") == "1")
        first = _number(given, "page") * PAGE_ROWS
        rows = [_session_row(one) for one in found[first : first + PAGE_ROWS]]
        return {
            "total": len(found), "rows": rows, "waiting": games.waiting, "broken": list(games.broken),
        }  # fmt: skip

    def games(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of the games of a selection: sorted (``sort``, ``desc``), page ``page``."""
        games, selection = self._games(), Selection.of(given)
        sort = given.get("sort", "max_score")
        if sort not in SORTS:
            raise ValueError(f"sort: found {sort!r:.40}, expected one of {', '.join(SORTS)}")
        chosen = self._chosen(games, selection)
        total = len(games) if chosen is None else int(np.count_nonzero(chosen))
        numbers = page_of_games(
            games, chosen, sort, _number(given, "page"), descending=given.get("desc", "1") == "1"
        )
        return {"total": total, "rows": _game_rows(games, numbers), "waiting": games.waiting}

    def opinions(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the critic's opinions of games halfway through (``of``: session/run, or a session, ...)."""
        keys = given.get("of", "").split(",")
        if len(keys) > PAGE_ROWS:
            raise ValueError(f"of: found {len(keys)} games, expected at most {PAGE_ROWS}")
        wanted = []
        for key in keys:
            session_id, _, run = key.partition("/")
            entry = self.collection.session(session_id)
            ids = [_number({"run": run}, "run")] if run else sample_of(entry.runs)
            wanted.append((entry, tuple(ids)))
        self._games()
        return self._opinions(tuple(wanted))

    def latest(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the critic's opinion of the games that a recorder (``id``) published last."""
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

    def replay(self, given: Mapping[str, str]) -> bytes:
        """Return a game for the page that replays it: ``session`` (id), ``run`` (id), ``judge`` (number)."""
        entry = self.collection.session(given.get("session", ""))
        return self._packed(entry, _number(given, "run"), _number(given, "judge"))

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
        row = entry.game(_number(given, "run"))
        found = _game_rows(games, np.flatnonzero(games["seed"] == row["seed"])[: PAGE_ROWS + 1])
        own = (entry.id, str(row["id"]))
        return {"rows": [one for one in found if (one["session"], one["run"]) != own]}

    def packed(self, entry: Entry, run: int, number: int, *, small: bool = False) -> bytes:
        """Return a game of a session, packed; see :func:`tape2048_tools.viewer.games.pack`."""
        game, judged, facts = self.judged(entry, run, number)
        return pack(facts, game, judged, self.judges.opinion(game.states), small=small)

    def judged(self, entry: Entry, run: int, number: int) -> tuple[Game, Judged | None, dict[str, Any]]:
        """Return a game of a session, its judgement, and the facts for its page."""
        row = entry.game(run)
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
        facts |= {"judge": self.judges.documents()[number], "thresholds": list(self.judges.critic.thresholds)}
        return (judge.game(game.states, game.moves) if game.is_whole else None), facts

    def judge_list(self, _: Mapping[str, str]) -> dict[str, Any]:
        """Return the judges, the critic, and the players that can be chosen."""
        return {
            "judges": self.judges.documents(),
            "critic": self.judges.critic_document(),
            "players": player_documents(),
        }

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

    def live(self) -> dict[str, Any]:
        """Return the present state of recorders and trainings, from their files: nothing is asked of them."""
        recorders: list[dict[str, Any]] = []
        for root in self.collection.roots:
            try:
                recorders += [_recorder(root, name) for name in instances(root)]
            except TapeError as error:
                recorders.append({"id": id_of(str(root)), "root": root.name, "error": str(error)})
        trainings = [
            {"id": training_id, "name": path.name, **_last_line(path / METRICS)}
            for training_id, path in self.collection.trainings().items()
        ]
        return {"recorders": recorders, "trainings": trainings}

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
            return self._examine()


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(f"{name}: found {text!r:.40}, expected a number")
    return int(text)


def _totals(entry: Entry) -> dict[str, Any]:
    return {"rows": int(entry.runs["rows"].sum(dtype=np.uint64)), **scores(entry.runs)}


def _session_row(entry: Entry) -> dict[str, Any]:
    runs = entry.runs
    facts = ("started_at", "ended_at", "host", "model_tag", "engine", "sample_rate", "recovered")
    return {
        "id": entry.id,
        "name": entry.name,
        "player": entry.player,
        "player_id": entry.player_id,
        **_totals(entry),
        "reach": {str(tile): share for tile, share in reach(runs, REACH_TILES).items()},
        "bytes": entry.bytes,
        **{name: entry.meta[name] for name in facts if entry.meta.get(name) is not None},
    }


def _game_rows(games: Games, numbers: NDArray[np.int64]) -> list[dict[str, Any]]:
    return [entry.document(row) for entry, row in map(games.at, numbers.tolist())]


#: Points of a curve.
POINTS_MAX = 400

#: What can count the progress of a training: the first of these in a line is the axis of its curves.
AXES = ("step", "moves", "rows")

#: Bytes at the end of a file of metrics that hold its last line.
_TAIL_BYTES = 65_536


def recorder_of(entry: Entry) -> str:
    """Return the id of the recorder that wrote a session, as in :meth:`Data.live`."""
    return id_of(f"{entry.path.parent}\0{entry.meta.get('instance')}")


def _recorder(root: Path, instance: str) -> dict[str, Any]:
    named = {"id": id_of(f"{root}\0{instance}"), "root": root.name, "instance": instance}
    try:
        snapshot = read_snapshot(root, instance)
    except TapeError as error:
        return {**named, "error": str(error)}
    verdict, status = judge(snapshot), snapshot.status
    return {
        **named,
        "state": verdict.state,
        "running": verdict.running,
        "age_s": verdict.age_s,
        "text": verdict.text,
        "player": snapshot.config.get("player"),
        "rotate_steps": snapshot.config.get("rotate_steps"),
        "host": snapshot.host,
        "started_at": snapshot.started_at,
        "status": msgspec.to_builtins(status, str_keys=True),
    }


def _last_line(path: Path) -> dict[str, Any]:
    try:
        written_at, lines = path.stat().st_mtime, read_metrics(path, _TAIL_BYTES)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    last = lines[-1] if lines else {}
    return {
        "written_at": written_at,
        "last": {name: value for name, value in last.items() if isinstance(value, int | float | str)},
    }


def training_document(path: Path) -> dict[str, Any]:
    """Return the curves of a training directory: each number of its metrics by step, thinned."""
    curves: dict[str, list[tuple[float, float]]] = {}
    lines = []
    with contextlib.suppress(OSError):
        lines = read_metrics(path / METRICS)
    for line in lines:
        at = next((line[name] for name in AXES if _is_number(line.get(name))), None)
        if at is None:
            continue
        kind = line.get("kind")
        for name, value in _numbers(line, f"{kind} " if isinstance(kind, str) else ""):
            if name not in AXES:
                curves.setdefault(name, []).append((float(at), value))
    thinned = {
        name: points[:: max(1, math.ceil(len(points) / POINTS_MAX))] for name, points in curves.items()
    }
    told = {name: points for name, points in thinned.items() if len({value for _, value in points}) > 1}
    return {"name": path.name, "curves": told}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(line: dict[str, Any], prefix: str) -> list[tuple[str, float]]:
    """Return the numbers of a line by name; those of a mapping as ``name key``."""
    found = []
    for name, value in line.items():
        if _is_number(value):
            found.append((prefix + name, float(value)))
        elif isinstance(value, dict):
            found += [(f"{prefix}{name} {key}", float(one)) for key, one in value.items() if _is_number(one)]
    return found
