"""Single boards: read from text, judged move by move, and played on from; and the players who do that."""

from __future__ import annotations

import functools
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.critic.facts import SHIPPED as CRITICS
from tape2048.errors import ConfigError
from tape2048.game.rules import boards_to_exps, exps_to_boards, legal_masks
from tape2048.ntuple.network import SHIPPED as NETWORKS
from tape2048_recorder.players.registry import REGISTRY, check_player, make_player, own
from tape2048_tools.options.recorder import parse_player
from tape2048_tools.viewer.replay import Game

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048_recorder.replay.judging import Judge
    from tape2048_tools.viewer.judges import Judges

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

    16 hexadecimal digits, exponents cell by cell from the top left (with or without 0x); or 16 numbers, which
    are tiles if one of them is above 15, and else exponents. The tiles 2, 4 and 8 alone are no exponents that
    anyone means, if no odd number stands among them: then they are tiles.

    Raises:
        ValueError: anything else.
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
    """Return a board with the values of its moves, the tree one level deep, and the critic's opinion.

    Args:
        board: packed.
        judge: values the moves.
        judges: has the critic.
    """
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
    """Return a built-in player, such as ``expectimax:depth=2``, for one thread.

    Raises:
        ConfigError: no such player or parameter.
        ConfigError: an invalid parameter, a player that is code, or a file that a link is not to name.
    """
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
    """Play on from a board, until the game ends, enough moves are made, or the time is up.

    Args:
        board: packed.
        player: chooses the moves; a judge makes the best ones by its values.
        seed: of the spawns.
        moves_max: at least 1.
    """
    from tape2048_recorder.replay.judging import Judge

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
    from tape2048_recorder.game.loop import STEPS_PLAYED, Buffer, play_into

    buffer = Buffer(rows_max=moves_max, runs_max=1, record_action=True, sample_rate=1)
    buffer.begin_at(board, seed)
    status = play_into(buffer, player, steps_max=1)  # compiles, before the clock runs
    until = time.monotonic() + _PLAY_S
    while status == STEPS_PLAYED and time.monotonic() < until:
        status = play_into(buffer, player, steps_max=_MOVES_AT_A_TIME)
    return buffer.boards_and_moves()


def choices(boards: NDArray[np.uint64], player: Any) -> NDArray[np.uint8]:
    """Return the moves that a player would make, until the time is up: ``u8[k]``, k <= n; 255 without one.

    Args:
        boards: packed, ``u64[n]``.
        player: what it draws at random follows from the board's number.
    """
    from tape2048_recorder.game.loop import Buffer, play_into

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
