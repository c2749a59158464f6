"""The bar on standard error."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048_tools import progress

if TYPE_CHECKING:
    import pytest


def test_a_bar_appears_on_a_terminal_for_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.progress_bar("reading", quiet=True) as update:
        assert update is None
    with progress.progress_bar("1/1 reading") as update:
        assert update is not None
        update(1, 10)
    assert capsys.readouterr().err == "", "what is done at once needs no bar"
    monkeypatch.setattr(progress, "_BAR_AFTER_S", -1.0)
    with progress.progress_bar("1/1 reading") as update:
        assert update is not None
        update(5, 10)
    captured = capsys.readouterr()
    assert "1/1 reading" in captured.err
    assert captured.out == ""


def test_a_label_is_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_BAR_AFTER_S", -1.0)
    with progress.progress_bar("a[/b] [red] :smile:", timed=True) as update:
        assert update is not None
        update(5, 10)
    assert "a[/b] [red] :smile:" in capsys.readouterr().err


def test_a_line_that_cannot_be_written_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 31.0, 31.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        with progress.progress_bar("reading") as update:
            assert update is not None
            update(1, 10)


def test_a_bar_over_work_that_is_timed_is_drawn_by_its_calls_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_BAR_AFTER_S", -1.0)
    threads = threading.active_count()
    with progress.progress_bar("measuring", timed=True) as update:
        assert update is not None
        update(5, 10)
        assert threading.active_count() == threads
        assert "50%" in capsys.readouterr().err


def test_without_a_terminal_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 29.0, 31.0, 31.0, 32.0, 60.0, 62.0, 62.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.progress_bar("1/1 reading") as update:
        assert update is not None
        for done in (1, 2, 3, 4, 5):
            update(done, 10)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" info ")[2] for line in lines] == ["1/1 reading: 20%", "1/1 reading: 50%"]


def test_stages_have_lines_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", -1.0)
    with progress.stages_bar() as update:
        assert update is not None
        update("reading", 1, 4)
        update("asking", 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" info ")[2] for line in lines] == ["reading: 25%", "asking: 0"]
