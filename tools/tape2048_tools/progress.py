"""A bar on standard error for work that takes long, if a person is there to see it."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from tape2048_tools.output import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress_bar", "stages_bar"]

#: What is done sooner needs no bar: hundreds of small sessions would only flicker.
_BAR_AFTER_S = 0.3


@contextlib.contextmanager
def progress_bar(
    label: str, *, quiet: bool = False, timed: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what is to be called with the amount done and the whole amount; None where nobody looks.

    With ``timed``, no thread draws the bar beside the work: it is drawn in these calls alone.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=not timed)
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


@contextlib.contextmanager
def stages_bar(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """As :func:`progress_bar`, for work of several stages: one bar after the other, each with its name."""
    if quiet or not sys.stderr.isatty():
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
