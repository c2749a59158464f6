"""Which sessions retention lets go, and why: from names and sizes alone, so that ten thousand are no work."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tape2048.base.text import counted
from tape2048.errors import TapeError
from tape2048.formats.session import METADATA_DB, SESSION_NAME
from tape2048.io.durable import storage_errors
from tape2048.io.sqlite import WorkLimit, open_untrusted
from tape2048.maintenance.removal import explain_refusal
from tape2048.session.session import sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tape2048_recorder.config.retention import Retention, RetentionLimits

__all__ = ["FREE_SPACE", "Candidate", "Going", "Plan", "candidates", "free_bytes", "make_plan"]

MEGABYTE = 10**6

#: The rule of what goes for want of space; asked again before each removal.
FREE_SPACE = "keep_free_mb"

#: One fact by its key: a few hundred operations of SQLite, whatever the size of the file.
_FACT_WORK = WorkLimit(100_000, 1)


class Candidate(NamedTuple):
    """A session that retention may let go: start (Unix seconds), counter of its name, name, tag, bytes."""

    start_s: float
    counter: int
    name: str
    tag: str
    bytes: int


class Going(NamedTuple):
    """A session that goes: the rule that says so, and in words."""

    session: Candidate
    rule: str
    why: str


class Plan(NamedTuple):
    """What retention makes of a directory.

    Attributes:
        going: the sessions that go, in the order in which they were chosen.
        staying: how many stay.
        staying_bytes: what these take.
        held: names of those that would go, and are being read.
        unmet: limits that still do not hold when all that may go has gone, in words.
    """

    going: list[Going]
    staying: int
    staying_bytes: int
    held: list[str]
    unmet: list[str]


def free_bytes(root: Path) -> int:
    """Bytes that this user may still write to a directory's file system.

    Raises:
        StorageError: the operating system would not say.
    """
    with storage_errors(root, "asking for free space"):
        status = os.statvfs(root)
    return status.f_bavail * status.f_frsize


def candidates(root: Path, tags: Collection[str] = ()) -> tuple[list[Candidate], list[tuple[Path, str]]]:
    """The sessions of a directory that may go, the oldest first; and what is passed over, with the reason.

    Args:
        root: the directory.
        tags: model tags to look at; none: all.

    Raises:
        OutDirError: it cannot be listed.
    """
    found: list[Candidate] = []
    passed: list[tuple[Path, str]] = []
    for path in sessions(root):
        why = explain_refusal(path)
        try:
            session = _candidate(path) if why is None else None
        except OSError as error:
            session, why = None, error.strerror or str(error)
        except ValueError:
            session, why = None, "its name is no moment"
        if session is None:
            passed.append((path, str(why)))
        elif not tags or session.tag in tags:
            found.append(session)
    found.sort()
    return found, passed


def _candidate(path: Path) -> Candidate:
    match = SESSION_NAME.fullmatch(path.name)
    assert match is not None  # explain_refusal has looked
    start = dt.datetime.strptime(match["ts"], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    tag, count = _tag_and_count(path, match["tag"])
    return Candidate(start.timestamp(), count, path.name, tag, _bytes(path))


def _tag_and_count(path: Path, text: str) -> tuple[str, int]:
    """The model tag, and the counter that publishing adds to a name that is taken (1: none).

    ``a-2`` may be a tag of its own, so that what ends in a number is looked up in the session.
    """
    tag, dash, count = text.rpartition("-")
    if not (dash and tag and count.isascii() and count.isdigit()):
        return text, 1
    try:
        with open_untrusted(path / METADATA_DB, {"session"}, _FACT_WORK) as (database, tables):
            query = "SELECT meta_value FROM session WHERE meta_key = 'model_tag'"
            row = database.execute(query).fetchone() if "session" in tables else None
            fact = msgspec.json.decode(row[0]) if row else None
    except (TapeError, msgspec.DecodeError, TypeError, UnicodeDecodeError, RecursionError):
        return text, 1  # damaged: a group of its own, of which keep_last keeps it
    return (tag, int(count)) if fact == tag else (text, 1)


def _bytes(path: Path) -> int:
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


def make_plan(
    found: list[Candidate],
    retention: Retention,
    *,
    now_s: float,
    free: int,
    is_held: Callable[[Candidate], bool],
) -> Plan:
    """Choose what goes.

    Args:
        found: the candidates, the oldest first.
        retention: the limits.
        now_s: the time, Unix seconds.
        free: bytes that are free on the file system.
        is_held: whether somebody reads a session; asked only of those that would go. Such a one stays, and
            for limits of size and count the next one goes in its place.
    """
    return _Planning(found, retention, now_s, free, is_held).plan()


class _Planning:
    """The state of one plan: what is gone so far, and what may not go."""

    def __init__(
        self,
        found: list[Candidate],
        retention: Retention,
        now_s: float,
        free: int,
        is_held: Callable[[Candidate], bool],
    ) -> None:
        self._retention = retention
        self._now_s = now_s
        self._free = free
        self._is_held = is_held
        self._found = found
        self._left = [True] * len(found)
        self._protected = self._newest()
        self._held: dict[int, bool] = {}
        self._going: list[Going] = []
        self._unmet: list[str] = []

    def _newest(self) -> list[bool]:
        seen: Counter[str] = Counter()
        protected = [False] * len(self._found)
        for at in range(len(self._found) - 1, -1, -1):
            tag = self._found[at].tag
            seen[tag] += 1
            protected[at] = seen[tag] <= self._retention.keep_last(tag)
        return protected

    def plan(self) -> Plan:
        everything = range(len(self._found))
        self._apply(self._retention.general, list(everything), "")
        for tag, limits in self._retention.tags.items():
            self._apply(limits, [at for at in everything if self._found[at].tag == tag], f" of {tag}")
        self._keep_free()
        left = [session for session, stays in zip(self._found, self._left, strict=True) if stays]
        held = [self._found[at].name for at, is_held in sorted(self._held.items()) if is_held]
        return Plan(self._going, len(left), sum(session.bytes for session in left), held, self._unmet)

    def _apply(self, limits: RetentionLimits, chosen: list[int], whose: str) -> None:
        if limits.max_age_s is not None:
            for at in self._may_go(chosen):
                age = self._now_s - self._found[at].start_s
                if age < limits.max_age_s:
                    break
                self._let_go(at, "max_age_s", f"{age:.0f} s old; {limits.max_age_s:.0f} s{whose} are kept")
        if limits.max_sessions is not None:
            over = sum(self._left[at] for at in chosen) - limits.max_sessions
            kept = counted(limits.max_sessions, "session")
            why = f"{kept}{whose} {'is' if limits.max_sessions == 1 else 'are'} kept"
            self._shed(chosen, over, lambda _: 1, "max_sessions", why)
        if limits.max_total_mb is not None:
            total = sum(self._found[at].bytes for at in chosen if self._left[at])
            over = total - limits.max_total_mb * MEGABYTE
            why = f"{limits.max_total_mb} MB{whose} are kept"
            self._shed(chosen, over, lambda session: session.bytes, "max_total_mb", why)

    def _keep_free(self) -> None:
        limit = self._retention.general.keep_free_mb
        if limit is None:
            return
        free = self._free + sum(going.session.bytes for going in self._going)
        over = limit * MEGABYTE - free
        everything = list(range(len(self._found)))
        why = f"{limit} MB are to be free"
        self._shed(everything, over, lambda session: session.bytes, FREE_SPACE, why)

    def _shed(
        self, chosen: list[int], over: int, weight: Callable[[Candidate], int], rule: str, why: str
    ) -> None:
        """Let the oldest go until nothing is over."""
        if over <= 0:
            return
        for at in self._may_go(chosen):
            self._let_go(at, rule, why)
            over -= weight(self._found[at])
            if over <= 0:
                return
        self._unmet.append(f"{rule}: {why}, but the rest is kept by keep_last, or read")

    def _may_go(self, chosen: list[int]) -> Iterator[int]:
        for at in chosen:
            if self._left[at] and not self._protected[at]:
                if at not in self._held:
                    self._held[at] = self._is_held(self._found[at])
                if not self._held[at]:
                    yield at

    def _let_go(self, at: int, rule: str, why: str) -> None:
        self._left[at] = False
        self._going.append(Going(self._found[at], rule, why))
