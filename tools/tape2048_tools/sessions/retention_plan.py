"""Plans of the sessions to remove, by limits on age, number, size and free space.

Plans need names, sizes, a few facts and the ids of games. The limits are settings:
:mod:`tape2048_recorder.retention`. ``tape2048 prune`` executes plans.
"""

from __future__ import annotations

import functools
import sqlite3
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tape2048.base.text import counted
from tape2048.errors import MaintenanceError, TapeError
from tape2048.files.sqlite import WorkLimit, open_untrusted
from tape2048.maintenance.removal import explain_refusal
from tape2048.session.layout import METADATA_DB, SESSION_NAME, name_key
from tape2048.session.recorded_order import Recorded, recorded_order
from tape2048.session.session import sessions
from tape2048_tools.sessions.ages import start_s
from tape2048_tools.sessions.summary import directory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tape2048_recorder.retention import Retention, RetentionLimits

MEGABYTE = 10**6

NO_LIMIT = "no limit is set: set limits with flags, or in [retention] of the configuration file"

#: Reading facts and ids by their keys takes a few hundred operations of SQLite, for files of any size.
_FACT_WORK = WorkLimit(100_000, 1)


class Candidate(NamedTuple):
    """A session that retention may remove: start (Unix seconds), name, tag, bytes."""

    start_s: float
    name: str
    tag: str
    bytes: int


class Going(NamedTuple):
    session: Candidate
    rule: str
    why: str


class PrunePlan(NamedTuple):
    """The effect of retention. ``held`` sessions stay only for a reader; ``unmet`` limits are in words."""

    going: list[Going]
    staying: int
    staying_bytes: int
    held: list[str]
    unmet: list[str]

    def refuse_to_empty(self, where: Path | str) -> None:
        if self.going and not self.staying:
            raise MaintenanceError(
                f"found limits that remove all of {counted(len(self.going), 'session')}. Nothing was removed",
                path=where,
                hint="Check the list with --dry-run. Raise the limits or keep_last, or pass --yes-really.",
            )


def candidates(root: Path, tags: Collection[str] = ()) -> tuple[list[Candidate], list[tuple[Path, str]]]:
    """Return the removable sessions in the order of their recording, and the skipped ones with reasons."""
    found: list[Candidate] = []
    places: list[Recorded] = []
    passed: list[tuple[Path, str]] = []
    for path in sessions(root):
        why = explain_refusal(path)
        try:
            if why is None and (match := SESSION_NAME.fullmatch(path.name)):
                facts, ids = _read_facts(path)
                start, tag = start_s(match["ts"]), match["tag"]
                # The tag without the counter that publishing adds to a taken name. ``a-2`` can be a tag, too.
                if (fact := facts.get("model_tag")) == name_key(tag)[0]:
                    tag = str(fact)
                if not tags or tag in tags:
                    found.append(Candidate(start, path.name, tag, directory_bytes(path)))
                    places.append(Recorded.of(path.name, start, facts, ids))
        except OSError as error:
            why = error.strerror or str(error)
        except ValueError:
            why = "its name has no valid time"
        if why is not None:
            passed.append((path, why))
    return [found[i] for i in recorded_order(places)], passed


def _read_facts(path: Path) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Return the facts that say where a session belongs, and the first and last id of its games.

    Both are empty if they are damaged. The tag is then the name's with its counter, so that keep_last
    protects the session.
    """
    try:
        with open_untrusted(path / METADATA_DB, {"session", "runs"}, _FACT_WORK) as (database, _):
            rows = database.execute(
                "SELECT meta_key, meta_value FROM session WHERE meta_key IN ('model_tag', 'instance', 'seed')"
            )
            facts = {key: msgspec.json.decode(value) for key, value in rows}
            query = "SELECT (SELECT min(id) FROM runs), (SELECT max(id) FROM runs)"  # each by the index
            first, last = database.execute(query).fetchone()
            is_known = isinstance(first, int) and isinstance(last, int)
            return facts, (first, last) if is_known else None
    except (TapeError, sqlite3.Error, msgspec.DecodeError, TypeError, UnicodeDecodeError, RecursionError):
        return {}, None


def make_plan(
    found: list[Candidate],
    retention: Retention,
    *,
    is_held: Callable[[Candidate], bool] = lambda _: False,
    now_s: float | None = None,
) -> PrunePlan:
    """Choose the sessions to remove from candidates, the oldest first.

    A session that a process reads stays, and limits on size and count remove the next session instead. A
    session with a start in the future, from a wrong clock, stays and does not count among the newest.
    """
    now_s = time.time() if now_s is None else now_s
    dated = [session for session in found if session.start_s <= now_s]
    planner = _Planner(dated, retention, functools.cache(is_held))
    planner.apply(retention.general, dated, "", now_s)
    for tag, limits in retention.tags.items():
        planner.apply(limits, [session for session in dated if session.tag == tag], f" of {tag}", now_s)
    future = [session.name for session in found if session.start_s > now_s]
    planner.unmet += [f"{name} starts in the future and stays: check the clock" for name in future]
    left = [session for session in found if session not in planner.gone]
    held = [session.name for session in dated if session in planner.held]
    staying_bytes = sum(session.bytes for session in left)
    return PrunePlan(list(planner.gone.values()), len(left), staying_bytes, held, planner.unmet)


class _Planner:
    def __init__(
        self, found: list[Candidate], retention: Retention, is_held: Callable[[Candidate], bool]
    ) -> None:
        self._is_held, self._keep_last = is_held, retention.keep_last
        self._protected: set[Candidate] = set()
        self.gone: dict[Candidate, Going] = {}  # in the order of removal
        self.held: set[Candidate] = set()
        self.unmet: list[str] = []
        seen: Counter[str] = Counter()
        for session in reversed(found):
            seen[session.tag] += 1
            if seen[session.tag] <= self._keep_last(session.tag):
                self._protected.add(session)

    def apply(self, limits: RetentionLimits, chosen: list[Candidate], whose: str, now_s: float) -> None:
        if limits.max_age_s is not None:
            for session in self._removable(chosen):
                age = now_s - session.start_s
                if age < limits.max_age_s:
                    break
                why = f"{age:.0f} s old, over the limit of {limits.max_age_s:.0f} s{whose}"
                self.gone[session] = Going(session, "max_age_s", why)
        left = [session for session in chosen if session not in self.gone]
        if limits.max_sessions is not None:
            why = f"over the limit of {counted(limits.max_sessions, 'session')}{whose}"
            self.shed(left, len(left) - limits.max_sessions, "max_sessions", why, by_size=False)
        if limits.max_total_mb is not None:
            total = sum(session.bytes for session in left if session not in self.gone)
            why = f"over the limit of {limits.max_total_mb} MB{whose}"
            self.shed(left, total - limits.max_total_mb * MEGABYTE, "max_total_mb", why)

    def shed(
        self, chosen: list[Candidate], excess: int, rule: str, why: str, *, by_size: bool = True
    ) -> None:
        if excess <= 0:
            return
        for session in self._removable(chosen):
            self.gone[session] = Going(session, rule, why)
            excess -= session.bytes if by_size else 1
            if excess <= 0:
                return
        kept = [session for session in chosen if session in self._protected]
        held = self.held.intersection(chosen)
        last = " or ".join(map(str, sorted({self._keep_last(session.tag) for session in kept})))
        reasons = [f"keep_last = {last} keeps {counted(len(kept), 'session')}"] if kept else []
        reasons += [f"readers hold {counted(len(held), 'session')}"] if held else []
        self.unmet.append(f"{rule}: {why}, but {' and '.join(reasons) or 'no session is left'}")

    def _removable(self, chosen: list[Candidate]) -> Iterator[Candidate]:
        for session in chosen:
            if session not in self.gone and session not in self._protected:
                if self._is_held(session):
                    self.held.add(session)
                else:
                    yield session
