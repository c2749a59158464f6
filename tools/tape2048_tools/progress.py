"""A bar on standard error while something takes long, if a person is there to see it."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from tape2048_tools.output import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]

#: What is done sooner needs no bar: it would only flicker.
_BAR_AFTER_S = 0.3


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for what is done within the block.

    Args:
        label: what is being done.
        quiet: no bar.

    Yields:
        A function to be called with what is done and what there is in all, or None where nobody looks.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(printable(label), total=None)
    begin = time.monotonic()

    def update(done: int, total: int) -> None:
        if time.monotonic() - begin > _BAR_AFTER_S and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()
