"""Bars of long jobs, and the log."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tape2048_recorder.status.status_report import Level
from tape2048_tools.progress import panel as panels
from tape2048_tools.progress.panel import Panel, Progress, log_line


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(panels, "_DRAW_AFTER_S", -1.0)


def test_bar_of_a_long_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    on_a_terminal(monkeypatch)
    with panels.progress_bar("reading", quiet=True) as update:
        assert update is None
    monkeypatch.setattr(panels, "_DRAW_AFTER_S", 60.0)
    with panels.progress_bar("1/1 reading") as update:
        update(1, 10)
    assert capsys.readouterr().err == "", "what is done at once needs no bar"
    monkeypatch.setattr(panels, "_DRAW_AFTER_S", -1.0)
    threads = threading.active_count()
    with panels.progress_bar("a[/b] [red] :smile:") as update:
        update(5, 10)
        assert threading.active_count() == threads, "nothing draws beside work that is timed"
    captured = capsys.readouterr()
    assert "a[/b] [red] :smile:" in captured.err, "a label is no markup"
    assert "50%" in captured.err
    assert captured.out == ""


def test_dumb_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with panels.Panel() as view:
        view.event("an event")
    assert capsys.readouterr().err.endswith(" info an event\n")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    yield now
    monkeypatch.undo()


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" info ")[2] for line in capsys.readouterr().err.splitlines()]


def test_lines_without_a_terminal(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with panels.progress_bar("1/1 reading") as update:
        for done, clock[0] in ((0, 0.0), (1, 29.0), (2, 31.0), (3, 32.0), (5, 62.0)):
            update(done, 10)
    assert said(capsys) == ["1/1 reading: 20%, 2:04 left", "1/1 reading: 50%, 1:02 left"]


def test_rate_since_the_first_call(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with panels.progress_bar("embedding x", unit="rows") as update:
        for done, clock[0] in ((400, 0.0), (1000, 60.0)):
            update(done, 4000)
    assert said(capsys) == ["embedding x: 1,000 of 4,000 rows, 10 rows/s, 5:00 left"]


def test_stages_have_separate_lines(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with panels.stages_bar() as update:
        for stage, done, total, clock[0] in (("reading", 1, 4, 31.0), ("asking", 0, 0, 62.0)):
            update(stage, done, total)
    assert said(capsys) == ["reading: 25%", "asking: 0"]


@pytest.mark.parametrize(
    ("progress", "amount"),
    [
        (Progress("a", 0, None), "0"),
        (Progress("a", 7, None, "rows"), "7 rows"),
        (Progress("a", 120, 1000, "steps"), "120 of 1,000 steps"),
        (Progress("a", 4e6, 1e7, "rows"), "4M of 10M rows"),
        (
            Progress("a", 28_638, 153_000, "games, 10 epochs of 15,300"),
            "28.6k of 153k games, 10 epochs of 15,300",
        ),
        (Progress("a", 5, 4), "100%"),
    ],
)
def test_amount_in_words(progress: Progress, amount: str) -> None:
    assert progress.amount == amount


def test_text_line() -> None:
    line = log_line("warning", "a\nb", form="text", journal=False)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ warning a\\nb", line)


def test_json_line() -> None:
    found = json.loads(log_line("error", 'say "no"\x1b', form="json", journal=False))
    assert found["level"] == "error"
    assert found["message"] == 'say "no"\\x1b'
    assert found["time"].endswith("+00:00")


@pytest.mark.parametrize(("level", "priority"), [("info", 6), ("warning", 4), ("error", 3)])
def test_journal_lines(level: Level, priority: int) -> None:
    assert log_line(level, "it", form="text", journal=True) == f"<{priority}>it"
    assert log_line(level, "it", form="json", journal=True).startswith(f"<{priority}>{{")


@pytest.mark.parametrize(("least", "said"), [("info", "iwe"), ("warning", "we"), ("error", "e")])
def test_levels(least: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    levels: tuple[Level, ...] = ("info", "warning", "error")
    for level in levels:
        Panel(level=least).event(level[0], level)
    assert "".join(line[-1] for line in capsys.readouterr().err.splitlines()) == said


def test_settings_change(capsys: pytest.CaptureFixture[str]) -> None:
    view = Panel(level="error", form="json")
    view.event("no", "warning")
    view.event("yes", "error")
    view.change(30, "info")
    view.event("now")
    said = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert said == ["yes", "now"]


@pytest.mark.parametrize("ours", [True, False])
def test_journal_stream(tmp_path: Path, environment: dict[str, str], ours: bool) -> None:
    """``JOURNAL_STREAM`` is inherited: a shell below a service has it too, with another standard error."""
    code = "from tape2048_tools.progress import panel; import os; print(panel.stderr_is_journal(os.environ))"
    with (tmp_path / "stream").open("w") as stream:
        stat = os.fstat(stream.fileno())
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=stream if ours else subprocess.DEVNULL,
            env={**environment, "JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"},
            text=True,
            check=True,
        )
    assert done.stdout.strip() == str(ours)


def test_one_line_per_interval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    view = Panel(interval_s=5)
    for _ in range(10):
        view.progress(Progress("reading", 1, 4))
    assert capsys.readouterr().err == ""
    now[0] += 6
    for _ in range(10):
        view.progress(Progress("reading", 1, 4))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" info reading: 25%")


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Panel().event("two\nlines and \x1b[31m", "warning")
    assert capsys.readouterr().err.count("\n") == 1


def test_unwritable_stderr_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        with Panel(interval_s=0) as view:
            view.progress(Progress("reading", 1, 4))
            view.event("nothing")
