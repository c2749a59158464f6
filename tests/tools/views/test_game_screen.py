"""A recorded game on a terminal: its keys and its lines, without the terminal."""

import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import reference
from tests.sdk.builders import raising

from tape2048.runs.run import Run, RunMeta
from tape2048_recorder.replay.judging import Judged
from tape2048_tools.terminal.background import in_background
from tape2048_tools.views.run import ChosenRun
from tape2048_tools.views.screens import CriticView, GameView, ReplayScreen, move_table, points, scores_of

STEPS = 250
SIZES = [(60, 24), (100, 30), (60, 18), (40, 8), (300, 80)]


def game(seed: int = 1) -> tuple[list[list[int]], list[int], list[int]]:
    """Boards, moves and scores of a random game's beginning."""
    rng = random.Random(seed)
    boards, moves, scores = [[0] * 14 + [1, 1]], [], [0]
    while len(moves) < STEPS and (legal := reference.legal_moves(boards[-1])):
        moves.append(rng.choice(legal))
        after, reward = reference.slide(boards[-1], moves[-1])
        after[rng.choice(reference.empty_cells(after))] = rng.choice([1, 1, 2])
        boards.append(after)
        scores.append(scores[-1] + reward)
    return boards, moves, scores


BOARDS, MOVES, SCORES = game()
#: Moves with a loss, the largest first.
LOSSES = {40: 9.0, 7: 5.0, 12: 5.0, 60: 1.0}


def view(name: str = "a judge", tile: int | None = None) -> Any:
    steps = len(MOVES)
    loss = np.zeros(steps)
    loss[list(LOSSES)] = list(LOSSES.values())
    values = np.full((steps, 4), np.nan, np.float32)
    for i, cells in enumerate(BOARDS[:-1]):
        values[i, reference.legal_moves(cells)] = 100.0
        values[i, MOVES[i]] -= loss[i]
    judged = Judged(values, np.full(steps + 1, 0.5), loss, np.zeros(steps), np.zeros(steps))
    judge = SimpleNamespace(name=name, tile=tile, unit="points" if tile is None else "probability")
    return GameView(judge, judged, judged.largest_losses())


def ready(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def replay(every: int = 1, ended: bool = True, **how: Any) -> ReplayScreen:
    boards = np.array([reference.pack(cells) for cells in BOARDS[::every]], np.uint64)
    moves = np.array(MOVES if every == 1 else [255] * (len(boards) - 1), np.uint8)
    run = Run(boards, moves, RunMeta(steps=len(moves)))
    if every > 1:
        unknown = np.full(len(moves), np.nan)
        values = np.full((len(moves), 4), np.nan, np.float32)
        judged = Judged(values, np.zeros(len(boards)), unknown, unknown, unknown)
        how = {"by_player": ready(GameView(view().judge, judged, judged.largest_losses()))} | how
    chances = np.full((len(boards), 2), 0.25, np.float32)
    by_critic = CriticView(
        (2048, 4096), chances, [view("critic, P(2048)", 2048), view("critic, P(4096)", 4096)], ""
    )
    found = ChosenRun(run, {}, np.arange(len(boards)) * every, ended)
    how = {"by_player": ready(view()), "by_critic": ready(by_critic)} | how
    return ReplayScreen("a \x1b[31mgame", found, **how)


def press(screen: ReplayScreen, keys: Sequence[str]) -> int:
    """The position after keys that do not end it."""
    assert all(screen.press(key) for key in keys)
    return screen.position


def text_of(screen: ReplayScreen, size: tuple[int, int] = (100, 30)) -> str:
    return "\n".join(line.plain for line in screen.lines(size))


def test_arrows_and_pages_step_within_the_game() -> None:
    screen, last = replay(), len(MOVES)
    assert press(screen, ["left"]) == 0
    assert press(screen, ["right", "right", "down", "left"]) == 2
    assert press(screen, ["pagedown"]) == min(102, last)
    assert press(screen, ["pageup", "up"]) == max(min(102, last) - 101, 0)
    assert press(screen, ["end", "right", "pagedown"]) == last
    assert press(screen, ["home"]) == 0
    assert press(screen, ["", "x", "escape"]) == 0, "keys that mean nothing"
    assert not screen.press("q")


def test_keys_step_through_losses_and_differences() -> None:
    """Of four moves with a loss, two are among the largest."""
    few = view()._replace(largest=np.array([40, 7]))
    losses, differences = ("p", "n", "large loss", [7, 40]), ("[", "]", "difference", [7, 12, 40, 60])
    for back, forth, noun, stops in (losses, differences):
        screen = replay(by_player=ready(few))
        assert [press(screen, [forth]) for _ in range(len(stops) + 1)] == [*stops, stops[-1]]
        assert f"no {noun} after this move" in text_of(screen)
        assert [press(screen, [back]) for _ in stops] == [*stops[-2::-1], stops[0]]
        assert f"no {noun} before this move" in text_of(screen)
        assert f"no {noun}" not in text_of(replay())


def test_the_keys_are_shown_until_the_next_key() -> None:
    screen = replay()
    press(screen, ["?"])
    assert "the previous, the next large loss" in text_of(screen)
    for size in SIZES:
        assert len(screen.lines(size)) <= size[1]
    press(screen, ["?"])
    assert "move   0 of" in text_of(screen)
    press(screen, ["?", "right"])
    assert "move   1 of" in text_of(screen)


def test_a_move_is_gone_to_by_its_number() -> None:
    screen = replay()
    assert press(screen, ["/", "4", "x", "3"]) == 0
    assert "go to move: 43_" in text_of(screen)
    assert press(screen, ["backspace", "2", "enter"]) == 42
    assert press(screen, ["/", "7", "escape", "right"]) == 43, "Esc stays"
    assert press(screen, ["/", "enter", "/", "q", "left"]) == 42, "q leaves the number, not the game"
    assert press(screen, ["/", *"999999999999", "enter"]) == len(MOVES)
    assert "move 999,999,999 has no recorded board" in text_of(screen)
    every = replay(every=4)
    assert press(every, ["/", "1", "0", "enter"]) == 2, "the board before move 8"
    assert "move 10 has no recorded board" in text_of(every)


def test_it_plays_to_its_end_and_a_step_stops_it() -> None:
    screen = replay(position=len(MOVES) - 2)
    assert press(screen, [" "]) == len(MOVES) - 2
    for _ in range(3):
        assert screen.playing == (screen.position < len(MOVES))
        screen.tick()
    assert (screen.position, screen.playing) == (len(MOVES), False)
    press(screen, [" "])
    assert not screen.playing, "there is nothing left"
    assert press(screen, ["home", " ", "right"]) == 1
    screen.tick()
    assert screen.position == 1


def test_beside_the_board_is_what_the_judge_says() -> None:
    screen = replay(position=40)
    shown = text_of(screen)
    best = max(reference.legal_moves(BOARDS[40]), key=lambda move: (move != MOVES[40], move))
    after, _ = reference.slide(BOARDS[40], MOVES[40])
    (cell,) = (i for i in range(16) if after[i] != BOARDS[41][i])
    name = ("UP", "DOWN", "LEFT", "RIGHT")[MOVES[40]]
    assert f"{name}, then {1 << BOARDS[41][cell]} at row {cell // 4 + 1}, col {cell % 4 + 1}" in shown
    assert f"move   40 of {len(MOVES)}" in shown
    assert f"score  {SCORES[40]:,}" in shown
    assert "loss   9   large loss 1 of 4" in shown
    assert f"> {name:<6}{'91':>9}{'-9':>10}" in shown
    assert f"  1  move      40  {name}, not {('UP', 'DOWN', 'LEFT', 'RIGHT')[best]}" in shown
    assert "P(2048) 25%   P(4096) 25%" in shown
    assert "judged by a judge" in shown
    assert "\x1b" not in shown


def test_c_selects_the_next_judge() -> None:
    screen = replay()
    for name in ("a judge", "critic, P(2048)", "critic, P(4096)", "a judge"):
        assert f"judged by {name}" in text_of(screen)
        press(screen, ["c"])


def test_last_board_is_final_or_last_recorded() -> None:
    assert "the final board" in text_of(replay(position=len(MOVES)))
    assert "the last recorded board" in text_of(replay(position=len(MOVES), ended=False))


def test_keys_work_during_computations() -> None:
    screen = replay(by_player=Future(), by_critic=Future())
    assert press(screen, ["right", "c", "]", "n"]) == 1
    assert "judging the game" in text_of(screen)
    press(screen, ["left"])
    assert text_of(screen).count("judging the game") == 1
    assert "loading the critic" in text_of(screen)


def test_errors_of_computations_are_raised() -> None:
    failed = in_background(raising(ValueError("no such thing")))
    assert isinstance(failed.exception(10), ValueError)
    with pytest.raises(ValueError, match="no such thing"):
        replay(by_critic=failed).lines((60, 24))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("position", [0, 40, len(MOVES)])
def test_lines_fit_the_terminal(size: tuple[int, int], position: int) -> None:
    note = "the critic judges \x1b[0m games of another player; " * 3
    chances = np.full((len(BOARDS), 3), 1.0, np.float32)
    by_critic = ready(CriticView((8192, 16384, 32768), chances, [view()], note))
    by_player = ready(view("ntuple:weights=/a/long/path " * 3))
    for every in (1, 4):
        how = {} if every > 1 else {"by_player": by_player, "by_critic": by_critic}
        lines = replay(every=every, position=position // every, **how).lines(size)
        assert len(lines) == size[1]
        assert all("\x1b" not in line.plain for line in lines)
        if size[0] >= 60:
            assert max(line.cell_len for line in lines) <= size[0], "nothing is cut off"


def test_scores_are_known_up_to_an_unknown_move() -> None:
    boards = np.array([reference.pack(cells) for cells in BOARDS], np.uint64)
    moves = np.array(MOVES, np.uint8)
    assert scores_of(boards, moves).tolist() == SCORES
    moves[30] = 254
    assert scores_of(boards, moves).tolist() == SCORES[:31] + [-1] * (len(MOVES) - 30)
    assert "score  -" in text_of(replay(every=4, position=3))


def test_values_are_spelled_in_their_unit() -> None:
    assert points(153_206.4, "points") == "153,206"
    assert points(-0.3, "points", sign=True) == "0"
    assert points(435.2, "points", sign=True) == "+435"
    assert points(0.553, "probability") == "55%"
    assert points(-0.0123, "probability", sign=True) == "-1.23%"
    assert points(math.nan, "points") == points(math.nan, "probability", sign=True) == "-"
    lines = [line.plain.split() for line in move_table([5.0, math.nan, 7.0, 7.0], "points", 0)]
    assert lines == [[">", "UP", "5", "-2"], ["DOWN", "-"], ["LEFT", "7", "best"], ["RIGHT", "7", "best"]]
