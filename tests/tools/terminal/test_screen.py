"""The whole terminal: keys, and that it is given back however a program ends."""

import os
import signal
import sys
from pathlib import Path

import click
import pytest
from tests.tools.on_terminal import OnTerminal

from tape2048_tools.terminal.screen import Screen

#: Shows the last key's name until q, and then lists all; x is a bug.
PROGRAM = """
from rich.text import Text
from tape2048_tools.cli import _unwound
from tape2048_tools.terminal.screen import Screen
keys = ["ready"]
with _unwound(), Screen() as screen:
    while keys[-1] != "q":
        width, rows = screen.size
        lines = [f"<{keys[-1]}> {width}x{rows}", "é" * width, *["more"] * 100, "never"]
        screen.draw([Text(line) for line in lines])
        # As `show` waits: a signal that comes just before the wait is handled after it.
        keys += filter(None, [screen.key(0.25)])
        if keys[-1] == "x":
            raise ValueError("a bug")
print(keys)
"""
COMMAND = [sys.executable, "-c", PROGRAM]


def test_keys_have_names(tmp_path: Path, environment: dict[str, str]) -> None:
    with OnTerminal(COMMAND, tmp_path, env=environment) as terminal:
        seen = terminal.wait_for("<ready> 100x30")
        wanted = ["ready"]
        for typed, name in {
            "\x1b[A": "up", "\x1bOB": "down", "\x1b[1;5C": "right", "\x1b[D": "left", "\x1b[5~": "pageup",
            "\x1b[6;2~": "pagedown", "\x1b[H": "home", "\x1b[4~": "end", "\r": "enter", "\x7f": "backspace",
            "\x1b": "escape", "ü": "ü", "/": "/", "\x1b[99~a": "a", "\x01b": "b", "cde": "e",
        }.items():  # fmt: skip
            terminal.send(typed)
            seen = terminal.wait_for(f"<{name}> 100x30", seen)
            wanted += ["c", "d", "e"] if name == "e" else [name]
        terminal.send("q")
        assert terminal.code() == 0
        assert terminal.is_restored
        assert str([*wanted, "q"]) in terminal.shown, "keys without a name are none"
        assert "é" * 100 in terminal.shown, "a line as wide as the terminal is whole"
        assert "never" not in terminal.shown, "nothing scrolls"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("q", 0), ("x", 1), (signal.SIGINT, None), (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGHUP, -signal.SIGHUP), (signal.SIGQUIT, 128 + signal.SIGQUIT),
    ],
)  # fmt: skip
def test_the_terminal_is_given_back_on_every_end(
    tmp_path: Path, environment: dict[str, str], ending: str | signal.Signals, code: int | None
) -> None:
    with OnTerminal(COMMAND, tmp_path, env=environment) as terminal:
        terminal.wait_for("<ready>")
        assert not terminal.is_restored
        if isinstance(ending, signal.Signals):
            terminal.child.send_signal(ending)
        else:
            terminal.send(ending)
        ended = terminal.code()
        assert ended == code if code is not None else ended != 0
        assert terminal.is_restored, repr(terminal.shown[-200:])
        if ending == "x":
            after = terminal.shown.rpartition("\x1b[?1049l")[2]
            assert "ValueError: a bug" in after, "on the screen that stays"


def test_stop_and_continue(tmp_path: Path, environment: dict[str, str]) -> None:
    """A stopped program restores the terminal, and takes it again when it continues."""
    with OnTerminal(COMMAND, tmp_path, env=environment) as terminal:
        seen = terminal.wait_for("<ready>")
        terminal.child.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(terminal.child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        terminal.read_all()
        assert terminal.is_restored
        terminal.child.send_signal(signal.SIGCONT)
        seen = terminal.wait_for("\x1b[?1049h", seen)
        terminal.send("k")
        terminal.wait_for("<k>", seen)
        assert not terminal.is_restored
        terminal.send("q")
        assert terminal.code() == 0
        assert terminal.is_restored


def test_there_has_to_be_a_terminal() -> None:
    with pytest.raises(click.UsageError, match="needs a terminal"):
        Screen()
