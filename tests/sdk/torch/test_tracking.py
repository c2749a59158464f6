"""What a training leaves, and goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tape2048 import errors  # noqa: E402 - after the skip
from tape2048.torch.support import read_tensors  # noqa: E402
from tape2048.torch.training.ranks import Ranks  # noqa: E402
from tape2048.torch.training.run import train_critic  # noqa: E402
from tape2048.training import CHECKPOINT  # noqa: E402

from ..critics import config, make_games  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def test_a_checkpoint_has_the_loss_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks go on from the first one's file: its own sum would count in the place of the others'."""
    games = make_games(tmp_path / "games")
    monkeypatch.setattr(Ranks, "mean", lambda _self, values: torch.full_like(values, 5.0))
    train_critic(config(games, tmp_path / "critic", log_steps=100, checkpoint_steps=2, steps_max=3))
    state = read_tensors(tmp_path / "critic" / CHECKPOINT)["state"].numpy().tobytes()
    assert msgspec.json.decode(state)["loss_sum"] == 5.0


def test_it_goes_on_beside_sessions_that_came_later(tmp_path: Path) -> None:
    """A recorder writes on into the same directory: a condition leaves the rows of before."""
    games = make_games(tmp_path / "games", sessions=1)
    train_critic(config(games, tmp_path / "critic", steps_max=2))
    make_games(games, sessions=1, name="later")
    with pytest.raises(errors.StateError, match="has corpus = ") as caught:
        train_critic(config(games, tmp_path / "critic", steps_max=2))
    assert "--where" in caught.value.hint
    same = config(games, tmp_path / "critic", steps_max=2, where="model = 'toy'")
    assert train_critic(same).ended == "all steps are made"
    with pytest.raises(errors.StateError, match=r"where = '', not .*corpus = "):
        train_critic(config(games, tmp_path / "critic", steps_max=2, where="id > 5"))
