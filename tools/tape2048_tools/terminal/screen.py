"""A full-screen terminal for programs with keys, which is restored on every exit."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any, Self

import click

from tape2048.files.durable import write_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

# Switch to the alternate screen, without a cursor; and back.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"

#: A mapping of the bytes that terminals send, without modifiers, to keys.
_SEQUENCES = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "[H": "home", "[F": "end",
    "OA": "up", "OB": "down", "OC": "right", "OD": "left", "OH": "home", "OF": "end",
    "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end", "[5~": "pageup", "[6~": "pagedown",
}  # fmt: skip
_CONTROLS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}
_KEY = re.compile(r"\x1b(?P<sequence>O.|\[(?P<modifiers>[0-9;]*)[@-~])|.", re.DOTALL)

_REST_S = 0.05  # longest wait for the rest of a key's bytes; an escape alone is the escape key


class Screen:
    """A context manager for the terminal's alternate screen, without a cursor, and for single keys.

    Ctrl-C raises KeyboardInterrupt, as usual. Ctrl-Z restores the terminal until the process continues.
    """

    def __init__(self) -> None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
            raise click.UsageError(
                "this command needs a terminal; without a terminal, `tape2048 visualize` prints boards"
            )
        self._input = sys.stdin.fileno()
        self._before: list[Any] = []
        self._typed = ""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        try:
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
            self._handlers[signal.SIGQUIT] = signal.signal(signal.SIGQUIT, self._quit)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _take(self) -> None:
        tty.setcbreak(self._input)
        self._write(_ENTER)

    def _give_back(self) -> None:
        """Restore the terminal, unless it is gone."""
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def _stop(self, number: int, _: object) -> None:
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._stop)
        self._take()

    @staticmethod
    def _quit(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def _write(self, text: str) -> None:
        # Past the buffer of standard output, into which a signal's handler must not write.
        write_all(sys.stdout.fileno(), text.encode(sys.stdout.encoding or "utf-8", "replace"))

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            if columns and rows:
                return columns, rows
        return shutil.get_terminal_size()

    def draw(self, lines: Sequence[Text]) -> None:
        """Show lines, cut to the terminal's size. EOFError if the terminal is gone."""
        from rich.console import Console

        columns, rows = self.size
        buffer = io.StringIO()
        console = Console(
            file=buffer, force_terminal=True, width=columns, highlight=False, emoji=False, markup=False
        )
        for line in lines[:rows]:
            line.truncate(columns)
            buffer.write("\x1b[K")  # before the text: behind a full line it would erase the last character
            console.print(line, no_wrap=True, crop=True)
        # No line feed behind the last row: it would scroll. Nothing is cleared as a whole: that flickers.
        shown = buffer.getvalue().removesuffix("\n") + ("\n\x1b[J" if len(lines) < rows else "")
        try:
            self._write(f"\x1b[H{shown}")
        except OSError as error:
            raise EOFError from error

    def key(self, timeout_s: float | None = None) -> str:
        """Wait for a key.

        Returns:
            The key's character, or its name (``up``, ``pagedown``, ``enter``, ...); empty after
            ``timeout_s``, and for keys without a name.
        """
        if not self._typed and not self._read(timeout_s):
            return ""
        while (match := _KEY.match(self._typed)) is None or match[0] == "\x1b":
            if not self._read(_REST_S):
                break
        match = _KEY.match(self._typed)
        assert match is not None
        self._typed = self._typed[match.end() :]
        if match["sequence"] is None:
            return _CONTROLS.get(match[0], match[0] if match[0].isprintable() else "")
        plain = match["sequence"]
        if ";" in (match["modifiers"] or ""):  # ESC [ 1 ; 5 C is Ctrl-Right
            first = match["modifiers"].partition(";")[0]
            plain = "[" + (first if plain.endswith("~") else "") + plain[-1]
        return _SEQUENCES.get(plain, "")

    def _read(self, timeout_s: float | None) -> bool:
        if not select.select([self._input], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._input, 1024)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._typed += data.decode("utf-8", "replace")
        return True
