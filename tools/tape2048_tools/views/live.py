"""A panel on a terminal that shows a long job, redrawn twice a second; events scroll by above it."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import TYPE_CHECKING

from tape2048_tools.terminal.output import cell, printable
from tape2048_tools.views.progress import Progress, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType

    from tape2048_recorder.status.report import Level

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48
_BESIDE = 16  # width of a panel's borders, a fact's name and spaces
_PANEL_WIDTH = 88
_BAR_WIDTH = 24
_DRAW_INTERVAL_S = 0.4
#: Shorter jobs show nothing: hundreds of small sessions would only flicker.
_DRAW_AFTER_S = 0.3
_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


def sparkline(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """Draw values as a line of bars, from lowest to highest; each bar is the mean of its part."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((mean - low) / span * len(_BARS)), len(_BARS) - 1)] for mean in means)


class LiveView(View):
    """A panel for a job with a state, a line with a bar for one without.

    Args:
        title: title of the panel.
    """

    def __init__(self, title: str = "") -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(_DRAW_INTERVAL_S, _DRAW_AFTER_S)
        self._title = title
        self._trend: list[float] = []
        self._drawn = (0, 0)  # lines, and the width of the terminal when they were drawn
        self._console: Console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()
        super().__exit__()

    def event(self, message: str, level: Level = "info") -> None:
        """Print a line above the panel."""
        with self._dropping_unwritten():
            self._erase_wrapped()
            self._console.print(cell(message, _STYLES[level]))

    def _show(self, progress: Progress) -> None:
        with self._dropping_unwritten():
            self._erase_wrapped()
            drawn = self.draw(progress)
            self._live.start()
            self._live.update(drawn, refresh=True)
            lines = self._console.render_lines(drawn, pad=False)
            self._drawn = len(lines), self._console.width

    def _erase_wrapped(self) -> None:
        """Erase the rows into which a terminal that became narrower has wrapped the drawn lines."""
        from rich.control import Control
        from rich.segment import ControlType

        lines, width = self._drawn
        if self._console.width < width:
            rows = lines * (math.ceil(min(width, _PANEL_WIDTH) / self._console.width) - 1)
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            self._console.control(Control(*up * rows))
        self._drawn = lines, self._console.width

    @contextlib.contextmanager
    def _dropping_unwritten(self) -> Iterator[None]:
        """Drop output that the terminal did not take; rich would keep it, and write it each time."""
        try:
            yield
        except OSError:
            self._console.quiet = True
            self._console.print()
            self._console.quiet = False

    def draw(self, progress: Progress) -> RenderableType:
        """Return the display of one moment."""
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
        shown.add_row(
            Text(progress.state, style),
            Columns([cell(text, "bold") for text in progress.pace], padding=(0, 3)),
        )
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
