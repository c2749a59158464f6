"""Computations on daemon threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(compute: Callable[[], T]) -> Future[T]:
    """Start a computation, and return the future of its result.

    The thread ends with the process. The threads of an executor would keep Ctrl-C waiting for their results.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = compute()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is read
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future
