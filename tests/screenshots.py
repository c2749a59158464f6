"""Pictures of every page of the viewer and of a report, at two widths, light and dark.

    python -m tests.screenshots [DIRECTORY]          # make screenshots; default: build/screenshots

The few that the docs show are written to docs/screenshots, too: of the upper part of the page. Games
are recorded first, of two players with the same seeds. Needs chromium.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "tape2048_tools.cli"]
LOOKS = [(width, scheme) for width in (1280, 420) for scheme in ("light", "dark")]
#: The pictures of the docs, with the height that they show of a page.
OF_DOCS = {
    "overview-1280-light": 760, "replay-1280-light": 800, "board-1280-dark": 760,
    "beside-1280-light": 800, "replay-420-dark": 760,
}  # fmt: skip
DOCS = CHECKOUT / "docs/screenshots"
PLAYERS = {"ntuple": 20, "ntuple:weights=fast": 30}


def environment() -> dict[str, str]:
    """The environment of a process that imports this checkout."""
    trees = os.pathsep.join(str(CHECKOUT / tree) for tree in ("sdk", "recorder", "tools"))
    return {**os.environ, "PYTHONPATH": trees}


def record(root: Path, *flags: str) -> subprocess.Popen[bytes]:
    """Start a recorder."""
    command = [*COMMAND, "record", "--out", str(root), "--workers", "1", "--seed", "1", *flags]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pages(page: Any) -> Iterator[tuple[str, str]]:
    """The name and the link of each page."""
    ask = "([name, given]) => import('/static/api.js').then(api => api.askJson(name, given))"
    rows = page.evaluate(ask, ["games", {}])["rows"]
    best = rows[0]
    where = f"{best['session']}/{best['run']}"
    yield "overview", "#overview"
    yield (
        "compare",
        "#overview?two=1&where=model+%3D+%27ntuple%27+AND+steps+%3E+6000&b.where=steps+%3C%3D+6000",
    )
    yield "sessions", "#sessions"
    yield "games", "#games"
    yield "replay", f"#{where}/{int(best['steps'] * 0.6)}"
    twin = page.evaluate(ask, ["twins", {"session": best["session"], "run": best["run"]}])["rows"][0]
    yield "beside", f"#{where}/100?beside={twin['session']}/{twin['run']}"
    yield "board", "#board?board=010002103421a987&judge=0"
    yield "live", "#live"
    yield "critic", "#critic"


def ready(page: Any) -> None:
    """Wait until everything of the page is drawn."""
    page.locator("#main[data-ready=yes]").wait_for(timeout=120_000)
    for words in ("Reading", "Evaluating", "not read yet"):
        page.locator(f".message:has-text('{words}')").first.wait_for(state="detached", timeout=120_000)
    page.get_by_text("Judging").first.wait_for(state="hidden", timeout=120_000)
    page.locator(".odds:text('…')").first.wait_for(state="detached", timeout=120_000)
    page.wait_for_timeout(700)


def shoot(context: Any, link: str, out: Path, name: str) -> None:
    """Take a picture of a link's whole page, and if the docs show it, one of its upper part."""
    page = context.new_page()
    page.goto(link)
    ready(page)
    if name == "live":
        page.locator(".state.on").wait_for(timeout=60_000)
        page.wait_for_timeout(6_000)
    page.screenshot(path=out, full_page=True)
    if out.stem in OF_DOCS:
        clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": OF_DOCS[out.stem]}
        page.screenshot(path=DOCS / out.name, full_page=True, clip=clip)
    page.close()


def main() -> None:
    """Record games, and take all pictures."""
    from playwright.sync_api import sync_playwright

    target = Path(sys.argv[1] if len(sys.argv) > 1 else CHECKOUT / "build/screenshots")
    for directory in (target, DOCS):
        directory.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        roots = [Path(name) / f"selfplay-{number}" for number in range(len(PLAYERS))]  # of the same seeds
        for root, (player, games) in zip(roots, PLAYERS.items(), strict=True):
            record(root, "--player", player, "--max-games", str(games)).wait()
        report = Path(name) / "report.html"
        paths = [str(root) for root in roots]
        subprocess.run([*COMMAND, "report", *paths, "-o", str(report)], env=environment(), check=True)
        command = [*COMMAND, "view", *paths, "--port", "0", "--json"]
        recorder = record(roots[0], "--max-wall-s", "3600", "--instance", "night")
        viewer = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            link = json.loads("".join(iter(viewer.stdout.readline, "}\n")) + "}")["link"]
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            links: list[tuple[str, str]] = []
            state = None  # with the key of the pages, which the link brings once
            for width, scheme in LOOKS:
                viewport = {"width": width, "height": 800}
                context = browser.new_context(color_scheme=scheme, viewport=viewport, storage_state=state)
                first = context.new_page()
                first.goto(link)
                ready(first)
                state = context.storage_state()
                links = links or [*pages(first)]  # of the games that are there before the recorder's
                for page, anchor in links:
                    shoot(context, link + anchor, target / f"{page}-{width}-{scheme}.png", page)
                shoot(context, report.as_uri(), target / f"report-{width}-{scheme}.png", "report")
                context.close()
        finally:
            for process in (viewer, recorder):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
