"""The lines of metrics that a training leaves, and goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tape2048.critic_config import CriticConfig
from tape2048.torch._tracking import METRICS, Tracking

if TYPE_CHECKING:
    from pathlib import Path

LINE = b'{"kind":"train","step":1,"loss":0.5}\n'


@pytest.mark.parametrize(
    ("there", "kept_bytes", "stay"),
    [
        (LINE * 3, 2 * len(LINE), LINE * 2),
        (LINE, 2 * len(LINE), LINE),
        (None, 2 * len(LINE), b""),
    ],
    ids=["steps that come again", "an end that was lost", "removed"],
)
def test_going_on_keeps_the_lines_that_count(
    tmp_path: Path, there: bytes | None, kept_bytes: int, stay: bytes
) -> None:
    """What a user removed, or a power failure took, does not come back as zeros."""
    path = tmp_path / METRICS
    if there is not None:
        path.write_bytes(there)
    with Tracking(CriticConfig(), tmp_path, kept_bytes) as tracking:
        length = tracking.note("train", 1, {"loss": 0.5})
    assert path.read_bytes() == stay + LINE
    assert length == len(stay + LINE)
