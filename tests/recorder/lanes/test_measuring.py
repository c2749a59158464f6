"""Measurement of a player: calls of ``progress``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048_recorder.lanes import measuring
from tape2048_recorder.players.sampling import Sampling

if TYPE_CHECKING:
    import pytest


def test_whoever_waits_is_told_the_share_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_SLICE_S", 0.01)
    told: list[float] = []
    measuring.measure(measuring.NULL, {}, lanes=8, sampling=Sampling(), seconds=0.1, progress=told.append)
    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1] == 1
