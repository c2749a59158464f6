"""The pages in a browser: keys, links, what axe finds, light and dark, at two widths."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from msgspec.structs import replace

from tape2048.critic import NTupleCritic
from tape2048.files.training_directory import TrainingDirectory
from tape2048.game.moves import recover
from tape2048.game.rules import boards_to_exps
from tape2048.runs import write_session
from tape2048.runs.run import Run, RunMeta
from tape2048_tools.viewer.game_data import read_game

from ..conftest import META, Cli, Game, write_session as write_toy_session
from ..small_sessions import session_name
from .conftest import SecondViewer, Viewer, until as wait_until

PAGES = ["overview", "sessions", "games", "board", "live", "critic"]


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page in a scheme and at a width; every error of the page's scripts fails the test."""
    contexts, errors = [], []

    def heard(said: Any) -> None:
        if said.type == "error" and "the server responded with a status of 4" not in said.text:
            errors.append(said.text)

    def make(
        viewer: Viewer, name: str = "", scheme: str = "light", width: int = 1280, height: int = 900
    ) -> Any:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        contexts.append(context)
        context.set_default_timeout(120_000)  # a critic is examined, a game judged, on a busy machine
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", heard)
        context.add_init_script(f"localStorage.setItem('key', '{viewer.key}')")
        page.goto(f"http://{viewer.address}/{name}")
        ready(page)
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(new_page: Callable[..., Any], viewer: Viewer) -> Any:
    return new_page(viewer)


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


def test_a_link_opens_the_pages_in_one_browser(browser: Any, viewer: Viewer) -> None:
    link, refused = viewer.link, "each link works once"
    first, second = browser.new_context(), browser.new_context()
    for context in (first, second, first):  # the first one keeps its key
        page = context.new_page()
        page.goto(f"{link}#games")
        ready(page)
        assert (refused in page.locator("main").text_content()) == (context is second)
        assert page.url == f"http://{viewer.address}/#games"
        assert context.cookies() == []
    page = second.new_page()
    page.goto(viewer.link)
    ready(page)
    assert refused not in page.locator("main").text_content()
    first.close()
    second.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 420), ("dark", 1280)])
def test_pages_are_accessible_and_fit(
    new_page: Callable[..., Any], viewer: Viewer, scheme: str, width: int
) -> None:
    """No page violates a rule of axe, or is wider than the screen."""
    session, run = viewer.best_game()
    page = new_page(viewer, "", scheme, width)
    for link in [
        *(f"#{name}" for name in PAGES),
        "#games?view=list",
        "#overview?two=1&b.where=run_id+%3E+5",
        f"#{session}/{run}/20",
        f"#{session}/{run}/20?beside={session}/{run}",
        "#nothing",
    ]:
        open_link(page, link)
        for words in ("Reading", "being evaluated"):
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
    page.keyboard.press("Space")
    assert until(page, lambda: board_shown(page) != exps[at].tolist())


def test_the_wheel_steps_over_the_curves_and_scrolls_elsewhere(
    new_page: Callable[..., Any], viewer: Viewer
) -> None:
    session, run = viewer.best_game()
    page = new_page(viewer, f"#{session}/{run}/30", height=500)

    slider = page.locator(".replay input[type=range]")
    page.locator(".replay .board").hover()
    page.mouse.wheel(0, 20)
    assert until(page, lambda: page.evaluate("scrollY") == 20)
    assert slider.input_value() == "30"
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 20)
    assert until(page, lambda: slider.input_value() == "31")
    page.keyboard.up("Shift")
    page.locator(".curve-area").hover()
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, -20)
    assert until(page, lambda: slider.input_value() == "30")
    assert page.evaluate("scrollY") == scrolled


def test_a_replay_fits_one_screen(new_page: Callable[..., Any], viewer: Viewer) -> None:
    """Board, controls, moves, loss and luck, mistakes, and curves are visible without scrolling."""
    session, run = viewer.best_game()
    page = new_page(viewer, f"#{session}/{run}/20", height=800)
    parts = [".board", ".controls", ".where", ".values table", ".values .facts", ".jumper >> nth=0"]
    parts += [".jumper >> nth=1", ".list tbody tr >> nth=0", ".curve-area canvas"]
    for part in parts:
        box = page.locator(f".replay {part}").bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 1280, part
        assert 0 <= box["y"] < box["y"] + box["height"] <= 800, part
    boxes = [
        page.locator(f".replay > {one}").bounding_box() for one in (".board-side", ".move-side", ".losses")
    ]
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    page.set_viewport_size({"width": 420, "height": 900})
    order = [".board", ".controls", ".curve-area canvas", ".values table", ".losses"]
    tops = [page.locator(f".replay {one}").bounding_box()["y"] for one in order]
    assert tops == sorted(tops)


def test_the_board_points_at_moves_and_marks_the_spawn(page: Any, viewer: Viewer, recorded: Path) -> None:
    session, run = viewer.best_game()
    name = viewer.json("/api/games")["rows"][0]["name"]
    (game,) = read_game(recorded / name, [int(run)], replayed=True)
    for at in (30, 31):
        open_link(page, f"#{session}/{run}/{at}")
        spawned = page.locator(".tile").evaluate_all("all => all.findIndex(one => one.matches('.spawned'))")
        assert spawned == recover(game.states[at - 1 : at + 1], game.moves[at - 1 : at]).cells[0]
        shown = page.locator(".arrows path[visibility=visible]")
        arrows = dict(
            shown.evaluate_all(
                "all => all.map(one => [one.getAttribute('class'), one.getAttribute('transform')])"
            )
        )
        turns = [f"rotate({turn} 50 50)" for turn in (0, 180, 270, 90)]
        notes = page.locator(".values tbody tr td:last-child").all_text_contents()
        assert arrows["best"] == turns[next(i for i, note in enumerate(notes) if "best" in note)]
        assert arrows.get("made", arrows["best"]) == turns[game.moves[at]]


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
    texts = losses.locator("td:nth-of-type(1)").all_text_contents()
    assert all(re.fullmatch(r"[\d,]+ ± [\d,]+", text) for text in texts)
    shown = [int(text.partition(" ")[0].replace(",", "")) for text in texts]
    assert shown[:5] == sorted(shown[:5], reverse=True)
    mistakes = page.evaluate(
        """async ([session, run]) => {
            const {askGame} = await import('/static/api.js');
            const {grade} = await askGame('replay', {session, run, judge: 0});
            return [...grade.entries()].filter(([, one]) => one >= 2).map(([at]) => at);
        }""",
        [session, run],
    )
    for step in mistakes[:3]:
        page.keyboard.press("n")
        page.locator(f".where:has-text('move {step:,} ')").wait_for()
    page.locator(f".jumper output:text('3 of {len(mistakes)}')").wait_for()
    page.keyboard.press("p")
    page.locator(f".where:has-text('move {mistakes[1]:,} ')").wait_for()
    first = losses.locator("a").first
    page.keyboard.press("N")
    losses.locator(f"[aria-current]:text-is('{first.text_content()}')").wait_for()
    grade = losses.first.locator(".grade").text_content()
    assert grade in {"mistake", "blunder"}
    assert page.locator(f".values .grade.{grade}").is_visible()
    words = re.compile(r"^about [\d,]+ ± [\d,]+(; \d+ falls from \S+% to \S+%)?, \w+$")
    assert words.match(page.locator(".values .grade").text_content())
    page.keyboard.press("]")
    notes = page.locator(".values tbody tr td:last-child")
    assert until(page, lambda: sorted(filter(None, notes.all_text_contents())) == ["best", "made"])
    page.get_by_label("Compare with").select_option(label="critic: 8192")
    page.locator('.values td:has-text("other\'s best")').wait_for()
    page.get_by_label("Judge").first.select_option(label="critic: 8192")
    page.locator(".values caption:text('P(8192) after each move')").wait_for()
    assert until(page, lambda: "judge=1" in page.url)


@pytest.mark.parametrize("width", [420, 1280])
def test_an_uncalibrated_judge_grades_nothing(
    start_viewer: Callable[..., Viewer], new_page: Callable[..., Any], recorded: Path, width: int
) -> None:
    """Its points are the network's, which the page says wherever it shows them."""
    viewer = start_viewer(recorded, "--judge", "own")
    session, run = viewer.best_game()
    page = new_page(viewer, f"#{session}/{run}/0", width=width)
    page.locator(".losses tbody a").first.click()
    for caption in (".values caption", ".losses caption", ".replay summary"):
        page.locator(f'{caption}:has-text("uncalibrated, in the network\'s points")').wait_for()
    assert page.locator(".grade, .jumper:has-text('Mistakes')").locator("visible=true").count() == 0
    assert "±" not in page.locator(".losses tbody").text_content()
    page.keyboard.press("n")
    page.keyboard.press("r")
    assert page.locator(".trials").is_hidden()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_label("Judge").first.select_option(index=1)  # the network, if its own player continues
    page.locator(".losses tbody td:has-text('±')").first.wait_for()
    page.locator(".losses .grade").first.wait_for()


@pytest.mark.parametrize(("scheme", "width"), [("light", 420), ("dark", 1280)])
def test_a_reader_tries_the_mistakes(
    new_page: Callable[..., Any], viewer: Viewer, scheme: str, width: int
) -> None:
    """The answer is hidden until the reader moves, and then compared."""
    session, run = viewer.best_game()
    page = new_page(viewer, f"#{session}/{run}/0", scheme, width)
    first, second = page.evaluate(
        """async ([session, run]) => {
            const {askGame} = await import('/static/api.js');
            const {expandGame} = await import('/static/rules.js');
            const {grade, moves, values} = expandGame(await askGame('replay', {session, run, judge: 0}));
            return [...grade.entries()].filter(([, one]) => one >= 2).slice(0, 2).map(([at]) =>
              ({at, made: moves[at], values: [...values.subarray(4 * at, 4 * at + 4)].map(one => one || 0)}));
        }""",
        [session, run],
    )
    keys, names = ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"], ["up", "down", "left", "right"]
    best = [one["values"].index(max(one["values"])) for one in (first, second)]
    page.get_by_role("button", name="Try the mistakes").click()
    where, notice = page.locator(".where"), page.locator(".notice")
    assert until(page, lambda: where.text_content().startswith(f"move {first['at']:,} "))
    assert page.locator(".trials").is_visible()
    for hidden in (".values", ".list", ".curve-area", ".controls", ".arrows path[visibility=visible]"):
        assert page.locator(f".replay {hidden} >> visible=true").count() == 0, hidden
    assert "then a" not in page.locator("p.made").text_content()
    assert violations(page) == []
    for key in ("End", "]", "PageDown"):  # they would show the boards after it
        page.keyboard.press(key)
    if illegal := [move for move, value in enumerate(first["values"]) if not value]:
        page.keyboard.press(keys[illegal[0]])
        assert "moves no tile" in notice.text_content()
    page.keyboard.press(keys[best[0]])
    assert until(page, lambda: "your best moves: 1 of 1" in notice.text_content())
    told = notice.text_content()
    assert f"{names[best[0]]}, the best move · Player:" in told
    assert f"{names[first['made']]}, loss" in told
    assert where.text_content().startswith(f"move {first['at']:,} ")
    assert page.locator(".values table").is_visible()
    assert violations(page) == []
    page.keyboard.press("n")
    assert until(page, lambda: where.text_content().startswith(f"move {second['at']:,} "))
    page.get_by_role("button", name=f"Move {names[second['made']]}").click()
    assert until(page, lambda: "your best moves: 1 of 2" in notice.text_content())
    assert f"You: {'↑↓←→'[second['made']]} {names[second['made']]}, loss" in notice.text_content()
    page.get_by_role("button", name="Try the next").click()
    page.get_by_role("button", name="Answer").click()
    assert until(page, lambda: notice.text_content().startswith("Player:"))
    page.keyboard.press("Escape")
    assert page.locator(".trials").is_hidden()
    assert page.locator(".controls").is_visible()


@pytest.mark.parametrize("what", ["tiles", "0x…"])
def test_copied_boards_are_read_everywhere(
    page: Any, viewer: Viewer, cli: Cli, tmp_path: Path, what: str
) -> None:
    session, run = viewer.best_game()
    page.evaluate("() => { navigator.clipboard.writeText = async text => { window.copied = text; }; }")
    open_link(page, f"#{session}/{run}/30")
    page.get_by_role("button", name=f"Copy {what}").click()
    page.get_by_text("Copied:").wait_for()
    board, shown = page.evaluate("copied"), board_shown(page)
    page.evaluate("() => { navigator.clipboard.writeText = async () => { throw new Error('insecure'); }; }")
    page.get_by_role("button", name=f"Copy {what}").click()
    page.get_by_text(f"Copy it: {board}").wait_for()
    document = viewer.json(f"/api/board?board={board.replace(' ', '+').replace('/', '%2F')}")
    assert document["exps"] == shown
    assert json.loads(cli("critic", "ask", board, "--json").out)["boards"][0]["exps"] == shown
    (tmp_path / "starts.txt").write_text(f"{board}\n")
    cli("player", "eval", "greedy", "--from", tmp_path / "starts.txt", "--games", 1)


@pytest.mark.parametrize("move", ["", "#move=40"])
def test_a_saved_game_opens_without_a_server(
    page: Any, viewer: Viewer, browser: Any, tmp_path: Path, move: str
) -> None:
    """At the move at which it was saved, or at the move of its address."""
    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/30")
    page.locator(".losses tbody tr").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this game").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert str(session) not in path.name
    context = browser.new_context(offline=True)
    asked: list[str] = []
    saved = context.new_page()
    saved.on("request", lambda request: asked.append(request.url))
    saved.goto(path.as_uri() + move)
    ready(saved)
    number = 40 if move else 30
    assert until(saved, lambda: saved.locator(".where").text_content().startswith(f"move {number} of"))
    if not move:
        assert board_shown(saved) == board_shown(page)
    worst = page.locator(".losses tbody tr").first.text_content()
    assert saved.locator(".losses tbody tr").first.text_content() == worst
    saved.keyboard.press("N")
    saved.wait_for_url(f"**#move={worst.partition(' ')[0].replace(',', '')[:1]}*")
    assert violations(saved) == []
    saved.get_by_role("button", name="Save PNG").click()
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
    context.close()


def test_the_shown_board_is_saved_as_a_picture(page: Any, viewer: Viewer, tmp_path: Path) -> None:
    from PIL import Image

    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/30")
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        assert download.value.suggested_filename == f"board-30.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
    texts = re.findall(r"<text[^>]*>(\d*)</text>", (tmp_path / "SVG").read_text())
    assert [int(text).bit_length() - 1 if text else 0 for text in texts] == board_shown(page)
    picture = Image.open(tmp_path / "PNG").convert("RGB")
    colours = page.locator(".replay .tile").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    corners = [(40 + 220 * (cell % 4), 40 + 220 * (cell // 4)) for cell in range(16)]
    assert [f"rgb{picture.getpixel(at)}" for at in corners] == colours


def test_links_to_what_is_gone_say_so(page: Any, viewer: Viewer) -> None:
    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/999999")
    page.get_by_text("Move 999,999 has no recorded board.").wait_for()
    open_link(page, f"#{session}/{run}/30")
    assert page.get_by_text("has no recorded board").count() == 0
    for link in (f"#{session}/999999/0", "#0123456789/1/0"):
        open_link(page, link)
        assert page.locator(".message.error").count() == 1, link


def test_the_curves_zoom_into_a_range(page: Any, viewer: Viewer) -> None:
    """By dragging or by keys; 40 losses are marked at most, the largest ones."""
    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/0")
    label = page.locator(".curve-area canvas").get_attribute
    whole = label("aria-label")
    total, marked = [int(found[1]) for found in re.finditer(r"(?:over|Marked:) (\d+)", whole)]
    losses = page.evaluate(
        """async ([session, run]) => {
            const {askGame} = await import('/static/api.js');
            const {grade} = await askGame('replay', {session, run, judge: 0});
            return grade.filter(one => one >= 1).length;
        }""",
        [session, run],
    )
    assert marked == min(40, losses)
    box = page.locator(".curve-area").bounding_box()
    x, y = box["x"] + (box["width"] + 46) / 2, box["y"] + 40
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 100, y)
    page.mouse.move(x + 200, y)
    assert page.locator(".band").is_visible()
    page.mouse.up()
    first, last = map(int, re.search(r"from (\d+) to (\d+)", label("aria-label")).groups())
    assert abs(first - total / 2) <= 1
    assert last - first == pytest.approx(200 / (box["width"] - 46) * total, abs=2)
    assert page.locator(".where").text_content().startswith("move 0 ")
    page.keyboard.press("End")  # the zoom follows
    assert until(page, lambda: f"to {total}:" in label("aria-label"))
    page.mouse.dblclick(x, y)
    assert label("aria-label") == whole
    for _ in range(20):
        page.keyboard.press("+")
    first, last = map(int, re.search(r"from (\d+) to (\d+)", label("aria-label")).groups())
    assert last - first == 10
    page.get_by_role("button", name="Whole game").click()
    assert label("aria-label") == whole
    assert page.locator(".whole").is_hidden()


def test_a_planted_blunder_comes_first_in_the_list(
    second_viewer: SecondViewer, new_page: Callable[..., Any]
) -> None:
    """A board at which one move loses the corner, and that move made."""
    from tape2048.game.moves import find_fault
    from tape2048_recorder.replay.judging import Judge
    from tape2048_tools.viewer.game_data import play_on

    judge = Judge.of_player("ntuple", {"weights": "fast"})
    game = play_on(0x0000000012345678, judge, seed=1)
    states, moves = game.states[:40].tolist(), game.moves[:39].tolist()
    options = judge.board(states[-1])
    worst = min(options, key=lambda option: option.value)
    after = play_on(worst.spawns[0].board, judge, seed=2)
    boards = np.array([*states, *after.states.tolist()], np.uint64)
    made = np.array([*moves, worst.move, *after.moves.tolist()], np.uint8)
    _, score = find_fault(boards, made, np.uint64(0), np.uint64(0))
    highest = 1 << int(boards_to_exps(boards).max())
    run = Run(boards, made, RunMeta(steps=len(made), max_score=score, highest_tile=highest))
    write_session(second_viewer.planted / "20260101T000000Z_model=planted", [run])
    found = second_viewer.viewer
    planted = "/api/games?where=model+%3D+%27planted%27"
    wait_until(lambda: found.json(planted)["rows"])
    rows = found.json(planted)["rows"]
    page = new_page(found, f"#{rows[0]['session']}/{rows[0]['run']}/0")
    assert page.locator(".losses tbody th").first.text_content() == "39"


def test_two_games_of_one_seed_stand_side_by_side(
    second_viewer: SecondViewer, new_page: Callable[..., Any], cli: Cli
) -> None:
    more_of = {second_viewer.first: "", second_viewer.second: ",look=16,look_margin=0"}
    for root, more in more_of.items():
        flags = ["--player", f"ntuple:weights=fast{more}", "--max-games", "1", "--seed", "5"]
        cli("record", *flags, "--workers", "1", "--out", str(root), process=True)
    found = second_viewer.viewer
    time.sleep(1.1)  # until it lists the directories again
    session, run = found.best_game()
    page = new_page(found, f"#{session}/{run}/0")
    page.locator("summary:text('Compare with another game')").click()
    choice = page.get_by_label("Game with the same seed")
    choice.select_option(index=1)
    page.locator("section[aria-label='The other game']").wait_for()
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
    page.locator("summary:text('Compare with another game')").click()
    page.get_by_label("Any other game").fill("no link")
    page.keyboard.press("Enter")
    assert "holds its session" in page.get_by_label("Any other game").evaluate("one => one.validationMessage")
    page.get_by_label("Any other game").fill(f"http://127.0.0.1/#{other}/3?judge=1")
    page.get_by_role("button", name="Show", exact=True).click()
    beside = page.locator("section[aria-label='The other game']")
    beside.wait_for()
    assert f"Game {rows[0]['run']} of" in page.locator(".more").text_content()
    page.get_by_text("no board in common").wait_for()
    page.keyboard.press("]")  # by the judge, since the games have nothing in common
    page.locator(".where:not(:text('move 0 '))").first.wait_for()
    page.get_by_role("link", name="Choose from the list").click()
    page.get_by_role("heading", name="Choose a game").wait_for()
    page.locator(".gallery a").nth(1).click()
    beside.wait_for()
    second = viewer.json("/api/games")["rows"][1]
    assert f"Game {second['run']} of" in page.locator(".more").text_content()
    page.get_by_role("button", name="Show one game").click()
    beside.wait_for(state="detached")
    ready(page)
    open_link(page, f"#{session}/{run}/0?beside=0123456789/1")
    page.locator(".message.error:has-text('no session')").wait_for()
    assert page.locator(".replay").count() == 1  # the game itself is shown


def test_a_player_is_the_student_of_a_judge(page: Any, viewer: Viewer) -> None:
    session, run = viewer.best_game()
    open_link(page, f"#{session}/{run}/0")
    page.get_by_label("Compare with").select_option("expectimax")
    page.get_by_label("Settings that differ").fill("depth=1")
    page.keyboard.press("Tab")
    page.locator('.values td:has-text("other\'s best")').wait_for()
    student = viewer.json(f"/api/choices?session={session}&run={run}&player=expectimax:depth=1")["moves"]
    differing = page.evaluate(
        """async ([given, student]) => {
            const {askGame} = await import('/static/api.js');
            const {values, count} = await askGame('replay', given);
            const worth = (at, move) => Number.isNaN(values[4 * at + move]) ? -1 : values[4 * at + move];
            const best = at => [1, 2, 3].reduce((found, move) => worth(at, move) > worth(at, found)
              ? move : found, 0);
            return Array.from({length: count}, (_, at) => at)
              .filter(at => worth(at, best(at)) !== worth(at, student[at]));
        }""",
        [{"session": session, "run": run}, student],
    )
    page.locator(".where").click()
    for at in [at for at in differing if at > 0][:3]:
        page.keyboard.press("]")
        page.locator(f".where:text-matches('^move {at:,} ')").wait_for()
    page.get_by_label("Settings that differ").fill("depth=9")
    page.keyboard.press("Tab")
    page.locator(".move-side [role=status]:has-text('from 1 to 3')").wait_for()


def test_the_critic_is_at_hand_on_the_pages(
    start_viewer: Callable[..., Viewer], new_page: Callable[..., Any], recorded: Path, tmp_path: Path
) -> None:
    """A critic that names no player, and so knows all of them."""
    critic = NTupleCritic.load("default")
    critic.info = replace(critic.info, players=[])
    critic.save(tmp_path / "any.critic", preset=0)
    viewer = start_viewer(recorded, "--critic", tmp_path / "any.critic")
    viewer.best_game()
    page = new_page(viewer)
    for link in ("#sessions", "#games?view=list"):
        open_link(page, link)
        note = page.locator(".critic-note")
        page.locator(".odds:text('…')").first.wait_for(state="detached")
        cells = page.locator("td > .odds, td.n .odds").all_text_contents()
        rows = page.locator("main tbody tr").count()
        if link != "#sessions":
            assert len(cells) == rows
            for tile in ("8K", "16K", "32K"):  # either by game, or once for all
                assert all(tile in text for text in cells) or tile in note.text_content()
            assert all("%" in text for text in cells)
        else:
            assert len(cells) % rows == 0  # of the tiles of the table
            # Of the critic's tiles: in the table, or below the name.
            told = [row.locator(".odds", has_text="%").count() for row in page.locator("main tbody tr").all()]
            assert all(told)
    open_link(page, "#overview")
    figure = page.locator("figure:has-text('The critic: predicted and reached')")
    figure.wait_for()
    figure.locator("summary").click()
    figure.locator("tbody tr").nth(5).wait_for()
    open_link(page, "#live")
    page.locator(".latest:has-text('halfway through the last 8 games')").wait_for()


def test_the_critic_says_nothing_of_other_players(page: Any, viewer: Viewer) -> None:
    """No figure and no probability of the shipped critic for games of greedy; and what cannot be measured."""
    viewer.best_game()
    for link in ("#sessions", "#games?view=list"):
        open_link(page, link)
        page.locator(".critic-note:has-text('trained on games of strong, not of greedy.')").wait_for()
        assert "%" not in "".join(page.locator("td > .odds, td.n .odds").all_text_contents())
    open_link(page, "#overview")
    page.locator(".message:has-text('Reading')").wait_for(state="detached")
    assert page.locator("figure:has-text('The critic')").count() == 0
    open_link(page, "#critic")
    for tile in (8192, 16384, 32768):
        page.get_by_text(f"{tile} is not measured: 0 of 40 games reached it.").wait_for()
    assert page.get_by_text("These are games of greedy.").count() == 1
    assert page.locator("main figure, main table").count() == 0
    open_link(page, "#board")
    page.get_by_text("If strong, the player of its training, continues the game").wait_for()


NAMES = [
    "python:" + "very_long_name_" * 9,
    "\u05e9\u05d7\u05e7\u05df " * 6,
    "\U0001f3ae" * 30,
    "<img src=x onerror=alert(1)>",
]


def test_any_players_name_fits_the_pages(second_viewer: SecondViewer, new_page: Callable[..., Any]) -> None:
    """Long, from right to left, of emoji, or markup: nothing is wider than a phone."""
    for at, name in enumerate(NAMES):
        meta = {**META, "player": name, "player_args": {"n": at}, "player_sha256": f"{at}f" * 32}
        games = [Game(run, 9, 100 * run + at, 64 << run % 2) for run in range(1, 5)]
        write_toy_session(second_viewer.first / session_name(70 + at), games, meta)
    wait_until(lambda: second_viewer.viewer.json("/api/players")["total"] >= len(NAMES))
    page = new_page(second_viewer.viewer, "", "light", 420)
    labels = [one["label"] for one in second_viewer.viewer.json("/api/players")["players"]]
    query = urlencode({"two": 1, "player": labels[0], "b.player": labels[1]})
    for link in ("#overview", f"#overview?{query}", "#sessions", "#games", "#games?view=list"):
        open_link(page, link)
        page.locator(".message:has-text('Reading')").wait_for(state="detached")
        assert violations(page) == [], link
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), link
    for at in range(len(NAMES)):
        shutil.rmtree(second_viewer.first / session_name(70 + at))


def test_games_that_end_in_a_phase(page: Any, viewer: Viewer) -> None:
    """A click into the chart, or a link in its table, lists them; each opens at the move before its end."""
    open_link(page, "#overview")
    figure = page.locator("figure:has-text('Where games end')")
    figure.locator("svg").click(position={"x": 220, "y": 60})
    page.wait_for_url("**at=end")
    card = page.locator(".gallery a").first
    card.wait_for()
    moves = re.search(r"([\d,]+) moves", card.text_content())[1].replace(",", "")
    assert card.get_attribute("href").endswith(f"/{int(moves) - 1}")
    open_link(page, "#overview")
    figure.locator("summary").click()
    link = figure.locator("tbody a").first
    link.wait_for()
    assert "min_steps=0&max_steps=" in link.get_attribute("href")


def test_two_selections_are_named_by_what_differs(page: Any, viewer: Viewer) -> None:
    open_link(page, "#overview?two=1&where=run_id+%3E+5&b.max_steps=900")
    assert [name.text_content() for name in page.locator("h2.name").all()] == ["run_id > 5", "moves to 900"]
    answer = page.locator("section").first.text_content()
    assert re.search(r"^(run_id > 5|moves to 900) scores [\d,]+ ± [\d,]+ more than ", answer)
    assert re.search(r"\d+ and \d+ games, taken as independent; .* \d+ games in both selections", answer)
    assert "stronger" not in answer, "it is one player"


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
    page.locator(".gallery a .tile").first.wait_for()
    controls = "a, button:not(:disabled), input, select, summary, [tabindex='0']"
    wanted = page.locator(controls).count()
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    hidden = page.evaluate("document.querySelectorAll('details:not([open]) :is(input, button)').length")
    assert len(reached) >= wanted - hidden
    page.locator(".gallery a").first.focus()
    page.keyboard.press("Enter")
    page.locator(".replay").wait_for()
    page.keyboard.press("?")
    assert "the previous, the next mistake or blunder" in page.locator("dialog").text_content()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_a_board_is_pasted_edited_and_played_on(page: Any) -> None:
    open_link(page, "#board")
    page.locator("input[name=board]").fill("0x0100021034215987")
    page.keyboard.press("Enter")
    page.get_by_text("Read as hexadecimal exponents").wait_for()
    page.locator("input[name=board]").fill("2 2 2 2 / 4 4 4 4 / 8 8 8 8 / 2 2 2 2")
    page.keyboard.press("Enter")
    page.get_by_text("Read as tiles").wait_for()
    page.get_by_role("button", name="Read as exponents").click()
    assert until(page, lambda: "board=2222444488882222" in page.url)
    page.locator("input[name=board]").fill("0x0100021034215987")
    page.keyboard.press("Enter")
    page.locator(".edit button:text-is('512')").wait_for()
    page.locator(".edit button").nth(0).click()
    assert until(page, lambda: "board=1100021034215987" in page.url)
    page.locator(".edit button").nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    assert until(page, lambda: "board=1000021034215987" in page.url)
    page.get_by_role("button", name="Play on").click()
    page.get_by_role("heading", name="Played on by ntuple").wait_for()
    page.get_by_label("Played by").select_option("expectimax")
    page.get_by_label("Settings that differ").fill("depth=7")
    page.keyboard.press("Enter")
    page.locator(".message.error:has-text('from 1 to 3')").wait_for()
    page.get_by_label("Settings that differ").fill("depth=1")
    page.get_by_label("Most moves").fill("20")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Played on by expectimax:depth=1").wait_for()
    page.get_by_text("played on for 20 moves").wait_for()
    assert page.locator(".replay").count() == 1
    page.locator("input[name=board]").fill("3 3")
    page.keyboard.press("Enter")
    page.locator(".message.error").wait_for()


def test_the_moves_of_a_board_are_played_on(page: Any, viewer: Viewer) -> None:
    """By the player of a replayed game, or by a chosen player; each press adds games."""
    session, run = viewer.best_game()
    last = viewer.json("/api/games")["rows"][0]["steps"]
    open_link(page, f"#{session}/{run}/{last - 50}")
    page.keyboard.press("[")  # a move that the judge would not make
    page.get_by_role("button", name="Play both on, 100 games").click()
    page.get_by_text(re.compile("^100 games from both moves")).wait_for()
    assert re.search(
        r"(Up|Down|Left|Right) scores [\d,]+ ± [\d,]+ more", page.locator(".rollouts").text_content()
    )
    cells = page.locator(".rollouts tbody td").all_text_contents()
    assert all(re.fullmatch(r"[\d,]+ ± [\d,]+", text) for text in cells[::2])
    assert all(re.fullmatch(r"\S+% \(\S+% to \S+%\)", text) for text in cells[1::2])
    means = [float(text.partition(" ")[0].replace(",", "")) for text in cells[::2]]
    assert means == sorted(means, reverse=True)
    assert violations(page) == []
    page.get_by_role("button", name="Play 100 more games").click()
    page.get_by_text(re.compile("^200 games from both moves")).wait_for()
    page.locator(".where").click()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name=re.compile("Play (both|each move) on, 100")).wait_for()
    assert page.locator(".rollouts tbody").count() == 0
    open_link(page, "#board?board=0x1000021034215987")
    page.get_by_label("Played by").select_option("greedy")
    page.get_by_role("button", name="Play each move on").click()
    page.get_by_text(re.compile("^100 games from each move")).wait_for()
    assert page.locator(".rollouts tbody tr").count() == page.locator(".option").count()


def test_back_keeps_the_scroll_position(new_page: Callable[..., Any], viewer: Viewer) -> None:
    page = new_page(viewer, "#games", height=400)
    page.locator(".gallery a .tile").first.wait_for()
    page.locator(".gallery a").nth(24).scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    assert before > 400
    page.locator(".gallery a").nth(24).click()
    page.locator(".replay").wait_for()
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("ArrowRight")
    assert until(page, lambda: page.url.endswith("/1"))
    page.go_back()
    page.locator(".gallery").wait_for()
    assert until(page, lambda: page.evaluate("scrollY") == before)


@pytest.mark.parametrize("link", ["board?board=010002103421a987", "live", "games"])
def test_nothing_scrolls_sideways_at_200_percent(
    new_page: Callable[..., Any], viewer: Viewer, link: str
) -> None:
    page = new_page(viewer, f"#{link}", width=640, height=400)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    wide = (
        "[...document.querySelectorAll('main .wide')].filter(one => one.scrollWidth > one.clientWidth).length"
    )
    assert page.evaluate(wide) == 0


def test_conditions_select_or_are_explained(page: Any) -> None:
    open_link(page, "#games?view=list")
    page.locator("summary:text('Conditions')").click()
    page.locator("input[name=where]").fill("score >= 5000 AND steps > 10")
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
    open_link(page, "#games?view=list")
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
    page = new_page(found, "#live")
    page.get_by_text("no recorders and no trainings").wait_for()
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", "greedy", "--workers", "1"]
    command += ["--max-games", "1000000", "--out", str(root)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as recorder:
        try:
            page.locator(".state.on:text('recording')").wait_for()
            snapshot = json.loads((root / ".recorder/default.status.json").read_text())
            assert snapshot["status"]["state"] == "recording"
            page.locator(".recorder figure svg[aria-label^='Moves per second.']").wait_for()
            moving = page.locator(".live-game p:has-text('just recorded: move')")
            moving.wait_for()
            before = moving.text_content()
            assert until(page, lambda: moving.text_content() != before)
        finally:
            recorder.terminate()
    assert recorder.returncode == 0
    page.locator(".state:text('stopped')").wait_for()
    page.locator(
        ".latest:has-text('halfway through the last 8 games')"
    ).wait_for()  # of the session now published


def test_recorder_that_dies_is_shown_as_dead(
    start_viewer: Callable[..., Viewer],
    new_page: Callable[..., Any],
    tmp_path: Path,
    environment: dict[str, str],
) -> None:
    """The page stays, without an error, and shows the game to its end."""
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", "greedy", "--workers", "1"]
    command += ["--max-games", "1000000", "--storage", "tape", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as recorder:
        try:
            page = new_page(start_viewer(tmp_path), "#live")
            page.locator(".live-game .tile:not(.t0)").first.wait_for()
        finally:
            os.killpg(recorder.pid, signal.SIGKILL)
    page.locator(".state:not(.on):text('stale')").wait_for()
    page.locator(".live-game p:has-text('points')").wait_for()
    assert page.locator(".recorder figure").is_hidden()
    assert page.locator(".message.error").count() == 0


def test_three_questions_take_two_clicks(
    start_viewer: Callable[..., Viewer], new_page: Callable[..., Any], copied: Path
) -> None:
    for number, (player, tile) in enumerate([("ntuple", 16384), ("expectimax", 4096)]):
        games = [Game(seed, 4, 10, tile) for seed in range(60)]
        meta = {**META, "player": player, "player_sha256": str(number) * 64, "player_args": {}}
        write_toy_session(copied / session_name(number), games, meta)
    viewer = start_viewer(copied)
    viewer.best_game()
    # The costliest mistake of the best game: one click.
    page = new_page(viewer)
    page.locator(".headline a").click()
    costliest = page.locator(".losses tbody tr").first.locator("td").first
    costliest.wait_for()
    most = page.evaluate(
        """async hash => {
            const {askGame} = await import('/static/api.js');
            const [session, run] = hash.slice(1).split('/');
            const {loss} = await askGame('replay', {session, run, judge: 0});
            return Math.max(...loss.filter(one => !Number.isNaN(one)));
        }""",
        page.evaluate("location.hash"),
    )
    assert float(costliest.text_content().partition(" ")[0].replace(",", "")) == pytest.approx(most, rel=0.5)
    # Which of two players reaches 16384 more often: one click.
    page = new_page(viewer)
    page.get_by_role("link", name=re.compile("Compare ntuple .*with expectimax")).click()
    row = page.locator("tbody tr:has(th:text-is('16K'))")
    row.wait_for()
    cells = row.locator("td").all_text_contents()
    assert page.locator("thead:has(th:text-is('tile')) th").all_text_contents()[1:3] == [
        "ntuple",
        "expectimax",
    ]
    assert cells == ["100%94%\u2013100%", "0%0%\u20136.0%", "+100.0+91.5 to +100.0"]
    assert violations(page) == []
    # The critic's opinion of a pasted board: one click.
    page = new_page(viewer)
    page.locator("nav a[data-page=board]").click()
    page.locator("input[name=board]").fill("0x0100021034215987")
    page.keyboard.press("Enter")
    page.get_by_text("If strong, the player of its training, continues the game").wait_for()


def test_cards_leave_out_the_loss_by_a_weaker_judge(page: Any) -> None:
    page.evaluate(
        """async () => {
            const {gallery} = await import('/static/lists.js');
            const row = {run: 1, score: 1, tile: 1024, steps: 1, player: 'p', full: 'p'};
            const card = {exps: new Array(16).fill(15), spark: [], luck: 1,
                loss: 1, mistakes: 0, blunders: 0};
            const cards = [card, {...card, weak: true}];
            const main = document.getElementById('main');
            main.replaceChildren(gallery([row, row], cards, () => '#'));
        }"""
    )
    both = page.locator(".gallery a").all_text_contents()
    assert ["loss -1" in text for text in both] == [True, False]
    assert all("32K" * 16 in text for text in both)


def test_gallery_shows_what_annotate_found(
    start_viewer: Callable[..., Viewer], new_page: Callable[..., Any], copied: Path, cli: Cli
) -> None:
    first = min(copied.glob("2*"))
    cli("annotate", str(first), "--judge", "ntuple:weights=fast", "--quiet", process=True)
    viewer = start_viewer(copied)
    viewer.best_game()
    page = new_page(viewer, "#games?sort=loss")
    page.locator(".gallery a:has-text('mistake')").nth(19).wait_for()
    texts = page.locator(".gallery a:has-text('mistake')").all_text_contents()
    units = {"": 1, "K": 1e3, "M": 1e6}
    losses = [re.search(r"loss -([\d.]+)([KM]?)", text).groups() for text in texts]
    losses = [float(number) * units[unit] for number, unit in losses]
    assert losses == sorted(losses, reverse=True)
    heights = page.locator(".gallery a").evaluate_all("all => all.map(one => one.clientHeight)")
    assert max(heights) - min(heights) <= 1
    assert page.locator(".gallery a").nth(25).get_by_text("mistake").count() == 0  # not judged: at the end
    assert page.locator(".gallery .spark path[d^=M]").count() == 40
    assert page.locator(".gallery .board .tile").count() == 40 * 16
    page.get_by_role("button", name="List").click()
    page.locator("caption:has-text('the same in every row: player greedy')").wait_for()
    page.locator("button.sort[data-sorted=descending]:text('loss')").wait_for()


def test_ended_trainings_are_folded_away(
    start_viewer: Callable[..., Viewer], new_page: Callable[..., Any], tmp_path: Path
) -> None:
    """A running training is shown with its curves, without figures of one point; an ended one by its name."""
    for parent, lines in (("now", 5), ("before", 5), ("begun", 1)):
        (tmp_path / parent / "run").mkdir(parents=True)
        texts = [
            json.dumps({"moves": 10 * i, "moves_in_all": 100, "elapsed_s": i, "mean_score": i})
            for i in range(lines)
        ]
        (tmp_path / parent / "run/metrics.jsonl").write_text("\n".join(texts) + "\n")
    with (
        TrainingDirectory(tmp_path / "now/run", "moves").locked(),
        TrainingDirectory(tmp_path / "begun/run", "moves").locked(),
    ):
        page = new_page(start_viewer(*(tmp_path / name for name in ("now", "before", "begun"))), "#live")
        page.get_by_role("heading", name="Trainings in now").wait_for()
        curves = page.locator("figure:has-text('mean score')")
        curves.first.wait_for()
        assert curves.locator("visible=true").count() == 1
        ended = page.locator("details:has-text('Trainings that have ended: before')")
        assert not page.get_by_role("heading", name="Trainings in before").is_visible()
        ended.locator("summary").first.click()
        page.get_by_role("heading", name="Trainings in before").wait_for()
