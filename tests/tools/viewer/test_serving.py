"""Who is answered, what is refused, and how a viewer begins and ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest

from tape2048.errors import MissingPathError

from .conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import SecondViewer, Viewer


# --- who is answered


def test_link_sets_a_strict_cookie(viewer: Viewer) -> None:
    code, body, headers = viewer.get(f"/?token={viewer.token}", Cookie="")
    assert code == 200
    assert b"<main" in body
    cookie = headers["set-cookie"]
    assert viewer.cookie in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert headers["content-security-policy"].startswith("default-src 'self'")


@pytest.mark.parametrize(
    "path", ["/", "/api/games", "/api/live", "/static/app.js", "/static/nothing", "/nothing"]
)
def test_nothing_is_answered_without_the_token(viewer: Viewer, path: str) -> None:
    assert viewer.refusal(path, Cookie="")[0] == 403
    wrong = viewer.cookie[:-1] + ("a" if viewer.cookie[-1] != "a" else "b")
    assert viewer.refusal(path, Cookie=wrong)[0] == 403
    assert viewer.refusal(f"{path}?token=wrong", Cookie="")[0] == 403
    assert viewer.refusal(path, Cookie="tape2048_view_1=%C3%A9")[0] == 403


def test_token_in_the_query_opens_the_first_page_only(viewer: Viewer) -> None:
    assert viewer.refusal(f"/api/games?token={viewer.token}", Cookie="")[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_foreign_host_is_refused_with_the_token_too(viewer: Viewer, host: str) -> None:
    assert viewer.get("/api/games", Host=host)[0] in {400, 421}


def test_a_host_that_was_allowed_is_answered(second_viewer: SecondViewer) -> None:
    other = second_viewer.viewer
    port = other.address.rpartition(":")[2]
    assert other.get("/api/about", Host=f"box.example:{port}")[0] == 200
    assert other.get("/api/about", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/games", "/static/app.js"])
def test_only_get_is_answered(viewer: Viewer, method: str, path: str) -> None:
    assert viewer.get(path, method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/%2e%2e/data.py", "/static//etc/passwd",
        "/static/index.html", "/../../etc/passwd", "/api/replay/../../etc", "/static/style.css%00.js",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_files_of_the_pages(viewer: Viewer, path: str) -> None:
    assert viewer.refusal(path)[0] == 404


# --- what is refused


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ("games?where=scores%20%3D%201", 422, "no such column"),
        ("games?where=1)%20LIMIT%20(5", 422, "refused"),
        ("games?min_score=x", 400, "expected a number"),
        ("games?since=yesterday", 400, "expected a date"),
        ("games?sort=nothing", 400, "expected one of"),
        ("games?page=-1", 400, "expected a number"),
        ("games?session=0123456789", 404, "no session"),
        ("replay?session=../../etc/passwd&run=1", 404, "no session"),
        ("replay?session=0123456789&run=0", 404, "no session"),
        ("board?board=3%203", 400, "expected 16"),
        ("board?board=" + "+".join(["3"] * 15) + "+65536", 400, "32768"),
        ("board?board=0x0123456789abcdef&judge=99", 404, "no judge"),
        ("training?id=nothing", 404, "no training"),
        ("play-on?board=0x1&player=python:os:system", 422, "built-in"),
        ("play-on?board=0x1&player=ntuple:weights=/etc/passwd", 422, "one that ships"),
        ("play-on?board=0x1&player=expectimax:depth=4", 422, "from 1 to 3"),
        ("play-on?board=0x1&moves=20001", 400, "at most 20000"),
        ("choices?player=nobody&session=0123456789&run=0", 422, "no player is called"),
        ("choices?player=greedy&session=0123456789&run=0", 404, "no session"),
        ("opinions?of=0123456789", 404, "no session"),
        ("opinions?of=" + 50 * ",", 400, "at most 50"),
    ],
)
def test_bad_questions_are_refused_by_name(viewer: Viewer, query: str, code: int, words: str) -> None:
    found, document = viewer.refusal(f"/api/{query}")
    assert found == code
    assert words in document["message"]


def test_a_run_that_is_not_there_is_refused(viewer: Viewer) -> None:
    session, run = viewer.best_game()
    for number in ("99999999", str(2**64 - 1), str(10**19)):
        assert viewer.refusal(f"/api/replay?session={session}&run={number}")[0] == 404
    assert viewer.refusal(f"/api/replay?session={session}&run={run}&judge=17")[0] == 404
    assert viewer.refusal(f"/api/replay?session={session}&run=x")[0] == 400


def test_answers_hold_no_path(viewer: Viewer, recorded: Path) -> None:
    session, run = viewer.best_game()
    names = ("about", "overview", "games", "sessions", "examination")
    for query in (*names, f"replay?session={session}&run={run}"):
        code, body, _ = viewer.get(f"/api/{query}")
        assert code == 200
        assert str(recorded.parent).encode() not in body


def test_damage_while_shown_affects_one_session(
    start_viewer: Callable[..., Viewer], recorded: Path, copied: Path
) -> None:
    found = start_viewer(copied)
    found.best_game()
    every = found.json("/api/games?sort=session")["rows"]
    first, second = sorted({row["session"]: row for row in every}.items(), key=lambda one: one[1]["name"])
    gone, damaged = copied / first[1]["name"], copied / second[1]["name"]
    shutil.rmtree(gone)
    path = f"/api/replay?session={first[0]}&run={first[1]['run']}"
    assert found.refusal(path)[0] in {404, 409, 422}
    with (damaged / "steps.npy").open("r+b") as file:
        file.truncate(1000)
    code, document = found.refusal(f"/api/replay?session={second[0]}&run={second[1]['run']}")
    assert code == 422
    assert "steps.npy" in document["message"]
    shutil.rmtree(damaged)
    shutil.copytree(recorded / gone.name, damaged)  # another session in the place of the damaged one
    best = max(row["score"] for row in every if row["session"] == first[0])
    until(lambda: [one["best_score"] for one in found.json("/api/sessions")["rows"]] == [best])
    assert found.get(f"/api/replay?session={second[0]}&run={first[1]['run']}")[0] == 200
    shutil.rmtree(damaged)
    shutil.copytree(recorded / damaged.name, damaged)
    shutil.copytree(recorded / gone.name, copied / f"{gone.name}-2")
    names = {damaged.name, f"{gone.name}-2"}  # the removed one went from the list, and the new one came
    until(lambda: {one["name"] for one in found.json("/api/sessions")["rows"]} == names)
    (damaged / "metadata.db").write_bytes(b"no database")
    until(lambda: found.json("/api/overview")["broken"])
    (broken,) = found.json("/api/overview")["broken"]
    assert (broken["name"], broken["error"]) == (damaged.name, "SchemaError")
    until(lambda: found.json("/api/overview")["selections"][0]["games"] == 20)


def test_markup_in_facts_stays_text(second_viewer: SecondViewer, browser: Any, recorded: Path) -> None:
    evil = '<img src=x onerror="document.title=1">'
    session = shutil.copytree(min(recorded.glob("2*")), second_viewer.planted / "20260102T000000Z_model=evil")
    with contextlib.closing(sqlite3.connect(session / "metadata.db")) as database, database:
        database.execute("UPDATE session SET meta_value = ? WHERE meta_key = 'player'", (json.dumps(evil),))
    (session / "manifest.json").unlink()
    found = second_viewer.viewer
    until(lambda: any(evil in one["player"] for one in found.json("/api/sessions")["rows"]))
    page = browser.new_page()
    page.goto(found.link)
    for link in ("#overview", "#sessions", "#games"):
        page.evaluate("link => { location.hash = link; }", link)
        page.locator(f'nav a[href="{link}"][aria-current]').wait_for()
        page.locator("main").get_by_text(evil).first.wait_for()
        assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.title() != "1"
    page.close()


# --- begin and end


def test_a_port_in_use_is_refused_with_what_to_do(viewer: Viewer, recorded: Path, process: Any) -> None:
    done = process("view", str(recorded), "--port", viewer.address.rpartition(":")[2])
    assert done.returncode == 78
    assert "cannot be listened on" in done.stderr
    assert "--port 0" in done.stderr


def test_two_viewers_have_separate_cookies(viewer: Viewer, second_viewer: SecondViewer) -> None:
    other = second_viewer.viewer
    both = f"{viewer.cookie}; {other.cookie}"
    assert viewer.get("/api/about", Cookie=both)[0] == 200
    assert other.get("/api/about", Cookie=both)[0] == 200
    assert other.refusal("/api/about", Cookie=viewer.cookie)[0] == 403


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_viewer_at_once(
    start_viewer: Callable[..., Viewer], recorded: Path, number: signal.Signals
) -> None:
    """An open page does not delay the end."""
    found = start_viewer(recorded)
    connection = http.client.HTTPConnection(found.address, timeout=20)
    connection.request("GET", "/api/live", headers={"Cookie": found.cookie})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    began = time.monotonic()
    found.process.send_signal(number)
    code = found.process.wait(10)
    assert time.monotonic() - began < 3
    assert code in {130, -number}
    connection.close()


def test_missing_root_is_refused(process: Any) -> None:
    done = process("view", "nowhere")
    assert done.returncode == MissingPathError.exit_code
    assert "nowhere" in done.stderr
