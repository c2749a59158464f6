"""The shortest history that is still wrong, and the test that it becomes."""

from collections.abc import Callable, Iterator

from .history import Failure, live
from .life import Plan


def shrink(failure: Failure, live: Callable[[Plan], Failure | None] = live) -> Failure:
    """Leave out lives, events and settings for as long as the history stays wrong."""
    while (smaller := next(_wrong(failure.plan, live), None)) is not None:
        failure = smaller
    return failure


def _wrong(plan: Plan, live: Callable[[Plan], Failure | None]) -> Iterator[Failure]:
    for smaller in _smaller(plan):
        found = live(smaller)
        if found is not None:
            yield found


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Smaller histories, those first that leave out most."""
    for life in range(len(plan.settings)) if len(plan.settings) > 1 else ():
        settings = plan.settings[:life] + plan.settings[life + 1 :]
        left = [event for event in plan.events if event.life != life]
        moved = [event._replace(life=event.life - (event.life > life)) for event in left]
        yield Plan(plan.seed, settings, tuple(moved))
    size = len(plan.events)
    while size:
        for begin in range(0, len(plan.events), size):
            yield plan._replace(events=plan.events[:begin] + plan.events[begin + size :])
        size //= 2
    for life, settings in enumerate(plan.settings):
        for name in settings:
            fewer = {key: value for key, value in settings.items() if key != name}
            yield plan._replace(settings=(*plan.settings[:life], fewer, *plan.settings[life + 1 :]))


def as_test(failure: Failure) -> str:
    """The history as a test to be pasted."""
    plan = failure.plan
    events = "".join(f"            Event{tuple(event)!r},\n" for event in plan.events)
    settings = "".join(f"            {one!r},\n" for one in plan.settings)
    return (
        f"def test_history_{plan.seed}() -> None:\n"
        f'    """{failure.what}"""\n'
        f"    plan = Plan(\n        {plan.seed},\n"
        f"        (\n{settings}        ),\n"
        f"        (\n{events}        ),\n"
        "    )\n"
        "    assert live(plan) is None\n"
    )
