"""The log of a long job: text, JSON, and what the journal wants."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tape2048_tools.progress.panel import LogPanel, Progress, log_line

if TYPE_CHECKING:
    from tape2048_recorder.status.report import Level


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
        LogPanel(30, level=least).event(level[0], level)
    assert "".join(line[-1] for line in capsys.readouterr().err.splitlines()) == said


def test_settings_change(capsys: pytest.CaptureFixture[str]) -> None:
    view = LogPanel(30, level="error", form="json")
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
    view = LogPanel(interval_s=5)
    for _ in range(10):
        view.progress(Progress("reading", 1, 4))
    assert capsys.readouterr().err == ""
    now[0] += 6
    for _ in range(10):
        view.progress(Progress("reading", 1, 4))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" info reading: 25%")


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    LogPanel(30).event("two\nlines and \x1b[31m", "warning")
    assert capsys.readouterr().err.count("\n") == 1


def test_unwritable_stderr_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        with LogPanel(0) as view:
            view.progress(Progress("reading", 1, 4))
            view.event("nothing")
