"""What the workers play: the errors that end a recorder."""

from __future__ import annotations

from typing import Any

import pytest

from tape2048 import errors
from tape2048_recorder.daemon.playing import Playing, error_of
from tape2048_recorder.ipc.protocol import Crashed, Ready


def test_a_player_that_changed_ends_it_and_another_start_may_follow() -> None:
    """Its file was replaced while the recorder ran, and then a worker was."""
    nobody: Any = None
    playing = Playing(nobody, None, None)
    assert playing.on_ready(0, Ready("a" * 64, 1.0)) is None
    assert playing.on_ready(1, Ready("a" * 64, 1.0)) is None
    error = playing.on_ready(0, Ready("b" * 64, 1.0))
    assert "worker 0 plays bbbbbbbbbbbb, the others aaaaaaaaaaaa" in str(error)
    assert type(error) is errors.RecorderError, "with StartError's exit code a service stays down"


@pytest.mark.parametrize("first", [True, False])
def test_of_the_first_worker_in_a_place_any_error_is_final(first: bool) -> None:
    error = error_of(Crashed("no room", starting=True), first=first)
    assert type(error) is (errors.StartError if first else type(None))
    player = error_of(Crashed("raised", True, "PlayerError", "look at it"), first=first)
    assert type(player) is errors.PlayerError
