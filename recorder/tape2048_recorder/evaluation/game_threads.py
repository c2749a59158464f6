"""Running functions on several threads, with progress and a way to stop them."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TICK_S = 0.2


def in_threads(works: Sequence[Callable[[threading.Event], object]], progress: Callable[[], object]) -> None:
    """Run functions of a stop event on threads; call ``progress`` every 0.2 s; raise the first error."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(works)) as pool:
        try:
            pending = {pool.submit(work, stop) for work in works}
            while pending:
                ended, pending = wait(pending, _TICK_S, FIRST_EXCEPTION)
                for each in ended:
                    each.result()
                progress()
        finally:
            stop.set()
