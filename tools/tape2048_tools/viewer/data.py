"""The documents of the pages, for the server's answers and for reports."""

from __future__ import annotations

import collections
import contextlib
import functools
import operator
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048._version import __version__
from tape2048.base.text import counted, unix_s
from tape2048.errors import MissingPathError, TapeError
from tape2048.game.board_text import parse_board, readings
from tape2048.session.former_names import name_hint
from tape2048.session.layout import name_key
from tape2048.session.run_table import REACH_TILES
from tape2048.session.tiles_shown import tiles_shown
from tape2048_recorder.players.options import check_player
from tape2048_recorder.replay.replay import recorded_player
from tape2048_recorder.status.status_report import instances, read_snapshot
from tape2048_tools.options.recorder_options import parse_player
from tape2048_tools.sessions.summary import reach, scores
from tape2048_tools.viewer.collection import (
    PAGE_ROWS,
    SORTS,
    Collection,
    Entry,
    GameTable,
    Selection,
    choose,
    find_run,
    id_of,
    page_of_games,
)
from tape2048_tools.viewer.game_data import (
    MOVES,
    MOVES_MAX,
    UNCALIBRATED,
    Judges,
    PackedReplay,
    assumed_player,
    board_document,
    card,
    choices,
    meaning,
    opinions,
    pack,
    play_on,
    player_documents,
    player_of,
    read_game,
    sample_of,
)
from tape2048_tools.viewer.live import (
    game_document,
    newest_game,
    recorder,
    recorder_id,
    training,
    training_document,
)
from tape2048_tools.viewer.overview import PLAYERS_MAX, mean_of, overview, sample
from tape2048_tools.viewer.rollouts import MORE_MAX, PlayingOn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from tape2048_recorder.replay.judging import Judge, Judged
    from tape2048_recorder.replay.recorded_games import RecordedGame

#: Most cached answers for selections (each takes 10 MB for ten million games), and most cached packed games.
_TABLES_MAX, _REPLAYS_MAX = 12, 64


class Data:
    def __init__(
        self, collection: Collection, judges: Judges, examine: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        self.collection = collection
        self.judges = judges
        self._examine = None if examine is None else functools.cache(examine)
        self._examining = threading.Lock()
        self._last: GameTable | None = None
        self._chosen = functools.lru_cache(_TABLES_MAX)(choose)
        self._once = functools.lru_cache(_TABLES_MAX)(
            lambda games, selection: games.once(self._chosen(games, selection)).games
        )
        self._overview = functools.lru_cache(_TABLES_MAX)(
            lambda games, selections: overview(games, [self._chosen(games, one) for one in selections])
        )
        self._sample = functools.lru_cache(_TABLES_MAX)(
            lambda games, selection: {
                **sample(games, self._once(games, selection), self.judges),
                "sums": self._sums(games, self._once(games, selection)),
            }
        )
        self._opinions = functools.lru_cache(_TABLES_MAX)(lambda wanted: opinions(wanted, self.judges))
        self._rollouts = functools.lru_cache(_REPLAYS_MAX)(
            lambda board, moves, *player: PlayingOn(board, self._player_of(*player), moves)
        )
        # By the judge, too: `annotate` can choose another judge at any time.
        self._replays = functools.lru_cache(_REPLAYS_MAX)(
            lambda entry, run, number, _judge: PackedReplay(*self._opened(entry, run, number), self.judges)
        )

    def _games(self) -> GameTable:
        """Return the games; clear the caches after a change, as old run tables take much memory."""
        games = self.collection.games()
        if games is not self._last:
            for cached in (self._chosen, self._once, self._overview, self._sample, self._opinions):
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
        self.judged(entry, int(row["run_id"]), 0)
        self.judges.opinion(np.array([0x11], np.uint64))

    def about(self, _: Mapping[str, str]) -> dict[str, Any]:
        return {
            "version": __version__,
            "roots": [root.name or str(root) for root in self.collection.roots],
            "page_rows": PAGE_ROWS,
        }

    def overview(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the overview of one selection, or of two (``b.where`` and so on, with ``two=1``)."""
        prefixes = ("", "b.") if given.get("two") else ("",)
        return self._overview(self._games(), tuple(Selection.of(given, prefix) for prefix in prefixes))

    def sample(self, given: Mapping[str, str]) -> dict[str, Any]:
        return self._sample(self._games(), Selection.of(given))

    def sessions(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the page ``page`` of the sessions, sorted (``sort``, ``desc``), with ``q`` in a name."""
        games = self.collection.games()
        query, sort = given.get("q", "").lower(), given.get("sort", "name")
        found = [
            one for one in games.sessions
            if query in one.name.lower() or query in one.player_name.lower()
            or query in one.player.lower()
        ]  # fmt: skip
        if sort in {"rows", "games", "mean_score", "best_score"}:
            found.sort(key=lambda one: _totals(one)[sort] or 0, reverse=given.get("desc") == "1")
        else:
            name = sort if sort in {"player", "bytes"} else "name"
            found.sort(key=operator.attrgetter(name), reverse=given.get("desc") == "1")
        first = _page(given, len(found)) * PAGE_ROWS
        rows = [_session_row(one, games.short) for one in found[first : first + PAGE_ROWS]]
        return {
            "total": len(found), "rows": rows, "waiting": games.waiting, "broken": list(games.broken),
            "tiles": tiles_shown(one["reach"] for one in rows)[-3:],
        }  # fmt: skip

    def games(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the page ``page`` of the games of a selection, sorted (``sort``, ``desc``)."""
        games, selection = self._games(), Selection.of(given)
        sort = given.get("sort", "score")
        if sort not in SORTS:
            raise ValueError(
                f"sort: found {sort!r:.40}, expected one of {', '.join(SORTS)}. {name_hint(sort)}"
            )
        chosen = self._once(games, selection)
        total = len(games) if chosen is None else int(np.count_nonzero(chosen))
        numbers = page_of_games(
            games, chosen, sort, _page(given, total), descending=given.get("desc", "1") == "1"
        )
        return {"total": total, "rows": _game_rows(games, numbers), "waiting": games.waiting}

    def cards(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the cards of games (``of``: session/run, ...) for a gallery, and the judges of the sums."""
        keys = [(self.collection.session(one), run) for one, run in _keys(given)]
        judged, weak, ungraded = self.judged_by({entry for entry, _ in keys})
        cards = [card(*one) | {"weak": one[0] in weak, "graded": one[0] not in ungraded} for one in keys]
        return {"cards": cards, "judged": judged}

    def judged_by(self, entries: Iterable[Entry]) -> tuple[list[str], set[Entry], set[Entry]]:
        """Return the judges and warnings, and the sessions of weaker and of uncalibrated judges."""
        judges, warnings, weaker, ungraded = dict[str, None](), dict[str, None](), set[Entry](), set[Entry]()
        for entry in sorted(entries, key=lambda one: name_key(one.name)):
            if (annotation := entry.sums[1]) is not None:
                judge, message = self.judges.of_annotation(annotation, entry.meta)
                judges[str(annotation["judge"]) if judge is None else judge.name] = None
                weak = None if judge is None else judge.weakness(entry.meta, entry.runs)
                warnings |= dict.fromkeys(filter(None, [message, weak]))
                if judge is None or weak:
                    weaker.add(entry)
                elif meaning(judge)["uncalibrated"]:
                    ungraded.add(entry)
                    warnings[UNCALIBRATED] = None
        return [f"Judged by {'; '.join(judges)}.", *warnings] if judges else [], weaker, ungraded

    def _sums(self, games: GameTable, chosen: NDArray[np.bool_] | None) -> dict[str, Any]:
        """Return mean luck and loss of the judged games of a selection, and their judges."""
        judged = ~np.isnan(games["loss"]) if chosen is None else chosen & ~np.isnan(games["loss"])
        owners = np.unique(games["session"][judged]).tolist()
        return {
            "games": int(judged.sum()),
            **{name: mean_of(games[name][judged]) for name in ("luck", "loss")},
            "judged": self.judged_by({games.sessions[owner] for owner in owners})[0],
        }

    def players(self, _: Mapping[str, str]) -> dict[str, Any]:
        games = self._games()
        counts, names = collections.Counter[str](), {one.label: one for one in games.sessions}
        left_out = games["session"][games.once(None).left_out]
        its = np.diff(games.starts) - np.bincount(left_out, minlength=len(games.sessions))
        for one, count in zip(games.sessions, its.tolist(), strict=True):
            counts[one.label] += count
        first = [
            {"label": label, "name": games.short[names[label].player_name], "full": names[label].full}
            for label, _ in counts.most_common(PLAYERS_MAX)
        ]
        return {"players": first, "total": len(counts)}

    def opinions(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the critic's opinions of games halfway through (``of``: session/run, or a session, ...)."""
        wanted = []
        for session_id, run in _keys(given):
            entry = self.collection.session(session_id)
            wanted.append((entry, tuple(sample_of(entry.runs) if run is None else [run])))
        self._games()
        return self._opinions(tuple(wanted))

    def latest(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the critic's opinion of the games that a recorder (``id``) published last."""
        games, entry = self.collection.games(), self._last_session(given.get("id", ""))
        if entry is None:
            return {"waiting": games.waiting}
        ids = sample_of(entry.runs, newest=True)
        tiles = entry.runs["highest_tile"][np.isin(entry.runs["run_id"], ids)]
        found = opinions([(entry, ids)], self.judges)
        reached = [int(np.count_nonzero(tiles >= tile)) for tile in found["thresholds"]]
        return {
            "waiting": games.waiting, "session": entry.id, "name": entry.name, "games": len(ids),
            "reached": reached, **found,
        }  # fmt: skip

    def replay(self, given: Mapping[str, str]) -> bytes:
        """Return a game to replay, judged from its end as far as time allows; with ``quick``, at once."""
        entry, number = self.collection.session(given.get("session", "")), _number(given, "judge")
        judge = self.judges.of_game(number, entry.meta, entry.sums[1])[0]
        kept = self._replays(entry, _number(given, "run"), number, judge.identity)
        return kept.packed(quick=bool(given.get("quick")))

    def chosen_game(self, given: Mapping[str, str]) -> tuple[Entry, int, int, int]:
        """Return a session, and the numbers of its game, of the judge and of the move."""
        entry = self.collection.session(given.get("session", ""))
        return entry, _number(given, "run"), _number(given, "judge"), _number(given, "move")

    def choices(self, given: Mapping[str, str]) -> dict[str, Any]:
        player = player_of(given.get("player", ""))
        entry = self.collection.session(given.get("session", ""))
        (game,) = read_game(entry.path, [_number(given, "run")], replayed=True)
        return {"moves": choices(game.states[:-1], player).tolist()}

    def twins(self, given: Mapping[str, str]) -> dict[str, Any]:
        games = self.collection.games()
        entry = self.collection.session(given.get("session", ""))
        row = entry.game(_number(given, "run"))
        first = int(games.starts[games.number(entry.id)])
        chosen = games["seed"] == row["seed"]
        chosen[games.copies.same_game(first + find_run(entry.runs, int(row["run_id"])))] = False
        numbers = np.flatnonzero(chosen & ~games.copies.left_out(chosen)[0])
        return {"rows": _game_rows(games, numbers[:PAGE_ROWS])}

    def judged(
        self, entry: Entry, run: int, number: int
    ) -> tuple[RecordedGame, Judged | None, dict[str, Any]]:
        """Return a game of a session, its judgement, and the facts for its page."""
        game, judge, facts = self._opened(entry, run, number)
        return game, judge.game(game.states, game.known_moves) if game.is_whole else None, facts

    def _opened(self, entry: Entry, run: int, number: int) -> tuple[RecordedGame, Judge, dict[str, Any]]:
        row = entry.game(run)
        judge, warning = self.judges.of_game(number, entry.meta, entry.sums[1])
        (game,) = read_game(entry.path, [run], replayed=True)
        return game, judge, {
            "session": entry.id,
            "name": entry.name,
            "player": entry.player_name,
            "full": entry.player,
            "run": run,
            "seed": str(row["seed"]),
            "score": int(row["score"]),
            "length": int(row["steps"]),
            "highest": int(row["highest_tile"]),
            "strange": self.judges.remark([entry.meta]),
            "warning": warning,
            "weak": judge.weakness(entry.meta, entry.runs) if game.is_whole else None,
            **self.judges.facts(number, judge),
        }  # fmt: skip

    def judge_list(self, _: Mapping[str, str]) -> dict[str, Any]:
        return {
            "judges": self.judges.documents(),
            "critic": self.judges.critic_document(),
            "players": player_documents(),
        }

    def board(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of a board (``board``, as text) by a judge (``judge``, its number)."""
        (name, board), *rest = readings(given.get("board", ""))
        document = board_document(board, self.judges[_number(given, "judge")], self.judges)
        others = [{"reading": other, "board": f"{one:016x}"} for other, one in rest if one != board]
        return document | {"reading": name, "others": others}

    def play_on(self, given: Mapping[str, str]) -> bytes:
        """Return a game that ``player``, or else the best moves of ``judge``, plays from ``board``."""
        number, text = _number(given, "judge"), given.get("player", "").strip()
        moves = _number(given, "moves") or MOVES
        if moves > MOVES_MAX:
            raise ValueError(f"moves: found {moves}, expected at most {MOVES_MAX}")
        judge = self.judges[number]
        player = player_of(text) if text else judge
        game = play_on(parse_board(given.get("board", "")), player, _number(given, "seed"), moves)
        facts = self.judges.facts(number, judge) | {"name": "played on from a board", "strange": None}
        facts["player"] = text or facts["judge"]["name"]
        if text:
            name, args = parse_player(text)
            facts["weak"] = judge.weakness({"player": name, "player_args": check_player(name, args)})
        return pack(facts, game, judge.game(game.states, game.moves), self.judges.opinion(game.states))

    def rollouts(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the outcomes of whole games from ``moves`` of ``board``, and start ``more`` games.

        ``player`` plays, or the player of ``session``, or the player that the points of ``judge`` assume.
        """
        more = _number(given, "more")
        if more > MORE_MAX:
            raise ValueError(f"more: found {more}, expected at most {MORE_MAX}")
        player = given.get("player", "").strip(), given.get("session", ""), _number(given, "judge")
        board = parse_board(given.get("board", ""))
        moves = tuple(move for move in range(4) if str(move) in given.get("moves", ""))
        found: dict[str, Any] = self._rollouts(board, moves, *player).document(more)
        return found

    def _player_of(self, text: str, session: str, judge: int) -> Any:
        if session:
            entry = self.collection.session(session)
            return recorded_player(entry.path, entry.meta)[1]
        return player_of(text) if text else assumed_player(self.judges[judge])

    def live(self, _: Mapping[str, str]) -> dict[str, Any]:
        recorders: list[dict[str, Any]] = []
        for root in self.collection.roots:
            try:
                recorders += [recorder(root, name) for name in instances(root)]
            except TapeError as error:
                recorders.append({"id": id_of(str(root)), "root": root.name, "error": str(error)})
        trainings = [
            {"id": training_id, "name": path.name, "parent": path.parent.name, **training(path)}
            for training_id, path in self.collection.trainings().items()
        ]
        return {"recorders": recorders, "trainings": trainings}

    def newest(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the end of the game that a recorder (``id``) committed last; empty before its first game."""
        for root in self.collection.roots:
            names: list[str] = []
            with contextlib.suppress(TapeError):  # the page reports a root that cannot be listed
                names = instances(root)
            for name in names:
                if recorder_id(root, name) == given.get("id"):
                    return newest_game(root, name) or self._newest_published(given["id"])
        raise MissingPathError("no recorder has this id", hint="Reload the page: it was removed.")

    def _newest_published(self, wanted: str) -> dict[str, Any]:
        entry = self._last_session(wanted)
        if entry is None:
            return {}
        row = entry.runs[-1]
        (game,) = read_game(entry.path, [int(row["run_id"])])
        return game_document(row, game)

    def _last_session(self, wanted: str) -> Entry | None:
        """Return a recorder's last session since its start: earlier sessions can be of another player."""
        for entry in reversed(self.collection.games().sessions):
            root, instance = entry.path.parent, entry.meta.get("instance")
            if recorder_id(root, instance) == wanted and len(entry.runs):
                since = unix_s(read_snapshot(root, str(instance)).started_at)
                return entry if unix_s(entry.meta.get("started_at")) >= since else None
        return None

    def training(self, given: Mapping[str, str]) -> dict[str, Any]:
        trainings = self.collection.trainings()
        if given.get("id", "") not in trainings:
            raise MissingPathError("no training has this id", hint="Reload the page: it was removed.")
        return training_document(trainings[given["id"]])

    def examination(self, _: Mapping[str, str]) -> dict[str, Any]:
        if self._examine is None:
            raise ValueError("this viewer does not evaluate the critic")
        with self._examining:
            return self._examine()


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64):
        raise ValueError(f"{name}: found {text!r:.40}, expected a number below 2**64")
    return int(text)


def _page(given: Mapping[str, str], rows: int) -> int:
    page, pages = _number(given, "page"), max(1, -(-rows // PAGE_ROWS))
    if page >= pages:
        hint = f"Choose page=0 to page={pages - 1} in the address."
        raise MissingPathError(f"found page={page}, expected one of {counted(pages, 'page')}", hint=hint)
    return page


def _keys(given: Mapping[str, str]) -> list[tuple[str, int | None]]:
    """Read ``of``: ids of sessions, or of games as session/run."""
    keys = [key.partition("/") for key in given.get("of", "").split(",")]
    if len(keys) > PAGE_ROWS:
        raise ValueError(f"of: found {len(keys)} games, expected at most {PAGE_ROWS}")
    return [(session, _number({"run": run}, "run") if run else None) for session, _, run in keys]


def _totals(entry: Entry) -> dict[str, Any]:
    return {"rows": int(entry.runs["rows"].sum(dtype=np.uint64)), **scores(entry.runs)}


def _session_row(entry: Entry, short: Mapping[str, str]) -> dict[str, Any]:
    runs = entry.runs
    facts = ("started_at", "ended_at", "model_tag", "engine", "sample_rate", "recovered")
    return {
        "id": entry.id,
        "name": entry.name,
        "player": short[entry.player_name],
        "full": entry.full,
        **_totals(entry),
        "reach": {str(tile): share for tile, share in reach(runs, REACH_TILES).items()},
        "bytes": entry.bytes,
        **{name: entry.meta[name] for name in facts if entry.meta.get(name) is not None},
    }


def _game_rows(games: GameTable, numbers: NDArray[np.int64]) -> list[dict[str, Any]]:
    return [games.document(number) for number in numbers.tolist()]
