"""Who is answered, what is refused, and how a viewer begins and ends."""

import contextlib
import gzip
import http.client
import json
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tape2048.errors import MagicError, MissingPathError

from ..conftest import Cli
from .conftest import SecondViewer, Viewer, key_of, until


def test_a_link_brings_the_key_once(viewer: Viewer) -> None:
    path = viewer.link.partition(viewer.address)[2]
    for key in (viewer.key, ""):
        code, body, headers = viewer.get(path, Authorization="")
        assert (code, key_of(body)) == (200, key)
        assert "set-cookie" not in headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
    assert key_of(viewer.get("/?token=%C3%A9")[1]) == ""


@pytest.mark.parametrize("path", ["/api/games", "/api/live", "/api/nothing"])
def test_no_document_is_answered_without_the_key(viewer: Viewer, path: str) -> None:
    token = viewer.link.partition("=")[2]
    for given in ("", viewer.key, f"Bearer {viewer.key[:-1]}", f"Bearer {token}", "Bearer \xe9"):
        assert viewer.refusal(path, Authorization=given)[0] == 403
        assert viewer.refusal(f"{path}?token={token}", Authorization=given)[0] == 403
        assert viewer.refusal(path, Authorization=given, Cookie=f"key={viewer.key}")[0] == 403


def test_the_token_is_in_no_argument(recorded: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """The browser opens a file that only its user can read, which goes with the viewer."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/given\n')
    browser.chmod(0o700)
    command = [sys.executable, "-m", "tape2048_tools.cli", "view", str(recorded), "--port", "0", "--open"]
    environment |= {"BROWSER": f"{browser} %s", "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            until((tmp_path / "given").exists)
            redirect = Path((tmp_path / "given").read_text().strip().removeprefix("file://"))
            assert redirect.stat().st_mode & 0o777 == 0o600
            link = redirect.read_text().partition("url=")[2].partition('"')[0]
            _, _, address, query = link.split("/")
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("GET", f"/{query}")
            assert key_of(connection.getresponse().read())
            connection.close()
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # it says where it is
                raise
    assert process.returncode == -signal.SIGTERM
    assert not redirect.exists()


@pytest.fixture
def connect(viewer: Viewer) -> Iterator[Callable[..., socket.socket]]:
    """Connect to a viewer, and send something."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    with contextlib.ExitStack() as connections:

        def connect(to: Viewer, text: bytes = b"") -> socket.socket:
            host, _, port = to.address.partition(":")
            made = connections.enter_context(socket.create_connection((host, int(port)), timeout=60))
            made.sendall(text)
            return made

        yield connect
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("files", "text"), [(1024, b""), (300, b"GET / HTTP/1.1\r\nX: ")], ids=["silent", "partial"]
)
def test_silent_connections_lock_nobody_out(
    start_viewer: Callable[..., Viewer],
    recorded: Path,
    connect: Callable[..., socket.socket],
    files: int,
    text: bytes,
) -> None:
    found = start_viewer(recorded, files=files)
    for _ in range(1120):
        with contextlib.suppress(ConnectionError):  # it is the oldest already
            connect(found, text)
    began = time.monotonic()
    assert found.json("/api/about")["version"]
    assert time.monotonic() - began < 20
    said = found.said.read_text().splitlines()
    assert len(said) == 2  # the next link, and the message
    assert "The oldest idle connections are closed" in said[1]
    found.process.kill()


def test_a_request_that_does_not_end_is_closed(viewer: Viewer, connect: Callable[..., socket.socket]) -> None:
    slow = connect(viewer, b"GET / HTTP/1.1\r\n")
    slow.settimeout(1)
    began, answer = time.monotonic(), None
    while answer != b"" and time.monotonic() - began < 30:
        with contextlib.suppress(TimeoutError, ConnectionError):
            slow.sendall(b"X: y\r\n")
            answer = slow.recv(1)
    assert answer == b""


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


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ("games?where=scores%20%3D%201", 400, "no such column"),
        ("games?where=1)%20LIMIT%20(5", 400, "rejected"),
        ("games?where=" + 15_000 * "(", 400, "rejected"),
        ("games?where=length(printf('%25.*c',1000000000,'x'))>0", 400, "not authorized"),
        ("play-on?board=0x1&player=greedy&seed=99999999999999999999", 400, "below 2**64"),
        ("games?min_score=x", 400, "expected a number"),
        ("games?since=yesterday", 400, "expected a date"),
        ("games?sort=nothing", 400, "expected one of"),
        ("games?page=-1", 400, "expected a number"),
        ("games?page=99", 404, "found page=99, expected one of 1 page"),
        ("sessions?page=1", 404, "found page=1, expected one of 1 page"),
        ("games?player=nobody", 404, "no game is of the player nobody"),
        ("overview?player=nobody&min_score=5", 404, "no game is of the player nobody"),
        ("games?session=0123456789", 404, "no session"),
        ("replay?session=../../etc/passwd&run=1", 404, "no session"),
        ("replay?session=0123456789&run=0", 404, "no session"),
        ("board?board=3%203", 400, "expected 16"),
        ("board?board=" + "+".join(["3"] * 15) + "+65536", 400, "32768"),
        ("board?board=0x0123456789abcdef&judge=99", 404, "no judge"),
        ("training?id=nothing", 404, "no training"),
        ("play-on?board=0x1&player=python:os:system", 400, "built-in"),
        ("play-on?board=0x1&player=ntuple:weights=/etc/passwd", 400, "the name of a shipped file"),
        ("play-on?board=0x1&player=expectimax:depth=4", 400, "from 1 to 3"),
        ("play-on?board=0x1&moves=20001", 400, "at most 20000"),
        ("choices?player=nobody&session=0123456789&run=0", 400, "no player is called"),
        ("choices?player=greedy&session=0123456789&run=0", 404, "no session"),
        ("opinions?of=0123456789", 404, "no session"),
        ("opinions?of=" + 50 * ",", 400, "at most 50"),
    ],
)
def test_bad_questions_are_refused_by_name(viewer: Viewer, query: str, code: int, words: str) -> None:
    found, document = viewer.refusal(f"/api/{query}")
    assert found == code
    assert words in document["message"]


def test_work_that_nobody_waits_for_ends(viewer: Viewer) -> None:
    """A condition that is slow within the limit of operations, from eight clients that disconnect."""
    slow = "instr(hex(zeroblob(4000+a.steps%99)),hex(zeroblob(2000))||'1')>0"
    for number in range(8):
        where = f"(SELECT count(*) FROM runs a, runs b, runs c WHERE {slow}) = {number}"
        connection = http.client.HTTPConnection(viewer.address)
        path = f"/api/games?{urllib.parse.urlencode({'where': where})}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {viewer.key}"})
        time.sleep(0.1)
        connection.close()
    began = time.monotonic()
    viewer.json("/api/about")
    assert time.monotonic() - began < 15


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
    evil = "<img src=x onerror=top.evil=1>"
    session = shutil.copytree(min(recorded.glob("2*")), second_viewer.planted / "20260102T000000Z_model=evil")
    with contextlib.closing(sqlite3.connect(session / "metadata.db")) as database, database:
        database.execute("UPDATE session SET meta_value = ? WHERE meta_key = 'player'", (json.dumps(evil),))
    (session / "manifest.json").unlink()
    found = second_viewer.viewer
    until(lambda: any(evil in one["player"] for one in found.json("/api/sessions")["rows"]))
    page = browser.new_page()
    page.add_init_script(f"localStorage.setItem('key', '{found.key}')")
    page.goto(f"http://{found.address}/")
    for link in ("#overview", "#sessions", "#games"):
        page.evaluate("link => { location.hash = link; }", link)
        page.locator(f'nav a[href="{link}"][aria-current]').wait_for()
        page.locator("main").get_by_text(evil).first.wait_for(state="attached")
        assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("window.evil") is None
    page.close()


def test_files_are_compressed_and_kept_by_their_content(viewer: Viewer) -> None:
    """The addresses of the page name the version, and only they are kept."""
    page = viewer.get("/")[1].decode()
    addresses = re.findall(r'"(/static/[^"]+)"', page)
    assert len(addresses) == 3
    for address in addresses:
        code, packed, headers = viewer.get(address, **{"Accept-Encoding": "gzip, br"})
        assert (code, headers["content-encoding"]) == (200, "gzip")
        assert "immutable" in headers["cache-control"]
        name = address.partition("?")[0]
        _, plain, headers = viewer.get(name)
        assert headers["cache-control"] == "no-store"
        assert "content-encoding" not in headers
        assert gzip.decompress(packed) == plain
        assert viewer.get(f"{name}?v=0")[2]["cache-control"] == "no-store"
    assert viewer.get("/")[2]["cache-control"] == "no-store"
    script = next(one for one in addresses if "app.js" in one)
    assert len(viewer.get(script, **{"Accept-Encoding": "gzip"})[1]) < 45_000


def test_a_port_in_use_is_refused_with_what_to_do(viewer: Viewer, recorded: Path, cli: Cli) -> None:
    done = cli("view", str(recorded), "--port", viewer.address.rpartition(":")[2], expect=78, process=True)
    assert "cannot listen on port" in done.err
    assert "--port 0" in done.err


def test_two_viewers_have_separate_keys(viewer: Viewer, second_viewer: SecondViewer) -> None:
    bearer = f"Bearer {viewer.key}"
    assert second_viewer.viewer.refusal("/api/about", Authorization=bearer)[0] == 403


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_viewer_at_once(
    start_viewer: Callable[..., Viewer], recorded: Path, number: signal.Signals
) -> None:
    """An open page does not delay the end."""
    found = start_viewer(recorded)
    connection = http.client.HTTPConnection(found.address, timeout=20)
    connection.request("GET", "/api/live", headers={"Authorization": f"Bearer {found.key}"})
    assert connection.getresponse().status == 200
    began = time.monotonic()
    found.process.send_signal(number)
    code = found.process.wait(10)
    assert time.monotonic() - began < 3
    assert code in {130, -number}
    connection.close()


def test_missing_root_is_refused(cli: Cli, tmp_path: Path) -> None:
    done = cli("view nowhere", expect=MissingPathError, process=True)
    assert "nowhere" in done.err
    (tmp_path / "games.txt").write_text("{}")
    done = cli("view", tmp_path, tmp_path / "games.txt", expect=MagicError, process=True)
    assert "expected a file with runs" in done.err
