"""A panel on a terminal that shows a long job, redrawn twice a second; events scroll by above it."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Self

from tape2048_tools.terminal.output import cell, printable
from tape2048_tools.views.progress import Progress, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.text import Text

    from tape2048_recorder.status.report import Level

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48
_BESIDE = 14  # width of a fact's name and spaces
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


class Display:
    """Lines on a terminal that are replaced by the next ones; a context.

    A terminal that becomes narrower wraps what stands on it. So lines have no frame and end with their text:
    short ones stay whole, and the additional rows of longer ones are erased before the next lines.

    Args:
        console: the terminal.
        transient: whether the last lines are erased at the end.
    """

    def __init__(self, console: Console, *, transient: bool = True) -> None:
        from rich.live import Live

        self.console = console
        self._widths: list[int] = []  # of the lines on the terminal
        self._live = Live(console=console, auto_refresh=False, transient=transient, vertical_overflow="crop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._erase_wrapped()
        self._live.stop()

    def show(self, drawn: RenderableType) -> None:
        """Replace the lines."""
        from rich.console import Group
        from rich.text import Text

        self._erase_wrapped()
        rendered = self.console.render_lines(drawn, pad=False)[: self.console.height]
        lines = [Text(no_wrap=True, overflow="crop") for _ in rendered]
        for line, parts in zip(lines, rendered, strict=True):
            for part in parts:
                line.append(part.text, part.style)
            line.rstrip()
        self._live.start()
        self._live.update(Group(*lines), refresh=True)
        self._widths = [line.cell_len for line in lines]

    def print(self, text: Text) -> None:
        """Print above the lines."""
        self._erase_wrapped()
        self.console.print(text)

    def _erase_wrapped(self) -> None:
        """Erase the additional rows into which the terminal has wrapped the lines."""
        from rich.control import Control
        from rich.segment import ControlType

        width = self.console.width
        rows = sum(max(line - 1, 0) // width for line in self._widths)
        if rows:
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            self.console.control(Control(*up * rows))
        self._widths = [min(line, width) for line in self._widths]


class LiveView(View):
    """A panel for a job with a state, a line with a bar for one without.

    Args:
        title: title of the panel.
    """

    def __init__(self, title: str = "") -> None:
        from rich.console import Console

        super().__init__(_DRAW_INTERVAL_S, _DRAW_AFTER_S)
        self._title = title
        self._trend: list[float] = []
        self._console: Console = Console(stderr=True, highlight=False)
        self._display = Display(self._console)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._display.__exit__()
        super().__exit__()

    def event(self, message: str, level: Level = "info") -> None:
        """Print a line above the panel."""
        with self._dropping_unwritten():
            self._display.print(cell(message, _STYLES[level]))

    def _show(self, progress: Progress) -> None:
        with self._dropping_unwritten():
            self._display.show(self.draw(progress))

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
        from rich.console import Group
        from rich.padding import Padding
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
        return Group(Text(printable(self._title), "bold"), Padding(shown, (0, 0, 0, 2)))
