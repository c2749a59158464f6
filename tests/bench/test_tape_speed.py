"""Games on tape: decoding in sequence, the checks of publication, and encoding; one core."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

from tape2048.game.moves import last_boards
from tape2048.tape import check_games, decode, encode
from tape2048_recorder.config import split_player
from tape2048_recorder.game.loop import Buffer, play_into
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.registry import make_player

from .figures import Figure, median_of

if TYPE_CHECKING:
    from collections.abc import Callable

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


GROUP = "tape"
#: Games of each player, four million rows at full size.
GAMES = {"random": 35_000, "ntuple:look_below=0": 500}
#: Rows per second of one core.
TARGET = 150e6


def play(player: str, games: int) -> tuple[Any, Any, Any, Any]:
    """Boards, moves and final boards of games, and their run table."""
    name, args = split_player(player)
    buffer = Buffer(rows_max=1 << 16, runs_max=games, record_action=True, sample_rate=1)
    ids = np.arange(games, dtype=np.uint64)
    buffer.give(ids, game_seeds(1, ids))
    buffer.resize(games * 16_000 if name == "ntuple" else games * 300 + 1000)
    play_into(buffer, make_player(name, args or {}), steps_max=1 << 40)
    runs = buffer.runs.copy()
    assert len(runs) == games
    boards, moves = buffer.boards.copy(), buffer.rows["action"].copy()
    last = (runs["first_row"] + runs["rows"]).astype(np.int64) - 1
    return boards, moves, last_boards(boards[last], moves[last])[0], runs


@pytest.mark.benchmark(group="tape", timer=time.process_time)
@pytest.mark.parametrize("player", GAMES)
def test_sequential_decoding(
    player: str, benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool
) -> None:
    boards, moves, finals, runs = play(player, GAMES[player] if full else 3)
    first, steps = runs["first_row"].astype(np.int64), runs["rows"].astype(np.int64)
    tape = np.empty(len(boards), np.uint8)
    out, ends, wrong = np.empty_like(boards), np.empty_like(finals), np.empty(len(runs), np.uint8)
    # Where a 2 and a 4 end a game, either is a game of the same score.
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(boards, moves, first, steps, finals, tape),
        "decode": lambda: decode(tape, first, steps, boards[first], out, ends, wrong),
        "decode and check": lambda: check_games(tape, runs, boards[first], out).defects,
    }
    rates: dict[str, list[float]] = {name: [] for name in work}

    def measure() -> None:
        for name, run in work.items():
            begin = time.process_time()
            run()
            rates[name].append(len(boards) / max(1e-9, time.process_time() - begin))

    measure()  # compiles
    assert (out == boards).all()
    assert not wrong.any()
    assert work["decode and check"]() == []
    for found in rates.values():
        found.clear()
    benchmark.pedantic(measure, rounds=rounds)
    figures += [
        median_of(
            values[-rounds:],
            group=GROUP,
            name=f"{name} games of `{player}`",
            unit="rows/s",
            target=TARGET if name == "decode" else None,
        )
        for name, values in rates.items()
    ]
