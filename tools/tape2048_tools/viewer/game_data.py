"""Games and boards for the pages, with the values of judges: recorded, read from text, or played on.

A page gets a game as one block of bytes (:func:`pack`): the length of a JSON header (``u32``), the header,
and arrays at multiples of 8 bytes after it. A game is its first board and a byte for each move, as on tape.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.text import json_bytes
from tape2048.critic.facts import strangers
from tape2048.critic.shipped import SHIPPED as CRITICS
from tape2048.errors import ConfigError, FormatError, MissingPathError, ModelError, TapeError
from tape2048.game.moves import UNKNOWN, recover
from tape2048.game.rules import WON, boards_to_exps, exps_after, exps_to_boards, legal_masks
from tape2048.game.scores import SPAWN, TWO_TILES, potentials
from tape2048.ntuple.network import SHIPPED as NETWORKS
from tape2048.players import PlayedBy, identity_of_player
from tape2048.runs.sessions import boards_of
from tape2048.session.session import Session
from tape2048.short_names import short_names
from tape2048_recorder.game.game_loop import STEPS_PLAYED, Buffer, play_into
from tape2048_recorder.players.options import REGISTRY, check_player, make_player, own
from tape2048_recorder.replay.judging import (
    GRADES,
    OWN_JUDGE,
    Judge,
    Judged,
    JudgedMoves,
    check_judge,
    own_judges,
    unknown_moves,
)
from tape2048_recorder.replay.recorded_games import RecordedGame, recorded_game
from tape2048_recorder.replay.replay import replayer
from tape2048_tools.options.critic_options import open_critic
from tape2048_tools.options.recorder_options import parse_player
from tape2048_tools.terminal.display import nearest
from tape2048_tools.viewer.collection import Entry, find_run, stopped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_tools.options.critic_options import AnyCritic

#: Points of the critic's curves in a report: as many as a wide screen shows.
_CURVE_POINTS = 1500

#: Points of the curve of the score in a gallery.
_SPARK_POINTS = 40

#: Unit of rounded probabilities in a report.
_PROBABILITY = 1 / 65_535

#: Types in the header, by NumPy's codes.
_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "i4": "i32", "f4": "f32", "f8": "f64"}


def read_game(path: Path, ids: Sequence[int], *, replayed: bool = False) -> Iterator[RecordedGame]:
    """Read games of a session; with ``replayed``, the session's player adds what is not recorded."""
    play = None
    session = Session.open(path, "mmap")
    if replayed and session.tape is None:  # a tape holds everything
        with contextlib.suppress(FormatError):  # without a player that can replay, show the recording
            play = replayer(session.path, session.meta)
    for run in ids:
        session = Session.open(path, "mmap")  # again, after slow steps: the file may be shorter
        order = np.argsort(session.runs["run_id"], kind="stable")
        yield recorded_game(session, int(order[find_run(session.runs[order], run)]), play)


def pack(
    facts: Mapping[str, Any],
    game: RecordedGame,
    judged: Judged | None,
    critic: NDArray[np.float32] | None,
    *,
    small: bool = False,
) -> bytes:
    """Return a game for the page; ``small`` rounds, and has values only where the move costs something.

    ``reach`` has the probabilities of the next tile after the best move, then after the made move. Values of
    moves that are not judged yet are NaN.
    """
    arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {}
    spawns = recover(game.states, game.moves) if game.is_whole else None
    if spawns is not None and not (spawns.moves == UNKNOWN).any():
        fours = (spawns.exponents - 1).astype(np.uint8)
        arrays["steps"] = (game.moves | spawns.cells << 2 | fours << 6).astype(np.uint8), {}
    else:
        arrays["boards"] = game.exps, {}
        arrays["moves"] = game.moves, {}
    if game.numbers is not None:
        arrays["numbers"] = game.numbers.astype(np.uint32), {}
    if judged is not None:
        facts = {**facts, "sums": judged.sums, "grades": list(GRADES[judged.unit].items())}
        unit = _PROBABILITY
        if judged.unit == "points":  # five digits of the largest value
            unit = 10.0 ** max(0, int(math.log10(max(np.nanmax(judged.state, initial=1), 1))) - 4)
        rounded = small and judged.unit == "points"
        loss = np.round(judged.loss) if rounded else judged.loss
        costs = loss > 0  # of other moves, pages show neither error nor probability
        arrays["loss"] = loss, {}
        arrays["grade"] = judged.grade, {}
        known = ~np.isnan(judged.values)
        best = np.where(known, judged.values, -np.inf).argmax(axis=1)
        if not np.isnan(judged.reach).all():  # calibrated
            arrays["spread"] = np.round(judged.spread) * costs if rounded else judged.spread, {}
            both = np.stack([judged.reach[np.arange(len(best)), move] for move in (best, game.moves & 3)])
            packed = _whole(np.nan_to_num(both) * costs, _PROBABILITY, np.uint16)
            arrays["reach"] = packed if small else (both, {})
        for name, values in (("state", judged.state), ("luck", judged.luck)):
            arrays[name] = _whole(np.nan_to_num(values), unit, np.int32) if small else (values, {})
        values = np.where(costs[:, None], judged.values, np.float32(np.nan))
        arrays["values"] = values if small else judged.values, {}
    if critic is not None:
        stride = -(-len(critic) // _CURVE_POINTS) if small else 1
        arrays["critic"] = _whole(critic[::stride].T, _PROBABILITY, np.uint16)
    described, parts, at = [], [], 0
    for name, (array, how) in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        data += b"\0" * (-len(data) % 8)
        kind = _TYPES[array.dtype.str[1:]]
        described.append({"name": name, "type": kind, "at": at, "count": array.size, **how})
        parts.append(data)
        at += len(data)
    more = {"first": game.exps[0].tolist(), "count": len(game.moves), "notes": game.notes}
    text = json_bytes({**facts, **more, "arrays": described})
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)


def _whole(values: NDArray[Any], unit: float, dtype: type[np.integer[Any]]) -> tuple[Any, dict[str, Any]]:
    """Return values in units, as differences between neighbours, which compress well."""
    units = nearest(np.atleast_2d(values).astype(np.float64) / unit).astype(np.int64)
    return np.diff(units, prepend=0, axis=1).astype(dtype), {"unit": unit, "rows": len(units)}


#: Moves that are judged between two looks at the clock, first and at most.
_FIRST_MOVES, _MOVES_JUDGED = 256, 4096

#: Shortest time for which a request judges a game. Later requests take as long as all before them.
_JUDGING_S = 0.3


class PackedReplay:
    """A packed game, judged from its last move on: each request continues, until the game is judged."""

    def __init__(self, game: RecordedGame, judge: Judge, facts: Mapping[str, Any], judges: Judges) -> None:
        self._lock, self._whole, self._spent_s = threading.Lock(), b"", 0.0
        self._game, self._judge, self._facts = game, judge, facts
        self._critic = judges.opinion(game.states)
        self._left = len(game.moves) if game.is_whole else 0  # moves that are not judged yet
        self._parts: list[JudgedMoves] = []

    def packed(self, *, quick: bool = False) -> bytes:
        """Return the game with the judgement so far, to which ``quick`` adds the first few moves only."""
        with self._lock:
            if self._whole:
                return self._whole
            game, judged = self._game, None
            if not (quick and self._parts):
                self._continue(0 if quick else max(_JUDGING_S, self._spent_s))
            if game.is_whole:
                rest = unknown_moves(self._left)
                found = JudgedMoves(*map(np.concatenate, zip(rest, *self._parts, strict=True)))
                judged = self._judge.game(game.states, game.known_moves, found)
            packed = pack({**self._facts, "pending": self._left}, game, judged, self._critic)
            if not self._left:
                self._whole, self._parts = packed, []
            return packed

    def _continue(self, seconds: float) -> None:
        began, moves = time.monotonic(), _FIRST_MOVES << len(self._parts)
        until, unwanted = began + seconds, stopped.get()
        while self._left and not unwanted():
            piece = slice(max(0, self._left - min(moves, _MOVES_JUDGED)), self._left)
            after = self._game.states[piece.start + 1 : piece.stop + 1]
            made = self._game.known_moves[piece]
            self._parts.insert(0, self._judge.moves(self._game.states[piece], made, after))
            self._left, moves = piece.start, 2 * moves
            if time.monotonic() >= until:
                break
        self._spent_s += time.monotonic() - began


#: Most moves to play on, and the default.
MOVES_MAX, MOVES = 20_000, 1000

#: Longest time to play on, in seconds. A longer game is shown up to there.
_PLAY_S = 5.0

#: Moves between two looks at the clock.
_MOVES_AT_A_TIME = 32

_PLAYER_CHARS_MAX = 200

_NO_MOVE = 255

#: The parameters that can be a file, and their values that links may use.
_FILES = {"weights": NETWORKS, "critic": CRITICS}

_P_FOUR = 0.1


#: The warning about an uncalibrated judge.
UNCALIBRATED = "Loss and luck by an uncalibrated judge are in the network's points. It grades no moves."


def meaning(judge: Judge) -> dict[str, Any]:
    """Return what a judge's points mean: whose games they assume, or that they are not calibrated."""
    known = judge.calibration
    assumed = None if known is None else PlayedBy(known.player, known.player_sha256, 0).player_name
    return {"uncalibrated": judge.unit == "points" and known is None, "assumes": assumed}


def board_document(board: int, judge: Judge, judges: Judges) -> dict[str, Any]:
    options = judge.board(board)
    packed = np.array([board], np.uint64)
    critic = judges.opinion(packed)
    best = max((option.value for option in options), default=None)
    return {
        "board": f"{board:016x}",
        "exps": boards_to_exps(packed)[0].tolist(),
        "best": best,
        "by": judge.name,
        **meaning(judge),
        "options": [
            {
                "move": option.move,
                "value": option.value,
                "reward": option.reward,
                "reach": None if np.isnan(option.reach) else option.reach,
                "spread": option.spread,
                "mean": option.mean,
                "exps": exps_after(packed[0], option.move).tolist(),
                "spawns": [
                    {"cell": one.cell, "tile": one.tile, "p": one.probability, "value": one.value}
                    for one in option.spawns
                ],
            }
            for option in options
        ],
        "critic": None if critic is None else critic[0].tolist(),
    }


def player_documents() -> list[dict[str, Any]]:
    return [
        {
            "name": kind.name,
            "about": kind.summary,
            "settings": ",".join(f"{key}={one.default}" for key, one in kind.parameters.items()),
        }
        for kind in REGISTRY.values()
    ]


def player_of(text: str) -> Any:
    name, args = parse_player(text[:_PLAYER_CHARS_MAX])
    if name not in REGISTRY and ":" in name:
        raise ConfigError(
            f"found the player {name!r}, expected a built-in player",
            hint=f"Write NAME or NAME:key=value,... with one of these names: {', '.join(REGISTRY)}.",
        )
    for key in _FILES.keys() & args.keys():
        if args[key] not in _FILES[key]:
            raise ConfigError(
                f"found {key} = {args[key]!r}, expected the name of a shipped file: {', '.join(_FILES[key])}",
                hint="To play on with a file, choose it as judge: tape2048 view --judge ntuple:weights=FILE",
            )
    return own(_made(name, tuple(sorted(check_player(name, args).items()))))


def assumed_player(judge: Judge) -> Any:
    """Return the player that a judge's points assume."""
    if judge.calibration is None:
        raise ConfigError(
            f"found the judge {judge.name}, expected a calibrated judge, whose player is known",
            hint="Choose a player.",
        )
    name, args = parse_player(judge.calibration.player)
    return _made(name, tuple(sorted(check_player(name, {**args, "weights": judge.weights}).items())))


@functools.lru_cache(maxsize=2)
def _made(name: str, args: tuple[tuple[str, Any], ...]) -> Any:
    """Return a player. The last players are cached, because their tables take a second to load."""
    return make_player(name, dict(args))


def play_on(board: int, player: Any, seed: int, moves_max: int = MOVES) -> RecordedGame:
    """Play on from a board to the end, or a limit of moves or time; a judge plays its best moves."""
    play = _judge_plays if isinstance(player, Judge) else _player_plays
    states, moves = play(board, player, seed, moves_max)
    notes: tuple[str, ...] = ()
    if int(legal_masks(states[-1:])[0]):
        why = "" if len(moves) >= moves_max else f", the most in the limit of {_PLAY_S:g} s"
        notes = (f"Played on for {len(moves):,} moves{why}. The game is not over.",)
    return RecordedGame(states, moves, None, notes)


def _judge_plays(
    board: int, judge: Judge, seed: int, moves_max: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    states, moves = [board], list[int]()
    judge.board(board)  # compiles, before the clock runs
    until = time.monotonic() + _PLAY_S
    while len(moves) < moves_max and time.monotonic() < until:
        options = judge.board(states[-1])
        if not options:
            break
        chosen = max(options, key=lambda option: option.value)
        moves.append(chosen.move)
        if chosen.afterstate == WON:
            states.append(int(WON))
            break
        exps = boards_to_exps(np.array([chosen.afterstate], np.uint64))[0]
        cell = random.choice(np.flatnonzero(exps == 0))
        exps[cell] = 2 if random.random() < _P_FOUR else 1
        states.append(int(exps_to_boards(exps[None])[0]))
    return np.array(states, np.uint64), np.array(moves, np.uint8)


def _player_plays(
    board: int, player: Any, seed: int, moves_max: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    buffer = Buffer(rows_max=moves_max, runs_max=1, record_action=True, sample_rate=1)
    buffer.begin_at(board, seed)
    status = play_into(buffer, player, steps_max=1)  # compiles, before the clock runs
    until = time.monotonic() + _PLAY_S
    while status == STEPS_PLAYED and time.monotonic() < until:
        status = play_into(buffer, player, steps_max=_MOVES_AT_A_TIME)
    return buffer.boards_and_moves()


def choices(boards: NDArray[np.uint64], player: Any) -> NDArray[np.uint8]:
    """Return the moves within the longest time, ``u8[k]``, 255: none; draws depend on the board's number."""
    buffer = Buffer(rows_max=1, runs_max=1, record_action=True, sample_rate=1)
    found, until = list[int](), 0.0
    for number, board in enumerate(boards.tolist()):
        buffer.begin_at(board, number)
        play_into(buffer, player, steps_max=1)
        _, moves = buffer.boards_and_moves()
        found.append(int(moves[0]) if len(moves) else _NO_MOVE)
        until = until or time.monotonic() + _PLAY_S  # after the first board, which compiles
        if time.monotonic() > until:
            break
    return np.array(found, np.uint8)


#: Most players that a remark names.
_NAMED = 3

#: Most cached judges of annotated sessions: a network takes up to 100 MB.
_ANNOTATING_MAX = 4


class Judges:
    """Judges by number: the named players, then the critic for each of its tiles."""

    def __init__(self, players: Sequence[str], critic: Path) -> None:
        self._players = [parse_player(text) for text in players]
        for name, args in self._players:
            check_judge(name, args)
        self._critic_path = critic
        self._lock = threading.RLock()
        self._made: dict[int, Judge] = {}
        self._recorded = own_judges()
        self._annotating = functools.lru_cache(_ANNOTATING_MAX)(_of_text)

    @functools.cached_property
    def critic(self) -> AnyCritic:
        with self._lock:
            return open_critic(self._critic_path, "cpu")

    def __len__(self) -> int:
        return len(self._players) + len(self.critic.thresholds)

    def __getitem__(self, number: int) -> Judge:
        # Only a number beyond the players needs the critic, which len() loads.
        if not 0 <= number < len(self._players) and not 0 <= number < len(self):
            hint = f"Choose one of {len(self)} judges, numbered from 0."
            raise MissingPathError(f"no judge has the number {number}", hint=hint)
        with self._lock:
            if number not in self._made:
                if number < len(self._players):
                    name, args = self._players[number]
                    name = "ntuple" if name == OWN_JUDGE else name  # for a board that is in no session
                    self._made[number] = Judge.of_player(name, args)
                else:
                    tile = self.critic.thresholds[number - len(self._players)]
                    self._made[number] = Judge.of_critic(
                        self.critic, tile, thresholds=self.critic.thresholds, sha256=self.critic.sha256,
                        name=f"the critic {self._critic_path.name}", players=self.critic.info.players,
                    )  # fmt: skip
            return self._made[number]

    def of_game(
        self, number: int, meta: Mapping[str, Any], annotation: Mapping[str, Any] | None = None
    ) -> tuple[Judge, str | None]:
        """Return a game's judge, and a message if another replaces it; ``own`` is the columns' judge."""
        if number >= len(self._players) or self._players[number][0] != OWN_JUDGE:
            return self[number], None
        judge, message = (None, None) if annotation is None else self.of_annotation(annotation, meta)
        if judge is not None:
            return judge, None
        with self._lock:
            own, missing = self._recorded(meta)
        return own, message or missing

    def of_annotation(
        self, facts: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> tuple[Judge | None, str | None]:
        """Return the judge of a session's columns, or a message."""
        text = str(facts.get("judge"))
        with self._lock:
            # The session's own judge assumes its player. A named judge assumes its network's first player.
            for plays in (str(meta.get("player_sha256")), None):
                try:
                    judge = self._annotating(text, plays)
                except (TapeError, OSError) as error:
                    return None, f"The judge {text} of the session's columns cannot be read: {error}."
                if judge.identity == facts.get("judge_sha256"):
                    return judge, None
        return None, f"{text} changed since it judged the session: run `tape2048 annotate --force`."

    def all(self) -> list[Judge]:
        return [self[number] for number in range(len(self))]

    def documents(self) -> list[dict[str, Any]]:
        players: list[dict[str, Any]] = [
            {"name": _named(name, args), "unit": "points", "tile": None, "own": name == OWN_JUDGE}
            for name, args in self._players
        ]
        critics: list[dict[str, Any]] = [
            {"name": f"critic: {tile}", "unit": "probability", "tile": tile}
            for tile in self.critic.thresholds
        ]
        return [{"number": number, **one} for number, one in enumerate(players + critics)]

    def facts(self, number: int, judge: Judge) -> dict[str, Any]:
        return {
            "judge": self.documents()[number],
            "by": judge.name,
            **meaning(judge),
            "thresholds": list(self.critic.thresholds),
        }

    def critic_document(self) -> dict[str, Any]:
        facts = self.critic.info
        return {
            "kind": self.critic.kind,
            "sha256": self.critic.sha256,
            "thresholds": list(self.critic.thresholds),
            "players": list(short_names(player.player_name for player in facts.players).values()),
            "full": [player.player_name for player in facts.players],
            "step": facts.step,
            "where": facts.where,
            "metrics": facts.metrics,
            "training": facts.training,
        }

    def knows(self, meta: Mapping[str, Any]) -> bool:
        """Whether the critic was trained on games of a session's player, as far as it is known."""
        return not strangers(self.critic.info, [_played_by(meta)])

    def remark(self, sessions: Iterable[Mapping[str, Any]]) -> str | None:
        others = strangers(self.critic.info, [_played_by(meta) for meta in sessions])
        if not others:
            return None
        short = short_names(one.player_name for one in (*self.critic.info.players, *others))
        names = list(dict.fromkeys(short[one.player_name] for one in others))
        more = f" or {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        its = ", ".join(short[one.player_name] for one in self.critic.info.players)
        return (
            f"The critic was trained on games of {its}, not of {' or '.join(names[:_NAMED])}{more}. "
            f"Its probabilities assume that {its} continues the game."
        )

    def opinion(self, boards: NDArray[np.uint64]) -> NDArray[np.float32] | None:
        """Return the critic's probabilities for boards, ``f32[n, T]``; None if its input is embeddings."""
        if self.critic.needs_embeddings:
            return None
        return np.asarray(self.critic(boards), np.float32)


def _played_by(meta: Mapping[str, Any]) -> PlayedBy:
    return PlayedBy(*identity_of_player(meta), 0)


def _of_text(text: str, plays: str | None) -> Judge:
    return Judge.of_player(*parse_player(text), plays)


def _named(name: str, args: Mapping[str, Any]) -> str:
    if name == OWN_JUDGE:
        return "the player's network"
    given = ",".join(f"{key}={value}" for key, value in args.items() if key != "ahead")
    return f"{name}{':' if given else ''}{given}, {args.get('ahead', 1) + 1}-ply"


#: Games of a session that represent it.
SAMPLE_GAMES = 8


def opinions(wanted: Sequence[tuple[Entry, Sequence[int]]], judges: Judges) -> dict[str, Any]:
    """Return the mean ``odds`` of each tile over games halfway through, for each of ``wanted`` or None."""
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
        "odds": [
            np.mean(known, axis=0).tolist() if known else None
            for entry, ids in wanted
            for known in [[found[entry][run] for run in ids if run in found.get(entry, {})]]
        ],
        "known": [judges.knows(entry.meta) for entry, _ in wanted],
        "remark": judges.remark([entry.meta for entry in runs]),
        "unread": unread,
    }


def _middle_boards(entry: Entry, ids: Sequence[int]) -> tuple[list[int], NDArray[np.uint64]]:
    """Return the runs with rows among some runs, and the board in the middle of each, ``u64[n]``."""
    session = Session.open(entry.path, "mmap")
    order = np.argsort(session.runs["run_id"], kind="stable")
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


def card(entry: Entry, run: int | None) -> dict[str, Any]:
    """Return a game's card, with the scores at spaced boards."""
    at = find_run(entry.runs, -1 if run is None else run)
    sums = entry.sums[0]
    judged = {name: float(values[at]) for name, values in sums.items() if not np.isnan(values[at])}
    try:
        session = Session.open(entry.path, "mmap")
        owned = session.numbers_of(int(np.flatnonzero(session.runs["run_id"] == entry.runs["run_id"][at])[0]))
        numbers = np.arange(owned.start, owned.stop) if isinstance(owned, slice) else owned
        few = numbers[
            np.linspace(0, len(numbers) - 1, min(len(numbers), _SPARK_POINTS)).round().astype(np.int64)
        ]
        rows = session.get_batch(few)
        exps = boards_to_exps(boards_of(rows, "a row", session.path))
    except (TapeError, OSError) as error:
        return {"exps": None, "spark": [], "error": str(error), **judged}
    # From the game's first board, which may be a given one.
    raised, steps = potentials(exps), rows["step_idx"].astype(np.int64)
    scores = raised - np.where(steps[:1] == 0, raised[:1], TWO_TILES) + SPAWN * steps
    return {"exps": exps[-1].tolist() if len(exps) else None, "spark": scores.tolist(), **judged}


def require_opinion(judges: Judges, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return the critic's probabilities ``f32[n, T]``; ModelError if its input is not boards."""
    found = judges.opinion(boards)
    if found is None:
        raise ModelError("found a critic of embeddings, expected a critic of boards")
    return found


def sample_of(runs: NDArray[np.void], *, newest: bool = False) -> list[int]:
    """Return the ids of a few runs of a table: evenly spread, or the last runs."""
    last = len(runs) - 1
    first = max(0, len(runs) - SAMPLE_GAMES) if newest else 0
    places = np.linspace(first, last, min(SAMPLE_GAMES, len(runs))).round().astype(np.int64)
    found: list[int] = runs["run_id"][places].tolist()
    return found
