"""The soak in short: a worker is killed, and a recovery."""

import pytest

from .figures import memory_dir
from .soak import soak


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "victims"), [("rows", ("worker", "recovery")), ("tape", ("recovery",))])
def test_kills_lose_no_step(storage: str, victims: tuple[str, ...]) -> None:
    """Every step is accounted for when a worker and a recovery are killed."""
    with memory_dir() as directory:
        root = directory / "out"
        root.mkdir()
        tally = soak(root, seconds=0, every_s=(0.1, 0.2), workers=1, storage=storage, victims=victims)
    assert tally.problems == []
    assert [tally.kills[victim] for victim in (*victims, "daemon")] == [*(1 for _ in victims), 0]
    assert 0 < tally.steps <= tally.played <= tally.steps + tally.at_risk
