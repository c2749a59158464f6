"""Reports in one file: what they hold, and what they show without a network."""

import contextlib
import functools
import http.server
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tape2048 import Session
from tape2048.errors import MissingPathError, NameTakenError, StorageError
from tape2048_tools.commands.sessions.view import make_data
from tape2048_tools.viewer.assets import bundle, static_files
from tape2048_tools.viewer.report import make_report, one_file

from ..conftest import Cli

#: Lines of all scripts together: small enough to be read.
SCRIPT_LINES_MAX = 3000


@pytest.fixture(scope="module")
def report(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tape2048_tools.cli import run

    out = tmp_path_factory.mktemp("report") / "report.html"
    flags = ["--games", "8", "--quiet", "--judge", "ntuple:weights=fast"]
    assert run(["report", str(recorded), "-o", str(out), *flags]) == 0
    return out


@pytest.mark.parametrize("entry", ["report.js", "game.js", "app.js"])
def test_the_modules_make_one_script(entry: str) -> None:
    script = bundle(static_files(), entry)
    assert not re.search(r"^(import|export)\b|\bimport\(", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    assert "</script" not in script


def test_the_scripts_are_few_and_depend_on_nothing() -> None:
    files = static_files()
    scripts = {name: data.decode() for name, data in files.items() if name.endswith(".js")}
    assert sum(text.count("\n") for text in scripts.values()) <= SCRIPT_LINES_MAX
    for name, text in scripts.items():
        for source in re.findall(r"from '([^']*)'", text):
            assert source.removeprefix("./") in scripts, name
        assert "http" not in re.sub(r"http://www.w3.org/2000/svg", "", text), name
        assert "innerHTML" not in text
        assert "eval(" not in text


def test_a_report_opens_without_any_request(report: Path, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for scheme, width in (("light", 420), ("dark", 1280)):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
        )
        context.set_default_timeout(120_000)
        page = context.new_page()
        asked, errors = [], []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        page.on(
            "console", lambda said, errors=errors: errors.append(said.text) if said.type == "error" else None
        )
        page.goto(report.as_uri())
        page.locator("figcaption:text('Where games end')").wait_for()
        for link in ("#overview", "#games", None):
            if link is None:
                page.locator(".gallery a").first.click()
                page.locator(".replay").wait_for()
                page.keyboard.press("n")
                page.wait_for_url(re.compile(r"#[0-9a-f]{10}/\d+/\d+$"))
                page.keyboard.press("r")
                page.get_by_role("button", name="Answer").click()
                page.locator(".notice:has-text('Judge:')").wait_for()
            else:
                page.locator(f"nav a[href='{link}']").click()
                page.locator("#main[data-ready=yes]").wait_for()
            found = axe.Axe().run(page).response["violations"]
            assert [one["id"] for one in found] == [], link
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), link
        assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
        assert errors == []
        context.close()


def test_a_site_works_from_a_web_server(recorded: Path, tmp_path: Path, cli: Cli, browser: Any) -> None:
    """Its links open games, which are files of their own; a game that is gone is named."""
    site = tmp_path / "site"
    made = ["report", recorded, "--site", site, "--games", 8, "--judge", "ntuple:weights=fast", "--quiet"]
    cli(*made)
    assert len(list((site / "games").iterdir())) == 8
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        address = f"http://127.0.0.1:{server.server_port}/"
        page.goto(f"{address}#games")
        link = page.locator(".gallery a").first
        link.click()
        page.locator(".replay").wait_for()
        page.goto(f"{address}{link_of(page)[:-1]}5")
        page.locator(".replay").wait_for()
        for path in (site / "games").iterdir():
            path.unlink()
        page.reload()
        page.get_by_text("The web server does not have this game.").wait_for()
        page.close()
        server.shutdown()
    cli(*made, expect=NameTakenError)
    cli(*made, "--force")
    assert len(list((site / "games").iterdir())) == 8
    (site / "index.html").unlink()
    cli(*made, "--force", expect=NameTakenError)  # what is no site is never replaced
    cli("report", recorded, expect=2)


def link_of(page: Any) -> str:
    """The part of the page's address that names the game and the move."""
    page.wait_for_url(re.compile(r"#[0-9a-f]{10}/\d+/0$"))
    return "#" + page.url.partition("#")[2]


def test_a_report_holds_each_kind_of_game_once(report: Path) -> None:
    text = report.read_text()
    kinds = re.findall(r'"why":"([a-z ]+)"', text)
    assert sorted(kinds) == ["best"] * 3 + ["longest"] * 2 + ["worst"] * 3
    keys = re.findall(r'"key":"([0-9a-f]{10}/\d+)"', text)
    assert len(set(keys)) == 8
    assert str(report.parent.parent) not in text
    assert report.stat().st_size < 1_000_000


def test_a_report_of_annotated_sessions_has_the_most_lossy_games(copied: Path, cli: Cli) -> None:
    """No game without a judgement is among them."""
    first, second = sorted(copied.glob("2*"))
    for session in (first, second):
        cli("annotate", str(session), "--judge", "ntuple:weights=fast", "--quiet", process=True)
    found = make_report(
        make_data((copied,), ("ntuple:weights=fast",), Path("default"), contextlib.ExitStack()), games=8
    ).decode()
    kinds = re.findall(r'"why":"([a-z ]+)"', found)
    assert sorted(kinds) == [kind for kind in ("best", "costliest", "longest", "worst") for _ in range(2)]
    (first / "loss.json").unlink()
    found = make_report(
        make_data((copied,), ("ntuple:weights=fast",), Path("default"), contextlib.ExitStack())
    ).decode()
    lossy = re.findall(r'"why":"costliest","session":"[0-9a-f]+","name":"([^"]+)"', found)
    assert set(lossy) == {second.name}


def test_a_report_by_an_uncalibrated_judge_says_so(recorded: Path, browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    data = make_data((recorded,), (), Path("default"), contextlib.ExitStack())
    out.write_bytes(make_report(data, games=1))
    page = browser.new_page()
    page.goto(f"{out.as_uri()}#games")
    page.get_by_text("2-ply, uncalibrated.").wait_for()
    page.get_by_text("It grades no moves.").wait_for()
    assert "mistake" not in page.locator(".gallery a").text_content()
    page.locator(".gallery a").click()
    page.locator('.losses caption:has-text("uncalibrated, in the network\'s points")').wait_for()
    assert page.locator(".grade, .jumper:has-text('Mistakes')").locator("visible=true").count() == 0
    page.close()


def test_one_game_is_a_small_file(recorded: Path, tmp_path: Path, cli: Cli) -> None:
    page = tmp_path / "game.html"
    flags = ["--games", 1, "--judge", "ntuple:weights=fast", "--quiet"]
    cli("report", min(recorded.glob("2*")), "-o", page, *flags)
    assert page.stat().st_size < 200_000  # 20,000 moves take 100 kB more
    assert page.read_text().count('"why":') == 1


def test_a_game_named_by_its_session_is_one_file(recorded: Path, tmp_path: Path, cli: Cli) -> None:
    session, out = min(recorded.glob("2*")), tmp_path / "game.html"
    flags = ["-o", out, "--judge", "ntuple:weights=fast", "--quiet"]
    run = int(Session.open(session).runs["run_id"][3])
    cli("report", recorded, "--game", f"{session.name}/{run}", *flags)
    text = out.read_text()
    assert out.stat().st_size < 150_000
    assert str(recorded.parent) not in text
    assert '"game":"' in text
    for named, said in (
        (f"{session.name}/999999", "no game has the id 999999"),
        ("nowhere/1", "in 0 sessions"),
        (session.name, "expected SESSION/ID"),
    ):
        assert (
            said in cli("report", recorded, "--game", named, *flags, "--force", expect=MissingPathError).err
        )
    cli("report", recorded, "--game", f"{session.name}/{run}", "--site", tmp_path / "site", expect=2)


@pytest.mark.parametrize("games", [0, 1, 2, 3])
def test_few_games_are_judged_for_few(recorded: Path, games: int) -> None:
    judged: set[int] = set()
    data = make_data((recorded,), ("ntuple:weights=fast",), Path("default"), contextlib.ExitStack())
    make_report(data, games=games, progress=lambda _done, of: judged.add(of))
    assert judged == ({games} if games else set())


def test_markup_in_a_document_ends_no_script() -> None:
    page = one_file("</title><b>", {"title": "</script><script>document.title=1</script>"}).decode()
    assert page.count("</script>") == 2
    assert "<b>" not in page


def test_an_output_is_checked_before_a_report_is_made(
    cli: Cli, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape2048_tools.viewer.report.make_report", lambda *_, **__: pytest.fail("made"))
    out = tmp_path / "report.html"
    out.write_text("mine")
    done = cli("report", recorded, "-o", out, expect=NameTakenError)
    assert "--force" in done.err
    assert out.read_text() == "mine"
    for path in (tmp_path / "nowhere" / "x.html", tmp_path / ("x" * 300)):
        cli("report", recorded, "-o", path, expect=StorageError)


def test_a_report_of_nothing_is_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cli("report", tmp_path / "empty", "-o", tmp_path / "report.html", "--quiet")
    assert b"<html" in (tmp_path / "report.html").read_bytes()


def test_a_directory_whose_name_is_no_text(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"sessions-\xff")
    shutil.copytree(recorded, root)
    cli("report", root, "-o", tmp_path / "report.html", "--quiet", "--games", 1)
    assert rb"sessions-\\udcff" in (tmp_path / "report.html").read_bytes()
