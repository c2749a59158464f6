"""Histories: several lives on one disk, made from a seed, lived, and checked."""

import errno
import gc
import traceback
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tape2048_recorder.record_options import LEASE_MAX

from .disk import Disk
from .life import Event, Life, Plan
from .truth import Broken, Truth
from .workers import MISHAPS

#: Lives without trouble at the end that may be needed until all is recovered.
LAST_LIVES_MAX = 3


class Failure(NamedTuple):
    """What was wrong with a history, and all that its lives said."""

    plan: Plan
    what: str
    said: str


def make_plan(seed: int) -> Plan:
    """Make a history of one to three troubled lives, and a last one without trouble."""
    random = Random(seed)
    lives = random.choice((1, 1, 2, 2, 3))
    fixed = random.random() < 0.8
    settings = []
    for _ in range(lives + 1):
        one: dict[str, Any] = {
            "workers": random.choice((1, 2, 2, 3)),
            "seed": 7 if fixed else None,
            "rotate_steps": random.choice((20, 100, 400)),
            "block_rows": random.choice((4, 12, 30)),
            "min_free_mb": random.choice((0, 0, 1)),
        }
        if random.random() < 0.3:
            one["rotate_s"] = random.choice((0.5, 3.0))
        if random.random() < 0.3:
            one["max_games"] = random.choice((1, 10, 60))
        elif random.random() < 0.15:
            one["max_steps"] = random.choice((1, 100, 500))
        if fixed:  # from a generator of its own: what else is drawn stays as it was
            one["lease"] = Random(f"{seed} {len(settings)} lease").choice((0, 0, 1, LEASE_MAX))
        settings.append(one)
    events: list[Event] = []
    for life in range(lives):
        calm = random.random() < 0.25
        events += _events(random, life, calm=calm)
    return Plan(seed, tuple(settings), tuple(events))


_CALM = ("rotate", "reload", "stop", "slow", "wall", "stall")
_TROUBLES = ("full", "fail", "unwritten", "mishap", "mishap", "spawns")
_RELOADS = (
    ("rotate_steps", 10), ("rotate_steps", 100), ("max_games", 1), ("max_games", 100), ("block_rows", 4),
    ("block_rows", 50), ("rotate_s", 0.5), ("rotate_s", None),
)  # fmt: skip
_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_PARTS = (
    "", "", "steps.npy", "journal", "metadata.db", "manifest.json", "facts.json", ".recorder", ".partial",
)  # fmt: skip
_CALLS = (
    "open", "write", "fsync", "fsync", "truncate", "mkdir", "rename", "unlink", "rmdir", "stat", "list",
    "read",
)  # fmt: skip


def _events(random: Random, life: int, *, calm: bool) -> list[Event]:
    events = []
    kinds = _CALM if calm else _CALM + _TROUBLES + _TROUBLES
    for _ in range(random.choice((0, 1, 2, 3, 5, 8))):
        at = round(random.uniform(0.0, 4.0), 3)
        events.append(Event(life, at, *_event(random, random.choice(kinds))))
    ending = random.random()
    if ending < 0.2:
        events.append(Event(life, round(random.uniform(0.0, 5.0), 3), random.choice(("kill", "power"))))
    elif ending < 0.7:
        calls = int(10 ** random.uniform(0.0, 2.8))
        at = round(random.choice((0.0, random.uniform(0.0, 4.0))), 3)
        events.append(Event(life, at, "die_at", (calls, random.random() < 0.6)))
    else:
        events.append(Event(life, round(random.uniform(0.5, 4.0), 3), "signal", ("SIGTERM",)))
        if random.random() < 0.3:
            at = round(random.uniform(1.0, 5.0), 3)
            events.append(Event(life, at, "signal", (random.choice(("SIGTERM", "SIGINT", "SIGUSR2")),)))
    return sorted(events, key=lambda event: event.at)


def _fault(random: Random) -> tuple[str, int]:
    """A call that fails, and how."""
    if random.random() < 0.2:
        return random.choice(("open", "open", "socket")), random.choice((errno.EMFILE, errno.ENFILE))
    return random.choice(_CALLS), random.choice(_CODES)


def _event(random: Random, kind: str) -> tuple[str, tuple[Any, ...]]:
    """An event of a kind: a method of :class:`Life`, and its arguments."""
    made: dict[str, Callable[[], tuple[Any, ...]]] = {
        "rotate": lambda: ("signal", "SIGUSR1"),
        "stop": lambda: ("signal", random.choice(("SIGTERM", "SIGINT", "SIGUSR2"))),
        "reload": lambda: ("settings", (random.choice(_RELOADS),), random.choice((None, 0.2, 0.6, 0.9))),
        "slow": lambda: ("slow", random.choice((0.0, 0.05, 0.5, 2.0))),
        "wall": lambda: ("wall", random.choice((-3600.0, -2.0, 5.0))),
        "stall": lambda: ("stall", round(random.uniform(0.1, 4.0), 2)),
        "full": lambda: ("full", round(random.uniform(0.1, 5.0), 2), random.choice((0, 0, 40, 300, 5000))),
        "fail": lambda: ("fail", *_fault(random), random.choice((1, 1, 2, 10)), random.choice(_PARTS)),
        "unwritten": lambda: ("unwritten", "steps.npy"),
        "spawns": lambda: ("spawns", random.choice((1, 3))),
        "mishap": lambda: ("mishap", random.randrange(2), random.choice(MISHAPS)),
    }
    name, *args = made[kind]()
    return name, tuple(args)


def live(plan: Plan) -> Failure | None:
    """Live a history; what was wrong with it."""
    disk, truth = Disk(), Truth()
    disk.lost = truth.lose
    said: list[str] = []
    life = None
    try:
        for number in range(len(plan.settings) + LAST_LIVES_MAX):
            if life is not None and number >= len(plan.settings) and not truth.left(life):
                break  # a disk that failed in an earlier life may have left something for the one after
            life = Life(number, plan, disk, truth)
            life.live()
            truth.check(life)
            said.append(life.says())
        truth.check_last(life)
    except Broken as broken:
        what = str(broken)
    except Exception as error:  # noqa: BLE001 - whatever the recorder raises is wrong
        what = f"{type(error).__name__}: {error}"
        said.append(traceback.format_exc())
    else:
        return None
    if life is not None:
        said.append(life.says())
    return Failure(plan, what, "\n".join(said))


def live_seeds(first: int, count: int) -> tuple[int, Failure | None]:
    """Live the histories of these seeds until one is wrong; the lives, and what was wrong."""
    lives = 0
    collects = gc.isenabled()
    gc.disable()  # the thousands of small objects of a history go with it
    try:
        for seed in range(first, first + count):
            plan = make_plan(seed)
            failure = live(plan)
            lives += len(plan.settings)
            if failure is not None:
                return lives, failure
            if seed % 64 == 0:
                gc.collect()
    finally:
        if collects:
            gc.enable()
    return lives, None
