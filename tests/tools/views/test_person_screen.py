"""A game that a person plays: against the rules, and its screen without the terminal."""

import random
import threading
from typing import Any

import numpy as np
import pytest
from tests import reference

from tape2048.errors import ModelError
from tape2048_recorder.replay.judging import Judge
from tape2048_tools.views.screens import PersonGame, PersonScreen

KEYS = ("up", "down", "left", "right")
LETTERS = ("w", "s", "a", "d")


def critic(boards: Any) -> Any:
    return np.full((len(boards), 2), 0.25, np.float32)


CRITICS = [Judge.of_critic(critic, tile, thresholds=(4, 8), sha256="") for tile in (4, 8)]


def screen(seed: int = 3, **how: Any) -> PersonScreen:
    player = Judge("a player", lambda boards: np.zeros(len(boards)), "")
    return PersonScreen(PersonGame(seed), player, **{"load_critic": lambda: CRITICS} | how)


def text_of(shown: PersonScreen, size: tuple[int, int] = (60, 24)) -> str:
    lines = shown.lines(size)
    assert len(lines) == size[1]
    assert size[0] < 60 or max(line.cell_len for line in lines) <= size[0], "nothing is cut off"
    return "\n".join(line.plain for line in lines)


def advised(shown: PersonScreen, key: str) -> None:
    """Ask for advice, and wait for it."""
    shown.press(key)
    if shown._critic is not None:
        shown._critic.exception(10)


@pytest.mark.parametrize("keys", [KEYS, LETTERS])
def test_a_game_follows_the_rules_and_the_seed(keys: tuple[str, ...]) -> None:
    rng, shown = random.Random(5), screen(7)
    cells, _, generator = reference.new_game(7)
    score = 0
    while legal := reference.legal_moves(cells):
        assert shown.game.boards[-1] == reference.pack(cells)
        move = rng.randrange(4)
        assert shown.press(keys[move])
        if move not in legal:
            assert f"{KEYS[move].upper()} moves nothing" in text_of(shown)
            continue
        after, reward = reference.slide(cells, move)
        cells, _ = reference.spawn(after, generator)
        score += reward
        (fresh,) = (cell for cell in range(16) if cells[cell] != after[cell])
        assert (shown.game.score, shown.game.moves[-1], shown.game.fresh) == (score, move, fresh)
    assert shown.game.over
    assert "game over" in text_of(shown)
    assert "arrows" not in text_of(shown)
    before = list(shown.game.boards)
    assert shown.press("up")
    assert shown.game.boards == before
    assert not shown.press("q")


def test_a_65536_ends_the_game() -> None:
    shown = screen(7)
    shown.game.boards[-1] = reference.pack([15, 15, 14, 13, 1, 2, 3, 4, 2, 1, 4, 3, 1, 2, 1, 2])
    assert shown.press("right")
    assert (shown.game.score, shown.game.fresh, max(shown.game.exps)) == (65536, None, 16)
    said = text_of(shown)
    assert "65536 " in said
    assert "game over: a 65536 ends it" in said


def test_advice_is_shown_on_request_alone() -> None:
    shown = screen()
    assert "judged" not in text_of(shown)
    advised(shown, "p")
    rewards = {move: reference.slide(shown.game.exps, move)[1] for move in range(4)}
    best = [move for move, reward in rewards.items() if reward == max(rewards.values())]
    assert "judged by a player" in text_of(shown)
    assert text_of(shown).count("best") == len(best) == 2
    assert "your " not in text_of(shown), "no move was made"
    shown.press(KEYS[best[0]])
    assert f"your {KEYS[best[0]].upper()}" in text_of(shown)
    assert "loss   0" in text_of(shown)
    shown.press("p")
    assert "judged" not in text_of(shown)


def test_critic_advises_for_the_next_tile() -> None:
    shown = screen()
    advised(shown, "c")
    for highest, tile in ((1, 4), (2, 8), (3, 8)):
        shown.game.boards[-1] = 0x1001 << 8 | highest
        assert f"critic, P({tile})" in text_of(shown)
        assert "assuming that the critic's player continues the game" in text_of(shown)
    advised(shown, "p")
    assert "judged by a player" in text_of(shown), "one of them at a time"


def test_advice_that_is_being_loaded_stops_no_game() -> None:
    lock = threading.Event()
    shown = screen(load_critic=lambda: lock.wait() and [])
    shown.press("c")
    assert "loading" in text_of(shown)
    for key in KEYS:
        shown.press(key)
    assert shown.game.moves
    lock.set()


def test_a_critic_that_cannot_be_loaded_ends_no_game() -> None:
    loads = []

    def fail() -> Any:
        loads.append(1)
        raise ModelError("a critic of straw")

    shown = screen(load_critic=fail)
    advised(shown, "c")
    assert "a critic of straw" in text_of(shown)
    for key in ("c", "c", *KEYS, "p"):
        shown.press(key)
    assert shown.game.moves
    assert "judged by a player" in text_of(shown)
    assert len(loads) == 1


@pytest.mark.parametrize("size", [(40, 10), (60, 18), (100, 30)])
def test_lines_fit_the_terminal(size: tuple[int, int]) -> None:
    shown = screen()
    for key in ("p", *KEYS, "c", "c"):
        advised(shown, key)
        text_of(shown, size)
