"""Writers that are killed, or told that an operation failed, at each of their calls that change a file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048.files import durable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The calls that need room, and all calls that change something.
FILLING = ("write", "pwrite", "fsync", "mkdir")
CHANGING = (
    *FILLING, "open", "link", "rename", "replace", "renameat2", "unlink", "rmdir", "ftruncate", "flock"
)  # fmt: skip
_PLACES = {"renameat2": (durable, "_renameat2"), "flock": (fcntl, "flock")}


class Crash(NamedTuple):
    """An interrupted piece of work: at which call, or that it came to its end; and the class of its error."""

    call: str
    ended: bool
    error: str = ""


def crashes(
    work: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    error: int | None = None,
    calls: tuple[str, ...] = CHANGING,
    every: int = 1,
) -> Iterator[Crash]:
    """Do work in forked children, each interrupted one call later (or ``every`` so many), to its end.

    ``before`` runs here before each child. A child is killed, or its call fails with the code ``error`` of
    the operating system. SQLite's calls are not counted: they are between two that are.
    """
    for number in itertools.count(0, every):
        before()
        crash = _interrupted(work, number, error, calls)
        yield crash
        if not crash.call:
            return


def _interrupted(work: Callable[[], object], number: int, error: int | None, calls: tuple[str, ...]) -> Crash:
    reader, writer = os.pipe()
    tell = os.write
    if (pid := os.fork()) == 0:
        kind = "interrupted"
        try:
            _arm(number, error, calls, lambda name: tell(writer, f"{name} ".encode()))
            work()
            kind = ""
        except BaseException as found:  # noqa: BLE001 - the parent judges it
            kind = type(found).__name__
            if error is None:
                traceback.print_exc()
        finally:
            tell(writer, f"| {kind}".encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        call, bar, kind = answer.read().partition("|")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (0 if bar else -signal.SIGKILL)
    assert error is not None or not kind.strip(), f"a child raised {kind}"
    return Crash(call.strip(), bool(bar) and not kind.strip(), kind.strip())


def _arm(number: int, error: int | None, calls: tuple[str, ...], tell: Callable[[str], object]) -> None:
    """Let this process's call of that number fail, or kill it."""
    counter = itertools.count()

    def interrupt(name: str) -> None:
        if next(counter) != number:
            return
        tell(name)
        if error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(error, errno.errorcode[error or 0])

    def armed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[1] & os.O_CREAT:
                interrupt(name)
            return real(*args, **kwargs)

        return call

    for name in calls:
        module, attribute = _PLACES.get(name, (os, name))
        setattr(module, attribute, armed(name, getattr(module, attribute)))


@contextlib.contextmanager
def at_system_call(number: int, action: Callable[[], object]) -> Iterator[list[str]]:
    """Do something before a thread's system call of that number; yield the names of its calls so far."""
    names: list[str] = []

    def profile(_frame: object, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__module__", "") in {"posix", "fcntl"}:
            names.append(called.__name__)
            if len(names) == number:
                action()

    sys.setprofile(profile)
    try:
        yield names
    finally:
        sys.setprofile(None)
