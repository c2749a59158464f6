"""How far long work is, on standard error: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from tape2048_tools.display import share
from tape2048_tools.log_lines import log
from tape2048_tools.output import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress_bar", "stages_bar"]

#: What is done sooner needs no bar: hundreds of small sessions would only flicker.
_BAR_AFTER_S = 0.3

#: Seconds from one line to the next where there is no terminal; what is done sooner has none.
_LINE_EVERY_S = 30.0


@contextlib.contextmanager
def progress_bar(
    label: str, *, quiet: bool = False, timed: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what is to be called with the amount done and the whole amount; None where nobody wants it.

    With ``timed``, no thread draws the bar beside the work: it is drawn in these calls alone.
    """
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines(label)
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),  # a file's name may hold what looks like markup
        *Progress.get_default_columns()[1:],
        console=Console(stderr=True),
        transient=True,
        auto_refresh=not timed,
    )
    task = bar.add_task(printable(label), total=None)
    begin = time.monotonic()

    def update(done: int, total: int) -> None:
        if time.monotonic() - begin > _BAR_AFTER_S and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total, refresh=timed)

    try:
        yield update
    finally:
        bar.stop()


def _lines(label: str) -> Callable[[int, int], None]:
    due = time.monotonic() + _LINE_EVERY_S

    def update(done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _LINE_EVERY_S
        log(f"{label}: {share(done / max(total, 1))}")

    return update


@contextlib.contextmanager
def stages_bar(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """As :func:`progress_bar`, for work of several stages: one bar after the other, each with its name."""
    if quiet:
        yield None
        return
    with contextlib.ExitStack() as stack:
        bars: dict[str, Callable[[int, int], None] | None] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                stack.close()
                bars[stage] = stack.enter_context(progress_bar(stage))
            bar = bars[stage]
            if bar is not None:
                bar(done, total)

        yield update
