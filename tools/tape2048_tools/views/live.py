"""The panel of a long job on a terminal, drawn anew twice a second; events scroll by above it."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from typing import TYPE_CHECKING, Self

from tape2048_tools.terminal.output import cell, drop_unwritten, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from tape2048_recorder.status.report import Level
    from tape2048_tools.views.progress import Progress

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48
_BESIDE = 16  # what a panel has beside a fact: borders, its name, spaces
_PANEL_WIDTH = 88
_BAR_WIDTH = 24
_DRAW_INTERVAL_S = 0.4
#: What is done sooner needs no view: hundreds of small sessions would only flicker.
_DRAW_AFTER_S = 0.3
_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


def sparkline(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """The values as a line of bars, each of ``width`` bars the mean of its part; lowest to highest."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((mean - low) / span * len(_BARS)), len(_BARS) - 1)] for mean in means)


class LiveView:
    """A panel for a job with facts, a line with a bar for one without.

    Args:
        title: stands above the panel.
    """

    def __init__(self, title: str = "") -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._trend: list[float] = []
        self._next = time.monotonic() + _DRAW_AFTER_S
        self._drawn = (0, 0)  # lines, and the width of the terminal that they were drawn on
        self._console: Console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()
        drop_unwritten(sys.stderr)

    def change(self, interval_s: float, level: str) -> None:
        """Do nothing: these are a log's settings."""

    def event(self, message: str, level: Level = "info") -> None:
        """Print a line above the panel."""
        with self._letting_go():
            self._erase_wrapped()
            self._console.print(cell(message, _STYLES[level]))

    def show(self, make: Callable[[], Progress]) -> None:
        """Draw how the job stands, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _DRAW_INTERVAL_S
        progress = make()
        with self._letting_go():
            self._erase_wrapped()
            drawn = self.draw(progress)
            self._live.start()
            self._live.update(drawn, refresh=True)
            lines = self._console.render_lines(drawn, pad=False)
            self._drawn = len(lines), self._console.width

    def _erase_wrapped(self) -> None:
        """Erase what a terminal that became narrower made of the lines that were drawn."""
        from rich.control import Control
        from rich.segment import ControlType

        lines, width = self._drawn
        if self._console.width < width:
            rows = lines * (math.ceil(min(width, _PANEL_WIDTH) / self._console.width) - 1)
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            self._console.control(Control(*up * rows))
        self._drawn = lines, self._console.width

    @contextlib.contextmanager
    def _letting_go(self) -> Iterator[None]:
        """Have rich forget what a terminal did not take; it would keep all of it, and write it each time."""
        try:
            yield
        except OSError:
            self._console.quiet = True
            self._console.print()
            self._console.quiet = False

    def draw(self, progress: Progress) -> RenderableType:
        """What is shown at one moment."""
        from rich.columns import Columns
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done = Table.grid(padding=(0, 1))
        of = progress.of or None
        bar = ProgressBar(total=of, completed=min(progress.done, of or math.inf), width=_BAR_WIDTH)
        if not progress.state:
            done.add_row(cell(progress.what), bar, progress.amount, "  ".join(progress.pace))
            return done
        done.add_row(bar, progress.amount)
        shown = Table.grid(padding=(0, 2))
        shown.add_column(style="dim")
        shown.add_column()
        style = "bold green" if progress.warning is None else "bold yellow"
        shown.add_row(Text(progress.state, style), Columns(map(self._bold, progress.pace), padding=(0, 3)))
        shown.add_row(progress.what, done)
        if progress.trend is not None and math.isfinite(progress.trend[1]):
            self._trend.append(progress.trend[1])
        for name, words in progress.facts.items():
            facts = list(words)
            if progress.trend is not None and name == progress.trend[0]:
                room = min(self._console.width, _PANEL_WIDTH) - _BESIDE - sum(len(word) + 3 for word in facts)
                facts.append(sparkline(self._trend, max(1, min(_SPARK_WIDTH, room))))
            shown.add_row(name, Columns(map(cell, facts), padding=(0, 3)))
        if progress.warning is not None:
            shown.add_row("", cell(progress.warning, "yellow"))
        return Panel(shown, title=Text(printable(self._title)), title_align="left", width=_PANEL_WIDTH)

    @staticmethod
    def _bold(text: str) -> RenderableType:
        return cell(text, "bold")
