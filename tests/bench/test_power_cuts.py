"""The power cuts in short."""

import pytest

from .figures import memory_dir
from .power_cuts import cuts

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_cuts_lose_no_published_game() -> None:
    with memory_dir() as directory:
        tally = cuts(directory, count=2)
    assert tally.problems == []
    assert tally.sessions >= 3
    assert tally.ids
