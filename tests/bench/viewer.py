"""What the viewer takes: the first page, pages of sorted games, a replay, scrubbing, live, and a report.

The first page is also opened at 400 ms of latency and 50 kB/s, as Chromium emulates them.

::

    python -m tests.bench.viewer [--sessions 100] [--rows 10000000] [--small 10000] [--games 10000000]

Needs a browser (chromium). The sessions share the rows of one that is recorded here, by hard links. Notes
say the CPU time of the processes that worked, which the machine's load changes less.
"""

import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tape2048.session.layout import RUN_DTYPE
from tape2048_tools.viewer.collection import (
    COLUMNS,
    SORTS,
    Entry,
    GameTable,
    Selection,
    choose,
    page_of_games,
)

from ..tools.conftest import write_session
from ..tools.small_sessions import fill, session_name
from .figures import ROUNDS_MIN, Benchmark, Figure
from .start import recorder_env

_COMMAND = [sys.executable, "-m", "tape2048_tools.cli"]

#: Games that are opened, the first one to load what all need.
_REPLAYED = 6

#: Runs in the page: opens a game, and says after how many milliseconds its board stands.
_OPEN = """async link => {
  const main = document.getElementById('main');
  main.dataset.ready = 'no';
  const began = performance.now();
  location.hash = link;
  while (main.dataset.ready !== 'yes') await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""

#: Runs in the page: moves the slider at each frame, if one is there, and returns the milliseconds of each.
_SCRUB = """async frames => {
  const slider = document.querySelector('.replay input[type=range]') || document.createElement('input');
  const found = [];
  let before = await new Promise(requestAnimationFrame);
  for (let i = 0; i < frames; i++) {
    slider.value = Math.floor(i / frames * slider.max);
    slider.dispatchEvent(new Event('input'));
    const now = await new Promise(requestAnimationFrame);
    found.push(now - before);
    before = now;
  }
  return found;
}"""


def _figure(name: str, value: float, unit: str, samples: Sequence[float] = (), *, note: str = "") -> Figure:
    return Figure(group="viewer", name=name, value=value, unit=unit, samples=list(samples), note=note)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of all that it started and that still run."""
    ticks, children = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            ticks[int(path.parent.name)] = int(fields[11]) + int(fields[12])
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, waiting = 0, [pid]
    while waiting:
        found += ticks.get(waiting[-1], 0)
        waiting += children.get(waiting.pop(), [])
    return found / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def viewing(root: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A viewer of a directory: its link and its process."""
    command = [*_COMMAND, "view", str(root), "--port", "0", "--json"]
    with subprocess.Popen(command, env=recorder_env(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["link"], process
        finally:
            process.terminate()


def shared_corpus(root: Path, sessions: int, rows: int, player: str) -> None:
    """Sessions with the rows of one, each with seeds of its own."""
    command = [*_COMMAND, "record", "--player", player, "--out", str(root), "--record-action"]
    command += ["--max-steps", str(rows), "--rotate-steps", str(rows)]
    subprocess.run(command, env=recorder_env(), check=True, capture_output=True)
    first = min(path for path in root.iterdir() if path.name[0] != ".")
    for number in range(sessions - 1):
        path = root / session_name(number)
        path.mkdir()
        for file in first.iterdir():
            (path / file.name).hardlink_to(file)


def first_page(context: Any, link: str, viewer: int) -> tuple[float, str]:
    """Seconds until the first page shows its figures; and a note of what it takes until all is read."""
    page = context.new_page()
    began, cpu = time.perf_counter(), _cpu_s(viewer)
    page.goto(link)
    page.locator("figcaption:text('Games that reach a tile')").wait_for(timeout=120_000)
    drawn = time.perf_counter() - began
    page.locator(".message:text('still to be read')").wait_for(state="detached", timeout=120_000)
    found = time.perf_counter() - began
    page.close()
    return drawn, f"all sessions after {found:.2f} s, {_cpu_s(viewer) - cpu:.2f} s of the viewer's CPU"


#: Latency in milliseconds, and bytes per second, of a slow network.
_SLOW = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}


def slow_page(context: Any, link: str) -> list[Figure]:
    """Seconds until the heading and the figures stand on a slow network, without and with kept files."""
    found, empty = [], context.browser.new_context(storage_state=context.storage_state())
    for how in ("first opened", "opened again"):
        page = empty.new_page()
        session = empty.new_cdp_session(page)
        session.send("Network.enable")
        session.send("Network.emulateNetworkConditions", _SLOW)
        began = time.perf_counter()
        page.goto(link, wait_until="commit")
        for what, node in (("heading", "h1:text-is('Overview')"), ("figures", "#main[data-ready=yes]")):
            page.locator(node).wait_for(timeout=120_000)
            name = f"slow network, {how}: {what}"
            found.append(_figure(name, time.perf_counter() - began, "s"))
        page.close()
    empty.close()
    return found


def of_lists(count: int) -> list[Figure]:
    """Milliseconds of a page of sorted and filtered games, the slowest column and page; nothing is kept."""
    random = np.random.default_rng(0)
    runs = np.zeros(count // 100, RUN_DTYPE)
    runs["run_id"] = np.arange(len(runs))
    entries = []
    for number in range(100):
        mine = runs.copy()
        mine["score"] = random.integers(0, 500_000, len(runs))
        mine["steps"], mine["highest_tile"] = mine["score"] // 30, 1 << random.integers(8, 16, len(runs))
        entries.append(Entry(f"{number:010x}", Path(session_name(number)), {}, mine, 0))
    filters = Selection.of({"min_score": "100000", "max_steps": "9000"})
    comparisons = Selection(where="score >= 100000 AND steps < 9000 AND model = 'ntuple'")
    condition = Selection(where="score >= 100000 AND (highest_tile = 8192 OR steps < 9000)")
    games = GameTable(entries)
    began, cpu = time.perf_counter(), time.process_time()
    for column in (*COLUMNS, "session"):
        _ = games[column]
    took, note = 1000 * (time.perf_counter() - began), f"CPU {1000 * (time.process_time() - cpu):.0f} ms"
    found = [_figure(f"columns of {count:,} games, made once they are read", took, "ms", note=note)]
    for name, selection in (
        ("sort", Selection()),
        ("filter and sort", filters),
        ("compare and sort", comparisons),
    ):
        took, costs = [], []
        for sort in SORTS:
            for page in (0, len(games) // 100):
                rounds, cpu = [], time.process_time()
                for _ in range(ROUNDS_MIN):
                    began = time.perf_counter()
                    page_of_games(games, choose(games, selection), sort, page, descending=True)
                    rounds.append(1000 * (time.perf_counter() - began))
                took.append(statistics.median(rounds))
                costs.append(1000 * (time.process_time() - cpu) / ROUNDS_MIN)
        note = f"CPU {max(costs):.0f} ms"
        found.append(_figure(f"{name} {count:,} games, a page (slowest)", max(took), "ms", took, note=note))
    began, cpu = time.perf_counter(), time.process_time()
    choose(games, condition)
    took, note = 1000 * (time.perf_counter() - began), f"CPU {1000 * (time.process_time() - cpu):.0f} ms"
    return [*found, _figure(f"condition in SQL on {count:,} games, once", took, "ms", note=note)]


def of_games(context: Any, link: str, viewer: int, frames: int) -> list[Figure]:
    """Milliseconds to a game's board and values, computed and kept; and of the frames while one scrubs."""
    page = context.new_page()
    page.goto(link)
    page.locator("#main[data-ready=yes]").wait_for()
    fetch = "where => import('/static/api.js').then(api => api.askJson('games', {sort: 'steps', where}))"
    rows = page.evaluate(fetch, "steps BETWEEN 9000 AND 10000")["rows"]
    if len(rows) < _REPLAYED:
        rows = page.evaluate(fetch, "")["rows"]
    links = [f"#{row['session']}/{row['run']}/0" for row in rows[:_REPLAYED]]
    page.evaluate(_OPEN, links[0])  # the judge, the critic and their kernels are loaded
    longest = {"session": rows[0]["session"], "run": rows[0]["run"]}
    size = "given => import('/static/api.js').then(api => api.ask('game', given))"
    size = page.evaluate(f"async given => (await (await ({size})(given)).blob()).size", longest)
    name = f"replay of {rows[0]['steps']:,} moves ready"
    found = [_figure(f"saved game of {rows[0]['steps']:,} moves", size / 1000, "kB")]
    for how, opened in (("computed", links[1:]), ("kept", links[:-1])):
        for one in opened if how == "kept" else ():
            page.evaluate(_OPEN, one)
            page.locator("p:has-text('Judging: ')").wait_for(state="detached", timeout=120_000)
        own, every = _cpu_s(viewer), _cpu_s(os.getpid())
        took = [page.evaluate(_OPEN, one) for one in opened]
        own = 1000 * (_cpu_s(viewer) - own) / len(took)
        every = 1000 * (_cpu_s(os.getpid()) - every) / len(took)
        note = f"CPU {own:.0f} ms of the viewer, {every - own:.0f} ms of the browser"
        found.append(_figure(f"{name}, {how}", statistics.median(took), "ms", took, note=note))
    for name in ("scrubbing", "an empty page"):
        if name == "an empty page":
            page.goto("about:blank")
        every = _cpu_s(os.getpid())
        took = page.evaluate(_SCRUB, frames)
        note = f"CPU {1000 * (_cpu_s(os.getpid()) - every) / frames:.1f} ms a frame, of the browser"
        if name == "an empty page":
            note = "what the browser alone misses"  # its processes change with the page
        value = float(np.quantile(took, 0.99))
        found.append(_figure(f"{name}, p99 of frames", value, "ms", took, note=note))
    page.close()
    return found


def of_live(root: Path, seconds: float) -> list[Figure]:
    """The age of a status when a listener gets it, and the viewer's share of a core meanwhile."""
    command = [*_COMMAND, "record", "--player", "greedy", "--workers", "1", "--out", str(root)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ages = []
    with subprocess.Popen(
        [*command, "--max-wall-s", str(seconds + 20)], env=recorder_env(), **quiet
    ) as recorder:  # type: ignore[call-overload]
        try:
            with viewing(root) as (link, viewer):
                _, _, address, query = link.split("/")
                connection = http.client.HTTPConnection(address)
                connection.request("GET", f"/{query}")
                page = connection.getresponse().read().decode()
                key = page.partition('data-key="')[2].partition('"')[0]
                time.sleep(min(5, seconds))  # the judge and the critic are loaded meanwhile
                begin, cpu = time.monotonic(), _cpu_s(viewer.pid)
                while time.monotonic() - begin < seconds:
                    connection.request("GET", "/api/live", headers={"Authorization": f"Bearer {key}"})
                    document = json.loads(connection.getresponse().read())
                    ages += [one.get("age_s", 0) for one in document["recorders"]]
                    time.sleep(1)
                share = (_cpu_s(viewer.pid) - cpu) / (time.monotonic() - begin)
                connection.close()
        finally:
            recorder.terminate()
    return [
        _figure("live: age of what is shown, at most", max(ages, default=0.0), "s", ages),
        _figure("live: share of a core that the viewer takes", 100 * share, "%"),
    ]


def of_report(root: Path, out: Path) -> list[Figure]:
    """Seconds and megabytes of a report."""
    began, cpu = time.perf_counter(), os.times()
    command = [*_COMMAND, "report", str(root), "-o", str(out), "--quiet"]
    subprocess.run(command, env=recorder_env(), check=True, capture_output=True)
    took, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    return [
        _figure("report", took, "s", note=f"CPU {spent:.1f} s"),
        _figure("report, size", out.stat().st_size / 1e6, "MB"),
    ]


def measure(
    directory: Path, *, sessions: int, rows: int, small: int, games: int, frames: int,
    seconds: float, player: str,
) -> list[Figure]:  # fmt: skip
    """Measure everything below an empty directory."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    assert chromium is not None, "no chromium here"
    shared_corpus(directory / "shared", sessions, rows, player)
    fill(directory / "small", write_session(directory / "template/20260101T000000Z_model=toy"), small)
    found = of_lists(games)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, what in (
            ("shared", f"{sessions * rows:,} rows in {sessions:,} sessions"),
            ("small", f"{small:,} sessions"),
        ):
            with viewing(directory / name) as (link, viewer), browser.new_context() as context:
                took, note = first_page(context, link, viewer.pid)
                found.append(_figure(f"first page of {what}", took, "s", note=note))
                if name == "shared":
                    found += slow_page(context, link.partition("?")[0])
                    found += of_games(context, link, viewer.pid, frames)
        browser.close()
    found += of_report(directory / "shared", directory / "report.html")
    (directory / "live").mkdir()
    return found + of_live(directory / "live", seconds)


BENCHMARK = Benchmark(
    measure,
    sizes={
        "sessions": 100, "rows": 10_000_000, "small": 10_000, "games": 10_000_000, "frames": 600,
        "seconds": 20.0, "player": "ntuple",
    },
    smallest={
        "sessions": 2, "rows": 20_000, "small": 5, "games": 1000, "frames": 10, "seconds": 1.0,
        "player": "greedy",
    },
    in_memory=True,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("viewer", __doc__)
