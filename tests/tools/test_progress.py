"""The bar on standard error."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from tape2048_tools import progress

if TYPE_CHECKING:
    import pytest


def test_a_bar_appears_on_a_terminal_for_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.progress_bar("reading") as update:
        assert update is None, "standard error is not a terminal here"
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
