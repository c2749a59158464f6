"""The pages in a browser: keys, links, what axe finds, light and dark, at two widths."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tape2048.conversion import write_session
from tape2048.game.rules import boards_to_exps
from tape2048.runs.run import Run, RunMeta
from tape2048_tools.viewer.games import read_game

from .conftest import until as wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import SecondViewer, Viewer

PAGES = ["overview", "sessions", "games", "board", "live", "critic"]


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a link in a scheme and at a width; every error of the page's scripts fails the test."""
    contexts, errors = [], []

    def heard(said: Any) -> None:
        if said.type == "error" and "the server responded with a status of 4" not in said.text:
            errors.append(said.text)

    def make(link: str, scheme: str = "light", width: int = 1280) -> Any:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        context.set_default_timeout(120_000)  # a critic is examined, a game judged, on a busy machine
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", heard)
        page.goto(link)
        ready(page)
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(new_page: Callable[..., Any], viewer: Viewer) -> Any:
    """The first page of the viewer."""
    return new_page(viewer.link)


def ready(page: Any) -> None:
    page.locator("#main[data-ready=yes]").wait_for()


def open_link(page: Any, link: str) -> None:
    page.evaluate(
        "link => { document.getElementById('main').dataset.ready = 'no'; location.hash = link; }", link
    )
    ready(page)


def violations(page: Any) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found]


def board_shown(page: Any) -> list[int]:
    texts = page.locator(".replay .tile").all_text_contents()
    return [int(text).bit_length() - 1 if text else 0 for text in texts]


def until(page: Any, holds: Callable[[], bool]) -> bool:
    """Whether something holds on the page, or soon does."""
    for _ in range(1200):
        if holds():
            return True
        page.wait_for_timeout(50)
    return False


def test_the_token_leaves_the_address(page: Any, viewer: Viewer) -> None:
    assert viewer.token not in page.url
    assert page.evaluate("document.cookie") == ""


@pytest.mark.parametrize(("scheme", "width"), [("light", 420), ("dark", 1280)])
def test_pages_are_accessible_and_fit(
    new_page: Callable[..., Any], viewer: Viewer, scheme: str, width: int
) -> None:
    """No page violates a rule of axe, or is wider than the screen."""
    session, run = viewer.best_game()
    page = new_page(viewer.link, scheme, width)
    for link in [
        *(f"#{name}" for name in PAGES),
        "#overview?two=1&b.where=id+%3E+5",
        f"#{session}/{run}/20",
        f"#{session}/{run}/20?beside={session}/{run}",
        "#nothing",
    ]:
        open_link(page, link)
        for words in ("Reading", "being examined"):
            page.locator(f".message:has-text('{words}')").first.wait_for(state="detached")
        page.locator(".odds:text('…')").first.wait_for(state="detached")
        assert violations(page) == [], link
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), link
        assert page.locator(".message.error").count() == 0, link


def test_keys_step_through_a_game(page: Any, viewer: Viewer, recorded: Path) -> None:
    session, run = viewer.best_game()
    name = viewer.json("/api/games")["rows"][0]["name"]
    (game,) = read_game(recorded / name, [int(run)], replayed=True)
    exps, count = boards_to_exps(game.states), len(game.moves)
    open_link(page, f"#{session}/{run}/30")
    at = 30
    assert board_shown(page) == exps[at].tolist()
    keys = [
        ("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1), ("Shift+ArrowRight", 10), ("PageDown", 100),
        ("PageUp", -100), ("End", 10**6), ("ArrowRight", 1), ("ArrowLeft", -1), ("Home", -(10**6)),
        ("ArrowDown", 1),
    ]  # fmt: skip
    for key, by in keys:
        page.keyboard.press(key)
        at = max(0, min(count, at + by))
        due = exps[at].tolist()
        assert until(page, lambda due=due: board_shown(page) == due), key
    page.mouse.move(300, 400)
    page.locator(".replay .board").hover()
    page.mouse.wheel(0, 100)
    assert until(page, lambda: board_shown(page) == exps[at + 1].tolist())
    assert until(page, lambda: page.url.endswith(f"#{session}/{run}/{at + 1}"))
    page.keyboard.press("Space")
    assert until(page, lambda: board_shown(page) != exps[at + 1].tolist())


def test_pages_show_the_recorded_boards(page: Any, viewer: Viewer, recorded: Path) -> None:
    for row in viewer.json("/api/games")["rows"][::10]:
        (game,) = read_game(recorded / row["name"], [int(row["run"])], replayed=True)
        found = page.evaluate(
            """async given => {
                const {askGame} = await import('/static/api.js');
                const {expandGame} = await import('/static/rules.js');
                const game = expandGame(await askGame('replay', given));
                return [Array.from(game.boards), Array.from(game.moves), game.scores[game.count]];
            }""",
            {"session": row["session"], "run": row["run"]},
        )
        assert found[0] == game.exps.reshape(-1).tolist()
        assert found[1] == game.moves.tolist()
        assert found[2] == row["score"]


def test_losses_are_found_by_key_and_by_list(page: Any, viewer: Viewer) -> None:
    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/0")
    losses = page.locator(".losses tbody tr")
    shown = [float(text.replace(",", "")) for text in losses.locator("td:nth-of-type(1)").all_text_contents()]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] > 0
    steps = sorted(int(text.replace(",", "")) for text in losses.locator("th").all_text_contents())
    for step in steps[:3]:
        page.keyboard.press("n")
        page.locator(f".where:has-text('move {step:,} ')").wait_for()
    page.keyboard.press("p")
    page.locator(f".where:has-text('move {steps[1]:,} ')").wait_for()
    page.keyboard.press("]")
    notes = page.locator(".values tbody tr td:last-child")
    assert until(page, lambda: sorted(filter(None, notes.all_text_contents())) == ["best", "made"])
    page.get_by_label("Compared with").select_option(label="critic: 8192")
    page.locator(".values td:has-text('best of the other')").wait_for()
    page.get_by_label("Judged by").select_option(label="critic: 8192")
    page.locator(".values caption:text('P(8192) after each move')").wait_for()
    assert "judge=1" in page.url


def test_a_planted_blunder_comes_first_in_the_list(
    second_viewer: SecondViewer, new_page: Callable[..., Any]
) -> None:
    """A board at which one move loses the corner, and that move made."""
    from tape2048.game.moves import recover
    from tape2048_recorder.replay.judging import Judge
    from tape2048_tools.viewer.games import play_on

    judge = Judge.of_player("ntuple", {"weights": "fast"})
    game = play_on(0x0000000012345678, judge, seed=1)
    states, moves = game.states[:40].tolist(), game.moves[:39].tolist()
    options = judge.board(states[-1])
    worst = min(options, key=lambda option: option.value)
    after = play_on(worst.spawns[0].board, judge, seed=2)
    states, moves = [*states, *after.states.tolist()], [*moves, worst.move, *after.moves.tolist()]
    assert not (recover(np.array(states, np.uint64), np.array(moves, np.uint8)).moves > 3).any()
    run = Run(
        np.array(states, np.uint64),
        np.array(moves, np.uint8),
        RunMeta(steps=len(moves), max_score=4, highest_tile=512),
    )
    write_session(second_viewer.planted / "20260101T000000Z_model=planted", [run])
    found = second_viewer.viewer
    planted = "/api/games?where=model+%3D+%27planted%27"
    wait_until(lambda: found.json(planted)["rows"])
    rows = found.json(planted)["rows"]
    page = new_page(f"{found.link}#{rows[0]['session']}/{rows[0]['run']}/0")
    assert page.locator(".losses tbody th").first.text_content() == "39"


def test_two_games_of_one_seed_stand_side_by_side(
    second_viewer: SecondViewer, new_page: Callable[..., Any], process: Any
) -> None:
    more_of = {second_viewer.first: "", second_viewer.second: ",look_below=16,look_margin=0"}
    for root, more in more_of.items():
        flags = ["--player", f"ntuple:weights=fast{more}", "--max-games", "1", "--seed", "5"]
        assert process("record", *flags, "--workers", "1", "--out-dir", str(root)).returncode == 0
    found = second_viewer.viewer
    time.sleep(1.1)  # until it lists the directories again
    session, run = found.best_game()
    page = new_page(f"{found.link}#{session}/{run}/0")
    page.locator("summary:text('A game beside it')").click()
    choice = page.get_by_label("Beside it")
    choice.select_option(index=1)
    page.locator("section[aria-label='The game beside']").wait_for()
    ready(page)

    def alike() -> bool:
        first, second = [board.locator(".tile").all_text_contents() for board in page.locator(".board").all()]
        return bool(first == second)

    assert until(page, alike)
    page.keyboard.press("]")
    assert until(page, alike)
    page.keyboard.press("ArrowRight")
    assert until(page, lambda: not alike())
    page.keyboard.press("[")
    assert until(page, alike)
    assert "beside=" in page.url


def test_any_game_beside_another(page: Any, viewer: Viewer) -> None:
    """The second game is chosen from the list or by its link."""
    session, run = viewer.best_game()
    rows = viewer.json("/api/games?sort=steps&desc=0")["rows"]
    other = f"{rows[0]['session']}/{rows[0]['run']}"
    open_link(page, f"#{session}/{run}/0")
    page.locator("summary:text('A game beside it')").click()
    page.get_by_label("Any other one").fill("no link")
    page.keyboard.press("Enter")
    assert "holds its session" in page.get_by_label("Any other one").evaluate("one => one.validationMessage")
    page.get_by_label("Any other one").fill(f"http://127.0.0.1/#{other}/3?judge=1")
    page.keyboard.press("Enter")
    beside = page.locator("section[aria-label='The game beside']")
    beside.wait_for()
    assert f"Game {rows[0]['run']} of" in beside.text_content()
    page.get_by_text("no board in common").wait_for()
    page.keyboard.press("]")  # by the judge, since the games have nothing in common
    page.locator(".where:not(:text('move 0 '))").first.wait_for()
    page.get_by_role("link", name="Choose from the list").click()
    page.get_by_role("heading", name="Choose a game").wait_for()
    page.locator("main table a").nth(1).click()
    beside.wait_for()
    second = viewer.json("/api/games")["rows"][1]
    assert f"Game {second['run']} of" in beside.text_content()
    page.get_by_role("button", name="Take it away").click()
    beside.wait_for(state="detached")
    ready(page)
    open_link(page, f"#{session}/{run}/0?beside=0123456789/1")
    page.locator(".message.error:has-text('no session')").wait_for()
    assert page.locator(".replay").count() == 1  # the game itself is shown


def test_a_player_is_the_student_of_a_judge(page: Any, viewer: Viewer) -> None:
    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/0")
    page.get_by_label("Compared with").select_option("expectimax")
    page.get_by_label("Its settings").fill("depth=1")
    page.keyboard.press("Tab")
    page.locator(".values td:has-text('best of the other')").wait_for()
    student = viewer.json(f"/api/choices?session={session}&run={run}&player=expectimax:depth=1")["moves"]
    differing = page.evaluate(
        """async ([given, student]) => {
            const {askGame} = await import('/static/api.js');
            const {values, count} = await askGame('replay', given);
            const worth = (at, move) => Number.isNaN(values[4 * at + move]) ? -1 : values[4 * at + move];
            const best = at => [1, 2, 3].reduce((found, move) => worth(at, move) > worth(at, found)
              ? move : found, 0);
            return Array.from({length: count}, (_, at) => at).filter(at => best(at) !== student[at]);
        }""",
        [{"session": session, "run": run}, student],
    )
    page.locator(".where").click()
    for at in [at for at in differing if at > 0][:3]:
        page.keyboard.press("]")
        page.locator(f".where:text-matches('^move {at:,} ')").wait_for()
    page.get_by_label("Its settings").fill("depth=9")
    page.keyboard.press("Tab")
    page.locator(".choices [role=status]:has-text('from 1 to 3')").wait_for()


def test_the_critic_is_at_hand_on_the_pages(page: Any, viewer: Viewer) -> None:
    viewer.best_game()
    for link in ("#sessions", "#games"):
        open_link(page, link)
        page.locator(".critic-note:has-text('The critic judges ntuple, and not greedy')").wait_for()
        cells = page.locator("td > .odds, td.n .odds").all_text_contents()
        rows = page.locator("main tbody tr").count()
        if link == "#games":
            assert len(cells) == rows
            assert all("8K" in text and "32K" in text for text in cells)
        else:
            assert len(cells) == 3 * rows  # of the tiles 8192, 16384 and 32768
        assert all("%" in text for text in cells)
    open_link(page, "#overview")
    figure = page.locator("figure:has-text('The critic: predicted and reached')")
    figure.wait_for()
    assert "not greedy" in figure.text_content()
    figure.locator("summary").click()
    figure.locator("tbody tr").nth(5).wait_for()
    open_link(page, "#live")
    page.locator(".latest:has-text('halfway through the last 8 games')").wait_for()
    open_link(page, "#board")
    page.get_by_text("If ntuple plays on").wait_for()


def test_keyboard_reaches_every_control(page: Any, viewer: Viewer) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for key, name in (("s", "sessions"), ("g", "games"), ("b", "board"), ("o", "overview")):
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.locator(f"nav a[data-page={name}][aria-current]").wait_for()
        ready(page)
    page.keyboard.press("g")
    page.keyboard.press("g")
    ready(page)
    page.locator("main table a").first.wait_for()
    controls = "a, button:not(:disabled), input, select, summary, [tabindex='0']"
    wanted = page.locator(controls).count()
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    hidden = page.evaluate("document.querySelectorAll('details:not([open]) input').length")
    assert len(reached) >= wanted - hidden
    page.locator("main table a").first.focus()
    page.keyboard.press("Enter")
    page.locator(".replay").wait_for()
    page.keyboard.press("?")
    assert "the next, the previous large loss" in page.locator("dialog").text_content()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_a_board_is_pasted_edited_and_played_on(page: Any) -> None:
    open_link(page, "#board")
    page.locator("input[name=board]").fill("0x0100021034215987")
    page.keyboard.press("Enter")
    page.locator(".options .option").first.wait_for()
    page.locator(".edit button").nth(0).click()
    assert until(page, lambda: "board=1100021034215987" in page.url)
    page.locator(".edit button").nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    assert until(page, lambda: "board=1000021034215987" in page.url)
    page.get_by_role("button", name="Play on").click()
    page.get_by_role("heading", name="Played on by ntuple").wait_for()
    page.get_by_label("Played by").select_option("expectimax")
    page.get_by_label("Its settings").fill("depth=7")
    page.keyboard.press("Enter")
    page.locator(".message.error:has-text('from 1 to 3')").wait_for()
    page.get_by_label("Its settings").fill("depth=1")
    page.get_by_label("Moves, at most").fill("20")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Played on by expectimax:depth=1").wait_for()
    page.get_by_text("played on for 20 moves").wait_for()
    assert page.locator(".replay").count() == 1
    page.locator("input[name=board]").fill("3 3")
    page.keyboard.press("Enter")
    page.locator(".message.error").wait_for()


def test_conditions_select_or_are_explained(page: Any) -> None:
    open_link(page, "#games")
    page.locator("input[name=where]").fill("max_score >= 5000 AND steps > 10")
    page.keyboard.press("Enter")
    scores = page.locator("td[data-head^=score]")
    assert until(
        page,
        lambda: min(int(text.replace(",", "")) for text in [*scores.all_text_contents(), "5000"]) >= 5000,
    )
    page.locator("input[name=where]").fill("points > 3")
    page.keyboard.press("Enter")
    page.locator(".message.error:has-text('no such column')").wait_for()


def test_sorting_stands_in_the_link(page: Any) -> None:
    open_link(page, "#games")
    page.get_by_role("button", name="moves").click()
    page.locator(".sort[data-sorted=descending]:text('moves')").wait_for()
    moves = [int(text.replace(",", "")) for text in page.locator("td[data-head^=moves]").all_text_contents()]
    assert moves == sorted(moves, reverse=True)
    assert "sort=steps" in page.url
    page.go_back()
    page.locator(".sort[data-sorted=descending]:text('score')").wait_for()


def test_live_shows_a_recorder_within_seconds(
    start_viewer: Callable[..., Viewer],
    new_page: Callable[..., Any],
    tmp_path: Path,
    environment: dict[str, str],
) -> None:
    root = tmp_path / "live"
    root.mkdir()
    found = start_viewer(root)
    page = new_page(f"{found.link}#live")
    page.get_by_text("No recorder and no training").wait_for()
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", "greedy", "--workers", "1"]
    command += ["--max-games", "1000000", "--out-dir", str(root)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as recorder:
        try:
            page.locator(".state.on:text('recording')").wait_for()
            snapshot = json.loads((root / ".recorder/default.status.json").read_text())
            assert snapshot["status"]["state"] == "recording"
        finally:
            recorder.terminate()
    page.locator(".state:text('stopped')").wait_for()
    page.locator(
        ".latest:has-text('halfway through the last 8 games')"
    ).wait_for()  # of the session now published
