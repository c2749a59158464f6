"""Games and boards for the pages: recorded games, boards read from text, games played on from a board.

A page gets a game as one block of bytes (:func:`pack`): the length of a JSON header (``u32``), the header,
and arrays at multiples of 8 bytes after it. A game is its first board and a byte for each move, from which
the page computes the boards: bits 0-1 the move, bits 2-5 the cell of the spawn, bit 6 whether it is a 4.
"""

from __future__ import annotations

import functools
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.conversion.session_runs import boards_of, session_run
from tape2048.critic.facts import SHIPPED as CRITICS
from tape2048.errors import ConfigError, FormatError, ReplayError
from tape2048.game.moves import UNKNOWN, recover
from tape2048.game.rules import boards_to_exps, exps_to_boards, legal_masks
from tape2048.ntuple.network import SHIPPED as NETWORKS
from tape2048.session.session import Session
from tape2048_recorder.game.loop import STEPS_PLAYED, Buffer, play_into
from tape2048_recorder.players.registry import REGISTRY, check_player, make_player, own
from tape2048_recorder.replay.judging import Judge, Judged
from tape2048_recorder.replay.replay import replayer
from tape2048_tools.options.recorder import parse_player
from tape2048_tools.viewer.collection import find_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_tools.viewer.judges import Judges

#: Points of the critic's curves in a report: as many as a wide screen shows.
_CURVE_POINTS = 1500

#: Units of values in points, of a report, and of probabilities.
_POINT = 1.0
_PROBABILITY = 1 / 65_535


class Game(NamedTuple):
    """A game as its boards and moves.

    Attributes:
        states: ``u64[n + 1]``, boards.
        moves: ``u8[n]``; 255 where no move leads from a board to the next one.
        numbers: ``i64[n + 1]``, number of the move before which each board stood; None: 0, 1, ...
        notes: what the recording lacks.
    """

    states: NDArray[np.uint64]
    moves: NDArray[np.uint8]
    numbers: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()

    @property
    def exps(self) -> NDArray[np.uint8]:
        """The boards as exponents, ``u8[n + 1, 16]``."""
        return boards_to_exps(self.states)

    @property
    def is_whole(self) -> bool:
        """Whether a known move leads from each board to the next one."""
        return self.numbers is None and not (self.moves > 3).any()

    def step_of(self, position: np.integer[Any]) -> int:
        """Return the number of the move before which a board stood."""
        return int(position if self.numbers is None else self.numbers[position])


def read_game(path: Path, ids: Sequence[int], *, replayed: bool = False) -> Iterator[Game]:
    """Read games of a session; ``replayed`` replays with the session's player what is not recorded."""
    session = Session.open(path)
    order = np.argsort(session.runs["id"], kind="stable")
    table = session.runs[order]
    play = _player_of(session) if replayed and session.tape is None else None  # a tape holds all
    for run in ids:
        yield _read(session, int(order[find_run(table, run)]), play)


def _player_of(session: Session) -> Any:
    try:
        return replayer(session.path, session.meta)
    except FormatError:
        return None  # not a player that can play again; what is recorded is shown


def _read(session: Session, ordinal: int, play: Any) -> Game:
    notes: list[str] = []
    try:
        if play is not None:
            try:
                run, certain, lost = session_run(session, ordinal, play)
            except FormatError as error:
                notes.append(f"not played again: {error.message}")
                play = None
        if play is None:
            run, certain, lost = session_run(session, ordinal, lossy=True)
    except ReplayError as error:
        rows = session.rows_of(ordinal)
        boards = boards_of(rows, f"run {session.runs['id'][ordinal]}", session.path)
        if not len(boards):
            raise
        found = recover(boards).moves
        return Game(boards, found, rows["step_idx"].astype(np.int64), (*notes, error.message))
    if not certain:
        notes.append("the last spawn is not recorded: shown is the likelier one")
    if lost:
        notes.append(f"not recorded: {', '.join(lost)}")
    return Game(run.states, run.moves, None, tuple(notes))


def pack(
    facts: Mapping[str, Any],
    game: Game,
    judged: Judged | None,
    critic: NDArray[np.float32] | None,
    *,
    small: bool = False,
) -> bytes:
    """Return a game for the page, with its judgement and the critic's probabilities, ``f32[n + 1, T]``.

    ``small`` rounds, and omits the values of all four moves, for a report.
    """
    arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {}
    known = recover(game.states, game.moves) if game.is_whole else None
    if known is not None and not (known.moves == UNKNOWN).any():
        fours = (known.exponents - 1).astype(np.uint8)
        arrays["steps"] = (game.moves | known.cells << 2 | fours << 6).astype(np.uint8), {}
    else:
        arrays["boards"] = game.exps, {}
        arrays["moves"] = game.moves, {}
    if game.numbers is not None:
        arrays["numbers"] = game.numbers.astype(np.uint32), {}
    if judged is not None:
        unit = _POINT if facts.get("judge", {}).get("unit") == "points" else _PROBABILITY
        for name, values in (("state", judged.state), ("loss", judged.loss), ("luck", judged.luck)):
            if small:
                arrays[name] = _whole(np.nan_to_num(values), unit, np.int32)
            else:
                arrays[name] = values.astype(np.float64 if name == "state" else np.float32), {}
        if not small:
            arrays["values"] = judged.values.astype(np.float32), {}
    if critic is not None:
        stride = -(-len(critic) // _CURVE_POINTS) if small else 1
        arrays["critic"] = _whole(critic[::stride].T, _PROBABILITY, np.uint16)
    first = game.exps[0].tolist()
    return _packed({**facts, "first": first, "count": len(game.moves), "notes": game.notes}, arrays)


def _whole(values: NDArray[Any], unit: float, dtype: type[np.integer[Any]]) -> tuple[Any, dict[str, Any]]:
    """Return values in units, each as the difference to the one before, which compresses well."""
    units = np.round(np.atleast_2d(values) / unit).astype(np.int64)
    return np.diff(units, prepend=0, axis=1).astype(dtype), {"unit": unit, "rows": len(units)}


_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "i4": "i32", "f4": "f32", "f8": "f64"}


def _packed(header: dict[str, Any], arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]]) -> bytes:
    described, parts, at = [], [], 0
    for name, (array, how) in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = _TYPES[array.dtype.str[1:]]
        described.append({"name": name, "type": kind, "at": at, "count": array.size, **how})
        padding = -len(data) % 8
        parts.append(data + b"\0" * padding)
        at += len(data) + padding
    text = msgspec.json.encode({**header, "arrays": described})
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)


# --- boards

#: Moves that are played on at most, and unless told.
MOVES_MAX, MOVES = 20_000, 1000

#: Seconds that a player gets; a longer game is shown as far as it came.
_PLAY_S = 5.0

#: Moves between two looks at the clock.
_MOVES_AT_A_TIME = 32

_PLAYER_CHARS_MAX = 200

_NO_MOVE = 255

#: The parameters that name a file, and what links may name.
_FILES = {"weights": NETWORKS, "critic": CRITICS}

_P_FOUR = 0.1
_EXPONENT_MAX = 15


def parse_board(text: str) -> int:
    """Return the packed board that a text spells.

    The text is 16 hexadecimal digits, exponents cell by cell from the top left (with or without 0x), or 16
    numbers. The numbers are tiles if each of them is 0 or a tile, else exponents.
    """
    words = re.findall(r"[^\s/,;|\[\]()]+", text)
    if len(words) == 1 and (match := re.fullmatch(r"(?:0x)?([0-9a-fA-F]{16})", words[0])):
        return int(match[1], 16)
    if len(words) == 1 and (match := re.fullmatch(r"0x([0-9a-fA-F]{1,16})", words[0])):
        return int(match[1], 16)
    empty = {".", "-", "_"}
    if len(words) != 16 or not all(word in empty or re.fullmatch(r"\d{1,6}", word) for word in words):
        raise ValueError(
            f"found {text!r:.80}, expected 16 hexadecimal digits (0x0123456789abcdef), 16 tiles or exponents"
        )
    numbers = [0 if word in empty else int(word) for word in words]
    are_tiles = all(number == 0 or (number & (number - 1) == 0 and number > 1) for number in numbers)
    if are_tiles:
        exps = [max(number.bit_length() - 1, 0) for number in numbers]
    elif max(numbers) <= _EXPONENT_MAX:
        exps = numbers
    else:
        wrong = next(number for number in numbers if number & (number - 1) or number == 1)
        raise ValueError(
            f"found a tile of {wrong}; tiles are powers of two from 2 to 32768, and 0 is an empty cell"
        )
    if max(exps) > _EXPONENT_MAX:
        raise ValueError(f"found a tile of {max(numbers)}; the largest tile of a board is 32768")
    return sum(exp << (60 - 4 * cell) for cell, exp in enumerate(exps))


def board_document(board: int, judge: Judge, judges: Judges) -> dict[str, Any]:
    """Return a board with the values of its moves, the tree one level deep, and the critic's opinion."""
    options = judge.board(board)
    after = np.array([board, *(option.afterstate for option in options)], np.uint64)
    critic = judges.opinion(after[:1])
    best = max((option.value for option in options), default=None)
    return {
        "board": f"{board:016x}",
        "exps": boards_to_exps(after[:1])[0].tolist(),
        "best": best,
        "options": [
            {
                "move": option.move,
                "value": option.value,
                "reward": option.reward,
                "exps": exps.tolist(),
                "spawns": [
                    {"cell": one.cell, "tile": one.tile, "p": one.probability, "value": one.value}
                    for one in option.spawns
                ],
            }
            for option, exps in zip(options, boards_to_exps(after[1:]), strict=True)
        ],
        "critic": None if critic is None else critic[0].tolist(),
    }


def player_documents() -> list[dict[str, Any]]:
    """Return what pages show of the players that can be chosen, with their parameters and defaults."""
    return [
        {
            "name": kind.name,
            "about": kind.summary,
            "settings": ",".join(f"{key}={one.default}" for key, one in kind.parameters.items()),
        }
        for kind in REGISTRY.values()
    ]


def player_of(text: str) -> Any:
    """Return a built-in player, such as ``expectimax:depth=2``, for one thread."""
    name, args = parse_player(text[:_PLAYER_CHARS_MAX])
    if name not in REGISTRY and ":" in name:
        raise ConfigError(
            f"found the player {name!r}, expected a built-in one",
            hint=f"NAME:key=value,... with one of: {', '.join(REGISTRY)}",
        )
    for key in _FILES.keys() & args.keys():
        if args[key] not in _FILES[key]:
            raise ConfigError(
                f"found {key} = {args[key]!r}, expected one that ships: {', '.join(_FILES[key])}",
                hint="links name no files; `tape2048 view --judge ntuple:weights=FILE` plays on, too",
            )
    return own(_made(name, tuple(sorted(check_player(name, args).items()))))


@functools.lru_cache(maxsize=2)
def _made(name: str, args: tuple[tuple[str, Any], ...]) -> Any:
    """Return a player; the last ones are kept, since their tables take a second to load."""
    return make_player(name, dict(args))


def play_on(board: int, player: Any, seed: int, moves_max: int = MOVES) -> Game:
    """Play on from a packed board until the game ends, ``moves_max`` moves are made, or the time is up.

    The player is a player, or a judge whose best moves are made. The seed determines the spawns.
    """
    play = _judge_plays if isinstance(player, Judge) else _player_plays
    states, moves = play(board, player, seed, moves_max)
    notes: tuple[str, ...] = ()
    if int(legal_masks(states[-1:])[0]):
        why = "" if len(moves) >= moves_max else f" in {_PLAY_S:g} s, which is all that it gets"
        notes = (f"played on for {len(moves):,} moves{why}; the game goes on",)
    return Game(states, moves, None, notes)


def _judge_plays(
    board: int, judge: Judge, seed: int, moves_max: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    states, moves = [board], list[int]()
    until = time.monotonic() + _PLAY_S
    while len(moves) < moves_max and time.monotonic() < until:
        options = judge.board(states[-1])
        if not options:
            break
        chosen = max(options, key=lambda option: option.value)
        exps = boards_to_exps(np.array([chosen.afterstate], np.uint64))[0]
        cell = random.choice(np.flatnonzero(exps == 0))
        exps[cell] = 2 if random.random() < _P_FOUR else 1
        states.append(int(exps_to_boards(exps[None])[0]))
        moves.append(chosen.move)
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
    """Return the moves that a player chooses, until the time is up: ``u8[k]``, k <= n; 255 without a move.

    The random numbers of the player follow from the number of the board.
    """
    buffer = Buffer(rows_max=1, runs_max=1, record_action=True, sample_rate=1)
    found, until = list[int](), 0.0
    for number, board in enumerate(boards.tolist()):
        buffer.begin_at(board, number)
        play_into(buffer, player, steps_max=1)
        _, moves = buffer.boards_and_moves()
        found.append(int(moves[0]) if len(moves) else _NO_MOVE)
        until = until or time.monotonic() + _PLAY_S  # after the first one, which compiles
        if time.monotonic() > until:
            break
    return np.array(found, np.uint8)
